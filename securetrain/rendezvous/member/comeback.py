# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The way back to a coordinator that was lost, for a node whose workers go on.

Rules:

1. only a connection that was lost is made anew. A node that the coordinator has refused, or whose
   lease has ended, is out;
2. it tries until its lease ends, with growing pauses: then nobody vouches for it any more, and the
   run ends with ST-ADMN-007;
3. it authenticates the coordinator and proves itself as at its first join, with its latest
   certificate, and says which epoch it runs. A coordinator that knows only older epochs is refused
   (ST-ADMN-006);
4. what it said and had no answer to, it says again.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from securetrain.core import Node, Retry
from securetrain.core.errors import AdmissionError, SecureTrainError
from securetrain.rendezvous.wire.protocol import Admit, AnyMessage, Formed, Ready, Staffed, Store

FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 5.0


def nowhere() -> None:
    """A node that runs no epoch, or must not come back."""


@dataclass(slots=True)
class Comeback:
    """The knowledge with which a node comes back."""

    running: Callable[[], int | None] = nowhere
    """The epoch that it runs; None while it runs none."""
    seen: Callable[[], int] = lambda: -1
    """The latest epoch that it has seen."""
    allowed: bool = True
    _owed: dict[str, AnyMessage] = field(default_factory=dict)

    def say(self, message: AnyMessage) -> None:
        """Remember what is said until it is answered."""
        if isinstance(message, Ready):
            self._owed.clear()
        self._owed[type(message).__name__] = message

    def hear(self, message: AnyMessage) -> None:
        """Forget what has its answer: a round, a store, everybody's workers."""
        match message:
            case Formed():
                self._owed.clear()
            case Store():
                self._owed.pop("Store", None)
            case Staffed():
                self._owed.pop("Workers", None)
            case _:
                pass

    def again(self, unsent: Collection[AnyMessage]) -> list[AnyMessage]:
        """Everything to be said anew, but for what was never sent."""
        return [message for message in self._owed.values() if message not in unsent]

    def from_loss(self, error: SecureTrainError) -> bool:
        """Tell whether a node may come back after an error that the coordinator did not name."""
        lost = isinstance(error, AdmissionError) and error.definition.node is Node.UNPROVEN
        return self.allowed and lost

    @staticmethod
    def passes(error: SecureTrainError, *, refused: bool) -> bool:
        """Tell whether another attempt may end otherwise.

        Args:
            error: The end of the last one.
            refused: Whether the coordinator said so, and not a broken connection or a stranger.
        """
        return not refused or error.definition.retry is Retry.LATER

    def check(self, admit: Admit) -> None:
        """Refuse a coordinator whose epochs go back.

        Raises:
            AdmissionError: ST-ADMN-006.
        """
        if admit.epoch < self.seen():
            raise AdmissionError(
                "ST-ADMN-006",
                f"the coordinator knows epoch {admit.epoch}, this node has seen {self.seen()}",
                "Admit.epoch",
            )


def given_up(cause: SecureTrainError) -> AdmissionError:
    """The end of a run whose coordinator did not come back."""
    return AdmissionError(
        "ST-ADMN-007",
        f"the coordinator was lost and did not come back before the lease ended: {cause.what}",
        "coordinator",
        "start it again in its run directory sooner, or the run again from its last checkpoint",
    )
