# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""How long a job's nodes take to find each other: ours against torchelastic's c10d rendezvous.

Both sides are the same: N processes, forked from one that has imported torch, wait for a signal and
then call ``next_rendezvous`` of their handler, once. A sample is the time from the signal to the
last node that has its rank and its store. All nodes are on this machine and share its cores; with
WireGuard each has a network namespace with a device on one bridge, on both sides.

Ours, in that time: the node's WireGuard engine and namespace come up, TLS with both certificates,
challenge and evidence, the signed membership, the epoch in the tunnels, and a store that is reached
through them. Certificates were issued before, as `securetrain enroll` does, and the coordinator is
a process of its own that listens already, as `securetrain coordinator` does. Stock, in that time:
node 0 opens the store, as torchrun does, and all agree through it.

``python benchmarks/join.py [NODES] [--tls-only] [--tpm] [--pairs N]`` runs one.
"""

import argparse
import multiprocessing
import os
import random
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from ipaddress import ip_address
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import ab
from securetrain.network.engines import missing_here
from securetrain.network.namespace import Namespace
from securetrain.testing.cluster import NamespaceCluster
from securetrain.testing.swtpm import missing_commands

if TYPE_CHECKING:
    from securetrain.network.overlay import Overlay
    from securetrain.policy import LoadedPolicy

LIMIT_SECONDS: Final = 30.0
"""Of one sample; a rendezvous that takes longer did not finish."""
PAIRS: Final = {64: 1}
"""As many as end within reason: with 64 nodes a sample of the reference takes half a minute."""
POLICY_FILE: Final = "policy.yaml"
GOALS: Final = {2: 1.0, 8: 0.5, 64: 0.25}
_PATIENCE: Final = 120.0
_PORTS: Final = range(20_000, 30_000)
_HERE: Final = ExitStack()
"""Of a node's process: never left."""
_PRELOAD: Final = (
    "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend",
    "torch.distributed.elastic.rendezvous.registry",
    "securetrain.attest.node.settings",
    "securetrain.network.overlay",
    "securetrain.rendezvous.coordinator.coordinator",
    "securetrain.rendezvous.member.entry",
    "securetrain.rendezvous.member.handler",
    "benchmarks.join",
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node is."""

    namespace: str = ""
    """Its host's; empty for this machine's own."""
    address: str = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Call:
    """What one process does: the function joins, what it returns leaves nothing behind."""

    join: Callable[..., Callable[[], None]]
    arguments: tuple[Any, ...]
    namespace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Seconds until every node of a job is in."""

    nodes: int
    tunnels: bool = True
    tpm: bool = False
    """Whether software TPMs speak for the nodes, or the nodes themselves."""
    pairs: int = 3
    limit: float = LIMIT_SECONDS

    @property
    def goal(self) -> ab.Goal:
        """What the project promises for so many nodes."""
        return ab.Goal(ratio=GOALS.get(self.nodes, 1.0))

    @property
    def name(self) -> str:
        """Short name."""
        tail = ("" if self.tunnels else "-tls") + ("-tpm" if self.tpm else "")
        return f"join-{self.nodes}{tail}"

    @property
    def title(self) -> str:
        """What is compared."""
        speaks = "software TPMs" if self.tpm else "self-reports"
        last = ", WireGuard" if self.tunnels else ""
        return (
            f"{self.nodes} nodes join: mutual TLS, {speaks}{last}; against stock c10d;"
            f" a sample that takes {self.limit:g} s did not finish"
        )

    def run(self, order: Sequence[ab.Side]) -> list[float]:
        """Form the job once for each entry."""
        with ExitStack() as stack:
            folder = folder_in_memory(stack)
            attesters = (
                stack.enter_context(_machines(folder, self.nodes))
                if self.tpm
                else [""] * self.nodes
            )
            places = [Place()] * self.nodes
            if self.tunnels:
                cluster = stack.enter_context(NamespaceCluster.up(self.nodes, switched=True))
                places = [Place(host.name, str(host.address)) for host in cluster.hosts]
            return [
                self._once(side, folder / f"{number}", places, attesters)
                for number, side in enumerate(order)
            ]

    def _once(
        self, side: ab.Side, folder: Path, places: Sequence[Place], attesters: Sequence[str]
    ) -> float:
        match side:
            case ab.Side.PLAIN:
                meeting = f"{places[0].address}:{_free_port()}"
                calls = [
                    Call(_stock, (n, self.nodes, meeting, place.address), place.namespace)
                    for n, place in enumerate(places)
                ]
                return together(calls, self.limit)
            case ab.Side.OURS:
                folder.mkdir()
                job = f"join-{secrets.token_hex(4)}"
                policy = str(folder.parent / POLICY_FILE) if self.tpm else ""
                with (
                    nothing_left(folder),
                    coordinator(folder, job, self.nodes, policy, places[0]) as meeting,
                ):
                    calls = [
                        Call(
                            ours,
                            (folder, job, n, self.nodes, meeting, attester)
                            + ((place.address,) if self.tunnels else ()),
                            place.namespace,
                        )
                        for n, (place, attester) in enumerate(zip(places, attesters, strict=True))
                    ]
                    return together(calls, self.limit)
            case _:
                raise ValueError(f"unknown side {side!r}")


def folder_in_memory(stack: ExitStack) -> Path:
    """A folder in memory, as /run is."""
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="join-", dir="/dev/shm")))


