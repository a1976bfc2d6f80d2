# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A small training on real ranks with one bad rank, which several gradient drills share.

One process group runs all cases of a drill, one after the other: starting ranks costs more than
training them. What a bad rank does is a change to its own process: what it sends, what it says
about it, what it says that it was told.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    import torch

    from securetrain.guard import GradientGuard, Verdict

BAD: Final = 2
START: Final = 12
_RATE: Final = 3e-3

Lie: TypeAlias = Callable[["GradientGuard"], AbstractContextManager[None]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One bad rank, and what it does."""

    name: str
    sharded: bool = False
    """fully_shard in place of DistributedDataParallel."""
    factor: float = 1.0
    """Of its gradient."""
    drift: float = 0.0
    """A constant vector on top of it, as a multiple of its length."""
    lie: str = ""
    """What it says that is not so: a name in `LIES`."""
    skips: bool = False
    """Every second step leaves a module of the model out, on all ranks."""
    hides: bool = False
    """Of its drift it sends what the sketch of the newest seed does not see."""
    one_seed: bool = False
    """The control is off: the guard draws one seed for all steps."""
    copies: bool = False
    """It sends what its neighbour sends."""
    steps: int = 20
    start: int = START
    """The first step in which it is bad."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A training, as rank 0 saw it."""

    name: str
    before: float
    """Held-out loss at the start."""
    after: float
    finite: bool
    codes: tuple[str, ...] = ()
    named: tuple[int, ...] = ()
    """Every rank that any verdict names or excludes."""
    lost: int = 0
    """Steps that were dropped."""
    caught_after: int = -1
    """Steps from the first bad one to the first verdict that names the rank; -1: never."""
    halted: bool = False


def train(case: Case, guarded: bool, clean: bool = False) -> Seen:  # noqa: FBT001, FBT002 - sent to ranks
    """Train on this rank; collective."""
    import torch  # noqa: PLC0415 - only the ranks load torch
    import torch.distributed as dist  # noqa: PLC0415
    from torch.nn.functional import cross_entropy  # noqa: PLC0415

    rank = dist.get_rank()
    model = model_of(case)
    active = [False]
    bad = rank == BAD and not clean
    hider = Hider(model, case.drift, lambda: active[0]) if case.hides and bad else None
    guard = guard_of(model) if guarded else None
    if guard is not None and case.one_seed:
        use_one_seed(guard)
    if hider is not None:
        hider.start(guard)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE)
    if case.drift and not case.hides:
        _push(model, case.drift, lambda: active[0])
    verdicts: list[Verdict] = []
    before = _held_out(model)
    for step in range(case.steps):
        active[0] = bad and step >= case.start
        odd = active[0]
        x, y = batch(step, rank - 1 if odd and case.copies else rank)
        loss = cross_entropy(_forward(model, x, skip=case.skips and step % 2 == 1), y)
        (loss * (case.factor if odd else 1.0)).backward()
        if guard is None:
            optimizer.step()
        else:
            with LIES[case.lie](guard) if odd and case.lie else nullcontext():
                verdict = guard.judge(step)
            verdicts.append(verdict)
            if verdict.proceed:
                optimizer.step()
        optimizer.zero_grad()
    after = _held_out(model)
    finite = all(bool(torch.isfinite(_whole(p)).all()) for p in model.parameters())
    return _seen(case, verdicts, before=before, after=after, finite=finite)


def _seen(case: Case, verdicts: "list[Verdict]", **what: Any) -> Seen:
    named = {rank for v in verdicts for rank in (*v.outliers, *v.excluded, *v.newly_excluded)}
    caught = [v.step for v in verdicts if BAD in {*v.outliers, *v.newly_excluded}]
    return Seen(
        name=case.name,
        codes=tuple(sorted({code for v in verdicts for code in v.codes})),
        named=tuple(sorted(named)),
        lost=sum(not v.proceed for v in verdicts),
        caught_after=caught[0] - case.start if caught else -1,
        halted=any("ST-GRAD-005" in v.codes for v in verdicts),
        **what,
    )


