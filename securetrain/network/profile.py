# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Which network profile a job gets.

Rules, in order:

1. the policy lists the profiles that it accepts, in order of preference; ``--require`` narrows the
   list and can never widen it;
2. the first profile that this machine can really give is used, and its label is computed from what
   was achieved;
3. when none can be given the job is refused with the reason for each: there is no fall-back to a
   network in clear.

``loopback`` is a property of the job (one machine, no byte leaves it), so it needs nothing but a
job of one node. The other profiles need an engine that encrypts between machines. Whether there is
one is for a `Probe` to find out (`engines.probe`); who does not bring one cannot use one, and gets
no overlay.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from securetrain.core.errors import NetworkError
from securetrain.core.vocabulary import NetworkProfile
from securetrain.policy.schema import Network

Probe: TypeAlias = Callable[[NetworkProfile], str]
"""Why this machine cannot give one of the two overlay profiles; empty when it can."""


def not_built(_profile: NetworkProfile) -> str:
    """The probe of whoever does not build job networks."""
    return "this version does not build WireGuard job networks"


def achieve(
    network: Network,
    max_nodes: int,
    *,
    require: Sequence[NetworkProfile] = (),
    probe: Probe = not_built,
) -> NetworkProfile:
    """Choose the profile for a job of at most `max_nodes` machines.

    Args:
        network: The policy's section.
        max_nodes: The upper end of ``--nnodes``.
        require: What the user demands on top of the policy (``--require``), in order.
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


def obstacle(profile: NetworkProfile, max_nodes: int, probe: Probe = not_built) -> str:
    """Why a profile cannot be given to a job of `max_nodes` machines; empty when it can."""
    match profile:
        case NetworkProfile.LOOPBACK:
            if max_nodes == 1:
                return ""
            return f"the job may have {max_nodes} nodes, and loopback ends at one machine"
        case NetworkProfile.OVERLAY | NetworkProfile.OVERLAY_ROOTLESS:
            return probe(profile)
        case NetworkProfile.NCCL_TLS:
            return "this version does not hand pre-shared keys to NCCL"
        case NetworkProfile.IPSEC_OFFLOAD:
            return "this version cannot verify that the network card encrypts"
        case NetworkProfile.STORE_TLS:
            return "this version has no TLS relay for the store"
        case NetworkProfile.RDMA_TRUSTED:
            return "this version collects no evidence that the RDMA fabric is isolated"
        case _:
            raise ValueError(f"unknown network profile {profile!r}")


def label(profile: NetworkProfile) -> str:
    """What people see: the profile and what it means for the job's bytes."""
    match profile:
        case NetworkProfile.LOOPBACK:
            return "loopback (no byte of the job leaves this machine)"
        case NetworkProfile.STORE_TLS | NetworkProfile.RDMA_TRUSTED:
            return f"{profile} DEGRADED (some of the job's bytes travel in clear)"
        case NetworkProfile.OVERLAY_ROOTLESS:
            return f"{profile} (encrypted between machines; slow, through processes of the user)"
        case NetworkProfile.OVERLAY | NetworkProfile.NCCL_TLS | NetworkProfile.IPSEC_OFFLOAD:
            return f"{profile} (encrypted between machines)"
        case _:
            raise ValueError(f"unknown network profile {profile!r}")


def _names(profiles: Sequence[NetworkProfile]) -> str:
    return ", ".join(profiles)


def _fix(wanted: Sequence[NetworkProfile], max_nodes: int) -> str:
    one_node = "run on one node (--nnodes 1) under a policy that accepts loopback"
    if max_nodes > 1 and NetworkProfile.OVERLAY in wanted:
        return f"install what is missing, be root, give --rdzv-endpoint; or {one_node}"
    if max_nodes > 1:
        return one_node
    if NetworkProfile.LOOPBACK not in wanted:
        return "use a policy that accepts loopback (dev, baseline), or drop --require"
    return "run on one node (--nnodes 1)"
