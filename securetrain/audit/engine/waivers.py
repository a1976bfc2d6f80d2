# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Waivers, which accept findings for a while, and baselines, which know them.

Rules of waivers, in a file of their own:

1. a waiver names a check, globs of assets and subjects, why, who owns it, who else approved it, a
   ticket, and its first and last day; the last day is inclusive and ``now`` is a parameter. It may
   leave the asset out where an audit is about one only;
2. it lives at most 180 days, for a critical check at most 30;
3. the checks that it names as compensating must pass in the same audit;
4. it is about one kind of asset: where its check asks several (``also``), its subject or its asset
   begins with the name of one, and what is known of another kind says nothing about it;
5. one that is malformed, expired or rejected covers nothing: the finding comes back, and the result
   says which waiver failed and why. One that covers nothing any more is said too;
6. only a failure can be waived: missing evidence is dealt with by collecting it.

Rules of baselines, to see what is new, what is known and what is gone:

1. a baseline is the JSON of an earlier audit; findings are the same by fingerprint;
2. a finding is known when the baseline has it as open as it is now: a failure that was unknown
   then, or weighed less, is new. One that stands for several at one place is known when all are;
3. what the baseline waived or passed is not known by it;
4. nothing is dropped: a known finding stays in the result, marked. Only ``new_only`` takes it out
   of the exit code; a file that was not understood counts there all the same.
"""

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from securetrain.audit.engine.check import Check
from securetrain.audit.engine.findings import (
    RESULT_SCHEMA,
    AuditResult,
    BaselineUse,
    Finding,
    PolicyRef,
    WaiverStatus,
    WaiverUse,
    about_audit,
    exit_code_of,
)
from securetrain.audit.engine.schema import CheckId
from securetrain.core.errors import AuditError, PolicyError
from securetrain.core.files import read_file
from securetrain.core.vocabulary import Severity, State
from securetrain.policy.load import parse_yaml
from securetrain.policy.schema import Policy

FILE_LIMIT: Final = 512 << 10
BASELINE_LIMIT: Final = 256 << 20
MAX_ITEMS: Final = 1000
MAX_DAYS: Final = 180
MAX_DAYS_CRITICAL: Final = 30

_FAILED: Final = {
    WaiverStatus.MALFORMED: "ST-AUD-002",
    WaiverStatus.EXPIRED: "ST-AUD-002",
    WaiverStatus.REJECTED: "ST-AUD-003",
}
_OPEN: Final = (State.FAIL, State.UNKNOWN)
_Name = Annotated[str, Meta(min_length=2, max_length=200)]


class _Base(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Strict keys."""


class Waiver(_Base, frozen=True, kw_only=True):
    """One accepted finding."""

    id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")]
    check: CheckId
    asset: Annotated[str, Meta(min_length=1, max_length=400)] = ""
    """A glob over assets, as in 'node:gpu-*'; needed where an audit is about more than one."""
    subject: Annotated[str, Meta(min_length=1, max_length=400)]
    """A glob over the finding's subject; '[' of a subject is written '[[]'."""
    justification: Annotated[str, Meta(min_length=10, max_length=2000)]
    owner: _Name
    approved_by: _Name
    ticket: _Name
    created: date
    expires: date
    compensating: tuple[CheckId, ...] = ()


class _File(_Base, frozen=True, kw_only=True):
    apiVersion: Literal["securetrain.dev/policy/v1"]  # noqa: N815 - the field's name in the file
    kind: Literal["Waivers"]
    items: Annotated[tuple[dict[str, Any], ...], Meta(max_length=MAX_ITEMS)]


@dataclass(frozen=True, slots=True)
class Waivers:
    """The waivers of one file, with those that are not."""

    items: tuple[Waiver, ...] = ()
    malformed: tuple[WaiverUse, ...] = ()


def read_waivers(path: Path) -> Waivers:
    """Read a waiver file; single items may turn out malformed.

    Raises:
        AuditError: ST-AUDT-003 when the file as a whole is not a list of waivers.
    """
    return parse_waivers(read_file(path, FILE_LIMIT), str(path))


