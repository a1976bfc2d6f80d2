# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What a run shows about each of the twelve trust boundaries.

Rules, in order; the first that holds gives the state:

1. *refused*: the ledger has a refusal at the boundary, or a signature was refused just now;
2. *unknown*: the ledger does not verify, so nothing that it says counts; or the only evidence is a
   check that could not be decided, or something that was noticed and not judged;
3. *partial*: something was checked and let through, but with a label (UNATTESTED, DEGRADED) or with
   an audit finding that is open;
4. *checked*: something was checked and let through, and nothing is open;
5. *not crossed*: nothing is recorded.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from securetrain.artifacts.statement.statements import GradientVerdict
from securetrain.core.vocabulary import (
    TEST_ONLY,
    UNATTESTED,
    Boundary,
    Decision,
    NodeTier,
    State,
    tier_label,
)
from securetrain.ledger import Entry
from securetrain.report.model import (
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
_LABELS: Final = ("UNATTESTED", "TEST-ONLY", "DEGRADED", "UNWATCHED")
_UNATTESTED_TIERS: Final = (NodeTier.SELF_ASSERTED, NodeTier.TEST_ONLY)
_MAX_REASONS: Final = 8


def judge(
    *,
    ledger: Proof,
    entries: Sequence[Entry],
    audit: AuditView | None,
    trust: Proof,
    dataset: ArtifactView | None,
    checkpoints: Sequence[ArtifactView],
) -> tuple[BoundaryView, ...]:
    """Judge every boundary in the order of the vocabulary."""
    verified = [c for c in checkpoints if c.proof.state is ProofState.VERIFIED]
    artifacts: dict[Boundary, list[Proof]] = {
        # what the guard said of the run stands in the signed statement of its last checkpoint
        Boundary.GRADIENTS: [c.proof for c in verified[-1:] if c.verdict == CLEAN and c.num_judged],
        Boundary.IDENTITY: [trust],
        Boundary.DATASET: [dataset.proof] if dataset else [],
        Boundary.CHECKPOINT: [checkpoint.proof for checkpoint in checkpoints],
    }
    return tuple(
        _judge(
            boundary,
            ledger,
            [entry for entry in entries if entry.body.event.boundary is boundary],
            [f for f in audit.findings if f.boundary is boundary] if audit else [],
            artifacts.get(boundary, []),
            guarded=verified[-1] if verified and boundary is Boundary.GRADIENTS else None,
        )
        for boundary in Boundary
    )


def _judge(
    boundary: Boundary,
    ledger: Proof,
    entries: Sequence[Entry],
    findings: Sequence[FindingView],
    proofs: Sequence[Proof],
    *,
    guarded: ArtifactView | None = None,
) -> BoundaryView:
    decisions = [entry.body.event.decision for entry in entries]
    allowed, refused = decisions.count(Decision.ALLOW), decisions.count(Decision.REFUSE)
    bad = [proof for proof in proofs if proof.state is ProofState.REFUSED]
    good = [proof for proof in proofs if proof.state is ProofState.VERIFIED]
    labels = labels_of(entries)
    if guarded is not None and guarded.verdict == UNWATCHED:
        labels = (*labels, "UNWATCHED")
    failed = [finding for finding in findings if finding.state is State.FAIL]
    undecided = [finding for finding in findings if finding.state is State.UNKNOWN]
    waived = [finding for finding in findings if finding.state is State.WAIVED]
    good_checks = {finding.check for finding in findings if finding.state is State.PASS}
    passed = len(good_checks - {finding.check for finding in (*failed, *undecided, *waived)})

    reasons = [f"{p.code}: {p.what}" for p in bad]
    reasons += [_refusal(entry) for entry in entries if _is_refusal(entry)]
    reasons += _allowed(entries)
    if guarded is not None:
        reasons.append(
            f"{guarded.verdict}: {guarded.num_judged} steps judged, {guarded.num_refused} refused,"
            f" says the signed statement of {guarded.name}"
        )
    reasons += [f"{count(len(good), 'signature')} verified for this report"] if good else []
    reasons += [f"audit: {count(passed, 'check')} passed"] if passed else []
    reasons += [f"audit: {f.check} {f.state} ({f.severity}): {f.title}" for f in failed]
    reasons += [f"audit: {f.check} {f.state}: {f.title}" for f in (*undecided, *waived)]
    reasons += list(labels)

    state, label = BoundaryState.NOT_CROSSED, "not recorded"
    if bad or refused:
        state = BoundaryState.REFUSED
        label = f"{refused} refused" if refused else "signature refused"
    elif ledger.state is ProofState.REFUSED:
        state, label = BoundaryState.UNKNOWN, "ledger not valid"
        reasons.append(f"the ledger does not verify: {ledger.code}")
    elif allowed or good or passed:
        open_points = [*labels, *(["findings"] if failed or undecided or waived else [])]
        state = BoundaryState.PARTIAL if open_points else BoundaryState.CHECKED
        label = _open_label(labels, failed, undecided) if open_points else "checked"
    elif failed or undecided or entries:
        state = BoundaryState.UNKNOWN
        label = _open_label(labels, failed, undecided)
    return BoundaryView(
        boundary=boundary,
        state=state,
        label=label,
        reasons=_shorten(reasons),
        labels=labels,
        num_allowed=allowed,
        num_refused=refused,
    )


def labels_of(entries: Iterable[Entry]) -> tuple[str, ...]:
    """The honest labels that enforcers wrote into the ledger, each once."""
    found: dict[str, None] = {}
    for entry in entries:
        for value in (entry.body.event.event, *entry.body.event.details.values()):
            text = str(value)
            if text in _UNATTESTED_TIERS:
                found[tier_label(NodeTier(text))] = None
            elif named := [label for label in _LABELS if label in text.upper()]:
                found[text if len(text) < 60 else named[0]] = None
    return tuple(found)


def count(number: int, noun: str) -> str:
    """A number and its noun, in the plural where it is one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _open_label(
    labels: Sequence[str], failed: Sequence[FindingView], undecided: Sequence[FindingView]
) -> str:
    if labels:
        short = labels[0].split(" (", maxsplit=1)[0]
        return short if labels[0] in {UNATTESTED, TEST_ONLY} else short.lower()
    if failed:
        return f"{count(len(failed), 'finding')} open"
    if undecided:
        return f"{len(undecided)} not decided"
    return "noted, not judged"


def _allowed(entries: Sequence[Entry]) -> list[str]:
    """How often each kind of thing was let through, in the order of the ledger."""
    seen: dict[tuple[str, Decision], int] = {}
    for entry in entries:
        event = entry.body.event
        if event.decision is not Decision.REFUSE:
            key = (event.event, event.decision)
            seen[key] = seen.get(key, 0) + 1
    verbs = {Decision.ALLOW: "allowed", Decision.OBSERVE: "noted"}
    return [
        f"{verbs[decision]}: {event}" + (f" x {times}" if times > 1 else "")
        for (event, decision), times in seen.items()
    ]


def _is_refusal(entry: Entry) -> bool:
    return entry.body.event.decision is Decision.REFUSE


def _refusal(entry: Entry) -> str:
    event = entry.body.event
    what = event.details.get("what", "")
    return f"refused: {event.event} {event.code} {what}".strip()


def _shorten(reasons: list[str]) -> tuple[str, ...]:
    reasons = list(dict.fromkeys(reasons))
    if len(reasons) <= _MAX_REASONS:
        return tuple(reasons)
    return (*reasons[: _MAX_REASONS - 1], f"and {len(reasons) - _MAX_REASONS + 1} more")
