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
    RoleKeys,
    TrustDocument,
    TrustRole,
    TrustRoot,
    sign_root,
)

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
    with pytest.raises(IdentityError) as caught:
        TrustRoot.parse(data, now, "trust.json")
    assert caught.value.code == "ST-IDEN-008"


def test_keys_are_trusted_for_their_role_only(tmp_path):
    (tmp_path / "trust.json").write_bytes(GOOD)
    trust = TrustRoot.load(tmp_path / "trust.json", NOW)
    envelope = dsse.sign(b"x", KIND, [CHECKPOINT])
    assert trust.verify(envelope, KIND, TrustRole.CHECKPOINT).data == b"x"
    for role in (TrustRole.DATASET, TrustRole.LEDGER, TrustRole.ROOT):
        with pytest.raises(IdentityError, match="ST-IDEN-003"):
            trust.verify(envelope, KIND, role)


def test_a_role_that_is_not_named_trusts_nobody():
    trust = TrustRoot.parse(GOOD, NOW)
    assert trust.keys_for(TrustRole.LEDGER) == {}
    assert trust.threshold(TrustRole.LEDGER) == 1


@pytest.mark.parametrize(
    ("when", "good"),
    [
        (NOW - timedelta(seconds=1), False),
        (NOW, True),
        (NOW + YEAR - timedelta(seconds=1), True),
        (NOW + YEAR, False),
    ],
)
def test_validity(when, good):
    if good:
        TrustRoot.parse(GOOD, when)
    else:
        refused(GOOD, when)


def test_signed_by_somebody_else():
    refused(signed(document(), OTHER))


def test_signed_by_a_key_of_another_role():
    refused(signed(document(), CHECKPOINT))


def test_a_key_stored_under_another_keys_id():
    keys = dict(document().keys)
    keys[CHECKPOINT.key_id] = base64.b64encode(OTHER.public.spki).decode()
    refused(signed(msgspec.structs.replace(document(), keys=keys)))


def test_a_role_that_names_a_key_which_is_not_there():
    roles = {**document().roles, TrustRole.ROOT: RoleKeys(["0" * 64])}
    refused(signed(msgspec.structs.replace(document(), roles=roles)))


def test_no_root_role():
    roles = {r: k for r, k in document().roles.items() if r is not TrustRole.ROOT}
    refused(signed(msgspec.structs.replace(document(), roles=roles)))


@pytest.mark.parametrize("threshold", [-1, 0, 2])
def test_thresholds_that_make_no_sense(threshold):
    roles = {
        **document().roles,
        TrustRole.DATASET: RoleKeys([DATASET.key_id], threshold=threshold),
    }
    refused(signed(msgspec.structs.replace(document(), roles=roles)))


def test_one_key_twice_is_not_two_keys():
    roles = {
        **document().roles,
        TrustRole.DATASET: RoleKeys([DATASET.key_id] * 2, threshold=2),
    }
    refused(signed(msgspec.structs.replace(document(), roles=roles)))


def test_a_root_threshold_of_two_needs_two():
    keys = {**document().keys, OTHER.key_id: base64.b64encode(OTHER.public.spki).decode()}
    roles = {**document().roles, TrustRole.ROOT: RoleKeys([ROOT.key_id, OTHER.key_id], 2)}
    both = msgspec.structs.replace(document(), keys=keys, roles=roles)
    TrustRoot.parse(signed(both, ROOT, OTHER), NOW)
    refused(signed(both, ROOT))


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"null", dsse.sign(b"{}", KIND, [ROOT])])
def test_something_else(data):
    refused(data)


@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_no_byte_can_change(position, flip):
    data = bytearray(GOOD)
    data[position] ^= flip
    refused(bytes(data))


def test_a_missing_file(tmp_path):
    with pytest.raises(UsageError, match="ST-USAG-002"):
        TrustRoot.load(tmp_path / "none.json", NOW)
