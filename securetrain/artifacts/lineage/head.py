# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The signed head of a run: which checkpoint is its newest.

``head.json`` lies in the folder of a run's checkpoints and is replaced after every save, signed
with a checkpoint key. Rules for a reader, in order:

1. signed for the role ``checkpoint``, of the closed schema;
2. not expired: a store that keeps handing out the same head is noticed (a freeze);
3. of the run that the checkpoint is of. Rules 2 and 3 are asked by `machine`.

A head names the one before it by the digest of its bytes, so that heads are a chain, and where the
transparency log has it.

The checkpoints of a run by the word of its ledger: which there are, and when each was made.

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

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from securetrain.artifacts.lineage import machine
from securetrain.artifacts.lineage.folder import CheckpointFiles
from securetrain.artifacts.lineage.machine import (
    HEAD,
    NO_EPOCH,
    Head,
    History,
    Made,
    Rollback,
    State,
)
from securetrain.artifacts.statement.reading import read_statement
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    Verifies,
    digest_of,
    open_statement,
)
from securetrain.artifacts.tree.layout import Kind, Problem
from securetrain.artifacts.tree.storage import LocalStorage, Storage
from securetrain.core import ExitCode, canonical
from securetrain.core.errors import SecureTrainError, reason
from securetrain.core.files import locked, read_file
from securetrain.identity import dsse
from securetrain.identity.keys import Signer
from securetrain.identity.trust import TrustRole, TrustRoot
from securetrain.ledger import Reading, Recorded, events, read_ledger

_LOCK: Final = ".head.lock"
PAYLOAD_TYPE: Final = "application/vnd.securetrain.head+json"
LIMIT: Final = 64 << 10
LIFETIME: Final = timedelta(days=30)
"""Readers refuse a head after this time without a newer one."""
EXCHANGES: Final = 5
"""Looks at a head in a store without locks, that others put there at the same time."""


def sign_head(head: Head, key: Signer) -> bytes:
    """The head's envelope."""
    return dsse.sign(canonical.encode(head), PAYLOAD_TYPE, [key], keyless=True)


def read_message(message: bytes) -> Head:
    """Read the message that a head's signature covers, before it is signed.

    Raises:
        IdentityError: ST-IDEN-004 when it is of another type.
        UsageError: ST-USAG-008 when it is malformed.
    """
    payload = dsse.payload_of(message, PAYLOAD_TYPE)
    return canonical.decode(payload, Head, limit=LIMIT, canonical=True)


def open_head(data: bytes, trust: Verifies, where: str = "") -> Head:
    """Rule 1.

    Raises:
        IntegrityError: ST-CKPT-110 or 120 for its signatures, ST-CKPT-152 when it is malformed.
    """
    return _open(data, trust, where)[0]


def _open(data: bytes, trust: Verifies, where: str) -> tuple[Head, frozenset[str]]:
    try:
        payload = trust.verify(data, PAYLOAD_TYPE, TrustRole.CHECKPOINT, where)
        head = canonical.decode(payload.data, Head, limit=LIMIT, canonical=True)
    except SecureTrainError as error:
        problem = Problem(_code(error.exit_code), f"the head of the run: {reason(error)}", HEAD)
        raise problem.error(where) from error
    return head, payload.key_ids


def _code(refused: ExitCode) -> str:
    match refused:
        case ExitCode.BAD_SIGNATURE:
            return "ST-CKPT-110"
        case ExitCode.POLICY:
            return "ST-CKPT-120"
        case _:
            return "ST-CKPT-152"


@dataclass(frozen=True, slots=True)
class ShownHead:
    """A head that verifies, its bytes, and who signed it: what others are shown, and believe."""

    head: Head
    data: bytes
    key_ids: frozenset[str]


def shown_head(data: bytes, trust: TrustRoot, run_id: str, where: str = "") -> ShownHead:
    """Judge a head that somebody shows of a run. It may have expired: the checkpoint existed.

    Raises:
        IntegrityError: see `open_head`; ST-CKPT-170 when it is of another run.
    """
    head, key_ids = _open(data, trust, where)
    if head.run_id != run_id:
        what = f"the head is of run {head.run_id}, not of run {run_id}"
        raise Problem("ST-CKPT-170", what, HEAD).error(where)
    return ShownHead(head, data, key_ids)


