# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A verified dataset as an fsspec file system, for libraries that read through fsspec.

pandas, pyarrow, datasets and webdataset take such a file system or the files that it opens. It is
read-only, and knows nothing but what the statement lists. fsspec comes with torch.
"""

import io
from pathlib import PurePosixPath
from typing import Any, Final

from fsspec.spec import AbstractFileSystem  # type: ignore[import-untyped]

from securetrain.artifacts.dataset.files import Bytes, VerifiedFile

PROTOCOL: Final = "securetrain"


class VerifiedFileSystem(AbstractFileSystem):
    """The files of one dataset."""

    protocol = PROTOCOL
    cachable = False

    def __init__(self, dataset: Bytes) -> None:
        """Show the files of a dataset, which stays open for as long as this is used."""
        super().__init__()
        self._dataset = dataset
        self._folders = {""} | {
            str(parent) if str(parent) != "." else ""
            for name in dataset.files
            for parent in PurePosixPath(name).parents
        }

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:  # noqa: FBT001, FBT002
        """List what is in a folder, or the file itself."""
        folder = self._plain(path)
        if folder in self._dataset.files:
            found = [self._entry(folder)]
        elif folder in self._folders:
            names = {*self._dataset.files, *self._folders} - {""}
            found = [
                self._entry(name)
                for name in sorted(names)
                if str(PurePosixPath(name).parent) == (folder or ".")
            ]
        else:
            raise FileNotFoundError(path)
        return found if detail else [entry["name"] for entry in found]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Name, size and type."""
        name = self._plain(path)
        if name not in self._dataset.files and name not in self._folders:
            raise FileNotFoundError(path)
        return self._entry(name)

    def _open(self, path: str, mode: str = "rb", **_: Any) -> io.BufferedReader:
        if mode != "rb":
            raise OSError(f"{path}: a signed dataset is read only")
        name = self._plain(path)
        if name not in self._dataset.files:
            raise FileNotFoundError(path)
        return io.BufferedReader(VerifiedFile(self._dataset, name))

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        """Verified bytes of a file."""
        name = self._plain(path)
        if name not in self._dataset.files:
            raise FileNotFoundError(path)
        begin, stop, _step = slice(start, end).indices(self._dataset.files[name])
        return self._dataset.read(name, begin, max(0, stop - begin))

    def _entry(self, name: str) -> dict[str, Any]:
        size = self._dataset.files.get(name)
        kind = "directory" if size is None else "file"
        return {"name": name, "size": size or 0, "type": kind}

    def _plain(self, path: str) -> str:
        return str(self._strip_protocol(path)).strip("/")
