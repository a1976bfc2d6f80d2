# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A node's part of a job network: a namespace whose only way out is WireGuard to the members.

::

    with Overlay.up(Plan(job=..., node=..., key=..., endpoint=...)) as overlay:
        overlay.watch(stop_the_job)
        overlay.apply(epoch, members)                      # every epoch of the membership
        subprocess.Popen(overlay.command([python, "train.py"]), ...)

Rules:

1. `up` builds everything without a member, so that it can be ready before anybody is admitted; then
   nobody can send anything into the job and nobody is sent anything;
2. `apply` makes an epoch's members the only peers: others are cut off at once, with the pre-shared
   key; `drop` takes single members out of an epoch that is under way. What the device then holds is
   read back and compared, and epochs only go forward;
3. a step that fails takes everything down before the error is raised; so do `down`, the end of the
   ``with`` block, and `leftovers.collect` for an owner that died;
4. when the engine dies, its device and the job's only route die with it: the job cannot fall back
   to a network in the clear, and `watch` says that it must stop;
5. nothing is made without a claim on disk (`record`), and the claim is the last thing to go;
6. at a peaceful end the programs inside go first, and the tunnel stays, for a second at most, until
   the others have been told that their connections are closed: else they would wait for silence.
   After a failure the tunnel goes at once.
"""

import json
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from securetrain.core.errors import NetworkError, SecureTrainError
from securetrain.network import record
from securetrain.network.addresses import DEVICE, PREFIX, Names, subnet
from securetrain.network.engines import Device, Engine, choose
from securetrain.network.epoch import Epoch, OverlayMember, resolve
from securetrain.network.firewall import host_members, host_rules, job_rules, load
from securetrain.network.leftovers import collect_locked, devices, remove
from securetrain.network.namespace import Namespace, write_names
from securetrain.network.process_identity import Machine, Owner, kill
from securetrain.network.record import Record
from securetrain.network.system_tools import Run, run_command
from securetrain.network.watcher import Watcher
from securetrain.network.wireguard import OVERHEAD, DeviceState, Peer, WireGuardKey, require_state

DEFAULT_MTU: Final = 1500
_DRAIN_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 0.01
MIN_MTU: Final = 576
"""The size that every IPv4 host takes (RFC 791)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The facts that a node has before the first epoch."""

    job: str
    node: str
    key: WireGuardKey
    endpoint: IPv4Address | IPv6Address | None = None
    """This node's address on the underlay, whose device's MTU counts; None takes 1500."""
    port: int = 0
    """UDP port of the tunnel; 0 for any."""
    host: str = ""
    """The namespace of the underlay; empty for this process's own."""


