# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The checkpoints of a run by the word of its ledger: which there are, and when each was made.

The ledger is verified before it is read here (`read_run_ledger`), so that entries cannot be
removed, edited or put in another order, and one under another role's key does not count. What a
single writer says of the time is still its word alone, so:

1. a checkpoint was made at the latest time that stands in the ledger up to its last entry, whoever
   wrote that. Ranks of several nodes enter each checkpoint (`checkpoint-signed`,
   `checkpoint-seen`), so that one of them cannot date it back;
2. its epoch is the one that had begun by then. A launch counts its epochs from anew;
3. one that was set aside, or removed because it was old, is no longer among them, unless the run
   has made it again (`machine`, rule 1).

A checkpoint whose saver names no number gets one more than the newest of its run. Readers with
floors refuse a number that they have seen with another checkpoint, and a lower one. So the number
is above that of every checkpoint of the run in the same folder, of the folder's head, and of what
this process has saved. Only what the saver's own key has signed counts: a planted statement moves
nothing.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from securetrain.artifacts.lineage import machine
from securetrain.artifacts.lineage.machine import NO_EPOCH, History, Made, Rollback, State
from securetrain.core.files import read_file
from securetrain.identity.trust import TrustRoot
from securetrain.ledger import Reading, Recorded, events, read_ledger

if TYPE_CHECKING:
    from datetime import datetime

from securetrain.artifacts.lineage import head
from securetrain.artifacts.lineage.machine import HEAD
from securetrain.artifacts.statement.listing import read_statement
from securetrain.artifacts.statement.statements import open_statement
from securetrain.artifacts.tree.layout import Kind
from securetrain.artifacts.tree.storage import Storage
from securetrain.core.errors import SecureTrainError
from securetrain.identity import dsse
from securetrain.identity.keys import Signer
from securetrain.identity.trust import TrustRole

LEDGER_LIMIT: Final = 1 << 30


_saved: Final[dict[str, int]] = {}
"""By run: the highest number that this process has saved under."""
_read: Final[dict[tuple[str, str], tuple[str, int]]] = {}
"""By key and place: the run and number of a statement, which never changes under its name."""


class _Own:
    """Trusts one key: that of the saver itself."""

    def __init__(self, key: Signer) -> None:
        self.keys = {key.key_id: key.public}

    def verify(
        self,
        envelope: bytes,
        payload_type: str,
        role: TrustRole,
        where: str = "",
        logged: int | None = None,
    ) -> dsse.VerifiedPayload:
        """See `TrustRoot.verify`; there is one role."""
        del role, logged
        return dsse.verify(envelope, payload_type, self.keys, where=where)


def next_number(storage: Storage, run_id: str, key: Signer) -> int:
    """The number of the next checkpoint of a run.

    Args:
        storage: where it will be.
        run_id: its run.
        key: what signs it.

    Raises:
        OSError: the folder cannot be listed.
    """
    own = _Own(key)
    numbers = [_saved.get(run_id, -1), _headed(storage, run_id, own)]
    for other in storage.siblings():
        place = key.key_id, other.name
        if place not in _read:
            try:
                found = open_statement(
                    read_statement(other, Kind.CHECKPOINT), Kind.CHECKPOINT, own, other.name
                ).checkpoint
            except SecureTrainError:
                continue  # another's, or not finished yet: it is looked at again
            _read[place] = found.run_id, found.seq
        run, number = _read[place]
        if run == run_id:
            numbers.append(number)
    return max(numbers) + 1


def note(run_id: str, seq: int) -> None:
    """Remember what this process has saved."""
    _saved[run_id] = max(seq, _saved.get(run_id, -1))


def _headed(storage: Storage, run_id: str, own: _Own) -> int:
    above = storage.above()
    try:
        found = head.open_head(above.read(HEAD, head.LIMIT), own, above.name)
    except SecureTrainError:
        return -1  # there is none, or another's
    return found.seq if found.run_id == run_id else -1


def read_run_ledger(ledger: Path, trust: TrustRoot) -> Reading:
    """Verify and read a run's ledger, without a last line that another process may be writing.

    Raises:
        IntegrityError: ST-LEDG-001 to 003.
        UsageError: ST-USAG-002 when it cannot be read.
    """
    data = read_file(ledger, LEDGER_LIMIT)
    whole = data[: data.rfind(b"\n") + 1]
    return read_ledger(whole, trust, where=str(ledger))


def read_history(recorded: Sequence[Recorded]) -> History:
    """Read the events of a verified ledger from first to last."""
    made: dict[str, Made] = {}
    states: dict[str, State] = {}
    distrusted: set[tuple[str, str]] = set()
    epoch, restart = NO_EPOCH, ""
    latest: datetime | None = None
    for line in recorded:
        latest = line.time if latest is None else max(latest, line.time)
        match line.event:
            case events.RunStarted():
                epoch = NO_EPOCH
            case events.EpochStarted(epoch=began):
                epoch = max(epoch, began)
            case events.RestartPoint(digest=digest):
                restart = digest
            case events.NodeDistrusted(subject=node, last_good=last_good):
                distrusted.add((node, last_good))
            case (
                events.CheckpointSigned()
                | events.CheckpointSeen()
                | events.CheckpointRecovered() as said
            ):
                _happen(states, said.digest, machine.Event.ENTER)
                if not isinstance(said, events.CheckpointSeen):
                    made.pop(said.digest, None)  # made again: it is the newest now
                made[said.digest] = Made(
                    name=said.subject, step=said.step, digest=said.digest, time=latest, epoch=epoch
                )
            case events.CheckpointQuarantined(digest=digest):
                _happen(states, digest, machine.Event.DOUBT)
                made.pop(digest, None)
            case events.CheckpointRemoved(digest=digest):
                _happen(states, digest, machine.Event.GONE)
                made.pop(digest, None)
            case _:
                pass
    return History(
        made=tuple(made.values()),
        set_aside=frozenset(one for one, state in states.items() if state is State.SET_ASIDE),
        epoch=epoch,
        restart=restart,
        going_back=_unfinished(recorded),
        distrusted=frozenset(distrusted),
    )


def _unfinished(recorded: Sequence[Recorded]) -> Rollback | None:
    """The rollback that no restart point ends."""
    begun = None
    for line in recorded:
        match line.event:
            case events.RolledBack(to=to, ranks=ranks):
                begun = Rollback(to, ranks)
            case events.RestartPoint():
                begun = None
            case _:
                pass
    return begun


def _happen(states: dict[str, State], digest: str, event: machine.Event) -> None:
    """Take the step of one checkpoint; the ledger names none that was not saved."""
    states[digest] = machine.step(states.get(digest, State.SAVED), event)
