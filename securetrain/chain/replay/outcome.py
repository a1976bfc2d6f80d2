# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The findings of steps that were done again.

Rules:

1. on the run's mesh and environment everything is equal: each record, with the table of what the
   ranks said of their gradients under the recorded seeds, and each bit of each tensor. The first
   step and the first tensor that differ are named;
2. on another one, sums are added up in another order. Then the rates, the rows and whether a step
   was applied are equal, and loss, norm and weights are within the bounds of `BOUNDS`;
3. no weight went further, and no moment is larger, than schedule and AdamW allow (`reach`): that is
   asked of every segment, whether it was done again or not;
4. what no rank answered for was not shown: each tensor of the signed index must have been compared,
   and all of it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from securetrain.chain.records import StepRecord, StepVerdict, number
from securetrain.chain.replay.asked import SegmentFound, TensorFound
from securetrain.chain.replay.reach import SLACK
from securetrain.chain.replayed import Comparison, ReplayedSegment, Word

WEIGHTS: Final = "model."
MAX_NAMED: Final = 20
_REFUSED: Final = StepVerdict.REFUSED


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds of how far honest steps may be apart, on another mesh or machine."""

    weights: float
    """Of all weights: the norm of the difference over that of the movement in the segment."""
    largest: float
    """Of one weight: the difference over the root mean square of the movement."""
    numbers: float
    """Of loss and gradient norm, relative."""


BOUNDS: Final[Mapping[str, Bounds]] = {
    "fp32": Bounds(weights=2e-5, largest=1e-3, numbers=1e-5),
    "bf16": Bounds(weights=2e-2, largest=1.0, numbers=1e-2),
}
"""By the job's precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentOutcome:
    """The outcome for the steps from one checkpoint to the next."""

    after: int
    last: int
    begin: str
    """The digest of the first checkpoint; empty for the beginning of the run."""
    end: str
    again: bool
    """Whether the steps were done again."""
    problems: tuple[str, ...]
    open: str = ""
    """Why the steps could not be done again; empty when nothing stood in the way."""
    step: int | None = None
    """The first step that differs."""
    tensor: str = ""
    """The first tensor that differs."""
    difference: float = 0.0
    """Of all weights, as a part of their movement."""
    largest: float = 0.0
    """Of one weight, as a part of the root mean square of the movement."""
    numbers: float = 0.0
    """Of loss and norm, relative: the worst."""
    reach: float = 0.0
    """The farthest that a weight went, as a part of what is allowed."""

    @property
    def ok(self) -> bool:
        """Tell whether nothing contradicts the checkpoint."""
        return not self.problems


@dataclass(slots=True)
class _Tensor:
    """A tensor, put together from all ranks' parts; ranks with the same part count in full."""

    differing: int = 0
    size: int = 0
    difference: float = 0.0
    square: float = 0.0
    moved: float = 0.0
    largest: float = 0.0
    reach: float = 0.0
    moments: float = 0.0

    def add(self, part: TensorFound) -> None:
        self.size += part.size
        self.differing += part.differing
        for name in ("difference", "square", "moved"):
            setattr(self, name, getattr(self, name) + float.fromhex(getattr(part, name)))
        for name in ("largest", "reach", "moments"):
            found = float.fromhex(getattr(part, name))
            # A number that is none is worse than any.
            worst = math.inf if math.isnan(found) else max(getattr(self, name), found)
            setattr(self, name, worst)


