# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The digests of a model's files and shards, on all cores. Every byte is read once.

Files are hashed beside each other, the largest first so that none is left for the end alone; small
ones go in groups, because handing one over costs more than reading it. A file is one piece however
large it is, since SHA-256 and BLAKE2b have no parts; shards are pieces of their own, and BLAKE3
takes all cores for a file where there are fewer files than cores. Each thread holds `CHUNK` bytes.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from blake3 import blake3

from securetrain.artifacts.model.oms.manifest import Hash
from securetrain.artifacts.tree.pool import Pool, cores
from securetrain.core.errors import UsageError
from securetrain.core.files import open_regular

CHUNK: Final = 1 << 20
_GROUP: Final = 4 << 20
_ALL_CORES: Final = 64 << 20
"""The size from which a file is worth all cores."""

Progress: TypeAlias = Callable[[int, int], None]


class Stretch(NamedTuple):
    """Bytes of a file below the model's root; `end` is where they, and the file, should end."""

    name: str
    start: int
    end: int
    whole: bool
    """The file is read to its end, wherever that is, and not a byte more is asked of it."""


class Hasher(NamedTuple):
    """A way of reading files."""

    root: Path
    """The model: a directory, or the file that it is."""
    algorithm: Hash
    follow: bool
    """Symbolic links are followed."""


def digests(
    hasher: Hasher, stretches: Sequence[Stretch], progress: Progress | None = None
) -> list[str | UsageError]:
    """The digest of each stretch, hex, or why there is none, in their order."""
    found: list[str | UsageError] = [""] * len(stretches)
    total = sum(one.end - one.start for one in stretches)
    done, lock = 0, threading.Lock()
    wide = hasher.algorithm == "blake3" and len(stretches) < cores()

    def work(group: Sequence[int]) -> None:
        nonlocal done
        for number in group:
            found[number] = _digest(hasher, stretches[number], wide=wide)
        with lock:
            done += sum(stretches[number].end - stretches[number].start for number in group)
            if progress is not None:
                progress(done, total)

    with Pool() as pool:
        for _, future in pool.each(work, _groups(stretches)):
            future.result()
    return found


def _groups(stretches: Sequence[Stretch]) -> Iterator[list[int]]:
    """Numbers of stretches, the largest first, small ones together."""
    order = sorted(range(len(stretches)), key=lambda n: stretches[n].start - stretches[n].end)
    group: list[int] = []
    size = 0
    for number in order:
        group.append(number)
        size += stretches[number].end - stretches[number].start + (_GROUP >> 8)
        if size >= _GROUP:
            yield group
            group, size = [], 0
    if group:
        yield group


def _digest(hasher: Hasher, stretch: Stretch, *, wide: bool) -> str | UsageError:
    path = hasher.root / stretch.name
    try:
        fd = _open(path, follow=hasher.follow)
        try:
            return _read(fd, stretch, _state(hasher.algorithm, wide=wide))
        finally:
            os.close(fd)
    except UsageError as error:
        return error
    except OSError as error:
        return UsageError("ST-USAG-002", str(error.strerror or error), str(path))


def _open(path: Path, *, follow: bool) -> int:
    if not follow:
        return open_regular(path)
    return open_regular(path.resolve(strict=True))


def _state(algorithm: Hash, *, wide: bool) -> Any:
    match algorithm:
        case "sha256":
            return hashlib.sha256()
        case "blake2b":
            return hashlib.blake2b()
        case "blake3":
            return blake3(max_threads=blake3.AUTO if wide else 1)


def _read(fd: int, stretch: Stretch, state: Any) -> str:
    """Feed a stretch to a state; one that is shorter has another digest."""
    length = stretch.end - stretch.start
    os.posix_fadvise(fd, stretch.start, 0 if stretch.whole else length, os.POSIX_FADV_SEQUENTIAL)
    buffer = bytearray(max(1, min(length + 1, CHUNK)))
    view, at = memoryview(buffer), stretch.start
    while stretch.whole or at < stretch.end:
        wanted = len(view) if stretch.whole else min(len(view), stretch.end - at)
        got = os.preadv(fd, [view[:wanted]], at)
        if not got:
            break
        state.update(view[:got])
        at += got
    digest: str = state.hexdigest()
    return digest
