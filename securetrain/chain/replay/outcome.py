# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The findings of steps that were done again.

Rules:

1. on the run's mesh and environment everything is equal: each record, with the table of what the
   ranks said of their gradients under the recorded seeds, and each bit of each tensor. The first
   step and the first tensor that differ are named;
2. on another one, sums are added up in another order. Then the rates, the rows and whether a step
   was applied are equal, and loss, norm and weights are within the bounds of `BOUNDS`;
3. no weight went further, and no moment is larger, than schedule and AdamW allow (`allowed`): that
   is asked of every segment, whether it was done again or not;
4. what no rank answered for was not shown: each tensor of the signed index must have been compared,
   and all of it.

The words between whoever asks for steps again and the ranks that do them.

Every rank writes its own answer: of each tensor it compares the part that it holds, so that the
mesh may be another one than the run's. Numbers are hexadecimal, as in the records of steps.

The farthest that AdamW can carry a weight, whatever its gradients were.

With m = (1-b1) sum b1^i g and v = (1-b2) sum b2^i g^2, the Cauchy-Schwarz inequality gives for
every element and step t

    |m| <= (1-b1) / sqrt(1-b2) * sqrt((1-r^t) / (1-r)) * sqrt(v),    r = b1^2 / b2,

and after the corrections of bias |m^| / sqrt(v^) <= `step_limit`. A step moves a weight by at most
the learning rate times that, besides its decay (Kingma and Ba 2015, arXiv:1412.6980, section 2.1;
Loshchilov and Hutter 2019, arXiv:1711.05101). So two checkpoints and the learning rates between
them say how far each weight can have gone, and nothing has to be done again for it.

The learning rates are those of the records; they are compared with the declared schedule, which is
written down here a second time: a verifier trusts no trainer, and a test compares the two.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from securetrain.chain.documents import BASE, Count, Document, Hex32, Name, Part, Text
from securetrain.chain.records import (
    MAX_SEGMENTS,
    Comparison,
    Number,
    ReplayedSegment,
    StepRecord,
    StepVerdict,
    Word,
    number,
)

MAX_TENSORS: Final = 1 << 16
ANSWER_LIMIT: Final = 256 << 20
"""Bytes of one rank's answer."""


class AskedSegment(Part, frozen=True, kw_only=True):
    """The steps from one checkpoint to the next, and where the two lie."""

    begin: Text
    """The directory of the first; empty for the beginning of the run."""
    begin_digest: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")]
    end: Text
    end_digest: Hex32
    after: Count
    """The step of the first."""
    last: Count
    rates: Annotated[tuple[Number, ...], Meta(max_length=1 << 24)]
    """The recorded learning rates of the steps that were applied."""
    refused: Annotated[tuple[Count, ...], Meta(max_length=1 << 24)] = ()
    """Steps whose gradients were dropped, by the records: they change nothing."""
    seeds: Annotated[
        tuple[Annotated[tuple[Hex32, ...], Meta(max_length=1024)], ...], Meta(max_length=1 << 24)
    ] = ()
    """Of each step, the recorded seeds of its sketches, which are used again; none on another mesh.
    """
    again: bool
    """Whether the steps are done again; else the two are only compared with each other."""


class Request(Document, frozen=True, tag=f"{BASE}.replay-request.v1+json"):
    """Everything that the ranks need besides the job file."""

    trust: Text
    """The file of the trust root that names the keys of the run's checkpoints."""
    segments: Annotated[tuple[AskedSegment, ...], Meta(min_length=1, max_length=MAX_SEGMENTS)]


class TensorFound(Part, frozen=True, kw_only=True):
    """A rank's part of one tensor, compared with the recorded one."""

    name: Name
    size: Count
    """Elements of this part."""
    differing: Count = 0
    """Those of which a bit differs."""
    difference: Number = "0x0.0p+0"
    """The sum of the squares of the differences."""
    square: Number = "0x0.0p+0"
    """Of the recorded elements."""
    moved: Number = "0x0.0p+0"
    """Of what they had moved since the segment began."""
    largest: Number = "0x0.0p+0"
    """The largest difference."""
    reach: Number = "0x0.0p+0"
    """The farthest that an element went, as a part of what schedule and AdamW allow."""
    moments: Number = "0x0.0p+0"
    """The worst of an element's moments, as a part of what AdamW allows."""


class SegmentFound(Part, frozen=True, kw_only=True):
    """A rank's answer about one segment."""

    records: Annotated[tuple[StepRecord, ...], Meta(max_length=1 << 24)] = ()
    """Of the steps that were done again."""
    tensors: Annotated[tuple[TensorFound, ...], Meta(max_length=MAX_TENSORS)] = ()
    values_differ: bool = False
    """Whether a plain value of the state, such as the count of steps, is another one."""


class RankFound(Document, frozen=True, kw_only=True, tag=f"{BASE}.replay-answer.v1+json"):
    """One rank's answer."""

    rank: Count
    world: Count
    mesh: Text
    segments: Annotated[tuple[SegmentFound, ...], Meta(max_length=MAX_SEGMENTS)]


SLACK: Final = 1e-5
"""Rounding: so much of what is compared may be added."""
_DECAY: Final = 5
"""``auto``: one step in so many is one of the decay."""


def moment_limit(step: int, betas: tuple[float, float]) -> float:
    """The most that |m| can be of sqrt(v), after so many steps of the optimizer."""
    first, second = betas
    ratio = first * first / second if second else 0.0
    total = float(step) if ratio == 1.0 else (1 - ratio**step) / (1 - ratio)
    return (1 - first) / math.sqrt(1 - second) * math.sqrt(total)


def step_limit(step: int, betas: tuple[float, float]) -> float:
    """The most that step number `step` moves a weight, in learning rates."""
    first, second = betas
    return moment_limit(step, betas) * math.sqrt(1 - second**step) / (1 - first**step)


def allowed(
    rates: Sequence[float], done: int, decay: float, betas: tuple[float, float]
) -> tuple[float, float]:
    """The factor by which decay alone changes a weight, and how far it can be from there.

    Args:
        rates: Of the steps that were applied.
        done: Steps that the optimizer had done before.
        decay: The weight decay of this tensor.
        betas: Of the moments.
    """
    factor, distance = 1.0, 0.0
    for step, rate in enumerate(rates, done + 1):
        factor *= 1 - rate * decay
        distance = distance * abs(1 - rate * decay) + rate * step_limit(step, betas)
    return factor, distance


def rate_at(step: int, settings: Mapping[str, Any]) -> float:
    """The learning rate of a step (from 1) by a job's declared settings.

    Raises:
        ValueError: The settings name no schedule that is known.
    """
    try:
        steps, said = settings["steps"], settings["optimizer"]
        peak, warm, floor = said["lr"], said["warmup_steps"], said["floor"]
        schedule, decay_steps = said["schedule"], said["decay_steps"]
        if step <= warm:
            return float(peak * step / warm)
        match schedule:
            case "constant":
                return float(peak)
            case "cosine":
                done = (step - warm) / max(1, steps - warm)
                return float(peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done))))
            case "wsd":
                asked = steps // _DECAY if decay_steps == "auto" else int(decay_steps)
                decay = min(asked, steps - warm)
                left = min(1.0, (steps - step) / decay) if decay else 1.0
                return float(peak * (floor + (1 - floor) * left))
    except (LookupError, TypeError, ValueError, OverflowError, ArithmeticError) as error:
        raise ValueError(f"no learning rate by the declared settings: {error}") from error
    raise ValueError(f"the schedule {schedule!r} is not known")


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
