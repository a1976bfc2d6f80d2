# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""T38, T39: how a trust root may change."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from securetrain.core import canonical
from securetrain.core.errors import IdentityError
from securetrain.identity import dsse
from securetrain.identity.keys import PrivateKey
from securetrain.identity.rotation import Change, amended, missing_signatures, next_root
from securetrain.identity.trust import Revoked, TrustRole, TrustRoot, sign_document
from tests import vocabulary

NOW = datetime(2026, 6, 1, tzinfo=UTC)
YEAR = timedelta(days=365)
OLD = [PrivateKey.generate() for _ in range(3)]
NEW = [PrivateKey.generate() for _ in range(2)]
WORKER, NEXT_WORKER = PrivateKey.generate(), PrivateKey.generate()
KIND = "application/example"

FIRST = vocabulary.trust_document(
    {TrustRole.ROOT: [key.public for key in OLD], TrustRole.CHECKPOINT: [WORKER.public]},
    NOW,
    NOW + YEAR,
    two_of=TrustRole.ROOT,
    log_origin="log.example",
)
TRUSTED = TrustRoot.parse(sign_document(FIRST, OLD[:2]), NOW)


def change(**fields) -> Change:
    return Change(created=NOW, expires=NOW + YEAR, **fields)


# Two new root keys take over from three old ones.
SECOND = amended(
    FIRST,
    change(
        add={TrustRole.ROOT: [key.public for key in NEW]},
        remove={TrustRole.ROOT: [key.key_id for key in OLD]},
    ),
)
BOTH = [*OLD[:2], *NEW]


def refused(code, data, trusted=TRUSTED):
    return vocabulary.refused(IdentityError, code, next_root, trusted, data, "root")


def replaced(document, **changes):
    return msgspec.structs.replace(document, **changes)


def test_root_keys_hand_over():
    second = next_root(TRUSTED, sign_document(SECOND, BOTH))
    assert second.version == 2
    assert set(second.keys_for(TrustRole.ROOT)) == {key.key_id for key in NEW}
    third = amended(SECOND, change())
    assert next_root(second, sign_document(third, NEW)).version == 3
    # The old keys are nobody now.
    refused("ST-IDEN-008", sign_document(third, OLD), second)


@pytest.mark.forgery
def test_signed_by_new_keys_only():
    """T39."""
    assert refused("ST-IDEN-016", sign_document(SECOND, NEW)).exit_code == 12
    TrustRoot.parse(sign_document(SECOND, NEW), NOW)  # by itself it is a good root: the control


@pytest.mark.forgery
def test_signed_by_old_keys_only():
    refused("ST-IDEN-008", sign_document(SECOND, OLD))


@pytest.mark.forgery
def test_below_a_threshold_of_either():
    """T38."""
    refused("ST-IDEN-016", sign_document(SECOND, [OLD[0], *NEW]))
    refused("ST-IDEN-008", sign_document(SECOND, [*OLD, NEW[0]]))


@pytest.mark.forgery
def test_one_signer_counted_twice():
    """T38."""
    envelope = msgspec.json.decode(sign_document(SECOND, [OLD[0], *NEW]))
    envelope["signatures"].append(envelope["signatures"][0])
    refused("ST-IDEN-008", canonical.dumps(envelope))


@pytest.mark.forgery
def test_a_version_that_is_leapt_over():
    """T39."""
    refused("ST-IDEN-016", sign_document(replaced(SECOND, version=3), BOTH))


@pytest.mark.forgery
def test_a_version_that_is_not_newer():
    error = refused("ST-IDEN-017", sign_document(replaced(SECOND, version=1), BOTH))
    assert error.exit_code == 15
    second = next_root(TRUSTED, sign_document(SECOND, BOTH))
    refused("ST-IDEN-017", sign_document(FIRST, OLD), second)


def revocation(**fields):
    return Revoked(key_id=WORKER.key_id, since=NOW, **fields)


