# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Read a checkpoint of torch's own format, to convert it. Nothing else of ours reads one.

Such a checkpoint is pickles, unsigned. Reading one is a decision of a person who knows where it is
from; these rules keep its content from doing more than being wrong. In order:

1. torch is new enough (2.10) for its weights-only unpickler to be a barrier at all;
2. nothing but ``.metadata`` and ``__RANK_N.distcp`` files, and no links, lies in the directory;
3. the scanner finds nothing in any pickle that it would not let pass;
4. ``.metadata`` is unpickled by an allow-list of 13 globals and dtypes, and what comes out is
   checked before anything is allocated: places inside the named files and apart from each other,
   chunks that tile their tensor, no more bytes than there are;
5. each item's bytes are read once into memory; its archive must be plain (stored, bounded, the
   size it has), its pickle pass the scanner's analysis again, and then torch's weights-only
   unpickler; a tensor must be of the dtype and shape that the index says;
6. values are built of plain types only.

What no rule can see: bytes that were exchanged for others of the same shape. Converting vouches for
what was found, not for where it came from.
"""

import io
import math
import os
import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    Metadata,
    TensorStorageMetadata,
)

from securetrain.artifacts.checkpoint.save import SavedCheckpoint, save
from securetrain.artifacts.checkpoint.values import dtype_name
from securetrain.artifacts.scan import weights
from securetrain.artifacts.scan.formats import Window
from securetrain.artifacts.scan.pickles import analyse
from securetrain.artifacts.scan.scanner import scan_path
from securetrain.artifacts.statement.context import SaveContext
from securetrain.artifacts.tree import index as index_file
from securetrain.artifacts.tree.foreign import DTYPES
from securetrain.artifacts.tree.layout import LEGACY_METADATA, Problem
from securetrain.artifacts.tree.storage import LocalStorage, Source
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.core.files import survey
from securetrain.identity.keys import Signer

TORCH_MIN: Final = (2, 10)
MAX_ENTRIES: Final = 4096
"""Files in the archive of one item."""
_DATA: Final = re.compile(r"__\d{1,8}_\d{1,8}\.distcp")


def convert(
    old: Path, new: Path, *, key: Signer, context: SaveContext, progress: Any = None
) -> SavedCheckpoint:
    """Read a checkpoint of torch's own format and save it in the native, signed one.

    The whole state is held in memory, in one process.

    Args:
        old: the directory with ``.metadata``.
        new: the directory to make.
        key: a checkpoint key.
        context: what is said of it.
        progress: called with bytes looked at and bytes in all.

    Raises:
        IntegrityError: ST-CKPT-190 it needs more than values, or is not such a checkpoint;
            ST-CKPT-191 its index lies; ST-CKPT-142, 200, 201.
        UsageError: ST-USAG-009 an old torch, ST-USAG-013 a value without a place in the format.
    """
    return save(read(old, progress=progress), new, key=key, context=context)


def read(old: Path, *, progress: Any = None) -> dict[str, Any]:
    """The state dict, flat: name to tensor or value; see the module."""
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < TORCH_MIN:
        raise UsageError(
            "ST-USAG-009", f"torch {torch.__version__}", fix="convert with torch 2.10 or newer"
        )
    storage = LocalStorage(old)
    sizes = _files(storage)
    result = scan_path(old, progress=progress)
    if result.findings:
        first = result.findings[0]
        where = f"{first.file} {first.item}".strip()
        raise _unsafe(f"the scanner: {first.code} {first.what}", where, old)
    metadata = _metadata(storage)
    return _State(storage, sizes, metadata).read()


def _files(storage: LocalStorage) -> dict[str, int]:
    """Rule 2."""
    if reason := storage.unsafe():
        raise Problem(code="ST-CKPT-142", what=f"the directory is {reason}").error(storage.name)
    if not storage.path.is_dir():
        raise UsageError("ST-USAG-002", "there is no such directory", storage.name)
    files, unsafe = survey(storage.path)
    for entry in unsafe:
        raise Problem(code="ST-CKPT-142", what=entry.reason, file=entry.name).error(storage.name)
    sizes = {file.name: file.size for file in files}
    if sizes.pop(LEGACY_METADATA, None) is None:
        raise _unsafe(f"there is no {LEGACY_METADATA}", "", storage.path)
    for name in sizes:
        if _DATA.fullmatch(name) is None:
            what = "a file that torch.distributed.checkpoint does not write"
            raise _unsafe(what, name, storage.path)
    return sizes


def _metadata(storage: LocalStorage) -> Metadata:
    """Rule 4, up to the types."""
    source = storage.open(LEGACY_METADATA)
    try:
        if source.size > weights.METADATA_LIMIT:
            raise _unsafe(f"{source.size} bytes", LEGACY_METADATA, storage.path)
        data = bytearray(source.size)
        source.read_into(memoryview(data), 0)
    finally:
        source.close()
    try:
        with _window(data) as window:
            weights.check(analyse(window))
        weights.items_of(data)
        found = _Unpickler(io.BytesIO(data)).load()
    except Exception as error:  # whatever an unpickler says of nonsense
        raise _unsafe(f"not an index: {error}", LEGACY_METADATA, storage.path) from error
    if type(found) is not Metadata:
        raise _unsafe("not an index", LEGACY_METADATA, storage.path)
    return found


class _Unpickler(pickle.Unpickler):
    """Knows the 13 globals of an index, and dtypes."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """See base class."""
        name = f"{module_name}.{global_name}"
        if name not in weights.ALLOWED:
            raise pickle.UnpicklingError(f"forbidden {name}")
        return super().find_class(module_name, global_name)

    def persistent_load(self, pid: Any, /) -> Any:
        """See base class."""
        raise pickle.UnpicklingError(f"a persistent id {str(pid)[:40]!r}")


class _State:
    """Assembles what an index describes."""

    def __init__(self, storage: LocalStorage, sizes: dict[str, int], metadata: Metadata) -> None:
        self.storage = storage
        self.sizes = sizes
        self.metadata = metadata
        self.sources: dict[str, Source] = {}

    def read(self) -> dict[str, Any]:
        """Rules 4 to 6."""
        try:
            places = self._places()
            self._check_places(places)
            entries = self.metadata.state_dict_metadata
            named = {name for name, _ in places}
            needed = {name for name, entry in entries.items() if _has_bytes(entry)}
            if not needed <= named <= set(entries):
                raise self._lie("items and names do not go together")
            for name, entry in entries.items():
                if isinstance(entry, TensorStorageMetadata):
                    self._check_tensor(name, entry)
            return {name: self._entry(name, entry, places) for name, entry in entries.items()}
        except (AttributeError, TypeError, ValueError, KeyError, OverflowError) as error:
            raise self._lie(f"{type(error).__name__}: {error}") from error
        finally:
            for source in self.sources.values():
                source.close()

    def _places(self) -> dict[tuple[str, tuple[int, ...]], tuple[str, int, int]]:
        """Name and offset of each item, to file, offset and length."""
        return {
            (index.fqn, tuple(index.offset or ())): (info.relative_path, info.offset, info.length)
            for index, info in self.metadata.storage_data.items()
        }

    def _check_places(
        self, places: dict[tuple[str, tuple[int, ...]], tuple[str, int, int]]
    ) -> None:
        last: tuple[str, int] = ("", 0)
        for (name, _), (file, offset, length) in sorted(places.items(), key=lambda item: item[1]):
            if file not in self.sizes or length <= 0 or offset + length > self.sizes[file]:
                raise self._lie(f"bytes {offset}..{offset + length} of {file!r}", name)
            if file == last[0] and offset < last[1]:
                raise self._lie(f"bytes of {file} that belong to another item, too", name)
            last = file, offset + length

    def _check_tensor(self, name: str, entry: TensorStorageMetadata) -> None:
        """The boxes tile the tensor, and it is no larger than the files."""
        dtype = dtype_name(entry.properties.dtype, name)
        size = math.prod(entry.size) * DTYPES[dtype]
        if size > sum(self.sizes.values()):
            raise self._lie(f"a shape of {size} bytes, more than there are", name)
        chunks = [
            index_file.Chunk(
                offsets=tuple(c.offsets), sizes=tuple(c.sizes), file="", offset=0, length=0
            )
            for c in entry.chunks
            if math.prod(c.sizes)
        ]
        index_file.check_boxes(
            index_file.TensorEntry(
                fqn=name, dtype=dtype, shape=tuple(entry.size), chunks=tuple(chunks)
            )
        )

    def _entry(
        self,
        name: str,
        entry: Any,
        places: dict[tuple[str, tuple[int, ...]], tuple[str, int, int]],
    ) -> Any:
        if isinstance(entry, BytesStorageMetadata):
            return _plain(self._item(name, places[name, ()]), name)
        if not isinstance(entry, TensorStorageMetadata):
            raise self._lie(f"an entry of type {type(entry).__name__}", name)
        whole = torch.empty(entry.size, dtype=entry.properties.dtype)
        for chunk in entry.chunks:
            if not math.prod(chunk.sizes):
                continue
            part = self._item(name, places[name, tuple(chunk.offsets)])
            if (
                not isinstance(part, Tensor)
                or part.dtype is not whole.dtype
                or part.shape != torch.Size(chunk.sizes)
                or part.layout is not torch.strided
            ):
                raise self._lie("an item that is not the tensor that the index describes", name)
            target = whole
            for dim, (offset, size) in enumerate(zip(chunk.offsets, chunk.sizes, strict=True)):
                target = target.narrow(dim, offset, size)
            target.copy_(part)
        return whole

    def _item(self, name: str, place: tuple[str, int, int]) -> Any:
        """Rule 5."""
        file, offset, length = place
        if file not in self.sources:
            self.sources[file] = self.storage.open(file)
        data = bytearray(length)
        try:
            self.sources[file].read_into(memoryview(data), offset)
        except (OSError, EOFError) as error:
            raise Problem(code="ST-CKPT-200", what=str(error), file=file).error(
                self.storage.name
            ) from error
        where = f"{file} {name}"
        try:
            self._check_archive(data)
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except (zipfile.BadZipFile, pickle.UnpicklingError, EOFError, RuntimeError) as error:
            raise _unsafe(str(error).partition("\n")[0][:300], where, self.storage.path) from error

    def _check_archive(self, data: bytearray) -> None:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            if len(entries) > MAX_ENTRIES or any(e.compress_type for e in entries):
                raise pickle.UnpicklingError("an archive with compressed or too many files")
            if sum(e.file_size for e in entries) > len(data):
                raise pickle.UnpicklingError("an archive whose files are larger than it is")
            names = [e.filename for e in entries]
            pickles = [name for name in names if name.endswith(".pkl")]
            if len(set(names)) != len(names) or len(pickles) != 1:
                raise pickle.UnpicklingError("an archive with no pickle, or two files of one name")
            with _window(archive.read(pickles[0])) as window:
                found = analyse(window)
            if found.unsafe or found.unfollowed or found.problem:
                what = next(iter(found.unsafe), found.problem or "a global without a name")
                raise pickle.UnpicklingError(f"its pickle: {what}")

    def _lie(self, what: str, name: str = "") -> IntegrityError:
        return Problem(
            code="ST-CKPT-191",
            what=f"the index is false: {what}",
            file=LEGACY_METADATA,
            tensor=name,
        ).error(self.storage.name)


def _has_bytes(entry: Any) -> bool:
    if isinstance(entry, TensorStorageMetadata):
        return any(math.prod(chunk.sizes) for chunk in entry.chunks)
    return True


def _plain(value: Any, name: str) -> Any:
    """Rule 6: the containers that weights-only lets through, as plain ones."""
    if isinstance(value, Tensor):
        raise UsageError("ST-USAG-013", "a tensor inside a value", name, "load it and save it anew")
    if type(value) in {dict, OrderedDict}:
        return {key: _plain(item, name) for key, item in value.items()}
    if type(value) is list:
        return [_plain(item, name) for item in value]
    if type(value) in {tuple, torch.Size}:
        return tuple(_plain(item, name) for item in value)
    return value


@contextmanager
def _window(data: bytes | bytearray) -> Iterator[Window]:
    """Bytes in memory, as the scanner reads them."""
    fd = os.memfd_create("item", os.MFD_CLOEXEC)
    try:
        os.pwrite(fd, data, 0)
        yield Window.whole(fd)
    finally:
        os.close(fd)


def _unsafe(what: str, where: str, root: Path) -> IntegrityError:
    return Problem(code="ST-CKPT-190", what=what, file=where).error(str(root))
