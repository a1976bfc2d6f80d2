# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The job network of one run on this node: up before the node joins, down after the workers.

Rules:

1. what launchers that were killed left on this machine is removed before anything is built;
2. the launcher stays in the host's network, with its connection to the coordinator; the store's
   sockets and the workers are inside (`rendezvous.wire.tunnel`, `Overlay.command`). A worker has no
   capabilities and mounts of its own, so that it can neither leave nor reach the engine;
3. when the engine dies the run ends with its error (ST-NETW-014), and its workers with it;
4. a job of several nodes joins a coordinator that every node reaches (``--rdzv-endpoint``);
5. workers see no RDMA devices, unless the profile is one for RDMA. Then what stands behind it is
   looked at for the members of every epoch, and watched: when it is gone the run ends (rule 3);
6. the only way out of it is a proxy of the launcher's, to places that the policy names (`egress`);
7. under ``nccl-tls`` each worker inherits NCCL's key of the epoch (`exec_private`).
"""

import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final, Self

from securetrain.core.errors import NetworkError, RuntimeRefusal
from securetrain.core.files import write_atomic
from securetrain.core.vocabulary import OPEN_EGRESS, EnforcementMode, NetworkProfile
from securetrain.launch.agent.elastic_agent import Plan as WorkerPlan
from securetrain.launch.network.address import announced_address
from securetrain.launch.node.confinement import Inside
from securetrain.ledger import Ledger, events
from securetrain.network import (
    TUNNELLED,
    Probe,
    Verbs,
    Watcher,
    engines,
    label,
    leftovers,
    nccl,
    rootless,
    subnet,
)
from securetrain.network.overlay import Overlay, Plan
from securetrain.network.rdma import RDMA_DEVICES
from securetrain.network.wireguard import Endpoint, WireGuardKey
from securetrain.policy.schema import Network, Policy
from securetrain.rendezvous.wire import Membership, Tunnel

NCCL_KEY: Final = "nccl.key"
"""In the job network's folder, which only root enters: NCCL's key of the current epoch."""


def no_fabric_check(_profile: NetworkProfile) -> str:
    """For whoever looks at neither NCCL nor RDMA."""
    return "nobody looked whether NCCL can do this here"


def prober(
    *,
    max_nodes: int,
    joins: bool,
    fabric_obstacle: Callable[[NetworkProfile], str] = no_fabric_check,
) -> Probe:
    """Make the probe of whether this launch can give its job a profile (`network.profile.achieve`).

    Args:
        max_nodes: The upper end of ``--nnodes``.
        joins: Whether the coordinator is one that every node reaches.
        fabric_obstacle: Says why NCCL cannot do beside the tunnel what a profile promises
            (`launch.fabric`).
    """

    def probe(profile: NetworkProfile) -> str:
        if max_nodes > 1 and not joins:
            return (
                f"the job may have {max_nodes} nodes, and they need one coordinator that each"
                " reaches (--rdzv-endpoint)"
            )
        if profile is NetworkProfile.STORE_TLS:
            return ""
        if profile in {NetworkProfile.OVERLAY, NetworkProfile.OVERLAY_ROOTLESS}:
            return engines.probe(profile)
        return engines.probe(NetworkProfile.OVERLAY) or fabric_obstacle(profile)

    return probe


def needs_network(profile: NetworkProfile) -> bool:
    """Return whether a profile means that a job network is built."""
    return profile in TUNNELLED


def egress_label(network: Network, profile: NetworkProfile | None) -> str:
    """Say that the way out is not limited, when the policy means to limit it and nothing does."""
    if not network.egress or profile is None or needs_network(profile):
        return ""
    return f"{OPEN_EGRESS}: under {profile} workers use the machine's network"


def record_open_egress(policy: Policy, profile: NetworkProfile, ledger: Ledger) -> str:
    """Record that workers have the machine's network, so that nothing limits their way out.

    Returns:
        The label; empty when the policy means to limit nothing.

    Raises:
        RuntimeRefusal: ST-RUNT-021, the policy requires that it is.
    """
    network = policy.network
    label = egress_label(network, profile)
    if label and policy.enforcement is EnforcementMode.REQUIRE:
        error = RuntimeRefusal(
            "ST-RUNT-021",
            f"the network profile {profile} cannot limit the way out, and the policy requires that"
            " all of it is enforced (enforcement)",
            "policy: network.egress",
            "require a profile with a network of the job's own (network.require: [overlay]), or"
            " enforcement: report",
        )
        ledger.write(events.ProfileRefused.of(error))
        raise error
    if label:
        places = " ".join(network.egress)[:2000]
        ledger.write(events.EgressUnlimited(places=places, network=profile))
    return label


@dataclass(slots=True, kw_only=True)
class JobNetwork:
    """A job network that is up. Made by `up`."""

    overlay: Overlay
    endpoint: IPv4Address | IPv6Address
    ledger: Ledger
    profile: NetworkProfile = NetworkProfile.OVERLAY
    verbs: Verbs | None = None
    """This node's RDMA port, under a profile that uses it."""
    problem: NetworkError | None = field(default=None)
    """Why the run cannot go on, or what could not be removed at its end."""
    is_down: bool = False
    watcher: Watcher | None = None
    """Of what stands behind the RDMA traffic of this epoch."""

    @classmethod
    def up(
        cls,
        *,
        job: str,
        node: str,
        coordinator: str,
        bind: str,
        ledger: Ledger,
        profile: NetworkProfile = NetworkProfile.OVERLAY,
        verbs: Verbs | None = None,
        forwarded_endpoint: Endpoint | None = None,
    ) -> Self:
        """Clean up after the dead, then build this node's part, without members.

        Args:
            job: The job's id.
            node: This node's name, as in its certificate.
            coordinator: Its host and port.
            bind: This node's address on the underlay; empty for the one from which it reaches the
                coordinator.
            ledger: Where what happens is recorded.
            profile: The achieved profile, for which this is built.
            verbs: This node's RDMA port, when the profile uses one.
            forwarded_endpoint: In a user namespace: the machine's address and port that lead here.

        Raises:
            NetworkError: ST-NETW-010 and what follows it (`Overlay.up`).
            AdmissionError: ST-ADMN-007 when there is no way to the coordinator.
            UsageError: ST-USAG-001 for an address that is none.
        """
        gone = leftovers.collect()
        if gone.removed or gone.problems:
            ledger.write(
                events.LeftoversRemoved(
                    subject=" ".join(gone.removed)[:200], problems=" ".join(gone.problems)[:2000]
                )
            )
        endpoint = (
            forwarded_endpoint.address
            if forwarded_endpoint
            else announced_address(coordinator, bind)
        )
        here = rootless.INNER_ADDRESS if forwarded_endpoint else endpoint
        overlay = Overlay.up(
            Plan(
                job=job,
                node=node,
                key=WireGuardKey.generate(),
                endpoint=None if here.is_loopback else here,
                port=forwarded_endpoint.port if forwarded_endpoint else 0,
            )
        )
        network = cls(
            overlay=overlay, endpoint=endpoint, ledger=ledger, profile=profile, verbs=verbs
        )
        try:
            ledger.write(
                events.JobNetworkUp(
                    subject=overlay.names.namespace,
                    engine=overlay.engine.name,
                    endpoint=f"{endpoint} port {overlay.port}",
                    key=network.tunnel.key,
                    profile=label(profile),
                    network=profile,
                    rdma=str(verbs.place) if verbs else "",
                )
            )
            overlay.watch(network._died)
        except BaseException:
            network.down()
            raise
        return network

    @property
    def tunnel(self) -> Tunnel:
        """For the rendezvous."""
        return Tunnel(
            overlay=self.overlay,
            endpoint=self.endpoint,
            applied=self._applied,
            profile=self.profile,
        )

    def inside(self, plan: WorkerPlan) -> WorkerPlan:
        """The same workers, started in the job network and in no sandbox.

        Raises:
            NetworkError: ST-NETW-014 when it is down.
        """
        program, *arguments = self.overlay.command(
            [plan.program, *plan.arguments],
            hidden=() if self.verbs else (RDMA_DEVICES,),
            inherited_files=self._inherited_files,
        )
        return replace(plan, program=program, arguments=tuple(arguments))

    @property
    def members(self) -> str:
        """The addresses of the job."""
        return str(subnet(self.overlay.plan.job))

    def listen(self, address: str) -> socket.socket:
        """A socket of this process that listens in the job network.

        Raises:
            OSError: There is no such address in it.
        """
        with self.overlay.namespace.entered():
            return socket.create_server((address, 0), backlog=128)

    @property
    def for_sandbox(self) -> Inside:
        """The same for workers in a sandbox (`confinement`)."""
        return Inside(
            netns=str(self.overlay.namespace.path),
            names=self.overlay.namespace.name_files(self.overlay.folder),
            rdma=self.verbs is not None,
            inherited_files=self._inherited_files,
        )

    @property
    def _inherited_files(self) -> dict[str, Path]:
        is_keyed = self.profile is NetworkProfile.NCCL_TLS
        return {nccl.KEY_VARIABLE: self.overlay.folder / NCCL_KEY} if is_keyed else {}

    def down(self) -> None:
        """Take it down; without effect the second time. A failure is in `problem`."""
        if self.is_down:
            return
        self.is_down = True
        self._unwatch()
        try:
            self.overlay.down()
        except NetworkError as error:
            self.problem = self.problem or error
        if self.problem is not None:
            self.ledger.write(events.JobNetworkFailed.of(self.problem))
        else:
            self.ledger.write(events.JobNetworkDown(subject=self.overlay.names.namespace))

    def _applied(self, membership: Membership, nccl_key: str) -> None:
        if self.profile is NetworkProfile.NCCL_TLS:
            if not nccl_key:
                raise nccl.no_key("the coordinator sent none")
            write_atomic(self.overlay.folder / NCCL_KEY, nccl_key.encode(), mode=0o600)
        if self.verbs is not None:
            self._guard_rdma(self.verbs, membership)
        self.ledger.write(
            events.EpochApplied(
                subject=f"epoch {membership.epoch}",
                address=str(self.overlay.address),
                nodes=" ".join(member.node for member in membership.members)[:2000],
            )
        )

    def _guard_rdma(self, verbs: Verbs, membership: Membership) -> None:
        """Look at what stands behind RDMA to these members, and go on looking (rule 5)."""
        self._unwatch()
        others = [m.address for m in membership.members if m.node != self.overlay.plan.node]
        verbs = verbs.with_members([ip_address(address) for address in others])
        self.watcher = Watcher(verbs, lambda how: self._died(verbs.failure(how)))
        self.ledger.write(
            events.RdmaGuarded(
                subject=str(verbs.place),
                profile=label(self.profile),
                network=self.profile,
                isolation=str(verbs.isolation.statement)[:500] if verbs.isolation else "",
                members=len(others),
            )
        )

    def _unwatch(self) -> None:
        if self.watcher is not None:
            self.watcher.stop()

    def _died(self, error: NetworkError) -> None:
        """In the watcher's thread: have the main thread end the workers."""
        self.problem = error
        os.kill(os.getpid(), signal.SIGTERM)
