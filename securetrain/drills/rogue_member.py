# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A member that follows no rule: it has a certificate, was admitted, and runs other software.

Two honest nodes are in a round with it. Whatever it says, they must keep their ranks and the job
must go on.
"""

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from operator import methodcaller
from typing import Any, Final, TypeVar

from securetrain.core.errors import SecureTrainError
from securetrain.drills.loopback_job import (
    PATIENCE,
    Job,
    NeverHappenedError,
    answer,
    binding_of,
    prove,
    soon,
    wait_until,
)
from securetrain.rendezvous.wire import protocol

M = TypeVar("M", bound=protocol.AnyMessage)

ROGUE: Final = "node-2"
_PORT: Final = 4000
_NEXT_ROUND: Final[Any] = methodcaller("next_round", lambda _: _PORT)


class Rogue:
    """A raw connection of an admitted node."""

    def __init__(self, job: Job, node: str = ROGUE, **hello: Any) -> None:
        """Join as `node`; `hello` are fields of the first message that differ from an honest one.

        Raises:
            NeverHappenedError: It was not admitted; with the refusal.
        """
        self.job = job
        self.identity = job.identity(node)
        self.channel, challenge = job.challenged(self.identity, **hello)
        self.send(self.proof(challenge))
        said = answer(self.channel)
        if not isinstance(said, protocol.Admit):
            raise NeverHappenedError(f"not admitted, but {said!r}")

    def proof(self, challenge: protocol.Challenge) -> protocol.Proof:
        """The honest answer to a challenge."""
        binding = binding_of(self.channel, challenge, self.identity)
        return prove(self.job.attester(self.identity), binding, challenge)

    def send(self, message: protocol.AnyMessage) -> None:
        """Say something."""
        self.channel.send(message, soon())

    def send_quietly(self, message: protocol.AnyMessage) -> None:
        """Say something, if there is anybody who listens."""
        with contextlib.suppress(SecureTrainError):
            self.send(message)

    def until(
        self, kind: type[M], condition: Callable[[M], bool] = lambda _: True
    ) -> M | protocol.Refuse | SecureTrainError:
        """The next message of a kind; a refusal or the end of the connection ends the wait too."""
        while True:
            said = answer(self.channel)
            if isinstance(said, protocol.Refuse | SecureTrainError):
                return said
            if isinstance(said, kind) and condition(said):
                return said

    def flood(
        self, message: protocol.AnyMessage, number: int
    ) -> protocol.Refuse | SecureTrainError:
        """Send one message many times, reading what comes back; returns how it ends."""
        for _ in range(number):
            try:
                self.send(message)
            except SecureTrainError:
                break
        self.send_quietly(protocol.Leave())
        return self.until(protocol.Refuse)

    def close_alone(self) -> protocol.CloseState:
        """Ask for the end of the job, again and again; what it is told of that."""
        self.send(protocol.Close())
        status = self.until(protocol.Status, lambda s: s.close is not protocol.CloseState.NONE)
        for _ in range(20):
            self.send(protocol.Close())
        if not isinstance(status, protocol.Status):
            raise NeverHappenedError(f"no status, but {status!r}")
        return status.close

    def renew(self, number: int) -> protocol.Challenge | protocol.Refuse | SecureTrainError:
        """Renew its lease until it is refused; what came last."""
        challenge: protocol.Challenge | protocol.Refuse | SecureTrainError | None = None
        for _ in range(number):
            self.send_quietly(protocol.Renew())
            challenge = self.until(protocol.Challenge)
            if not isinstance(challenge, protocol.Challenge):
                return challenge
            self.send(self.proof(challenge))
            admitted = self.until(protocol.Admit)
            if not isinstance(admitted, protocol.Admit):
                return admitted
        if challenge is None:
            raise ValueError("not one renewal was asked for")
        return challenge

    def accuse(self, node: str, times: int = 1, *, epoch: int = 0) -> None:
        """Suspect a node of the current epoch."""
        for _ in range(times):
            self.send(protocol.Suspect(node=node, epoch=epoch, code="ST-GRAD-001", what="it lies"))


class Scene:
    """Two honest nodes and a rogue one, in one round."""

    def __init__(self, job: Job, **settings: Any) -> None:
        """Start the job; `settings` are those of `Job.start`."""
        self.job = job
        job.start(2, 3, last_call=600.0, **settings)
        self.honest = [job.join(f"node-{n}") for n in range(2)]
        self.rogue = Rogue(job)
        with ThreadPoolExecutor(2) as pool:
            rounds = pool.map(_NEXT_ROUND, self.honest, timeout=2 * PATIENCE)
            wait_until(lambda: len(self.table.participants) == 2, "the honest ones are in")
            self.rogue.send(protocol.Ready(floors=()))
            self.rounds = list(rounds)
        if not isinstance(self.rogue.until(protocol.Formed), protocol.Formed):
            raise NeverHappenedError("the rogue member is in no round")

    @property
    def table(self) -> Any:
        """The coordinator's own view of the round."""
        return self.job.coordinator._rounds

    def leave(self) -> None:
        """The rogue member goes, and the coordinator knows."""
        self.rogue.send_quietly(protocol.Leave())
        wait_until(lambda: ROGUE not in self.table.participants, "it has gone")

    def harm(self) -> list[str]:
        """Name what is not as it was: the honest nodes are in, with their ranks, in a live job."""
        found = []
        if not all(node.connected and not node.closed for node in self.honest):
            found.append("an honest node is out")
        if [one.rank for one in self.rounds] != [0, 1]:
            found.append("an honest node has another rank")
        if not {"node-0", "node-1"} <= set(self.table.participants):
            found.append("an honest node is in no round")
        if self.table.closed:
            found.append("the job is over")
        return found

    def harm_later(self) -> list[str]:
        """The same, and whether they cannot have another round, without it."""
        if found := self.harm():
            return found
        with ThreadPoolExecutor(2) as pool:
            self.table.last_call = 0.1
            again = list(pool.map(_NEXT_ROUND, self.honest, timeout=PATIENCE))
        nodes = [member.node for member in again[0].membership.members]
        if [one.rank for one in again] != [0, 1] or nodes != ["node-0", "node-1"]:
            found.append(f"the next round has {nodes}")
        return found

    def written(self) -> int:
        """The size of the coordinator's ledger."""
        return self.job.ledger.path.stat().st_size


WIREGUARD: Final = "Q" * 42 + "A="
"""The key of an honest node."""

MEANINGLESS: Final[dict[str, dict[str, str]]] = {
    "everybody's address": {"address": "255.255.255.255"},
    "a multicast address": {"address": "224.0.0.1"},
    "nobody's address": {"address": "0.0.0.0"},  # noqa: S104 - it is announced
    "a mapped address": {"address": "::ffff:255.255.255.255"},
    "the address of metadata": {"address": "169.254.169.254"},
    "a key of low order": {"wireguard": "AQ" + "A" * 41 + "="},
    "another key of low order": {"wireguard": "7P" + "/" * 39 + "38="},
    "another spelling of a member's key": {"wireguard": WIREGUARD[:41] + "YA="},
}
"""The fields of a Hello that can be no member's own."""


def announce(job: Job, hello: dict[str, str]) -> str:
    """Join a job network with a Hello that can be nobody's; the refusal, empty when it is in."""
    tunnel: dict[str, Any] = {
        "wireguard": "g" * 42 + "A=",
        "wireguard_port": 7000,
        "network": "overlay",
    }
    try:
        Rogue(job, **{**tunnel, **hello})
    except NeverHappenedError as error:
        return str(error)
    return ""