def parse_waivers(data: bytes, where: str) -> Waivers:
    """Parse a waiver file's bytes; see `read_waivers`."""
    fix = "kind: Waivers with a list of items; see the page on waivers"
    try:
        file = msgspec.convert(parse_yaml(data.decode("utf-8"), where), _File, strict=True)
    except PolicyError as error:
        raise AuditError("ST-AUDT-003", error.what, error.where, error.fix) from error
    except (msgspec.ValidationError, UnicodeDecodeError) as error:
        raise AuditError("ST-AUDT-003", str(error), where, fix) from error
    items: list[Waiver] = []
    malformed: list[WaiverUse] = []
    for position, raw in enumerate(file.items):
        name = str(raw.get("id", f"item {position + 1}"))[:64]
        try:
            waiver = msgspec.convert(raw, Waiver, strict=True)
            if any(other.id == waiver.id for other in items):
                raise msgspec.ValidationError("a second waiver with this id")
        except msgspec.ValidationError as error:
            check, why = str(raw.get("check", ""))[:64], str(error)
            status = WaiverStatus.MALFORMED
            malformed.append(WaiverUse(id=name, check=check, status=status, reason=why))
        else:
            items.append(waiver)
    return Waivers(tuple(items), tuple(malformed))


@dataclass(frozen=True, slots=True)
class AuditStates:
    """The outcome of an audit before waivers."""

    checks: Sequence[Check]
    states: Mapping[str, Mapping[str, State]]
    """For each asset, check id to its state."""
    kinds: Mapping[str, str]
    """The kind of each asset."""
    now: datetime


def refusal(waiver: Waiver, audited: AuditStates) -> tuple[WaiverStatus, str] | None:
    """Explain why a waiver does not count today; None when it does."""
    states, today = audited.states, audited.now.date()
    rejected = WaiverStatus.REJECTED
    named = [check for check in audited.checks if check.id == waiver.check]
    if not named:
        return rejected, f"there is no check {waiver.check}"
    if waiver.owner.strip().casefold() == waiver.approved_by.strip().casefold():
        return rejected, "approved by its owner: a second person has to"
    limit = MAX_DAYS_CRITICAL if named[0].severity is Severity.CRITICAL else MAX_DAYS
    if waiver.expires < waiver.created:
        return rejected, "it expires before it was created"
    if (waiver.expires - waiver.created).days > limit:
        return rejected, f"it lives longer than {limit} days"
    if waiver.created > today:
        return rejected, f"it begins on {waiver.created}"
    if waiver.expires < today:
        return WaiverStatus.EXPIRED, f"its last day was {waiver.expires}"
    if not waiver.asset and len(states) > 1:
        return rejected, f"it names no asset, and this audit is about {len(states)}"
    begins = _literal(waiver.subject)
    meant = [one for one in named if begins.startswith(one.root)] or named
    if len(meant) > 1 and ":" not in _literal(waiver.asset):
        roots = " and ".join(sorted(one.root for one in meant))
        return rejected, f"its check asks {roots}: begin its subject with one of them"
    return _uncompensated(waiver, audited, {one.kind for one in meant})


def _uncompensated(
    waiver: Waiver, audited: AuditStates, kinds: Container[str]
) -> tuple[WaiverStatus, str] | None:
    """Rule 3, on every asset of these kinds that the waiver is about."""
    for asset, states in audited.states.items():
        if is_about(waiver, asset) and audited.kinds[asset] in kinds:
            for check in waiver.compensating:
                state = states.get(check)
                if state is not State.PASS:
                    on = f" on {asset}" if len(audited.states) > 1 else ""
                    why = f"its compensating check {check} is {state or 'not there'}{on}, not pass"
                    return WaiverStatus.REJECTED, why
    return None


def _literal(glob: str) -> str:
    """A glob up to what stands for anything."""
    return re.split(r"[*?\[]", glob, maxsplit=1)[0]


def is_about(waiver: Waiver, asset: str) -> bool:
    """Return whether a waiver is about this asset."""
    return not waiver.asset or fnmatchcase(asset, waiver.asset)


def covers(waiver: Waiver, finding: Finding) -> bool:
    """Return whether a waiver is about this finding, and it is a failure."""
    mine = waiver.check == finding.check and is_about(waiver, finding.asset)
    return finding.state is State.FAIL and mine and fnmatchcase(finding.subject, waiver.subject)


