# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Signed notes and cosignatures (https://c2sp.org/signed-note, https://c2sp.org/tlog-cosignature).

A note is a text and signature lines that each name a key. A reader checks, in order:

1. at most 256 KiB of UTF-8 without control characters but newline, ending in a newline; the text
   and the signatures are separated by the last empty line;
2. 1 to 64 signature lines of the exact form, with names that hold neither spaces nor ``+``, and
   strict base64 of at least five bytes;
3. a line counts for a key when both its name and key id are the key's; then it must verify, and one
   that does not refuses the whole note. Lines of unknown keys are passed over, and never counted.

Notes are signed with Ed25519 (type 1). Cosignatures are Ed25519's (type 4), whose message begins
with a domain separator and a time, or ML-DSA-44's (type 6), whose message also holds the cosigner's
name, and of the checkpoint its origin, size and root hash. A log whose key is a pair writes a line
of type 6 under its own name beside that of type 1, of time 0: it says nothing of other trees.
"""

import base64
import binascii
import hashlib
import struct
import unicodedata
from dataclasses import dataclass, replace
from typing import Final

from cryptography.hazmat.primitives import serialization

from securetrain.core.errors import IdentityError
from securetrain.identity.keys import KeyKind, PairSigner, PublicKey, Signer

LIMIT: Final = 256 << 10
MAX_SIGNATURES: Final = 64
MAX_TIME: Final = (1 << 53) - 1

_DASH: Final = "\u2014 "
_NOTE: Final = b"\x01"
_COSIGNATURES: Final = {KeyKind.ED25519: b"\x04", KeyKind.ML_DSA_44: b"\x06"}
_SIGNATURE_SIZES: Final = {KeyKind.ED25519: 64, KeyKind.ML_DSA_44: 2420}
_ID_SIZE: Final = 4
_TIME: Final = struct.Struct(">Q")
_RANGE: Final = struct.Struct(">QQ")
_ROOT_SIZE: Final = 32
_SUBTREE: Final = b"subtree/v1\n\x00"


@dataclass(frozen=True, slots=True)
class Line:
    """One signature line: whose, and its bytes without the key id."""

    name: str
    id: bytes
    signature: bytes

    def __str__(self) -> str:
        return f"{_DASH}{self.name} {base64.b64encode(self.id + self.signature).decode()}\n"


@dataclass(frozen=True, slots=True)
class Note:
    """A note whose signatures nobody has looked at yet."""

    text: str
    lines: tuple[Line, ...]

    def encode(self) -> bytes:
        """Its bytes."""
        return "".join([self.text, "\n", *map(str, self.lines)]).encode()

    def with_lines(self, lines: tuple[Line, ...]) -> "Note":
        """The same text with these lines too; a line of the same key replaces the older one."""
        new = {(line.name, line.id) for line in lines}
        kept = tuple(line for line in self.lines if (line.name, line.id) not in new)
        return replace(self, lines=kept + lines)


def parse(data: bytes, where: str = "") -> Note:
    """Read a note; see the module.

    Raises:
        IdentityError: ST-IDEN-040.
    """
    if len(data) > LIMIT:
        raise bad(f"{len(data)} bytes, the limit is {LIMIT}", where)
    try:
        whole = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise bad("it is not UTF-8", where) from error
    if any(ch < " " and ch != "\n" for ch in whole):
        raise bad("control characters", where)
    text, separator, tail = whole.rpartition("\n\n")
    if not separator:
        raise bad("there is no empty line between a text and its signatures", where)
    lines = parse_lines(tail, where)
    if not 1 <= len(lines) <= MAX_SIGNATURES:
        raise bad(f"{len(lines)} signatures", where)
    return Note(f"{text}\n", lines)


def parse_lines(text: str, where: str = "") -> tuple[Line, ...]:
    """Read signature lines alone, as a witness answers with them.

    Raises:
        IdentityError: ST-IDEN-040.
    """
    if len(text) > LIMIT or (text and not text.endswith("\n")):
        raise bad("signature lines that are too long, or do not end in a newline", where)
    return tuple(_line(line, where) for line in text.split("\n")[:-1])


def _line(text: str, where: str) -> Line:
    parts = text.removeprefix(_DASH).split(" ")
    if not text.startswith(_DASH) or len(parts) != 2 or not is_name(parts[0]):
        raise bad(f"not a signature line: {text[:80]!r}", where)
    data = unbase64(parts[1], where)
    if len(data) <= _ID_SIZE:
        raise bad("a signature line without a signature", where)
    return Line(parts[0], data[:_ID_SIZE], data[_ID_SIZE:])


def is_name(name: str) -> bool:
    """Return whether a key may be called so: something, printable, without spaces or ``+``."""
    return (
        0 < len(name) <= 255
        and name.isprintable()
        and not any(ch == "+" or unicodedata.category(ch).startswith("Z") for ch in name)
    )


def sign(text: str, name: str, key: Signer) -> Line:
    """A note signature over `text`.

    Raises:
        IdentityError: ST-IDEN-040 for a bad name or text, or a key that is not Ed25519.
    """
    _check_name(name)
    if not text.endswith("\n") or any(ch < " " and ch != "\n" for ch in text):
        raise bad("a note's text ends in a newline, and has no other control characters")
    return Line(name, key_id(name, key.public), key.sign(text.encode()))


def sign_lines(text: str, name: str, key: Signer) -> tuple[Line, ...]:
    """The lines of a log under its checkpoint: of its key, and of the companion where it has one.

    Raises:
        IdentityError: ST-IDEN-040 for a bad name or text, or a key of another kind.
    """
    line = sign(text, name, key)
    companion = key.public.companion
    if companion is None:
        return (line,)
    if not isinstance(key, PairSigner):
        raise bad(f"key {key.key_id[:16]} cannot sign with its companion")
    message = _cosigned(text, name, companion, 0)
    signature = dict(key.sign_all(message))[companion.key_id]
    return (line, Line(name, cosigner_id(name, companion), _TIME.pack(0) + signature))


def cosign(text: str, name: str, key: Signer, time: int) -> Line:
    """A cosignature over a checkpoint's text, made at `time` (POSIX seconds).

    Raises:
        IdentityError: ST-IDEN-040 for a bad name, time or key.
    """
    _check_name(name)
    if not 0 < time <= MAX_TIME:
        raise bad(f"time {time}")
    signature = key.sign(_cosigned(text, name, key.public, time))
    return Line(name, cosigner_id(name, key.public), _TIME.pack(time) + signature)


def signed_by(note: Note, key: PublicKey, name: str, where: str = "") -> bool:
    """Return whether the key signed the note under this name.

    Raises:
        IdentityError: ST-IDEN-040 when a line says so and does not verify.
    """
    wanted = (name, key_id(name, key))
    found = [line for line in note.lines if (line.name, line.id) == wanted]
    for line in found:
        _verify(key, line.signature, note.text.encode(), name, where)
    return bool(found)


def cosigned_by(note: Note, key: PublicKey, where: str = "") -> int | None:
    """The time of the key's last cosignature, under whichever name; None without one.

    Raises:
        IdentityError: ST-IDEN-040 when a line says so and does not verify.
    """
    times = [time for _, time in _cosignatures(note, key, 1, where)]
    return max(times, default=None)


def signed_by_companion(note: Note, key: PublicKey, name: str, where: str = "") -> bool:
    """Return whether a log's key has its companion's line too, under this name.

    Raises:
        IdentityError: ST-IDEN-040 when a line says so and does not verify.
    """
    if key.companion is None:
        return False
    return any(by == name for by, _ in _cosignatures(note, key.companion, 0, where))


def _cosignatures(note: Note, key: PublicKey, least: int, where: str) -> list[tuple[str, int]]:
    """Names and times of a key's cosignatures, from a time on."""
    found = []
    for line in note.lines:
        if line.id != cosigner_id(line.name, key):
            continue
        if len(line.signature) != _TIME.size + _SIGNATURE_SIZES[key.kind]:
            raise bad(f"a cosignature of {len(line.signature)} bytes by {line.name}", where)
        (time,) = _TIME.unpack(line.signature[: _TIME.size])
        if not least <= time <= MAX_TIME:
            raise bad(f"a cosignature of time {time} by {line.name}", where)
        message = _cosigned(note.text, line.name, key, time)
        _verify(key, line.signature[_TIME.size :], message, line.name, where)
        found.append((line.name, time))
    return found


