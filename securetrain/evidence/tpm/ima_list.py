# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The kernel's measurement list, cut into entries and each entry read.

Formats (Linux, ``security/integrity/ima/ima_fs.c`` and ``ima_template_lib.c``), per entry:

* binary, little-endian: PCR (u32), SHA-1 of the template data (20 bytes), length and name of the
  template, length and template data. The template ``ima`` alone has no total length and carries a
  20-byte digest, a length and a name, which is padded to 256 bytes for hashing;
* ASCII: the same in text, fields behind spaces, digests and signatures in hex, one line each. The
  kernel writes ``_`` for a space in a name, so that the fields cannot be confused.

Template data is a sequence of fields, each behind its length (u32): the digest as
``algorithm ':' NUL digest`` (``ima:`` or ``verity:`` before it in version 2), the name with a NUL
behind it, and for ``ima-sig`` a signature, for ``ima-buf`` a buffer.

Rules: a length that leads out of the list, another number of fields, a digest of another size than
its algorithm's, an unknown template or algorithm, a name without its NUL or with another one: each
is a refusal. ``ima-ngv2`` and ``ima-sigv2`` follow the kernel's source; no real list was at hand.
"""

import hashlib
from binascii import Error as HexError
from binascii import unhexlify
from collections.abc import Callable, Iterator
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

MAX_NAME: Final = 4096
"""PATH_MAX."""
MAX_DATA: Final = 64 << 10
_LEGACY_NAME: Final = 255
_SHA1_SIZE: Final = 20
_SIZES: Final = {
    b"md5": 16,
    b"rmd160": 20,
    b"sha1": 20,
    b"sha224": 28,
    b"sha256": 32,
    b"sha384": 48,
    b"sha512": 64,
    b"sha3-256": 32,
    b"sha3-384": 48,
    b"sha3-512": 64,
    b"sm3": 32,
}
_HASHES: Final[dict[bytes, Callable[[bytes], "hashlib._Hash"]]] = {
    b"sha1": hashlib.sha1,
    b"sha256": hashlib.sha256,
    b"sha384": hashlib.sha384,
    b"sha512": hashlib.sha512,
}
_VIOLATION: Final = bytes(_SHA1_SIZE)
_LEGACY: Final = b"ima"
_VERSION_2: Final = frozenset({b"ima-ngv2", b"ima-sigv2"})
_FIELDS: Final = {b"ima-ng": 2, b"ima-sig": 3, b"ima-buf": 3, b"ima-ngv2": 2, b"ima-sigv2": 3}
"""How many fields a template has."""
_MIN_TOKENS: Final = 5
_KINDS: Final = (b"ima:", b"verity:")
_U32: Final = Struct("<I")
_HEADER: Final = Struct("<I20sI")
# Looked up once: these are in the loop over all entries of all nodes.
_unpack_u32: Final = _U32.unpack_from
_unpack_header: Final = _HEADER.unpack_from
_U32_SIZE: Final = _U32.size
_HEADER_SIZE: Final = _HEADER.size


class Refusal(Exception):  # noqa: N818 - it becomes an AttestationError
    """The reason why an entry is refused; the reader of the list knows its number."""

    def __init__(self, code: str, what: str, name: bytes = b"") -> None:
        super().__init__(code, what, name)
        self.code = code
        self.what = what
        self.name = name


class Entry(NamedTuple):
    """One measurement, well-formed; nothing about it is attested yet."""

    pcr: int
    listed: bytes
    """SHA-1 of the template data, as the list says."""
    template: bytes
    data: bytes
    """What the kernel hashes for the PCR's banks."""
    digest: bytes
    """The digest field, ``algorithm ':' NUL digest``, with its kind in front in version 2."""
    name: bytes
    """Path, or the buffer's name."""
    extra: bytes
    """Signature or buffer."""

    @property
    def is_violation(self) -> bool:
        """Tell whether the kernel marks a file that changed while it was measured."""
        return self.listed == _VIOLATION

    @property
    def is_buffer(self) -> bool:
        """Tell whether this is a buffer that the kernel measured, not a file."""
        return self.template == b"ima-buf"

    def check_digests(self) -> None:
        """The digest in the list, and that of a buffer, must be of what stands beside them.

        Raises:
            Refusal: ST-ATTS-303.
        """
        if hashlib.sha1(self.data, usedforsecurity=False).digest() != self.listed:
            raise Refusal("ST-ATTS-303", "its SHA-1 is not that of its template data", self.name)
        if self.is_buffer:
            algorithm, _, digest = self.digest.partition(b":\0")
            measure = _HASHES.get(algorithm)
            if measure is None or measure(self.extra).digest() != digest:
                raise Refusal("ST-ATTS-303", "its digest is not that of its buffer", self.name)