def model_of(case: Case) -> "torch.nn.Module":
    """The small model, wrapped as the case wants it; collective."""
    import torch.distributed as dist  # noqa: PLC0415
    from torch import manual_seed, nn  # noqa: PLC0415
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

    manual_seed(1)
    model = nn.Sequential(
        nn.Linear(32, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 8)
    )
    if not case.sharded:
        return DistributedDataParallel(model, find_unused_parameters=case.skips)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _forward(model: Any, x: "torch.Tensor", *, skip: bool) -> Any:
    """The output; a conditional layer may do nothing this time, so that it is not reduced."""
    if not skip:
        return model(x)
    middle = list(model.children())[2]
    real, middle.forward = middle.forward, lambda value: value
    try:
        return model(x)
    finally:
        middle.forward = real


def guard_of(model: "torch.nn.Module", **settings: Any) -> "GradientGuard":
    """A guard with the defaults but for `settings`, attached."""
    from securetrain.guard import GradientGuard  # noqa: PLC0415
    from securetrain.policy.schema import Gradients  # noqa: PLC0415

    guard = GradientGuard(None, Gradients(**settings))
    guard.attach(model)
    return guard


def batch(step: int, rank: int) -> "tuple[torch.Tensor, torch.Tensor]":
    """A rank's rows of a step; rank -1 has the held-out ones."""
    import torch  # noqa: PLC0415

    generator = torch.Generator().manual_seed(1000 * step + rank + 1)
    teacher = torch.randn(32, 8, generator=torch.Generator().manual_seed(7))
    x = torch.randn(64, 32, generator=generator)
    return x, (x @ teacher).argmax(dim=1)


def _held_out(model: Any) -> float:
    import torch  # noqa: PLC0415
    from torch.nn.functional import cross_entropy  # noqa: PLC0415

    x, y = batch(999_999, -1)
    with torch.no_grad():
        return float(cross_entropy(model(x), y))


def _whole(tensor: Any) -> Any:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.detach()


