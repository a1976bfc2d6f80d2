# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A pack's container: an OCI image layout in one deterministic tar.

::

    oci-layout                    {"imageLayoutVersion":"1.0.0"}
    index.json                    names the manifest
    blobs/sha256/<digest>         the manifest, its empty config, and every document, by digest

The same documents give the same bytes, wherever and whenever they are packed: names in order, no
times, no owners, no padding but tar's own. So a reader accepts of a member's header only the very
512 bytes that a writer would make for its name and size: what readers of archives are attacked
with (twin entries, links, long names, extensions, sizes that wrap) is not parsed. Nothing is
unpacked: a document is read where it lies, within a limit that its reader gives, and hashed before
it is used.

The container is signed by nobody. Its manifest says what is in it, and which document is the
subject; everything else follows from the subject's own signatures.

Sources: OCI image specification 1.1, image layout and manifest; POSIX.1-1988 ustar, with GNU's
base-256 sizes above 8 GiB.
"""

import hashlib
import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Self, TypeVar

import msgspec
from msgspec import Meta

from securetrain.core import canonical
from securetrain.core.errors import IntegrityError, UsageError, os_error
from securetrain.core.files import open_regular, whole_file

BLOCK: Final = tarfile.BLOCKSIZE
END: Final = bytes(2 * BLOCK)
LAYOUT: Final = b'{"imageLayoutVersion":"1.0.0"}'
ARTIFACT_TYPE: Final = "application/vnd.securetrain.pack.v1"
MANIFEST_TYPE: Final = "application/vnd.oci.image.manifest.v1+json"
EMPTY_TYPE: Final = "application/vnd.oci.empty.v1+json"
EMPTY: Final = b"{}"
MAX_MANIFEST: Final = 64 << 20
"""Bytes of a manifest: about 300,000 documents."""
MAX_INDEX: Final = 4096
_CHUNK: Final = 1 << 20
_BLOBS: Final = "blobs/sha256/"

_T = TypeVar("_T")
Sha256 = Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
Size = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]


class Descriptor(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """The type, digest and size of a document (OCI image specification, `descriptor`)."""

    media_type: Annotated[str, Meta(max_length=128)] = msgspec.field(name="mediaType")
    digest: Sha256
    size: Size
    artifact_type: str | None = msgspec.field(name="artifactType", default=None)

    @property
    def hex(self) -> str:
        """The digest without its algorithm."""
        return self.digest.removeprefix("sha256:")


class _Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    schema_version: int = msgspec.field(name="schemaVersion")
    media_type: str = msgspec.field(name="mediaType")
    artifact_type: str = msgspec.field(name="artifactType")
    config: Descriptor
    layers: list[Descriptor]


class _Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    schema_version: int = msgspec.field(name="schemaVersion")
    manifests: Annotated[list[Descriptor], Meta(min_length=1, max_length=1)]


@dataclass(frozen=True, slots=True)
class Cuts:
    """Some stretches of a file, one after the other."""

    path: Path
    stretches: Sequence[tuple[int, int]]
    """Offset and length of each, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One document that goes into a pack."""

    media_type: str
    digest: str
    """SHA-256, 64 hex digits."""
    size: int
    source: bytes | Path | Cuts
    """The bytes, or the file that holds them or has them in stretches; a file is read once more and
    compared with the digest.
    """

    @classmethod
    def of(cls, media_type: str, data: bytes) -> Self:
        """Describe bytes."""
        digest = hashlib.sha256(data).hexdigest()
        return cls(media_type=media_type, digest=digest, size=len(data), source=data)

    @property
    def described(self) -> Descriptor:
        """The document's line in the manifest."""
        return Descriptor(
            media_type=self.media_type, digest=f"sha256:{self.digest}", size=self.size
        )


