# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Pairs of keys: two signatures in one envelope, and the trust root that asks for both."""

import base64
import json
import time
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from cryptography.exceptions import UnsupportedAlgorithm

from securetrain.core import canonical
from securetrain.core.errors import IdentityError
from securetrain.identity import Change, amended, dsse
from securetrain.identity.keys import KeyKind, PrivateKey, PublicKey
from securetrain.identity.rotation import next_root
from securetrain.identity.trust import (
    PAYLOAD_TYPE,
    Revoked,
    RoleKeys,
    Signatures,
    TrustRole,
    TrustRoot,
    sign_document,
    sign_root,
)
from tests.tables import each, forgeries
from tests.vocabulary import refused

NOW = datetime(2026, 11, 1, tzinfo=UTC)
KIND = "application/vnd.example+json"
DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def pair():
    return PrivateKey.generate_pair()


@pytest.fixture(scope="module")
def root_key():
    return PrivateKey.generate_pair()


def signed_root(key, root_key, signatures=Signatures.BOTH, **changes):
    data = sign_root({TrustRole.CHECKPOINT: [key.public]}, root_key, NOW - DAY, NOW + DAY)
    document = TrustRoot.parse(data, NOW).document
    role = document.roles[TrustRole.CHECKPOINT]
    roles = document.roles | {
        TrustRole.CHECKPOINT: msgspec.structs.replace(role, signatures=signatures)
    }
    document = msgspec.structs.replace(document, roles=roles, **changes)
    return sign_document(document, [root_key])


def trusting(key, root_key, signatures=Signatures.BOTH, **changes):
    return TrustRoot.parse(signed_root(key, root_key, signatures, **changes), NOW)


def without(envelope, key_id):
    """The envelope without one signature."""
    value = json.loads(envelope)
    value["signatures"] = [one for one in value["signatures"] if one["keyid"] != key_id]
    return canonical.dumps(value)


def bent(envelope, key_id):
    value = json.loads(envelope)
    for one in value["signatures"]:
        if one["keyid"] == key_id:
            data = bytearray(base64.b64decode(one["sig"]))
            data[5] ^= 1
            one["sig"] = base64.b64encode(data).decode()
    return canonical.dumps(value)


def test_one_envelope_holds_two_signatures_and_counts_one_signer(pair, root_key):
    envelope = dsse.sign(b"{}", KIND, [pair])
    assert pair.companion is not None
    assert [one["keyid"] for one in json.loads(envelope)["signatures"]] == [
        pair.key_id,
        pair.companion.key_id,
    ]
    found = trusting(pair, root_key).verify(envelope, KIND, TrustRole.CHECKPOINT)
    assert found.key_ids == found.paired == {pair.key_id}


@pytest.mark.forgery
def test_a_stripped_signature_is_refused_where_both_must_hold(pair, root_key):
    """Somebody who can forge one of the two leaves the other out."""
    envelope = dsse.sign(b"{}", KIND, [pair])
    both, classical = trusting(pair, root_key), trusting(pair, root_key, Signatures.CLASSICAL)
    stripped = without(envelope, pair.companion.key_id)
    assert classical.verify(stripped, KIND, TrustRole.CHECKPOINT).paired == frozenset()
    error = refused(
        IdentityError, "ST-IDEN-024", both.verify, stripped, KIND, TrustRole.CHECKPOINT, "x"
    )
    assert error.exit_code == 12
    # The companion alone is nobody, under either rule.
    lone = without(envelope, pair.key_id)
    for trust in (both, classical):
        refused(IdentityError, "ST-IDEN-003", trust.verify, lone, KIND, TrustRole.CHECKPOINT, "x")


@forgeries("signatures", *list(Signatures))
@each("which", "classical", "companion")
def test_a_signature_that_is_there_must_verify(which, signatures, pair, root_key):
    envelope = dsse.sign(b"{}", KIND, [pair])
    key = pair if which == "classical" else pair.companion
    trust = trusting(pair, root_key, signatures)
    refused(
        IdentityError,
        "ST-IDEN-002",
        trust.verify,
        bent(envelope, key.key_id),
        KIND,
        TrustRole.CHECKPOINT,
        "x",
    )


@pytest.mark.forgery
def test_the_companion_of_another_pair_is_not_this_ones(pair, root_key):
    mixed = PrivateKey(pair.native, PrivateKey.generate_pair().companion)
    envelope = dsse.sign(b"{}", KIND, [mixed])
    trust = trusting(pair, root_key)
    refused(IdentityError, "ST-IDEN-024", trust.verify, envelope, KIND, TrustRole.CHECKPOINT, "x")


def test_old_keys_and_roots_are_read_as_before(tmp_path):
    key = PrivateKey.create(tmp_path / "old.pem")
    assert PrivateKey.load(tmp_path / "old.pem").companion is None
    data = sign_root({TrustRole.CHECKPOINT: [key.public]}, key, NOW - DAY, NOW + DAY)
    value = json.loads(data)
    document = json.loads(base64.b64decode(value["payload"]))
    for name in ("companions", "identities", "sigstore"):
        assert document.pop(name) == {}
    for role in document["roles"].values():
        assert role.pop("signatures") == "classical"
    old = dsse.sign(canonical.dumps(document), PAYLOAD_TYPE, [key])
    trust = TrustRoot.parse(old, NOW)
    assert trust.verify(dsse.sign(b"{}", KIND, [key]), KIND, TrustRole.CHECKPOINT).key_ids


