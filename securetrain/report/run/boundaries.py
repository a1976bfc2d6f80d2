# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The state of each of the twelve trust boundaries, as far as a run shows it.

Rules, in order; the first that holds gives the state:

1. *refused*: the ledger has a refusal at the boundary, or a signature was refused just now;
2. *unknown*: the ledger does not verify, so nothing that it says counts; or the only evidence is a
   check that could not be decided, or something that was noticed and not judged;
3. *partial*: something was checked and let through, but with a label (UNATTESTED, DEGRADED), an
   audit finding that is open, or a line of the ledger that is ignored; or settings of the machine
   passed, and nothing of the run itself was checked (dataset, gradients, checkpoint);
4. *checked*: something was checked and let through, and nothing is open;
5. *not crossed*: nothing is recorded.

Labels come from the typed fields of the events (`LedgerEvent.labels`) and from the verdict of the
last signed checkpoint; no text is searched for them.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from securetrain.artifacts.statement.statements import GradientVerdict
from securetrain.core.vocabulary import TEST_ONLY, UNATTESTED, Boundary, Decision, State
from securetrain.ledger import Ignored, LedgerEvent, Reading, events
from securetrain.report.document import plural
from securetrain.report.run.model import (
    ArtifactView,
    BoundaryState,
    BoundaryView,
    FindingView,
    Proof,
    ProofState,
    RunRecord,
)

CLEAN: Final = GradientVerdict.CLEAN.value
UNWATCHED: Final = GradientVerdict.UNWATCHED.value
_UNWATCHED_LABEL: Final = "UNWATCHED"
_OF_THE_RUN: Final = {Boundary.DATASET, Boundary.GRADIENTS, Boundary.CHECKPOINT}
"""Boundaries of which the audit sees only settings: what crosses them is the run's own."""
_MAX_REASONS: Final = 8