@contextmanager
def nothing_left(folder: Path) -> Iterator[None]:
    """Remove the job networks of nodes that were killed: those that were late, or at a signal."""
    from securetrain.network.leftovers import collect

    try:
        yield
    finally:
        for state in folder.glob("state-*"):
            for name, problem in collect(state).problems.items():
                print(f"{name} IS LEFT BEHIND: {problem}", file=sys.stderr)


@contextmanager
def _machines(folder: Path, nodes: int) -> Iterator[list[str]]:
    """Machines with software TPMs that have booted; the settings of their attesters."""
    from securetrain.identity.keys import PrivateKey
    from securetrain.testing.machine import Machine, reference_values, write_policy

    with ExitStack() as stack:
        machines = [
            stack.enter_context(Machine(folder / f"machine-{n}", node_name(n), ca=folder / "ca"))
            for n in range(nodes)
        ]
        for machine in machines:
            machine.boot()
        values = reference_values(machines, datetime.now(UTC))
        path = write_policy(folder, values, PrivateKey.generate())
        assert path.name == POLICY_FILE
        yield [str(m.write_settings(folder / f"{m.name}.json")) for m in machines]


def node_name(number: int) -> str:
    return f"node-{number}"


def _free_port() -> int:
    """Below the ports that outgoing connections get: a node that is early would take it else."""
    while True:
        port = _PORTS.start + secrets.randbelow(len(_PORTS))
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port


