# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Events of a node's launcher: start and end, preflight, environment, network, workers."""

from typing import Final

import msgspec

from securetrain.core.vocabulary import OPEN_EGRESS, UNCONFINED, Boundary, NetworkProfile
from securetrain.ledger.events.event import (
    Allowed,
    Observed,
    PlainRefused,
    WriterRole,
    degraded,
    event,
)

_LAUNCHER = WriterRole.LAUNCHER
EGRESS: Final = "EGRESS"
"""The label of a run whose workers may reach places outside the job network."""


# The run.


@event("run-started", Boundary.IDENTITY, _LAUNCHER)
class RunStarted(Observed, frozen=True, kw_only=True):
    """A launch begins."""

    policy: str = ""
    """The policy's digest."""
    policy_id: str = ""
    command: str = ""


@event("run-ended", Boundary.IDENTITY, _LAUNCHER)
class RunEnded(Observed, frozen=True, kw_only=True):
    """A launch ends."""

    outcome: str
    exit_code: int
    code: str = ""
    """What it ended with; empty when it went well."""
    stragglers: int = 0


@event("ledger-started", Boundary.IDENTITY, _LAUNCHER, WriterRole.COORDINATOR)
class LedgerStarted(Observed, frozen=True, kw_only=True):
    """The first line of a ledger, and of nothing else; its subject is the run."""

    roots: str = ""
    """The keys of the role ``root`` in its trust root, ordered; empty without one."""
    policy: str = ""
    """The digest of the policy that it runs under; empty without one."""


@event("run-directory-refused", Boundary.HOST, _LAUNCHER)
class RunDirectoryRefused(PlainRefused, frozen=True, kw_only=True):
    """The name of the run directory leads elsewhere; this is written where it always was."""


@event("close", Boundary.IDENTITY, _LAUNCHER, WriterRole.COORDINATOR)
class Closed(Observed, frozen=True, kw_only=True):
    """Nothing follows: a shorter file shows as cut."""


@event("ledger-mended", Boundary.IDENTITY, *WriterRole)
class LedgerMended(Observed, frozen=True, kw_only=True):
    """A line that a death had left unfinished was cut off; whoever wrote next says so."""

    bytes: int
    digest: str
    """SHA-256 of what was cut off."""


@event("entry-point-refused", Boundary.SUPPLY_CHAIN, _LAUNCHER)
class EntryPointRefused(PlainRefused, frozen=True, kw_only=True):
    """A package would have run code in the launcher."""


@event("torch-accepted", Boundary.SUPPLY_CHAIN, _LAUNCHER)
class TorchAccepted(Allowed, frozen=True, kw_only=True):
    """The version of torch is one that the policy takes."""


@event("secrets-refused", Boundary.NODE, _LAUNCHER)
class SecretsRefused(PlainRefused, frozen=True, kw_only=True):
    """A secret that the policy names is not where it was said to lie."""


@event("program-refused", Boundary.CHECKPOINT, _LAUNCHER)
class ProgramRefused(PlainRefused, frozen=True, kw_only=True):
    """The workers' program is not one that can be started protected."""


@event("reference-values-refused", Boundary.NODE, _LAUNCHER)
class ReferenceValuesRefused(PlainRefused, frozen=True, kw_only=True):
    """The reference values that nodes are to be judged by are not good."""


# The host.


@event("preflight-skipped", Boundary.HOST, _LAUNCHER)
class PreflightSkipped(Observed, frozen=True, kw_only=True):
    """The policy asks for no audit."""

    mode: str


@event("preflight-passed", Boundary.HOST, _LAUNCHER)
class PreflightPassed(Allowed, frozen=True, kw_only=True, rename="kebab"):
    """The audit meets the policy; how many checks have which state."""

    passed: int = msgspec.field(name="pass")
    fail: int
    unknown: int
    not_applicable: int
    waived: int


@event("preflight-warned", Boundary.HOST, _LAUNCHER)
class PreflightWarned(Observed, frozen=True, kw_only=True, rename="kebab"):
    """The audit does not meet the policy, which only warns, or lacks what only root may read."""

    passed: int = msgspec.field(name="pass")
    fail: int
    unknown: int
    not_applicable: int
    waived: int
    only_root: str = ""
    """The checks that are unknown because only root may read their evidence."""


@event("preflight-refused", Boundary.HOST, _LAUNCHER)
class PreflightRefused(PlainRefused, frozen=True, kw_only=True):
    """The audit does not meet the policy."""


@event("sandbox-achieved", Boundary.HOST, _LAUNCHER)
class SandboxAchieved(Allowed, frozen=True, kw_only=True):
    """The workers run in a sandbox that lacks nothing."""

    label: str
    user: int
    """The workers' user."""


@event("sandbox-degraded", Boundary.HOST, _LAUNCHER)
class SandboxDegraded(Observed, frozen=True, kw_only=True):
    """The workers run in a sandbox that lacks something, or in none."""

    label: str
    user: int
    missing: str
    """What this machine does not give, with the reason."""

    @property
    def labels(self) -> tuple[str, ...]:
        """DEGRADED SANDBOX."""
        return (UNCONFINED,)


