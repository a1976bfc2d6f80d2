# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Bounds on what one node may cost: messages, renewals, rounds, accusations, ledger, returns.

Rules:

1. a node has a bucket for each kind of thing; it fills with time, and what does not fit ends the
   connection (ST-ADMN-031). What an honest node does is a small part of each;
2. buckets are the node's, not the connection's: who reconnects finds them as they were;
3. what a node makes the coordinator write counts in bytes, whatever it is;
4. a node that comes and goes is kept out (ST-ADMN-030). The first departures within `WINDOW` are
   free; each further one doubles a pause, up to a limit, and the node is told how long it is.
   A departure from a job that is closed is none.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from securetrain.core.errors import AdmissionError
from securetrain.rendezvous.wire.protocol import AnyMessage, Ready, Renew, Suspect

FRAMES: Final = (400, 20.0)
"""Messages at once, and in a second afterwards."""
ROUNDS: Final = (40, 1.0)
RESTARTS: Final = (20, 1 / 600)
"""Rounds that a member asks for while the others of its round work: its own restarts."""
RENEWALS: Final = 6
"""In one lease; an honest node asks for three."""
ACCUSATIONS: Final = (16, 1 / 60)
LEDGER_BYTES: Final = (128 << 10, 256.0)

FREE_RETURNS: Final = 5
WINDOW_SECONDS: Final = 600.0
FIRST_PAUSE: Final = 5.0
LONGEST_PAUSE: Final = 300.0


@dataclass(slots=True)
class Bucket:
    """Holds `size`, and fills by `rate` in a second."""

    size: float
    rate: float
    level: float
    at: float

    @classmethod
    def full(cls, limits: tuple[float, float], now: float) -> "Bucket":
        """A full one."""
        return cls(limits[0], limits[1], limits[0], now)

    def take(self, amount: float, now: float) -> bool:
        """Take from it, if there is as much in it."""
        self.level = min(self.size, self.level + (now - self.at) * self.rate)
        self.at = now
        if self.level < amount:
            return False
        self.level -= amount
        return True


@dataclass(slots=True)
class _Account:
    """One node's."""

    frames: Bucket
    rounds: Bucket
    renewals: Bucket
    restarts: Bucket
    accusations: Bucket
    ledger: Bucket
    departures: deque[float] = field(default_factory=lambda: deque(maxlen=64))


@dataclass(slots=True, kw_only=True)
class Quotas:
    """The accounts of all nodes, by name. The coordinator calls it with its lock held."""

    lease: float
    heartbeat: float
    monotonic: Callable[[], float]
    _accounts: dict[str, _Account] = field(default_factory=dict)

    def hear(self, node: str, message: AnyMessage) -> None:
        """Count a message.

        Raises:
            AdmissionError: ST-ADMN-031.
        """
        account, now = self._account(node), self.monotonic()
        if not account.frames.take(1, now):
            raise _too_much(node, f"more than {account.frames.rate:g} messages in a second")
        match message:
            case Ready() if not account.rounds.take(1, now):
                raise _too_much(node, "it asks for rounds without end")
            case Renew() if not account.renewals.take(1, now):
                raise _too_much(node, f"more than {RENEWALS} renewals in a lease")
            case Suspect() if not account.accusations.take(1, now):
                raise _too_much(node, "it accuses without end")
            case _:
                pass

    def restart(self, node: str) -> None:
        """Count a round that a member asks for by itself: the others of its round restart for it.

        Raises:
            AdmissionError: ST-ADMN-031.
        """
        if not self._account(node).restarts.take(1, self.monotonic()):
            raise _too_much(node, "it has the others restart without end")

    def write(self, node: str, size: int) -> None:
        """Count what a node makes the coordinator write.

        Raises:
            AdmissionError: ST-ADMN-031.
        """
        if not self._account(node).ledger.take(size, self.monotonic()):
            raise _too_much(node, "it fills the ledger")

    def gone(self, node: str) -> None:
        """An admitted node has gone while the job goes on."""
        self._account(node).departures.append(self.monotonic())

    def admit(self, node: str) -> None:
        """Keep out who comes and goes.

        Raises:
            AdmissionError: ST-ADMN-030.
        """
        account = self._accounts.get(node)
        if account is None:
            return
        now = self.monotonic()
        while account.departures and account.departures[0] <= now - WINDOW_SECONDS:
            account.departures.popleft()
        left = self.pause(len(account.departures))
        if account.departures:
            left -= now - account.departures[-1]
        if left > 0:
            raise AdmissionError(
                "ST-ADMN-030",
                f"{node} has gone {len(account.departures)} times in the last"
                f" {WINDOW_SECONDS / 60:g} minutes; it is let in again in {math.ceil(left)} s",
                f"node {node}",
            )

    @staticmethod
    def pause(departures: int) -> float:
        """The pause after so many departures, in seconds."""
        if departures < FREE_RETURNS:
            return 0.0
        return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (departures - FREE_RETURNS))

    def _account(self, node: str) -> _Account:
        account = self._accounts.get(node)
        if account is None:
            now = self.monotonic()
            frames = FRAMES[0], max(FRAMES[1], 4 / self.heartbeat)
            account = self._accounts[node] = _Account(
                frames=Bucket.full(frames, now),
                rounds=Bucket.full(ROUNDS, now),
                renewals=Bucket.full((RENEWALS, RENEWALS / self.lease), now),
                restarts=Bucket.full(RESTARTS, now),
                accusations=Bucket.full(ACCUSATIONS, now),
                ledger=Bucket.full(LEDGER_BYTES, now),
            )
        return account


def _too_much(node: str, what: str) -> AdmissionError:
    return AdmissionError("ST-ADMN-031", what, f"node {node}")
