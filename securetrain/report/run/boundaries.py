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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from securetrain.artifacts.statement import GradientVerdict
from securetrain.core.vocabulary import TEST_ONLY, UNATTESTED, Boundary, Decision, State
from securetrain.ledger import Ignored, LedgerEvent, events
from securetrain.report.run.model import (
    ArtifactView,
    AuditView,
    BoundaryState,
    BoundaryView,
    FindingView,
    Proof,
    ProofState,
)

CLEAN: Final = GradientVerdict.CLEAN.value
UNWATCHED: Final = GradientVerdict.UNWATCHED.value
_UNWATCHED_LABEL: Final = "UNWATCHED"
_OF_THE_RUN: Final = {Boundary.DATASET, Boundary.GRADIENTS, Boundary.CHECKPOINT}
"""Boundaries of which the audit sees only settings: what crosses them is the run's own."""
_MAX_REASONS: Final = 8


def judge(
    *,
    ledger: Proof,
    events: Sequence[LedgerEvent],
    audit: AuditView | None,
    trust: Proof,
    dataset: ArtifactView | None,
    checkpoints: Sequence[ArtifactView],
    ignored: Sequence[Ignored] = (),
) -> tuple[BoundaryView, ...]:
    """Judge every boundary in the order of the vocabulary.

    Args:
        ledger: Whether the ledger verifies.
        events: Its events that count.
        audit: The preflight's findings.
        trust: Whether the trust root is good.
        dataset: The run's dataset.
        checkpoints: The run's checkpoints, oldest first.
        ignored: Lines of the ledger that count for nothing.
    """
    verified = [c for c in checkpoints if c.proof.state is ProofState.VERIFIED]
    artifacts: dict[Boundary, list[Proof]] = {
        # what the guard said of the run stands in the signed statement of its last checkpoint
        Boundary.GRADIENTS: [c.proof for c in verified[-1:] if c.verdict == CLEAN and c.num_judged],
        Boundary.IDENTITY: [trust],
        Boundary.DATASET: [dataset.proof] if dataset else [],
        Boundary.CHECKPOINT: [checkpoint.proof for checkpoint in checkpoints],
    }
    return tuple(
        _view(
            _Evidence(
                boundary=boundary,
                ledger=ledger,
                events=[event for event in events if event.boundary is boundary],
                ignored=[line for line in ignored if line.boundary is boundary],
                findings=_Findings.of(audit, boundary),
                proofs=artifacts.get(boundary, []),
                guarded=verified[-1] if verified and boundary is Boundary.GRADIENTS else None,
            )
        )
        for boundary in Boundary
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Findings:
    """The findings of the audit at one boundary."""

    failed: Sequence[FindingView] = ()
    undecided: Sequence[FindingView] = ()
    waived: Sequence[FindingView] = ()
    num_passed: int = 0
    """Checks that passed for every subject."""

    @classmethod
    def of(cls, audit: AuditView | None, boundary: Boundary) -> "_Findings":
        found = [f for f in audit.findings if f.boundary is boundary] if audit else []
        failed = [f for f in found if f.state is State.FAIL]
        undecided = [f for f in found if f.state is State.UNKNOWN]
        waived = [f for f in found if f.state is State.WAIVED]
        passed = {f.check for f in found if f.state is State.PASS}
        not_passed = {f.check for f in (*failed, *undecided, *waived)}
        return cls(
            failed=failed,
            undecided=undecided,
            waived=waived,
            num_passed=len(passed - not_passed),
        )

    @property
    def are_open(self) -> bool:
        return bool(self.failed or self.undecided or self.waived)

    @property
    def reasons(self) -> list[str]:
        passed = self.num_passed
        return [
            *([f"audit: {count(passed, 'check')} passed"] if passed else []),
            *(f"audit: {f.check} {f.state} ({f.severity}): {f.title}" for f in self.failed),
            *(f"audit: {f.check} {f.state}: {f.title}" for f in (*self.undecided, *self.waived)),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evidence:
    """Everything about one boundary."""

    boundary: Boundary
    ledger: Proof
    events: Sequence[LedgerEvent]
    ignored: Sequence[Ignored]
    findings: _Findings
    proofs: Sequence[Proof]
    guarded: ArtifactView | None
    """The last verified checkpoint, at the boundary of the gradients."""

    @property
    def bad(self) -> list[Proof]:
        return [proof for proof in self.proofs if proof.state is ProofState.REFUSED]

    @property
    def num_good(self) -> int:
        return sum(proof.state is ProofState.VERIFIED for proof in self.proofs)

    def num(self, decision: Decision) -> int:
        return sum(event.DECISION is decision for event in self.events)

    @property
    def labels(self) -> tuple[str, ...]:
        unwatched = self.guarded is not None and self.guarded.verdict == UNWATCHED
        return (*labels_of(self.events), *([_UNWATCHED_LABEL] if unwatched else []))

    @property
    def is_settings_alone(self) -> bool:
        """True when the audit passed, and nothing of the run itself was checked."""
        return self.boundary in _OF_THE_RUN and not self.num(Decision.ALLOW) and not self.num_good

    @property
    def was_let_through(self) -> bool:
        return bool(self.num(Decision.ALLOW) or self.num_good or self.findings.num_passed)


def _view(evidence: _Evidence) -> BoundaryView:
    state, label = _state(evidence)
    return BoundaryView(
        boundary=evidence.boundary,
        state=state,
        label=label,
        reasons=_shorten(_reasons(evidence, state)),
        labels=evidence.labels,
        num_allowed=evidence.num(Decision.ALLOW),
        num_refused=evidence.num(Decision.REFUSE),
    )


def _state(evidence: _Evidence) -> tuple[BoundaryState, str]:
    """The rules, in order."""
    findings, refused = evidence.findings, evidence.num(Decision.REFUSE)
    if evidence.bad or refused:
        label = f"{refused} refused" if refused else "signature refused"
        return BoundaryState.REFUSED, label
    if evidence.ledger.state is ProofState.REFUSED:
        return BoundaryState.UNKNOWN, "ledger not valid"
    if evidence.was_let_through:
        if evidence.labels or findings.are_open or evidence.ignored:
            return BoundaryState.PARTIAL, _open_label(evidence)
        if evidence.is_settings_alone:
            return BoundaryState.PARTIAL, "settings only"
        return BoundaryState.CHECKED, "checked"
    if findings.failed or findings.undecided or evidence.events or evidence.ignored:
        return BoundaryState.UNKNOWN, _open_label(evidence)
    return BoundaryState.NOT_CROSSED, "not recorded"


def _reasons(evidence: _Evidence, state: BoundaryState) -> list[str]:
    guarded, good, proof = evidence.guarded, evidence.num_good, evidence.ledger
    reasons = [f"{p.code}: {p.what}" for p in evidence.bad]
    reasons += [_refusal(event) for event in evidence.events if isinstance(event, events.Refused)]
    reasons += [str(line) for line in evidence.ignored]
    reasons += _allowed(evidence.events)
    if guarded is not None:
        reasons.append(
            f"{guarded.verdict}: {guarded.num_judged} steps judged, {guarded.num_refused} refused,"
            f" says the signed statement of {guarded.name}"
        )
    reasons += [f"{count(good, 'signature')} verified for this report"] if good else []
    reasons += [*evidence.findings.reasons, *evidence.labels]
    if proof.state is ProofState.REFUSED and state is not BoundaryState.REFUSED:
        reasons.append(f"the ledger does not verify: {proof.code}")
    return reasons


def labels_of(said: Iterable[LedgerEvent]) -> tuple[str, ...]:
    """The honest labels of events, each once."""
    return tuple(dict.fromkeys(label for event in said for label in event.labels))


def count(number: int, noun: str) -> str:
    """A number and its noun, in the plural where it is one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _open_label(evidence: _Evidence) -> str:
    labels, findings = evidence.labels, evidence.findings
    if labels:
        short = labels[0].split(" (", maxsplit=1)[0]
        return short if labels[0] in {UNATTESTED, TEST_ONLY} else short.lower()
    if findings.failed:
        return f"{count(len(findings.failed), 'finding')} open"
    if findings.undecided:
        return f"{len(findings.undecided)} not decided"
    if evidence.ignored:
        return f"{len(evidence.ignored)} ignored"
    return "noted, not judged"


def _allowed(said: Iterable[LedgerEvent]) -> list[str]:
    """Count each kind of thing that was let through, in the order of the ledger."""
    verbs = {Decision.ALLOW: "allowed", Decision.OBSERVE: "noted"}
    kinds = Counter(type(event) for event in said if not isinstance(event, events.Refused))
    return [
        f"{verbs[kind.DECISION]}: {kind.NAME}" + (f" x {times}" if times > 1 else "")
        for kind, times in kinds.items()
    ]


def _refusal(event: events.Refused) -> str:
    return f"refused: {event.NAME} {event.code} {event.what}".strip()


def _shorten(reasons: list[str]) -> tuple[str, ...]:
    reasons = list(dict.fromkeys(reasons))
    if len(reasons) <= _MAX_REASONS:
        return tuple(reasons)
    return (*reasons[: _MAX_REASONS - 1], f"and {len(reasons) - _MAX_REASONS + 1} more")