def judge(record: RunRecord, said: Reading | None) -> tuple[BoundaryView, ...]:
    """Judge every boundary of a run in the order of the vocabulary.

    Args:
        record: Everything else that its report says.
        said: The verified ledger, None where there is none.
    """
    checkpoints, dataset, audit = record.checkpoints, record.dataset, record.audit
    counted, ignored = (said.events, said.ignored) if said is not None else ((), ())
    verified = [c for c in checkpoints if c.proof.state is ProofState.VERIFIED]
    artifacts: dict[Boundary, list[Proof]] = {
        # what the guard said of the run stands in the signed statement of its last checkpoint
        Boundary.GRADIENTS: [c.proof for c in verified[-1:] if c.verdict == CLEAN and c.num_judged],
        Boundary.IDENTITY: [record.trust.proof],
        Boundary.DATASET: [dataset.proof] if dataset else [],
        Boundary.CHECKPOINT: [checkpoint.proof for checkpoint in checkpoints],
    }
    return tuple(
        _Evidence(
            boundary=boundary,
            ledger=record.ledger.proof,
            events=[event for event in counted if event.boundary is boundary],
            ignored=[line for line in ignored if line.boundary is boundary],
            findings=[f for f in audit.findings if f.boundary is boundary] if audit else [],
            proofs=artifacts.get(boundary, []),
            guarded=verified[-1] if verified and boundary is Boundary.GRADIENTS else None,
        ).judged()
        for boundary in Boundary
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evidence:
    """Everything about one boundary."""

    boundary: Boundary
    ledger: Proof
    events: Sequence[LedgerEvent]
    ignored: Sequence[Ignored]
    findings: Sequence[FindingView]
    """Of the audit."""
    proofs: Sequence[Proof]
    guarded: ArtifactView | None
    """The last verified checkpoint, at the boundary of the gradients."""

    def judged(self) -> BoundaryView:
        """The state, its label and its reasons, of which the last are counted."""
        state, label = self._state()
        reasons = list(dict.fromkeys(self._reasons(state)))
        more = len(reasons) - _MAX_REASONS + 1
        return BoundaryView(
            boundary=self.boundary,
            state=state,
            label=label,
            reasons=tuple(reasons if more < 2 else [*reasons[:-more], f"and {more} more"]),
            labels=self._labels(),
            num_allowed=self._num(Decision.ALLOW),
            num_refused=self._num(Decision.REFUSE),
        )

    def _state(self) -> tuple[BoundaryState, str]:
        """The rules, in order."""
        refused, of_the_run = self._num(Decision.REFUSE), self._num(Decision.ALLOW)
        of_the_run += len(self._proven(ProofState.VERIFIED))
        failed, unknown, waived = map(self._found, (State.FAIL, State.UNKNOWN, State.WAIVED))
        if refused or self._proven(ProofState.REFUSED):
            label = f"{refused} refused" if refused else "signature refused"
            return BoundaryState.REFUSED, label
        if self.ledger.state is ProofState.REFUSED:
            return BoundaryState.UNKNOWN, "ledger not valid"
        if of_the_run or self._num_passed():
            if self._labels() or failed or unknown or waived or self.ignored:
                return BoundaryState.PARTIAL, self._open_label()
            if self.boundary in _OF_THE_RUN and not of_the_run:
                return BoundaryState.PARTIAL, "settings only"
            return BoundaryState.CHECKED, "checked"
        if failed or unknown or self.events or self.ignored:
            return BoundaryState.UNKNOWN, self._open_label()
        return BoundaryState.NOT_CROSSED, "not recorded"

    def _open_label(self) -> str:
        failed, unknown = self._found(State.FAIL), self._found(State.UNKNOWN)
        for label in self._labels()[:1]:
            short = label.split(" (", maxsplit=1)[0]
            return short if label in {UNATTESTED, TEST_ONLY} else short.lower()
        if failed:
            return f"{plural(len(failed), 'finding')} open"
        if unknown:
            return f"{len(unknown)} not decided"
        return f"{len(self.ignored)} ignored" if self.ignored else "noted, not judged"

    def _reasons(self, state: BoundaryState) -> Iterator[str]:
        yield from (proof.why for proof in self._proven(ProofState.REFUSED))
        refused = [event for event in self.events if isinstance(event, events.Refused)]
        yield from (f"refused: {one.NAME} {one.code} {one.what}".strip() for one in refused)
        yield from map(str, self.ignored)
        # each kind of thing that was let through, in the order of the ledger
        others = (type(event) for event in self.events if not isinstance(event, events.Refused))
        for kind, times in Counter(others).items():
            verb = "allowed" if kind.DECISION is Decision.ALLOW else "noted"
            yield f"{verb}: {kind.NAME}" + (f" x {times}" if times > 1 else "")
        if (last := self.guarded) is not None:
            yield (
                f"{last.verdict}: {last.num_judged} steps judged, {last.num_refused} refused, says"
                f" the signed statement of {last.name}"
            )
        if proven := len(self._proven(ProofState.VERIFIED)):
            yield f"{plural(proven, 'signature')} verified for this report"
        if passed := self._num_passed():
            yield f"audit: {plural(passed, 'check')} passed"
        for found in (State.FAIL, State.UNKNOWN, State.WAIVED):
            for finding in self._found(found):
                weight = f" ({finding.severity})" if found is State.FAIL else ""
                yield f"audit: {finding.check} {found}{weight}: {finding.title}"
        yield from self._labels()
        if self.ledger.state is ProofState.REFUSED and state is not BoundaryState.REFUSED:
            yield f"the ledger does not verify: {self.ledger.code}"

    def _labels(self) -> tuple[str, ...]:
        """The honest labels, each once."""
        found = [label for event in self.events for label in event.labels]
        if self.guarded is not None and self.guarded.verdict == UNWATCHED:
            found.append(_UNWATCHED_LABEL)
        return tuple(dict.fromkeys(found))

    def _num(self, decision: Decision) -> int:
        return sum(event.DECISION is decision for event in self.events)

    def _proven(self, state: ProofState) -> list[Proof]:
        return [proof for proof in self.proofs if proof.state is state]

    def _found(self, state: State) -> list[FindingView]:
        return [finding for finding in self.findings if finding.state is state]

    def _num_passed(self) -> int:
        """The number of checks that passed for every subject."""
        decided = {State.PASS, State.NOT_APPLICABLE}
        open_ = {finding.check for finding in self.findings if finding.state not in decided}
        return len({one.check for one in self._found(State.PASS)} - open_)
