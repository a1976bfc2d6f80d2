# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A verified dataset in the shapes that programs expect: files, and arrays of numbers.

Nothing here reads the disk: every byte comes from `Dataset.read`, which verifies it.

A verified dataset as an fsspec file system, for libraries that read through fsspec.

pandas, pyarrow, datasets and webdataset take such a file system or the files that it opens. It is
read-only, and knows nothing but what the statement lists. fsspec comes with torch.
"""

import io
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, Protocol

from fsspec.spec import AbstractFileSystem  # type: ignore[import-untyped]

from securetrain.core.errors import IntegrityError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Files(Protocol):
    """The part of `Dataset` that a file needs."""

    @property
    def files(self) -> Mapping[str, int]:
        """Name and size of every file."""

    def read(self, file: str, offset: int, length: int) -> bytes:
        """Verified bytes of a file."""


class Bytes(Files, Protocol):
    """The part that an array needs besides."""

    def split_size(self, split: str) -> int:
        """The number of bytes of a split."""

    def read_split(self, split: str, offset: int, length: int) -> bytes:
        """Verified bytes of a split."""


class VerifiedFile(io.RawIOBase):
    """One file of a dataset, as an unbuffered binary file object (wrap it in BufferedReader)."""

    def __init__(self, dataset: Files, name: str) -> None:
        """Open a file of the dataset.

        Raises:
            IntegrityError: ST-DATA-160 when there is none of that name.
        """
        super().__init__()
        if name not in dataset.files:
            raise IntegrityError(
                "ST-DATA-160", f"no file {name!r}", "", "name one of the dataset's"
            )
        self.name = name
        self._dataset = dataset
        self._size = dataset.files[name]
        self._at = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer with verified bytes; how many there were.

        Raises:
            IntegrityError: ST-DATA-122 to 200.
        """
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self._size - self._at))
        if count:
            view[:count] = self._dataset.read(self.name, self._at, count)
            self._at += count
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move; the new position."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"a position before the file: {base + offset}")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        """The position."""
        return self._at


class VerifiedMemmap:
    """A split of numbers (token ids, say) that is read as it is indexed: numpy's memmap, verified.

    One dimension, or rows of a fixed length. Indexing with an integer or a slice of step 1 gives an
    array of its own, whose bytes were verified while they were read.
    """

    def __init__(
        self, dataset: Bytes, split: str, dtype: "np.dtype[Any] | str", row: int | None = None
    ) -> None:
        """Map an array over a split.

        Args:
            dataset: The dataset.
            split: The split whose files are taken one after the other.
            dtype: What the numbers are (little-endian, as numpy spells it: "<u2").
            row: Numbers in a row; None for one dimension.

        Raises:
            IntegrityError: ST-DATA-160 when the split does not divide into such rows.
        """
        import numpy as np  # noqa: PLC0415 - the package starts without numpy

        self.dtype = np.dtype(dtype)
        self._dataset = dataset
        self._split = split
        self._row = row
        self._step = self.dtype.itemsize * (row or 1)
        size = dataset.split_size(split)
        if row is not None and row < 1:
            raise ValueError(f"rows of {row} numbers")
        if size % self._step:
            raise IntegrityError(
                "ST-DATA-160",
                f"{size} bytes do not divide into pieces of {self._step}",
                f"split {split}",
                "give the dtype and row that the data was written with",
            )
        self._length = size // self._step

    @property
    def shape(self) -> tuple[int, ...]:
        """As numpy's."""
        return (self._length,) if self._row is None else (self._length, self._row)

    @property
    def ndim(self) -> int:
        """As numpy's."""
        return len(self.shape)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, key: int | slice) -> "NDArray[Any] | Any":
        """Verified numbers.

        Raises:
            IndexError: outside of the array, or a step other than 1.
            IntegrityError: ST-DATA-122 to 200.
        """
        if isinstance(key, slice):
            start, stop, step = key.indices(self._length)
            if step != 1:
                raise IndexError("only slices of step 1 can be read")
            return self._read(start, max(0, stop - start))
        number = int(key)
        if not -self._length <= number < self._length:
            raise IndexError(f"{number} of {self._length}")
        return self._read(number % self._length, 1)[0]

    def _read(self, start: int, count: int) -> "NDArray[Any]":
        import numpy as np  # noqa: PLC0415

        data = self._dataset.read_split(self._split, start * self._step, count * self._step)
        flat = np.frombuffer(bytearray(data), dtype=self.dtype)
        return flat if self._row is None else flat.reshape(count, self._row)


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
