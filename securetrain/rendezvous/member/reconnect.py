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
   (ST-ADMN-006), and so is one that is earlier than another that this node has seen (ST-ADMN-041);
4. what it said and had no answer to, it says again.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

import msgspec

from securetrain.core import Node, Retry
from securetrain.core.errors import AdmissionError, SecureTrainError
from securetrain.identity.keys import PublicKey
from securetrain.rendezvous.member.identity_dir import NodeIdentity
from securetrain.rendezvous.wire.generation import Generation, check_generation, superseded
from securetrain.rendezvous.wire.membership import Membership, digest_of
from securetrain.rendezvous.wire.protocol import (
    Admit,
    AnyMessage,
    Formed,
    Hello,
    Ready,
    Secrets,
    Staffed,
    Store,
)

FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 2
"""Heart-beats: a coordinator that is back waits a few of them for the others."""


def nowhere() -> None:
    """A node that runs no epoch, or must not come back."""


@dataclass(slots=True)
class Reconnect:
    """The knowledge with which a node comes back."""

    running: Callable[[], Membership | None] = nowhere
    """The epoch that it runs; None while it runs none."""
    seen: Callable[[], int] = lambda: -1
    """The latest epoch that it has seen."""
    allowed: bool = True
    latest: Generation | None = None
    """The latest coordinator that it has seen."""
    _owed: dict[str, AnyMessage] = field(default_factory=dict)

    def introduce(self, hello: Hello) -> Hello:
        """A node's Hello, with what it runs and whom it has seen."""
        current = self.running()
        return msgspec.structs.replace(
            hello,
            resume=None if current is None else current.epoch,
            membership=None if current is None else digest_of(current),
            generation=None if self.latest is None else self.latest.statement,
        )

    def follow(self, admit: Admit, key: PublicKey, identity: NodeIdentity) -> None:
        """Take a coordinator for the latest one, unless this node has seen a later one.

        Raises:
            AdmissionError: ST-ADMN-041; ST-ADMN-006 when it says nothing of itself, or something
                that another one said.
        """
        where = "Admit.generation"
        if admit.generation is None:
            raise AdmissionError("ST-ADMN-006", "it has no generation", where)
        job = identity.spiffe.job
        found = check_generation(admit.generation, job=job, ca=identity.ca, where=where)
        if found.key_id != key.key_id:
            raise AdmissionError("ST-ADMN-006", "it is another coordinator's", where)
        if self.latest is not None and found.is_before(self.latest):
            raise superseded(found, self.latest, where)
        self.latest = found

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
            case Secrets():
                self._owed.pop("AskSecrets", None)
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