def read_bytes(folder: CheckpointFiles) -> bytes | None:
    """The head's bytes in a folder of checkpoints, not judged; None when there is none.

    Raises:
        IntegrityError: ST-CKPT-152 when it cannot be read.
    """
    try:
        if not folder.has(HEAD):
            return None
        return folder.read(HEAD, LIMIT)
    except OSError as error:
        problem = Problem("ST-CKPT-152", f"cannot be read: {error}", HEAD)
        raise problem.error(folder.name) from error
    except SecureTrainError as error:
        problem = Problem("ST-CKPT-152", f"cannot be read: {error.what}", HEAD)
        raise problem.error(folder.name) from error


def read_head(folder: CheckpointFiles, trust: TrustRoot) -> Head | None:
    """The head in a folder of checkpoints; None when there is none.

    Raises:
        IntegrityError: see `open_head`; ST-CKPT-152 when it cannot be read.
    """
    data = read_bytes(folder)
    return None if data is None else open_head(data, trust, folder.name)


def advance(
    folder: Storage,
    predicate: CheckpointPredicate,
    key: Signer,
    trust: TrustRoot,
    now: datetime,
) -> Head:
    """Make a saved checkpoint the head of its run.

    Args:
        folder: Where the checkpoints lie.
        predicate: What was saved.
        key: A checkpoint key.
        trust: By which the present head is judged.
        now: The time.

    Raises:
        IntegrityError: ST-CKPT-171 when the head is of this number or a later one already;
            see also `open_head`.
    """

    def next_head(data: bytes | None) -> Head:
        if data is not None:
            present = open_head(data, trust, folder.name)
            if present.run_id == predicate.run_id and present.seq >= predicate.seq:
                raise Problem(
                    "ST-CKPT-171",
                    f"the head is checkpoint {present.seq} already, {predicate.seq} cannot be",
                    HEAD,
                ).error(folder.name)
        return Head(
            run_id=predicate.run_id,
            seq=predicate.seq,
            step=predicate.step,
            digest=digest_of(predicate),
            prev="" if data is None else hashlib.sha256(data).hexdigest(),
            created=now,
            expires=now + LIFETIME,
        )

    head = _exchange(folder, key, next_head)
    assert head is not None
    return head


def note_logged(
    folder: Storage, digest: str, log_index: int, key: Signer, trust: TrustRoot
) -> Head | None:
    """Say in the head where the log has its checkpoint's statement; its times stay.

    Returns:
        The new head; None when the head is of another checkpoint (by now), or says so already.

    Raises:
        IntegrityError: see `open_head`.
    """

    def noted(data: bytes | None) -> Head | None:
        if data is None:
            return None
        present = open_head(data, trust, folder.name)
        if present.digest != digest or present.log_index == log_index:
            return None
        prev = hashlib.sha256(data).hexdigest()
        return msgspec.structs.replace(present, log_index=log_index, prev=prev)

    return _exchange(folder, key, noted)


def _exchange(
    folder: Storage, key: Signer, make: Callable[[bytes | None], Head | None]
) -> Head | None:
    """Put what `make` makes of the head's bytes in their place, unless it is None.

    In S3 there is no lock: whoever finds that another one was faster looks again.
    """
    with _alone(folder):
        for left in reversed(range(EXCHANGES)):
            data = read_bytes(folder)
            head = make(data)
            if head is None:
                return None
            try:
                folder.exchange(HEAD, sign_head(head, key), data)
            except FileExistsError:
                if not left:
                    raise
                continue
            return head
    raise AssertionError


@contextmanager
def _alone(folder: Storage) -> Iterator[None]:
    """Nobody else changes the head meanwhile: a saver and a launcher's agent both do."""
    if not isinstance(folder, LocalStorage):
        yield
        return
    with locked(folder.path / _LOCK):
        yield


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
        found = open_head(above.read(HEAD, LIMIT), own, above.name)
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
