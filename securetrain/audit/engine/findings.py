# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The results of an audit, as data: the same facts, policy and time give the same bytes."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from enum import StrEnum
from typing import Any, Final, Literal, TypeVar

import msgspec

from securetrain.audit.engine.schema import FixedBy, Refs
from securetrain.audit.facts import End, Entry, Location
from securetrain.core import ExitCode, canonical
from securetrain.core.vocabulary import Boundary, Severity, State
from securetrain.policy.schema import Policy

_PIECE: Final = 1000
"""Findings that are written together."""
RESULT_SCHEMA: Final = "securetrain.audit/v3"


K = TypeVar("K")

_UNJUDGED: Final = frozenset({State.NOT_APPLICABLE, State.UNKNOWN})

_WORST: Final = (State.FAIL, State.UNKNOWN, State.WAIVED, State.PASS, State.NOT_APPLICABLE)
STATE_RANK: Final = {state: rank for rank, state in enumerate(_WORST)}


class _Base(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Strict keys."""


class Finding(_Base, frozen=True, kw_only=True):
    """The result of one check for one subject."""

    check: str
    title: str
    severity: Severity
    """The check's own."""
    severity_in_context: Severity
    """What it weighs on this machine, which is what the policy's ``host.fail_on`` looks at."""
    context: str = ""
    """Why that is another weight."""
    boundary: Boundary
    state: State
    asset: str = ""
    """What it is about: ``node:gpu-17``; empty for a waiver."""
    subject: str
    """``node``, or the element of a collection: ``node.listeners[0.0.0.0:29500]``."""
    reason: str = ""
    """The fault, or the reason why it is not known."""
    location: Location | None = None
    """The file and line that it was read from, on that asset."""
    evidence: dict[str, Any] = {}
    """The fields that decided, as they were collected; under ``also``, by its fingerprint, what
    else has the same fault at the same place of a file."""
    remediation: str
    fixed_by: FixedBy
    refs: Refs
    waiver: str = ""
    fingerprint: str
    """SHA-256 of check, asset and subject: the same finding in another audit."""
    known: bool = False
    """An earlier audit, given as the baseline, had it."""


class PolicyRef(_Base, frozen=True, kw_only=True):
    """The policy that was audited against."""

    id: str
    version: str
    digest: str


class AssetRef(_Base, frozen=True, kw_only=True):
    """One asset of an audit, and the facts about it."""

    asset: str
    kind: str
    collected_at: datetime
    digest: str
    """SHA-256 of its facts."""
    title: str = ""
    """What people call it, where that is not its name: ``PyTorchJob/pretrain``."""


class BaselineUse(_Base, frozen=True, kw_only=True):
    """The earlier audit that this one was compared with."""

    at: datetime
    policy: PolicyRef
    new_only: bool
    """What it knew does not count for the exit code."""
    known: int
    """Findings that it had and that are still there."""
    gone: int
    """Findings that it had and that are not there any more."""


class LedgerRow(_Base, frozen=True, kw_only=True):
    """An entry of the ledger that an audit met, and what it weighs."""

    asset: str
    entry: Entry
    severity: Severity | None = None
    """Of the worst check that it could have answered; None where there is none."""
    scope: str = ""
    """Why the policy leaves it out (``audit.out_of_scope``)."""
    counts: bool = False
    """Whether the audit is incomplete for it."""

    @property
    def not_understood(self) -> bool:
        """Tell whether it is open, in scope or not."""
        return self.entry.end is End.NOT_UNDERSTOOD


class Coverage(_Base, frozen=True, kw_only=True):
    """The sums of the ledger for one kind of thing."""

    what: str
    seen: int
    of: int
    """All but what is not ours."""
    not_ours: int = 0

    def __str__(self) -> str:
        """Give it in a few words."""
        return f"{self.seen}/{self.of}" + (f", {self.not_ours} not ours" if self.not_ours else "")


class WaiverStatus(StrEnum):
    """The fate of a waiver."""

    APPLIED = "applied"
    UNUSED = "unused"
    MALFORMED = "malformed"
    EXPIRED = "expired"
    REJECTED = "rejected"


class WaiverUse(_Base, frozen=True, kw_only=True):
    """The fate of one waiver in one audit."""

    id: str
    check: str
    status: WaiverStatus
    reason: str = ""
    expires: date | None = None


class AuditResult(_Base, frozen=True, kw_only=True):
    """The outcome of one audit."""

    schema: Literal["securetrain.audit/v3"] = RESULT_SCHEMA
    at: datetime
    assets: tuple[AssetRef, ...]
    policy: PolicyRef
    findings: tuple[Finding, ...]
    counts: dict[str, int]
    """Checks by state; a check with several findings counts once, by its worst."""
    skipped: tuple[str, ...] = ()
    """Checks that the policy does not ask for."""
    waivers: tuple[WaiverUse, ...] = ()
    baseline: BaselineUse | None = None
    coverage: tuple[Coverage, ...] = ()
    ledger: tuple[LedgerRow, ...] = ()
    """What became of everything that was given, what was not understood first."""
    problems: tuple[str, ...] = ()
    """Why the facts themselves cannot be relied on."""
    notes: tuple[str, ...] = ()
    """How far they can be, where nothing is wrong with them."""
    exit_code: int

    def to_json(self) -> bytes:
        """Canonical JSON."""
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        """Yield the pieces of its canonical JSON: of many findings, some at a time."""
        none = b'"findings":['
        head, _, tail = canonical.encode(msgspec.structs.replace(self, findings=())).partition(none)
        yield head + none
        for first in range(0, len(self.findings), _PIECE):
            some = canonical.encode_each(self.findings[first : first + _PIECE])
            yield (b"," if first else b"") + b",".join(some)
        yield tail

    @property
    def about(self) -> str:
        """The name of the one asset, or how many there are."""
        if len(self.assets) == 1:
            return self.assets[0].asset.partition(":")[2]
        return f"{len(self.assets)} assets"

    @property
    def worst(self) -> dict[str, State]:
        """Check id to the state that counts for it, on all assets together."""
        return worst_states(self.findings)

    def of(self, *states: State) -> tuple[Finding, ...]:
        """The findings in these states."""
        return tuple(finding for finding in self.findings if finding.state in states)


def fingerprint(check: str, asset: str, subject: str) -> str:
    """Digest what stays the same between audits: never a line number, never a name alone."""
    # Of three strings this is canonical JSON, and ten times as fast.
    return hashlib.sha256(_encode([check, asset, subject]).encode()).hexdigest()


_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def worst_states(findings: Iterable[Finding]) -> dict[str, State]:
    """Check id to the state that counts for it."""
    return worst(findings, lambda one: one.check)


def worst(findings: Iterable[Finding], key: Callable[[Finding], K]) -> dict[K, State]:
    """The state that counts for all findings of a key."""
    states: dict[K, State] = {}
    for finding in findings:
        before = states.setdefault(key(finding), finding.state)
        states[key(finding)] = min(before, finding.state, key=STATE_RANK.__getitem__)
    return states


def exit_code_of(
    findings: Sequence[Finding],
    ledger: Sequence[LedgerRow],
    policy: Policy,
    problems: Sequence[str],
    excused: Sequence[Finding] = (),
) -> ExitCode:
    """The first that holds of these.

    4 the facts cannot be relied on; 1 a failure whose severity in context is at or above
    ``host.fail_on``; 3 a check unknown whose severity is, or a file that was not understood and
    counts (`coverage.py`), or one asset with more checks unknown than ``host.max_unknown``, or
    nothing that was judged; 0 otherwise. What is excused is unknown, and weighs nothing by itself.
    """
    if problems:
        return ExitCode.INTEGRITY
    heavy = [one for one in findings if one.severity_in_context >= policy.host.fail_on]
    if any(one.state is State.FAIL for one in heavy):
        return ExitCode.FAILURE
    by_asset: dict[str, list[Finding]] = {}
    for finding in findings:
        by_asset.setdefault(finding.asset, []).append(finding)
    states = (list(worst_states(mine).values()) for mine in by_asset.values())
    unknown = max((mine.count(State.UNKNOWN) for mine in states), default=0)
    incomplete = (
        unknown > policy.host.max_unknown
        or all(finding.state in _UNJUDGED for finding in findings)
        or any(one.state is State.UNKNOWN and one not in excused for one in heavy)
        or any(row.counts for row in ledger)
    )
    return ExitCode.INCOMPLETE if incomplete else ExitCode.OK


# --- about the audit itself ----------------------------------------------------------------------

_RESTORE: Final = (
    "Restore what was signed, or look at what changed and sign it again: securetrain audit pins"
    " --pins FILE --pins-key KEY."
)
_COLLECT: Final = (
    "Collect again on that host, signed with its key and with the nonce of this audit: securetrain"
    " audit --node --save-facts FILE --sign-key KEY --nonce NONCE."
)
_RENEW: Final = (
    "Fix what the waiver is about and remove it, or have it renewed and approved by somebody other"
    " than its owner."
)
SELF_CHECKS: Final[Mapping[str, tuple[str, Severity, tuple[str, ...], str]]] = {
    "ST-AUD-001": (
        "Share of checks that were answered",
        Severity.HIGH,
        ("CA-7",),
        "Collect the evidence that the unknown checks name, as a user who may read it.",
    ),
    "ST-AUD-002": ("Form and validity of waivers", Severity.HIGH, ("CA-5", "AC-5"), _RENEW),
    "ST-AUD-003": ("Approval of waivers", Severity.HIGH, ("CA-5", "AC-5"), _RENEW),
    "ST-AUD-004": (
        "Policy, checks and advisories against what was signed",
        Severity.CRITICAL,
        ("SI-7",),
        _RESTORE,
    ),
    "ST-AUD-005": (
        "Facts of the assets of the inventory",
        Severity.HIGH,
        ("CM-8",),
        "Collect its facts, or take it off the inventory.",
    ),
    "ST-AUD-006": (
        "Reliability of facts",
        Severity.CRITICAL,
        ("AU-10",),
        _COLLECT,
    ),
}
"""Title, severity, controls of SP 800-53, and what to do."""


def about_audit(
    check: str, subject: str, reason: str, asset: str = "", evidence: dict[str, Any] | None = None
) -> Finding:
    """A failure of the audit itself: of its facts, its coverage, its waivers or its pins."""
    title, severity, nist, remediation = SELF_CHECKS[check]
    return Finding(
        check=check,
        title=title,
        severity=severity,
        severity_in_context=severity,
        boundary=Boundary.IDENTITY,
        state=State.FAIL,
        asset=asset,
        subject=subject,
        reason=reason,
        evidence=evidence or {},
        remediation=remediation,
        fixed_by=FixedBy.USER,
        refs=Refs(nist=nist),
        fingerprint=fingerprint(check, asset, subject),
    )
