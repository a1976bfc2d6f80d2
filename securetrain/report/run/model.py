# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The content of a report, as data: one model that terminal, JSON and HTML all render.

``None`` and an empty tuple mean *not recorded*. Nothing here is computed from hope: a `Proof` says
whether a signature was checked when the report was made, and with what result.
"""

from datetime import datetime
from enum import StrEnum

import msgspec

from securetrain.core.vocabulary import Boundary, Decision, Severity, State


class ProofState(StrEnum):
    """The outcome of checking a signature."""

    VERIFIED = "verified"
    REFUSED = "refused"
    OPEN = "signed, without its end"
    """What is there verifies, and more may have been there: a ledger that was not closed."""
    NOT_RECORDED = "not recorded"


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of checking one signed thing, at the time of the report."""

    state: ProofState = ProofState.NOT_RECORDED
    code: str = ""
    what: str = ""
    key_ids: tuple[str, ...] = ()

    @property
    def why(self) -> str:
        """The reason of a refusal; empty where there is none."""
        return f"{self.code}: {self.what}" if self.state is ProofState.REFUSED else ""

    def __str__(self) -> str:
        return f"{self.state} {self.why}".rstrip()


class BoundaryState(StrEnum):
    """The state of one trust boundary, as a run or an audit shows it."""

    CHECKED = "checked"
    PARTIAL = "partial"
    REFUSED = "refused"
    FAILED = "failed"
    """An audit found a high or critical failure; nothing was refused."""
    UNKNOWN = "unknown"
    NOT_CROSSED = "not crossed"


class BoundaryView(msgspec.Struct, frozen=True, kw_only=True):
    """One boundary: its state, the few words on the picture, and the reasons."""

    boundary: Boundary
    state: BoundaryState
    label: str
    reasons: tuple[str, ...]
    labels: tuple[str, ...] = ()
    """UNATTESTED, DEGRADED and the like, as the enforcers wrote them."""
    num_allowed: int = 0
    num_refused: int = 0


class PolicyView(msgspec.Struct, frozen=True, kw_only=True):
    """The policy of the run."""

    id: str
    version: str
    title: str
    digest: str


class TrustView(msgspec.Struct, frozen=True, kw_only=True):
    """The trust root that signatures were checked against."""

    proof: Proof
    digest: str = ""
    """SHA-256 of the file: compare it with what the people who run the job published."""
    expires: datetime | None = None
    roles: dict[str, tuple[str, ...]] = {}


class LedgerLine(msgspec.Struct, frozen=True, kw_only=True):
    """One verified entry of the ledger."""

    seq: int
    time: datetime
    writer: str
    boundary: Boundary
    decision: Decision
    event: str
    subject: str
    code: str
    details: str