def outcome_of(  # noqa: PLR0917 - what is compared with what
    begin: str,
    end: str,
    after: int,
    recorded: Sequence[StepRecord],
    ranks: Sequence[SegmentFound],
    comparison: Comparison,
    precision: str,
    *,
    again: bool,
    sizes: Mapping[str, int],
) -> SegmentOutcome:
    """Judge one segment; see the module.

    Args:
        begin: The digest of the checkpoint that it begins with.
        end: That of the one that it ends with.
        after: The step of the first.
        recorded: The records of its steps.
        ranks: Each rank's answer.
        comparison: How.
        precision: The job's.
        again: Whether the steps were asked for again.
        sizes: The elements of each tensor of the end, by its signed index.
    """
    tensors = _joined(ranks)
    problems = [*_reached(tensors), *_missing(tensors, sizes)]
    step, tensor, numbers = None, "", 0.0
    difference, largest = _apart(tensors)
    if again:
        made = ranks[0].records if ranks else ()
        bounds = BOUNDS.get(precision)
        if comparison is Comparison.BOUND and bounds is None:
            problems.append(f"no bound was measured for the precision {precision}")
        step, what, numbers = _first(recorded, made, comparison, bounds)
        problems += [f"step {step}: {what}"] if step is not None else []
        if comparison is Comparison.EXACT:
            differing = [name for name, one in tensors.items() if one.differing]
            if differing:
                tensor = differing[0]
                one = tensors[tensor]
                at = f"after step {after + len(recorded)}" if step is None else "at the end"
                problems.append(
                    f"tensor {tensor} {at}: {one.differing} of {one.size} elements are others, by"
                    f" up to {one.largest:.3g} ({len(differing)} of {len(tensors)} tensors)"
                )
            if any(rank.values_differ for rank in ranks):
                problems.append("the plain values of the state are others")
        elif bounds is not None:
            tensor = _farthest(tensors)
            for name, has, limit in (
                ("the weights are apart", difference, bounds.weights),
                (f"an element of {tensor} is apart", largest, bounds.largest),
            ):
                if not has <= limit:
                    problems.append(f"{name} by {has:.3g} of the movement, the bound is {limit:g}")
            tensor = tensor if problems else ""
    return SegmentOutcome(
        after=after,
        last=after + len(recorded),
        begin=begin,
        end=end,
        again=again,
        problems=tuple(problems[:MAX_NAMED]),
        step=step,
        tensor=tensor,
        difference=difference,
        largest=largest,
        numbers=numbers,
        reach=max((one.reach for one in tensors.values()), default=0.0),
    )


def segment_said(statement_digest: str, found: SegmentOutcome) -> ReplayedSegment:
    """The result about a segment that ends with the checkpoint of a statement, as it is signed."""
    word = Word.VERIFIED if found.again else Word.PLAUSIBLE
    if found.problems:
        word = Word.BROKEN
    elif found.open:
        word = Word.OPEN
    return ReplayedSegment(
        after=found.after,
        last=found.last,
        begin=found.begin,
        end=found.end,
        statement=statement_digest,
        word=word,
        problems=tuple(one[:4096] for one in (*found.problems, found.open) if one),
        difference=number(found.difference),
        largest=number(found.largest),
        numbers=number(found.numbers),
        reach=number(found.reach),
    )


def _joined(ranks: Sequence[SegmentFound]) -> dict[str, _Tensor]:
    found: dict[str, _Tensor] = {}
    for rank in ranks:
        for part in rank.tensors:
            found.setdefault(part.name, _Tensor()).add(part)
    return found


def _reached(tensors: Mapping[str, _Tensor]) -> Iterator[str]:
    """Rule 3."""
    for name, one in tensors.items():
        if not one.reach <= 1 + SLACK:
            yield f"tensor {name}: a weight went {one.reach:.4g} times as far as AdamW can"
        if not one.moments <= 1 + SLACK:
            yield f"tensor {name}: its moments are {one.moments:.4g} times what AdamW makes"


def _missing(tensors: Mapping[str, _Tensor], sizes: Mapping[str, int]) -> Iterator[str]:
    """Rule 4. Ranks with the same part count in full, so that there may be more than there is."""
    if not sizes:
        yield "the checkpoint holds no tensor that could be compared"
    for name, size in sizes.items():
        found = tensors.get(name)
        if found is None:
            yield f"tensor {name}: no rank compared it"
        elif found.size < size:
            yield f"tensor {name}: {found.size} of {size} elements were compared"