@event("sandbox-limit-reached", Boundary.HOST, _LAUNCHER)
class SandboxLimitReached(Observed, frozen=True, kw_only=True):
    """The workers ran into a limit of memory or tasks."""

    what: str


@event("sandbox-refused", Boundary.HOST, _LAUNCHER)
class SandboxRefused(PlainRefused, frozen=True, kw_only=True):
    """The policy or ``--require sandbox`` asks for a sandbox that cannot be had."""


# The workers' environment.


class VariablesRemoved(Observed, frozen=True, kw_only=True):
    """Variables of the user's environment did not reach the workers, or only in part."""

    names: str
    """The variables, separated by spaces."""


@event("environment-refused", Boundary.FABRIC, _LAUNCHER)
class EnvironmentRefused(PlainRefused, frozen=True, kw_only=True):
    """The workers' environment cannot be made as the policy asks."""


@event("environment-pinned", Boundary.FABRIC, _LAUNCHER)
class EnvironmentPinned(Allowed, frozen=True, kw_only=True):
    """Variables were set for the workers."""

    names: str


@event("environment-pinned", Boundary.FABRIC, _LAUNCHER)
class PinnedVariablesRemoved(VariablesRemoved, frozen=True, kw_only=True):
    """Variables that are pinned had other values."""


@event("egress-opened", Boundary.NETWORK, _LAUNCHER)
class EgressOpened(Observed, frozen=True, kw_only=True):
    """Workers in the job network may reach the places that the policy names."""

    places: str

    @property
    def labels(self) -> tuple[str, ...]:
        """Workers have a way out."""
        return (EGRESS,)


@event("egress-unlimited", Boundary.NETWORK, _LAUNCHER)
class EgressUnlimited(Observed, frozen=True, kw_only=True):
    """The policy names the places that workers may reach, and this profile keeps them from none."""

    places: str
    network: NetworkProfile

    @property
    def labels(self) -> tuple[str, ...]:
        """DEGRADED EGRESS."""
        return (OPEN_EGRESS,)


@event("egress-connected", Boundary.NETWORK, _LAUNCHER)
class EgressConnected(Allowed, frozen=True, kw_only=True):
    """A worker was connected to a named place, the subject."""

    address: str


@event("egress-refused", Boundary.NETWORK, _LAUNCHER)
class EgressRefused(PlainRefused, frozen=True, kw_only=True):
    """A worker asked for another way out."""


@event("egress-counted", Boundary.NETWORK, _LAUNCHER)
class EgressCounted(Observed, frozen=True, kw_only=True):
    """The traffic of a run with one place, in bytes."""

    connections: int
    refused: int
    sent: int
    received: int


@event("compile-cache", Boundary.SUPPLY_CHAIN, _LAUNCHER)
class CompileCacheUsed(Observed, frozen=True, kw_only=True):
    """Compiled code comes from a folder to which earlier runs under the same policy wrote, and goes
    there; the subject is its name.
    """

    problem: str = ""
    """Why it is this run's own folder instead, when it is."""


@event("environment-passed", Boundary.IDENTITY, _LAUNCHER)
class EnvironmentPassed(Observed, frozen=True, kw_only=True):
    """The user lets variables through."""

    names: str


@event("environment-fabric", Boundary.FABRIC, _LAUNCHER)
class FabricVariablesRemoved(VariablesRemoved, frozen=True, kw_only=True):
    """Variables that steer the fabric were removed."""


@event("environment-scheduler", Boundary.SCHEDULER, _LAUNCHER)
class SchedulerVariablesRemoved(VariablesRemoved, frozen=True, kw_only=True):
    """Variables of the scheduler were removed."""


@event("environment-debug", Boundary.DEBUG, _LAUNCHER)
class DebugVariablesRemoved(VariablesRemoved, frozen=True, kw_only=True):
    """Variables that open debug interfaces were removed."""


@event("environment-loader", Boundary.SUPPLY_CHAIN, _LAUNCHER)
class LoaderVariablesRemoved(VariablesRemoved, frozen=True, kw_only=True):
    """Variables that load code were removed."""


@event("environment-path", Boundary.SUPPLY_CHAIN, _LAUNCHER)
class PathVariablesRemoved(VariablesRemoved, frozen=True, kw_only=True):
    """Variables that name paths to code were removed."""


@event("environment-secret", Boundary.IDENTITY, _LAUNCHER)
class SecretVariablesRemoved(VariablesRemoved, frozen=True, kw_only=True):
    """Variables that hold secrets were removed."""


# The network.


@event("profile-refused", Boundary.NETWORK, _LAUNCHER)
class ProfileRefused(PlainRefused, frozen=True, kw_only=True):
    """No network profile that the policy takes can be achieved."""


