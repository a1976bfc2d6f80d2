# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Container images: an OCI layout (a folder or a tar of it), or what ``docker save`` writes.

Rules:

1. every blob is checked against the digest that names it, from the index down to the layers;
2. layers are read one after the other, never unpacked: a later file takes an earlier one's place, a
   whiteout takes it away (``.wh.NAME``, ``.wh..wh..opq``), and links in folders are followed as
   inside of the image;
3. of an index with several platforms one is to be named. A layer in a compression that is not known
   here is refused by name (zstd: ``skopeo copy --dest-compress-format gzip``).

Source: OCI Image Format Specification 1.1 (image layout, index, manifest, layer).
"""

import hashlib
import tarfile
import tempfile
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Final

from securetrain.attest.fleet.packages.listing import FileListing, clean, digest_of, unusable
from securetrain.attest.fleet.packages.tars import BROKEN, members
from securetrain.core import canonical
from securetrain.core.files import open_regular

_DOCUMENT_LIMIT: Final = 4 << 20
_MAX_LAYERS: Final = 512
_MAX_LINKS: Final = 40
_CHUNK: Final = 1 << 20
_WHITEOUT: Final = ".wh."
_OPAQUE: Final = ".wh..wh..opq"
_INDEXES: Final = frozenset(
    {
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
    }
)


def list_image(path: Path, listing: FileListing, platform: str = "") -> None:
    """List the files of an image.

    Args:
        path: the layout.
        listing: takes them.
        platform: as ``linux/amd64``, where there are several.

    Raises:
        UsageError: ST-USAG-001, 002 or 008.
    """
    with ExitStack() as held:
        blobs = _Blobs(path, held)
        tree = _Tree(str(path))
        name, layers = _layers(blobs, platform)
        if len(layers) > _MAX_LAYERS:
            raise unusable(f"{len(layers)} layers", str(path), "build it with fewer")
        for layer in layers:
            with blobs.open(layer) as file:
                tree.apply(file, layer)
        listing.list_package(name)
        for file_path, digest in tree.files.items():
            listing.add(file_path, digest)


class _Blobs:
    """The files of a layout: below a folder, or in a tar whose members are where they are."""

    def __init__(self, path: Path, held: ExitStack) -> None:
        self.where = str(path)
        self._folder = path if path.is_dir() else None
        self._tar: tarfile.TarFile | None = None
        if self._folder is None:
            file = held.enter_context(open(open_regular(path), "rb"))  # noqa: PTH123, SIM115 - held
            # Read through once, bounded; only then are members looked for.
            for _ in members(file, self.where):
                pass
            file.seek(0)
            self._tar = tarfile.open(fileobj=file, mode="r:")  # noqa: SIM115 - held
            held.enter_context(self._tar)
            try:
                self._tar.getmembers()
            except BROKEN as error:
                raise unusable(
                    f"not a readable archive: {error}", self.where, "get it again"
                ) from error

    def has(self, name: str) -> bool:
        """Tell whether a file is there."""
        if self._folder is not None:
            return (self._folder / name).is_file()
        assert self._tar is not None
        return any(one.isreg() and clean(one.name) == f"/{name}" for one in self._tar.getmembers())

    @contextmanager
    def file(self, name: str) -> Iterator[IO[bytes]]:
        """Open a file by its name.

        Raises:
            UsageError: ST-USAG-008 when it is not there.
        """
        if self._folder is not None:
            if not self.has(name):
                raise self._missing(name)
            with open(open_regular(self._folder / name), "rb") as file:  # noqa: PTH123 - no links
                yield file
            return
        assert self._tar is not None
        for member in self._tar.getmembers():
            if clean(member.name) == f"/{name}" and member.isreg():
                content = self._tar.extractfile(member)
                assert content is not None, "it is a regular file"
                with content:
                    yield content
                return
        raise self._missing(name)

    def open(self, digest: str) -> AbstractContextManager[IO[bytes]]:
        """Open a copy of a blob, whose digest was checked while it was made."""
        return self._checked(digest)

    @contextmanager
    def _checked(self, digest: str) -> Iterator[IO[bytes]]:
        algorithm, _, digits = digest.partition(":")
        known = digits.isalnum() and algorithm == "sha256"
        name = f"blobs/{algorithm}/{digits}" if known else digest
        if not known and (clean(digest) != f"/{digest}" or ":" in digest):
            raise unusable(f"a blob is called {digest[:80]!r}", self.where, "get the image again")
        hashed = hashlib.sha256()
        with tempfile.TemporaryFile() as copy:
            with self.file(name) as file:
                while chunk := file.read(_CHUNK):
                    hashed.update(chunk)
                    copy.write(chunk)
            if known and hashed.hexdigest() != digits:
                raise unusable(
                    f"a blob is not what its name says: {digest}", self.where, "get it again"
                )
            copy.seek(0)
            yield copy

    def document(self, name: str, *, is_blob: bool = True) -> Any:
        """A JSON document."""
        opened = self.open(name) if is_blob else self.file(name)
        with opened as file:
            data = file.read(_DOCUMENT_LIMIT + 1)
        return canonical.loads(data, limit=_DOCUMENT_LIMIT, where=f"{self.where}: {name}")

    def _missing(self, name: str) -> Exception:
        return unusable(f"{name} is not in it", self.where, "name an OCI layout or a saved image")


def _layers(blobs: _Blobs, platform: str) -> tuple[str, list[str]]:
    """The image's name and its layers, from the lowest up."""
    try:
        if blobs.has("index.json"):
            return _oci(blobs, platform)
        saved = blobs.document("manifest.json", is_blob=False)
        if len(saved) != 1:
            raise unusable(f"{len(saved)} images", blobs.where, "save one")
        tags = saved[0].get("RepoTags") or ["without a name"]
        layers = saved[0]["Layers"]
        # docker's older form names layers by folders, newer by blobs: these are then checked.
        names = [one.replace("blobs/sha256/", "sha256:") for one in layers]
        return str(tags[0]), names
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise unusable(
            f"not an image: {type(error).__name__}: {error}", blobs.where, "get it again"
        ) from error