def test_a_worker_key_is_replaced():
    """The old key's logged work stays; what it signs from now on is nothing."""
    second = amended(
        FIRST,
        change(
            add={TrustRole.CHECKPOINT: [NEXT_WORKER.public]},
            revoke=[revocation(valid_before=5, reason="replaced")],
        ),
    )
    root = next_root(TRUSTED, sign_document(second, OLD))
    role = TrustRole.CHECKPOINT
    for key, logged, code in (
        (NEXT_WORKER, None, ""),
        (WORKER, 4, ""),
        (WORKER, 5, "ST-IDEN-015"),
        (WORKER, None, "ST-IDEN-015"),
    ):
        envelope = dsse.sign(b"x", KIND, [key])
        if code:
            with pytest.raises(IdentityError, match=code):
                root.verify(envelope, KIND, role, logged=logged)
        else:
            root.verify(envelope, KIND, role, logged=logged)


@pytest.mark.forgery
def test_revocations_are_never_taken_back_or_loosened():
    for entry, later in (
        (revocation(), None),
        (revocation(), revocation(valid_before=9)),
        (revocation(valid_before=5), revocation(valid_before=6)),
    ):
        second = amended(FIRST, change(revoke=[entry]))
        trusted = next_root(TRUSTED, sign_document(second, OLD))
        third = amended(second, change())
        third = replaced(third, revoked=[later] if later else [])
        refused("ST-IDEN-016", sign_document(third, OLD), trusted)
        for fine in (entry, replaced(entry, valid_before=None)):
            next_root(trusted, sign_document(replaced(third, revoked=[fine]), OLD))


def test_the_log_stays_while_a_revocation_speaks_of_it():
    second = amended(FIRST, change(revoke=[revocation(valid_before=5)]))
    trusted = next_root(TRUSTED, sign_document(second, OLD))
    moved = amended(second, change(log_origin="other.example"))
    refused("ST-IDEN-016", sign_document(moved, OLD), trusted)
    free = amended(FIRST, change(log_origin="other.example"))
    next_root(TRUSTED, sign_document(free, OLD))
    # The first log may be named together with the first index in it.
    none = TrustRoot.parse(sign_document(replaced(FIRST, log_origin=""), OLD), NOW)
    first = amended(
        none.document, change(log_origin="log.example", revoke=[revocation(valid_before=5)])
    )
    next_root(none, sign_document(first, OLD))


@pytest.mark.forgery
def test_a_revoked_root_key_leaves_the_root_role():
    lost = Revoked(key_id=OLD[2].key_id, since=NOW)
    second = amended(FIRST, change(revoke=[lost]))
    root = next_root(TRUSTED, sign_document(second, OLD[:2]))
    assert set(root.keys_for(TrustRole.ROOT)) == {key.key_id for key in OLD[:2]}
    third = amended(second, change())
    refused("ST-IDEN-008", sign_document(third, [OLD[0], OLD[2]]), root)


def test_keys_that_are_not_there():
    strange = PrivateKey.generate().key_id
    for fields in (
        {"remove": {TrustRole.CHECKPOINT: [strange]}},
        {"revoke": [Revoked(key_id=strange, since=NOW)]},
    ):
        vocabulary.refused(IdentityError, "ST-IDEN-016", amended, FIRST, change(**fields))


def test_what_a_draft_still_needs():
    draft = sign_document(SECOND, [OLD[0]])
    needs = missing_signatures(draft, SECOND, TRUSTED)
    assert needs == {"its own root keys": 2, "the root keys of version 1": 1}
    assert not any(missing_signatures(sign_document(SECOND, BOTH), SECOND, TRUSTED).values())
    assert missing_signatures(sign_document(FIRST, OLD[:1]), FIRST, None) == {
        "its own root keys": 1
    }


def test_a_role_is_made_and_dropped():
    second = amended(
        FIRST,
        change(
            add={TrustRole.OPERATOR: [NEXT_WORKER.public]},
            remove={TrustRole.CHECKPOINT: [WORKER.key_id]},
        ),
    )
    assert set(second.roles) == {TrustRole.ROOT, TrustRole.OPERATOR}
    assert WORKER.key_id not in second.keys
    next_root(TRUSTED, sign_document(second, OLD))