class _Frame(NamedTuple):
    """The shape of one template's entries, by which their ends are found."""

    unpack: Callable[[bytes, int], tuple[bytes, int]]
    """Gives `head` and the number of bytes that follow the first `size`."""
    head: bytes
    """Length and name of the template."""
    size: int


def _frame(template: bytes) -> _Frame:
    head = _U32.pack(len(template)) + template
    gap = _SHA1_SIZE if template == _LEGACY else 0
    layout = Struct(f"<24x{len(head)}s{gap}xI")
    return _Frame(layout.unpack_from, head, layout.size)


_LONGEST_HEAD: Final = _HEADER_SIZE + _LEGACY_NAME + _SHA1_SIZE + _U32_SIZE
"""Bytes that are enough to know an entry's length."""
_FRAMES: Final = {template: _frame(template) for template in (_LEGACY, *_FIELDS)}


def split_binary(data: bytes, start: int = 0, *, more: bool = False) -> Iterator[bytes]:
    """The entries of a binary list; what follows the last one that is asked for is not read.

    Args:
        data: the list.
        start: where its first entry begins.
        more: whether bytes follow `data`: an entry that they may complete is left out.

    Raises:
        Refusal: ST-ATTS-301 or 305.
    """
    total = len(data)
    unpack, expected, size = _FRAMES[b"ima-ng"]
    while start < total:
        if more and total - start < _LONGEST_HEAD:
            return
        # Most entries have their neighbour's template.
        try:
            head, length = unpack(data, start)
        except StructError:
            head = b""
        if head != expected:
            unpack, expected, size = _frame_at(data, start)
            head, length = unpack(data, start)
        end = start + size + length
        if end > total:
            if more and length <= MAX_DATA:
                return
            raise _malformed(f"{end - total} bytes are missing at the end of the list")
        yield data[start:end]
        start = end


def _frame_at(data: bytes, start: int) -> _Frame:
    name = start + _HEADER_SIZE
    if name > len(data):
        raise _malformed("the list ends inside the entry's header")
    (length,) = _U32.unpack_from(data, name - _U32_SIZE)
    if length > _LEGACY_NAME:
        raise _malformed(f"its template's name has {length} bytes")
    frame = _known(data[name : name + length])
    if start + frame.size > len(data):
        raise _malformed("the list ends inside the entry")
    return frame


def _known(template: bytes) -> _Frame:
    frame = _FRAMES.get(template)
    if frame is None:
        raise Refusal("ST-ATTS-305", f"its template is {template[:32]!r}")
    return frame


def parse_binary(entry: bytes) -> Entry:
    """Read what `split_binary` has cut out.

    Raises:
        Refusal: ST-ATTS-301.
    """
    pcr, listed, length = _unpack_header(entry)
    body = _HEADER_SIZE + length
    template = entry[_HEADER_SIZE:body]
    if template == _LEGACY:
        name = body + _SHA1_SIZE + _U32_SIZE
        return _legacy(pcr, listed, entry[body : body + _SHA1_SIZE], entry[name:])
    return _entry(pcr, listed, template, entry[body + _U32_SIZE :])


def split_ascii(data: bytes) -> Iterator[bytes]:
    """The lines of an ASCII list."""
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return iter(lines)


