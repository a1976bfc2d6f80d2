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

The audit takes as long to load as to run. A launcher has it loaded by a process of its own while it
loads torch itself (`AuditProcess`), and asks that process; one that does not answer costs nothing
but time, because the launcher audits then.
"""

import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NoReturn

import msgspec

from securetrain.audit import AuditResult, Finding
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
from securetrain.launch.process.descendants import ENDING
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


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """The input of an audit of this node, beside the machine."""

    environ: dict[str, str]
    policy: Policy
    now: datetime
    tunnel: str


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """The answer."""

    result: AuditResult
    out_of_reach: tuple[Finding, ...]
    code: ExitCode
    """Without what is out of reach."""


class AuditProcess:
    """A process that has loaded the audit and waits for one question."""

    def __init__(self, line: socket.socket, pid: int) -> None:
        self._line, self._pid = line, pid

    @classmethod
    @contextmanager
    def started(cls, mode: PreflightMode) -> "Iterator[AuditProcess | None]":
        """Start one, where the policy wants an audit; it ends with the context."""
        if mode is PreflightMode.OFF:
            yield None
            return
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                try:
                    pid = os.fork()
                except OSError:  # no room for a process: the launcher audits
                    pid = -1
                if pid == 0:
                    _serve(theirs, ours)
            process = cls(ours, pid)
            try:
                yield process
            finally:
                ours.close()  # whoever has nothing to answer ends with it, and with this process
                process._reap()

    def ask(self, question: Question) -> Callable[[], Judged | None]:
        """Ask; the answer is waited for when it is called, and None when there is none."""
        with suppress(OSError, UnicodeEncodeError):  # a variable that is not text
            self._line.sendall(msgspec.json.encode(question))
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)
        return self._answer

    def _answer(self) -> Judged | None:
        with suppress(OSError, msgspec.DecodeError):
            told = _all_of(self._line)
            self._reap()  # it ends when it has answered
            return msgspec.json.decode(told, type=Judged)
        return None

    def _reap(self) -> None:
        pid, self._pid = self._pid, -1
        if pid > 0:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _serve(line: socket.socket, other: socket.socket) -> NoReturn:
    """Answer one question, in a process that is a copy of the launcher: nothing of it goes on."""
    try:
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL)
        other.close()
        ready = _loaded()
        if asked := _all_of(line):
            line.sendall(msgspec.json.encode(ready(msgspec.json.decode(asked, type=Question))))
    finally:
        os._exit(0)


def _all_of(line: socket.socket) -> bytes:
    return b"".join(iter(lambda: line.recv(1 << 16), b""))


def _loaded() -> Callable[[Question], Judged]:
    """The audit, ready to judge this node."""
    from securetrain.audit import audit, load_checks, node_facts, out_of_reach  # noqa: PLC0415

    checks = load_checks()

    def judge(asked: Question) -> Judged:
        facts = node_facts(asked.environ, asked.now, device=asked.tunnel)
        result = audit(facts, checks, asked.policy, asked.now)
        excused, code = out_of_reach(result, facts, checks, asked.policy)
        return Judged(result=result, out_of_reach=tuple(excused), code=code)

    return judge


def start_preflight(
    run: RunDir,
    policy: Policy,
    environ: Mapping[str, str],
    ledger: Ledger,
    now: datetime,
    *,
    tunnel: str = "",
    process: AuditProcess | None = None,
) -> Callable[[], Preflight]:
    """Have this node audited; what comes of it, and the refusal, come with the call.

    Args:
        run: As `run_preflight`.
        policy: Likewise.
        environ: Likewise.
        ledger: Likewise.
        now: Likewise.
        tunnel: Likewise.
        process: Audits meanwhile; without one it is done when the result is called for.
    """
    question = Question(environ=dict(environ), policy=policy, now=now, tunnel=tunnel)
    answer = process.ask(question) if process is not None else lambda: None
    return lambda: _acted_on(lambda: answer() or _loaded()(question), run, policy, ledger)


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
    return start_preflight(run, policy, environ, ledger, now, tunnel=tunnel)()


def _acted_on(
    answer: Callable[[], Judged], run: RunDir, policy: Policy, ledger: Ledger
) -> Preflight:
    """Rules 1 to 4."""
    mode = policy.host.preflight
    if mode is PreflightMode.OFF:
        ledger.write(events.PreflightSkipped(mode=mode.value))
        return Preflight(mode=mode, result=None)
    judged = answer()
    result = judged.result
    write_atomic(run.audit, result.to_json(), mode=0o600)
    preflight = Preflight(mode=mode, result=result, out_of_reach=judged.out_of_reach)
    may_start = policy.enforcement is EnforcementMode.REPORT and judged.code == ExitCode.OK
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
