# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The self-check: two steps of a small model on the mesh, compared with one process.

Most that can be wrong with a model on a mesh is silent: a buffer that was never filled, a tie that
was undone, a gradient that nobody summed. This finds it before a long run does. Rules:

1. the reference owes nothing to `parallelize`: see `securetrain.parallel.reference`. Each rank
   computes it, so nothing but what was found travels;
2. compared in this order, and the first difference is named: first values, what enters the first
   block, each block's output, the loss, each parameter's gradient from the head backwards, the
   gradient's norm. A wrong block makes everything after it wrong, and a wrong gradient everything
   before it: the first one found is the one to look at;
3. all ranks hear what any of them found, and refuse together;
4. it computes in float32 and does not compile: what was asked for besides and is left out is told;
5. its steps are a rehearsal: under `securetrain run` the guard neither judges nor counts them.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from securetrain.core import rehearsal
from securetrain.core.errors import RuntimeRefusal
from securetrain.parallel.build import Description, parallelize
from securetrain.parallel.context import head_tail
from securetrain.parallel.engine import ParallelModel, unwrap
from securetrain.parallel.gradients import grad_norm
from securetrain.parallel.mesh import Mesh
from securetrain.parallel.plan import Compression, Precision, Settings
from securetrain.parallel.reference import Batch, Reference, Step, record_blocks, seed_rank

STEPS: Final = 2
LENGTH: Final = 16
"""Positions of a row, at least."""
TOLERANCE: Final = 1e-4
"""Of the loss, relative; rounding on every mesh of the parity matrix is below 1e-6."""
PIECE_TOLERANCE: Final = 1e-3
"""Of a tensor, relative to its length."""
FLOOR: Final = 1e-5
"""Of a gradient, relative to the whole one: some are zero but for rounding."""
RATE: Final = 0.1
MakeBatch: TypeAlias = Callable[[int, int], tuple[Any, Any]]
"""A step and a number of rows to the inputs and targets of all ranks."""


class What(IntEnum):
    """The kinds of difference, in the order in which they are looked for."""

    VALUE = 0
    OUTPUT = 1
    LOSS = 2
    GRADIENT = 3
    NORM = 4


@dataclass(frozen=True, slots=True, order=True)
class Difference:
    """One difference: smaller ones come first."""

    step: int
    what: What
    place: int
    """Where in the order of its kind."""
    share: float
    """How large, relative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A mesh that computes what one process computes."""

    steps: int
    loss: float
    """The largest relative difference of the losses."""
    norm: float
    """The same of gradient norms."""
    left_out: tuple[str, ...]
    """What the job asks for and was not compared."""


def self_check(
    model: Description,
    mesh: Mesh,
    settings: Settings,
    device: torch.device,
    *,
    batch: MakeBatch | None = None,
) -> Comparison:
    """Compare two steps of `model`, a small one, on the mesh with one process (collective).

    Args:
        model: A model of few and narrow layers, otherwise like the one to train; `build` has to
            work away from the meta device, too.
        mesh: The ranks.
        settings: The job's settings.
        device: Where a rank computes.
        batch: Makes rows; None: random tokens of the plan's vocabulary.

    Raises:
        RuntimeRefusal: ST-RUNT-013 naming the first layer, parameter or buffer that differs.
        SecureTrainError: as `parallelize`.
    """
    devices = [device] if device.type == "cuda" else []
    with rehearsal(), torch.random.fork_rng(devices=devices):
        return _Check(model, mesh, settings, device, batch).run()


