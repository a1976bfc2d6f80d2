# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import base64

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from securetrain.core.errors import IdentityError
from securetrain.identity.keys import KeyKind, PrivateKey, PublicKey
from securetrain.identity.log import note
from tests import vocabulary
from tests.tables import forgeries

# The example of https://c2sp.org/signed-note.
VKEY = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k"
EXAMPLE = (
    "This is an example message.\n\n"
    "\u2014 example.com/foo Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6TfXppzi2ONncAlTgK7Ztg1ERYNZXsYjOBH3mF"
    "XmRKuwHjG1Yu72IneyaQM=\n"
).encode()

KEY, OTHER = PrivateKey.generate(), PrivateKey.generate()
TEXT = "log.example\n0\n47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n"


def refused(function, *arguments, match="."):
    caught = vocabulary.refused(IdentityError, match, function, *arguments)
    assert caught.code == "ST-IDEN-040"
    assert caught.exit_code == 18


def test_the_example_of_the_specification():
    name, hashed, tail = VKEY.split("+", 2)
    raw = base64.b64decode(tail)
    key = PublicKey(Ed25519PublicKey.from_public_bytes(raw[1:]))
    assert note.key_id(name, key).hex() == hashed
    assert note.vkey(name, key) == VKEY
    found = note.parse(EXAMPLE)
    assert found.encode() == EXAMPLE
    assert note.signed_by(found, key, name)


def test_signatures_and_cosignatures_round_trip():
    signed = note.Note(TEXT, (note.sign(TEXT, "log.example", KEY),))
    both = signed.with_lines((note.cosign(TEXT, "w.example", OTHER, 1_700_000_000),))
    found = note.parse(both.encode())
    assert found == both
    assert note.signed_by(found, KEY.public, "log.example")
    assert note.cosigned_by(found, OTHER.public) == 1_700_000_000
    # One is never the other, and a name is part of the key.
    assert not note.signed_by(found, OTHER.public, "w.example")
    assert note.cosigned_by(found, KEY.public) is None
    assert not note.signed_by(found, KEY.public, "other.example")


def test_a_newer_cosignature_replaces_the_older_one():
    signed = note.Note(TEXT, (note.sign(TEXT, "log.example", KEY),))
    for time in (10, 20):
        signed = signed.with_lines((note.cosign(TEXT, "w.example", OTHER, time),))
    assert len(signed.lines) == 2
    assert note.cosigned_by(signed, OTHER.public) == 20


@pytest.mark.forgery
def test_a_line_that_claims_a_known_key_must_verify():
    good = note.sign(TEXT, "log.example", KEY)
    bad = note.Line(good.name, good.id, OTHER.sign(TEXT.encode()))
    for lines in ((bad,), (good, bad), (bad, good)):
        refused(note.signed_by, note.Note(TEXT, lines), KEY.public, "log.example")
    time = note.cosign(TEXT, "w.example", KEY, 7)
    changed = note.Line(time.name, time.id, b"\x00" * 7 + b"\x08" + time.signature[8:])
    short = [note.Line(time.name, time.id, time.signature[:size]) for size in (1, 7, 8, 71)]
    for line in (changed, *short):
        refused(note.cosigned_by, note.Note(TEXT, (line,)), KEY.public)
    zero = note.Line(time.name, time.id, bytes(8) + time.signature[8:])
    refused(note.cosigned_by, note.Note(TEXT, (zero,)), KEY.public, match="time 0")
    late = note.MAX_TIME + 1
    signature = KEY.sign(f"cosignature/v1\ntime {late}\n{TEXT}".encode())
    line = note.Line(time.name, time.id, late.to_bytes(8, "big") + signature)
    refused(note.cosigned_by, note.Note(TEXT, (line,)), KEY.public, match=f"time {late}")


def test_lines_of_strangers_are_passed_over():
    lines = (note.sign(TEXT, "log.example", KEY), note.sign(TEXT, "log.example", OTHER))
    assert note.signed_by(note.Note(TEXT, lines), KEY.public, "log.example")


@forgeries(
    "id, data",
    ("nothing", b""),
    ("newline", b"\n"),
    ("no last newline", EXAMPLE[:-1]),
    ("no empty line", EXAMPLE.replace(b"\n\n", b"\n")),
    ("no signature", b"text\n\n"),
    ("an empty line at the end", EXAMPLE + b"\n"),
    ("a tab", EXAMPLE.replace(b"an example", b"an\texample")),
    ("CRLF", EXAMPLE.replace(b"\n", b"\r\n")),
    ("not UTF-8", EXAMPLE.replace(b"an", b"\xff\xfe")),
    ("another dash", EXAMPLE.replace("\u2014".encode(), b"-")),
    ("two spaces", EXAMPLE.replace(b"com/foo ", b"com/foo  ")),
    ("a plus in a name", EXAMPLE.replace(b"com/foo ", b"com/f+o ")),
    ("a space in it", EXAMPLE.replace(b"com/foo ", "com/f\u00a0o ".encode())),
    ("no padding", EXAMPLE.replace(b"aQM=", b"aQM")),
    ("bits that no encoder sets", EXAMPLE.replace(b"aQM=", b"aQN=")),
    ("no signature after the key id", b"text\n\n\xe2\x80\x94 a AAAAAA==\n"),
    ("too many", b"text\n\n" + b"\xe2\x80\x94 a AAAAAAA=\n" * 65),
    ("too long", b"x" * (note.LIMIT + 1)),
    ("a text that is too long", b"x" * note.LIMIT + EXAMPLE),
    ("signatures alone", EXAMPLE.partition(b"\n\n")[2]),
    ("no dash", EXAMPLE.replace("\u2014 ".encode(), b"")),
    ("a third word", EXAMPLE.replace(b"aQM=", b"aQM= more")),
)
def test_malformed(data):
    refused(note.parse, data)


def test_what_cannot_be_signed():
    for name in ("", "a b", "a+b", "a\nb", "a\u00a0b", "x" * 256):
        refused(note.sign, TEXT, name, KEY)
        refused(note.cosign, TEXT, name, KEY, 1)
    for text in ("no newline", "a\x00b\n"):
        refused(note.sign, text, "name", KEY)
    for time in (0, -1, 1 << 53):
        refused(note.cosign, TEXT, "name", KEY, time)
    refused(note.sign, TEXT, "name", PrivateKey.generate(KeyKind.P256), match="Ed25519")
    refused(note.parse_lines, "\u2014 a AAAAAAA=\n" * note.LIMIT)
    refused(note.parse_lines, "\u2014 a AAAAAAA=")


_SIGNED = note.Note(TEXT, (note.sign(TEXT, "log.example", KEY),)).encode()


@given(st.integers(0, len(_SIGNED) - 1), st.integers(1, 255))
def test_no_byte_of_a_signed_text_can_change(position, flip):
    data = bytearray(_SIGNED)
    data[position] ^= flip
    try:
        is_signed = note.signed_by(note.parse(bytes(data)), KEY.public, "log.example")
    except IdentityError:
        return
    assert not is_signed  # a line of somebody else: another name or key id


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_with_a_code(data):
    refused(note.parse, data)
