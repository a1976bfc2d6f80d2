# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Chunks and keys: nothing can be exchanged, dropped, cut off or brought from elsewhere."""

import base64
import sys
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from nacl.public import PublicKey, SealedBox

from securetrain.artifacts.tree.encryption import (
    MAX_RECIPIENTS,
    TAG,
    DecryptionKey,
    FileCipher,
    Recipient,
    Sealed,
    new_key,
    open_key,
)
from securetrain.core.errors import IdentityError, IntegrityError, UsageError
from tests.identity.worlds import private_pem
from tests.vocabulary import refused

KEY = bytes(range(32))


def cipher(**changes: str | int) -> FileCipher:
    names: dict[str, str] = {"run_id": "r", "save_id": "s", "file": "rank-00000.bin"}
    names |= {name: str(value) for name, value in changes.items() if name != "chunk"}
    return FileCipher.of(KEY, chunk=int(changes.get("chunk", 1024)), **names)


def test_a_chunk_comes_back() -> None:
    sealed = cipher().seal(3, b"x" * 100, last=False)
    assert len(sealed) == 100 + TAG
    assert b"xxxx" not in sealed
    assert cipher().open(3, sealed, last=False) == b"x" * 100


@pytest.mark.forgery
@pytest.mark.parametrize(
    "changes",
    [{"run_id": "r2"}, {"save_id": "s2"}, {"file": "rank-00001.bin"}, {"chunk": 2048}],
)
def test_a_chunk_of_another_file_does_not_open(changes: dict[str, str | int]) -> None:
    sealed = cipher().seal(0, b"data", last=True)
    refused(ValueError, "does not decrypt", cipher(**changes).open, 0, sealed, last=True)


@pytest.mark.forgery
@pytest.mark.parametrize(("number", "last"), [(1, True), (0, False)])
def test_a_chunk_in_another_place_does_not_open(number: int, *, last: bool) -> None:
    sealed = cipher().seal(0, b"data", last=True)
    refused(ValueError, "does not decrypt", cipher().open, number, sealed, last=last)


@pytest.mark.forgery
def test_a_changed_chunk_does_not_open() -> None:
    sealed = bytearray(cipher().seal(0, b"data", last=True))
    for at in range(len(sealed)):
        sealed[at] ^= 1
        refused(ValueError, "does not decrypt", cipher().open, 0, sealed, last=True)
        sealed[at] ^= 1
    refused(ValueError, "does not decrypt", cipher().open, 0, b"", last=True)


def test_every_recipient_gets_the_key_and_nobody_else() -> None:
    keys = [DecryptionKey.generate() for _ in range(3)]
    key, sealed = new_key([one.recipient for one in keys[:2]])
    assert len(sealed.keys) == 2
    for one in keys[:2]:
        assert open_key(sealed, [keys[2], one], "f", "w") == key
    refused(IntegrityError, "ST-CKPT-124", open_key, sealed, [keys[2]], "f", "w")
    assert new_key([keys[0].recipient])[0] != key


@pytest.mark.forgery
def test_an_exchanged_wrapped_key_is_refused() -> None:
    one, other = DecryptionKey.generate(), DecryptionKey.generate()
    _, foreign = new_key([other.recipient])
    wrapped = foreign.keys[other.recipient.id]
    with pytest.raises(IntegrityError) as error:
        open_key(Sealed(size=0, keys={one.recipient.id: wrapped}), [one], "f", "w")
    assert error.value.code == "ST-CKPT-133"
    for text in ("A" * 108, "!" * 108):
        with pytest.raises(IntegrityError) as error:
            open_key(Sealed(size=0, keys={one.recipient.id: text}), [one], "f", "w")
        assert error.value.code == "ST-CKPT-133"


@pytest.mark.forgery
def test_a_wrapped_key_of_another_size_is_refused() -> None:
    one = DecryptionKey.generate()
    for size in (16, 33):
        wrapped = SealedBox(PublicKey(one.recipient.public)).encrypt(bytes(size))
        text = base64.b64encode(wrapped).decode()
        sealed = Sealed(size=0, keys={one.recipient.id: text})
        error = refused(IntegrityError, "ST-CKPT-133", open_key, sealed, [one], "f", "w")
        assert "has another size" in str(error)


def test_the_signed_form_is_closed() -> None:
    one = DecryptionKey.generate()
    _, sealed = new_key([one.recipient])
    for bad in (
        {"size": 0, "keys": {}},
        {"size": -1, "keys": sealed.keys},
        {"size": 0, "keys": {"x": "y"}},
        {"size": 0, "keys": sealed.keys, "more": 1},
        {"size": 0, "keys": {one.recipient.id: base64.b64encode(bytes(20)).decode()}},
    ):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(bad, Sealed, strict=True)


def test_recipients_are_named_sensibly() -> None:
    key = DecryptionKey.generate().recipient
    assert Recipient.parse(key.public.hex()) == key
    for text in ("", "zz", "00" * 31):
        with pytest.raises(UsageError):
            Recipient.parse(text)
    many = [DecryptionKey.generate().recipient for _ in range(MAX_RECIPIENTS + 1)]
    assert len(new_key([*many[1:], many[1]])[1].keys) == MAX_RECIPIENTS
    for recipients in ([], many):
        refused(UsageError, "ST-USAG-001", new_key, recipients)


def test_without_its_package_nothing_is_encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nacl.public", None)
    error = refused(UsageError, "ST-USAG-004", new_key, [DecryptionKey.generate().recipient])
    assert "PyNaCl" in str(error)


def test_a_private_key_file_is_private(tmp_path: Path) -> None:
    key = DecryptionKey.generate()
    path = tmp_path / "key.pem"
    path.write_bytes(private_pem(key.native))
    path.chmod(0o644)
    refused(IdentityError, "ST-IDEN-010", DecryptionKey.load, path)
    path.chmod(0o600)
    assert DecryptionKey.load(path).recipient == key.recipient
    signing = private_pem(ed25519.Ed25519PrivateKey.generate())
    for data, why in ((b"nothing", "not a private key"), (signing, "not an X25519 key")):
        path.write_bytes(data)
        error = refused(IdentityError, why, DecryptionKey.load, path)
        assert error.code == "ST-IDEN-001"


def test_sizes() -> None:
    small = cipher()
    for size in (0, 1, 1007, 1008, 1009, 5000):
        chunks = [
            small.seal(n, bytes(min(1008, size - n * 1008)), last=n == small.num_chunks(size) - 1)
            for n in range(small.num_chunks(size))
        ]
        assert sum(map(len, chunks)) == size + TAG * small.num_chunks(size)
        assert all(len(chunk) <= 1024 for chunk in chunks)