def together(calls: Sequence[Call], limit: float) -> float:
    """Call every function in a process of its own, all at once.

    Returns:
        Seconds until the last has returned; `limit` when one has not by then.

    Raises:
        RuntimeError: when one raises or dies.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOAD))
    go, done = context.Event(), context.Event()
    pipes = [context.Pipe(duplex=False) for _ in calls]
    processes = [
        context.Process(target=_process, args=(call, go, done, sender), daemon=True)
        for call, (_, sender) in zip(calls, pipes, strict=True)
    ]
    receivers = [receiver for receiver, _ in pipes]
    try:
        for process, (_, sender) in zip(processes, pipes, strict=True):
            process.start()
            sender.close()
        if _gather(receivers, time.monotonic() + _PATIENCE) is None:
            raise RuntimeError("the processes did not start")
        started = time.monotonic()
        go.set()
        ends = _gather(receivers, started + limit)
        done.set()
        if ends is not None:
            _gather(receivers, time.monotonic() + _PATIENCE)
        return min(max(ends) - started, limit) if ends is not None else limit
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()
                process.close()
        for receiver in receivers:
            receiver.close()


def _gather(receivers: "Sequence[Connection[Any, Any]]", deadline: float) -> list[float] | None:
    """One number from each; None when one is late."""
    found: dict[int, float] = {}
    while len(found) < len(receivers):
        missing = {receivers[n]: n for n in range(len(receivers)) if n not in found}
        ready = wait(list(missing), max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        for receiver in ready:
            assert isinstance(receiver, Connection)
            try:
                value = receiver.recv()
            except EOFError:
                raise RuntimeError("a node died without a word") from None
            if not isinstance(value, float):
                raise RuntimeError(f"a node failed: {value}")  # noqa: TRY004 - what it says
            found[missing[receiver]] = value
    return list(found.values())


def _process(call: Call, go: Any, done: Any, sender: Any) -> None:
    """What runs in a node's process: ready, joined, gone."""
    import traceback

    try:
        settle(call.namespace)
        sender.send(time.monotonic())
        go.wait()
        leave = call.join(*call.arguments)
        sender.send(time.monotonic())
        done.wait()
        leave()
        sender.send(time.monotonic())
    except BaseException:  # noqa: BLE001 - the parent says it
        sender.send(traceback.format_exc())
    finally:
        sender.close()
        os._exit(0)  # at once: a store's threads would be waited for


def settle(namespace: str) -> None:
    """Be in a network namespace from now on, with every thread that is still to come."""
    if namespace:
        _HERE.enter_context(Namespace(namespace).entered())


def _stock(number: int, nodes: int, meeting: str, address: str) -> Callable[[], None]:
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    handler = get_rendezvous_handler(
        RendezvousParameters(
            backend="c10d",
            endpoint=meeting,
            run_id="join",
            min_nodes=nodes,
            max_nodes=nodes,
            local_addr=address,
            is_host=number == 0,
        )
    )
    info = handler.next_rendezvous()
    if info.world_size != nodes:
        raise RuntimeError(f"a world of {info.world_size}")
    return partial(_keep, handler, info)


def _keep(*_: object) -> None:
    """Hold what must not end before the last node is in: a store ends with its last reference."""


def ours(  # noqa: PLR0917 - a Call has no names
    folder: Path,
    job: str,
    number: int,
    nodes: int,
    meeting: str,
    attester: str,
    address: str = "",
) -> Callable[[], None]:
    """Join; with a tunnel when there is an address for it."""
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    from securetrain.network.overlay import Overlay, Plan
    from securetrain.network.wireguard import WireGuardKey
    from securetrain.rendezvous.member.entry import TUNNEL, create_handler
    from securetrain.rendezvous.wire.tunnel import Tunnel

    config: dict[str, Any] = {"identity": str(folder / node_name(number))}
    if attester:
        config["attester"] = attester
    overlay = None
    if address:
        key, endpoint = WireGuardKey.generate(), ip_address(address)
        plan = Plan(job=job, node=node_name(number), key=key, endpoint=endpoint)
        overlay = Overlay.up(plan, state=folder / f"state-{number}")
        config[TUNNEL] = Tunnel(overlay=overlay, endpoint=endpoint)
    try:
        handler = create_handler(
            RendezvousParameters(
                backend="securetrain",
                endpoint=meeting,
                run_id=job,
                min_nodes=nodes,
                max_nodes=nodes,
                local_addr=address or None,
                **config,
            )
        )
        info = handler.next_rendezvous()
        if info.world_size != nodes:
            raise RuntimeError(f"a world of {info.world_size}")
    except BaseException:
        if overlay is not None:
            overlay.down()
        raise
    return partial(_leave, overlay, handler, info)


def _leave(overlay: "Overlay | None", *_: object) -> None:
    if overlay is not None:
        overlay.down()


