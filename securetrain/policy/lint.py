# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Lint a policy: what is allowed by the schema and yet worth a second look.

An error means that the policy cannot do what it says (exit code 2); a warning names a defence that
is off or an exception that is open. Each says which field, and what a stricter value would be.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from packaging.version import InvalidVersion, Version

from securetrain.core.errors import PolicyError
from securetrain.core.vocabulary import NodeTier, PreflightMode
from securetrain.policy.load import LoadedPolicy, load_policy
from securetrain.policy.schema import (
    Gradients,
    GuardMode,
    GuardResponse,
    IsolationEvidence,
    Policy,
    UnpickleMode,
)

SAFE_TORCH: Final = "2.10.0"
"""The first torch without a known hole in weights_only (CVE-2025-32434, CVE-2026-24747)."""

LOADS_CODE: Final = (
    "NCCL_TUNER_PLUGIN",
    "NCCL_PROFILER_PLUGIN",
    "NCCL_GIN_PLUGIN",
    "NCCL_ENV_PLUGIN",
    "NCCL_CONF_FILE",
    "NCCL_COMM_ID",
)
"""Fabric variables that load code or give the bootstrap's secret away."""

RUN_RANK_STEPS: Final = 16_000
"""A short run: 2,000 steps of 8 ranks."""
AFFORDABLE: Final = 0.02
"""The share of honest runs that a response may end."""

DANGEROUS_GLOBALS: Final = (
    "builtins.*",
    "os.*",
    "posix.*",
    "subprocess.*",
    "sys.*",
    "importlib.*",
    "runpy.*",
    "pickle.*",
    "shutil.*",
    "socket.*",
    "ctypes.*",
    "operator.*",
    "functools.partial",
    "torch.load",
    "torch.hub.*",
)
"""Globals that make unpickling the same as running code."""


class Level(StrEnum):
    """The severity of a remark."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """One thing about a policy."""

    level: Level
    field: str
    what: str
    fix: str
    code: str = ""
    """The refusal's code, when the policy cannot be loaded."""


def lint_policy(
    name_or_path: str, *, today: date, known_checks: Collection[str] | None = None
) -> list[Remark]:
    """Load and lint a policy; one that cannot be loaded is one error.

    Args:
        name_or_path: A shipped policy's name or a file.
        today: The day that exceptions are compared with.
        known_checks: Ids of the audit's checks; None leaves ``host.skip_checks`` unjudged.
    """
    try:
        loaded = load_policy(name_or_path)
    except PolicyError as error:
        return [
            Remark(
                level=Level.ERROR,
                field=error.where,
                what=error.what,
                fix=error.fix,
                code=error.code,
            )
        ]
    return lint_loaded(loaded, today=today, known_checks=known_checks)


def lint_loaded(
    loaded: LoadedPolicy, *, today: date, known_checks: Collection[str] | None = None
) -> list[Remark]:
    """Lint a policy that has been loaded; see `lint_policy`."""
    policy = loaded.policy
    return [
        *_exceptions(policy, today),
        *_host(policy, known_checks),
        *_supply_chain(policy),
        *_network(policy),
        *_artifacts(policy),
        *_gradients(policy, loaded),
    ]


def _warn(field: str, what: str, fix: str) -> Remark:
    return Remark(level=Level.WARNING, field=field, what=what, fix=fix)


def _error(field: str, what: str, fix: str) -> Remark:
    return Remark(level=Level.ERROR, field=field, what=what, fix=fix)


def _exceptions(policy: Policy, today: date) -> Iterator[Remark]:
    node = policy.node
    exception = node.allow_self_asserted
    field = "node.allow_self_asserted"
    if exception is not None:
        if exception.until is None:
            yield _warn(
                f"{field}.until", "unattested nodes may join for ever", "name a last day (until)"
            )
        elif exception.until < today:
            yield _error(
                f"{field}.until",
                f"the exception for unattested nodes lapsed on {exception.until}",
                "remove it, or set a new last day",
            )
        if node.min_tier > NodeTier.SELF_ASSERTED:
            yield _warn(
                field,
                f"up to {exception.max_nodes} nodes may join below min_tier {node.min_tier}",
                "remove the exception when every node is attested",
            )
    if node.min_tier is NodeTier.TEST_ONLY:
        yield _warn("node.min_tier", "a software TPM counts as a node's proof", "min_tier: vtpm")


def _host(policy: Policy, known_checks: Collection[str] | None) -> Iterator[Remark]:
    host = policy.host
    match host.preflight:
        case PreflightMode.ENFORCE:
            pass
        case PreflightMode.WARN:
            yield _warn(
                "host.preflight", "a run starts whatever its preflight finds", "preflight: enforce"
            )
        case PreflightMode.OFF:
            yield _warn(
                "host.preflight", "the host is not looked at before a run", "preflight: enforce"
            )
        case _:
            raise ValueError(host.preflight)
    if host.skip_checks:
        yield _warn(
            "host.skip_checks",
            f"not asked for: {', '.join(host.skip_checks)}",
            "waive single findings instead: a waiver has an owner and an end",
        )
    unknown = [c for c in host.skip_checks if known_checks is not None and c not in known_checks]
    if unknown:
        yield _warn(
            "host.skip_checks",
            f"there is no check {', '.join(unknown)}",
            "securetrain audit --list shows them all",
        )
    named = [c for c in policy.audit.params if known_checks is not None and c not in known_checks]
    if named:
        yield _warn(
            "audit.params",
            f"there is no check {', '.join(named)}",
            "securetrain audit --list shows them all",
        )
    if known_checks and host.max_unknown >= len(known_checks):
        yield _warn(
            "host.max_unknown",
            f"all {len(known_checks)} checks may stay unknown",
            "a number that your nodes really need",
        )