def _oci(blobs: _Blobs, platform: str) -> tuple[str, list[str]]:
    index = blobs.document("index.json", is_blob=False)
    for _ in range(4):
        found = [one for one in index["manifests"] if _fits(one, platform)]
        if len(found) != 1:
            offered = [_platform(one) for one in index["manifests"]]
            raise unusable(
                f"{len(found)} images of {', '.join(offered)[:200]}",
                blobs.where,
                "name one with --platform OS/ARCHITECTURE",
            )
        digest = found[0]["digest"]
        document = blobs.document(digest)
        if found[0].get("mediaType") not in _INDEXES and "layers" in document:
            return f"image {digest}", [one["digest"] for one in document["layers"]]
        index = document
    raise unusable("its indexes are in each other", blobs.where, "get the image again")


def _platform(entry: dict[str, Any]) -> str:
    named = entry.get("platform") or {}
    return f"{named.get('os', '?')}/{named.get('architecture', '?')}"


def _fits(entry: dict[str, Any], platform: str) -> bool:
    """Attestations beside an image are of no platform; an entry without one may be any."""
    mine = _platform(entry)
    return mine != "unknown/unknown" and (not platform or mine in {platform, "?/?"})


class _Tree:
    """The files of an image, layer upon layer."""

    def __init__(self, where: str) -> None:
        self.files: dict[str, str] = {}
        self._links: dict[str, str] = {}
        self._where = where

    def apply(self, file: IO[bytes], layer: str) -> None:
        """Put a layer on top."""
        where = f"{self._where}: {layer[:40]}"
        below = _Below([*self.files, *self._links])
        for member, content in members(file, where, _compression(file, where)):
            path = clean(member.name)
            if path is None:
                if not member.isdir():
                    raise unusable(
                        f"a file is called {member.name[:80]!r}", where, "get the image again"
                    )
                continue
            parent, _, name = path.rpartition("/")
            folder = self._real(parent, _MAX_LINKS)
            here = f"{folder}/{name}"
            if name == _OPAQUE:
                self._remove(below.take(f"{folder}/"))
            elif name.startswith(_WHITEOUT):
                gone = f"{folder}/{name.removeprefix(_WHITEOUT)}"
                self._remove([*below.take_one(gone), *below.take(f"{gone}/")])
            elif member.isdir():
                self._remove([here])
            else:
                self._remove([here, *below.take(f"{here}/")])
                self._put(here, member, content, where)
                below.take_one(here)

    def _put(
        self, here: str, member: tarfile.TarInfo, content: IO[bytes] | None, where: str
    ) -> None:
        if content is not None:
            self.files[here] = digest_of(content, member.size)[0]
        elif member.issym():
            self._links[here] = member.linkname
        elif member.islnk():
            target = clean(member.linkname)
            folder, _, name = (target or "/").rpartition("/")
            source = f"{self._real(folder, _MAX_LINKS)}/{name}"
            if source in self._links:
                self._links[here] = self._links[source]
            elif source in self.files:
                self.files[here] = self.files[source]
            else:
                raise unusable(f"{here} is a link to nothing", where, "get the image again")

    def _remove(self, gone: Iterable[str]) -> None:
        for one in gone:
            self.files.pop(one, None)
            self._links.pop(one, None)

    def _real(self, folder: str, left: int) -> str:
        """A folder with its links followed; empty for the root."""
        made: list[str] = []
        parts = [part for part in folder.split("/") if part]
        while parts:
            part = parts.pop(0)
            if part == "..":
                made = made[:-1]
                continue
            here = "/" + "/".join([*made, part])
            target = self._links.get(here)
            if target is None:
                made.append(part)
                continue
            left -= 1
            if left < 0:
                raise unusable(f"the links of {folder} lead in a circle", self._where, "repair it")
            if target.startswith("/"):
                made = []
            parts = [one for one in target.split("/") if one not in {"", "."}] + parts
        return "".join(f"/{part}" for part in made)


class _Below:
    """The paths of lower layers, by folder: a whiteout is for these, never for its own layer."""

    def __init__(self, paths: list[str]) -> None:
        self._sorted = sorted(paths)
        self._left = set(paths)

    def take(self, prefix: str) -> list[str]:
        """Take the rest below a folder, which is then nobody's."""
        taken = []
        for index in range(bisect_left(self._sorted, prefix), len(self._sorted)):
            path = self._sorted[index]
            if not path.startswith(prefix):
                break
            if path in self._left:
                taken.append(path)
        self._left.difference_update(taken)
        return taken

    def take_one(self, path: str) -> list[str]:
        """The one path, if it is left."""
        if path not in self._left:
            return []
        self._left.discard(path)
        return [path]


def _compression(file: IO[bytes], where: str) -> str:
    start = file.read(6)
    file.seek(0)
    if start[:2] == b"\x1f\x8b":
        return "gz"
    if start[:4] == b"\x28\xb5\x2f\xfd":
        raise unusable(
            "a layer is compressed with zstd",
            where,
            "copy it: skopeo copy --dest-compress-format gzip, or docker save",
        )
    return ""
