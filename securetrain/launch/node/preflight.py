# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The audit of this node before the job starts, as the policy wants it.

Rules:

1. ``host.preflight: off`` collects nothing, and the summary says that nothing was checked;
2. otherwise the result goes to ``audit.json`` and to the ledger, whatever it is;
3. ``warn`` says what failed and goes on; ``enforce`` refuses with ST-RUNT-003 when the audit's exit
   code is not 0;
4. a check that is unknown for no other reason than that only root may read its evidence is named as
   a warning, here and in the ledger, so that an ordinary user can start; under ``enforcement:
   require`` it refuses, as everything else that is unknown and heavy does.

The environment that is judged is the one that the workers will get, after pinning. Under an overlay
it names the job's own device, which is made later: it counts as an interface that is down.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from securetrain.audit import (
    AuditResult,
    Finding,
    audit,
    load_checks,
    node_facts,
    out_of_reach,
)
from securetrain.core import ExitCode, RunDir
from securetrain.core.errors import RuntimeRefusal
from securetrain.core.files import write_atomic
from securetrain.core.vocabulary import (
    EnforcementMode,
    NetworkProfile,
    PreflightMode,
    Severity,
    State,
)
from securetrain.ledger import Ledger, events
from securetrain.network.environment import worker_environment
from securetrain.policy.schema import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """The result of the preflight."""

    mode: PreflightMode
    result: AuditResult | None
    """None when the policy asks for no preflight."""
    out_of_reach: tuple[Finding, ...] = ()
    """Unknown, for only root may read the evidence (rule 4)."""

    @property
    def sentence(self) -> str:
        """One line for people."""
        if self.result is None:
            return "off: this node was not checked"
        counts = self.result.counts
        states = (State.FAIL, State.UNKNOWN, State.WAIVED, State.PASS)
        parts = [f"{counts.get(state, 0)} {state}" for state in states if counts.get(state, 0)]
        return f"{', '.join(parts) or 'nothing to check'} ({self.mode}; securetrain audit)"

    def failures(self, at_least: Severity = Severity.INFO) -> tuple[Finding, ...]:
        """List what failed, the worst first."""
        if self.result is None:
            return ()
        failed = (f for f in self.result.of(State.FAIL) if f.severity_in_context >= at_least)
        order = sorted(failed, key=lambda f: (-f.severity_in_context.rank, f.check, f.subject))
        return tuple(order)

    def warnings(self, at_least: Severity, limit: int = 5) -> tuple[str, ...]:
        """One line for each check that failed, with its fix."""
        lines: dict[str, str] = {}
        for finding in self.failures(at_least):
            title = finding.title.rstrip(".")
            lines.setdefault(finding.check, f"{finding.check} {title}. {finding.remediation}")
        more = len(lines) - limit
        shown = list(lines.values())[:limit]
        if more > 0:
            shown.append(f"{more} more checks failed: securetrain audit")
        if names := self.unread:
            shown.append(f"not known, for only root may read the evidence: {names}")
        return tuple(shown)

    @property
    def unread(self) -> str:
        """The checks whose evidence only root may read."""
        return ", ".join(sorted({finding.check for finding in self.out_of_reach}))


def loopback_environment(
    run: RunDir, policy: Policy, environ: Mapping[str, str]
) -> Mapping[str, str]:
    """The environment of a job on this machine alone, as `run` will pin it."""
    profile = NetworkProfile.LOOPBACK
    return worker_environment(environ, policy, profile, run.root.absolute(), cwd=Path.cwd()).env


def run_preflight(
    run: RunDir,
    policy: Policy,
    environ: Mapping[str, str],
    ledger: Ledger,
    now: datetime,
    *,
    tunnel: str = "",
) -> Preflight:
    """Audit this node and act on the result.

    Args:
        run: Where ``audit.json`` goes.
        policy: The run's policy.
        environ: The workers' environment.
        ledger: Where the result is recorded.
        now: The time, timezone-aware.
        tunnel: The device that the job will have; empty when it uses what is there.

    Raises:
        RuntimeRefusal: ST-RUNT-003 in mode enforce.
    """
    mode = policy.host.preflight
    if mode is PreflightMode.OFF:
        ledger.write(events.PreflightSkipped(mode=mode.value))
        return Preflight(mode=mode, result=None)
    facts = node_facts(environ, now, device=tunnel)
    checks = load_checks()
    result = audit(facts, checks, policy, now)
    write_atomic(run.audit, result.to_json(), mode=0o600)
    excused, code = out_of_reach(result, facts, checks, policy)
    preflight = Preflight(mode=mode, result=result, out_of_reach=tuple(excused))
    may_start = policy.enforcement is EnforcementMode.REPORT and code == ExitCode.OK
    if result.exit_code == ExitCode.OK:
        ledger.write(_counted(events.PreflightPassed, result))
    elif mode is PreflightMode.WARN or may_start:
        warned = _counted(events.PreflightWarned, result)
        ledger.write(msgspec.structs.replace(warned, only_root=preflight.unread))
    else:
        error = _refusal(preflight, run, policy.host.fail_on)
        ledger.write(events.PreflightRefused.of(error, result.about))
        raise error
    return preflight


def _counted(
    kind: type[events.PreflightPassed] | type[events.PreflightWarned], result: AuditResult
) -> events.LedgerEvent:
    counts = result.counts
    return kind(
        subject=result.about,
        passed=counts.get(State.PASS, 0),
        fail=counts.get(State.FAIL, 0),
        unknown=counts.get(State.UNKNOWN, 0),
        not_applicable=counts.get(State.NOT_APPLICABLE, 0),
        waived=counts.get(State.WAIVED, 0),
    )


def _refusal(preflight: Preflight, run: RunDir, fail_on: Severity) -> RuntimeRefusal:
    assert preflight.result is not None
    failures = list({f.check: f for f in preflight.failures(fail_on)}.values())
    unknown = preflight.result.counts.get(State.UNKNOWN, 0)
    heavy = sorted(
        {f.check for f in preflight.result.of(State.UNKNOWN) if f.severity_in_context >= fail_on}
    )
    names = f": {', '.join(heavy[:5])}{' and more' if len(heavy) > 5 else ''}" if heavy else ""
    named = "; ".join(f"{f.check} {f.title}" for f in failures[:3])
    more = f" and {len(failures) - 3} more" if len(failures) > 3 else ""
    what = (
        f"{len(failures)} checks failed ({named}{more})"
        if failures
        else f"{unknown} checks are unknown for lack of evidence{names}"
    )
    if preflight.result.problems:
        what = "; ".join(preflight.result.problems)
    return RuntimeRefusal("ST-RUNT-003", what, str(run.audit))
