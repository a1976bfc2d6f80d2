# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Robust aggregation of n vectors into one, under the names that ByzFL gives the rules. Pure.

```python
from securetrain.guard.aggregate import TrMean

mean = TrMean(f=1)(torch.stack(gradients))  # (n, d) -> (d,)
```

A rule is made with its parameters and called with a tensor of n vectors, or with a sequence of
them. Its result has the shape, dtype and device of one vector; half precision is computed in fp32.
Each bound on `f`, the number of vectors that may be anything, is checked in the call. So is `f=0`:
then most rules are the mean.

Numbers that are not finite: coordinate-wise rules take NaN for larger than every number, and rules
on distances put such a vector farthest. No rule lets up to f of them into its result; `Average`
and `CenteredClipping`, which have no such f, refuse them.

This is for studies and for callbacks that have all gradients in one place. It reduces nothing, and
the guard of a training run (`attach`) does not use it.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

_HALF: Final = frozenset({torch.float16, torch.bfloat16})
_MOST_SUBSETS: Final = 200_000
"""That MDA compares."""


def _aggregated(vectors: Tensor | Sequence[Tensor], rule: Callable[[Tensor], Tensor]) -> Tensor:
    stacked = vectors if isinstance(vectors, Tensor) else torch.stack(list(vectors))
    if stacked.ndim < 2 or not len(stacked) or not stacked.is_floating_point():
        raise ValueError(
            f"vectors have shape {tuple(stacked.shape)} and dtype {stacked.dtype}: give (n, d)"
            " floating-point numbers"
        )
    wide = stacked.float() if stacked.dtype in _HALF else stacked
    result = rule(wide.flatten(1))
    return result.reshape(stacked.shape[1:]).to(stacked.dtype)


def _check_f(f: int, n: int, most: int) -> None:
    if not 0 <= f <= most:
        raise ValueError(f"f is {f} of {n} vectors: give 0 to {max(0, most)}")


def _half(n: int) -> int:
    """The most of n that are fewer than half."""
    return (n - 1) // 2


def _ranked(x: Tensor) -> Tensor:
    """Numbers in order along the vectors; NaN last."""
    return x.sort(dim=0).values


def _squares(x: Tensor, y: Tensor) -> Tensor:
    """Squared distances, (n, m); infinite where a vector is not finite."""
    found = torch.stack([(x - one).double().square().sum(dim=1) for one in y], dim=1)
    return found.nan_to_num(nan=math.inf, posinf=math.inf)


def _smallest(values: Tensor, count: int) -> Tensor:
    """Places of the smallest values; the earlier of equal ones."""
    return values.sort(stable=True).indices[:count]


@dataclass(frozen=True, slots=True)
class Average:
    """The mean. One vector of n moves it anywhere."""

    def __call__(self, vectors: Tensor | Sequence[Tensor]) -> Tensor:
        """Aggregate."""
        return _aggregated(vectors, lambda x: _finite(x).mean(dim=0))


@dataclass(frozen=True, slots=True)
class Median:
    """The median of each coordinate; of an even number the mean of the middle two."""

    def __call__(self, vectors: Tensor | Sequence[Tensor]) -> Tensor:
        """Aggregate."""
        return _aggregated(vectors, _median)


@dataclass(frozen=True, slots=True)
class TrMean:
    """The mean of each coordinate without its f smallest and f largest numbers (2f < n)."""

    f: int = 0

    def __call__(self, vectors: Tensor | Sequence[Tensor]) -> Tensor:
        """Aggregate."""

        def rule(x: Tensor) -> Tensor:
            n = len(x)
            _check_f(self.f, n, _half(n))
            return _ranked(x)[self.f : n - self.f].mean(dim=0)

        return _aggregated(vectors, rule)


@dataclass(frozen=True, slots=True)
class Meamed:
    """The mean of the n - f numbers of each coordinate that are nearest to its median (2f < n)."""

    f: int = 0

    def __call__(self, vectors: Tensor | Sequence[Tensor]) -> Tensor:
        """Aggregate."""

        def rule(x: Tensor) -> Tensor:
            _check_f(self.f, len(x), _half(len(x)))
            apart = (x - _median(x)).abs().nan_to_num(nan=math.inf, posinf=math.inf)
            near = apart.sort(dim=0, stable=True).indices[: len(x) - self.f]
            return x.gather(0, near).mean(dim=0)

        return _aggregated(vectors, rule)


@dataclass(frozen=True, slots=True)
class GeometricMedian:
    """The point with the least sum of distances to the vectors, by Weiszfeld's iteration.

    `nu` is the least distance that a vector is weighted by, `T` the number of rounds.
    """

    nu: float = 0.1
    T: int = 3

    def __call__(self, vectors: Tensor | Sequence[Tensor]) -> Tensor:
        """Aggregate."""

        def rule(x: Tensor) -> Tensor:
            if self.nu <= 0 or self.T < 1:
                raise ValueError(f"nu is {self.nu} and T is {self.T}: give more than zero")
            kept = x[x.isfinite().all(dim=1)]
            if 2 * len(kept) <= len(x):
                raise ValueError(f"{len(x) - len(kept)} of {len(x)} vectors are not finite")
            # The others would pull from infinitely far: without weight.
            point = _median(kept)
            for _ in range(self.T):
                weights = 1 / _squares(kept, point[None])[:, 0].sqrt().clamp(min=self.nu)
                point = ((weights / weights.sum()).to(x.dtype)[:, None] * kept).sum(dim=0)
            return point

        return _aggregated(vectors, rule)


