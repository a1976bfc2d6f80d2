# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One piece of the model, and the ranks whose gradients of it can be compared.

Ranks that hold **equal pieces** and see **different tokens** can judge each other: the
data-parallel and context-parallel ranks of one pipeline stage and one tensor-parallel coordinate
(`GroupWatch`). A rank that is alone with its piece can only be judged by its own past
(`LoneWatch`). A model may have several pieces on a rank: experts are spread over other ranks than
the rest.

Rules:

1. ranks have the numbers of the default group, in verdicts too;
2. what was learned about one piece is never used for another (pieces.py): a run that is resumed on
   another mesh learns anew;
3. a lone rank's gradient is read through its placements: pending sums are finished first, which is
   collective among the tensor-parallel ranks, all of whom judge at the same time.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

import numpy as np
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel

from securetrain.core.errors import GuardError
from securetrain.guard.after import (
    CODE,
    AfterVerdict,
    Contradictions,
    ShardLengths,
    lengths_in_the_open,
    lengths_of_table,
)
from securetrain.guard.beacon import Beacon
from securetrain.guard.buffer_sync import BufferSync, buffers_of
from securetrain.guard.collect import Collector, StepSketches
from securetrain.guard.common_finding import CommonFinding
from securetrain.guard.detector import Detector
from securetrain.guard.detector_state import DetectorState
from securetrain.guard.dispute import Numbers, OpenTable, Standing
from securetrain.guard.exclusion import Exclusion, ExclusionState, Ground, weights_of
from securetrain.guard.flat import Flat, attach_flat, flat_names
from securetrain.guard.group_channel import GroupChannel
from securetrain.guard.hooks import Sharded, attach_replicated, attach_sharded
from securetrain.guard.kept import Keeper, Weights
from securetrain.guard.moments import Moments
from securetrain.guard.one_verdict import Heard
from securetrain.guard.open_mode import NOT_AGREED, SET_APART, OpenMode
from securetrain.guard.pieces import fingerprint, owners_of
from securetrain.guard.presence import Deadline
from securetrain.guard.rereduction import OpenReduction
from securetrain.guard.response import EXCLUDING, Findings
from securetrain.guard.rows import StepRows
from securetrain.guard.settlement import Offences, Settlement, Settler
from securetrain.guard.sketch import shape_for
from securetrain.guard.statements import DIGEST, Table, encode
from securetrain.guard.step_table import Judged, Layout, StepTable
from securetrain.guard.table_reader import Shown, TableReader
from securetrain.guard.two_tales import changed_tales
from securetrain.guard.witness import Witness, WordSigner
from securetrain.policy.schema import Gradients, GuardResponse

BUFFERS: Final = "ST-GRAD-014"


class Watch(Protocol):
    """The ranks that watch one piece, and their detector."""

    ranks: tuple[int, ...]
    """The ranks that hold it, in order."""
    piece: str
    """Its fingerprint (hex)."""
    detector: Detector
    exclusion: Exclusion

    def judge(self, findings: Findings, elsewhere: Collection[int] = ()) -> tuple[int, int]:
        """Add what is wrong with this step; returns seeds drawn and bytes sent. Collective.

        Args:
            findings: takes it.
            elsewhere: ranks of the job that another piece of the model goes on without.
        """
        ...

    def restore(self, detector: DetectorState, exclusion: ExclusionState) -> None:
        """Go on from what was learned about this piece."""
        ...

    def hand_over(self, step: int) -> None:
        """Give away what was said in the disputes of a step."""
        ...


