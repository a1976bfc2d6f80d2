# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The choice of a job's network profile.

Rules, in order:

1. the policy lists the profiles that it accepts, in order of preference; ``--require`` narrows the
   list and can never widen it;
2. the first profile that this machine can really give is used, and its label is computed from what
   was achieved;
3. when none can be given the job is refused with the reason for each: there is no fall-back to a
   network in the clear.

``loopback`` is a property of the job (one machine, no byte leaves it), so it needs nothing but a
job of one node. ``store-tls`` needs nothing of a machine either: only the store's connections are
carried over TLS, everything else travels in the clear: DEGRADED. The others are built on a job
network (`overlay`) that carries everything: the store, Gloo, RPC and NCCL's bootstrap. They differ
in what NCCL's data does:

================  =============================================================================
overlay           through the tunnel, like everything else
overlay-rootless  the same, through processes of the user
nccl-tls          through the tunnel, and inside it TLS 1.3 from worker to worker
ipsec-offload     by RDMA, past the tunnel, encrypted by the network card (`ipsec`)
rdma-trusted      by RDMA, past the tunnel, in the clear: DEGRADED
================  =============================================================================

A `Probe` finds out whether this machine can give one; a caller without a probe gets none.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from securetrain.core.errors import NetworkError
from securetrain.core.vocabulary import NetworkProfile, degraded_label
from securetrain.policy.schema import Network

Probe: TypeAlias = Callable[[NetworkProfile], str]
"""Why this machine cannot give a profile that needs a job network; empty when it can."""

VERBS: Final = frozenset({NetworkProfile.IPSEC_OFFLOAD, NetworkProfile.RDMA_TRUSTED})
"""Profiles under which NCCL's data leaves the machine by RDMA verbs."""

TUNNELLED: Final = VERBS | {
    NetworkProfile.OVERLAY,
    NetworkProfile.OVERLAY_ROOTLESS,
    NetworkProfile.NCCL_TLS,
}
"""Profiles whose job has a network of its own."""


def no_overlay_probe(_profile: NetworkProfile) -> str:
    """The probe of whoever does not build job networks."""
    return "this version does not build WireGuard job networks"


def achieve(
    network: Network,
    max_nodes: int,
    *,
    require: Sequence[NetworkProfile] = (),
    probe: Probe = no_overlay_probe,
) -> NetworkProfile:
    """Choose the profile for a job of at most `max_nodes` machines.

    Args:
        network: The policy's section.
        max_nodes: The upper end of ``--nnodes``.
        require: The user's demands on top of the policy (``--require``), in order.
        probe: Whether an overlay can be built here; `engines.probe` for whoever builds it.

    Raises:
        NetworkError: ST-NETW-001 with the reason for every profile that was considered.
    """
    forbidden = [profile for profile in require if profile not in network.require]
    if forbidden:
        raise NetworkError(
            "ST-NETW-001",
            f"--require {forbidden[0]}: the policy accepts only {_names(network.require)}",
            "policy: network.require",
            "choose another policy, or add the profile to network.require",
        )
    wanted = tuple(require) or network.require
    reasons: list[str] = []
    for profile in wanted:
        reason = obstacle(profile, max_nodes, probe)
        if not reason:
            return profile
        reasons.append(f"{profile}: {reason}")
    raise NetworkError(
        "ST-NETW-001",
        "; ".join(reasons),
        "policy: network.require" if not require else "--require",
        _fix(wanted, max_nodes),
    )


def obstacle(profile: NetworkProfile, max_nodes: int, probe: Probe = no_overlay_probe) -> str:
    """Explain why a profile cannot be given to a job of `max_nodes` machines; empty when it can."""
    match profile:
        case NetworkProfile.LOOPBACK:
            if max_nodes == 1:
                return ""
            return f"the job may have {max_nodes} nodes, and loopback ends at one machine"
        case NetworkProfile.STORE_TLS:
            return probe(profile) if max_nodes > 1 else "the job has one node: use loopback"
        case _ if profile in TUNNELLED:
            return probe(profile)
        case _:
            raise ValueError(f"unknown network profile {profile!r}")


def label(profile: NetworkProfile) -> str:
    """The label that people see: the profile and what it means for the job's bytes."""
    match profile:
        case NetworkProfile.LOOPBACK:
            return "loopback (no byte of the job leaves this machine)"
        case NetworkProfile.STORE_TLS | NetworkProfile.RDMA_TRUSTED:
            return degraded_label(profile)
        case NetworkProfile.OVERLAY_ROOTLESS:
            return f"{profile} (encrypted between machines; slow, through processes of the user)"
        case NetworkProfile.OVERLAY:
            return f"{profile} (encrypted between machines)"
        case NetworkProfile.NCCL_TLS:
            return f"{profile} (encrypted between machines, NCCL from worker to worker)"
        case NetworkProfile.IPSEC_OFFLOAD:
            return f"{profile} (encrypted between machines, RDMA by the network card)"
        case _:
            raise ValueError(f"unknown network profile {profile!r}")


def _names(profiles: Sequence[NetworkProfile]) -> str:
    return ", ".join(profiles)


def _fix(wanted: Sequence[NetworkProfile], max_nodes: int) -> str:
    if VERBS & set(wanted) or NetworkProfile.NCCL_TLS in wanted:
        return "give this machine what is missing, or use a policy that accepts overlay"
    one_node = "run on one node (--nnodes 1) under a policy that accepts loopback"
    if max_nodes > 1 and NetworkProfile.OVERLAY in wanted:
        return f"install what is missing, be root, give --rdzv-endpoint; or {one_node}"
    if max_nodes > 1:
        return one_node
    if NetworkProfile.LOOPBACK not in wanted:
        return "use a policy that accepts loopback (dev, baseline), or drop --require"
    return "run on one node (--nnodes 1)"
