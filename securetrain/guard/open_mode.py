# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Steps that are reduced in the open from the start, module by module.

After the backward pass a step can be reduced again only as long as its unreduced gradients are
kept, and those of a large sharded model are not. So when such a step was refused and nobody could
be found out, the next ones are **open**: the hook of each FSDP module does not call torch's
reduction but settles that module at once (settlement.py), from the gradient that it has in its
hands. Rules:

1. whatever a liar does in an open step it does in front of the owners of its parts: it is left out,
   or the pair is set apart, within the module, and the step is used. So a refusal without a culprit
   costs one step, whatever the size of the model, and needs no memory but that of one module twice;
2. the evidence of the step is what was said in the open: rows of the gradient, of the result and of
   the optimizer's first moment, under the seed of each module's last attempt;
3. nobody is judged by one module's statistics here: norms of single modules differ more than those
   of whole gradients. The detector judges the sum when all are there;
4. ranks that reduce in different ways would wait for each other. So all go by one finding
   (common_finding.py); groups of two or three, where no liar can be outvoted, count votes;
5. open steps are slower (four small messages a module). They last `STEPS`, and twice as long each
   time that it was necessary again: a liar cannot have a step dropped in every sixty-fifth.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from torch import Tensor

from securetrain.core.errors import GuardError
from securetrain.guard.dispute import OpenTable
from securetrain.guard.exclusion import Ground
from securetrain.guard.group_channel import Channel
from securetrain.guard.kept import Kept
from securetrain.guard.response import Findings
from securetrain.guard.rows import StepRows
from securetrain.guard.settlement import Offences, Settlement, Settler
from securetrain.guard.statements import Table, first_moment

STEPS: Final = 64
_MOST_DOUBLINGS: Final = 12
SET_APART: Final = (
    "two ranks contradict each other about what was sent between them: it is left out, and neither"
    " is named"
)
NOT_AGREED: Final = "reduced again in the open, the step is still not agreed on"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStep:
    """The modules of one step, as they were settled."""

    groups: tuple[str, ...]
    settlements: tuple[Settlement, ...]
    """One for each reduction, in order."""

    @property
    def agreed(self) -> bool:
        """Every module has a result."""
        return all(one.means is not None for one in self.settlements)

    @property
    def tables(self) -> list[OpenTable]:
        """Those that were read."""
        return [one.table for one in self.settlements if one.table is not None]

    @property
    def out(self) -> set[int]:
        """Ranks that are not in every result."""
        return {rank for one in self.settlements for rank in one.out}

    def add_to(self, findings: Findings, ranks: Sequence[int]) -> None:
        """Say what came of it.

        Args:
            findings: of this group.
            ranks: of the group, by their numbers in the job.
        """
        out, known = self.out, set(findings.excluded)
        findings.offences += self.settlements[-1].offences
        new = [one for one in self.settlements[-1].offences if ranks[one[0]] not in known]
        findings.outliers |= {ranks[index] for index, _ in new if index in out}
        findings.proven |= {ranks[i] for i, ground in new if i in out and ground is Ground.PROOF}
        for index, ground in new:
            if ground is Ground.NOT_FINITE:
                findings.add("ST-GRAD-001", f"rank {ranks[index]}'s gradient is not finite")
        for one in self.settlements:
            for index, text in one.texts:
                if ranks[index] not in known:  # else it is evidence, and in no result
                    findings.add("ST-GRAD-003", f"rank {ranks[index]} {text}")
            findings.disputes |= {(ranks[a], ranks[b]) for a, b in one.disputes}
        if findings.disputes:
            findings.add("ST-GRAD-003", SET_APART, attributed=False)
        if self.agreed:
            findings.excluded |= {ranks[index] for index in out}
            findings.settle()
        else:
            findings.add("ST-GRAD-003", NOT_AGREED, attributed=False)

    def rows(self, owners: Sequence[int]) -> tuple[StepRows | None, tuple[int, ...]]:
        """The evidence, and the ranks whose copy of the first moment differs.

        Args:
            owners: the shard that each rank holds.
        """
        names = tuple(dict.fromkeys(self.groups))
        said: dict[str, np.ndarray] = {}
        for name, one in zip(self.groups, self.settlements, strict=True):
            if one.table is None:
                return None, ()
            table = one.table
            three = np.stack([table.sent.sum(axis=1), table.own, table.moments])
            said[name] = said.get(name, 0.0) + three
        stacked = np.stack([said[name] for name in names], axis=2)  # (3, ranks, groups, k)
        words = Table(
            digests=(b"",) * stacked.shape[1],
            parts=stacked[0],
            groups=stacked[0],
            received=stacked[1],
            moments=stacked[2],
        )
        moment, odd = first_moment(words, owners)
        usable = words.finite
        gradients = np.where(usable[:, None, None], words.groups, np.nan)
        return (
            StepRows(groups=names, gradients=gradients.transpose(1, 0, 2), momentum=moment),
            odd,
        )