@contextmanager
def coordinator(folder: Path, job: str, nodes: int, policy: str, place: Place) -> Iterator[str]:
    """A coordinator in a process of its own, whose nodes are enrolled; its address and port.

    Args:
        folder: where the nodes' identities go.
        job: the job's id.
        nodes: how many it has.
        policy: a policy file; one that lets nodes speak for themselves when empty.
        place: where it listens.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOAD))
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_coordinate, args=(folder, job, nodes, policy, place, theirs), daemon=True
    )
    process.start()
    theirs.close()
    try:
        if not ours.poll(_PATIENCE):
            raise RuntimeError("the coordinator did not start")
        yield ours.recv()
    finally:
        process.kill()
        process.join()
        process.close()
        ours.close()


def _coordinate(  # noqa: PLR0917 - a Process passes them by position
    folder: Path, job: str, nodes: int, policy: str, place: Place, pipe: Any
) -> None:
    from securetrain.identity.job_ca import JobCA
    from securetrain.identity.keys import PrivateKey
    from securetrain.ledger import Ledger
    from securetrain.policy import load_policy
    from securetrain.rendezvous.coordinator.coordinator import Coordinator
    from securetrain.rendezvous.member.identity_dir import write_identity

    def clock() -> datetime:
        return datetime.now(UTC)

    settle(place.namespace)
    loaded = load_policy(policy) if policy else lenient(nodes)
    ca = JobCA.create(loaded.policy.identity.trust_domain, job, clock())
    for number in range(nodes):
        write_identity(folder / node_name(number), ca, node_name(number), clock())
    ledger = Ledger(folder / "ledger.jsonl", PrivateKey.generate(), "coordinator", clock).begin()
    made = Coordinator(job, ca, loaded, ledger, min_nodes=nodes, max_nodes=nodes, clock=clock)
    host, port = made.start(place.address)
    pipe.send(f"{host}:{port}")
    pipe.poll(None)


def lenient(nodes: int) -> "LoadedPolicy":
    """A policy that lets so many nodes speak for themselves."""
    from securetrain.policy import LoadedPolicy, load_policy
    from securetrain.policy.load import digest_of
    from securetrain.policy.schema import SelfAsserted

    dev = load_policy("dev").policy
    exception = SelfAsserted(max_nodes=nodes, reason="a benchmark")
    node = msgspec.structs.replace(dev.node, allow_self_asserted=exception)
    policy = msgspec.structs.replace(dev, node=node)
    return LoadedPolicy(policy=policy, digest=digest_of(policy))


def _benchmarks() -> Iterator[ab.Benchmark]:
    tunnels = not missing_here()
    for nodes in GOALS:
        yield Join(nodes=nodes, tunnels=False, pairs=PAIRS.get(nodes, 3))
    if not tunnels:
        print(
            "JOINING WITH WIREGUARD IS NOT MEASURED: no root, or a tool is missing", file=sys.stderr
        )
    if tunnels:
        for nodes in GOALS:
            yield Join(nodes=nodes, pairs=PAIRS.get(nodes, 3))
    if not missing_commands():
        yield Join(nodes=2, tunnels=tunnels, tpm=True)
        yield Join(nodes=8, tunnels=tunnels, tpm=True)


BENCHMARKS: Final[tuple[ab.Benchmark, ...]] = tuple(_benchmarks())


def main(argv: Sequence[str] | None = None) -> int:
    """Run one comparison and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("nodes", nargs="?", type=int, default=2)
    parser.add_argument("--tls-only", action="store_true", help="without WireGuard")
    parser.add_argument("--tpm", action="store_true", help="software TPMs speak for the nodes")
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args(argv)
    ab.clean_up_when_terminated()
    benchmark = Join(nodes=options.nodes, tunnels=not options.tls_only, tpm=options.tpm)
    rng = random.Random(0)  # noqa: S311 - the order of samples is no secret
    print(ab.table([ab.measure(benchmark, options.pairs, rng)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
