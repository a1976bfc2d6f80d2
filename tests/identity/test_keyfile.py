# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import base64
import struct

import pytest
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from hypothesis import given, settings
from hypothesis import strategies as st

from securetrain.core.errors import IdentityError, UsageError
from securetrain.identity import keyfile
from securetrain.identity.keyfile import LABEL, Cost, is_sealed, seal, unseal
from tests import vocabulary
from tests.tables import each, items

CHEAP = Cost(memory_kib=19 << 10, passes=2, lanes=1)
PLAIN, SECRET = b"what PKCS#8 would be", b"correct horse"
SEALED = seal(PLAIN, SECRET, CHEAP)


def refused(data, passphrase=SECRET):
    error = vocabulary.refused(IdentityError, "ST-IDEN-001", unseal, data, passphrase, "k.pem")
    assert passphrase.decode("latin-1") not in str(error)
    return error


def body(data: bytes) -> bytes:
    return base64.b64decode(b"".join(data.splitlines()[1:-1]))


def container(raw: bytes) -> bytes:
    text = base64.b64encode(raw).decode()
    return f"-----BEGIN {LABEL}-----\n{text}\n-----END {LABEL}-----\n".encode()


def with_cost(memory, passes, lanes, version=1) -> bytes:
    return container(struct.pack(">BIIB", version, memory, passes, lanes) + body(SEALED)[10:])


def test_round_trip():
    assert is_sealed(SEALED)
    assert not is_sealed(b"-----BEGIN PRIVATE KEY-----")
    assert unseal(SEALED, SECRET) == PLAIN
    assert PLAIN not in body(SEALED)


def test_the_default_is_the_second_choice_of_rfc_9106():
    assert Cost() == Cost(memory_kib=1 << 16, passes=3, lanes=4)
    assert unseal(seal(PLAIN, SECRET), SECRET) == PLAIN


def test_no_two_containers_are_alike():
    assert body(seal(PLAIN, SECRET, CHEAP))[10:] != body(SEALED)[10:]


@each("wrong", b"battery staple", b"Correct horse", b"correct horse ", b"correct hors")
def test_another_passphrase(wrong):
    refused(SEALED, wrong)


@items(
    "memory, passes, lanes",
    ((19 << 10) - 1, 2, 1),
    ((1 << 20) + 1, 2, 1),
    (0xFFFFFFFF, 0xFFFFFFFF, 255),
    (19 << 10, 1, 1),
    (19 << 10, 17, 1),
    (19 << 10, 2, 0),
    (19 << 10, 2, 17),
)
def test_costs_out_of_bounds_are_refused_before_anything_is_derived(
    memory, passes, lanes, monkeypatch
):
    monkeypatch.setattr(keyfile, "Argon2id", lambda **_: pytest.fail("it derived"))
    assert "allowed are" in refused(with_cost(memory, passes, lanes)).what
    with pytest.raises(ValueError, match="allowed are"):
        seal(PLAIN, SECRET, Cost(memory_kib=memory, passes=passes, lanes=lanes))


def test_the_cost_is_bound_to_the_key():
    assert unseal(with_cost(19 << 10, 2, 1), SECRET) == PLAIN  # the control
    refused(with_cost(19 << 10, 3, 1))
    assert "version 2" in refused(with_cost(19 << 10, 2, 1, version=2)).what


@each(
    "data",
    b"",
    SEALED[:-1] + b"x",
    SEALED.replace(b"BEGIN", b"BEGUN"),
    SEALED.replace(b"END", b"FIN"),
    container(b""),
    container(body(SEALED)[:54]),
    container(body(SEALED) + bytes(9000)),
    SEALED + b"x" * 20_000,
    SEALED.replace(b"\n", b"\n?", 1),
    b"\xff" + SEALED,
)
def test_malformed(data):
    refused(data)


@pytest.mark.parametrize("size", [53, 9000])
def test_a_body_of_a_size_that_none_has_is_not_deciphered(size, monkeypatch):
    monkeypatch.setattr(keyfile, "Argon2id", lambda **_: pytest.fail("it derived"))
    found = refused(container((body(SEALED) + bytes(size))[:size]))
    assert f"a body of {size} bytes" in found.what


def test_an_openssl_without_argon2id_is_said(monkeypatch):
    def missing(**_):
        raise UnsupportedAlgorithm("no Argon2id")

    monkeypatch.setattr(keyfile, "Argon2id", missing)
    for use in (lambda: seal(PLAIN, SECRET, CHEAP), lambda: unseal(SEALED, SECRET)):
        vocabulary.refused(UsageError, "ST-USAG-004", use)


def test_a_file_that_is_too_large_is_not_even_decoded(monkeypatch):
    monkeypatch.setattr(base64, "b64decode", lambda *_, **__: pytest.fail("it decoded"))
    large = SEALED + b"x" * 20_000
    assert refused(large).what.endswith(f"{len(large)} bytes")


@pytest.fixture(scope="module")
def derived_once():
    """Argon2id itself, whose answer to a question is kept: most bytes are not of the salt."""
    real, kept = Argon2id, {}

    class Kept:
        def __init__(self, **cost):
            self.cost = cost

        def derive(self, secret):
            question = (secret, *sorted(self.cost.items()))
            if question not in kept:
                kept[question] = real(**self.cost).derive(secret)
            return kept[question]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keyfile, "Argon2id", Kept)
        assert unseal(SEALED, SECRET) == PLAIN  # the control
        yield


@each("position", 10, 25)
def test_no_byte_of_the_salt_can_change(position):
    raw = bytearray(body(SEALED))
    raw[position] ^= 1
    refused(container(bytes(raw)))


@pytest.mark.usefixtures("derived_once")
@settings(max_examples=100)
@given(st.integers(26, len(body(SEALED)) - 1), st.integers(1, 255))
def test_no_byte_behind_the_salt_can_change(position, flip):
    raw = bytearray(body(SEALED))
    raw[position] ^= flip
    refused(container(bytes(raw)))
