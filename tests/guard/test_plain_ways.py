# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What is computed the short way in each step has the bits of the plain way."""

import math

import numpy as np
import pytest
import torch

from securetrain.guard import integrity
from securetrain.guard.bets import bets_for, index_of
from securetrain.guard.blocks import Buckets, segments_of
from securetrain.guard.integrity import check, copies, middle
from securetrain.guard.medians import middle_of
from securetrain.guard.moments import Moments
from securetrain.guard.rank_statistics import bounded
from securetrain.policy.schema import GradientData
from tests.tables import items

ODD = (0.0, -0.0, 1e300, -1e300, math.inf, -math.inf, math.nan, 5e-324, 1.0, 1.0)


pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the odd numbers


def alike(one, other):
    return np.array_equal(one, other, equal_nan=True)


def numbers(rng, shape, odd):
    values = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4, shape)
    if odd:
        places = rng.random(shape) < 0.02
        values[places] = rng.choice(ODD, int(places.sum()))
    return values


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8, 16])
@pytest.mark.parametrize("odd", [False, True])
def test_medians(ranks, odd):
    rng = np.random.default_rng(ranks)
    for _ in range(20):
        rows = numbers(rng, (ranks, 3, 40), odd)
        with np.errstate(all="ignore"):
            assert alike(middle(rows), np.median(rows, axis=0))
        flat = np.abs(np.nan_to_num(rows[:, 0, 0], posinf=1e300))
        assert middle_of(np.sort(flat))[0] == np.median(flat)


def plain_check(parts, received, *, roundoff, groups, owners, weights, keys, rounding):
    """Rules 1 and 2 row by row and replica by replica."""

    def ratios(got, mean, robust, relative, floor):
        worst = np.abs(got - mean).max(axis=-1)
        limit = relative * np.maximum(integrity._norms(got), robust) + floor
        ratio = np.where(worst == 0, 0.0, worst / limit)
        return np.nan_to_num(ratio, nan=math.inf, posinf=math.inf)

    ranks, count, _ = parts.shape
    share = np.asarray(weights, dtype=np.float64)
    live, place = np.flatnonzero(share), np.asarray(owners)
    mean_weights = share[live] / ranks
    relative = integrity._relative(ranks, roundoff) / math.sqrt(keys) * max(1.0, float(share.max()))
    floor = rounding * (ranks + 1) / math.sqrt(keys) * max(1.0, float(share.max()))
    with np.errstate(all="ignore"):
        found = ratios(
            received[live].sum(axis=1),
            np.tensordot(mean_weights, parts[live], axes=1)[place[live]],
            np.median(integrity._norms(parts[live]), axis=0)[place[live]],
            relative,
            floor,
        )
        holders = tuple(int(live[i]) for i in np.flatnonzero(~(found <= 1)))
        worst, wrong = float(found.max(initial=0.0)), set()
        for row in integrity._replicas(place, live, count):
            found = ratios(
                received[row].sum(axis=0),
                np.tensordot(mean_weights, groups[live], axes=1),
                np.median(integrity._norms(groups[live]), axis=0),
                relative * count,
                floor * count,
            )
            worst = max(worst, float(found.max(initial=0.0)))
            wrong |= {int(i) for i in np.flatnonzero(~(found <= 1))}
    return integrity.IntegrityResult(ratio=worst, holders=holders, groups=tuple(sorted(wrong)))


