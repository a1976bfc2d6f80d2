# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Compare an audit with an earlier one: what is new, what is known, what is gone.

Rules:

1. the baseline is the JSON of an earlier audit; findings are the same by fingerprint;
2. a finding is known when the baseline has it as open as it is now: a failure that was unknown
   then, or weighed less, is new. One that stands for several at one place is known when all are;
3. what the baseline waived or passed is not known by it;
4. nothing is dropped: a known finding stays in the result, marked. Only ``new_only`` takes it out
   of the exit code; a file that was not understood counts there all the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from securetrain.audit.engine.audit import exit_code_of
from securetrain.audit.engine.findings import (
    RESULT_SCHEMA,
    AuditResult,
    BaselineUse,
    Finding,
    PolicyRef,
)
from securetrain.core.errors import AuditError
from securetrain.core.files import read_file
from securetrain.core.vocabulary import Severity, State
from securetrain.policy.schema import Policy

FILE_LIMIT: Final = 256 << 20
_OPEN: Final = (State.FAIL, State.UNKNOWN)


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


class _File(msgspec.Struct, frozen=True):
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
        data = read_file(path, FILE_LIMIT)
        try:
            file = msgspec.json.decode(data, type=_File, strict=True)
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
