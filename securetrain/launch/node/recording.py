# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Ledger entries about the workers' environment, their reports, and refusals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from securetrain.core import RunDir
from securetrain.core.errors import SecureTrainError
from securetrain.launch.node.compile_cache import Cache
from securetrain.launch.process import workerlog
from securetrain.ledger import Ledger, events
from securetrain.network.environment import Reason, WorkerEnvironment

_REMOVED: Final[Mapping[Reason, type[events.VariablesRemoved]]] = {
    Reason.PINNED: events.PinnedVariablesRemoved,
    Reason.FABRIC: events.FabricVariablesRemoved,
    Reason.SCHEDULER: events.SchedulerVariablesRemoved,
    Reason.DEBUG: events.DebugVariablesRemoved,
    Reason.LOADER: events.LoaderVariablesRemoved,
    Reason.PATH: events.PathVariablesRemoved,
    Reason.SECRET: events.SecretVariablesRemoved,
}


def record_reports(run: RunDir, ledger: Ledger) -> None:
    """Record the reports of the workers' shims."""
    for name, report in workerlog.read_reports(run):
        if isinstance(report, SecureTrainError):
            ledger.write(events.WorkerReportUnreadable(subject=name))
            continue
        if report.child:
            continue  # only what it did is in it (`enforced`)
        subject = f"rank {report.rank} attempt {report.attempt}"
        if report.sockets is None:
            ledger.write(events.SocketsNotChecked(subject=subject))
        elif report.sockets.ok:
            ledger.write(
                events.SocketsInsideNetwork(
                    subject=subject,
                    profile=report.sockets.profile,
                    listeners=len(report.sockets.listeners),
                    checks=report.num_checks,
                )
            )
        if report.nccl_tls:
            libraries = " ".join(report.nccl_tls)[:2000]
            ledger.write(events.NcclEncrypted(subject=subject, libraries=libraries))
        if report.error is not None:
            ledger.write(
                events.WorkerFailed(
                    subject=subject,
                    kind=report.error.kind[:200],
                    code=report.error.code,
                    what=report.error.message[:500],
                )
            )


def record_cache(cache: Cache, ledger: Ledger) -> None:
    """Record where compiled code comes from."""
    subject = "" if cache.problem else cache.folder.name
    ledger.write(events.CompileCacheUsed(subject=subject, problem=cache.problem[:500]))


def record_environment(found: WorkerEnvironment, passed: Sequence[str], ledger: Ledger) -> None:
    """Record what was pinned and removed, and what the user lets through."""
    ledger.write(events.EnvironmentPinned(names=" ".join(sorted(found.pinned))))
    for reason, kind in _REMOVED.items():
        names = sorted({entry.name for entry in found.removed if entry.reason is reason})
        if names:
            ledger.write(kind(subject=reason.value, names=" ".join(names)[:2000]))
    if passed:
        ledger.write(events.EnvironmentPassed(names=" ".join(passed)))


@dataclass(frozen=True, slots=True)
class Recorder:
    """Puts a refusal that leaves the block into the ledger."""

    ledger: Ledger
    event: type[events.PlainRefused]

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        if isinstance(error, SecureTrainError):
            self.ledger.write(self.event.of(error))
