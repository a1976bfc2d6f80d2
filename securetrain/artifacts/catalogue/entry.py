# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""An entry of a catalogue: a TUF target whose bytes are the artifact's signed statement.

Its length and SHA-256 are those of the in-toto statement inside of the artifact's envelope, so that
another signature over the same words changes nothing. ``custom`` says what the digest of the
content is, and where the artifact lies below the catalogue's folder. Rules:

1. a name is letters, digits, dots, hyphens and underscores;
2. a location is relative, has no part that leads up or that no file may have, and (in a folder of
   this machine) nothing on the way is a link that leads out of the catalogue's folder.

The files of a catalogue: in a folder or object store, or as the layers of an OCI image layout.

In a layout, each file is a layer of one manifest, titled by ``org.opencontainers.image.title``. The
digests of a layout are checked as it is read; what counts is what TUF signs.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Protocol

import msgspec
from msgspec import Meta

from securetrain.artifacts.statement.expectation import Expectation
from securetrain.artifacts.statement.reading import read_statement
from securetrain.artifacts.statement.statements import Opened, claimed_kind, open_statement
from securetrain.artifacts.tree.layout import Hex32, Kind
from securetrain.artifacts.tree.storage import LocalStorage, Place, Storage, local_path, storage_of
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.core.files import read_file, staged_dir, unsafe_name, write_whole
from securetrain.identity.trust import TrustRoot

FOLDER: Final = "catalogue"
"""The folder of the metadata, in the catalogue's own."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The word of a catalogue on a name."""

    digest: Hex32
    """Of the artifact's content."""
    statement: Hex32
    """SHA-256 of what was signed about it."""
    location: Annotated[str, Meta(min_length=1, max_length=1024)]
    """Where it lies below the catalogue's folder."""
    kind: str

    @classmethod
    def of(cls, name: str, hashes: dict[str, str], custom: Any) -> "Entry":
        """Read a target of verified metadata.

        Raises:
            IntegrityError: ST-CTLG-101, ST-CTLG-142.
        """
        try:
            said = dict(custom) | {"statement": hashes.get("sha256", "")}
            entry = msgspec.convert(said, cls, strict=True)
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise IntegrityError("ST-CTLG-101", f"entry {name}: {error}") from error
        check_location(entry.location, name)
        return entry

    @property
    def expectation(self) -> Expectation:
        """The expectation that it stands for."""
        return Expectation(digest=self.digest, statement=self.statement)


def read_signed(path: Path, trust: TrustRoot) -> Opened:
    """The statement of an artifact of either kind, verified.

    Raises:
        IntegrityError: ST-CKPT-100 to 161, or ST-DATA likewise.
    """
    data = read_statement(path, Kind.CHECKPOINT)
    kind = claimed_kind(data) or Kind.CHECKPOINT
    return open_statement(data, kind, trust, str(path))


def check_name(name: str) -> None:
    """Rule 1.

    Raises:
        UsageError: ST-USAG-001.
    """
    if not _NAME.match(name):
        raise UsageError(
            "ST-USAG-001",
            f"{name!r} is no name of a catalogue",
            "",
            "use letters, digits, dots, hyphens and underscores, at most 128",
        )


def check_location(location: str, name: str) -> None:
    """The first half of rule 2.

    Raises:
        IntegrityError: ST-CTLG-142.
    """
    for part in location.split("/"):
        if why := unsafe_name(part):
            raise IntegrityError("ST-CTLG-142", f"entry {name} leads to {location!r}: {why}")


def place_of(store: Place, entry: Entry, name: str) -> Path | str:
    """The place of an entry's artifact.

    Raises:
        IntegrityError: ST-CTLG-142.
    """
    if isinstance(store, str) and local_path(store) is None:
        return f"{store.rstrip('/')}/{entry.location}"
    folder = local_path(str(store))
    assert folder is not None
    place = folder / entry.location
    if not place.resolve().is_relative_to(folder.resolve()):
        raise IntegrityError("ST-CTLG-142", f"entry {name} leads to {place.resolve()}", str(folder))
    return place


