# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import base64
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securetrain.core import canonical
from securetrain.core.errors import IdentityError, UsageError
from securetrain.identity import dsse
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import (
    PAYLOAD_TYPE,
    Revoked,
    RoleKeys,
    TrustDocument,
    TrustRole,
    TrustRoot,
    sign_root,
)
from tests import vocabulary
from tests.tables import each, forgeries

NOW = datetime(2026, 6, 1, tzinfo=UTC)
YEAR = timedelta(days=365)
ROOT, CHECKPOINT, DATASET, OTHER = (PrivateKey.generate() for _ in range(4))
ROLES = {TrustRole.CHECKPOINT: [CHECKPOINT.public], TrustRole.DATASET: [DATASET.public]}
GOOD = sign_root(ROLES, ROOT, NOW, NOW + YEAR)
KIND = "application/example"


def document() -> TrustDocument:
    envelope = canonical.loads(GOOD)
    return canonical.decode(base64.b64decode(envelope["payload"]), TrustDocument)


def signed(changed, *keys) -> bytes:
    return dsse.sign(canonical.encode(changed), PAYLOAD_TYPE, list(keys or [ROOT]))


def saying(**changes) -> TrustDocument:
    """The good document with other roles beside its own, or other fields."""
    roles = {**document().roles, **changes.pop("roles", {})}
    return msgspec.structs.replace(document(), roles=roles, **changes)


def other_key() -> dict[str, str]:
    return {**document().keys, OTHER.key_id: base64.b64encode(OTHER.public.spki).decode()}


def trusted(role, key_ids, threshold=1):
    return {role: RoleKeys(key_ids, threshold)}


def refused(data, now=NOW):
    vocabulary.refused(IdentityError, "ST-IDEN-008", TrustRoot.parse, data, now, "trust.json")


def test_keys_are_trusted_for_their_role_only(tmp_path):
    (tmp_path / "trust.json").write_bytes(GOOD)
    trust = TrustRoot.load(tmp_path / "trust.json", NOW)
    envelope = dsse.sign(b"x", KIND, [CHECKPOINT])
    assert trust.verify(envelope, KIND, TrustRole.CHECKPOINT).data == b"x"
    for role in (TrustRole.DATASET, TrustRole.LEDGER, TrustRole.ROOT):
        vocabulary.refused(IdentityError, "ST-IDEN-003", trust.verify, envelope, KIND, role)


def test_a_role_that_is_not_named_trusts_nobody():
    trust = TrustRoot.parse(GOOD, NOW)
    assert trust.keys_for(TrustRole.LEDGER) == {}
    assert trust.threshold(TrustRole.LEDGER) == 1


@each(
    "when, good",
    (NOW - timedelta(seconds=1), False),
    (NOW, True),
    (NOW + YEAR - timedelta(seconds=1), True),
    (NOW + YEAR, False),
)
def test_validity(when, good):
    if good:
        TrustRoot.parse(GOOD, when)
    else:
        refused(GOOD, when)


ROOTLESS = {r: k for r, k in document().roles.items() if r is not TrustRole.ROOT}
MISNAMED = {**document().keys, CHECKPOINT.key_id: base64.b64encode(OTHER.public.spki).decode()}
REVOKED = Revoked(key_id=CHECKPOINT.key_id, since=NOW, reason="laptop was stolen")
ZONELESS = canonical.encode(document()).replace(b'Z"', b'"')
OF_ROOT = msgspec.structs.replace(REVOKED, key_id=ROOT.key_id)
SPARED = msgspec.structs.replace(REVOKED, valid_before=1)


@forgeries(
    "id, data",
    ("signed by somebody else", signed(document(), OTHER)),
    ("signed by a key of another role", signed(document(), CHECKPOINT)),
    ("a key under another's id", signed(saying(keys=MISNAMED))),
    ("no such root", signed(saying(roles=trusted(TrustRole.ROOT, ["0" * 64])))),
    ("no such key", signed(saying(roles=trusted(TrustRole.DATASET, ["0" * 64])))),
    ("no root role", signed(msgspec.structs.replace(document(), roles=ROOTLESS))),
    *(
        (f"threshold {n}", signed(saying(roles=trusted(TrustRole.DATASET, [DATASET.key_id], n))))
        for n in (-1, 0, 2)
    ),
    ("one key twice", signed(saying(roles=trusted(TrustRole.DATASET, [DATASET.key_id] * 2, 2)))),
    ("the root revoked", signed(saying(revoked=[OF_ROOT], log_origin="log.example"))),
    ("revoked twice", signed(saying(revoked=[REVOKED, REVOKED]))),
    ("spared by which log", signed(saying(revoked=[SPARED]))),
    ("a time without a zone", dsse.sign(ZONELESS, PAYLOAD_TYPE, [ROOT])),
    *((repr(data), data) for data in (b"", b"{}", b"[]", b"null")),
    ("another type", dsse.sign(b"{}", KIND, [ROOT])),
)
def test_documents_that_are_no_trust_root(data):
    refused(data)