def write_pack(path: Path, subject: Document, documents: Iterable[Document]) -> str:
    """Write a pack, whole or not at all; returns the SHA-256 of its manifest.

    Args:
        path: The new file.
        subject: The statement that the pack is about: the manifest's first layer.
        documents: All others, in any order; one that is given twice is written once.

    Raises:
        UsageError: ST-USAG-002, 005 or 006 when the file cannot be written or is there already.
        IntegrityError: ST-PACK-130 when a file is not of its digest (any longer), ST-PACK-140 when
            it is gone.
    """
    kept = {one.digest: one for one in documents}
    kept.pop(subject.digest, None)
    layers = [subject, *(kept[digest] for digest in sorted(kept))]
    config = Document.of(EMPTY_TYPE, EMPTY)
    manifest = Document.of(
        MANIFEST_TYPE,
        canonical.encode(
            _Manifest(
                schema_version=2,
                media_type=MANIFEST_TYPE,
                artifact_type=ARTIFACT_TYPE,
                config=config.described,
                layers=[one.described for one in layers],
            )
        ),
    )
    if manifest.size > MAX_MANIFEST:
        raise UsageError(
            "ST-USAG-002",
            f"{len(layers)} documents are more than a pack holds",
            str(path),
            "pack fewer ancestors or rows",
        )
    index = _index_of(manifest.described)
    blobs = {one.digest: one for one in (*layers, config, manifest)}
    with whole_file(path, replace=False) as file:
        file.write(_header("oci-layout", len(LAYOUT)) + _padded(LAYOUT))
        file.write(_header("index.json", len(index)) + _padded(index))
        for digest in sorted(blobs):
            one = blobs[digest]
            file.write(_header(_BLOBS + digest, one.size))
            for chunk in _checked(one):
                file.write(chunk)
            file.write(bytes(-one.size % BLOCK))
        file.write(END)
    return manifest.digest


