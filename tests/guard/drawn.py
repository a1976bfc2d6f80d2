# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Lies on messages of the guard, drawn at random: what one rank sends instead of what it should."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.guard.meeting import floats

SIZE, LIAR = 4, 2
REVEAL = 64
"""Bytes of a value and what is told with it."""


def any_bytes(source, data):
    """Whatever the message is: other bits, or another message to one rank."""
    changed = bytearray(data)
    for _ in range(source.randrange(1, 5)):
        changed[source.randrange(len(data))] ^= 1 << source.randrange(8)
    return bytes(changed)


def add(source, numbers, some):
    numbers[some] += np.float32(10 ** source.uniform(-6, 6))


def scale(source, numbers, some):
    numbers[some] *= np.float32(source.choice((1.01, -1, 3, 0.5, 0)))


def not_finite(source, numbers, some):
    numbers[some] = source.choice((np.nan, np.inf, -np.inf))


def huge(source, numbers, some):
    numbers[some] = np.float32(source.choice((3e38, -3e38)))


def move(source, numbers, some):
    numbers[some] = np.roll(numbers, 256 * source.randrange(1, 5))[some]


ON_NUMBERS = {call.__name__: call for call in (add, scale, not_finite, huge, move)}
ON_VALUES = {
    "reveal": lambda source, data: source.randbytes(32) + data[32:],
    "told": lambda source, data: data[:32] + source.randbytes(32),
}
ON_ANY = {
    "bits": any_bytes,
    "equivocate": lambda source, data: {source.randrange(SIZE): any_bytes(source, data)},
    "digest": lambda source, data: (source.randbytes(32) + data[32:])[: len(data)],
    "silence": lambda _source, _data: None,
}
KINDS = (*ON_NUMBERS, *ON_VALUES, *ON_ANY)


def lie(source: random.Random, kinds: Any = KINDS) -> tuple[str, Callable[[int, bytes], Any]]:
    """One lie, once or from some message on: a function of a message's number and bytes."""
    at, lasting = source.randrange(2, 8), source.random() < 0.5
    kind = source.choice(kinds)

    def tamper(count, data):
        table = len(data) > REVEAL
        if kind in ON_VALUES and len(data) != REVEAL:
            return data
        if count != at and not (lasting and count > at):
            return data
        if kind not in ON_NUMBERS:
            return (ON_ANY | ON_VALUES)[kind](source, data)
        if not table:
            return data
        if len(data) % 4:
            return any_bytes(source, data)
        numbers = floats(data)
        first = source.randrange(len(numbers))
        some = slice(first, first + source.choice((1, 64, 256, 1024, len(numbers))))
        with np.errstate(all="ignore"):
            ON_NUMBERS[kind](source, numbers, some)
        return data[:32] + numbers.tobytes()

    return kind, tamper
