# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Follow a run directory and tell trackers of it.

Rules:

1. the run is only read. Whoever follows it is a process of its own: whatever a tracker's library
   does, the launcher and the workers wait for nothing;
2. a ledger that does not verify ends the telling, with its code in the trackers and in the result;
3. what was not delivered is said, by number. It is still in the run directory, and following the
   run again tells all of it once more, under the same ids.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from securetrain.core import RunDir
from securetrain.core.errors import IntegrityError, SecureTrainError, UsageError
from securetrain.core.vocabulary import Boundary, Decision
from securetrain.identity.trust import TrustRoot
from securetrain.integrations.trackers.delivery import Delivery
from securetrain.integrations.trackers.items import Item, Span, Tracker, Value
from securetrain.integrations.trackers.reading import StepLine, StepsFollower
from securetrain.integrations.trackers.story import Story
from securetrain.integrations.versions import present
from securetrain.ledger import Ignored, LedgerFollower, Recorded, events

TRACKERS: Final = ("otlp", "mlflow", "wandb")
DEFAULTS: Final = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_EXPERIMENT_NAME": "securetrain",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_PROJECT": "securetrain",
    "WANDB_SILENT": "true",
}
"""Variables of the trackers' own, set where the user has not: nothing goes to their makers."""
POLL: Final = 1.0
_SLACK: Final = 1.0
"""Seconds by which two clocks of one machine's processes may differ."""
_NEEDED: Final = {
    "otlp": ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"),
    "mlflow": ("mlflow-skinny",),
    "wandb": ("wandb",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The outcome for one tracker."""

    tracker: str
    delivered: int
    undelivered: int
    problem: str
    """The type of the last error of its library; empty when there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """The outcome for all trackers."""

    told: tuple[Told, ...]
    bad_lines: int
    """Of metrics.jsonl."""
    ignored: int
    """Of the ledger."""
    problem: SecureTrainError | None
    """The reason why the ledger could not be read to its end."""


def check_trackers(names: Iterable[str]) -> None:
    """See whether the trackers' libraries are here; imports none.

    Raises:
        UsageError: ST-USAG-001 for a name that is none, ST-USAG-004 without the library.
    """
    for name in names:
        if name not in TRACKERS:
            raise UsageError(
                "ST-USAG-001", f"{name!r} is no tracker", "--to", f"one of {', '.join(TRACKERS)}"
            )
        for distribution in _NEEDED[name]:
            present(distribution)


def open_tracker(name: str) -> Tracker:
    """Import a tracker's library; see `check_trackers`."""
    match name:
        case "otlp":
            from securetrain.integrations.trackers.otlp import Otlp

            return Otlp()
        case "mlflow":
            from securetrain.integrations.trackers.mlflow_runs import Mlflow

            return Mlflow()
        case "wandb":
            from securetrain.integrations.trackers.wandb_runs import Wandb

            return Wandb()
        case _:
            raise ValueError(f"unknown tracker {name!r}")


def follow_run(
    root: Path,
    trackers: Sequence[tuple[str, Tracker]],
    *,
    names: bool,
    now: datetime,
    ended: Callable[[bool], bool],
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    poll: float = POLL,
) -> Followed:
    """Tell trackers of a run until it has ended.

    Args:
        root: The run directory.
        trackers: Their names, and themselves.
        names: Whether names of nodes, paths and messages are told.
        now: The time at which the trust root must be valid.
        ended: Whether nothing more will be written, given whether the ledger is closed; asked
            before each reading.
        clock: Seconds that never go back.
        sleep: Waits.
        poll: Seconds between two readings.

    Raises:
        IdentityError: ST-IDEN-008 when the trust root is not good.
        UsageError: ST-USAG-002 when it cannot be read.
    """
    run = RunDir(root)
    ledger = LedgerFollower(run.ledger, TrustRoot.load(run.trust, now))
    told = _Telling(ledger, StepsFollower(run.metrics), Story(names=names))
    deliveries = [Delivery(name, tracker) for name, tracker in trackers]
    while True:
        last = ended(told.is_closed)
        items = told.next()
        for delivery in deliveries:
            delivery.put(items)
            delivery.push(clock())
        if told.problem is not None or (last and not items):
            break
        if not items:
            sleep(poll)
    for delivery in deliveries:
        if delivery.waiting:
            delivery.push(clock(), last=True)
        delivery.close()
    return Followed(
        told=tuple(
            Told(
                tracker=one.name,
                delivered=one.delivered,
                undelivered=one.waiting + one.lost,
                problem=one.problem,
            )
            for one in deliveries
        ),
        bad_lines=told.steps.bad,
        ignored=told.ignored,
        problem=told.problem,
    )


@dataclass(slots=True)
class _Telling:
    """The next items of a run, a bounded number at a time."""

    ledger: LedgerFollower
    steps: StepsFollower
    story: Story
    ignored: int = 0
    problem: SecureTrainError | None = None
    is_closed: bool = False
    """Whether the newest line closes the ledger; a later launch may go on with it."""
    _lines: deque[Recorded | Ignored] = field(default_factory=deque)
    _pending: deque[StepLine] = field(default_factory=deque)
    _time: float = 0.0
    """The newest that was told of the ledger."""

    def next(self) -> list[Item]:
        """More of the story; nothing when there is no more by now."""
        try:
            if not self._lines:
                self._lines.extend(self.ledger.read())
        except IntegrityError as error:
            return self._broken(error)
        items: list[Item] = []
        while self._lines:
            line = self._lines[0]
            if isinstance(line, Recorded) and isinstance(line.event, events.RunEnded):
                # What a launch has done is told before its end.
                steps = self._steps(until=line.time.timestamp())
                if steps:
                    return items + steps
            self._lines.popleft()
            self._time = line.entry.body.time.timestamp()
            if isinstance(line, Recorded):
                items += self.story.event(line)
                self.is_closed = isinstance(line.event, events.Closed)
            else:
                self.ignored += 1
        return items + self._steps(until=math.inf)

    def _steps(self, until: float) -> list[Item]:
        """The next steps that were done by then."""
        if not self.story.has_begun:
            return []
        if not self._pending:
            self._pending.extend(self.steps.read())
        found: list[Item] = []
        while self._pending and (self._pending[0].ended or 0.0) <= until + _SLACK:
            found += self.story.step(self._pending.popleft())
        return found

    def _broken(self, error: IntegrityError) -> list[Item]:
        self.problem = error
        if not self.story.has_begun:  # no launch was told that this could belong to
            return []
        said: dict[str, Value] = {
            "event": "ledger-refused",
            "boundary": Boundary.IDENTITY.value,
            "decision": Decision.REFUSE.value,
            "code": error.code,
        }
        key, at = "ledger-refused", self._time
        refusal = Span(key=key, name="refusal", begin=at, end=at, said=said, code=error.code)
        return [refusal, self.story.ended(at, "", said)]