@items("owners", (0, 0), (0, 1), (0,) * 4, (0, 1, 2, 3), (0, 1, 0, 1), (0,) * 8, tuple(range(8)))
@pytest.mark.parametrize("lie", ["none", "one", "far", "odd"])
def test_integrity(owners, lie):
    rng = np.random.default_rng(7)
    ranks, count, groups, size = len(owners), max(owners) + 1, 5, 64
    for excluded in range(min(ranks - 1, 3)):
        weights = np.array([0.0] * excluded + [ranks / (ranks - excluded)] * (ranks - excluded))
        whole = rng.standard_normal((ranks, count, groups, size))
        mean = np.tensordot(weights / ranks, whole, axes=1)
        received = mean[np.asarray(owners)]
        if lie == "one":
            received[-1, 2, 3] += 1e-2
        elif lie == "far":
            received[:, 1] *= 1.5
        elif lie == "odd":
            received[-1, 4, 5] = rng.choice([np.inf, -np.inf, np.nan])
        parts, by_group = whole.sum(axis=2), whole.sum(axis=1)
        options = {
            "roundoff": 2.0**-24,
            "groups": by_group,
            "owners": owners,
            "weights": weights,
            "keys": 1,
            "rounding": 1e-9 * excluded,
        }
        found, plain = (way(parts, received, **options) for way in (check, plain_check))
        assert found == plain
        assert found.ok == (lie == "none")


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
def test_copies(ranks):
    rng = np.random.default_rng(ranks)
    for differ in range(ranks):
        rows = np.repeat(rng.standard_normal((1, 4, 30)), ranks, axis=0)
        rows[:differ] = numbers(rng, (differ, 4, 30), odd=True)
        with np.errstate(all="ignore"):
            found, odd = copies(rows)
            known = np.nan_to_num(rows, nan=0.0, posinf=0.0, neginf=0.0)
            usual = np.median(known, axis=0)
            apart = np.sqrt(((rows - usual) ** 2).sum(axis=(1, 2)))
        out = ~(apart <= 1e-4 * math.sqrt(float((usual**2).sum())))
        if 2 * out.sum() >= ranks:
            assert not found.any()
            assert odd == ()
        else:
            assert alike(found, usual)
            assert odd == tuple(np.flatnonzero(out))


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_bounded_rows(ranks):
    rng = np.random.default_rng(ranks)
    for out in range(ranks - 1):
        live = np.arange(ranks) >= out
        rows = numbers(rng, (6, ranks, 20), odd=True)
        whole = np.isfinite(rows).all(axis=-1, keepdims=True)
        cut = np.clip(np.where(whole, rows, 0.0), -1e100, 1e100)
        size = np.sqrt(np.square(cut).sum(axis=-1))
        limit = 1e6 * np.median(size[:, live], axis=1)[:, None]
        over = (size > limit) & (limit > 0)
        shrink = np.where(over, limit / np.maximum(size, 1e-300), 1.0)
        assert alike(bounded(rows, live), cut * shrink[..., None])


@pytest.mark.parametrize("data", list(GradientData))
def test_powers_of_one_number(data):
    bets = bets_for(data)
    halves = [(2 * n + 1) / 512 for n in range(-1100, 1100)]  # between two places of the table
    for z in [*halves, 0.0, -0.0, 4.0, -4.0, 3.9999, 77.0, -1e300, 1e-300]:
        assert bets.powers_of(z) == [float(x) for x in bets.powers(index_of(np.array(z)))]


def test_a_moment_is_found_anew_in_each_step():
    """Optimizers replace their state, and a checkpoint does: nothing is remembered of it."""
    weight = torch.nn.Parameter(torch.ones(3, 4))
    optimizer = torch.optim.AdamW([weight])
    moments = Moments()
    moments.use(optimizer)
    assert moments.slices([(weight, 12)], 12) == []
    for value in (1.0, 2.0):
        optimizer.state[weight]["exp_avg"] = torch.full((3, 4), value)
        ((begin, numbers),) = moments.slices([(weight, 12)], 12)
        assert begin == 0
        assert numbers.reshape(-1).tolist() == [value] * 12
    optimizer.state[weight]["exp_avg"] = torch.arange(12.0).reshape(4, 3).T
    ((_, numbers),) = moments.slices([(weight, 12)], 12)
    assert numbers.reshape(-1).tolist() == [float(3 * (n % 4) + n // 4) for n in range(12)]


def test_the_name_and_groups_of_a_bucket_are_those_of_its_parameters():
    sizes = {"embed.weight": 12, "layers.0.a": 3, "layers.0.b": 4, "layers.1.a": 5, "norm": 2}
    parameters = {name: torch.ones(size) for name, size in sizes.items()}
    names = {id(one): (index, name) for index, (name, one) in enumerate(parameters.items())}
    buckets = Buckets(names)
    for chosen in (["norm", "layers.1.a"], ["layers.0.b", "layers.0.a", "embed.weight"]) * 2:
        chunk, segments = buckets.of([parameters[name] for name in chosen])
        indices = [list(sizes).index(name) for name in chosen]
        assert chunk == f"bucket-{min(indices)}-{max(indices)}-{len(indices)}"
        assert segments == segments_of([(name, sizes[name]) for name in chosen])
    # One bucket of the same name, but without the parameter in the middle.
    assert buckets.of([parameters["norm"], parameters["layers.0.a"]]) == (
        "bucket-1-4-2",
        segments_of([("norm", 2), ("layers.0.a", 3)]),
    )