def test_a_root_threshold_of_two_needs_two():
    roles = trusted(TrustRole.ROOT, [ROOT.key_id, OTHER.key_id], 2)
    both = saying(keys=other_key(), roles=roles)
    TrustRoot.parse(signed(both, ROOT, OTHER), NOW)
    refused(signed(both, ROOT))


@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_no_byte_can_change(position, flip):
    data = bytearray(GOOD)
    data[position] ^= flip
    refused(bytes(data))


def test_a_missing_file(tmp_path):
    vocabulary.refused(UsageError, "ST-USAG-002", TrustRoot.load, tmp_path / "none.json", NOW)


def revoking(entry: Revoked = REVOKED, **changes) -> TrustRoot:
    told = saying(revoked=[entry], log_origin="log.example", **changes)
    return TrustRoot.parse(signed(told), NOW)


def unverified(code, trust, signers, **logged):
    envelope = dsse.sign(b"x", KIND, signers)
    return vocabulary.refused(
        IdentityError, code, trust.verify, envelope, KIND, TrustRole.CHECKPOINT, **logged
    )


@pytest.mark.forgery
def test_a_revoked_key_counts_for_nothing():
    """T38."""
    envelope = dsse.sign(b"x", KIND, [CHECKPOINT])
    TrustRoot.parse(GOOD, NOW).verify(envelope, KIND, TrustRole.CHECKPOINT)  # the control
    trust = revoking()
    assert trust.keys_for(TrustRole.CHECKPOINT) == {}
    for logged in (None, 0, 5):
        assert unverified("ST-IDEN-015", trust, [CHECKPOINT], logged=logged).exit_code == 16
    # Somebody who was never trusted is not called revoked.
    unverified("ST-IDEN-003", trust, [OTHER])


@each("logged, good", (0, True), (6, True), (7, False), (8, False))
def test_what_was_logged_before_a_revocation_stays_valid(logged, good):
    trust = revoking(msgspec.structs.replace(REVOKED, valid_before=7))
    if good:
        envelope = dsse.sign(b"x", KIND, [CHECKPOINT])
        assert trust.verify(envelope, KIND, TrustRole.CHECKPOINT, logged=logged).data == b"x"
    else:
        unverified("ST-IDEN-015", trust, [CHECKPOINT], logged=logged)
    unverified("ST-IDEN-015", trust, [CHECKPOINT])  # no proof of when


EITHER = [CHECKPOINT.key_id, OTHER.key_id]


@pytest.mark.forgery
def test_a_revocation_lowers_no_threshold():
    trust = revoking(keys=other_key(), roles=trusted(TrustRole.CHECKPOINT, EITHER, 2))
    unverified("ST-IDEN-009", trust, [OTHER])
    unverified("ST-IDEN-015", trust, [OTHER, CHECKPOINT])


def test_a_revoked_keys_signature_beside_enough_good_ones_does_no_harm():
    trust = revoking(keys=other_key(), roles=trusted(TrustRole.CHECKPOINT, EITHER))
    envelope = dsse.sign(b"x", KIND, [OTHER, CHECKPOINT])
    assert trust.verify(envelope, KIND, TrustRole.CHECKPOINT).key_ids == {OTHER.key_id}


def test_more_signatures_on_an_envelope():
    one = dsse.sign(b"x", KIND, [CHECKPOINT])
    both = dsse.add_signatures(one, KIND, [DATASET, CHECKPOINT])
    keys = {key.key_id: key.public for key in (CHECKPOINT, DATASET)}
    assert dsse.verify(both, KIND, keys, threshold=2).key_ids == set(keys)
    given = (one, "application/other", [DATASET])
    vocabulary.refused(IdentityError, "ST-IDEN-004", dsse.add_signatures, *given)
