# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Reference values that are signed again while a coordinator runs.

Rules:

1. the files are looked at again when a node asks, at most once a second, and read when one of them
   has changed. An edition that is good takes the place of the last one, and every lease asks for
   full evidence at its next renewal: what was retired is refused there;
2. an edition that is not good changes nothing: the last good one stands until it ends by itself,
   and whoever asked to be told hears why;
3. what an edition accepts until an instant (`attest values retire --accept-until`) is over then,
   for joins and, at their next renewal, for leases;
4. it is told 14 and 2 days before an edition ends; so it is of the cache of collateral, and of each
   document in it.
"""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from securetrain.attest.session.appraisers import appraisers_for, reference_folder
from securetrain.attest.session.cache import INDEX_NAME, CachedCollateral
from securetrain.attest.session.endings import Ending, endings_of_cache
from securetrain.attest.session.state import StateStore
from securetrain.core.errors import SecureTrainError
from securetrain.evidence import NODE_TYPE, Appraiser, Collateral, NodeAppraiser
from securetrain.policy.load import LoadedPolicy

LOOK_SECONDS: Final = 1.0
WARN_DAYS: Final = (2, 14)

Stamp = tuple[tuple[int, ...], ...]


@dataclass(slots=True, kw_only=True)
class ValuesWatch:
    """The files of one policy's reference values. The verifier calls it with its lock held."""

    policy: LoadedPolicy
    state: StateStore
    clock: Callable[[], datetime]
    monotonic: Callable[[], float] = time.monotonic
    read: Callable[[], None] = field(default=lambda: None)
    """Called when a new edition is in force."""
    refused: Callable[[SecureTrainError], None] = field(default=lambda _: None)
    """Called when a new edition is not good."""
    ending: Callable[[int], None] = field(default=lambda _: None)
    """Called with the days within which an edition ends, once for each of `WARN_DAYS`."""
    collateral: Callable[[Ending, int], None] = field(default=lambda _, __: None)
    """Called likewise for the cache of collateral, and for each document in it."""
    _appraisers: Mapping[str, Appraiser] = field(default_factory=dict)
    _stamp: Stamp = ()
    _ends: datetime | None = None
    _warned: int = sys.maxsize
    _cached: tuple[Ending, ...] = ()
    _told: dict[Ending, int] = field(default_factory=dict)
    _next_look: float = 0.0

    def __post_init__(self) -> None:
        """Take what is there for what the verifier begins with."""
        self._stamp = self._look()

    def begin(self, appraisers: Mapping[str, Appraiser]) -> None:
        """Look after the edition that these go by."""
        found = appraisers.get(NODE_TYPE)
        self._appraisers = appraisers
        self._ends = found.ends if isinstance(found, NodeAppraiser) else None
        self._warned = sys.maxsize
        collateral = found.collateral if isinstance(found, NodeAppraiser) else None
        self._cached = _endings(collateral)
        self._told = {one: days for one, days in self._told.items() if one in self._cached}
        self._warn()

    def _warn(self) -> None:
        now = self.clock()
        if self._ends is not None and (due := _due(self._ends - now)) < self._warned:
            self._warned = due
            self.ending(due)
        for one in self._cached:
            if (due := _due(one.ends - now)) < self._told.get(one, sys.maxsize):
                self._told[one] = due
                self.collateral(one, due)

    def renewed(self) -> Mapping[str, Appraiser] | None:
        """The appraisers by a new edition, if there is a good one since the last call."""
        now = self.monotonic()
        if now < self._next_look:
            return None
        self._next_look = now + LOOK_SECONDS
        self._warn()
        stamp = self._look()
        if stamp == self._stamp:
            return self._ended(self.clock())
        self._stamp = stamp
        try:
            found = appraisers_for(self.policy, self.clock(), self.state)
        except SecureTrainError as error:
            self.refused(error)
            return self._ended(self.clock())
        self.read()
        self.begin(found)
        return found

    def _ended(self, now: datetime) -> Mapping[str, Appraiser] | None:
        """The appraisers without what the edition accepts no longer; None while nothing ends.

        No file is read for it: an edition that cannot be read now keeps nothing alive.
        """
        current = self._appraisers.get(NODE_TYPE)
        if not isinstance(current, NodeAppraiser) or current.changes is None:
            return None
        if now < current.changes:
            return None
        self._appraisers = {**self._appraisers, NODE_TYPE: current.at(now)}
        self.read()
        return self._appraisers

    def _look(self) -> Stamp:
        wanted = self.policy.policy.node.reference_values
        if wanted is None:
            return ()
        folder = reference_folder(self.policy)
        files = [folder / wanted.file]
        if wanted.cache is not None:
            files.append(folder / wanted.cache / INDEX_NAME)
        return tuple(map(_stamp_of, files))


def _endings(collateral: Collateral | None) -> tuple[Ending, ...]:
    """The ends of the cache that appraisers read from."""
    if not isinstance(collateral, CachedCollateral) or collateral.cache is None:
        return ()
    return tuple(endings_of_cache(collateral.cache.index, collateral.cache.folder))


def _due(left: timedelta) -> int:
    """The smallest of `WARN_DAYS` within which something ends; far above them when it does not."""
    return min((days for days in WARN_DAYS if left <= timedelta(days=days)), default=sys.maxsize)


def _stamp_of(path: Path) -> tuple[int, ...]:
    try:
        info = path.stat()
    except OSError:
        return ()
    return info.st_dev, info.st_ino, info.st_mtime_ns, info.st_size