def _push(model: Any, times: float, active: Callable[[], bool]) -> None:
    """Add one constant direction to each local gradient, before it is reduced."""
    import torch  # noqa: PLC0415

    def pushed(direction: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        def push(gradient: torch.Tensor) -> torch.Tensor:
            return gradient + direction * (times * gradient.norm()) if active() else gradient

        return push

    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        direction = torch.randn(parameter.shape, generator=generator)
        parameter.register_hook(pushed(direction / direction.norm()))


# -- lies, with full knowledge of the code ---------------------------------------------------------


def _saying(change: Callable[[Any], Any]) -> Lie:
    """Change what this rank says of what it sent."""

    @contextmanager
    def saying(_guard: "GradientGuard") -> Iterator[None]:
        watch: Any = sys.modules["securetrain.guard.watch"]  # it has the whole process
        real = watch.encode
        watch.encode = lambda sketches: real(change(sketches))
        try:
            yield
        finally:
            watch.encode = real

    return saying


def _scaled(factor: float) -> Lie:
    def change(said: Any) -> Any:
        return dataclasses.replace(said, parts=said.parts * factor, sent=said.sent * factor)

    return _saying(change)


def _parts(*lies: tuple[float, float]) -> Lie:
    """The first parts, which went to one rank each, are said to be others: times, and plus."""

    def change(said: Any) -> Any:
        parts = said.parts.copy()
        for number, (times, plus) in enumerate(lies):
            parts[number] = parts[number] * times + plus
        return dataclasses.replace(said, parts=parts)

    return _saying(change)


@contextmanager
def _accuses(guard: "GradientGuard") -> Iterator[None]:
    """Says with its first draw that the others told it another table."""
    own: Any = guard._watches[0]
    own.beacon.tell = bytes(31) + b"x"
    yield
    own.beacon.tell = bytes(31) + b"x"


LIES: Final[dict[str, Lie]] = {
    "honest": _scaled(-0.2),
    "scaled": _scaled(1.01),
    "bent": _parts((1.5, 0.0)),
    "shifted": _parts((1.0, 1.5e7), (1.0, -1.5e7)),
    "accuses": _accuses,
}
"""``honest``: what it sent times -5 is told as it was before. ``shifted``: +V on one part and -V on
another, so that sums and means stay as they are."""


# -- hiding in the null space of a sketch whose seed is known --------------------------------------
#
# For every seed there are vectors of any length whose sketch is zero. The rank takes from its drift
# what the sketch of the newest seed sees, and sends the rest with its honest gradient: under that
# seed the two have the same sketch, hence the same length, distance and angles. It lies about
# nothing.

_SEED: Final = b"one seed for all steps, public: "
"""32 bytes."""


def use_one_seed(guard: "GradientGuard") -> None:
    """Let all draws of a guard give one seed, as a sketch does that is made once for a run."""
    _after_draw(guard, lambda drawn: dataclasses.replace(drawn, seed=_SEED))


def _after_draw(guard: "GradientGuard", change: Callable[[Any], Any]) -> None:
    watch: Any = guard._watches[0]
    beacon = watch.beacon
    real = beacon.draw
    beacon.draw = lambda context: change(real(context))


class Hider:
    """Bends the buckets of a DDP model on their way to the reduction.

    Args:
        model: It has no communication hook yet.
        times: Length of what is sent on top of the gradient, as a multiple of the gradient's.
        active: Whether this step is bent.
    """

    def __init__(self, model: Any, times: float, active: Callable[[], bool]) -> None:
        self._model = model
        self._times = times
        self._active = active
        self._seed = _SEED
        self._register = model.register_comm_hook
        model.register_comm_hook = self._before

    def start(self, guard: "GradientGuard | None") -> None:
        """Bend from now on, and hear each seed that the guard draws."""
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks  # noqa: PLC0415

        if guard is None:
            self._before(None, default_hooks.allreduce_hook)
        else:
            _after_draw(guard, self._hear)

    def _hear(self, drawn: Any) -> Any:
        self._seed = drawn.seed
        return drawn

    def _before(self, state: object, hook: Callable[[Any, Any], Any]) -> None:
        # A lambda, because DDP wants no annotations but its own.
        self._register(state, lambda state, bucket: hook(state, self._bend(bucket)))

    def _bend(self, bucket: Any) -> Any:
        if self._active():
            local = bucket.buffer()
            unseen = self._unseen([parameter.numel() for parameter in bucket.parameters()])
            local += unseen * (self._times * local.norm())
        return bucket

    def _unseen(self, sizes: list[int]) -> "torch.Tensor":
        """The part of one constant direction that the newest seed's sketch does not see."""
        import torch  # noqa: PLC0415 - only the ranks load torch

        numel = sum(sizes)
        way = torch.randn(numel, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        signs = self._signs(numel, len(sizes))
        start = 0
        for size in sizes:  # each by itself: the guard has a row for every block of them
            seen, mine = signs[start : start + size], way[start : start + size]
            mine -= seen @ (seen.T @ mine / seen.square().sum(dim=0).clamp_min(1.0))
            start += size
        unseen: torch.Tensor = way.float() / way.norm()
        return unseen

    def _signs(self, numel: int, parameters: int) -> "torch.Tensor":
        """The sketch of each number alone: (numel, size), one +1 or -1 in each row."""
        import torch  # noqa: PLC0415
        import torch.distributed as dist  # noqa: PLC0415

        # What other rooms may not import: the rank has its whole process.
        sketch: Any = import_module("securetrain.guard.sketch")
        known = sketch.derive(
            *(self._seed, f"0|bucket-0-{parameters - 1}-{parameters}"),
            numel=numel,
            parts=1,
            shape=sketch.shape_for(dist.get_world_size()),
        )
        one = torch.ones(1)
        runs = (sketch.Run(one, 0, i, i) for i in range(numel))
        signs: torch.Tensor = sketch.sketch_runs(runs, known, rows=numel)
        return signs
