# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Changes inputs, feeds them to a parser and watches what comes out.

A parser is handed valid inputs that were changed a little (bits, bytes, numbers, brackets, pieces
of another valid input), or a lot. It may accept, or raise a SecureTrainError. Anything else that
comes out, an input that takes more than five seconds of processor time, and memory of more than
64 MiB, with all that the parser keeps from one input to the next, are defects. The same seed gives
the same inputs.
"""

import gc
import math
import random
import resource
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from securetrain.core.errors import SecureTrainError

TIME_LIMIT: Final = 5.0
MEMORY_LIMIT: Final = 64 << 20
_MAX_INPUT: Final = 96 << 10

_TOKENS: Final = (
    *(b"", b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\n", b" ", b'"', b"\\u0000", b"\\ud800"),
    *(b"{", b"}", b"[", b"]", b"[" * 5000, b'{"a":' * 2000, b",", b":", b"null", b"true", b"NaN"),
    *(b"Infinity", b"-0", b"1e400", b"1e-400", b"9007199254740993", b"-9223372036854775809"),
    *(b"18446744073709551616", b"9" * 5000, b"0.1", b"../", b"/etc/passwd", b"!!python/object:x"),
    *(b"&a [*a]", b"<<: *a", b"---\n", b"%", b"\xff\xff\xff\xff", b"\x00\x00\x00\x00"),
    *(b"1970-01-01T00:00:00", b"2026-13-45T99:99:99Z", b"0001-01-01T00:00:00Z", b"spiffe://"),
)


@dataclass(frozen=True, slots=True)
class Parser:
    """Something that reads what others wrote."""

    name: str
    seeds: Callable[[], list[bytes]]
    """Makes valid inputs."""
    parse: Callable[[bytes], object]
    """Reads one; raises SecureTrainError when it refuses."""
    share: float = 1.0
    """The part of the wanted number of inputs that it gets."""


@dataclass(frozen=True, slots=True)
class Defect:
    """An input that did something else than being accepted or refused."""

    parser: str
    data: bytes
    what: str

    def __str__(self) -> str:
        shown = self.data if len(self.data) <= 400 else self.data[:400] + b"..."
        return f"{self.parser}: {self.what}\n  input ({len(self.data)} bytes): {shown!r}"


@dataclass(frozen=True, slots=True)
class Tally:
    """What came of the inputs of one parser."""

    parser: str
    accepted: int
    refused: int
    defects: tuple[Defect, ...]


def mutate(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """A changed copy: from one small edit to several large ones."""
    result = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        _edit(result, others, rng)
        del result[_MAX_INPUT:]
    return bytes(result)


def _edit(data: bytearray, others: Sequence[bytes], rng: random.Random) -> None:
    start = rng.randrange(len(data) + 1)
    end = min(len(data), start + rng.choice((0, 1, 1, 2, 4, 8, 64, 4096)))
    match rng.randrange(8):
        case 0 if data:  # flip a bit
            data[start % len(data)] ^= 1 << rng.randrange(8)
        case 1 if data:  # any byte
            data[start % len(data)] = rng.randrange(256)
        case 2:  # cut off
            del data[start:]
        case 3:  # remove a piece
            del data[start:end]
        case 4:  # repeat a piece
            data[end:end] = data[start:end] * rng.choice((1, 2, 100))
        case 5:  # a piece of another input
            other = rng.choice(others)
            begin = rng.randrange(len(other) + 1)
            data[start:end] = other[begin : begin + rng.choice((1, 8, 64, 4096))]
        case 6:  # another number in place of one that is there
            numbers = [i for i, byte in enumerate(data) if chr(byte).isdigit()]
            if numbers:
                at = rng.choice(numbers)
                data[at : at + 1] = str(rng.choice((-1, 0, 1, 255, 2**31, 2**53, 2**64))).encode()
        case _:
            data[start:end] = rng.choice(_TOKENS)


def run(parser: Parser, inputs: int, rng: random.Random, time_limit: float = TIME_LIMIT) -> Tally:
    """Feed a parser its seeds, which it must accept, and `inputs` mutated ones.

    Only in the main thread: the time limit is an alarm.
    """
    seeds = parser.seeds()
    defects: dict[str, Defect] = {}
    for number, seed in enumerate(seeds):
        if (error := _feed(parser, seed, time_limit)) is not None:
            what = f"a valid input was refused: {error}"
            defects[f"seed {number}"] = Defect(parser.name, seed, what)
    accepted = refused = 0
    with bounded_memory():  # now that what is loaded at the first use is there
        for _ in range(math.ceil(inputs * parser.share)):
            data = mutate(rng.choice(seeds), seeds, rng)
            match _feed(parser, data, time_limit):
                case None:
                    accepted += 1
                case SecureTrainError():
                    refused += 1
                case BaseException() as error:
                    # One defect for each place that it comes from.
                    place = "".join(traceback.format_tb(error.__traceback__)[-2:])
                    what = f"{type(error).__name__}: {error}\n{place}"
                    defects.setdefault(f"{type(error)} {place}", Defect(parser.name, data, what))
    return Tally(parser.name, accepted, refused, tuple(defects.values()))


def _feed(parser: Parser, data: bytes, time_limit: float) -> BaseException | None:
    try:
        with _alarm(time_limit):
            parser.parse(data)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return error
    return None


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def late(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"took longer than {seconds} s")

    # Processor time, so that a busy machine makes no defects.
    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@contextmanager
def bounded_memory(limit: int = MEMORY_LIMIT) -> Iterator[None]:
    """Meanwhile this process may take `limit` bytes more than it has; then MemoryError."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    total = pages * resource.getpagesize() + limit
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (total, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
