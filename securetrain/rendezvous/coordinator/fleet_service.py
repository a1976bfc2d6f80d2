# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The service behind ``securetrain fleet serve``: the listener, and the rule that signs.

Proofs that come while an edition is written are signed together in the next one: a fleet that comes
in an afternoon makes hundreds of editions at most, not one for each machine.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from securetrain.attest.fleet import Desk, Doorkeeper, Intake, Rule, Taken
from securetrain.attest.session import SealedState
from securetrain.core.errors import SecureTrainError
from securetrain.evidence import ReferenceValues
from securetrain.ledger import events
from securetrain.rendezvous.coordinator.fleet_desk import FleetDesk, Seen

_PAUSE: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetService:
    """Everything that a listener needs."""

    desk: Desk
    state: SealedState
    values: Callable[[], ReferenceValues | None]
    clock: Callable[[], datetime]
    seen: Callable[[Seen], None]
    """Hears how each visit ended."""
    taken: Callable[[Taken | SecureTrainError], None] = lambda _: None
    """Hears what the rule signed, and what kept it from signing."""
    intake: Intake | None = None
    rule: Rule | None = None
    signed_by: tuple[str, ...] = ()
    coordinator: str = ""

    @contextmanager
    def listening(self, host: str, port: int) -> Iterator[tuple[str, int]]:
        """Listen for as long as the context lasts; gives the address.

        Raises:
            UsageError: ST-USAG-002 or 003 about the address.
        """
        keeper = Doorkeeper(self.desk, clock=self.clock, values=self.values, state=self.state)
        served = FleetDesk(
            keeper,
            clock=self.clock,
            tell=self._seen,
            signed_by=self.signed_by,
            coordinator=self.coordinator,
        )
        try:
            yield served.start(host, port)
        finally:
            served.stop()

    def _seen(self, seen: Seen) -> None:
        """Write a refusal down; what was proven is written with the proof."""
        if seen.error is not None and seen.node:
            try:
                self.desk.record(events.MachineRefused.of(seen.error, seen.node), self.clock())
            except SecureTrainError as error:
                self.taken(error)
        self.seen(seen)

    def serve(self, stop: threading.Event, nodes: Sequence[str] | None = None) -> bool:
        """Sign by the rule until somebody says stop, or until these nodes have come.

        Args:
            stop: ends it.
            nodes: whose tokens must be used; None waits for `stop` alone.

        Returns:
            Whether the nodes have all come; True where none was asked for.
        """
        looked: frozenset[str] = frozenset()
        while True:
            last = stop.wait(_PAUSE)
            # Asked before: who comes while the others are signed is signed in the next round.
            come = nodes is not None and not self.missing(nodes)
            if self.intake is not None and self.rule is not None:
                waiting = frozenset(self.desk.waiting_nodes())
                if waiting - looked:
                    self._sign(self.intake, self.rule)
                looked = waiting
            if come or last:
                return come or nodes is None

    def missing(self, nodes: Sequence[str]) -> list[str]:
        """Nodes whose token is still to be used."""
        left = {token.node for token in self.desk.tokens() if not token.used}
        return [node for node in nodes if node in left]

    def _sign(self, intake: Intake, rule: Rule) -> None:
        try:
            self.taken(intake.sign_by_rule(self.desk, rule))
        except SecureTrainError as error:
            self.taken(error)  # the proofs wait; the next machine or a person tries again