class _Check:
    def __init__(
        self,
        model: Description,
        mesh: Mesh,
        settings: Settings,
        device: torch.device,
        batch: MakeBatch | None,
    ) -> None:
        self._mesh, self._device = mesh, device
        self._settings, self._left_out = comparable(settings)
        self._reference = Reference(
            model.build, model.materialize, model.plan, model.objective, device
        )
        self._start = self._reference.start()
        self._names = list(self._start)
        self._unknown = "a parameter"
        self._blocks = ["", *model.plan.blocks(self._reference.model)]
        self._first = next(iter(self._blocks[1:]), "")
        self._plan = model.plan
        self._batch = batch or _tokens(model, self._reference, mesh)
        self._model = parallelize(model, mesh, self._settings, device)
        self._reference.look(self._rows(1))
        if mesh.degrees.pp > 1 and self._reference.draws:
            # Each stage draws from a generator of its own: no order would be one process's.
            self._left_out += ("dropout",)
            self._reference.draws = False
            self._reference.model.eval()
            self._model.train(mode=False)

    def run(self) -> Comparison:
        self._raise_first(list(self._values()))
        losses, norms = [0.0], [0.0]
        optimizer = torch.optim.SGD(self._model.parameters(), lr=0.0, foreach=False)
        alone = torch.optim.SGD(self._reference.model.parameters(), lr=0.0, foreach=False)
        for step in range(1, STEPS + 1):
            wanted = self._reference.step(
                step, self._rows(step), self._mesh.degrees.dp, self._settings.microbatches
            )
            if not math.isfinite(wanted.loss):
                # The same on every rank: numbers like these are for the job itself to refuse.
                self._left_out += ("a loss that is not finite in one process either",)
                break
            loss, norm, outputs = self._on_mesh(step)
            losses.append(_relative(loss, wanted.loss))
            norms.append(_relative(norm, wanted.norm))
            found = [
                *self._outputs(step, outputs, wanted),
                *_far(step, What.LOSS, 0, losses[-1], TOLERANCE),
                *self._gradients(step, wanted),
                *_far(step, What.NORM, 0, norms[-1], TOLERANCE),
            ]
            self._raise_first(found)
            for each in (optimizer, alone):
                each.param_groups[0]["lr"] = RATE / max(1.0, wanted.norm)
                each.step()
                each.zero_grad(set_to_none=True)
        return Comparison(steps=STEPS, loss=max(losses), norm=max(norms), left_out=self._left_out)

    def _rows(self, step: int) -> Batch:
        count = self._mesh.degrees.dp * self._settings.microbatches
        inputs, targets = self._batch(step, count)
        return Batch(inputs=inputs, targets=targets)

    def _on_mesh(self, step: int) -> tuple[float, float, dict[str, list[torch.Tensor]]]:
        """Loss and gradient norm of all ranks, and what this one's blocks returned."""
        mesh, model = self._mesh, self._model
        outputs: dict[str, list[torch.Tensor]] = {}
        hooks = [
            hook
            for part in model.parts
            for hook in record_blocks(self._plan.blocks(unwrap(part)), outputs, self._first)
        ]
        whole = self._rows(step)
        mine = whole.pieces(mesh.degrees.dp)[mesh.dp_rank]
        seed_rank(step, mesh.dp_rank)
        loss = model.forward_backward(mine.inputs, mine.targets, whole.divisor).double()
        dist.all_reduce(loss)
        for hook in hooks:
            hook.remove()
        stages = mesh.pp.get_group() if mesh.degrees.pp > 1 else None
        norm = grad_norm(model.parameters(), stages)
        return loss.item() / mesh.degrees.tp, norm.item(), outputs

    def _values(self) -> Iterator[Difference]:
        for name, tensor in _state(self._model):
            if name not in self._start:
                self._unknown = name
                yield Difference(0, What.VALUE, len(self._names), 1.0)
                continue
            yield from self._compare(What.VALUE, name, tensor.detach(), self._start[name])

    def _outputs(
        self, step: int, outputs: dict[str, list[torch.Tensor]], wanted: Step
    ) -> Iterator[Difference]:
        pieces = self._settings.microbatches
        first = self._mesh.dp_rank * pieces
        for place, name in enumerate(self._blocks):
            mine = wanted.outputs.get(name, [])[first : first + pieces]
            for got, want in zip(outputs.get(name, []), mine, strict=False):
                expected = self._local(got, want)
                if expected is not None:
                    share = _apart(_whole(got), expected, 0.0)
                    yield from _far(step, What.OUTPUT, place, share, PIECE_TOLERANCE)

    def _local(self, got: torch.Tensor, want: torch.Tensor) -> torch.Tensor | None:
        """The part of one process's output that this rank has; None when that cannot be told."""
        degrees = self._mesh.degrees
        if got.ndim > 1 and want.ndim > 1 and degrees.cp > 1:
            here = head_tail(want.shape[1], degrees.cp, self._mesh.cp.get_local_rank())
            want = want[:, here.to(want.device)]
        cut = degrees.tp > 1 and got.ndim > 1 and got.shape[1] * degrees.tp == want.shape[1]
        if cut and not isinstance(got, DTensor):
            want = want.chunk(degrees.tp, dim=1)[self._mesh.tp.get_local_rank()]
        return want if want.shape == got.shape else None

    def _gradients(self, step: int, wanted: Step) -> Iterator[Difference]:
        floor = FLOOR * wanted.norm
        for name, parameter in self._model.named_parameters():
            grad = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
            yield from self._compare(
                What.GRADIENT, name, grad, wanted.grads[name], step=step, floor=floor
            )

    def _compare(
        self,
        what: What,
        name: str,
        got: torch.Tensor,
        want: torch.Tensor,
        *,
        step: int = 0,
        floor: float = 0.0,
    ) -> Iterator[Difference]:
        place = self._names.index(name)
        share = _apart(_whole(got), want, floor)
        # Gradients are looked at from the head backwards.
        order = -place if what is What.GRADIENT else place
        yield from _far(step, what, order, share, PIECE_TOLERANCE)

    def _raise_first(self, found: list[Difference]) -> None:
        """Hear what all ranks found (collective)."""
        none = Difference(STEPS + 1, What.NORM, 0, 0.0)
        mine = dataclasses.astuple(min(found, default=none))
        told = torch.tensor(mine, dtype=torch.float64, device=self._device)
        heard = [torch.empty_like(told) for _ in range(dist.get_world_size())]
        dist.all_gather(heard, told)
        step, what, place, share = min(tuple(one.tolist()) for one in heard)
        if step > STEPS:
            return
        subject = self._subject(What(int(what)), int(place))
        when = f"step {int(step)} of the self-check" if step else "before the first step"
        raise RuntimeRefusal(
            "ST-RUNT-013",
            f"{when}: {subject} differs by {share:.1e} from one process's on {self._mesh.degrees}",
            subject,
            "compare the plan of that layer with the model; see the page about models of your own",
        )

    def _subject(self, what: What, place: int) -> str:
        match what:
            case What.VALUE:
                if place == len(self._names):
                    return f"{self._unknown}, which is another parameter there,"
                return f"the first value of {self._names[place]}"
            case What.OUTPUT:
                name = self._blocks[place]
                return f"the output of {name}" if name else "what enters the first block"
            case What.LOSS:
                return "the loss, behind the last block,"
            case What.GRADIENT:
                return f"the gradient of {self._names[-place]}"
            case What.NORM:
                return "the gradient's norm"