@pytest.mark.parametrize("passphrase", [None, b"correct horse"])
def test_a_pair_is_one_file(passphrase, tmp_path):
    path = tmp_path / "pair.pem"
    made = PrivateKey.create(path, passphrase=passphrase, companion=KeyKind.ML_DSA_65)
    again = PrivateKey.load(path, passphrase)
    assert made.companion is not None
    assert again.companion is not None
    assert (again.key_id, again.companion.key_id) == (made.key_id, made.companion.key_id)
    public = PublicKey.from_pem(made.public.file_pem)
    assert public.companion is not None
    assert public.companion.key_id == made.companion.key_id
    assert PublicKey.from_pem(made.public.pem) == made.public


def test_a_file_of_two_keys_that_are_no_pair(tmp_path):
    one, other = PrivateKey.generate(), PrivateKey.generate()
    path = tmp_path / "two.pem"
    path.write_bytes(one.file_bytes(None) + other.file_bytes(None))
    path.chmod(0o600)
    refused(IdentityError, "ST-IDEN-001", PrivateKey.load, path)
    refused(IdentityError, "ST-IDEN-001", PublicKey.from_pem, one.public.pem + other.public.pem)
    refused(IdentityError, "ST-IDEN-001", PublicKey.from_pem, one.public.pem * 3)


@each("path", "a companion in a role", "a role of both without companions")
def test_roots_that_would_not_mean_what_they_say(path, pair, root_key):
    document = trusting(pair, root_key).document
    if path == "a companion in a role":
        roles = {TrustRole.DATASET: RoleKeys([pair.companion.key_id])}
        document = msgspec.structs.replace(document, roles=document.roles | roles)
    else:
        document = msgspec.structs.replace(document, companions={})
    data = sign_document(document, [root_key])
    refused(IdentityError, "ST-IDEN-008", TrustRoot.parse, data, NOW)


@pytest.mark.forgery
def test_the_next_root_cannot_lower_what_the_root_asks_of_itself(pair, root_key):
    """Whoever breaks the curve signs a root of their own; the old root asked for both."""
    first = trusting(pair, root_key)
    roles = {
        role: msgspec.structs.replace(entry, signatures=Signatures.BOTH)
        for role, entry in first.document.roles.items()
    }
    first = TrustRoot.parse(
        sign_document(msgspec.structs.replace(first.document, roles=roles), [root_key]), NOW
    )
    change = Change(
        created=NOW - DAY, expires=NOW + DAY, signatures={TrustRole.ROOT: Signatures.CLASSICAL}
    )
    document = amended(first.document, change)
    forged = sign_document(document, [PrivateKey(root_key.native)])
    assert TrustRoot.parse(forged, NOW).version == 2  # good by its own word
    refused(IdentityError, "ST-IDEN-016", next_root, first, forged, says="companion")
    assert next_root(first, sign_document(document, [root_key])).version == 2


@pytest.mark.forgery
def test_a_revoked_companion_takes_its_pair_along(pair, root_key):
    gone = Revoked(key_id=pair.companion.key_id, since=NOW)
    trust = trusting(pair, root_key, Signatures.CLASSICAL, revoked=[gone])
    assert trust.keys_for(TrustRole.CHECKPOINT) == {}
    envelope = dsse.sign(b"{}", KIND, [pair])
    refused(IdentityError, "ST-IDEN-015", trust.verify, envelope, KIND, TrustRole.CHECKPOINT, "x")


def test_where_openssl_has_no_ml_dsa_it_is_said_and_nothing_falls_back(monkeypatch, pair):
    """A key that would be half of what was asked for is never made or used."""

    def none(*_):
        raise UnsupportedAlgorithm("ML-DSA is not supported by this backend")

    spki = pair.public.companion.spki
    monkeypatch.setattr("securetrain.identity.keys.mldsa.MLDSA65PrivateKey", Absent)
    refused(IdentityError, "ST-IDEN-025", PrivateKey.generate_pair)
    monkeypatch.setattr("securetrain.identity.keys.serialization.load_der_public_key", none)
    refused(IdentityError, "ST-IDEN-025", PublicKey.from_spki, spki)
    monkeypatch.setattr("securetrain.identity.keys.serialization.load_pem_public_key", none)
    refused(IdentityError, "ST-IDEN-025", PublicKey.from_pem, pair.public.companion.pem)
    refused(IdentityError, "ST-IDEN-001", PublicKey.from_pem, PrivateKey.generate().public.pem)


class Absent:
    @staticmethod
    def generate():
        raise UnsupportedAlgorithm("ML-DSA is not supported by this backend")


def test_the_second_signature_costs_little(pair, root_key):
    """<= 1 ms more is asked; here against a bound that a busy machine keeps too."""
    lone = PrivateKey(pair.native)
    trust = trusting(pair, root_key)
    plain = trusting(lone, root_key, Signatures.CLASSICAL)

    def fastest(envelope, root):
        times = []
        for _ in range(30):
            start = time.process_time()
            root.verify(envelope, KIND, TrustRole.CHECKPOINT)
            times.append(time.process_time() - start)
        return min(times)

    body = b"x" * 10_000
    more = fastest(dsse.sign(body, KIND, [pair]), trust) - fastest(
        dsse.sign(body, KIND, [lone]), plain
    )
    assert more < 0.01


def test_what_exists_for_each_rank_stays_classical(pair):
    assert len(json.loads(dsse.sign(b"{}", KIND, [pair], classical=True))["signatures"]) == 1
    assert pair.public.kind is KeyKind.ED25519
    assert len(pair.sign(b"x")) == 64
