# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A rank that bends its gradient in the null space of a sketch whose seed it knows.

For every seed there are vectors of any length whose sketch is zero. The rank takes from its drift
what the sketch of the newest seed sees, and sends the rest with its honest gradient: under that
seed the two have the same sketch, hence the same length, distance and angles. It lies about
nothing.
"""

import dataclasses
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

    from securetrain.guard import GradientGuard

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
