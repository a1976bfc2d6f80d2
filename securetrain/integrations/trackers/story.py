# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Events of the ledger and records of steps, told as spans and figures.

Rules, in order:

1. of an event, its name, boundary, decision, code and labels are told, and the fields that `TOLD`
   lists for it. Everything else (names of nodes, paths, messages, the command line) is told only
   where the user asks for it (``names``); nodes are ``node-1``, ``node-2`` without it;
2. labels are the typed events' own, never read out of text;
3. a time is the ledger's, or rank 0's of a step. What began when nobody wrote down is a moment at
   its end, never a guess;
4. a key is the same whenever a run is told, so that telling it twice makes nothing twice.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from securetrain.integrations.trackers.items import Began, Ended, Item, Measured, Span, Value
from securetrain.integrations.trackers.reading import StepLine
from securetrain.ledger import LedgerEvent, Recorded, events

TEXT_LIMIT: Final = 500
STEPS_LABEL: Final = "steps: rank 0's own word, not signed"

TOLD: Final[dict[type[LedgerEvent], tuple[str, ...]]] = {
    events.RunStarted: ("policy", "policy_id"),
    events.RunEnded: ("outcome", "exit_code", "code", "stragglers"),
    events.PreflightPassed: ("passed", "fail", "unknown", "waived"),
    events.PreflightWarned: ("passed", "fail", "unknown", "waived"),
    events.ProfileAchieved: ("network",),
    events.SandboxAchieved: (),
    events.SandboxDegraded: (),
    events.NodeAdmitted: ("tier", "key_exchange"),
    events.NodeResumed: ("epoch",),
    events.NodeLeft: (),
    events.NodeLost: (),
    events.RoundFormed: ("round", "nodes"),
    events.RunResumed: ("step", "digest"),
    events.RestartPoint: ("step", "digest"),
    events.WeightsLoaded: ("digest",),
    events.DatasetOpened: ("digest", "bytes", "tokens", "format"),
    events.MeshChecked: ("steps", "loss", "norm"),
    events.CheckpointSigned: ("step", "digest", "verdict"),
    events.CheckpointRecovered: ("step", "digest", "verdict"),
    events.CheckpointLogged: ("step", "digest", "index", "witnesses"),
    events.SavedFilesSigned: ("way", "files", "number", "step"),
    events.CheckpointsNotSigned: ("ways", "saves", "fields"),
    events.GradientsWatched: (),
    events.GradientsNotWatched: (),
    events.GradientsJudged: ("judged", "refused", "settled", "named", "excluded"),
    events.StepSettled: ("codes",),
    events.RankExcluded: ("rank", "codes"),
    events.RankReadmitted: ("rank",),
    events.RankSuspected: ("rank", "cause"),
    events.ReductionDisputed: ("digest", "pairs", "named"),
    events.RolledBack: ("to", "ranks"),
    events.RollbackImpossible: ("since", "ranks"),
    events.TrainingFinished: ("tokens", "refused", "observed", "loss"),
}
"""The events that are told, with the fields that name nobody and no place; and every refusal."""

_NAMES: Final = {
    events.RunStarted: "run",
    events.NodeAdmitted: "admission",
    events.CheckpointSigned: "save",
    events.CheckpointRecovered: "save",
    events.SavedFilesSigned: "save",
}
_OF_NODES: Final = (events.NodeAdmitted, events.NodeResumed, events.NodeLeft, events.NodeLost)


@dataclass(slots=True)
class Story:
    """The teller of one run."""

    names: bool = False
    """Whether subjects and messages are told."""
    _nodes: dict[str, str] = field(default_factory=dict)
    _labels: dict[str, None] = field(default_factory=dict)
    _number: int = 0
    _waiting_since: float | None = None
    """When the coordinator began to listen, until the first round is there."""
    _epoch: tuple[str, float, dict[str, Value]] | None = None

    @property
    def has_begun(self) -> bool:
        """Tell whether a launch was told: what stands before the first one has no place."""
        return self._number > 0

    def event(self, line: Recorded) -> Iterator[Item]:
        """Tell an event."""
        said, time = line.event, line.time.timestamp()
        key = f"ledger-{line.entry.body.seq}"
        self._labels |= dict.fromkeys(said.labels)
        told = self._told(said)
        if not self.has_begun and not isinstance(said, events.RunStarted):
            return
        match said:
            case events.RunStarted():
                self._number += 1
                yield Began(run=said.subject, number=self._number, time=time, said=told)
            case events.RunEnded():
                yield from self._end_epoch(time)
                yield self.ended(time, said.outcome, told)
            case events.CoordinatorStarted():
                self._waiting_since = time
            case events.NodeAdmitted():
                begin = time if self._waiting_since is None else self._waiting_since
                yield Span(key=key, name="admission", begin=begin, end=time, said=told)
            case events.EpochStarted():
                yield from self._end_epoch(time)
                self._epoch = (key, time, {"epoch": said.epoch})
            case events.Refused():
                yield Span(key=key, name="refusal", begin=time, end=time, said=told, code=said.code)
            case _ if type(said) in TOLD:
                if isinstance(said, events.RoundFormed):
                    self._waiting_since = None
                name = _NAMES.get(type(said), said.NAME)
                step = getattr(said, "step", None)
                yield Span(key=key, name=name, begin=time, end=time, said=told, step=step)

    def step(self, line: StepLine) -> Iterator[Item]:
        """Tell a step."""
        values = {
            name: float(value)
            for name, value in msgspec.structs.asdict(line).items()
            if name not in {"step", "verdict", "ended"} and value is not None
        }
        self._labels[STEPS_LABEL] = None
        verdict = line.verdict[:TEXT_LIMIT]
        yield Measured(step=line.step, time=line.ended, values=values, verdict=verdict)
        if line.ended is not None:
            yield Span(
                key=f"step-{line.step}-{line.ended}",
                name="step",
                begin=line.ended - line.seconds,
                end=line.ended,
                said={**values, "verdict": verdict, "signed": False},
                step=line.step,
            )

    def ended(self, time: float, outcome: str, said: dict[str, Value]) -> Ended:
        """Tell the end of a launch."""
        return Ended(time=time, outcome=outcome, labels=tuple(self._labels), said=said)

    def _end_epoch(self, time: float) -> Iterator[Item]:
        if self._epoch is not None:
            key, begin, said = self._epoch
            yield Span(key=key, name="epoch", begin=begin, end=time, said=said)
            self._epoch = None

    def _told(self, said: LedgerEvent) -> dict[str, Value]:
        found: dict[str, Value] = {
            "event": said.NAME,
            "boundary": said.boundary.value,
            "decision": said.DECISION.value,
        }
        fields: dict[str, Any] = msgspec.to_builtins(said)
        if isinstance(said, events.Refused):
            found["code"] = said.code
        if isinstance(said, _OF_NODES):
            found["node"] = self._nodes.setdefault(said.subject, f"node-{len(self._nodes) + 1}")
        wanted = fields if self.names else TOLD.get(type(said), ())
        for name in wanted:
            value = fields.get(name)
            if isinstance(value, str):
                value = value[:TEXT_LIMIT]
            if value is not None and value != "":
                found[name] = value
        if said.labels:
            found["labels"] = ", ".join(said.labels)
        return found
