# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Read the bytes of a file into the tensors that they fill.

Three ways, the first that fits:

1. a run of bytes that the target holds as they are stored is read into its own memory and verified
   there, whole leaves in threads;
2. a run of elements for a target of another dtype or device is read leaf by leaf into a buffer of
   the thread's own, verified there, and copied while the processor's cache still holds it;
3. a box that is no run (other columns than were saved together) is read in slabs of whole rows into
   private memory, and the box is copied out of them.

A leaf at the edge of a run is read by the calling thread, by way of the reader's kept buffer, so
that two neighbours hash it once.
"""

import math
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from securetrain.artifacts.checkpoint.sealing import SealedReader
from securetrain.artifacts.checkpoint.tensors import can_fill, is_plain, memory
from securetrain.artifacts.statement.reading import BLOCK, REQUEST, LeafReader
from securetrain.artifacts.tree.index import Chunk
from securetrain.artifacts.tree.pool import Pool, stop

STRETCH: Final = 4 << 20
"""Bytes that one task reads and hashes."""
SCRATCH: Final = 32 << 20
"""Bytes of the two buffers of slabs."""


@dataclass(slots=True)
class Fetch:
    """Reads ranges of one file."""

    reader: LeafReader | SealedReader
    pool: Pool
    pending: list[Future[None]] = field(default_factory=list)

    def start(self, offset: int, view: memoryview) -> None:
        """Begin to read a range into `view`; it may be used after `wait`."""
        first, count, before, after = self.reader.split(offset, len(view))
        leaf, step = self._steps()
        for start in range(0, count, step):
            leaves = min(step, count - start)
            low = before + start * leaf
            high = min(low + leaves * leaf, len(view) - after)
            self.pending.append(
                self.pool.submit(self.reader.read_leaves, first + start, leaves, view[low:high])
            )
        self.reader.read_edge(offset, view[:before])
        self.reader.read_edge(offset + len(view) - after, view[len(view) - after :])

    def convert(self, offset: int, dtype: torch.dtype, flat: Tensor) -> None:
        """Begin to fill `flat` with stored elements of `dtype`; it is filled after `wait`.

        Leaves begin at whole elements when `offset` does: their sizes are powers of two.
        """
        size = dtype.itemsize
        first, count, before, after = self.reader.split(offset, flat.numel() * size)
        leaf, step = self._steps()
        low, high = before // size, flat.numel() - after // size
        for start in range(0, count, step):
            leaves = min(step, count - start)
            begin = low + start * leaf // size
            part = flat[begin : min(begin + leaves * leaf // size, high)]
            self.pending.append(
                self.pool.submit(self._convert_leaves, first + start, leaves, dtype, part)
            )
        self._convert_edge(offset, dtype, flat[:low])
        self._convert_edge(offset + high * size, dtype, flat[high:])

    def wait(self) -> None:
        """Wait until everything that was begun has been read and verified.

        Raises:
            IntegrityError: what the first of them found.
        """
        for future in self.pending:
            future.result()
        self.pending.clear()

    def stop(self) -> None:
        """Let nothing go on."""
        stop(self.pending)

    def close(self) -> None:
        """Close the file; nothing of it may be pending."""
        self.reader.file.close()

    def _steps(self) -> tuple[int, int]:
        """The size of a leaf, and how many of them one task reads."""
        file = self.reader.file
        leaf = file.params.leaf_size
        return leaf, max(1, (REQUEST if file.source.whole else STRETCH) // leaf)

    def _convert_leaves(self, first: int, count: int, dtype: torch.dtype, flat: Tensor) -> None:
        """Way 2; the whole stretch at once where many small requests cost more."""
        file = self.reader.file
        leaf = file.params.leaf_size
        step = count if file.source.whole else max(1, BLOCK // leaf)
        total = flat.numel() * dtype.itemsize
        scratch = torch.empty(min(step * leaf, total), dtype=torch.uint8)
        for start in range(0, count, step):
            part = scratch[: total - start * leaf]
            self.reader.read_leaves(first + start, min(step, count - start), memory(part))
            _copy(part, dtype, flat, start * leaf)

    def _convert_edge(self, offset: int, dtype: torch.dtype, flat: Tensor) -> None:
        total = flat.numel() * dtype.itemsize
        scratch = torch.empty(min(BLOCK, total), dtype=torch.uint8)
        for start in range(0, total, BLOCK):
            part = scratch[: total - start]
            self.reader.read_edge(offset + start, memory(part))
            _copy(part, dtype, flat, start)


def _copy(data: Tensor, dtype: torch.dtype, flat: Tensor, start: int) -> None:
    """Put verified bytes into the elements that begin at byte `start` of what is stored."""
    first = start // dtype.itemsize
    flat[first : first + data.numel() // dtype.itemsize].copy_(data.view(dtype))


@dataclass(slots=True)
class Job:
    """One box of a stored chunk and the tensor that it fills."""

    chunk: Chunk
    dtype: torch.dtype
    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    target: Tensor

    def run(self, fetch: Fetch) -> None:
        """Fill the target; except for slabs it is filled after `fetch.wait`."""
        first = _contiguous(self.chunk.sizes, self.starts, self.lengths)
        if first is not None:
            offset = self.chunk.offset + first * self.dtype.itemsize
            if can_fill(self.target, self.dtype):
                fetch.start(offset, memory(self.target))
                return
            # Tensors in safetensors files may begin anywhere.
            whole = offset % self.dtype.itemsize == 0
            if whole and is_plain(self.target) and self.target.is_contiguous():
                fetch.convert(offset, self.dtype, self.target.view(-1))
                return
        for rows, data in self._slabs(fetch):
            into = self.target[rows] if self.lengths else self.target
            into.copy_(data)

    def _slabs(self, fetch: Fetch) -> Iterator[tuple[slice, Tensor]]:
        """The box in pieces of whole rows, by way of a private buffer."""
        inner = self.chunk.sizes[1:]
        row = self.dtype.itemsize * math.prod(inner)
        count = self.lengths[0] if self.lengths else 1
        begin = self.starts[0] if self.starts else 0
        step = min(count, max(1, SCRATCH // 2 // row))
        buffers = min(2, -(-count // step))
        scratch = [torch.empty(step * row, dtype=torch.uint8) for _ in range(buffers)]

        def ahead(done: int) -> Tensor:
            """Begin to read the rows from `done` on; they are there after `fetch.wait`."""
            part = scratch[done // step % 2][: min(step, count - done) * row]
            fetch.start(self.chunk.offset + (begin + done) * row, memory(part))
            return part

        following = ahead(0)
        for done in range(0, count, step):
            rows, part = min(step, count - done), following
            fetch.wait()
            if done + rows < count:
                # Read and hashed while the caller copies this one.
                following = ahead(done + rows)
            data = part.view(self.dtype).reshape((rows, *inner) if self.lengths else ())
            for dim in range(1, len(self.lengths)):
                data = data.narrow(dim, self.starts[dim], self.lengths[dim])
            yield slice(done, done + rows), data


def _contiguous(
    sizes: tuple[int, ...], starts: tuple[int, ...], lengths: tuple[int, ...]
) -> int | None:
    """The first element of a box in its chunk when the box is one run of elements, else None."""
    first, stride, partial = 0, 1, False
    for size, start, length in zip(
        reversed(sizes), reversed(starts), reversed(lengths), strict=True
    ):
        if partial and length != 1:
            return None
        first += start * stride
        stride *= size
        partial = partial or length != size
    return first
