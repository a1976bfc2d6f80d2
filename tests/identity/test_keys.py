# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import hashlib

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from securetrain.core.errors import IdentityError, UsageError
from securetrain.identity.keys import KEY_FILE_LIMIT, KeyKind, PrivateKey, PublicKey
from tests.identity.worlds import private_pem
from tests.rsa_keys import rsa_key
from tests.tables import each, items
from tests.vocabulary import refused

KINDS = list(KeyKind)


@each("kind", *KINDS)
def test_sign_and_verify(kind):
    key = PrivateKey.generate(kind)
    assert key.kind is kind
    signature = key.sign(b"data")
    key.public.verify(signature, b"data")
    for bad, data in (
        (signature, b"Data"),
        (signature, b""),
        (b"", b"data"),
        (signature[:-1] + bytes([signature[-1] ^ 1]), b"data"),
    ):
        refused(IdentityError, "ST-IDEN-002", key.public.verify, bad, data)
    with pytest.raises(IdentityError, match="ST-IDEN-002"):
        PrivateKey.generate(kind).public.verify(signature, b"data")


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_file_round_trip(kind, tmp_path):
    key = PrivateKey.generate(kind)
    key.save(tmp_path / "k.pem")
    assert (tmp_path / "k.pem").stat().st_mode & 0o777 == 0o600
    assert PrivateKey.load(tmp_path / "k.pem").key_id == key.key_id


def test_a_new_key_never_replaces_a_file(tmp_path):
    path = tmp_path / "operator.pem"
    key = PrivateKey.create(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert PrivateKey.load(path).key_id == key.key_id
    refused(UsageError, "ST-USAG-005", PrivateKey.create, path, KeyKind.P256)
    assert PrivateKey.load(path).key_id == key.key_id


def test_saving_over_a_readable_file_makes_it_private(tmp_path):
    (tmp_path / "k.pem").write_text("old")
    (tmp_path / "k.pem").chmod(0o644)
    PrivateKey.generate().save(tmp_path / "k.pem")
    assert (tmp_path / "k.pem").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601, 0o777])
def test_a_key_that_others_may_use_is_refused(mode, tmp_path):
    PrivateKey.generate().save(tmp_path / "k.pem")
    (tmp_path / "k.pem").chmod(mode)
    refused(IdentityError, "ST-IDEN-010", PrivateKey.load, tmp_path / "k.pem")


def test_a_passphrase(tmp_path):
    key = PrivateKey.generate()
    key.save(tmp_path / "k.pem", b"correct horse")
    assert PrivateKey.load(tmp_path / "k.pem", b"correct horse").key_id == key.key_id
    for wrong in (b"battery staple", None):
        refused(IdentityError, "ST-IDEN-001", PrivateKey.load, tmp_path / "k.pem", wrong)


def private_file(path, data):
    path.write_bytes(data)
    path.chmod(0o600)
    return path


def pkcs8(native):
    return private_pem(native)


@items(
    "id, native",
    ("P-384", ec.generate_private_key(ec.SECP384R1())),
    ("RSA", rsa_key(2048)),
)
def test_other_kinds_of_keys_are_refused(native, tmp_path):
    with pytest.raises(IdentityError, match="ST-IDEN-001"):
        PrivateKey.load(private_file(tmp_path / "k.pem", pkcs8(native)))
    spki = native.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    refused(IdentityError, "ST-IDEN-001", PublicKey.from_spki, spki)


@pytest.mark.parametrize("data", [b"", b"not a key", b"-----BEGIN PRIVATE KEY-----\n"])
def test_a_file_that_is_no_key(data, tmp_path):
    refused(IdentityError, "ST-IDEN-001", PrivateKey.load, private_file(tmp_path / "k.pem", data))


def test_a_missing_file_a_link_and_a_giant(tmp_path):
    refused(UsageError, "ST-USAG-002", PrivateKey.load, tmp_path / "none.pem")
    PrivateKey.generate().save(tmp_path / "k.pem")
    (tmp_path / "link.pem").symlink_to(tmp_path / "k.pem")
    refused(UsageError, "ST-USAG-002", PrivateKey.load, tmp_path / "link.pem")
    with pytest.raises(UsageError, match="limit"):
        PrivateKey.load(private_file(tmp_path / "big.pem", b"x" * (KEY_FILE_LIMIT + 1)))


@each("kind", *KINDS)
def test_the_key_id_is_the_digest_of_the_public_key(kind):
    key = PrivateKey.generate(kind)
    assert key.key_id == hashlib.sha256(key.public.spki).hexdigest()
    assert PublicKey.from_spki(key.public.spki).key_id == key.key_id


@each("der", b"", b"\x30\x00", b"\xff" * 91)
def test_bytes_that_are_no_public_key(der):
    refused(IdentityError, "ST-IDEN-001", PublicKey.from_spki, der)


def test_a_private_key_is_not_printed():
    for kind in KINDS:
        key = PrivateKey.generate(kind)
        assert key.pem(serialization.NoEncryption()).decode().splitlines()[1] not in repr(key)
