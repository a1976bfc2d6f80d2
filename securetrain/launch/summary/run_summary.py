# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``run.json``: what happened in a run, for people and for the report.

Written when the workers start (outcome ``running``) and again at the end, so that a run that was
killed shows as one that never ended. It is a convenience: what a run can prove is in its ledger.
"""

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Final, Literal

import msgspec

from securetrain.core import RunDir, canonical
from securetrain.core.files import write_atomic
from securetrain.core.vocabulary import NetworkProfile, NodeTier
from securetrain.launch.process.sockets import SocketCheck
from securetrain.launch.process.workerlog import WorkerError, WorkerReport
from securetrain.network.environment import WorkerEnvironment
from securetrain.policy.load import LoadedPolicy
from securetrain.rendezvous.coordinator import Admission

SCHEMA: Final = "securetrain.run/v1"


class Outcome(StrEnum):
    """The end of a run."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REFUSED = "refused"
    INTERRUPTED = "interrupted"


class _Base(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Strict keys."""


class PolicyRef(_Base, frozen=True, kw_only=True):
    """The policy of the run."""

    id: str
    version: str
    digest: str


class NodeRef(_Base, frozen=True, kw_only=True):
    """A node that was admitted, and what it had proven."""

    node: str
    tier: NodeTier
    label: str
    evidence: str
    """SHA-256 (hex) of its evidence."""


class Variable(_Base, frozen=True, kw_only=True):
    """A variable that did not reach the workers as it was."""

    name: str
    reason: str


class WorkerRef(_Base, frozen=True, kw_only=True):
    """The report of one rank of one attempt."""

    rank: int
    attempt: int
    protected: tuple[str, ...]
    num_checks: int
    sockets: SocketCheck | None
    error: WorkerError | None


class GradientSummary(_Base, frozen=True, kw_only=True):
    """The gradients of this node's workers, by their own word."""

    label: str
    """For people."""
    watched: bool | None = None
    """None before any step, and where there was none."""
    judged: int = 0
    """Steps."""
    refused: int = 0
    settled: int = 0
    """Steps that were reduced again without the ranks that spoiled them."""
    named: dict[str, tuple[str, ...]] = {}
    """The ranks that verdicts name, with the codes."""
    excluded: tuple[int, ...] = ()
    """Ranks whose gradients counted zero at some time."""
    reasons: tuple[str, ...] = ()
    """Why gradients were not watched."""


class CheckpointSummary(_Base, frozen=True, kw_only=True):
    """The saves of this node's workers that nobody signed, by their own word."""

    label: str
    """For people; empty when there is nothing to say."""
    unsigned: int = 0
    """Calls."""
    ways: dict[str, int] = {}
    """The calls by function."""
    places: tuple[str, ...] = ()
    """The first files and directories."""
    fields: tuple[str, ...] = ()
    """The demands of the policy that are not enforced on them."""
    is_known: bool = True
    """Whether every worker has said what it saved."""
    signed: dict[str, int] = {}
    """The saves of the script that the launcher signed, by function."""


class OutsideSummary(_Base, frozen=True, kw_only=True):
    """The doings of this node's workers outside of the policy's reach, by their own word."""

    labels: tuple[str, ...]
    """For people."""
    programs: dict[str, int] = {}
    """Programs in Python that were started without the shim."""
    loads: dict[str, int] = {}
    """Loads that the policy's demands do not reach, by function."""
    fields: tuple[str, ...] = ()
    """The demands of the policy that are not enforced."""
    unread: tuple[str, ...] = ()
    """Those on data, where no signed dataset was opened."""
    unshielded: tuple[str, ...] = ()
    """Those on workers, where these run without the shim."""


class RunSummary(_Base, frozen=True, kw_only=True, omit_defaults=True):
    """The document."""

    schema: Literal["securetrain.run/v1"]
    run_id: str
    started: datetime
    ended: datetime | None = None
    outcome: Outcome
    exit_code: int | None = None
    code: str = ""
    """The refusal's code, when it was refused or failed."""
    what: str = ""
    policy: PolicyRef
    network: NetworkProfile | None = None
    """The achieved profile; absent when none was."""
    command: tuple[str, ...]
    """The command line after ``securetrain run``."""
    world_size: int = 0
    max_restarts: int = 0
    torch: str = ""
    nodes: tuple[NodeRef, ...] = ()
    pinned: dict[str, str] = {}
    removed: tuple[Variable, ...] = ()
    passed: tuple[str, ...] = ()
    """The variables that the user let through (``--pass-env``)."""
    sandbox: str = ""
    """The workers' sandbox; empty when the run did not get that far."""
    egress: str = ""
    """What `network.egress` cannot limit here; empty when it limits all, or names no place."""
    preflight: str = ""
    gradients: GradientSummary | None = None
    checkpoints: CheckpointSummary | None = None
    outside: OutsideSummary | None = None
    workers: tuple[WorkerRef, ...] = ()
    protected: bool = True
    """Whether the workers ran under the shim."""
    stragglers: int = 0
    """Processes that had to be killed at the end."""


def policy_ref(policy: LoadedPolicy) -> PolicyRef:
    """A policy as it stands in the summary."""
    about = policy.policy.metadata
    return PolicyRef(id=about.id, version=about.version, digest=policy.digest)


def node_refs(admissions: Iterable[Admission]) -> tuple[NodeRef, ...]:
    """Admitted nodes as they stand in the summary."""
    return tuple(
        NodeRef(node=a.node, tier=a.tier, label=a.label, evidence=a.evidence) for a in admissions
    )


def variables(found: WorkerEnvironment | None) -> tuple[Variable, ...]:
    """Removed variables as they stand in the summary."""
    removed = found.removed if found is not None else ()
    return tuple(Variable(name=entry.name, reason=entry.reason.value) for entry in removed)


def worker_ref(report: WorkerReport) -> WorkerRef:
    """A worker's report as it stands in the summary."""
    return WorkerRef(
        rank=report.rank,
        attempt=report.attempt,
        protected=report.protected,
        num_checks=report.num_checks,
        sockets=report.sockets,
        error=report.error,
    )


def write_summary(run: RunDir, summary: RunSummary) -> None:
    """Write ``run.json``, replacing the one from the start of the run."""
    write_atomic(run.summary, canonical.encode(summary), mode=0o600)