class Pack:
    """A pack that is open: its documents by digest. Close it, or use it in a ``with``."""

    def __init__(
        self, fd: int, path: Path, layers: list[Descriptor], places: Mapping[str, tuple[int, int]]
    ) -> None:
        self._fd = fd
        self.path = path
        self.layers: Mapping[str, Descriptor] = {one.hex: one for one in layers}
        """The documents, by their digests."""
        self.subject: Descriptor = layers[0]
        """The statement that the pack is about."""
        self._places = places

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a pack: headers and manifest are read, and no document.

        Raises:
            UsageError: ST-USAG-002 when there is no such file.
            IntegrityError: ST-PACK-101 when it is malformed, ST-PACK-140 when it lacks a document.
        """
        try:
            fd = open_regular(path)
        except OSError as error:
            raise os_error(error, str(path)) from error
        try:
            return cls(fd, path, *_survey(fd, path))
        except BaseException:
            os.close(fd)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def __contains__(self, digest: str) -> bool:
        return digest in self.layers

    def read(self, digest: str, limit: int) -> bytes:
        """A document of at most `limit` bytes, verified.

        Raises:
            IntegrityError: ST-PACK-140 when the pack has none of that digest, ST-PACK-101 when it
                is larger, ST-PACK-130 when its bytes are others.
        """
        descriptor = self.layers.get(digest)
        if descriptor is None:
            raise _refuse("ST-PACK-140", f"no document {digest[:16]}...", self.path)
        if descriptor.size > limit:
            what = f"document {digest[:16]}... has {descriptor.size} bytes, the limit is {limit}"
            raise _refuse("ST-PACK-101", what, self.path)
        at, size = self._places[digest]
        data = b"".join(chunks_of(self._fd, at, size))
        if len(data) != size:
            raise _refuse("ST-PACK-101", "it ends within a document", self.path)
        if hashlib.sha256(data).hexdigest() != digest:
            raise _refuse("ST-PACK-130", f"document {digest[:16]}... has other bytes", self.path)
        return data

    def chunks(self, digest: str, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        """The bytes of a document or of a stretch inside it, **unverified**, a MiB at a time: for
        weights and rows, which their own trees verify.

        Raises:
            IntegrityError: ST-PACK-140 when the pack has none of that digest, ST-PACK-101 when it
                ends before that.
        """
        if digest not in self.layers:
            raise _refuse("ST-PACK-140", f"no document {digest[:16]}...", self.path)
        at, size = self._places[digest]
        left = size - offset if length is None else length
        if offset < 0 or left < 0 or offset + left > size:
            what = f"bytes {offset} to {offset + left} of a document of {size}"
            raise _refuse("ST-PACK-101", what, self.path)
        for chunk in chunks_of(self._fd, at + offset, left):
            left -= len(chunk)
            yield chunk
        if left:
            raise _refuse("ST-PACK-101", "it ends within a document", self.path)


def _survey(fd: int, path: Path) -> tuple[list[Descriptor], dict[str, tuple[int, int]]]:
    """The documents in their order, and where each lies."""
    whole = os.fstat(fd).st_size
    at = 0
    at = _fixed(fd, at, "oci-layout", LAYOUT, path)
    header = os.pread(fd, BLOCK, at)
    size = _size_of(header, "index.json", MAX_INDEX, path)
    index = os.pread(fd, size, at + BLOCK)
    described = _decode(_Index, index, path).manifests[0]
    if index != _index_of(described):
        raise _refuse("ST-PACK-101", "its index is not a pack's", path)
    at = _past(fd, at, size, path)
    places: dict[str, tuple[int, int]] = {}
    last = ""
    while at < whole - len(END):
        header = os.pread(fd, BLOCK, at)
        digest = header[len(_BLOBS) : len(_BLOBS) + 64].decode("ascii", "replace")
        if digest <= last:
            raise _refuse("ST-PACK-101", f"a member at byte {at} that is out of order", path)
        size = _size_of(header, _BLOBS + digest, whole - at, path)
        places[digest] = (at + BLOCK, size)
        last = digest
        at = _past(fd, at, size, path)
    if os.pread(fd, BLOCK + len(END), at) != END:
        raise _refuse("ST-PACK-101", "it does not end as a pack does", path)
    return _layers(fd, described, places, path), places


def _layers(
    fd: int, described: Descriptor, places: Mapping[str, tuple[int, int]], path: Path
) -> list[Descriptor]:
    """The manifest's layers: exactly the members, each once, the subject first."""
    at, size = places.get(described.hex, (0, -1))
    if size != described.size or size > MAX_MANIFEST:
        raise _refuse("ST-PACK-140", "the manifest", path)
    data = os.pread(fd, size, at)
    if hashlib.sha256(data).hexdigest() != described.hex:
        raise _refuse("ST-PACK-130", "the manifest has other bytes", path)
    manifest = _decode(_Manifest, data, path)
    config = Document.of(EMPTY_TYPE, EMPTY).described
    named = [one.hex for one in manifest.layers]
    if (
        manifest.schema_version != 2
        or manifest.media_type != MANIFEST_TYPE
        or manifest.artifact_type != ARTIFACT_TYPE
        or manifest.config != config
        or not named
        or named[1:] != sorted(set(named[1:]) - {named[0]})
        or any(one.artifact_type is not None for one in manifest.layers)
    ):
        raise _refuse("ST-PACK-101", "its manifest is not a pack's", path)
    sizes = {one.hex: one.size for one in (*manifest.layers, config, described)}
    for digest, size in sizes.items():
        if places.get(digest, (0, -1))[1] != size:
            raise _refuse("ST-PACK-140", f"document {digest[:16]}...", path)
    if extra := places.keys() - sizes.keys():
        what = f"a member that the manifest does not name: {min(extra)[:16]}..."
        raise _refuse("ST-PACK-141", what, path)
    return manifest.layers


def _decode(kind: type[_T], data: bytes, path: Path) -> _T:
    try:
        return canonical.decode(data, kind, limit=MAX_MANIFEST, where=str(path), canonical=True)
    except UsageError as error:
        raise _refuse("ST-PACK-101", error.what, path) from error


