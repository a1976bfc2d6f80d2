# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Fair pairs: ours and the reference, interleaved, with the noise of the machine beside them.

Two single runs of the same thing differ by up to 15 % on a busy machine, so a ratio of two means
says nothing. Here:

1. a sample of ours and one of the reference are taken directly after each other, in random order:
   a pair. What counts is the median of the pairs' ratios (slow drift cancels in each);
2. as many pairs of the reference with itself are mixed in at random: the A/A pairs. The spread of
   their ratios is the noise floor, and a difference inside it is no difference;
3. the first sample of each side is thrown away (caches, lazy imports);
4. every result carries the load before and after and the versions of what was measured;
5. a sample that did not finish within a benchmark's `limit` counts as that long, and the summary
   says how many there were: the truth is longer.

Nothing here measures: a benchmark is handed the order of its samples and returns their seconds.
What cannot be a pair (a latency's tail, memory) is a `Figure`: numbers beside their goal.
"""

import math
import os
import platform
import random
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from statistics import median, quantiles
from typing import Any, Final, Protocol

VERSIONS: Final = ("securetrain", "torch", "numpy", "cryptography", "blake3", "msgspec")


def clean_up_when_terminated() -> None:
    """Have SIGTERM end this process as Ctrl-C does, so that nothing that was made stays behind."""

    def end(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)


class Side(StrEnum):
    """Whose sample it is."""

    PLAIN = "plain"
    OURS = "ours"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What the median must not exceed: a ratio of seconds, seconds more than the reference, or
    seconds of ours alone.
    """

    ratio: float | None = None
    difference: float | None = None
    seconds: float | None = None

    def met(self, ratio: float, difference: float, seconds: float) -> bool:
        """Whether the medians reach the goal."""
        return all(
            limit is None or found <= limit
            for found, limit in (
                (ratio, self.ratio),
                (difference, self.difference),
                (seconds, self.seconds),
            )
        )

    def __str__(self) -> str:
        parts = []
        if self.ratio is not None:
            parts.append(f"ratio <= {self.ratio:.3f}")
        if self.difference is not None:
            parts.append(f"<= +{self.difference:g} s")
        if self.seconds is not None:
            parts.append(f"<= {self.seconds * 1000:.3g} ms ({1 / self.seconds:,.0f}/s)")
        return " and ".join(parts) or "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What was found beside what the project promises, where a pair cannot say it."""

    name: str
    title: str
    values: dict[str, float]
    """By what they are, with their unit: ``p95 ms``."""
    goal: str
    goal_met: bool

    def __str__(self) -> str:
        values = ", ".join(f"{name} {value:.4g}" for name, value in self.values.items())
        return f"{self.name}: {values}; goal {self.goal}: {'met' if self.goal_met else 'NOT MET'}"


class Benchmark(Protocol):
    """One comparison. Lower seconds are better on both sides."""

    @property
    def name(self) -> str:
        """Short name, for the filter."""

    @property
    def title(self) -> str:
        """What is compared with what, in a sentence."""

    @property
    def goal(self) -> Goal:
        """What the project promises."""

    @property
    def pairs(self) -> int:
        """How many pairs a run takes unless told otherwise."""

    def run(self, order: Sequence[Side]) -> list[float]:
        """Take one sample for each entry of `order`, in that order; seconds each."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two samples taken directly after each other."""

    first: Side
    second: Side

    @property
    def is_noise(self) -> bool:
        """Whether it compares the reference with itself."""
        return self.first is self.second


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The medians of one benchmark."""

    name: str
    title: str
    goal: str
    goal_met: bool
    pairs: int
    plain_seconds: float
    ours_seconds: float
    ours_least_seconds: float
    """The least of all samples: what the machine can do when nobody else is on it."""
    ratio: float
    """Median of the pairs' ratios, ours / plain."""
    ratio_low: float
    ratio_high: float
    """The quartiles of the pairs' ratios."""
    difference_seconds: float
    """Median of the pairs' differences, ours - plain."""
    noise_low: float
    noise_high: float
    """The quartiles of the A/A ratios."""
    plain_unfinished: int = 0
    """Samples of the pairs that took longer than the benchmark's limit."""
    ours_unfinished: int = 0

    @property
    def within_noise(self) -> bool:
        """Whether the median ratio lies inside the A/A quartiles."""
        return self.noise_low <= self.ratio <= self.noise_high


def plan(pairs: int, rng: random.Random) -> list[Pair]:
    """As many A/B pairs in random order as A/A pairs, shuffled together."""
    if pairs < 1:
        raise ValueError(f"{pairs} pairs; at least 1 is needed")
    planned = [
        Pair(*rng.choice([(Side.PLAIN, Side.OURS), (Side.OURS, Side.PLAIN)])) for _ in range(pairs)
    ]
    planned += [Pair(Side.PLAIN, Side.PLAIN)] * pairs
    rng.shuffle(planned)
    return planned


def measure(benchmark: Benchmark, pairs: int, rng: random.Random) -> Summary:
    """Run a benchmark in a planned order and summarize it."""
    planned = plan(pairs, rng)
    warm_up = [Side.PLAIN, Side.OURS]
    order = warm_up + [side for pair in planned for side in (pair.first, pair.second)]
    seconds = benchmark.run(order)
    if len(seconds) != len(order) or not all(math.isfinite(s) and s > 0 for s in seconds):
        raise ValueError(f"{benchmark.name}: {len(order)} samples asked for, got {seconds}")
    return summarize(benchmark, planned, seconds[len(warm_up) :])


def summarize(benchmark: Benchmark, planned: Sequence[Pair], seconds: Sequence[float]) -> Summary:
    """The statistics of planned pairs.

    Args:
        benchmark: Its name, title and goal go into the summary.
        planned: The pairs in the order they were taken.
        seconds: Two samples for each pair.
    """
    ratios: list[float] = []
    differences: list[float] = []
    noise: list[float] = []
    plain: list[float] = []
    ours: list[float] = []
    for index, pair in enumerate(planned):
        first, second = seconds[2 * index], seconds[2 * index + 1]
        if pair.is_noise:
            # Turn about, as in the A/B pairs, so that drift widens the floor and does not shift it.
            noise.append(first / second if len(noise) % 2 else second / first)
            continue
        a, b = (first, second) if pair.first is Side.PLAIN else (second, first)
        plain.append(a)
        ours.append(b)
        ratios.append(b / a)
        differences.append(b - a)
    limit = getattr(benchmark, "limit", math.inf)
    low, high = quartiles(ratios)
    noise_low, noise_high = quartiles(noise)
    ratio, difference, seconds_of_ours = median(ratios), median(differences), median(ours)
    return Summary(
        name=benchmark.name,
        title=benchmark.title,
        goal=str(benchmark.goal),
        goal_met=benchmark.goal.met(ratio, difference, seconds_of_ours),
        pairs=len(ratios),
        plain_seconds=median(plain),
        ours_seconds=seconds_of_ours,
        ours_least_seconds=min(ours),
        ratio=ratio,
        ratio_low=low,
        ratio_high=high,
        difference_seconds=difference,
        noise_low=noise_low,
        noise_high=noise_high,
        plain_unfinished=sum(sample >= limit for sample in plain),
        ours_unfinished=sum(sample >= limit for sample in ours),
    )


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """First and third quartile; the value itself when there is only one."""
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = quantiles(values, n=4, method="inclusive")
    return low, high


def machine() -> dict[str, Any]:
    """What was measured on: never a host name or a path."""
    cores = len(os.sched_getaffinity(0))
    return {
        "class": f"{cores}-core-{platform.machine()}",
        "cores": cores,
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in VERSIONS},
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def table(summaries: Sequence[Summary]) -> str:
    """The summaries as text."""
    head = (
        *("benchmark", "plain s", "ours s", "least", "per s"),
        *("ratio", "quartiles", "A/A noise", "goal", "met"),
    )
    rows = [
        (
            summary.name,
            f"{'>' if summary.plain_unfinished else ''}{summary.plain_seconds:.4g}",
            f"{'>' if summary.ours_unfinished else ''}{summary.ours_seconds:.4g}",
            f"{summary.ours_least_seconds:.4g}",
            f"{1 / summary.ours_seconds:.4g}",
            f"{summary.ratio:.3f}",
            f"{summary.ratio_low:.3f}-{summary.ratio_high:.3f}",
            f"{summary.noise_low:.3f}-{summary.noise_high:.3f}",
            summary.goal,
            "yes" if summary.goal_met else "NO",
        )
        for summary in summaries
    ]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    )