@dataclass(frozen=True, slots=True)
class Krum:
    """The vector with the least sum of squared distances to its n - f - 1 nearest (2f < n)."""

    f: int = 0

    def __call__(self, vectors: Tensor | Sequence[Tensor]) -> Tensor:
        """Aggregate."""
        return _aggregated(vectors, lambda x: x[_smallest(_krum(x, self.f), 1)[0]])


@dataclass(frozen=True, slots=True)
class MultiKrum:
    """The mean of the n - f vectors that Krum likes best (2f < n)."""

    f: int = 0

    def __call__(self, vectors: Tensor | Sequence[Tensor]) -> Tensor:
        """Aggregate."""

        def rule(x: Tensor) -> Tensor:
            return x[_smallest(_krum(x, self.f), len(x) - self.f)].mean(dim=0)

        return _aggregated(vectors, rule)


@dataclass(frozen=True, slots=True)
class CenteredClipping:
    """Steps from a center by the mean of the differences to it, each clipped to length `tau`.

    `m` is the first center, zero by default, `L` the number of steps. A vector pulls by tau / n at
    most: choose tau with the honest vectors' spread in mind.
    """

    m: Tensor | None = None
    L: int = 1
    tau: float = 100.0

    def __call__(self, vectors: Tensor | Sequence[Tensor]) -> Tensor:
        """Aggregate."""

        def rule(x: Tensor) -> Tensor:
            if self.L < 0 or self.tau < 0:
                raise ValueError(f"L is {self.L} and tau is {self.tau}: give no less than zero")
            _finite(x)
            center = torch.zeros_like(x[0]) if self.m is None else self.m.flatten().to(x)
            for _ in range(self.L):
                apart = x - center
                lengths = apart.double().norm(dim=1, keepdim=True)
                factor = (self.tau / lengths.clamp(min=1e-300)).clamp(max=1.0)
                center = center + (apart * factor.to(x.dtype)).mean(dim=0)
            return center

        return _aggregated(vectors, rule)


@dataclass(frozen=True, slots=True)
class MDA:
    """The mean of the n - f vectors whose largest distance to each other is least (2f < n).

    All subsets are compared, up to 200,000 of them.
    """

    f: int = 0

    def __call__(self, vectors: Tensor | Sequence[Tensor]) -> Tensor:
        """Aggregate."""

        def rule(x: Tensor) -> Tensor:
            n = len(x)
            _check_f(self.f, n, _half(n))
            if math.comb(n, self.f) > _MOST_SUBSETS:
                raise ValueError(f"{math.comb(n, self.f)} subsets of {n - self.f} vectors of {n}")
            squares = _squares(x, x)
            best = min(
                itertools.combinations(range(n), n - self.f),
                key=lambda chosen: float(squares[list(chosen)][:, list(chosen)].max()),
            )
            return x[list(best)].mean(dim=0)

        return _aggregated(vectors, rule)


@dataclass(frozen=True, slots=True)
class MoNNA:
    """The mean of the n - f vectors that are nearest to a trusted one, at place `idx` (2f < n)."""

    f: int = 0
    idx: int = 0

    def __call__(self, vectors: Tensor | Sequence[Tensor]) -> Tensor:
        """Aggregate."""

        def rule(x: Tensor) -> Tensor:
            _check_f(self.f, len(x), _half(len(x)))
            if not 0 <= self.idx < len(x):
                raise ValueError(f"idx is {self.idx} of {len(x)} vectors")
            squares = _squares(x, x[self.idx][None])[:, 0]
            return x[_smallest(squares, len(x) - self.f)].mean(dim=0)

        return _aggregated(vectors, rule)


@dataclass(frozen=True, slots=True)
class CAF:
    """The covariance-bound agnostic filter (2f < n): vectors that stand out along the direction in
    which all vary most lose weight until n - 2f is left; the mean with the least variance counts.
    """

    f: int = 0

    def __call__(self, vectors: Tensor | Sequence[Tensor]) -> Tensor:
        """Aggregate."""

        def rule(x: Tensor) -> Tensor:
            n = len(x)
            _check_f(self.f, n, _half(n))
            weights = x.isfinite().all(dim=1).double()
            if float(weights.sum()) < n - self.f:
                raise ValueError(f"more than {self.f} of {n} vectors are not finite")
            wide = torch.where(weights[:, None] > 0, x, torch.zeros_like(x)).double()
            best, least = (weights @ wide) / weights.sum(), math.inf
            while float(weights.sum()) > max(n - 2 * self.f, 0) and least > 0:
                mean = (weights @ wide) / weights.sum()
                apart = (wide - mean) * weights.sqrt()[:, None]
                values, directions = torch.linalg.eigh(apart @ apart.T / weights.sum())
                if float(values[-1]) < least:
                    best, least = mean, max(0.0, float(values[-1]))
                along = (wide - mean) @ (apart.T @ directions[:, -1])
                scores = torch.where(weights > 0, along.square(), 0.0)
                if not float(scores.max()):
                    break
                weights = weights * (1 - scores / scores.max())
            return best.to(x.dtype)

        return _aggregated(vectors, rule)


MONNA: Final = MoNNA
"""The name in ByzFL."""


def _median(x: Tensor) -> Tensor:
    ranked, n = _ranked(x), len(x)
    low, high = ranked[(n - 1) // 2], ranked[n // 2]
    return torch.where(low == high, low, low / 2 + high / 2)


def _krum(x: Tensor, f: int) -> Tensor:
    """The score of each vector."""
    n = len(x)
    _check_f(f, n, _half(n))
    others = _squares(x, x).fill_diagonal_(0.0).sort(dim=1).values[:, 1 : n - f]
    return others.sum(dim=1)


def _finite(x: Tensor) -> Tensor:
    if not x.isfinite().all():
        raise ValueError("a vector is not finite, and this rule has no f to leave it out by")
    return x
