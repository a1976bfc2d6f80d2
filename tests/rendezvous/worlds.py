# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Memberships, machines with TPMs, identities and impostors of the tests of the rendezvous."""

import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from securetrain.core.errors import SecureTrainError
from securetrain.core.vocabulary import NodeTier
from securetrain.drills.loopback_job import Job, now
from securetrain.identity.cluster_ca import ClusterCA
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.register import How
from securetrain.identity.spiffe import Role
from securetrain.policy import load_policy
from securetrain.policy.load import LoadedPolicy
from securetrain.policy.schema import Rendezvous
from securetrain.rendezvous.coordinator.assembly import Assembly
from securetrain.rendezvous.coordinator.journal import Journal
from securetrain.rendezvous.coordinator.keep import KeepNothing
from securetrain.rendezvous.coordinator.rounds import Rounds
from securetrain.rendezvous.member.identity_dir import NodeIdentity, store_identity
from securetrain.rendezvous.wire.channel import Channel
from securetrain.rendezvous.wire.membership import Member, Membership
from securetrain.rendezvous.wire.protocol import Store
from securetrain.testing.machine import Machine, reference_values, write_policy


def entry(rank: int, **said: Any) -> Member:
    """A member as a membership lists it."""
    fields: dict[str, Any] = {
        "rank": rank,
        "node": f"node-{rank}",
        "certificate": f"{rank + 1:064x}",
        "tier": NodeTier.SELF_ASSERTED,
        "result": f"{rank + 100:064x}",
        "address": "127.0.0.1",
        "local_world": 1,
    }
    return Member(**{**fields, **said})


def membership_of(*members: Member, **said: Any) -> Membership:
    fields: dict[str, Any] = {
        "job": "job-1",
        "coordinator": "spiffe://securetrain.local/job/job-1/coordinator",
        "epoch": 0,
        "round": 0,
        "policy": "a" * 64,
        "issued": datetime(2026, 1, 1, tzinfo=UTC),
        "members": members,
    }
    return Membership(**{**fields, **said})


def meet(members: Sequence[Any]) -> list[Any]:
    """The round in which all of them meet, as each sees it."""
    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(lambda member: member.next_round(lambda _: 20000), members))


def certified(ca: ClusterCA, job: str, node: str, folder: Path) -> NodeIdentity:
    """An identity that a cluster CA issues by command."""
    job_ca, key = ca.job(job, now(), ca.key), PrivateKey.generate(KeyKind.P256)
    given: dict[str, Any] = {"node": node, "lifetime": timedelta(hours=1), "how": How.COMMAND}
    leaf = ca.issue(job_ca, Role.NODE, key.public, now(), **given)
    return store_identity(folder, key, leaf, job_ca.certificate, now())


def serve_once(
    answer: Callable[[socket.socket], Channel], hear: Callable[[Channel], object]
) -> Any:
    """A server for one connection: its address and its thread."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        channel = answer(server.accept()[0])
        try:
            hear(channel)
        except SecureTrainError:
            pass
        finally:
            channel.close()
            server.close()

    thread = threading.Thread(target=serve)
    thread.start()
    return server.getsockname(), thread


@contextmanager
def two_machines(
    folder: Path, files: Mapping[str, bytes] | None = None
) -> Iterator[tuple[Machine, Machine]]:
    """Two machines with software TPMs of one CA."""
    given: dict[str, Any] = {"ca": folder / "ca"} | ({"files": files} if files else {})
    with (
        Machine(folder / "node-0", "node-0", **given) as first,
        Machine(folder / "node-1", "node-1", **given) as second,
    ):
        yield first, second


def policy_of(machines: Sequence[Machine], folder: Path) -> LoadedPolicy:
    """A policy that knows what they have just booted."""
    for machine in machines:
        machine.reboot()
    values = reference_values(machines, now())
    return load_policy(str(write_policy(folder, values, PrivateKey.generate())))


def attested(job: Job, machine: Machine) -> Any:
    """The machine, joined with its evidence."""
    identity = job.identity(machine.name)
    return job.join(machine.name, identity=identity, attester=machine.attester(identity.key))


class FakeSession:
    """A node that is in, and what it was sent, told, or evicted with."""

    def __init__(self, node, *, admitted=True):
        self.node = self.subject = node
        self.certificate = "c" * 64
        self.floors = ()
        self.admitted = admitted
        self.hello = SimpleNamespace(
            address=f"192.0.2.{node[-1]}",
            local_world=1,
            role="default",
            wireguard="",
            wireguard_port=0,
        )
        self.result = SimpleNamespace(tier=NodeTier.SELF_ASSERTED, digest="d" * 64)
        self.posted: list[Any] = []
        self.told: list[Any] = []
        self.evicted: list[Any] = []
        self.post, self.tell = self.posted.append, self.told.append
        self.evict = self.evicted.append

    def take(self):
        """What came since the last look: the kinds of what was posted, and of what was told."""
        found = [type(m) for m in self.posted], [type(m) for m in self.told]
        self.posted.clear()
        self.told.clear()
        return found


class Scene:
    """A job of up to three nodes, whose rounds need two."""

    def __init__(self):
        self.nodes: dict[str, Any] = {f"node-{n}": FakeSession(f"node-{n}") for n in range(3)}
        self.rounds = Rounds(min_nodes=2, max_nodes=3, last_call=10)
        self.time = 0.0
        terms: Any = SimpleNamespace(
            job="job-1",
            key=PrivateKey.generate(KeyKind.P256),
            policy_digest="a" * 64,
            random=bytes,
            monotonic=lambda: self.time,
            waits=Rendezvous(join_timeout_seconds=600, arrival_seconds=30),
            min_nodes=2,
            keep=KeepNothing(),
        )
        self.assembly = Assembly(
            self.rounds,
            terms,
            self.nodes,
            Journal(None),
            coordinator="spiffe://securetrain.local/job/job-1/coordinator",
            clock=lambda: datetime(2026, 1, 1, tzinfo=UTC),
            last_epoch=6,
            doubt_lost=True,
        )

    def form(self, *nodes):
        """A complete round of these nodes; nobody remembers what it was sent."""
        for node in nodes or self.nodes:
            self.assembly.join(node)
        self.time += 20
        self.assembly.advance()
        for session in self.nodes.values():
            session.take()

    def announce(self, node="node-0", host="192.0.2.0", epoch=7):
        self.assembly.announce(self.nodes[node], Store(epoch=epoch, host=host, port=5000))

    def posted(self):
        """What was posted to every node alike."""
        first, *others = [session.take()[0] for session in self.nodes.values()]
        assert all(other == first for other in others)
        return first