LIMIT: Final = 8 << 20
MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
CONFIG: Final = "application/vnd.oci.empty.v1+json"
ARTIFACT: Final = "application/vnd.securetrain.catalogue.v1"
LAYER: Final = "application/vnd.tuf.metadata.v1+json"
TITLE: Final = "org.opencontainers.image.title"
_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})\Z")


class Files(Protocol):
    """The metadata of a catalogue, by file name."""

    def read(self, name: str) -> bytes | None:
        """A file's bytes; None when there is none of that name."""


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder ``catalogue`` of a place."""

    storage: Storage

    def read(self, name: str) -> bytes | None:
        """See `Files`."""
        path = f"{FOLDER}/{name}"
        return self.storage.read(path, LIMIT) if self.storage.has(path) else None


@dataclass(frozen=True, slots=True)
class Layout:
    """An OCI image layout on disk."""

    path: Path
    layers: Mapping[str, str]
    """Title to digest (hex)."""

    @classmethod
    def open(cls, path: Path) -> "Layout":
        """Read its index and its one manifest of a catalogue.

        Raises:
            IntegrityError: ST-CTLG-101.
        """
        index = _json(read_file(path / "index.json", LIMIT))
        named = [one for one in index.get("manifests", []) if one.get("artifactType") == ARTIFACT]
        if len(named) != 1:
            what = f"the layout has {len(named)} catalogues, not one"
            raise IntegrityError("ST-CTLG-101", what, str(path))
        manifest = _json(_blob(path, str(named[0].get("digest"))))
        layers = {}
        for layer in manifest.get("layers", []):
            title = str(layer.get("annotations", {}).get(TITLE, ""))
            if title in layers:
                raise IntegrityError("ST-CTLG-101", f"two layers are titled {title!r}", str(path))
            layers[title] = str(layer.get("digest"))
        return cls(path, layers)

    def read(self, name: str) -> bytes | None:
        """See `Files`."""
        digest = self.layers.get(name)
        return None if digest is None else _blob(self.path, digest)


def files_of(place: Place) -> Files:
    """The files of a catalogue.

    Raises:
        IntegrityError: ST-CTLG-101 when an OCI layout is malformed.
    """
    storage = storage_of(place)
    if isinstance(storage, LocalStorage) and (storage.path / "oci-layout").is_file():
        return Layout.open(storage.path)
    return Folder(storage)


def write_layout(files: Mapping[str, bytes], target: Path) -> None:
    """Write the files of a catalogue as a new OCI layout, which any registry's tools copy.

    Raises:
        UsageError: ST-USAG-005 when it exists.
    """
    with staged_dir(target) as staging:
        blobs = staging / "blobs" / "sha256"
        blobs.mkdir(parents=True)

        def put(data: bytes, media: str, **more: Any) -> dict[str, Any]:
            digest = hashlib.sha256(data).hexdigest()
            write_whole(blobs / digest, data)
            return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(data), **more}

        layers = [
            put(data, LAYER, annotations={TITLE: name}) for name, data in sorted(files.items())
        ]
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": ARTIFACT,
            "config": put(b"{}", CONFIG),
            "layers": layers,
        }
        entry = put(_bytes(manifest), MANIFEST, artifactType=ARTIFACT)
        index = {"schemaVersion": 2, "manifests": [entry]}
        write_whole(staging / "index.json", _bytes(index))
        write_whole(staging / "oci-layout", _bytes({"imageLayoutVersion": "1.0.0"}))


def _blob(path: Path, digest: str) -> bytes:
    found = _DIGEST.match(digest)
    if found is None:
        raise IntegrityError("ST-CTLG-101", f"no SHA-256: {digest!r}", str(path))
    try:
        data = read_file(path / "blobs" / "sha256" / found[1], LIMIT)
    except UsageError as error:
        raise IntegrityError("ST-CTLG-101", f"a blob: {error.what}", str(path)) from error
    if hashlib.sha256(data).hexdigest() != found[1]:
        raise IntegrityError("ST-CTLG-101", f"blob {found[1][:16]} is another", str(path))
    return data


def _json(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise IntegrityError("ST-CTLG-101", f"no JSON: {error}") from error
    if not isinstance(value, dict):
        raise IntegrityError("ST-CTLG-101", "no JSON object")
    return value


def _bytes(value: dict[str, Any] | Sequence[Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
