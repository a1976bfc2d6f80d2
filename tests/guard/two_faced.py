# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A liar that tells each rank something else, drawn at random."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from tests.guard import lies
from tests.guard.drawn import LIAR, REVEAL, SIZE, any_bytes
from tests.guard.meeting import floats

Face = Callable[[random.Random, bytes], bytes]


def large(_source: random.Random, data: bytes) -> bytes:
    """Tells a gradient that is out of all proportion."""
    return _numbers(data, 40.0)


def not_finite(_source: random.Random, data: bytes) -> bytes:
    """Tells a gradient that is not finite."""
    return _numbers(data, np.nan)


def any_other(source: random.Random, data: bytes) -> bytes:
    """Tells anything else."""
    return source.randbytes(len(data))


def _numbers(data: bytes, factor: float) -> bytes:
    if len(data) < 1024 or len(data) % 4:
        return data
    with np.errstate(all="ignore"):
        return data[:32] + (floats(data) * np.float32(factor)).tobytes()


FACES = (large, not_finite, any_bytes, any_other)


def two_faced(source: random.Random, *, size: int = SIZE) -> Callable[[int, bytes], Any]:
    """Who is told otherwise, in which messages, and what."""
    victims = [rank for rank in range(size) if source.random() < 0.5] or [source.randrange(size)]
    faces: list[Face] = [source.choice(FACES) for _ in victims]
    chance, only = source.choice((0.05, 0.3, 1.0)), source.choice(("all", "rows", "small"))

    def tamper(count: int, data: bytes) -> Any:
        row = len(data) >= 1024
        if count < 2 or (only == "rows" and not row) or (only == "small" and row):
            return data
        if source.random() > chance:
            return data
        return {to: face(source, data) for to, face in zip(victims, faces, strict=True)}

    return tamper


@contextmanager
def speaks(face: Callable[[int, int, torch.Tensor], None]) -> Iterator[None]:
    """In a real group: changes what is sent to each rank; a face is given the length of the
    message, who hears it and its bytes there.
    """
    real = dist.all_to_all_single

    def all_to_all_single(
        heard: torch.Tensor, mine: torch.Tensor, *rest: Any, **options: Any
    ) -> Any:
        if mine.dtype is torch.uint8 and options.get("async_op"):
            mine = mine.clone()
            for to, row in enumerate(mine.view(dist.get_world_size(), -1)):
                face(row.numel(), to, row)
        return real(heard, mine, *rest, **options)

    with lies.patched(dist, "all_to_all_single", all_to_all_single):
        yield


def rows_to_each() -> Callable[[int, Any], Any]:
    """Tells each rank of another gradient, none of which is odd by itself."""

    def face(length: int, to: int, row: torch.Tensor) -> None:
        if length > 4096:
            row[32 : 32 + 4 * 512 : 4] ^= to

    return lambda _step, _own: speaks(face)


def _tampered_seeds(length: int, to: int, row: torch.Tensor) -> None:
    if to == 1 and length == REVEAL:
        row.fill_(1)


def rows_for(*victims: int, factor: float) -> Callable[[int, Any], Any]:
    """Tells some ranks of another gradient in each step."""

    def face(length: int, to: int, row: torch.Tensor) -> None:
        if to in victims and length > 4096:
            numbers = np.frombuffer(row[32 : 32 + 4 * 512].numpy().tobytes(), dtype="<f4")
            with np.errstate(all="ignore"):
                told = (numbers * np.float32(factor)).tobytes()
            row[32 : 32 + 4 * 512] = torch.frombuffer(bytearray(told), dtype=torch.uint8)

    return lambda _step, _own: speaks(face)


def anything(seed: int) -> Callable[[int, Any], Any]:
    """Tells anything else to some ranks in some messages, those of the agreement included."""
    source = random.Random(seed)
    victims = source.sample((0, 1, 3), source.randrange(1, 4))
    chance, most = source.choice((0.02, 0.3, 1.0)), source.choice((64, 1 << 30))

    def face(length: int, to: int, row: torch.Tensor) -> None:
        if to in victims and length <= most and source.random() < chance:
            row.copy_(torch.frombuffer(bytearray(source.randbytes(length)), dtype=torch.uint8))

    return lambda _step, _own: speaks(face)


NAMED = {
    "another to one": rows_for(0, factor=float("nan")),
    "another to two": rows_for(0, 3, factor=float("nan")),
    "another to each": rows_to_each(),
    "seeds": lambda _step, _own: speaks(_tampered_seeds),
}


def in_processes(kind: str, names: Sequence[str], seeds: Sequence[int] = ()) -> dict[str, Any]:
    """What came of each liar."""
    lies.quiet()
    found = {
        "clean": lies.train(kind, lies.SETTINGS),
        "oracle": lies.train(kind, None, without=LIAR, drop=[lies.START, lies.START + 1]),
    }
    for name in names:
        found[name] = lies.train(kind, lies.SETTINGS, lie=NAMED[name])
    for seed in seeds:
        found[f"anything {seed}"] = lies.train(kind, lies.SETTINGS, lie=anything(seed))
    return found
