# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A deadline for the guard's own messages, and which ranks did not speak.

A collective that waits for a silent rank does not tell whom it waits for. So a rank that has waited
for a moment writes into the job's store where it waits; who has written nothing there when the
deadline is over, and a moment more, did not speak. As long as nobody is late nothing is written.

A rank that writes that it waits and is silent all the same is not named: then the error names
nobody, and the step is lost with the process, at the same deadline.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import msgspec
import torch.distributed as dist

from securetrain.core.errors import GuardError

DEADLINE_SECONDS: Final = 60.0
_POLL: Final = 0.05


class Waiting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The place at which a rank waits."""

    step: int
    place: str
    count: int


@dataclass(slots=True, kw_only=True)
class Deadline:
    """The time that this rank waits for the others, and how it finds out who is missing.

    Args:
        store: the job's; None where there is none, and nobody can be named.
        rank: this one, in the job.
        seconds: for one message.
        clock: seconds.
        name: tells this guard from another of the same job.
    """

    store: Any
    rank: int
    name: str
    seconds: float = DEADLINE_SECONDS
    clock: Callable[[], float] = time.monotonic
    step: int = 0
    """Steps judged so far, the same on all ranks of the job."""
    report: Callable[[tuple[int, ...]], None] | None = None
    """Told who is missing, before the error is raised."""

    @property
    def patience(self) -> float:
        """Seconds after which a rank says that it waits."""
        return min(2.0, self.seconds / 6)

    def wait(self, work: Any, place: str, count: int, ranks: Sequence[int]) -> None:
        """Wait for a collective.

        Args:
            work: what torch returned.
            place: the group in which it runs.
            count: its number there.
            ranks: of the group, in the job.

        Raises:
            GuardError: ST-GRAD-010, a rank did not speak.
        """
        begin, patience, why = self.clock(), self.patience, ""
        mine = Waiting(self.step, place, count)
        posted = False
        while (left := begin + self.seconds - self.clock()) > 0 and not why:
            try:
                if _finished(work, min(left, patience)):
                    return
            except RuntimeError as error:  # the connection is gone: a rank has ended
                why = f": {str(error).splitlines()[0][:200]}"
            if not posted:
                self._post(mine)
                posted = True
        missing = self._missing(mine, ranks, None if why else work)
        if missing is None:
            return
        if self.report is not None:
            self.report(missing)
        raise silent(missing, self.seconds, why)

    def _missing(self, mine: Waiting, ranks: Sequence[int], work: Any) -> tuple[int, ...] | None:
        """The ranks that have not come, after one more moment; None when the message came."""
        end = self.clock() + 2 * self.patience
        while True:
            missing = tuple(r for r in ranks if r != self.rank and not self._waits(r, mine))
            if not missing or self.clock() >= end:
                return missing
            if work is not None and _finished(work, _POLL):
                return None
            time.sleep(_POLL)

    def _waits(self, rank: int, mine: Waiting) -> bool:
        """True when a rank says that it has come as far as this one."""
        if self.store is None:
            return True
        key = self._key(rank)
        try:
            if not self.store.check([key]):
                return False
            other = msgspec.json.decode(self.store.get(key), type=Waiting)
        except (RuntimeError, msgspec.MsgspecError, ValueError):
            return False
        if other.place == mine.place:
            return (other.step, other.count) >= (mine.step, mine.count)
        return other.step >= mine.step  # it waits for others elsewhere

    def _post(self, mine: Waiting) -> None:
        if self.store is not None:
            try:
                self.store.set(self._key(self.rank), msgspec.json.encode(mine))
            except RuntimeError:  # the store is gone with the rank that kept it
                self.store = None

    def _key(self, rank: int) -> str:
        return f"securetrain-guard/{self.name}/{rank}"


def _finished(work: Any, seconds: float) -> bool:
    """Wait a moment; True when it is done.

    Raises:
        RuntimeError: it failed.
    """
    try:
        # Less than a millisecond is none to torch, and none is for ever.
        work.wait(timedelta(seconds=max(seconds, 0.01)))
    except RuntimeError as error:
        if not work.is_completed() and "timed out" in str(error).lower():
            return False
        raise
    return True


def silent(missing: tuple[int, ...], seconds: float, why: str = "") -> GuardError:
    """The refusal."""
    if missing:
        who = ", ".join(f"rank {rank}" for rank in missing)
        what = f"{who} did not speak within {seconds:g} s"
    else:
        what = f"a message of the guard took more than {seconds:g} s; every rank says that it waits"
    return GuardError(
        "ST-GRAD-010",
        what + why,
        "gradients.deadline_seconds",
        "look at the ranks that are named: hung, ended, or silent on purpose",
    )


def default_store() -> Any:
    """The store through which the default group met; None where torch does not say."""
    find = getattr(dist.distributed_c10d, "_get_default_store", None)
    return find() if find is not None and dist.is_initialized() else None
