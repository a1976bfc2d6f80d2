# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A look at this machine: network profiles, the sandbox's parts, attesters, policies.

Rules:

1. the probes are those of the launcher: what is said here is what ``securetrain run`` would find.
   A sandbox is made and ended (`sandbox.trial`); nothing is changed, built or joined;
2. what does not work names its reason and what to install. A probe that fails is a reason, never a
   pass.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Final

from securetrain.attest.node import AUTO, settings_for
from securetrain.audit import Facts, audit, load_checks, node_facts
from securetrain.core import ExitCode
from securetrain.core.errors import SecureTrainError
from securetrain.core.vocabulary import NetworkProfile, PreflightMode, SandboxMode
from securetrain.launch.network.fabric import Fabric
from securetrain.launch.network.jobnetwork import prober
from securetrain.launch.node.confinement import limits_of
from securetrain.launch.node.supply_chain import check_torch
from securetrain.launch.sandbox.trial import lacking_here
from securetrain.network import TUNNELLED, VERBS, achieve, engines
from securetrain.policy import load_policy
from securetrain.policy.schema import Policy

POLICIES: Final = ("dev", "baseline", "hardened")
_WIREGUARD: Final = "wireguard-go 0.0.20231211 or newer, or WireGuard in the kernel"
_GUEST: Final = Path("/sys/kernel/config/tsm/report")


