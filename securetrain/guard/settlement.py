# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Settle a refused step within the step: reduce it again in the open until nobody spoils it.

Rules:

1. who is named by the step's evidence is left out, within the bound of exclusion.py; then the step
   is reduced in the open (rereduction.py) and the table is read (dispute.py). What ranks send then
   is judged like what they sent before: to say one thing and send another later gains nothing;
2. whoever is found guilty is left out as well, pairs that contradict each other are set apart, and
   the reduction is done once more, a bounded number of times;
3. ranks go by what **more than half** of them read out of the table: one that was told another
   table, or says so, holds up nobody. Without a majority the step stays refused;
4. a rank says in every attempt which gradient it has, by its digest; one that says another one
   denies what it said, and is guilty. The words of a disputed table are signed, for those who judge
   later (witness.py);
5. no rank's word alone ends in a name, and nothing here waits for a rank that was not waited for by
   the reduction itself.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
from torch import Tensor

from securetrain.guard.dispute import Numbers, OpenTable, Ruling, Standing, guilty_by_standing, rule
from securetrain.guard.exclusion import Decision, Exclusion, Ground
from securetrain.guard.group_channel import Channel
from securetrain.guard.kept import Kept
from securetrain.guard.one_verdict import STRIKES, TOLD_OTHERWISE
from securetrain.guard.rereduction import Attempt
from securetrain.guard.witness import Witness

Offences = list[tuple[int, Ground]]
Assess = Callable[[Numbers, Collection[int]], Offences]
"""Rows (ranks, k) of what was sent, and the ranks that are left out: what else is against whom."""

_GROUNDS: Final = list(Ground)
_ATTEMPTS: Final = 16
"""Of f liars each can have disputes with f others, one in each attempt, before the next tells."""


class Common(Protocol):
    """`common_finding.CommonFinding`."""

    @property
    def is_agreed(self) -> bool:
        """True when `choose` returns the same on all honest ranks."""
        ...

    @property
    def barred(self) -> frozenset[int]:
        """Ranks whose words are not read."""
        ...

    def compare(self) -> tuple[bool, tuple[int, ...]]:
        """Return whether all were told the same, and the ranks guilty of telling otherwise."""
        ...

    def choose(self, mine: bytes) -> bytes | None:
        """Return the message of most ranks."""
        ...


class Reducer(Protocol):
    """`rereduction.OpenReduction`."""

    def run(
        self, kept: Sequence[Kept], out: Collection[int], apart: Collection[tuple[int, int]]
    ) -> Attempt:
        """Do all reductions of a step again."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """The result; ranks count from zero in their group."""

    means: tuple[Tensor, ...] | None
    """What the step's gradients are to be; None when it stays refused."""
    offences: Offences
    """All, those of the step included."""
    disputes: tuple[tuple[int, int], ...]
    """Pairs that were set apart."""
    texts: tuple[tuple[int, str], ...]
    """Ranks that were found guilty, and of what."""
    undecided: bool
    out: tuple[int, ...]
    """Ranks that are not in the means."""
    table: OpenTable | None = None
    """The words of all ranks in the last attempt."""
    apart: tuple[tuple[int, int], ...] = ()
    """Senders and owners that are set apart."""
    sent_bytes: int


@dataclass(slots=True)
class _Outcome:
    """The meaning of one table; every rank works it out for itself, and the majority's counts."""

    ok: bool
    grounds: dict[int, Ground] = field(default_factory=dict)
    apart: set[tuple[int, int]] = field(default_factory=set)

    def encode(self, ranks: int) -> bytes:
        """As many bytes on every rank."""
        codes = [0] * ranks
        for rank, ground in self.grounds.items():
            codes[rank] = 1 + _GROUNDS.index(ground)
        pairs = np.zeros((ranks, ranks), dtype=np.uint8)
        for sender, owner in self.apart:
            pairs[sender, owner] = 1
        return bytes([int(self.ok), *codes]) + np.packbits(pairs).tobytes()

    @classmethod
    def decode(cls, data: bytes, ranks: int) -> "_Outcome":
        """Read one."""
        flat = np.unpackbits(np.frombuffer(data[1 + ranks :], dtype=np.uint8), count=ranks * ranks)
        senders, owners = np.nonzero(flat.reshape(ranks, ranks))
        return cls(
            ok=bool(data[0]),
            grounds={
                rank: _GROUNDS[code - 1]
                for rank, code in enumerate(data[1 : 1 + ranks])
                if 0 < code <= len(_GROUNDS)
            },
            apart=set(zip(senders.tolist(), owners.tolist(), strict=True)),
        )