def comparable(settings: Settings) -> tuple[Settings, tuple[str, ...]]:
    """The settings that the check computes with, and what of the job's they leave out."""
    exact = dataclasses.replace(
        settings,
        precision=Precision.FP32,
        compile=False,
        async_tp=False,
        float8=False,
        compression=Compression.NONE,
    )
    names = [field.name for field in dataclasses.fields(Settings)]
    return exact, tuple(n for n in names if getattr(exact, n) != getattr(settings, n))


def _tokens(model: Description, reference: Reference, mesh: Mesh) -> MakeBatch:
    vocabulary = model.plan.vocabulary(reference.model)
    unit = 2 * mesh.degrees.cp * mesh.degrees.tp
    length = -(-LENGTH // unit) * unit

    def make(step: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(step)
        tokens = torch.randint(vocabulary, (rows, length + 1), generator=generator)
        return tokens[:, :-1], tokens[:, 1:]

    return make


def _state(model: ParallelModel) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _apart(got: torch.Tensor, want: torch.Tensor, floor: float) -> float:
    """The length of the difference relative to that of `want`; infinite if it is not a number."""
    if got.shape != want.shape:
        return math.inf
    got, want = got.to(want.device, torch.float64), want.double()
    length = max(want.norm().item(), floor)
    difference = (got - want).norm().item()
    if difference == 0.0:
        return 0.0
    return difference / length if length and math.isfinite(difference) else math.inf


def _relative(got: float, want: float) -> float:
    if got == want:
        return 0.0
    return abs(got - want) / abs(want) if want else math.inf


def _far(step: int, what: What, place: int, share: float, tolerance: float) -> Iterator[Difference]:
    if not share <= tolerance:
        yield Difference(step, what, place, share)
