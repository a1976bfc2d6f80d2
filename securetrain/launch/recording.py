# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Ledger entries about the workers' environment, their reports, and refusals."""

from collections.abc import Sequence
from dataclasses import dataclass

from securetrain.core.errors import SecureTrainError
from securetrain.core.rundir import RunDir
from securetrain.core.vocabulary import Boundary
from securetrain.launch import workerlog
from securetrain.ledger import Ledger
from securetrain.network.environment import Reason, WorkerEnvironment

_BOUNDARY_OF = {
    Reason.PINNED: Boundary.FABRIC,
    Reason.FABRIC: Boundary.FABRIC,
    Reason.SCHEDULER: Boundary.SCHEDULER,
    Reason.DEBUG: Boundary.DEBUG,
    Reason.LOADER: Boundary.SUPPLY_CHAIN,
    Reason.PATH: Boundary.SUPPLY_CHAIN,
    Reason.SECRET: Boundary.IDENTITY,
}


def record_reports(run: RunDir, ledger: Ledger) -> None:
    """Record the reports of the workers' shims."""
    for name, report in workerlog.read_reports(run):
        if isinstance(report, SecureTrainError):
            ledger.observe(Boundary.NETWORK, "worker-report-unreadable", name)
            continue
        subject = f"rank {report.rank} attempt {report.attempt}"
        if report.sockets is None:
            ledger.observe(Boundary.NETWORK, "sockets-not-checked", subject)
        elif report.sockets.ok:
            ledger.allow(
                Boundary.NETWORK,
                "sockets-inside-network",
                subject,
                profile=report.sockets.profile.value,
                listeners=len(report.sockets.listeners),
                checks=report.num_checks,
            )
        if report.nccl_tls:
            libraries = " ".join(report.nccl_tls)[:2000]
            ledger.allow(Boundary.FABRIC, "nccl-encrypted", subject, libraries=libraries)
        if report.error is not None:
            ledger.observe(
                Boundary.NODE,
                "worker-failed",
                subject,
                kind=report.error.kind[:200],
                code=report.error.code,
                what=report.error.message[:500],
            )


def record_environment(found: WorkerEnvironment, passed: Sequence[str], ledger: Ledger) -> None:
    """Record what was pinned and removed, and what the user lets through."""
    ledger.allow(Boundary.FABRIC, "environment-pinned", "", names=" ".join(sorted(found.pinned)))
    for reason, boundary in _BOUNDARY_OF.items():
        names = sorted({entry.name for entry in found.removed if entry.reason is reason})
        if names:
            event = reason.name.lower()
            text = " ".join(names)[:2000]
            ledger.observe(boundary, f"environment-{event}", reason.value, names=text)
    if passed:
        ledger.observe(Boundary.IDENTITY, "environment-passed", "", names=" ".join(passed))


@dataclass(frozen=True, slots=True)
class Recorder:
    """Puts a refusal that leaves the block into the ledger."""

    ledger: Ledger
    boundary: Boundary
    event: str

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        if isinstance(error, SecureTrainError):
            self.ledger.refuse(self.boundary, self.event, error)