class Settler:
    """Settles the steps of one group of ranks. Collective.

    Args:
        reducer: reduces in the open.
        channel: the group.
        exclusion: the group's record; only looked at.
        standing: the group's disputes.
        witness: has the words of a disputed table signed.
        common: says what most ranks read, the same to all; without it each counts for itself.
    """

    def __init__(
        self,
        reducer: Reducer,
        channel: Channel,
        exclusion: Exclusion,
        standing: Standing,
        *,
        witness: Witness | None = None,
        common: Common | None = None,
    ) -> None:
        self._witness = witness
        self._common = common
        self._wholes: dict[int, bytes] = {}
        self._reducer = reducer
        self._channel = channel
        self._exclusion = exclusion
        self._standing = standing

    def settle(
        self,
        kept: Sequence[Kept],
        offences: Offences,
        held: Collection[int],
        assess: Assess,
        before: Collection[tuple[int, int]] = (),
    ) -> Settlement:
        """Reduce a step again.

        Args:
            kept: its reductions.
            offences: what was found in it.
            held: ranks that the detector keeps on probation.
            assess: judges what is sent now.
            before: senders and owners that are set apart already.
        """
        ranks = self._channel.size
        offences = list(offences)
        apart: set[tuple[int, int]] = set(before)
        table: OpenTable | None = None
        texts: dict[int, str] = {}
        sent_bytes = 0
        self._wholes.clear()
        decision = self._consider(offences, held)
        most = self._exclusion.limit * (self._exclusion.limit + 1) + 3 + STRIKES
        for _ in range(min(_ATTEMPTS, most)):
            owners = set(range(ranks)) - set(decision.excluded)
            if decision.undecided or all((rank, rank) in apart for rank in owners):
                break
            attempt = self._reducer.run(kept, decision.excluded, apart)
            table = attempt.table
            sent_bytes += attempt.sent_bytes
            usable, liars = (True, ()) if self._common is None else self._common.compare()
            offences += [(rank, Ground.PROOF) for rank in liars]
            texts |= dict.fromkeys(liars, TOLD_OTHERWISE)
            if not usable:  # other seeds, or another table: once more without their words
                decision = self._consider(offences, held)
                continue
            outcome, said = self._read(attempt, decision.excluded, assess)
            mine = outcome.encode(ranks)
            agreed = self._most(mine)
            sent_bytes += len(mine)
            if agreed is None:
                break
            outcome = _Outcome.decode(agreed, ranks)
            if self._witness is not None and not outcome.ok:
                names = hashlib.sha256("\n".join(one.chunk for one in kept).encode())
                rows = hashlib.sha256(attempt.rows).digest()
                sent_bytes += self._witness.record(
                    names.digest(), rows, table.owners, table.digests
                )
            new = [one for one in outcome.grounds.items() if one not in offences]
            texts |= {rank: said[rank] for rank, _ in new if rank in said}
            offences += new
            if outcome.ok:
                return Settlement(
                    means=attempt.means,
                    offences=offences,
                    disputes=_pairs(apart),
                    texts=tuple(sorted(texts.items())),
                    undecided=False,
                    out=decision.excluded,
                    table=table,
                    apart=tuple(sorted(apart)),
                    sent_bytes=sent_bytes,
                )
            seen = (decision.excluded, len(apart))
            apart |= outcome.apart
            decision = self._consider(offences, held)
            if (decision.excluded, len(apart)) == seen:
                break  # nothing that could be left out is left
        return Settlement(
            means=None,
            offences=offences,
            disputes=_pairs(apart),
            texts=tuple(sorted(texts.items())),
            undecided=bool(decision.undecided),
            out=decision.excluded,
            table=table,
            apart=tuple(sorted(apart)),
            sent_bytes=sent_bytes,
        )

    def _most(self, mine: bytes) -> bytes | None:
        """Return the outcome that most ranks read, for all."""
        if self._common is not None and self._common.is_agreed:
            return self._common.choose(mine)
        return _majority(self._channel.all_gather(mine))

    def _consider(self, offences: Offences, held: Collection[int]) -> Decision:
        return self._exclusion.preview(offences, held=held)

    def _read(
        self, attempt: Attempt, out: Collection[int], assess: Assess
    ) -> tuple[_Outcome, dict[int, str]]:
        table = attempt.table
        barred = frozenset() if self._common is None else self._common.barred
        live = [rank for rank in range(self._channel.size) if rank not in out]
        ruling = rule(table, live)
        texts = dict(ruling.guilty)
        disputes = [pair for pair in ruling.disputes if not barred & {*pair}]
        for rank, others in guilty_by_standing(self._standing, disputes).items():
            texts.setdefault(
                rank, f"contradicts {len(others)} other ranks, more than can be wrong at once"
            )
        for rank, one in enumerate(table.digests):
            if self._wholes.setdefault(rank, one.whole) != one.whole:
                texts.setdefault(rank, "denies the gradient that it said it has")
        grounds = dict.fromkeys(texts, Ground.PROOF)
        grounds |= dict.fromkeys(ruling.not_finite, Ground.NOT_FINITE)
        suspects = [] if ruling.not_finite else assess(table.sent.sum(axis=1), out)
        for rank, ground in suspects:
            grounds.setdefault(rank, ground)
        apart = _apart(ruling, table, gone={*texts, *ruling.not_finite})
        outcome = _Outcome(
            ok=not (apart or any(rank in live for rank in grounds)),
            grounds={rank: ground for rank, ground in grounds.items() if rank not in barred},
            apart=apart,
        )
        return outcome, texts


def _apart(ruling: Ruling, table: OpenTable, gone: Collection[int]) -> set[tuple[int, int]]:
    """Senders and owners to set apart, owners to disown; not for the word of who is out by now."""
    pairs = {(sender, table.owners[part]) for sender, part in ruling.apart}
    disowned = {(owner, owner) for rank, owner in ruling.complaints if rank not in gone}
    return {
        (sender, owner)
        for sender, owner in pairs | disowned
        if sender not in gone and not (table.shared and owner in gone)
    }


def _pairs(apart: Collection[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted({(min(pair), max(pair)) for pair in apart if pair[0] != pair[1]}))


def _majority(said: Sequence[bytes]) -> bytes | None:
    ((most, count),) = Counter(said).most_common(1)
    return most if count > len(said) / 2 else None
