# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Nodes for benchmarks of the network: two hosts on a link, job networks, processes in both.

A host is a network namespace; the link is a pair of veth devices, so that nothing between the two
needs processor time of its own. Each host sends at most `RATE`: a token bucket (tc-tbf(8)) on its
device. Plain traffic and the tunnel's packets go through the same bucket.
"""

import multiprocessing
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from securetrain.network.addresses import address
from securetrain.network.engines import missing_here
from securetrain.network.epoch import OverlayMember
from securetrain.network.namespace import Namespace
from securetrain.network.overlay import Overlay, Plan
from securetrain.network.wireguard import Endpoint, WireGuardKey, pairwise_psk
from securetrain.testing.cluster import DEVICE, UNDERLAY, Host

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

RATE: Final = "1gbit"
BURST: Final = "256kb"
"""Two milliseconds of the rate: what a timer of a busy machine needs to keep it up."""
LATENCY: Final = "50ms"
"""How long a packet may wait in the bucket's queue."""
PORT: Final = 51820
_PATIENCE: Final = 300.0
_HERE: Final = ExitStack()
"""Of a process that is somewhere else: never left."""


def lacking() -> list[str]:
    """What a machine needs for nodes and has not; empty when there can be some."""
    import shutil

    return [*missing_here(), *([] if shutil.which("tc") else ["the program tc (package iproute2)"])]


def settle(namespace: str) -> None:
    """Be in a network namespace from now on, with every thread that is still to come."""
    if namespace:
        _HERE.enter_context(Namespace(namespace).entered())


def shape(host: Host, rate: str = RATE) -> None:
    """Make a host send at most so much."""
    bucket = ["rate", rate, "burst", BURST, "latency", LATENCY]
    host.namespace.execute("tc", "qdisc", "replace", "dev", DEVICE, "root", "tbf", *bucket)


@dataclass(frozen=True, slots=True)
class Node:
    """A host with its end of a job network."""

    host: Host
    overlay: Overlay

    @property
    def address(self) -> str:
        """Its address in the job network."""
        return str(self.overlay.address)


@contextmanager
def job_network(hosts: Sequence[Host], state: Path) -> Iterator[list[Node]]:
    """A job network over hosts, in its first epoch."""
    job, secret = f"bench-{secrets.token_hex(4)}", secrets.token_bytes(32)
    keys = [WireGuardKey.generate() for _ in hosts]
    with ExitStack() as stack:
        overlays = [
            stack.enter_context(
                Overlay.up(
                    Plan(
                        job=job,
                        node=host.name,
                        key=key,
                        endpoint=host.address,
                        port=PORT,
                        host=host.name,
                    ),
                    state=state,
                )
            )
            for host, key in zip(hosts, keys, strict=True)
        ]
        for own, overlay in enumerate(overlays):
            overlay.apply(1, members(hosts, keys, own, secret))
            assert overlay.address == address(job, own)
        yield [Node(host, overlay) for host, overlay in zip(hosts, overlays, strict=True)]


def members(
    hosts: Sequence[Host], keys: Sequence[WireGuardKey], own: int, secret: bytes
) -> list[OverlayMember]:
    """An epoch as one of its nodes is told it."""
    return [
        OverlayMember(
            node=host.name,
            public_key=key.public,
            endpoint=Endpoint(host.address, PORT),
            slot=slot,
            preshared_key=b""
            if slot == own
            else pairwise_psk(secret, keys[own].public, key.public),
        )
        for slot, (host, key) in enumerate(zip(hosts, keys, strict=True))
    ]


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Two shaped hosts with nothing but a link between them."""
    name = f"stb{secrets.token_hex(3)}"
    with ExitStack() as stack:
        hosts = [Host(Namespace(f"{name}-{n}"), UNDERLAY[n + 1]) for n in range(2)]
        for host in hosts:
            stack.callback(host.namespace.remove)
            host.namespace.create()
        here, there = (["dev" if n == 0 else "name", DEVICE] for n in range(2))
        peer = ["peer", *there, "netns", hosts[1].name]
        hosts[0].namespace.ip("link", "add", *here, "type", "veth", *peer)
        for host in hosts:
            at = f"{host.address}/{UNDERLAY.prefixlen}"
            host.namespace.ip("address", "add", at, "dev", DEVICE)
            host.namespace.ip("link", "set", "dev", DEVICE, "up")
            shape(host)
        yield hosts[0], hosts[1]


class Ranks:
    """Processes that do as they are told, one thing at a time."""

    def __init__(self, pipes: "Sequence[Connection[Any, Any]]") -> None:
        self._pipes = pipes

    def do(self, order: object) -> list[Any]:
        """Have every process do something; what each answers."""
        for pipe in self._pipes:
            pipe.send(order)
        answers = []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(_PATIENCE):
                raise RuntimeError(f"rank {rank} does not answer")
            answer = pipe.recv()
            if isinstance(answer, str):
                raise RuntimeError(f"rank {rank}: {answer}")  # noqa: TRY004 - what it says
            answers.append(answer)
        return answers


@contextmanager
def ranks(
    serve: Callable[..., object], calls: Sequence[tuple[str, tuple[Any, ...]]]
) -> Iterator[Ranks]:
    """Processes in network namespaces.

    Args:
        serve: a module-level function; its first argument is a pipe on which orders come and to
            which it answers, anything but a string.
        calls: the namespace of each process, and the function's further arguments.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.nn.parallel", "benchmarks.nodes"])
    with ExitStack() as stack:
        pipes = []
        for namespace, arguments in calls:
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_process, args=(serve, namespace, theirs, arguments), daemon=True
            )
            process.start()
            stack.callback(process.join)
            stack.callback(process.kill)
            theirs.close()
            pipes.append(stack.enter_context(ours))
        yield Ranks(pipes)


def _process(serve: Callable[..., object], namespace: str, pipe: Any, arguments: Any) -> None:
    import traceback

    try:
        settle(namespace)
        serve(pipe, *arguments)
    except EOFError:
        return  # no more orders
    except BaseException:  # noqa: BLE001 - the parent says it
        pipe.send(traceback.format_exc())
