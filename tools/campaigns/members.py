# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Lies of one to three members of five about the workers' group, beside honest ones.

The coordinator's rules are the real ones (`Assembly`, `MemberRules`, `Arrivals`, `Rounds`), under a
clock of the test; sessions and groups are modelled. A group forms when all of its members take
part, and breaks for all when one stops, within a second. A liar takes part, does not, or stops at
some time, in three epochs at most, and says up to five words of all kinds in each epoch. Honest
members do what `launch` does, come to the group within ``arrival_seconds`` of each other, at any
time, and train for less than a minute, so that none has ended long before the others.

Rules: where fewer than half of the members that still work are liars, every honest member ends
well. Where they are half or more, it does so too, or its end names a liar, or they keep it from
ending.
"""

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from securetrain.core.errors import SecureTrainError
from securetrain.core.vocabulary import CloseQuorum, NodeTier
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.policy.schema import Rendezvous
from securetrain.rendezvous.coordinator.assembly import Assembly
from securetrain.rendezvous.coordinator.journal import Journal
from securetrain.rendezvous.coordinator.keep import KeepNothing
from securetrain.rendezvous.coordinator.member_rules import MemberRules
from securetrain.rendezvous.coordinator.quotas import Quotas
from securetrain.rendezvous.coordinator.rounds import Rounds
from securetrain.rendezvous.wire.protocol import Arrival, ArrivalState, Done, Formed, Going, Store
from tools.campaigns import Campaign, Missed

NODES: Final = tuple(f"node-{number}" for number in range(5))
ARRIVAL: Final = 30
GROUP: Final = 300.0
"""The group's time-out."""
JOIN: Final = 600
NEWS: Final = 2
PATIENCE: Final = 300
"""Seconds that the agent of ended workers waits for the others'."""
LONGEST: Final = 6000
_KEY: Final = PrivateKey.generate(KeyKind.P256)
_TIME: Final = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(eq=False)
class Node:
    """A member: its session as the coordinator sees it, and what its machine does."""

    node: str
    work: int
    """Seconds that an honest one trains."""
    prepares: int
    """Seconds before its ranks come to the group."""
    subject: str = ""
    certificate: str = "c" * 64
    floors: tuple[bytes, ...] = ()
    proven: datetime = _TIME
    admitted: bool = True
    said_goodbye: bool = False
    staffed: bool = True
    epoch: int = -1
    since: int = 0
    stand: ArrivalState | None = None
    takes_part: bool = True
    done: bool = False
    failed_at: int | None = None
    end: str | None = None
    """How it ended: empty when well."""
    beside: set[str] = field(default_factory=set)
    """The members of its epoch."""
    outnumbered: bool = False
    """Whether half of those that still worked there were liars when it ended."""
    mail: list[Any] = field(default_factory=list)
    error: SecureTrainError | None = None

    def __post_init__(self) -> None:
        self.subject = self.node
        self.hello = SimpleNamespace(
            address=f"192.0.2.{self.node[-1]}",
            local_world=1,
            role="default",
            wireguard="",
            wireguard_port=0,
        )
        self.result = SimpleNamespace(tier=NodeTier.SELF_ASSERTED, digest="d" * 64)
        self.post = self.tell = self.mail.append

    def evict(self, error: SecureTrainError) -> None:
        """Have it put out."""
        self.error = self.error or error


