# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Items that trackers are told of a run, in the words of none of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

Value: TypeAlias = str | int | float | bool
Values: TypeAlias = Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """A launch began."""

    run: str
    """The run's id."""
    number: int
    """Of the launch in this run directory, from 1."""
    time: float
    """Unix seconds, as all times here."""
    said: Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something that took its time, or a moment (both times the same)."""

    key: str
    """Unique in the run, and the same whenever the run is told."""
    name: str
    begin: float
    end: float
    said: Values = field(default_factory=dict)
    code: str = ""
    """The refusal's; empty where nothing was refused."""
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The figures of a step, by rank 0's word."""

    step: int
    time: float | None
    """None in records of earlier versions."""
    values: Mapping[str, float]
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A launch ended, or the telling of it did."""

    time: float
    outcome: str
    """The ledger's word; empty where it has none."""
    labels: tuple[str, ...]
    """The honest labels of all events so far."""
    said: Values


Item: TypeAlias = Began | Span | Measured | Ended


class Tracker(Protocol):
    """A tracker's own library, behind the one seam."""

    def give(self, items: Sequence[Item]) -> None:
        """Deliver items, or raise whatever the library raises."""

    def close(self) -> None:
        """Deliver what the library held back."""