class Overlay:
    """A job network that is up. Made by `up`; every method may be called from any thread."""

    def __init__(self, plan: Plan, state: Path, engine: Engine, run: Run) -> None:
        self.plan = plan
        self.names = Names.of(plan.job, plan.node)
        self.folder = state / self.names.namespace
        self.namespace = Namespace(self.names.namespace, run)
        self.engine = engine
        self.port = 0
        """The tunnel's UDP port, which the node announces to the others."""
        self.epoch = -1
        self.address: IPv4Address | None = None
        """This node's address in the job network, from the first epoch on."""
        self._host = Namespace(plan.host, run)
        self._device: Device | None = None
        self._lock = threading.RLock()
        self._is_down = False
        self._peers: dict[str, Peer] = {}
        self._watchers: list[Watcher] = []

    @classmethod
    def up(
        cls,
        plan: Plan,
        *,
        state: Path = record.STATE,
        engine: Engine | None = None,
        run: Run = run_command,
    ) -> Self:
        """Build a job network without members. Leftovers of a dead owner go first.

        Args:
            plan: The network to build.
            state: Where job networks are recorded.
            engine: The engine; the first that works here when not given.
            run: Runs system tools.

        Raises:
            NetworkError: ST-NETW-010 when something is missing, ST-NETW-020 when it is up already,
                and the code of the step that failed, after which nothing is left.
        """
        overlay = cls(plan, state, engine or choose(), run)
        overlay._claim(state)
        try:
            overlay._build()
        except BaseException as error:
            overlay._undo(error)
            raise
        return overlay

    def _claim(self, state: Path) -> None:
        names, plan = self.names, self.plan
        claimed = Record(job=plan.job, node=plan.node, host=plan.host, owner=Owner.current())
        with record.locked(state):
            run = self.namespace.run
            old = collect_locked(state, Machine.current(), run, only=names.namespace)
            for folder, problem in old.problems.items():
                raise NetworkError("ST-NETW-021", problem, str(state / folder))
            taken = self.namespace.exists or names.device in devices(self._host)
            if taken and not old.alive:
                # Not ours to remove: no record says so.
                raise NetworkError(
                    "ST-NETW-020",
                    f"{names.namespace} or {names.device} exists, and no record says whose",
                    "network namespaces and devices",
                    f"ip netns delete {names.namespace}; ip link delete {names.device}",
                )
            record.claim(state, claimed)

    def _build(self) -> None:
        """Every step of rule 1; the filter stands before there is something to filter."""
        host, inside, names = self._host, self.namespace, self.names
        # An engine that is a process comes up while the rest is made.
        self._device = device = self.engine.start(host, names.device, self.folder)
        inside.create()
        load(inside, job_rules(subnet(self.plan.job)))
        write_names(self.folder, {})
        mtu = underlay_mtu(host, self.plan.endpoint) - OVERHEAD
        device.wait_ready()
        device.set_key(self.plan.key, self.plan.port)
        host.ip_batch(
            f"link set dev {names.device} mtu {mtu} addrgenmode none",
            f"link set dev {names.device} netns {inside.name}",
        )
        inside.ip_batch(f"link set dev {names.device} name {DEVICE}", f"link set dev {DEVICE} up")
        device.moved(inside, DEVICE)
        self.port = device.wait_port()
        load(host, host_rules(names.table, self.port))
        require_state(device.read(), self.plan.key, ())
        require_only_way(inside)

    def apply(self, epoch: int, members: Collection[OverlayMember]) -> None:
        """Make the members of an epoch the only nodes that this one can talk to.

        All nodes should have applied an epoch before the first of them sends: WireGuard repeats a
        handshake that found nobody only after five seconds.

        Args:
            epoch: Greater than every epoch before.
            members: All nodes of the epoch, with what this one shares with each.

        Raises:
            NetworkError: ST-NETW-014 when the job network is down; ST-NETW-017, ST-NETW-018 or
                ST-NETW-019 for what cannot be an epoch, after which the one before still holds;
                any other code after the job network was taken down.
        """
        with self._lock:
            device = self._require_up()
            if epoch <= self.epoch:
                raise NetworkError(
                    "ST-NETW-019", f"epoch {epoch} after epoch {self.epoch}", "membership"
                )
            plan = self.plan
            meaning = resolve(plan.job, plan.node, plan.key.public, members)
            try:
                self._enforce(device, meaning)
            except BaseException as error:
                self._undo(error)
                raise
            self.epoch = epoch
            others = [member.node for member in members if member.node != plan.node]
            self._peers = dict(zip(others, meaning.peers, strict=True))

    def drop(self, nodes: Collection[str]) -> None:
        """Neither hear nor speak to some members of the epoch any more; the others stay.

        Raises:
            NetworkError: ST-NETW-014 when the job network is down; any other code after it was
                taken down.
        """
        with self._lock:
            device = self._require_up()
            left = {node: peer for node, peer in self._peers.items() if node not in nodes}
            if len(left) == len(self._peers):
                return
            try:
                # The peers before the filter: a dropped node is cut off at once.
                device.set_peers(tuple(left.values()))
                require_state(device.read(), self.plan.key, left.values())
                self._set_peers(left.values())
            except BaseException as error:
                self._undo(error)
                raise
            self._peers = left

    def clear(self) -> None:
        """Hear nobody until the next epoch. The epoch's number and this node's address stay.

        Raises:
            NetworkError: ST-NETW-014 when the job network is down; any other code after it was
                taken down.
        """
        with self._lock:
            device = self._require_up()
            if not self._peers:
                return  # nobody is heard, which was read back when it became so
            try:
                device.set_peers(())
                require_state(device.read(), self.plan.key, ())
                self._set_peers(())
            except BaseException as error:
                self._undo(error)
                raise
            self._peers = {}

    def _enforce(self, device: Device, epoch: Epoch) -> None:
        # The filter before the peers, or else their first handshake is lost.
        self._set_peers(epoch.peers)
        device.set_peers(epoch.peers)
        require_state(device.read(), self.plan.key, epoch.peers)
        if epoch.address != self.address:
            self.namespace.ip_batch(
                f"address flush dev {DEVICE}",
                f"address add {epoch.address}/{PREFIX} dev {DEVICE}",
            )
            self.address = epoch.address
        write_names(self.folder, epoch.hosts)
        require_only_way(self.namespace)

    def _set_peers(self, peers: Iterable[Peer]) -> None:
        load(self._host, host_members(self.names.table, [peer.endpoint for peer in peers]))

    def command(
        self,
        argv: Sequence[str],
        *,
        keep_capabilities: bool = False,
        hidden: Collection[Path] = (),
        inherited_files: Mapping[str, Path] | None = None,
    ) -> list[str]:
        """The command that runs a program in the job network (`Namespace.program_command`).

        Raises:
            NetworkError: ST-NETW-014 when the job network is down.
        """
        with self._lock:
            self._require_up()
            return self.namespace.program_command(
                argv,
                self.folder,
                keep_capabilities=keep_capabilities,
                hidden=hidden,
                inherited_files=inherited_files,
            )

    def read(self) -> DeviceState:
        """Read the device: peers, their last handshake, bytes.

        Raises:
            NetworkError: ST-NETW-014 when the job network is down.
        """
        with self._lock:
            return self._require_up().read()

    def watch(self, died: Callable[[NetworkError], None]) -> None:
        """Call `died` once, from a thread of its own, when the engine dies before `down`.

        The error is ST-NETW-014. The job cannot go on: end its workers, then call `down`.

        Raises:
            NetworkError: ST-NETW-014 when the job network is down already.
        """
        with self._lock:
            device = self._require_up()
            self._watchers.append(Watcher(device, lambda how: died(self._died(how))))

    def down(self) -> None:
        """Take everything down, processes inside included; without effect the second time.

        What these have to say at their end is still sent, so that the others know (rule 6).

        Raises:
            NetworkError: ST-NETW-021 with everything that could not be removed;
                ``securetrain network gc`` tries again once this process has ended.
        """
        self._take_down(in_peace=True)

    def _take_down(self, *, in_peace: bool) -> None:
        with self._lock:
            if self._is_down:
                return
            self._is_down = True
            for watcher in self._watchers:
                watcher.stop()
            if self._device is not None:
                if in_peace:
                    self._drain(self._device)
                self._device.close()
            remove(self.names, self._host, self.folder)

    def _drain(self, device: Device) -> None:
        """Rule 6. Whatever goes wrong here is no reason to keep the network up."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        with suppress(SecureTrainError, OSError, ValueError):
            kill(self.namespace.processes())
            while not device.failure_reason():
                device.read()  # An engine that answers has come to its turn since they ended.
                if not self.namespace.has_unacknowledged_close() or time.monotonic() > deadline:
                    return
                time.sleep(_PAUSE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.down()
        else:
            self._undo(error)

    def _undo(self, error: BaseException) -> None:
        """Take everything down because of an error, which stays the one that is told."""
        try:
            self._take_down(in_peace=False)
        except SecureTrainError as second:
            error.add_note(str(second))

    def _require_up(self) -> Device:
        if self._is_down:
            raise self._died("it was taken down")
        device = self._device
        assert device is not None  # from `up` on
        if how := device.failure_reason():
            raise self._died(how)
        return device

    def _died(self, how: str) -> NetworkError:
        return NetworkError(
            "ST-NETW-014",
            f"node {self.plan.node} has no network any more: {how}",
            f"WireGuard engine {self.engine.name}",
        )


def require_only_way(namespace: Namespace) -> None:
    """Refuse a job namespace with another device that is up, or a route that leaves the tunnel.

    The kernel puts fallback devices of loaded tunnel modules into every namespace; they are down,
    and a job has no right to change that.

    Raises:
        NetworkError: ST-NETW-023.
    """
    links, routes = namespace.ip_batch("link show", "route show table all")
    ways = {str(link["ifname"]) for link in links if "UP" in link.get("flags", ())}
    ways |= {str(route.get("dev")) for route in routes}
    if not ways <= {"lo", DEVICE}:
        raise NetworkError(
            "ST-NETW-023",
            f"ways out: {', '.join(sorted(ways - {'lo', DEVICE}))}",
            f"network namespace {namespace.name}",
        )


def underlay_mtu(host: Namespace, endpoint: IPv4Address | IPv6Address | None) -> int:
    """The MTU of the device that has an address of the underlay.

    Raises:
        NetworkError: ST-NETW-018 when none has it.
    """
    if endpoint is None:
        return DEFAULT_MTU
    _, mtu = underlay_device(host, endpoint)
    return max(mtu, MIN_MTU + OVERHEAD)


def underlay_device(host: Namespace, endpoint: IPv4Address | IPv6Address) -> tuple[str, int]:
    """The name and the MTU of the device that has an address of the underlay.

    Raises:
        NetworkError: ST-NETW-018 when none has it.
    """
    for link in json.loads(host.ip("-json", "address", "show")):
        if any(held.get("local") == str(endpoint) for held in link.get("addr_info", ())):
            return str(link["ifname"]), int(link["mtu"])
    raise NetworkError(
        "ST-NETW-018",
        f"no device of this machine has the address {endpoint}",
        "endpoint of this node",
        "announce an address that this machine has",
    )