@dataclass(slots=True)
class _Now:
    """The modules of the present step so far."""

    groups: list[str] = field(default_factory=list)
    settlements: list[Settlement] = field(default_factory=list)
    offences: Offences = field(default_factory=list)
    apart: set[tuple[int, int]] = field(default_factory=set)
    silence: GuardError | None = None


class OpenMode:
    """The open steps of one group of ranks, and the one that is being made. Equal on every rank.

    Args:
        settler: makes one for the group.
    """

    def __init__(self, settler: Callable[[], Settler]) -> None:
        self._settler = settler
        self._left = 0
        self._times = 0
        self._now = _Now()
        self.held: tuple[int, ...] = ()
        """Ranks that the detector keeps on probation."""

    @property
    def active(self) -> bool:
        """The present step is open."""
        return self._left > 0

    @property
    def has_pieces(self) -> bool:
        """True when a module was reduced since the last step."""
        return bool(self._now.settlements) or self._now.silence is not None

    def consider(self, channel: Channel, *, wanted: bool, known: bool = False) -> None:
        """A step that cannot be reduced again is over: agree on whether the next are open.

        Collective.

        Args:
            channel: the group.
            wanted: this rank has read that the step is refused, and neither settled nor anybody
                named.
            known: all ranks have read the same.
        """
        if not known:
            votes = channel.all_gather(bytes([wanted]))
            wanted = 2 * votes.count(b"\1") > len(votes)
        if wanted:
            self.start()

    def start(self) -> None:
        """The next steps are open."""
        self._left = STEPS << min(self._times, _MOST_DOUBLINGS)
        self._times += 1

    def reduce(self, kept: Kept, group: str) -> Tensor | None:
        """Reduce one module; None when there is no result. Does not raise. Collective."""
        now = self._now
        if now.silence is not None:
            return None
        try:
            settlement = self._settler().settle(
                [kept], now.offences, self.held, lambda _rows, _out: [], now.apart
            )
        except GuardError as error:  # this is a backward pass, which must not end here
            now.silence = error
            return None
        now.groups.append(group)
        now.settlements.append(settlement)
        now.offences = settlement.offences
        now.apart |= set(settlement.apart)
        return None if settlement.means is None else settlement.means[0]

    def fill(
        self, result: Tensor, kept: Kept, group: str, *, scale: float, part: int | None
    ) -> None:
        """Reduce one module and put the mean where torch's reduction would have put its result.

        Args:
            result: this rank's shard.
            kept: the gradient.
            group: its name.
            scale: makes what torch would have put there a mean.
            part: this rank's, where all ranks get the whole.
        """
        mean = self.reduce(kept, group)
        if mean is None:
            result.zero_()  # the step is refused
            return
        own = mean if part is None else mean.view(kept.parts, -1)[part]
        result.copy_((own / scale).view_as(result))

    def end(self) -> OpenStep | None:
        """The step's modules; None when there was none.

        Raises:
            GuardError: ST-GRAD-010, a rank did not speak.
        """
        now, self._now = self._now, _Now()
        if now.silence is not None:
            raise now.silence
        self._left -= 1
        if not now.settlements:
            return None
        return OpenStep(groups=tuple(now.groups), settlements=tuple(now.settlements))