def _supply_chain(policy: Policy) -> Iterator[Remark]:
    chain = policy.supply_chain
    try:
        old = Version(chain.torch_min) < Version(SAFE_TORCH)
    except InvalidVersion:
        yield _error("supply_chain.torch_min", f"{chain.torch_min!r} is not a version", SAFE_TORCH)
    else:
        if old:
            yield _warn(
                "supply_chain.torch_min",
                f"torch before {SAFE_TORCH} has holes in weights_only",
                f"torch_min: {SAFE_TORCH}",
            )
    if chain.allow_entry_points:
        yield _warn(
            "supply_chain.allow_entry_points",
            f"runs inside every agent: {', '.join(chain.allow_entry_points)}",
            "remove what you do not use",
        )
    if policy.debug.allow_servers:
        yield _warn(
            "debug.allow_servers", "torch's debug servers may start", "allow_servers: false"
        )


def _network(policy: Policy) -> Iterator[Remark]:
    degraded = [profile for profile in policy.network.require if profile.degraded]
    if degraded:
        yield _warn(
            "network.require",
            f"some bytes travel without protection under {', '.join(degraded)}",
            "require: [overlay]",
        )
    isolation = policy.network.isolation
    if isolation is not None and isolation.evidence is IsolationEvidence.STATEMENT:
        yield _warn(
            "network.isolation.evidence",
            "nothing but a sentence says that the RDMA fabric is isolated",
            "evidence: partition",
        )
    if not policy.fabric.pin_environment:
        yield _warn(
            "fabric.pin_environment",
            "users decide what NCCL and Gloo load and which interface they use",
            "pin_environment: true",
        )
    for pattern in policy.fabric.allow_environment:
        loads = [name for name in LOADS_CODE if fnmatchcase(name, pattern)]
        if loads:
            yield _warn(
                "fabric.allow_environment",
                f"{pattern} lets users set {', '.join(loads)}: code in every rank, or the"
                " bootstrap's secret",
                "name single harmless variables",
            )


def _artifacts(policy: Policy) -> Iterator[Remark]:
    checkpoint = policy.checkpoint
    if checkpoint.unpickle is not UnpickleMode.ENFORCE:
        yield _warn(
            "checkpoint.unpickle",
            f"{checkpoint.unpickle}: a pickle from another rank or in a file may run any code",
            "unpickle: enforce",
        )
    for name in checkpoint.allow_globals:
        if any(fnmatchcase(name, pattern) for pattern in DANGEROUS_GLOBALS):
            yield _warn("checkpoint.allow_globals", f"{name} lets a pickle run code", "remove it")
    for path in checkpoint.allow_pickles_in:
        yield _warn(
            "checkpoint.allow_pickles_in",
            f"any file in {path} may run code when a script loads it",
            "convert such files ('securetrain convert') and remove it",
        )
    log = checkpoint.log
    if log is not None and not log.witnesses:
        yield _warn(
            "checkpoint.log.witnesses",
            "only the node that makes a run watches its log, which it could rewrite itself",
            "name the keys of several nodes: securetrain log witness-key",
        )
    elif log is not None and 2 * log.quorum <= len(log.witnesses):
        yield _warn(
            "checkpoint.log.quorum",
            f"{log.quorum} of {len(log.witnesses)}: two quorums need not have a witness in common,"
            " so each could be shown a history of its own",
            f"quorum: {len(log.witnesses) // 2 + 1}",
        )
    if not checkpoint.require_lineage:
        yield _warn(
            "checkpoint.require_lineage",
            "a checkpoint may be verified that names no run, data or policy",
            "require_lineage: true",
        )


def _gradients(policy: Policy, loaded: LoadedPolicy) -> Iterator[Remark]:
    gradients = policy.gradients
    if gradients.mode is GuardMode.OFF:
        yield _warn("gradients.mode", "nobody watches the gradients", "mode: detect")
        for name in (
            "response",
            "data",
            "false_alarms_per_million_rank_steps",
            "threshold",
            "max_refused_steps",
        ):
            if f"gradients.{name}" in loaded.sources:
                yield _warn(
                    f"gradients.{name}", "has no effect while the guard is off", "mode: detect"
                )
    elif gradients.response is GuardResponse.OBSERVE:
        yield _warn(
            "gradients.response",
            "a step with refused gradients is applied all the same",
            "response: skip-step",
        )
    if gradients.mode is GuardMode.DETECT:
        yield from _false_alarms(gradients)
    if not policy.checkpoint.require_clean_verdict and gradients.mode is GuardMode.DETECT:
        yield _warn(
            "checkpoint.require_clean_verdict",
            "verify accepts checkpoints whatever the guard saw",
            "require_clean_verdict: true",
        )


def _false_alarms(gradients: Gradients) -> Iterator[Remark]:
    """A budget that the response cannot afford, and fields of the tests before these."""
    budget = gradients.budget
    ended = min(1.0, budget * RUN_RANK_STEPS / 1e6)
    if gradients.response is GuardResponse.HALT and ended > AFFORDABLE:
        yield _warn(
            "gradients.response",
            f"one false alarm ends the run, and {budget:g} in a million rank-steps are allowed: up"
            f" to {ended:.0%} of honest runs of 2,000 steps on 8 ranks, more with small batches",
            "response: exclude-rank, or false_alarms_per_million_rank_steps: 1",
        )
    if gradients.threshold is not None:
        yield _warn(
            "gradients.threshold",
            f"no longer used: read as false_alarms_per_million_rank_steps: {budget:g}",
            f"false_alarms_per_million_rank_steps: {budget:g}",
        )
    if gradients.warmup_steps is not None:
        yield _warn(
            "gradients.warmup_steps",
            "no longer used: the tests are exact from the first step on",
            "remove it",
        )