@event("profile-achieved", Boundary.NETWORK, _LAUNCHER)
class ProfileAchieved(Allowed, frozen=True, kw_only=True):
    """The way in which the job's bytes travel."""

    label: str = ""
    """The profile, as people see it."""
    network: NetworkProfile | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """DEGRADED."""
        return degraded(self.network, self.label)


@event("job-network-refused", Boundary.NETWORK, _LAUNCHER)
class JobNetworkRefused(PlainRefused, frozen=True, kw_only=True):
    """The job network cannot be built."""


@event("leftovers-removed", Boundary.NETWORK, _LAUNCHER)
class LeftoversRemoved(Observed, frozen=True, kw_only=True):
    """Job networks of launchers that died were taken down."""

    problems: str = ""


@event("job-network-up", Boundary.NETWORK, _LAUNCHER)
class JobNetworkUp(Allowed, frozen=True, kw_only=True):
    """This node's part of the job network is there, without members."""

    engine: str = ""
    endpoint: str = ""
    key: str = ""
    profile: str = ""
    """The profile, as people see it."""
    rdma: str = ""
    network: NetworkProfile | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """DEGRADED."""
        return degraded(self.network, self.profile)


@event("epoch-applied", Boundary.NETWORK, _LAUNCHER)
class EpochApplied(Allowed, frozen=True, kw_only=True):
    """The job network has an epoch's members and no others."""

    address: str
    nodes: str


@event("rdma-guarded", Boundary.FABRIC, _LAUNCHER)
class RdmaGuarded(Allowed, frozen=True, kw_only=True):
    """RDMA to an epoch's members is what the policy asks for, and is watched."""

    profile: str = ""
    """The profile, as people see it."""
    isolation: str = ""
    members: int = 0
    network: NetworkProfile | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """DEGRADED."""
        return degraded(self.network, self.profile)


@event("job-network-down", Boundary.NETWORK, _LAUNCHER)
class JobNetworkDown(Observed, frozen=True, kw_only=True):
    """The job network was taken down."""


@event("job-network-failed", Boundary.NETWORK, _LAUNCHER)
class JobNetworkFailed(PlainRefused, frozen=True, kw_only=True):
    """The job network died, or could not be taken down."""


# What the workers' shims have reported.


@event("worker-report-unreadable", Boundary.NETWORK, _LAUNCHER)
class WorkerReportUnreadable(Observed, frozen=True, kw_only=True):
    """A worker's report is malformed."""


@event("sockets-not-checked", Boundary.NETWORK, _LAUNCHER)
class SocketsNotChecked(Observed, frozen=True, kw_only=True):
    """A worker made no process group, so its sockets were not looked at."""


@event("sockets-inside-network", Boundary.NETWORK, _LAUNCHER)
class SocketsInsideNetwork(Allowed, frozen=True, kw_only=True):
    """A worker listened only where the job's network is."""

    profile: NetworkProfile
    listeners: int
    checks: int


@event("nccl-encrypted", Boundary.FABRIC, _LAUNCHER)
class NcclEncrypted(Allowed, frozen=True, kw_only=True):
    """A worker's NCCL libraries have the job's key."""

    libraries: str


@event("worker-failed", Boundary.NODE, _LAUNCHER)
class WorkerFailed(Observed, frozen=True, kw_only=True):
    """A worker's script ended with an error."""

    kind: str
    code: str = ""
    what: str = ""


@event("gradients-judged", Boundary.GRADIENTS, _LAUNCHER)
class GradientsJudged(Observed, frozen=True, kw_only=True):
    """By their own word, the workers of this node have judged the steps of the run."""

    judged: int
    refused: int
    settled: int
    """Steps that were reduced again without the ranks that spoiled them."""
    named: str = ""
    """The ranks that verdicts name, with the codes."""
    excluded: str = ""
    """Ranks whose gradients counted zero at some time."""


# What the workers have asked the signing socket for.


@event("saved-files-signed", Boundary.CHECKPOINT, _LAUNCHER)
class SavedFilesSigned(Allowed, frozen=True, kw_only=True):
    """Files in another format were signed as a worker's script had saved them; which bytes they
    hold is the worker's word.
    """

    way: str
    """The function that was called."""
    place: str
    """The directory, or the folder around the file."""
    file: str = ""
    """Empty for a directory."""
    files: int
    number: int
    """Of the save, among those of its rank."""
    step: int | None = None


@event("signing-refused", Boundary.IDENTITY, _LAUNCHER)
class SigningRefused(PlainRefused, frozen=True, kw_only=True):
    """A worker, or a stranger, asked for a signature or an entry that is not its own to ask for."""


@event("signing-refusals-not-listed", Boundary.IDENTITY, _LAUNCHER)
class SigningRefusalsNotListed(Observed, frozen=True, kw_only=True):
    """So many more refusals of one rank in one round were counted and not written one by one."""

    count: int


@event("worker-events-left-out", Boundary.IDENTITY, _LAUNCHER)
class WorkerEventsLeftOut(Observed, frozen=True, kw_only=True):
    """A rank wrote more into the ledger than its share; the rest is not there."""

    count: int
    bytes: int
