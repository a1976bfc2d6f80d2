# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The store that torch's agent is given: ranks from the membership, waits that end.

torchelastic's agents find their workers' ranks by writing what they run into the store of the round
and reading what rank 0 made of it; whoever is in the round can write all of that. They end it with
a barrier in the same store, which a node that is gone never reaches. Here, whichever agent asks:

1. ``torchelastic/role_info/N`` and ``torchelastic/assigned_ranks/N`` are never read from the store:
   they are computed from the signed membership (`wire.ranks`), on every node by itself;
2. what the agent writes there goes nowhere. It is compared: another node's name, or anything but
   what the membership says, is refused (ST-ADMN-040);
3. the barrier at the end goes over the control connections, where each node speaks for itself. It
   ends when the workers of all members have ended, when their nodes are gone, or when this is;
4. every other key is the store's, through `patience`: a wait ends with the epoch.
"""

import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

from torch.distributed import DistStoreError, Store  # type: ignore[attr-defined]

from securetrain.core.errors import AdmissionError
from securetrain.rendezvous.member.client import Member
from securetrain.rendezvous.member.patience import patiently
from securetrain.rendezvous.wire.membership import Membership
from securetrain.rendezvous.wire.ranks import NodeRanks, node_ranks

ROLE_INFO: Final = "torchelastic/role_info/"
ASSIGNED: Final = "torchelastic/assigned_ranks/"
TERMINAL: Final = "torchelastic/agent/terminal_state"

_Value = str | bytes
T = TypeVar("T")


class AgentStore(Store):
    """One agent's view of one round's store."""

    def __init__(
        self, store: Store, member: Member, membership: Membership, timeout: timedelta
    ) -> None:
        """Prepare.

        Args:
            store: The round's store, with its prefix.
            member: This node.
            membership: The round's.
            timeout: The time that an operation may take.
        """
        super().__init__()
        self._store: Any = store
        self._member = member
        self._membership = membership
        own = member.own_rank(membership)
        self._own = own
        self._timeout = timeout

    # What torch's agent asks about ranks.

    def _ranks(self) -> tuple[NodeRanks, ...]:
        return node_ranks(self._membership)

    def _say(self, text: _Value) -> None:
        """The agent says what it runs."""
        said = _decoded(text)
        role, workers = said.get("role"), said.get("local_world_size")
        if said.get("rank") != self._own or not isinstance(role, str) or type(workers) is not int:
            raise _contradicts(f"the agent calls itself {said}, this node's rank is {self._own}")
        self._membership = self._member.say_workers(workers, role)

    def _answer(self, key: str) -> bytes | None:
        """The value of a key that the membership answers; None for the store's own."""
        for prefix, answer in ((ROLE_INFO, _role_info), (ASSIGNED, _assigned)):
            if key.startswith(prefix):
                return answer(self._ranks()[self._rank_in(key, prefix)])
        return None

    def _compare(self, key: str, value: _Value) -> bool:
        """Judge what the agent writes; True when it is a key of rule 1."""
        if key.startswith(ROLE_INFO):
            if self._rank_in(key, ROLE_INFO) != self._own:
                raise _contradicts(f"{key} is another node's")
            self._say(value)
            return True
        if key.startswith(ASSIGNED):
            found = self._ranks()[self._rank_in(key, ASSIGNED)]
            if _decoded_list(value) != _decoded_list(_assigned(found)):
                raise _contradicts(f"{key} is {_text(value)}, not {_assigned(found).decode()}")
            return True
        return False

    def _rank_in(self, key: str, prefix: str) -> int:
        number = key.removeprefix(prefix)
        if not (number.isascii() and number.isdigit() and len(number) < 8):
            raise _contradicts(f"{key} names no rank")
        if int(number) >= len(self._membership.members):
            raise _contradicts(f"{key} names a rank that the epoch has not")
        return int(number)

    def _untouchable(self, key: str) -> None:
        if key.startswith((ROLE_INFO, ASSIGNED)):
            raise _contradicts(f"{key} is not the agent's to change")

    # torch's interface.

    @property
    def timeout(self) -> timedelta:
        """The time that an operation may take."""
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """See base class."""
        self._timeout = timeout

    def set(self, key: str, value: _Value) -> None:
        """See base class."""
        if not self._compare(key, value) and not key.startswith(TERMINAL):
            self._patiently(lambda: self._store.set(key, value))

    def get(self, key: str) -> bytes:
        """See base class."""
        known = self._answer(key)
        if known is not None:
            return known
        return self._patiently(lambda: bytes(self._store.get(key)))

    def multi_set(self, keys: Sequence[str], values: Sequence[_Value]) -> None:
        """See base class."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """See base class."""
        return [self.get(key) for key in keys]

    def add(self, key: str, amount: int) -> int:
        """See base class. At the barrier's end nobody is last: see `wait`."""
        self._untouchable(key)
        if key.startswith(TERMINAL):
            self._member.finish_work()
            return 0
        return self._patiently(lambda: int(self._store.add(key, amount)))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """See base class."""
        patience = timeout or self._timeout
        left = [key for key in keys if not key.startswith((ROLE_INFO, ASSIGNED))]
        if any(key.startswith(TERMINAL) for key in left):
            left = [key for key in left if not key.startswith(TERMINAL)]
            if not self._member.await_work(patience.total_seconds()):
                raise DistStoreError(f"other nodes' workers run on after {patience}")
        if left:
            self._patiently(lambda: self._store.wait(left, patience))

    def check(self, keys: Sequence[str]) -> bool:
        """See base class."""
        left = [key for key in keys if self._answer(key) is None]
        return not left or self._patiently(lambda: bool(self._store.check(left)))

    def compare_set(self, key: str, expected: _Value, desired: _Value) -> bytes:
        """See base class."""
        self._untouchable(key)
        return self._patiently(lambda: bytes(self._store.compare_set(key, expected, desired)))

    def append(self, key: str, value: _Value) -> None:
        """See base class."""
        self._untouchable(key)
        self._patiently(lambda: self._store.append(key, value))

    def delete_key(self, key: str) -> bool:
        """See base class."""
        self._untouchable(key)
        return self._patiently(lambda: bool(self._store.delete_key(key)))

    def num_keys(self) -> int:
        """See base class."""
        return self._patiently(lambda: int(self._store.num_keys()))

    def has_extended_api(self) -> bool:
        """See base class."""
        return True

    def _patiently(self, action: Callable[[], T]) -> T:
        self._store.set_timeout(self._timeout)
        return patiently(action, self._look)

    def _look(self) -> None:
        self._member.require_epoch(self._membership.epoch)


def _role_info(ranks: NodeRanks) -> bytes:
    said = {"role": ranks.role, "rank": ranks.group_rank, "local_world_size": ranks.num_workers}
    return json.dumps(said).encode()


def _assigned(ranks: NodeRanks) -> bytes:
    found = [ranks.first, ranks.world_size, ranks.role_first, ranks.role_world_size]
    return json.dumps(found).encode()


def _text(value: _Value) -> str:
    return (value if isinstance(value, str) else value.decode(errors="replace"))[:200]


def _decoded(value: _Value) -> dict[str, Any]:
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise _contradicts(f"the agent's role info is {_text(value)}")
    return found


def _decoded_list(value: _Value) -> object:
    try:
        return json.loads(value)
    except ValueError:
        return None


def _contradicts(what: str) -> AdmissionError:
    return AdmissionError("ST-ADMN-040", what, "role info")