class GroupWatch:
    """Ranks that hold equal pieces and see different tokens.

    Args:
        group: these ranks.
        settings: the policy's section.
        randomness: gives n unpredictable bytes.
        retain_bytes: local gradient bytes that may wait for a seed, or for a verdict.
        deadline: for each message.
        nodes: the node of each of these ranks, where it is known.
        signer: signs this rank's words in disputes.
    """

    is_flat = False
    """FSDP1 shards the model."""

    def __init__(
        self,
        group: ProcessGroup,
        settings: Gradients,
        randomness: Callable[[int], bytes],
        retain_bytes: int,
        *,
        deadline: Deadline | None = None,
        nodes: Sequence[int] | None = None,
        signer: WordSigner | None = None,
    ) -> None:
        self.ranks = tuple(dist.get_process_group_ranks(group))
        self.piece = ""
        self.detector = Detector.of(len(self.ranks), settings)
        self.channel = Heard(GroupChannel(group, deadline))
        self.shape = shape_for(len(self.ranks), keys=settings.sketch_keys)
        self.beacon = Beacon(self.channel, randomness)
        self.collector = Collector(self.beacon, self.shape, retain_bytes)
        self.moments = Moments()
        self.exclusion = Exclusion(len(self.ranks), nodes)
        self.common = CommonFinding(self.channel, self.beacon, self.ranks, self.exclusion, settings)
        self.weights = Weights(len(self.ranks))
        self.rows: StepRows | None = None
        number = 0 if deadline is None else int(deadline.name)
        self.witness = Witness(channel=self.channel, ranks=self.ranks, guard=number, signer=signer)
        self._keeper = Keeper(retain_bytes)
        self._standing = Standing(len(self.ranks), self.exclusion.limit)
        self._settings = settings
        self._response = settings.response
        self._buffers: BufferSync | None = None
        self._group = group
        self._owners: tuple[int, ...] = (0,) * len(self.ranks)
        self.after = AfterVerdict(self.channel, self.beacon)
        self._table: Table | None = None
        self._opened: list[OpenTable] = []
        self._open = OpenMode(self._settler)
        self._hooks_open = False
        self._reader = TableReader(self.ranks, self._owners)
        self.judged: Judged | None = None
        """What there is to keep of the last step; None where it was reduced in the open."""

    def watch_sharded(
        self, modules: Sequence[Sharded], report_error: Callable[[GuardError], None]
    ) -> None:
        """Hook modules that are spread over these ranks. Collective."""
        grids = {one.grid for one in modules}
        if len(grids) != 1:
            raise GuardError(
                "ST-GRAD-006",
                f"modules over the same ranks are cut in {len(grids)} ways",
                "the model given to the guard",
                "shard all of them over one mesh",
            )
        self._own(owners_of(self.ranks, grids.pop()))
        self._hooks_open = True
        attach_sharded(
            modules,
            self.collector,
            report_error,
            weights=self.weights,
            keeper=self._keeper,
            moments=self.moments,
            open_mode=self._open,
        )
        named = [(one.chunk, p.sharded_param) for one in modules for p in one.group.fsdp_params]
        self.piece = fingerprint(named)
        self.beacon.commit()

    def watch_replicated(self, model: DistributedDataParallel) -> None:
        """Hook a model of which all these ranks hold a copy. Collective."""
        attach_replicated(
            model,
            self.collector,
            self._group,
            weights=self.weights,
            keeper=self._keeper,
            moments=self.moments,
        )
        if self._buffers is None and (sync := buffers_of(model, self._settings)) is not None:
            self._buffers, sync.channel = sync, self.channel
        self.piece = fingerprint(model.named_parameters())
        self.beacon.commit()

    def watch_flat(self, modules: Sequence[Flat]) -> None:
        """Hook modules that FSDP1 shards over these ranks. Collective."""
        self._own(tuple(range(len(self.ranks))))
        self._hooks_open = self.is_flat = True
        attach_flat(
            modules,
            self.collector,
            weights=self.weights,
            keeper=self._keeper,
            moments=self.moments,
            open_mode=self._open,
        )
        self.piece = fingerprint(flat_names(modules))
        self.beacon.commit()

    @property
    def has_pieces(self) -> bool:
        """True when anything was reduced since the last step."""
        return self._open.has_pieces if self._open.active else self.collector.has_pieces

    def restore(self, detector: DetectorState, exclusion: ExclusionState) -> None:
        """See `Watch`."""
        self.detector.restart(detector)
        self.exclusion.restart(exclusion)
        self.weights.values = weights_of(len(self.ranks), self.exclusion.excluded)

    def judge(self, findings: Findings, elsewhere: Collection[int] = ()) -> tuple[int, int]:
        """See `Watch`.

        Raises:
            GuardError: ST-GRAD-006, no gradient was seen since the last call.
        """
        self.judged = None
        if self._open.active:
            return self._judge_open(findings, elsewhere)
        sketches = self.collector.end()
        if sketches is None:
            raise _nothing()
        row = encode(sketches)
        rows = self.common.readable(self.channel.all_gather(row))
        uncounted = {self.ranks[index] for index in self._uncounted}
        mine = Findings(excluded=uncounted, scaled=findings.scaled)
        self.common.begin(mine, sketches.told, self.detector)
        before = self.detector.snapshot()
        self._table, self._opened = None, []
        self.after.begin(None)
        weights = self.weights.values
        self._standing.begin()
        if self._response in EXCLUDING:
            self._impose(mine, elsewhere)
        with np.errstate(all="ignore"):  # a liar's numbers may be any
            self._decide(mine, sketches, rows)
        self._add_buffers(mine)
        sent = len(row) + sketches.batches * 2 * DIGEST
        sent += self.common.settle(mine, before, self.detector, rows)
        if self._response in EXCLUDING:
            sent += self._respond(mine, before)
            if self._hooks_open and not self._keeper.complete:
                wanted = mine.refused and mine.contested
                self._open.consider(self.channel, wanted=wanted, known=self.common.is_agreed)
        self.common.end()
        self._open.held = mine.held
        self._keeper.clear()
        self.after.begin(None if mine.refused else lambda: self._lengths(weights))
        findings.merge(mine)
        self.collector.learn(applied=not mine.refused)
        self.judged = self._judged(sketches, rows, scaled=mine.scaled)
        return sketches.batches, sent

    def _judged(self, sketches: StepSketches, rows: list[bytes], *, scaled: bool) -> Judged:
        layout = Layout(
            ranks=len(self.ranks),
            groups=sketches.groups,
            parts=len(sketches.parts),
            size=self.shape.size,
            keys=self.shape.keys,
            owners=tuple(self._owners),
            roundoff=float(sketches.roundoff).hex(),
            near_zero=float(sketches.near_zero).hex(),
            batches=sketches.texts,
        )
        draws = sketches.draws
        return Judged(
            table=StepTable(
                layout=layout,
                unopened=tuple(one.unopened for one in draws),
                scaled=scaled,
                rows=rows,
            ),
            seeds=tuple(one.seed for one in draws),
            openings=tuple(one.opening for one in draws),
            anchors=self.beacon.take_anchors(),
            learned=self.detector.learned,
        )

    def _own(self, owners: tuple[int, ...]) -> None:
        """Say which part of the model each rank holds."""
        self._owners = self.after.owners = owners
        self._reader = TableReader(self.ranks, owners)

    def _judge_open(self, findings: Findings, elsewhere: Collection[int]) -> tuple[int, int]:
        """A step that was reduced in the open, module by module (open_mode.py)."""
        step = self._open.end()
        if step is None:
            raise _nothing()
        weights = self.weights.values
        mine = Findings(excluded={self.ranks[index] for index in self._uncounted})
        before = self.detector.snapshot()
        self._standing.begin()
        self._impose(mine, elsewhere)
        step.add_to(mine, self.ranks)
        known = sorted({*self._known, *step.out})
        with np.errstate(all="ignore"):
            self.rows, odd = step.rows(self._owners)
            if self.rows is not None:
                self._reader.compare_moments(mine, odd, self._known)
                mine.add_assessment(self.detector.observe(self.rows), self.ranks, known)
        sent = self.common.settle(mine, before, self.detector)
        self._exclude(mine, mine.offences)
        self.common.end()
        self._open.held = mine.held
        self._opened = step.tables
        self.after.begin(None if mine.refused else lambda: self._lengths(weights))
        findings.merge(mine)
        return len(step.groups), sent + sum(one.sent_bytes for one in step.settlements)

    def hand_over(self, step: int) -> None:
        """See `Watch`."""
        self.witness.hand_over(step)

    def _settler(self) -> Settler:
        reducer = OpenReduction(self._group, self.channel, self.beacon, self.shape, self._owners)
        return Settler(
            reducer,
            self.channel,
            self.exclusion,
            self._standing,
            witness=self.witness,
            common=self.common,
        )

    @property
    def _uncounted(self) -> tuple[int, ...]:
        """Ranks, by place, whose gradients are not in what this step has reduced."""
        return tuple(index for index, value in enumerate(self.weights.values) if not value)

    @property
    def _known(self) -> tuple[int, ...]:
        """Ranks about whom nothing new refuses a step: they are excluded."""
        return tuple(sorted({*self._uncounted, *self.exclusion.excluded}))

    def _impose(self, findings: Findings, elsewhere: Collection[int]) -> None:
        places = [index for index, rank in enumerate(self.ranks) if rank in elsewhere]
        self.exclusion.impose(places)
        for index in set(places) - set(self._uncounted):
            rank = self.ranks[index]
            findings.outliers.add(rank)
            findings.add("ST-GRAD-002", f"rank {rank} is excluded from another piece of the model")

    def _respond(self, findings: Findings, before: Detector) -> int:
        """Exclude who was named, and reduce the step again where that helps; returns bytes sent."""
        offences, sent = list(findings.offences), 0
        drops = self._response is GuardResponse.SKIP_STEP and not findings.contested
        known = not (findings.undecided or findings.upstream or findings.overflow)
        if findings.refused and known and not drops and self._keeper.complete:

            def assess(rows: Numbers, out: Collection[int]) -> Offences:
                return self._assess(before, rows, out)

            settlement = self._settler().settle(self._keeper.kept, offences, findings.held, assess)
            offences, sent = settlement.offences, settlement.sent_bytes
            self._take(findings, settlement)
        self._exclude(findings, offences)
        return sent

    def _exclude(self, findings: Findings, offences: Offences) -> None:
        """Leave out who was found, from now on."""
        decision = self.exclusion.decide(offences, held=findings.held)
        findings.undecided = findings.undecided or bool(decision.undecided)
        findings.newly_excluded |= {self.ranks[index] for index in decision.newly}
        findings.readmitted |= {self.ranks[index] for index in decision.readmitted}
        self.weights.values = weights_of(len(self.ranks), decision.excluded)

    def _take(self, findings: Findings, settlement: Settlement) -> None:
        """Use what came of reducing a step again."""
        for index, text in settlement.texts:
            findings.note(f"rank {self.ranks[index]} {text}")
        if settlement.disputes:
            findings.disputes |= {(self.ranks[a], self.ranks[b]) for a, b in settlement.disputes}
            findings.note(SET_APART)
        caught = [one for one in settlement.offences if one[0] in settlement.out]
        findings.outliers |= {self.ranks[index] for index, _ in caught} - findings.excluded
        findings.proven |= {self.ranks[i] for i, ground in caught if ground is Ground.PROOF}
        if settlement.means is None:
            findings.note(NOT_AGREED)
            return
        named = bool(settlement.offences) and self._response is GuardResponse.SKIP_STEP
        if named and set(settlement.out) != set(self.exclusion.excluded):
            return  # dropped, and without them from the next step on
        self._keeper.replace(settlement.means)
        self._opened = [] if settlement.table is None else [settlement.table]
        findings.excluded |= {self.ranks[index] for index in settlement.out}
        findings.settle()

    def _lengths(self, weights: Sequence[float]) -> ShardLengths | None:
        """Of the shards that the optimizer is about to use."""
        if self._opened:
            return lengths_in_the_open(self._opened, self._owners)
        if self._table is None:
            return None
        return lengths_of_table(self._table, weights, self._owners)

    def answer(self, findings: Findings, found: Contradictions) -> None:
        """Decide what follows from numbers after the verdict; nothing of them is used any more."""
        places = self._uncounted
        findings.excluded |= {self.ranks[index] for index in places}
        for index in found.named:
            text = f"rank {self.ranks[index]} {found.text}"
            findings.accuse(CODE, text, index, self.ranks, self._known)
        if found.note:
            findings.add(CODE, found.note, attributed=False)
        if self._response not in EXCLUDING:
            return
        decision = self.exclusion.add(findings.offences)
        findings.newly_excluded |= {self.ranks[index] for index in decision.newly}
        self.weights.values = weights_of(len(self.ranks), decision.excluded)
        if not (decision.newly and self._response is GuardResponse.SKIP_STEP):
            findings.settle()

    def _assess(self, before: Detector, rows: Numbers, out: Collection[int]) -> Offences:
        """Judge what was sent in the open, by what was known before this step."""
        whole = StepRows(groups=("(open)",), gradients=rows[None], momentum=None)
        assessment = before.snapshot().observe(whole)
        found = Findings(excluded=set(out))
        found.add_assessment(assessment, range(len(self.ranks)), sorted(out))
        if self.rows is not None:
            told = self.rows.gradients.sum(axis=0)
            changed = changed_tales(told, rows, most=self.exclusion.limit)
            found.offences += [(index, Ground.GROSS) for index in changed if index not in out]
        return found.offences

    def _decide(self, findings: Findings, sketches: StepSketches, rows: list[bytes]) -> None:
        """Add what the table shows."""
        shown = Shown(
            rows=rows,
            groups=sketches.groups,
            parts=len(sketches.parts),
            size=self.shape.size,
            keys=self.shape.keys,
            roundoff=sketches.roundoff,
            near_zero=sketches.near_zero,
            unopened=sketches.unopened,
            weights=tuple(self.weights.values),
            known=self._known,
        )
        read = self._reader.read(findings, shown, self.detector)
        self.rows, self._table = read.rows, read.table

    def _add_buffers(self, findings: Findings) -> None:
        """Say what was found before the forward passes; what was corrected refuses nothing."""
        refused = findings.refused
        for one in self._buffers.take() if self._buffers is not None else ():
            ground = Ground.NOT_FINITE if one.not_finite else Ground.GROSS
            if one.is_named and one.source in self._known:
                findings.offences.append((one.source, ground))
                continue
            if one.is_named:
                findings.offend(one.source, ground, self.ranks)
            text = f"rank {self.ranks[one.source]} {one.text}"
            findings.add(BUFFERS, text, attributed=one.is_named, hopeless=True)
        if self._response in EXCLUDING:
            findings.refused = refused


def _nothing() -> GuardError:
    return GuardError(
        "ST-GRAD-006", "no gradient was reduced since the last step", "the model given to the guard"
    )