class World:
    """A job of five, of which two are enough."""

    def __init__(self, rng: random.Random, liars: int) -> None:
        self.rng, self.now = rng, 0
        together = rng.choice([1, 1, rng.randrange(100)])
        self.nodes: dict[str, Any] = {
            name: Node(name, rng.randrange(5, 60), together + rng.randrange(25)) for name in NODES
        }
        self.all: dict[str, Node] = dict(self.nodes)
        self.liars = set(rng.sample(NODES, liars))
        self.habits = {name: Habit(rng) for name in sorted(self.liars)}
        self.rounds = Rounds(min_nodes=2, max_nodes=5, last_call=3)
        terms: Any = SimpleNamespace(
            job="job-1",
            key=_KEY,
            policy_digest="a" * 64,
            random=bytes,
            monotonic=lambda: float(self.now),
            waits=Rendezvous(join_timeout_seconds=JOIN, arrival_seconds=ARRIVAL),
            min_nodes=2,
            keep=KeepNothing(),
        )
        self.journal = Journal(None)
        self.assembly = Assembly(
            *(self.rounds, terms, self.nodes, self.journal),
            coordinator="spiffe://securetrain.local/job/job-1/coordinator",
            clock=lambda: _TIME,
            last_epoch=-1,
            doubt_lost=False,
        )
        quotas = Quotas(lease=600, heartbeat=2, monotonic=lambda: float(self.now))
        self.rules = MemberRules(
            assembly=self.assembly,
            journal=self.journal,
            quotas=quotas,
            quorum=CloseQuorum.MAJORITY,
            coordinator="coordinator",
        )

    def run(self) -> None:
        """Until every honest member has ended."""
        for name in NODES:
            self.assembly.join(name)
        while any(self.all[name].end is None for name in NODES if name not in self.liars):
            self.now += 1
            self.assembly.advance()
            deadline = self.assembly.deadline
            if deadline is not None and deadline <= self.now:
                self.assembly.put_out_late()
                self.assembly.advance()
            for node in list(self.nodes.values()):
                self._serve(node)
            self.assembly.tell_everybody()
            if self.now > LONGEST and len(self.liars) > 2:
                return
            if self.now > LONGEST:
                waits = [n for n in NODES if n not in self.liars and self.all[n].end is None]
                raise Missed(f"{', '.join(waits)} wait without end beside {self.liars}")

    def _serve(self, node: Node) -> None:
        for message in node.mail:
            if isinstance(message, Formed):
                self._begin(node)
        node.mail.clear()
        if node.error is not None:
            self.leave(node, str(node.error))
        elif node.node in self.liars:
            self.habits[node.node].live(self, node)
        else:
            self._work(node)

    def _begin(self, node: Node) -> None:
        current = self.assembly.membership
        assert current is not None
        node.epoch, node.since, node.stand = current.epoch, self.now, None
        node.beside = {member.node for member in current.members}
        node.done, node.failed_at, node.takes_part = False, None, True
        if node.node in self.liars:
            node.takes_part = self.habits[node.node].takes_part
        if current.members[0].node == node.node:
            store = Store(epoch=current.epoch, host=node.hello.address, port=1)
            self.assembly.announce(node, store)  # type: ignore[arg-type]

    def say(self, node: Node, stand: ArrivalState, missing: tuple[str, ...] = ()) -> None:
        """Say how far a node is."""
        node.stand = stand
        said = Arrival(epoch=max(0, node.epoch), stand=stand, missing=missing, timeout=GROUP)
        self.assembly.hear(node, said)  # type: ignore[arg-type]

    def _group(self, node: Node) -> tuple[str, ...]:
        """The members of a node's epoch whose ranks are not in the group."""
        current = self.assembly.membership
        assert current is not None
        return tuple(
            member.node
            for member in current.members
            if member.node != node.node and not self._is_in(self.all[member.node], node.epoch)
        )

    def _is_in(self, node: Node, epoch: int) -> bool:
        came = node.epoch == epoch and node.end is None and node.takes_part
        return came and self.now >= node.since + node.prepares

    def _work(self, node: Node) -> None:  # noqa: C901, PLR0912 - a protocol, step by step
        """What `launch` does, once a second."""
        if node.epoch < 0:
            if self.now > node.since + JOIN:
                self.leave(node, f"ST-ADMN-005: gone: {self._gone()}")
            return
        status = self.assembly.status(node.node)
        if status.waiting and not node.done:
            self.ready(node)
            return
        missing, waits = self._group(node), self.now - node.since - node.prepares
        if node.done:
            if not status.running or waits > node.work + PATIENCE:
                self._close(node, failed=False)
            return
        if node.failed_at is not None:
            if self.now > node.failed_at + NEWS:
                self._close(node, failed=True)
            return
        if node.stand is None:
            self.say(node, ArrivalState.WORKING)
        elif waits < 0:
            return
        elif node.stand is ArrivalState.ARRIVED:
            if missing:
                self._fail(node)
            elif waits > node.work:
                node.done = True
                self.assembly.hear(node, Done())  # type: ignore[arg-type]
        elif not missing:
            self.say(node, ArrivalState.ARRIVED)
        elif waits > GROUP:
            self._fail(node, missing)
        else:
            self.say(node, ArrivalState.WAITING, missing)

    def _fail(self, node: Node, missing: tuple[str, ...] = ()) -> None:
        """Its ranks are dead, which breaks the group for the others too."""
        node.failed_at, node.takes_part = self.now, False
        self.say(node, ArrivalState.FAILED, missing)

    def _gone(self) -> list[str]:
        here = self.rounds.participants + self.rounds.waiting
        return [name for name in NODES if name not in here]

    def ready(self, node: Node) -> None:
        """A node asks for the next round."""
        node.epoch, node.since = -1, self.now
        if self.rounds.closed:
            self.leave(node, "ST-ADMN-008")
            return
        try:
            self.rules.restart(node)  # type: ignore[arg-type]
            self.assembly.join(node.node)
        except SecureTrainError as error:
            node.error = error
        self.assembly.advance()

    def _close(self, node: Node, *, failed: bool) -> None:
        why = f"the group was lost: {', '.join(self._group(node))}" if failed else ""
        self.rules.close(node, failed=failed)  # type: ignore[arg-type]
        self.leave(node, why)

    def leave(self, node: Node, why: str) -> None:
        """A node goes, or is put out."""
        node.end, error = why, node.error
        working = {name for name in node.beside if not self.all[name].done}
        node.outnumbered = 2 * len(working & self.liars) >= len(working)
        node.said_goodbye = error is None
        del self.nodes[node.node]
        self.rules.part(node, error, lambda write: write())  # type: ignore[arg-type]
        self.rules.settle()
        self.assembly.advance()


