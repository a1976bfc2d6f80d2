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
from tests.tables import each

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


@pytest.mark.forgery
def test_signed_by_somebody_else():
    refused(signed(document(), OTHER))


@pytest.mark.forgery
def test_signed_by_a_key_of_another_role():
    refused(signed(document(), CHECKPOINT))


@pytest.mark.forgery
def test_a_key_stored_under_another_keys_id():
    keys = dict(document().keys)
    keys[CHECKPOINT.key_id] = base64.b64encode(OTHER.public.spki).decode()
    refused(signed(msgspec.structs.replace(document(), keys=keys)))


@each("role", TrustRole.ROOT, TrustRole.DATASET)
def test_a_role_that_names_a_key_which_is_not_there(role):
    roles = {**document().roles, role: RoleKeys(["0" * 64])}
    refused(signed(msgspec.structs.replace(document(), roles=roles)))


def test_no_root_role():
    roles = {r: k for r, k in document().roles.items() if r is not TrustRole.ROOT}
    refused(signed(msgspec.structs.replace(document(), roles=roles)))


@each("threshold", -1, 0, 2)
def test_thresholds_that_make_no_sense(threshold):
    roles = {**document().roles, TrustRole.DATASET: RoleKeys([DATASET.key_id], threshold=threshold)}
    refused(signed(msgspec.structs.replace(document(), roles=roles)))


@pytest.mark.forgery
def test_one_key_twice_is_not_two_keys():
    roles = {**document().roles, TrustRole.DATASET: RoleKeys([DATASET.key_id] * 2, threshold=2)}
    refused(signed(msgspec.structs.replace(document(), roles=roles)))


def test_a_root_threshold_of_two_needs_two():
    keys = {**document().keys, OTHER.key_id: base64.b64encode(OTHER.public.spki).decode()}
    roles = {**document().roles, TrustRole.ROOT: RoleKeys([ROOT.key_id, OTHER.key_id], 2)}
    both = msgspec.structs.replace(document(), keys=keys, roles=roles)
    TrustRoot.parse(signed(both, ROOT, OTHER), NOW)
    refused(signed(both, ROOT))


@each("data", b"", b"{}", b"[]", b"null", dsse.sign(b"{}", KIND, [ROOT]))
def test_something_else(data):
    refused(data)


@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_no_byte_can_change(position, flip):
    data = bytearray(GOOD)
    data[position] ^= flip
    refused(bytes(data))


def test_a_missing_file(tmp_path):
    vocabulary.refused(UsageError, "ST-USAG-002", TrustRoot.load, tmp_path / "none.json", NOW)


def with_revocation(entry: Revoked, **changes) -> bytes:
    return signed(
        msgspec.structs.replace(document(), revoked=[entry], log_origin="log.example", **changes)
    )


REVOKED = Revoked(key_id=CHECKPOINT.key_id, since=NOW, reason="laptop was stolen")


@pytest.mark.forgery
def test_a_revoked_key_counts_for_nothing():
    """T38."""
    envelope = dsse.sign(b"x", KIND, [CHECKPOINT])
    TrustRoot.parse(GOOD, NOW).verify(envelope, KIND, TrustRole.CHECKPOINT)  # the control
    trust = TrustRoot.parse(with_revocation(REVOKED), NOW)
    assert trust.keys_for(TrustRole.CHECKPOINT) == {}
    for logged in (None, 0, 5):
        with pytest.raises(IdentityError) as caught:
            trust.verify(envelope, KIND, TrustRole.CHECKPOINT, logged=logged)
        assert caught.value.code == "ST-IDEN-015"
        assert caught.value.exit_code == 16
    # Somebody who was never trusted is not called revoked.
    with pytest.raises(IdentityError, match="ST-IDEN-003"):
        trust.verify(dsse.sign(b"x", KIND, [OTHER]), KIND, TrustRole.CHECKPOINT)


@each("logged, good", (0, True), (6, True), (7, False), (8, False))
def test_what_was_logged_before_a_revocation_stays_valid(logged, good):
    entry = msgspec.structs.replace(REVOKED, valid_before=7)
    trust = TrustRoot.parse(with_revocation(entry), NOW)
    envelope = dsse.sign(b"x", KIND, [CHECKPOINT])
    if good:
        assert trust.verify(envelope, KIND, TrustRole.CHECKPOINT, logged=logged).data == b"x"
    else:
        with pytest.raises(IdentityError, match="ST-IDEN-015"):
            trust.verify(envelope, KIND, TrustRole.CHECKPOINT, logged=logged)
    with pytest.raises(IdentityError, match="ST-IDEN-015"):
        trust.verify(envelope, KIND, TrustRole.CHECKPOINT)  # no proof of when


@pytest.mark.forgery
def test_a_revocation_lowers_no_threshold():
    keys = {**document().keys, OTHER.key_id: base64.b64encode(OTHER.public.spki).decode()}
    roles = {
        **document().roles,
        TrustRole.CHECKPOINT: RoleKeys([CHECKPOINT.key_id, OTHER.key_id], 2),
    }
    trust = TrustRoot.parse(with_revocation(REVOKED, keys=keys, roles=roles), NOW)
    for signers, code in (([OTHER], "ST-IDEN-009"), ([OTHER, CHECKPOINT], "ST-IDEN-015")):
        with pytest.raises(IdentityError, match=code):
            trust.verify(dsse.sign(b"x", KIND, signers), KIND, TrustRole.CHECKPOINT)


def test_a_revoked_keys_signature_beside_enough_good_ones_does_no_harm():
    keys = {**document().keys, OTHER.key_id: base64.b64encode(OTHER.public.spki).decode()}
    roles = {**document().roles, TrustRole.CHECKPOINT: RoleKeys([CHECKPOINT.key_id, OTHER.key_id])}
    trust = TrustRoot.parse(with_revocation(REVOKED, keys=keys, roles=roles), NOW)
    envelope = dsse.sign(b"x", KIND, [OTHER, CHECKPOINT])
    assert trust.verify(envelope, KIND, TrustRole.CHECKPOINT).key_ids == {OTHER.key_id}


def test_revocations_that_make_no_sense():
    refused(with_revocation(msgspec.structs.replace(REVOKED, key_id=ROOT.key_id)))
    refused(signed(msgspec.structs.replace(document(), revoked=[REVOKED, REVOKED])))
    spared = msgspec.structs.replace(REVOKED, valid_before=1)
    refused(signed(msgspec.structs.replace(document(), revoked=[spared])))  # of which log?


def test_a_time_without_a_zone_is_malformed():
    plain = canonical.encode(document()).replace(b'Z"', b'"')
    refused(dsse.sign(plain, PAYLOAD_TYPE, [ROOT]))


def test_more_signatures_on_an_envelope():
    one = dsse.sign(b"x", KIND, [CHECKPOINT])
    both = dsse.add_signatures(one, KIND, [DATASET, CHECKPOINT])
    keys = {key.key_id: key.public for key in (CHECKPOINT, DATASET)}
    assert dsse.verify(both, KIND, keys, threshold=2).key_ids == set(keys)
    with pytest.raises(IdentityError, match="ST-IDEN-004"):
        dsse.add_signatures(one, "application/other", [DATASET])
