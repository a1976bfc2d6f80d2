# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Findings about the audit itself: its facts, its coverage and its waivers."""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from securetrain.audit.documents.documents import Document, Refused
from securetrain.audit.engine.checks.check import FixedBy, Refs
from securetrain.audit.engine.findings import Finding, fingerprint
from securetrain.audit.engine.waivers import WaiverStatus, WaiverUse
from securetrain.core.vocabulary import Boundary, Severity, State
from securetrain.policy.schema import Policy

MAX_AGE: Final = timedelta(hours=24)
MAX_SKEW: Final = timedelta(minutes=5)

COVERAGE: Final = "ST-AUD-001"
WAIVER_FAILED: Final = "ST-AUD-002"
WAIVER_REJECTED: Final = "ST-AUD-003"
NOT_PINNED: Final = "ST-AUD-004"
WITHOUT_FACTS: Final = "ST-AUD-005"
NOT_RELIABLE: Final = "ST-AUD-006"

BAD_WAIVERS: Final = {
    WaiverStatus.MALFORMED: (WAIVER_FAILED, "Form and validity of waivers"),
    WaiverStatus.EXPIRED: (WAIVER_FAILED, "Form and validity of waivers"),
    WaiverStatus.REJECTED: (WAIVER_REJECTED, "Approval of waivers"),
}


def staleness(document: Document, now: datetime) -> str:
    """Explain why the time of facts does not fit; empty when it does."""
    if document.at > now + MAX_SKEW:
        return f"the facts about {document.asset} are from the future: {document.at.isoformat()}"
    if now - document.at > MAX_AGE:
        hours = MAX_AGE.total_seconds() / 3600
        return f"the facts about {document.asset} are older than {hours:g} hours"
    return ""


def stale(document: Document, why: str) -> Finding:
    """Facts that are judged, and that nobody should rely on."""
    return _unreliable(document.asset, "facts", why)


def refused(what: Refused) -> Finding:
    """A file that is not judged at all."""
    return _unreliable("", f"facts[{what.source}]", what.reason)


def _unreliable(asset: str, subject: str, why: str) -> Finding:
    return _finding(
        (NOT_RELIABLE, "Reliability of facts"),
        Severity.CRITICAL,
        asset,
        subject,
        why,
        remediation="Collect again on that host, signed with its key and with the nonce of this"
        " audit: securetrain audit --node --save-facts FILE --sign-key KEY --nonce NONCE.",
        nist=("AU-10",),
    )


def not_pinned(name: str, why: str) -> Finding:
    """Something that the audit uses and that nobody signed for."""
    return _finding(
        (NOT_PINNED, "Policy, checks and advisories against what was signed"),
        Severity.CRITICAL,
        "",
        f"pins[{name}]",
        why,
        remediation="Restore what was signed, or look at what changed and sign it again:"
        " securetrain audit pins --pins FILE --pins-key KEY.",
        nist=("SI-7",),
    )


def without_facts(asset: str) -> Finding:
    """An asset of the inventory that the audit knows nothing of."""
    return _finding(
        (WITHOUT_FACTS, "Facts of the assets of the inventory"),
        Severity.HIGH,
        asset,
        "facts",
        "no document of this audit that counts is about it",
        remediation="Collect its facts, or take it off the inventory.",
        nist=("CM-8",),
    )


def coverage(states: Mapping[str, Mapping[str, State]], policy: Policy) -> Iterator[Finding]:
    """Yield a finding when fewer checks were answered than the policy asks for."""
    asked = [state for mine in states.values() for state in mine.values()]
    asked = [state for state in asked if state is not State.NOT_APPLICABLE]
    unanswered = asked.count(State.UNKNOWN)
    least = policy.audit.min_coverage_percent
    percent = 100 * (len(asked) - unanswered) / len(asked) if asked else 0.0
    if percent < least:
        yield _finding(
            (COVERAGE, "Share of checks that were answered"),
            Severity.HIGH,
            "",
            "coverage",
            f"{len(asked) - unanswered} of {len(asked)} were, {percent:.1f} %; the policy asks for"
            f" {least} %",
            remediation="Collect the evidence that the unknown checks name, as a user who may read"
            " it.",
            nist=("CA-7",),
            evidence={"answered": len(asked) - unanswered, "asked": len(asked)},
        )


def about_waiver(use: WaiverUse) -> Finding:
    """A waiver that failed is a finding: what it covered is back, and somebody should know."""
    return _finding(
        BAD_WAIVERS[use.status],
        Severity.HIGH,
        "",
        f"waiver[{use.id}]",
        use.reason,
        remediation="Fix what the waiver is about and remove it, or have it renewed and approved"
        " by somebody other than its owner.",
        nist=("CA-5", "AC-5"),
        evidence={"check": use.check},
    )


def _finding(
    check: tuple[str, str],
    severity: Severity,
    asset: str,
    subject: str,
    reason: str,
    *,
    remediation: str,
    nist: tuple[str, ...],
    evidence: dict[str, Any] | None = None,
) -> Finding:
    name, title = check
    return Finding(
        check=name,
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
        fingerprint=fingerprint(name, asset, subject),
    )