def waive(
    findings: list[Finding],
    waivers: Waivers,
    audited: AuditStates,
) -> tuple[list[Finding], list[WaiverUse]]:
    """Cover failures, and report every waiver that does not count."""
    uses = list(waivers.malformed)
    result = list(findings)
    for waiver in waivers.items:
        refused = refusal(waiver, audited)
        status, reason = refused or (WaiverStatus.UNUSED, "no finding of this audit is covered")
        if refused is None:
            for i, finding in enumerate(result):
                if covers(waiver, finding):
                    status, reason = WaiverStatus.APPLIED, ""
                    result[i] = replace(finding, state=State.WAIVED, waiver=waiver.id)
        use = WaiverUse(id=waiver.id, check=waiver.check, status=status, reason=reason)
        uses.append(replace(use, expires=waiver.expires))
    uses.sort(key=lambda use: (use.check, use.id))
    for use in uses:
        if use.status in _FAILED:
            # what it covered is back, and somebody should know
            about, evidence = f"waiver[{use.id}]", {"check": use.check}
            result.append(about_audit(_FAILED[use.status], about, use.reason, evidence=evidence))
    return result, uses


# --- baselines -----------------------------------------------------------------------------------


class _Evidence(msgspec.Struct, frozen=True):
    also: dict[str, str] | list[str] = {}
    """By fingerprint; earlier releases wrote none."""


class _Known(msgspec.Struct, frozen=True):
    """The part of a finding that is read; later versions may say more."""

    fingerprint: str
    check: str
    state: State
    severity_in_context: Severity
    evidence: _Evidence = _Evidence()


class _BaselineFile(msgspec.Struct, frozen=True):
    schema: Literal["securetrain.audit/v2", "securetrain.audit/v3"]
    at: datetime
    policy: PolicyRef
    findings: tuple[_Known, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The open findings of an earlier audit."""

    at: datetime
    policy: PolicyRef
    open: Mapping[str, tuple[State, Severity]]
    """By fingerprint; the worst where there are several."""

    @classmethod
    def read(cls, path: Path) -> "Baseline":
        """Read the JSON of an earlier audit.

        Raises:
            AuditError: ST-AUDT-004 when it is none.
            UsageError: ST-USAG-002 when it cannot be read.
        """
        data = read_file(path, BASELINE_LIMIT)
        try:
            file = msgspec.json.decode(data, type=_BaselineFile, strict=True)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise AuditError("ST-AUDT-004", f"not {RESULT_SCHEMA}: {error}", str(path)) from error
        known: dict[str, tuple[State, Severity]] = {}
        for one in file.findings:
            if one.state in _OPEN:
                found, also = (one.state, one.severity_in_context), one.evidence.also
                for name in (one.fingerprint, *(also if isinstance(also, dict) else ())):
                    known[name] = max(known.get(name, found), found, key=_weight)
        return cls(at=file.at, policy=file.policy, open=known)

    def compare(self, result: AuditResult, policy: Policy, *, new_only: bool) -> AuditResult:
        """Mark the findings that the earlier audit had.

        Args:
            result: This audit.
            policy: The policy of this one, for its exit code.
            new_only: Known findings do not count for the exit code.
        """
        findings = tuple(
            replace(finding, known=True) if self._knows(finding) else finding
            for finding in result.findings
        )
        known = {name for one in findings if one.known for name in _members(one)}
        there = (*_OPEN, State.WAIVED)
        still = {name for one in findings if one.state in there for name in _members(one)}
        counted = [
            replace(finding, state=State.WAIVED) if new_only and finding.known else finding
            for finding in findings
        ]
        return replace(
            result,
            findings=findings,
            baseline=BaselineUse(
                at=self.at,
                policy=self.policy,
                new_only=new_only,
                known=len(known),
                gone=len(self.open.keys() - still),
            ),
            exit_code=int(exit_code_of(counted, result.ledger, policy, result.problems)),
        )

    def _knows(self, finding: Finding) -> bool:
        if finding.state not in _OPEN:
            return False
        now = _weight((finding.state, finding.severity_in_context))
        before = [self.open.get(name) for name in _members(finding)]
        return all(one is not None and now <= _weight(one) for one in before)


def _members(finding: Finding) -> tuple[str, ...]:
    return finding.fingerprint, *finding.evidence.get("also", ())


def _weight(found: tuple[State, Severity]) -> tuple[bool, int]:
    """A failure weighs more than what is not known; then severity counts."""
    state, severity = found
    return state is State.FAIL, severity.rank