def _apart(tensors: Mapping[str, _Tensor]) -> tuple[float, float]:
    """The weights' difference in all, and of one element at most, as parts of the movement."""
    weights = {name: one for name, one in tensors.items() if name.startswith(WEIGHTS)}
    total = sum(one.difference for one in weights.values())
    moved = sum(one.moved for one in weights.values())
    size = sum(one.size for one in weights.values())
    largest = max((one.largest for one in weights.values()), default=0.0)
    if not size or not moved > 0:
        return (0.0, 0.0) if total == 0 and largest == 0 else (math.inf, math.inf)
    return math.sqrt(total / moved), largest / math.sqrt(moved / size)


def _farthest(tensors: Mapping[str, _Tensor]) -> str:
    weights = {name: one for name, one in tensors.items() if name.startswith(WEIGHTS)}
    return max(weights, key=lambda name: weights[name].largest, default="")


def _first(
    recorded: Sequence[StepRecord],
    made: Sequence[StepRecord],
    comparison: Comparison,
    bounds: Bounds | None,
) -> tuple[int | None, str, float]:
    """The first step that differs, how, and how far apart numbers are at most."""
    if len(recorded) != len(made):
        step = recorded[min(len(made), len(recorded) - 1)].step if recorded else 0
        return step, f"{len(made)} steps were done again, not {len(recorded)}", 0.0
    worst, first, why = 0.0, None, ""
    for said, found in zip(recorded, made, strict=True):
        if said.verdict is _REFUSED:
            # Nothing of it is in the weights, so there is nothing to compare but the rows.
            what = _beyond(msgspec.structs.replace(said, loss="nan", norm="nan"), found, bounds)
            first, why = (said.step, what) if what and first is None else (first, why)
            continue
        worst = max(worst, _relative(said.loss, found.loss), _relative(said.norm, found.norm))
        what = (
            _differs(said, found)
            if comparison is Comparison.EXACT
            else _beyond(said, found, bounds)
        )
        if what and first is None:
            first, why = said.step, what
    return first, why, worst


def _differs(said: StepRecord, found: StepRecord) -> str:
    said, found = _repeatable(said), _repeatable(found)
    if said.table is None:
        found = msgspec.structs.replace(found, table=None)  # the run recorded none
    if said == found:
        return ""
    for name in ("rows", "lr", "loss", "norm", "verdict", "watched", "without", "table"):
        wanted, has = getattr(said, name), getattr(found, name)
        if wanted != has:
            return f"its {name} was recorded as {_shown(wanted)}, and is {_shown(has)}"
    return "its record is another one"


def _repeatable(record: StepRecord) -> StepRecord:
    """The part of a record that the same steps give again: not what ranks drew, nor how much the
    guard of one process had learned.
    """
    return msgspec.structs.replace(record, seeds=(), anchors=None, learned=None, anew=False)


def _beyond(said: StepRecord, found: StepRecord, bounds: Bounds | None) -> str:
    for name in ("rows", "lr"):
        wanted, has = getattr(said, name), getattr(found, name)
        if wanted != has:
            return f"its {name} was recorded as {_shown(wanted)}, and is {_shown(has)}"
    if (said.verdict is _REFUSED) is not (found.verdict is _REFUSED):
        return f"it was recorded as {said.verdict}, and is {found.verdict}"
    for name in ("loss", "norm"):
        wanted, has = getattr(said, name), getattr(found, name)
        apart = _relative(wanted, has)
        if bounds is None or not apart <= bounds.numbers:
            return f"its {name} was recorded as {_shown(wanted)}, and is {_shown(has)}"
    return ""


def _relative(said: str, found: str) -> float:
    one, other = float.fromhex(said), float.fromhex(found)
    if math.isnan(one) and math.isnan(other):
        return 0.0
    if not math.isfinite(one) or not math.isfinite(other):
        return math.inf
    return abs(one - other) / abs(one) if one else float(one != other)


def _shown(value: object) -> str:
    if isinstance(value, str) and "0x" in value:
        return f"{float.fromhex(value):.17g}"
    return str(value)[:64]