def key_id(name: str, key: PublicKey) -> bytes:
    """The id of a key that signs notes under a name."""
    return _id(name, _NOTE, key)


def cosigner_id(name: str, key: PublicKey) -> bytes:
    """The id of a key that cosigns checkpoints under a name."""
    return _id(name, _cosignature(key), key)


def vkey(name: str, key: PublicKey, *, cosigner: bool = False) -> str:
    """The verifier key as other tools write it: ``name+id+type and key``."""
    kind = _cosignature(key) if cosigner else _NOTE
    tail = base64.b64encode(kind + raw_public(key, kind)).decode()
    return f"{name}+{_id(name, kind, key).hex()}+{tail}"


def raw_public(key: PublicKey, kind: bytes = _NOTE) -> bytes:
    """The bytes of a key that signs lines of a type: 32 of Ed25519, 1312 of ML-DSA-44.

    Raises:
        IdentityError: ST-IDEN-040 for another kind of key.
    """
    if key.kind is not KeyKind.ED25519 and kind != _COSIGNATURES.get(key.kind):
        raise bad(
            f"key {key.key_id[:16]} is {key.kind}; logs use Ed25519, witnesses that or ML-DSA-44"
        )
    return key.native.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def unbase64(text: str, where: str = "") -> bytes:
    """Strict base64: padded, and in its one canonical form.

    Raises:
        IdentityError: ST-IDEN-040.
    """
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise bad(f"bad base64: {error}", where) from error
    if base64.b64encode(data).decode() != text:
        raise bad("base64 that is not in canonical form", where)
    return data


