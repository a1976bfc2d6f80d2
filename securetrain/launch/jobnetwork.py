# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The job network of one run on this node: up before the node joins, down after the workers.

Rules:

1. what launchers that were killed left on this machine is removed before anything is built;
2. the launcher stays in the host's network, with its connection to the coordinator; the store's
   sockets and the workers are inside (`rendezvous.tunnel`, `Overlay.command`). A worker has no
   capabilities and mounts of its own, so that it can neither leave nor reach the engine;
3. when the engine dies the run ends with its error (ST-NETW-014), and its workers with it;
4. a job of several nodes joins a coordinator that every node reaches (``--rdzv-endpoint``).
"""

import os
import signal
import socket
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, Self

from securetrain.core.errors import AdmissionError, NetworkError, UsageError
from securetrain.core.vocabulary import Boundary, NetworkProfile
from securetrain.launch.agent import Plan as WorkerPlan
from securetrain.ledger import Ledger
from securetrain.network import engines, leftovers, rootless
from securetrain.network.overlay import Overlay, Plan
from securetrain.network.profile import Probe
from securetrain.network.wireguard import WireGuardKey
from securetrain.rendezvous.entry import parse_endpoint
from securetrain.rendezvous.membership import Membership
from securetrain.rendezvous.tunnel import OVERLAYS, Tunnel

_ANY_PORT: Final = 9
"""Of a datagram socket that never sends: only the route to the address matters."""


def prober(*, max_nodes: int, joins: bool) -> Probe:
    """What says whether this launch can give an overlay to its job (`network.profile.achieve`)."""

    def probe(profile: NetworkProfile) -> str:
        if max_nodes > 1 and not joins:
            return (
                f"the job may have {max_nodes} nodes, and they need one coordinator that each"
                " reaches (--rdzv-endpoint)"
            )
        if profile is NetworkProfile.OVERLAY_ROOTLESS and not rootless.is_inside():
            return "the launcher does not enter a user namespace by itself"
        return engines.probe(profile)

    return probe


def needs_network(profile: NetworkProfile) -> bool:
    """Whether a profile means that a job network is built."""
    return profile in OVERLAYS


@dataclass(slots=True, kw_only=True)
class JobNetwork:
    """A job network that is up. Made by `up`."""

    overlay: Overlay
    endpoint: IPv4Address | IPv6Address
    ledger: Ledger
    problem: NetworkError | None = field(default=None)
    """Why the run cannot go on, or what could not be removed at its end."""
    is_down: bool = False

    @classmethod
    def up(cls, *, job: str, node: str, coordinator: str, bind: str, ledger: Ledger) -> Self:
        """Clean up after the dead, then build this node's part, without members.

        Args:
            job: The job's id.
            node: This node's name, as in its certificate.
            coordinator: Its host and port.
            bind: This node's address on the underlay; empty for the one from which it reaches the
                coordinator.
            ledger: Where what happens is recorded.

        Raises:
            NetworkError: ST-NETW-010 and what follows it (`Overlay.up`).
            AdmissionError: ST-ADMN-007 when there is no way to the coordinator.
            UsageError: ST-USAG-001 for an address that is none.
        """
        gone = leftovers.collect()
        if gone.removed or gone.problems:
            ledger.observe(
                Boundary.NETWORK,
                "leftovers-removed",
                " ".join(gone.removed)[:200],
                problems=" ".join(gone.problems)[:2000],
            )
        endpoint = _given_address(bind) if bind else own_address(coordinator)
        overlay = Overlay.up(
            Plan(
                job=job,
                node=node,
                key=WireGuardKey.generate(),
                endpoint=None if endpoint.is_loopback else endpoint,
            )
        )
        network = cls(overlay=overlay, endpoint=endpoint, ledger=ledger)
        try:
            ledger.allow(
                Boundary.NETWORK,
                "job-network-up",
                overlay.names.namespace,
                engine=overlay.engine.name,
                endpoint=f"{endpoint} port {overlay.port}",
                key=network.tunnel.key,
            )
            overlay.watch(network._died)
        except BaseException:
            network.down()
            raise
        return network

    @property
    def tunnel(self) -> Tunnel:
        """For the rendezvous."""
        return Tunnel(overlay=self.overlay, endpoint=self.endpoint, applied=self._applied)

    def inside(self, plan: WorkerPlan) -> WorkerPlan:
        """The same workers, started in the job network.

        Raises:
            NetworkError: ST-NETW-014 when it is down.
        """
        program, *arguments = self.overlay.command([plan.program, *plan.arguments])
        return replace(plan, program=program, arguments=tuple(arguments))

    def down(self) -> None:
        """Take it down; without effect the second time. What went wrong is in `problem`."""
        if self.is_down:
            return
        self.is_down = True
        try:
            self.overlay.down()
        except NetworkError as error:
            self.problem = self.problem or error
        if self.problem is not None:
            self.ledger.refuse(Boundary.NETWORK, "job-network-failed", self.problem)
        else:
            self.ledger.observe(Boundary.NETWORK, "job-network-down", self.overlay.names.namespace)

    def _applied(self, membership: Membership) -> None:
        self.ledger.allow(
            Boundary.NETWORK,
            "epoch-applied",
            f"epoch {membership.epoch}",
            address=str(self.overlay.address),
            nodes=" ".join(member.node for member in membership.members)[:2000],
        )

    def _died(self, error: NetworkError) -> None:
        """In the watcher's thread: have the main thread end the workers."""
        self.problem = error
        os.kill(os.getpid(), signal.SIGTERM)


def _given_address(text: str) -> IPv4Address | IPv6Address:
    try:
        return ip_address(text)
    except ValueError as error:
        raise UsageError(
            "ST-USAG-001", str(error), "--rdzv-conf bind", "give this machine's IP address"
        ) from error


def own_address(coordinator: str) -> IPv4Address | IPv6Address:
    """The address from which this machine reaches the coordinator. Nothing is sent.

    Raises:
        AdmissionError: ST-ADMN-007 when there is none.
        UsageError: ST-USAG-001 when `coordinator` is not a host and a port.
    """
    host, _ = parse_endpoint(coordinator)
    try:
        family, _, _, _, place = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(place)
            return ip_address(str(probe.getsockname()[0]))
    except (OSError, ValueError) as error:
        raise AdmissionError(
            "ST-ADMN-007",
            f"no way to the coordinator: {error}",
            coordinator,
            "check the address and this machine's routes",
        ) from error
