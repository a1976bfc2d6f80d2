# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The files of a catalogue: in a folder or object store, or as the layers of an OCI image layout.

In a layout, each file is a layer of one manifest, titled by ``org.opencontainers.image.title``. The
digests of a layout are checked as it is read; what counts is what TUF signs.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from securetrain.artifacts.catalogue.entry import FOLDER
from securetrain.artifacts.tree.storage import LocalStorage, Place, Storage, storage_of
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.core.files import read_file, staged_dir, write_whole

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
