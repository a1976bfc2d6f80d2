# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Random reads of a signed dataset against numpy's memmap, and opening one of a terabyte.

Reads are 8 KiB, as a row of tokens is; leaves are 64 KiB. Warm means that the leaf was verified
before, by this process (as a dataset is by default) or by the owner of the node's arena; cold means
that it is read, hashed and checked for this read.
"""

import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from benchmarks.ab import Benchmark, Figure, Goal, Side
from securetrain.artifacts.dataset.sign import About, sign_in_place
from securetrain.artifacts.dataset.verified import Dataset
from securetrain.artifacts.statement.dataset_predicate import DataFile, DatasetPredicate, Split
from securetrain.artifacts.statement.statements import sign
from securetrain.artifacts.tree.layout import STATEMENT, Kind, TreeInfo
from securetrain.core.hashtree import DATASET_LEAF, TreeParams
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot, sign_root

MEGABYTES: Final = 128
READ: Final = 8192
READS: Final = 2000
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a benchmark's own directory below it
_FILES: Final = 64
_TERABYTE: Final = 1 << 40


@contextmanager
def _folder() -> Iterator[tuple[Path, PrivateKey, TrustRoot, datetime]]:
    base = _MEMORY if _MEMORY.is_dir() else None
    key, now = PrivateKey.generate(), datetime.now(UTC)
    root = sign_root({TrustRole.DATASET: [key.public]}, key, now, now + timedelta(days=1))
    name = tempfile.mkdtemp(prefix="dataset-", dir=base)
    try:
        yield Path(name), key, TrustRoot.parse(root, now), now
    finally:
        shutil.rmtree(name)


@contextmanager
def _signed(cache_bytes: int | None = 1) -> Iterator[tuple[Dataset, Path]]:
    with _folder() as (folder, key, trust, now):
        rng = np.random.default_rng(0)
        path = folder / "tokens.bin"
        path.write_bytes(rng.bytes(MEGABYTES << 20))
        sign_in_place(folder, About(name="bench"), key=key, now=now)
        # With room for one leaf every read of another one is cold.
        with Dataset.open(
            folder, trust=trust, policy=None, now=now, cache_bytes=cache_bytes
        ) as data:
            yield data, path


def _places() -> list[int]:
    rng = random.Random(1)  # noqa: S311 - places of reads are no secret
    return [rng.randrange((MEGABYTES << 20) - READ) for _ in range(READS)]


def _timed(read: Callable[[int], object], places: Sequence[int]) -> float:
    started = time.perf_counter()
    for place in places:
        read(place)
    return time.perf_counter() - started


@dataclass(frozen=True, slots=True)
class Warm:
    """Seconds for reading rows whose leaves have been verified before."""

    shared: bool = False
    """Whether the arena of the node serves them."""
    pairs: int = 15

    @property
    def name(self) -> str:
        """Short name."""
        return f"dataset-read-warm{'-arena' if self.shared else ''}"

    @property
    def title(self) -> str:
        """What is compared."""
        where = "from the node's arena" if self.shared else "in one process, as by default"
        return f"verified rows against numpy's memmap, {where}"

    @property
    def goal(self) -> Goal:
        """At most a fifth more than a raw memory map."""
        return Goal(ratio=1.2)

    def run(self, order: Sequence[Side]) -> list[float]:
        """Read the same places from one or the other."""
        places = _places()
        with _signed(None) as (data, path):
            if self.shared:
                data.share()
            raw = np.memmap(path, dtype=np.uint8, mode="r")
            sides: dict[Side, Callable[[int], object]] = {
                Side.PLAIN: lambda place: bytes(raw[place : place + READ]),
                Side.OURS: lambda place: data.read("tokens.bin", place, READ),
            }
            for read in sides.values():
                _timed(read, places)
            return [_timed(sides[side], places) for side in order]


def cold() -> Figure:
    """Microseconds for a row whose leaf is read, hashed and checked for it; and what of that is
    reading and hashing the leaves, which no verifier can leave out.

    Least of the rounds: what else the machine does only ever adds.
    """
    places, params = _places(), TreeParams(leaf_size=DATASET_LEAF)
    leaves = range(0, MEGABYTES << 20, DATASET_LEAF)
    with _signed() as (data, path), path.open("rb", buffering=0) as file:
        buffer = memoryview(bytearray(DATASET_LEAF))

        def bare(place: int) -> None:
            for index in range(place // DATASET_LEAF, (place + READ - 1) // DATASET_LEAF + 1):
                os.preadv(file.fileno(), [buffer], index * DATASET_LEAF)
                params.leaf(index, buffer)

        def read(place: int) -> bytes:
            return data.read("tokens.bin", place, READ)

        rounds = [(_timed(read, places), _timed(bare, places)) for _ in range(9)]
        first = []
        for _ in range(5):
            data.close()
            data.cache_bytes = MEGABYTES << 20
            first.append(_timed(read, leaves))
    found, alone = (min(one) / READS * 1e6 for one in zip(*rounds, strict=True))
    return Figure(
        name="dataset-read-cold",
        title=f"rows of {READ} bytes, each from a leaf of 64 KiB that is verified for it",
        values={
            "us": found,
            "us, reading and hashing the leaves alone": alone,
            "us, into memory that is new": min(first) / len(leaves) * 1e6,
        },
        goal="<= 27 us",
        goal_met=found <= 27,
    )


def terabyte() -> Figure:
    """Milliseconds for opening a dataset of a terabyte: statement, listing and policy.

    The files are holes: opening reads no data, so nothing else is needed of them.
    """
    params = TreeParams(leaf_size=DATASET_LEAF)
    with _folder() as (folder, key, trust, now):
        size = _TERABYTE // _FILES
        files = []
        for number in range(_FILES):
            name = f"shard-{number:05d}.bin"
            for path, length in (
                (folder / name, size),
                (folder / Kind.DATASET.table_of(name), Kind.DATASET.table_size(params, size)),
            ):
                path.parent.mkdir(exist_ok=True)
                with path.open("wb") as file:
                    file.truncate(length)
            files.append(DataFile(name=name, size=size, root="0" * 64))
        predicate = DatasetPredicate(
            name="terabyte",
            seq=0,
            created=now,
            tree=TreeInfo.of(params),
            files=files,
            splits=[Split(name="all", files=[file.name for file in files])],
        )
        (folder / STATEMENT).write_bytes(sign(predicate, "terabyte", key))
        rounds = []
        for _ in range(11):
            started = time.perf_counter()
            Dataset.open(folder, trust=trust, policy=None, now=now).close()
            rounds.append(time.perf_counter() - started)
    found = median(rounds) * 1e3
    return Figure(
        name="dataset-open-1TB",
        title=f"opening a terabyte in {_FILES} files",
        values={"p50 ms": found},
        goal="<= 50 ms",
        goal_met=found <= 50,
    )


BENCHMARKS: Final[tuple[Benchmark, ...]] = (Warm(), Warm(shared=True))
FIGURES: Final[dict[str, Callable[[], Figure | None]]] = {
    "dataset-read-cold": cold,
    "dataset-open-1TB": terabyte,
}
