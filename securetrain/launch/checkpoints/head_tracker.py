# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""This node's view of the newest checkpoint of its run, exchanged with the other nodes.

A store can be put back to an older state, and so can a node's disk: everything on it has a good
signature then, too. Another node's memory gives it away. Rules:

1. the signed head that lies beside the checkpoints is remembered on this machine (`nodestate`) for
   as long as the run goes on, and shown to the other nodes before every round
   (`rendezvous.wire.membership.gather`);
2. what another node shows counts when it is a head of this run, signed by a checkpoint key of the
   run's trust root, and for nothing else: who shows it does not matter. So nobody who lacks such a
   key can raise what this node believes, and nobody at all can lower it. What is not proven is
   noted, with the node that showed it, and nothing comes of it: one liar must not stop a job;
3. two heads of one number about two checkpoints are proof that somebody lied with a checkpoint key,
   and end the run (ST-CKPT-171);
4. when the run has set its newest checkpoints aside after an eviction, exactly the one that it went
   back to is excused, by the run's own signed ledger.

A load below what is remembered is refused (`artifacts.lineage.machine`, ST-CKPT-151).
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from securetrain.artifacts import storage
from securetrain.artifacts.lineage import head as heads
from securetrain.artifacts.lineage import judging, machine
from securetrain.core import STATE_VARIABLE, RunDir
from securetrain.core.errors import IntegrityError, SecureTrainError, UsageError
from securetrain.identity.trust import TrustRole, TrustRoot
from securetrain.ledger import Ledger, events
from securetrain.rendezvous.wire import Membership


@dataclass(slots=True, kw_only=True)
class HeadTracker:
    """One node's part: `advertise` and `receive` belong before every epoch, `refresh` anywhere."""

    run: RunDir
    run_id: str
    floors: judging.Floors
    ledger: Ledger
    clock: Callable[[], datetime]
    _looked: bytes = b""
    """The head that was looked at last: the same bytes say nothing new."""

    def advertise(self) -> tuple[bytes, ...]:
        """Return what to show the other nodes.

        Raises:
            IntegrityError: ST-CKPT-151 when this node's own memory cannot be read.
            IdentityError: ST-IDEN-008 when the run's trust root is not valid (any more).
        """
        self.refresh()
        head = self.floors.head(self.run_id, self._trust().keys_for(TrustRole.CHECKPOINT))
        return () if head is None else (head,)

    def refresh(self) -> None:
        """Remember the head that lies beside the checkpoints. One that is not good is noted: who
        asks for it refuses it.

        Raises:
            IntegrityError: ST-CKPT-151, and ST-CKPT-171 by rule 3.
            IdentityError: ST-IDEN-008.
        """
        try:
            data = heads.read_bytes(storage.LocalStorage(self.run.checkpoints))
            if data is None or data == self._looked:
                return
            self._looked = data
            shown = heads.shown_head(data, self._trust(), self.run_id, str(self.run.checkpoints))
        except IntegrityError as error:
            self.ledger.write(events.HeadRefused.of(error, machine.HEAD))
            return
        self._remember(shown, "the store")

    def receive(self, membership: Membership) -> None:
        """Judge what the members of an epoch have shown.

        Raises:
            IntegrityError: ST-CKPT-151, and ST-CKPT-171 by rule 3.
            IdentityError: ST-IDEN-008.
        """
        trust = self._trust()
        for said in membership.floors:
            try:
                shown = heads.shown_head(said.floor, trust, self.run_id, said.node)
            except SecureTrainError as error:
                self.ledger.write(
                    events.FloorNotProven(
                        subject=said.node, epoch=membership.epoch, **events.because(error)
                    )
                )
                continue
            if self._remember(shown, said.node):
                self.ledger.write(
                    events.FloorRaised(
                        subject=said.node,
                        seq=shown.head.seq,
                        step=shown.head.step,
                        digest=shown.head.digest,
                    )
                )

    def excuse_rollback(self, past: Callable[[], machine.History]) -> None:
        """Rule 4.

        Args:
            past: Reads the run's verified ledger; called only when something is remembered.

        Raises:
            IntegrityError: ST-CKPT-151.
            UsageError: ST-USAG-002.
        """
        keys = self._trust().keys_for(TrustRole.CHECKPOINT)
        if self.floors.floor(self.run_id, keys) is None:
            return
        history = past()
        if history.restart:
            self.floors.excuse(self.run_id, history.restart, history.set_aside, keys)

    def _remember(self, shown: heads.ShownHead, who: str) -> bool:
        """Rule 3, then raise; whether that was news."""
        head = shown.head
        keys = self._trust().keys_for(TrustRole.CHECKPOINT)
        before = self.floors.floor(self.run_id, keys)
        if before and machine.order(head.seq, head.digest, before) is machine.Order.FORKED:
            error = IntegrityError(
                "ST-CKPT-171",
                f"{who} shows {head.digest[:16]} as number {head.seq} of the run, and this node has"
                f" seen {before.digest[:16]}",
                str(self.run.checkpoints),
                "find the holder of the checkpoint key: it has signed two histories",
            )
            self.ledger.write(events.RunForked.of(error, who))
            raise error
        floor = machine.Floor(seq=head.seq, digest=head.digest)
        try:
            self.floors.raise_to(self.run_id, floor, shown.key_ids, shown.data)
        except UsageError as error:
            fix = f"set {STATE_VARIABLE} to a folder of this machine that this user may write"
            raise UsageError(error.code, error.what, error.where, fix) from error
        return before is None or before.seq < head.seq

    def _trust(self) -> TrustRoot:
        return TrustRoot.load(self.run.trust, self.clock())