def parse_ascii(line: bytes) -> Entry:
    """Read one line.

    Raises:
        Refusal: ST-ATTS-301 or 305.
    """
    tokens = line.split(b" ")
    if len(tokens) < _MIN_TOKENS:
        raise _malformed("the line is not: PCR, digest, template and the template's fields")
    pcr, listed, template, *fields = tokens
    _known(template)
    if len(fields) != _FIELDS.get(template, 2):
        raise _malformed(f"{len(fields)} fields, the template {template.decode()} has others")
    if not pcr.isdigit() or len(pcr) > 2:
        raise _malformed(f"not a PCR: {pcr[:32]!r}")
    digest = _unhex(listed)
    if len(digest) != _SHA1_SIZE:
        raise _malformed(f"the template's digest has {len(digest)} bytes, SHA-1 has {_SHA1_SIZE}")
    if template == _LEGACY:
        return _legacy(int(pcr), digest, _unhex(fields[0]), fields[1])
    algorithm, _, digits = fields[0].rpartition(b":")
    parts = [algorithm + b":\0" + _unhex(digits), fields[1] + b"\0", *map(_unhex, fields[2:])]
    data = b"".join(_U32.pack(len(part)) + part for part in parts)
    return _entry(int(pcr), digest, template, data)


def _legacy(pcr: int, listed: bytes, digest: bytes, name: bytes) -> Entry:
    """An entry of the template ``ima``, whose digest is SHA-1 and whose name is padded."""
    if len(digest) != _SHA1_SIZE or not 0 < len(name) <= _LEGACY_NAME or b"\0" in name:
        raise _malformed("the digest or the name of the template ima has a wrong length", name)
    data = digest + name.ljust(_LEGACY_NAME + 1, b"\0")
    return Entry(pcr, listed, _LEGACY, data, b"sha1:\0" + digest, name, b"")


def _entry(pcr: int, listed: bytes, template: bytes, data: bytes) -> Entry:
    if len(data) > MAX_DATA:
        raise _malformed(f"{len(data)} bytes of template data, the limit is {MAX_DATA}")
    fields = _fields(data, _FIELDS[template])
    digest, ended = fields[0], fields[1]
    name = ended[:-1]
    if not 1 <= ended.find(b"\0") == len(name) <= MAX_NAME:
        raise _malformed("a name is 1 to 4096 bytes with one NUL behind it", name)
    _check_digest_field(digest, template, name)
    extra = fields[2] if len(fields) > 2 else b""
    return Entry(pcr, listed, template, data, digest, name, extra)


def _fields(data: bytes, count: int) -> list[bytes]:
    fields = []
    start = 0
    try:
        for _ in range(count):
            end = start + _U32_SIZE + _unpack_u32(data, start)[0]
            fields.append(data[start + _U32_SIZE : end])
            start = end
    except StructError:
        raise _malformed(f"its template data has fewer than {count} fields") from None
    if start != len(data):
        raise _malformed(f"its {count} fields have {start} bytes, its template data {len(data)}")
    return fields


def _check_digest_field(field: bytes, template: bytes, name: bytes) -> None:
    algorithm, _, digest = field.partition(b":\0")
    if template in _VERSION_2:
        kind = next((kind for kind in _KINDS if algorithm.startswith(kind)), None)
        if kind is None:
            raise _malformed("its digest is neither of a file (ima) nor of fs-verity", name)
        algorithm = algorithm.removeprefix(kind)
    if _SIZES.get(algorithm) != len(digest):
        raise _malformed(f"{len(digest)} bytes are no {algorithm[:32]!r} digest", name)


def _unhex(digits: bytes) -> bytes:
    try:
        return unhexlify(digits)
    except (HexError, ValueError):
        raise _malformed(f"not in hex: {digits[:64]!r}") from None


def _malformed(what: str, name: bytes = b"") -> Refusal:
    return Refusal("ST-ATTS-301", what, name)