def bad(what: str, where: str = "") -> IdentityError:
    """ST-IDEN-040."""
    return IdentityError("ST-IDEN-040", what, where)


def _id(name: str, kind: bytes, key: PublicKey) -> bytes:
    raw = raw_public(key, kind)
    return hashlib.sha256(name.encode() + b"\n" + kind + raw).digest()[:_ID_SIZE]


def _cosignature(key: PublicKey) -> bytes:
    """The type of a key's cosignatures; for `raw_public` to refuse where it has none."""
    return _COSIGNATURES.get(key.kind, _COSIGNATURES[KeyKind.ED25519])


def _cosigned(text: str, name: str, key: PublicKey, time: int) -> bytes:
    """The message of a cosignature."""
    if key.kind is KeyKind.ED25519:
        return f"cosignature/v1\ntime {time}\n{text}".encode()
    lines = text.split("\n")
    if len(lines) < 4 or not lines[1].isascii() or not lines[1].isdigit():
        raise bad("not a checkpoint, which is what ML-DSA-44 cosigns")
    origin, size, root = lines[0].encode(), int(lines[1]), unbase64(lines[2])
    names = [name.encode(), origin]
    if len(root) != _ROOT_SIZE or size > MAX_TIME or not all(0 < len(n) < 256 for n in names):
        raise bad("not a checkpoint whose origin, size and root hash ML-DSA-44 can cosign")
    by, of = (bytes([len(one)]) + one for one in names)
    return _SUBTREE + by + _TIME.pack(time) + of + _RANGE.pack(0, size) + root


def _check_name(name: str) -> None:
    if not is_name(name):
        raise bad(f"not the name of a key: {name[:80]!r}")


def _verify(key: PublicKey, signature: bytes, data: bytes, name: str, where: str) -> None:
    try:
        key.verify(signature, data)
    except IdentityError as error:
        raise bad(f"the signature of {name} does not verify", where) from error
