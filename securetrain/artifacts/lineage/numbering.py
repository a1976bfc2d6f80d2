# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The number of a checkpoint whose saver names none: one more than the newest of its run.

Readers with floors refuse a number that they have seen with another checkpoint, and a lower one.
So the number is above that of every checkpoint of the run in the same folder, of the folder's head,
and of what this process has saved. Only what the saver's own key has signed counts: a planted
statement moves nothing.
"""

from typing import Final

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