class Habit:
    """What a liar does in every epoch, and what it says, at which second."""

    def __init__(self, rng: random.Random) -> None:
        self.takes_part = rng.random() < 0.4
        self.stops_at = rng.randrange(120) if rng.random() < 0.5 else LONGEST
        self.stops = rng.randrange(1, 4)
        """In so many epochs: who breaks a group more often ends the job (limits.md)."""
        self.meets_again = rng.random() < 0.7
        self.words = sorted(
            (rng.choice([1, rng.randrange(5), rng.randrange(150)]), rng.choice(WORDS), rng.random())
            for _ in range(rng.randrange(6))
        )

    def live(self, world: World, node: Node) -> None:  # noqa: C901 - a word a line
        """One second."""
        if node.epoch < 0:
            return
        if world.assembly.status(node.node).waiting and self.meets_again:
            world.ready(node)
            return
        second = world.now - node.since
        if second == self.stops_at and self.takes_part:
            self.stops -= 1
        stopped = second >= self.stops_at and self.stops >= 0
        node.takes_part = self.takes_part and not stopped
        for _, word, luck in [said for said in self.words if said[0] == second]:
            if node.end is not None or world.rounds.closed:
                return
            rng = random.Random(luck)  # noqa: S311 - the cases of a test are no secret
            whom = tuple(rng.sample(NODES, rng.randrange(5)))
            match word:
                case ArrivalState():
                    world.say(node, word, whom)
                case "done":
                    world.assembly.hear(node, Done())  # type: ignore[arg-type]
                case "going":
                    world.assembly.hear(node, Going())  # type: ignore[arg-type]
                case "close" | "failed":
                    world.rules.close(node, failed=word == "failed")  # type: ignore[arg-type]
                case "leave":
                    world.leave(node, "it left")
                case _:
                    world.ready(node)


WORDS: Final[tuple[ArrivalState | str, ...]] = (
    *ArrivalState,
    *("done", "going", "close", "failed", "leave", "ready"),
)


def case(rng: random.Random, _folder: Path) -> str:
    """One job.

    Raises:
        Missed: an honest member waits without end, or is ended though the liars are fewer than
            half; or no liar is named.
    """
    world = World(rng, 1 + rng.randrange(3))
    world.run()
    ends = {name: world.all[name].end for name in NODES if name not in world.liars}
    if None in ends.values():
        return "went on without end beside three"
    bad = {name: end for name, end in ends.items() if end}
    if not bad:
        return "went on"
    named = all(any(liar in end for liar in world.liars) for end in bad.values())
    if named and all(world.all[name].outnumbered for name in bad):
        return "ended beside half or more, a liar named"
    raise Missed(f"liars {sorted(world.liars)}, honest members ended: {bad}")


CAMPAIGN: Final = Campaign(title="lies about the workers' group", count=2000, case=case)