class SaveView(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a script has saved and that was signed as it was written."""

    seq: int
    """Of the ledger's entry."""
    time: datetime
    rank: str
    number: int
    """Of the save, among those of this rank since its start."""
    way: str
    """The function that was called."""
    name: str
    """The file with the folder around it, or the directory."""
    files: int
    step: int | None
    """The script's own, where what it saved has one."""


class LedgerView(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger. Lines and counts are empty unless all of it verified."""

    proof: Proof
    closed: bool = False
    head: str = ""
    num_entries: int = 0
    counts: dict[Decision, int] = {}
    refusals: tuple[LedgerLine, ...] = ()
    last: tuple[LedgerLine, ...] = ()
    saves: tuple[SaveView, ...] = ()
    ignored: tuple[str, ...] = ()
    """Signed lines that count for nothing, and why."""
    names_writers: bool = True
    """Whether the trust root says which key may write what."""


class StepPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the metrics; what a line lacks is None."""

    step: int
    loss: float | None = None
    bits_per_byte: float | None = None
    val_bits_per_byte: float | None = None
    """On the held-out split; only where it was measured."""
    unigram_bits: float | None = None
    """What byte frequencies alone achieve there."""
    bigram_bits: float | None = None
    """What the byte before alone achieves there."""
    grad_norm: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None
    seconds: float | None = None
    data_seconds: float | None = None
    """How much of them rank 0 waited for rows."""
    memory_bytes: int | None = None


class RankPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The scores of one rank in one step."""

    step: int
    rank: int
    norm: float | None = None
    evidence: float | None = None
    """ln E against the rank."""
    cosine: float | None = None


class LayerPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A group of parameters that speaks against a rank in one step."""

    step: int = 0
    group: str
    rank: int
    evidence: float


class ExclusionView(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that counted zero for a time, by the word of the ledger."""

    rank: int
    since: int | None
    codes: str
    evidence: str
    effect: str
    until: int | None = None
    """The step in which it was let in again; None when it never was."""
    rolled_back_to: int | None = None
    """The step to which the run went back for it."""
    reported: str = ""
    """The code under which it was reported to the rendezvous."""

    @property
    def outcome(self) -> str:
        """The end of it, in words."""
        words = [] if self.rolled_back_to is None else [f"back to step {self.rolled_back_to}"]
        words += [f"reported as {self.reported}"] if self.reported else []
        over = "excluded to the end" if self.until is None else f"let in again at step {self.until}"
        return ", ".join([*words, over])


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the guard did, by the word of the ledger."""

    step: int | None
    what: str
    why: str = ""


class GuardView(msgspec.Struct, frozen=True, kw_only=True):
    """The observations of the guard."""

    points: tuple[RankPoint, ...]
    integrity: tuple[tuple[int, float], ...]
    """Step, and how far the reduction is from the sketches, in multiples of what rounding does."""
    num_steps: int
    refused_steps: tuple[int, ...]
    reasons: tuple[str, ...]
    limit: float | None = None
    """Of the evidence."""
    layers: tuple[LayerPoint, ...] = ()
    steps: tuple[int, ...] = ()
    peak: float = 0.0
    """The largest evidence against a rank that was never excluded, as a share of the limit."""
    num_rank_steps: int = 0
    budget: float | None = None
    """False alarms per million rank-steps that the policy allows."""
    exclusions: tuple[ExclusionView, ...] = ()
    timeline: tuple[TimelineEntry, ...] = ()


class ArtifactView(msgspec.Struct, frozen=True, kw_only=True):
    """One signed checkpoint or dataset."""

    name: str
    proof: Proof
    digest: str = ""
    step: int | None = None
    created: str = ""
    verdict: str = ""
    num_judged: int = 0
    num_refused: int = 0
    dataset: str = ""
    policy: str = ""
    parents: tuple[str, ...] = ()
    num_bytes: int | None = None
    metadata: dict[str, str] = {}


class VerificationView(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded result of ``securetrain verify``: content, not only signatures."""

    kind: str
    path: str
    ok: bool
    digest: str
    num_files: int
    num_bytes: int
    problems: tuple[str, ...] = ()
    seconds: float | None = None
    purpose: str = ""


class FindingView(msgspec.Struct, frozen=True, kw_only=True):
    """One finding of the preflight audit."""

    check: str
    title: str
    severity: Severity
    """What it weighs on that machine."""
    boundary: Boundary
    state: State
    subject: str = ""
    reason: str = ""
    evidence: str = ""
    remediation: str = ""


class AuditView(msgspec.Struct, frozen=True, kw_only=True):
    """The preflight audit."""

    findings: tuple[FindingView, ...]
    counts: dict[str, int]
    exit_code: int | None = None


class OutcomeView(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a drill."""

    succeeded: bool
    refused: bool
    code: str
    evidence: str
    seconds: float | None = None


class DrillView(msgspec.Struct, frozen=True, kw_only=True):
    """One drill: the attack against the plain stack and against ours."""

    id: str
    title: str
    boundary: Boundary
    expected_code: str
    plain: OutcomeView
    hardened: OutcomeView
    ok: bool


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """A name and a value for the header."""

    name: str
    value: str


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run directory shows, judged against its trust root."""

    run_dir: str
    run_id: str
    made: datetime
    outcome: str
    outcome_ok: bool | None
    facts: tuple[Fact, ...]
    policy: PolicyView | None
    trust: TrustView
    ledger: LedgerView
    boundaries: tuple[BoundaryView, ...] = ()
    metrics: tuple[StepPoint, ...]
    guard: GuardView | None
    dataset: ArtifactView | None
    checkpoints: tuple[ArtifactView, ...]
    verifications: tuple[VerificationView, ...]
    audit: AuditView | None
    drills: tuple[DrillView, ...]
    limits: tuple[str, ...] = ()
    """What this run did not prove."""
    problems: tuple[str, ...] = ()
    """Files of the run directory that are not what they should be."""

    @property
    def held_out(self) -> list[StepPoint]:
        """The steps after which the loss was measured on held-out data."""
        return [point for point in self.metrics if point.val_bits_per_byte is not None]


def json_text(value: object) -> str:
    """A struct as JSON, its fields in their own order."""
    return msgspec.json.format(msgspec.json.encode(value)).decode()