class Kind(StrEnum):
    """The kinds of things that are looked at."""

    TORCH = "torch"
    PROFILE = "network profile"
    SANDBOX = "sandbox"
    ATTESTER = "attester"
    POLICY = "policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing, and whether it works here."""

    kind: Kind
    name: str
    problem: str = ""
    """Why it does not work; empty when it does."""
    fix: str = ""

    @property
    def works(self) -> bool:
        """Tell whether it works."""
        return not self.problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Everything that was looked at."""

    findings: tuple[Finding, ...]
    asked: str
    """The policy that was asked for."""

    @property
    def exit_code(self) -> int:
        """0 when torch and the policy that was asked for work."""
        needed = [f for f in self.findings if f.kind is Kind.TORCH]
        needed += [f for f in self.findings if (f.kind, f.name) == (Kind.POLICY, self.asked)]
        return int(ExitCode.OK if all(f.works for f in needed) else ExitCode.FAILURE)


def diagnose(asked: str, environ: Mapping[str, str], now: datetime) -> Diagnosis:
    """Look at this machine.

    Args:
        asked: The policy that decides the exit code: a shipped one's name, or a file.
        environ: This process's environment.
        now: The time, timezone-aware.

    Raises:
        PolicyError: ST-PLCY-001 to 004 for the policy that was asked for.
    """
    policies = {name: load_policy(name).policy for name in dict.fromkeys([*POLICIES, asked])}
    attesters = list(_attesters())
    lacking = lacking_here()
    facts = node_facts(environ, now)
    is_attested = any(f.works for f in attesters)
    return Diagnosis(
        asked=asked,
        findings=(
            _torch(policies[asked]),
            *map(_profile, NetworkProfile),
            *_sandbox(lacking),
            *attesters,
            *(
                _policy(n, p, facts, now, lacking=lacking, is_attested=is_attested)
                for n, p in policies.items()
            ),
        ),
    )


def _torch(policy: Policy) -> Finding:
    try:
        return Finding(kind=Kind.TORCH, name=f"torch {check_torch(policy)}")
    except SecureTrainError as error:
        return Finding(kind=Kind.TORCH, name="torch", problem=error.what, fix=error.fix)


def _profile(profile: NetworkProfile) -> Finding:
    problem, fix = "", ""
    if profile in VERBS:
        problem = engines.probe(NetworkProfile.OVERLAY)
        problem = problem or "an RDMA port is looked for when a job joins: --rdzv-endpoint"
        fix = "start a job with --require, which names what its port lacks"
    elif profile is NetworkProfile.NCCL_TLS:
        fabric = Fabric(network=load_policy("dev").policy.network, coordinator="")
        problem = engines.probe(NetworkProfile.OVERLAY) or fabric.obstacle(profile)
        fix = "install a torch with an NCCL that encrypts"
    elif profile in TUNNELLED:
        problem = engines.probe(profile)
        fix = f"install what is missing: {_WIREGUARD}"
        if os.geteuid() == 0 and profile is NetworkProfile.OVERLAY_ROOTLESS:
            fix = "ask as an ordinary user"
        elif os.geteuid() != 0 and profile is NetworkProfile.OVERLAY:
            fix = "run as root"
    elif profile is NetworkProfile.STORE_TLS:
        fix = "DEGRADED: a policy has to name it, and say why nobody else is on the network"
    return Finding(kind=Kind.PROFILE, name=profile, problem=problem, fix=fix)


def _attesters() -> Sequence[Finding]:
    found = settings_for(AUTO, Path("/nonexistent"))
    has_gpu = Path("/proc/driver/nvidia/version").exists()
    return (
        Finding(
            kind=Kind.ATTESTER,
            name="TPM 2.0",
            problem="" if found.tpm is not None else "no TPM device (/dev/tpmrm0)",
            fix="switch it on in the firmware, or give the virtual machine one",
        ),
        Finding(
            kind=Kind.ATTESTER,
            name="confidential virtual machine",
            problem="" if _GUEST.is_dir() else f"no {_GUEST}",
            fix="start it as an AMD SEV-SNP or Intel TDX guest, with Linux 6.7 or newer",
        ),
        Finding(
            kind=Kind.ATTESTER,
            name="NVIDIA GPU",
            problem="" if has_gpu else "no NVIDIA driver is loaded",
            fix="install and load the NVIDIA driver",
        ),
    )


def _policy(
    name: str,
    policy: Policy,
    facts: Facts,
    now: datetime,
    *,
    lacking: Mapping[str, str],
    is_attested: bool,
) -> Finding:
    problems = [*_sandbox_problems(policy, lacking)]
    try:
        achieve(policy.network, 1, probe=prober(max_nodes=1, joins=False))
    except SecureTrainError as error:
        problems.append(error.what)
    if policy.node.allow_self_asserted is None and not is_attested:
        problems.append(f"nodes must prove themselves ({policy.node.min_tier}), and nothing can")
    if policy.host.preflight is PreflightMode.ENFORCE:
        result = audit(facts, load_checks(), policy, now)
        if result.exit_code != ExitCode.OK:
            problems.append("the preflight audit refuses this machine")
    return Finding(
        kind=Kind.POLICY,
        name=name,
        problem="; ".join(problems),
        fix=f"see every finding and its fix: securetrain audit --node --policy {name}",
    )


def _sandbox(lacking: Mapping[str, str]) -> Sequence[Finding]:
    return tuple(
        Finding(kind=Kind.SANDBOX, name=name, problem=lacking.get(part, ""), fix=fix)
        for part, (name, fix) in SANDBOX.items()
        if part in lacking or part != "gaps"
    )


def _sandbox_problems(policy: Policy, lacking: Mapping[str, str]) -> Sequence[str]:
    """The reasons for which a policy refuses the workers' sandbox as it would be here."""
    is_alone = NetworkProfile.LOOPBACK in policy.network.require
    wanted = {"limits": bool(limits_of(policy.host)), "network": is_alone}
    asked = {name for name in SANDBOX if wanted.get(name, True)}
    missing = [f"{SANDBOX[part][0]} ({why})" for part, why in lacking.items() if part in asked]
    if policy.host.sandbox is not SandboxMode.REQUIRED or not missing:
        return ()
    return (f"the sandbox lacks {'; '.join(missing)}",)


SANDBOX: Final[Mapping[str, tuple[str, str]]] = {
    "namespaces": ("namespaces", "use a kernel, or a container, that allows namespaces"),
    "user": ("user", "work in a folder of a file system that can map ids (ext4, xfs, btrfs)"),
    "landlock": ("Landlock", "boot with lsm=landlock,... on Linux 5.13 or newer"),
    "seccomp": ("seccomp", "use a kernel with CONFIG_SECCOMP_FILTER on x86-64 or aarch64"),
    "network": ("a network of their own", "use a container that allows network namespaces"),
    "gaps": ("details", "see docs/explanation/sandbox.md"),
    "limits": (
        "limits of memory and tasks",
        "boot with systemd.unified_cgroup_hierarchy=1; systemd-run --scope -p Delegate=yes ...",
    ),
}
"""The parts of `sandbox.PARTS`: the name, and what to do when a machine does not give it."""