def _index_of(manifest: Descriptor) -> bytes:
    """The one index that names this manifest."""
    named = msgspec.structs.replace(manifest, media_type=MANIFEST_TYPE, artifact_type=ARTIFACT_TYPE)
    return canonical.encode(_Index(schema_version=2, manifests=[named]))


def _fixed(fd: int, at: int, name: str, content: bytes, path: Path) -> int:
    """Pass a member that is always the same."""
    expected = _header(name, len(content)) + _padded(content)
    if os.pread(fd, len(expected), at) != expected:
        raise _refuse("ST-PACK-101", f"it does not begin with {name}: no pack", path)
    return at + len(expected)


def _size_of(header: bytes, name: str, limit: int, path: Path) -> int:
    """The size in a header, of which every other byte is as a writer makes it."""
    what = f"a member that no pack has, where {name[:32]!r} should be"
    try:
        size: int = tarfile.nti(header[_SIZE].ljust(1))  # type: ignore[attr-defined]
        expected = _header(name, size)
    except (tarfile.HeaderError, ValueError) as error:
        raise _refuse("ST-PACK-101", what, path) from error
    if size > limit or header != expected:
        raise _refuse("ST-PACK-101", what, path)
    return size


def _past(fd: int, at: int, size: int, path: Path) -> int:
    """The offset behind a member; what fills its last block is zero."""
    end = at + BLOCK + size
    fill = -size % BLOCK
    if os.pread(fd, fill, end) != bytes(fill):
        raise _refuse("ST-PACK-101", "it ends within a member, or hides bytes behind one", path)
    return end + fill


def _header(name: str, size: int) -> bytes:
    """The one header that a member of this name and size has: tarfile's, and a test compares."""
    named = name.encode("ascii").ljust(_NAME, b"\0")
    if size < 0:
        raise ValueError(f"a member of {size} bytes")
    header = bytearray(_TEMPLATE)
    header[:_NAME] = named
    spelled: bytes = tarfile.itn(size, 12, tarfile.GNU_FORMAT)  # type: ignore[attr-defined]
    header[_SIZE] = spelled
    header[_SUM] = b"%06o\0 " % (_BASE_SUM + sum(named) + sum(spelled))
    return bytes(header)


def _template() -> bytes:
    info = tarfile.TarInfo("")
    info.mode = 0o644
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[_SUM] = bytes(8)
    return bytes(header)


_NAME: Final = 100
_SIZE: Final = slice(124, 136)
_SUM: Final = slice(148, 156)
_TEMPLATE: Final = _template()
"""The header of a member without name, size and checksum."""
_BASE_SUM: Final = 8 * ord(" ") + sum(_TEMPLATE[_NAME:]) - sum(_TEMPLATE[_SIZE])


def _padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % BLOCK)


def _checked(one: Document) -> Iterator[bytes]:
    """The bytes of a document, of exactly its size and digest."""
    if isinstance(one.source, bytes):
        yield one.source
        return
    cuts = one.source if isinstance(one.source, Cuts) else Cuts(one.source, [(0, one.size)])
    state = hashlib.sha256()
    try:
        fd = open_regular(cuts.path)
    except OSError as error:
        raise _refuse("ST-PACK-140", str(error.strerror), cuts.path) from error
    with os.fdopen(fd, "rb") as file:
        for offset, length in cuts.stretches:
            for chunk in chunks_of(file.fileno(), offset, length):
                state.update(chunk)
                yield chunk
        grown = cuts is not one.source and os.fstat(file.fileno()).st_size != one.size
        if grown or state.hexdigest() != one.digest:
            raise _refuse("ST-PACK-130", "it was changed", cuts.path)


def chunks_of(fd: int, offset: int, length: int) -> Iterator[bytes]:
    """A stretch of an open file, a MiB at a time; less of it where the file ends before."""
    while chunk := os.pread(fd, min(_CHUNK, length), offset):
        offset += len(chunk)
        length -= len(chunk)
        yield chunk


def _refuse(code: str, what: str, path: Path) -> IntegrityError:
    return IntegrityError(code, what, str(path))
