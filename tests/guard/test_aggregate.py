# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Rules of aggregation against their definitions, spelled out for a few vectors; and liars."""

import itertools
import math
import statistics

import pytest
import torch

from securetrain.guard import aggregate
from securetrain.guard.aggregate import (
    CAF,
    MDA,
    MONNA,
    Average,
    CenteredClipping,
    GeometricMedian,
    Krum,
    Meamed,
    Median,
    MoNNA,
    MultiKrum,
    TrMean,
)
from tests.vocabulary import refused

WITH_F = [TrMean, Meamed, Krum, MultiKrum, MDA, MoNNA, CAF]
ALL = [*WITH_F, Average, Median, GeometricMedian, CenteredClipping]
SEEDS = range(5)


def drawn(seed, n=7, d=3):
    return torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def mean(rows):
    return [statistics.fmean(column) for column in zip(*rows, strict=True)]


def square(a, b):
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def by_definition(rule, rows, f):
    n = len(rows)
    columns = list(zip(*rows, strict=True))
    match rule.__name__:
        case "TrMean":
            return [statistics.fmean(sorted(column)[f : n - f]) for column in columns]
        case "Meamed":
            middles = [statistics.median(column) for column in columns]
            return [
                statistics.fmean(sorted(column, key=lambda v: abs(v - middle))[: n - f])
                for column, middle in zip(columns, middles, strict=True)
            ]
        case "Krum" | "MultiKrum":
            scores = [
                sum(sorted(square(a, b) for j, b in enumerate(rows) if j != i)[: n - f - 1])
                for i, a in enumerate(rows)
            ]
            best = sorted(range(n), key=lambda i: scores[i])
            return mean([rows[i] for i in best[: 1 if rule is Krum else n - f]])
        case "MDA":
            subsets = itertools.combinations(rows, n - f)
            return mean(min(subsets, key=lambda s: max(square(a, b) for a in s for b in s)))
        case _:
            return mean(sorted(rows, key=lambda row: square(row, rows[0]))[: n - f])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("f", [0, 1, 3])
@pytest.mark.parametrize("rule", [TrMean, Meamed, Krum, MultiKrum, MDA, MoNNA])
def test_a_rule_is_its_definition(rule, f, seed):
    x = drawn(seed)
    assert rule(f)(x).tolist() == pytest.approx(by_definition(rule, x.tolist(), f))


@pytest.mark.parametrize("n", [1, 2, 6, 7])
def test_the_median_of_each_coordinate(n):
    x = drawn(n, n)
    expected = [statistics.median(column) for column in x.T.tolist()]
    assert Median()(x).tolist() == pytest.approx(expected)


def test_the_geometric_median_has_the_least_sum_of_distances():
    x = drawn(1)

    def total(point):
        return float((x - point).norm(dim=1).sum())

    found = GeometricMedian(nu=1e-6, T=200)(x)
    for shift in torch.cat([torch.eye(3), -torch.eye(3)]).double():
        assert total(found) <= total(found + 1e-3 * shift)


def test_centered_clipping_moves_by_no_more_than_tau():
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    assert CenteredClipping(tau=1.0)(x).tolist() == pytest.approx([0.3, 0.4])
    assert CenteredClipping(tau=100.0)(x).tolist() == pytest.approx([1.5, 2.0])
    start = torch.tensor([3.0, 4.0])
    assert CenteredClipping(m=start, L=0)(x).tolist() == [3.0, 4.0]
    assert CenteredClipping(tau=1.0, L=2)(x).tolist() == pytest.approx([0.45, 0.6])


def test_the_filter_drops_a_direction_of_its_own():
    x = drawn(2, 9) * 0.1
    x[4, 1] += 50
    honest = x[[i for i in range(9) if i != 4]].mean(dim=0)
    assert (CAF(1)(x) - honest).norm() < 0.1
    assert CAF(0)(x).tolist() == pytest.approx(x.mean(dim=0).tolist())
    assert CAF(1)(torch.ones(5, 2)).tolist() == [1, 1]


@pytest.mark.parametrize("lie", [1e6, -1e30, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize(
    "rule",
    [*(lambda f, r=r: r(f) for r in WITH_F), lambda _f: Median(), lambda _f: GeometricMedian(T=20)],
)
@pytest.mark.parametrize("f", [1, 3])
def test_fewer_than_half_cannot_move_it_far(rule, f, lie):
    x = drawn(3)
    x[7 - f :] = lie
    found = rule(f)(x)
    assert found.isfinite().all()
    assert (found - x[: 7 - f].mean(dim=0)).norm() < 5


@pytest.mark.parametrize("rule", [Average, CenteredClipping])
def test_a_rule_without_f_refuses_what_is_not_finite(rule):
    x = drawn(0)
    x[2, 1] = math.nan
    refused(ValueError, "not finite", rule(), x)


def test_one_vector_moves_the_average_anywhere():
    x = drawn(0)
    x[0] = 1e30
    assert Average()(x).min() > 1e28


@pytest.mark.parametrize("f", [-1, 4])
@pytest.mark.parametrize("rule", WITH_F)
def test_as_many_liars_as_honest_are_refused(rule, f):
    refused(ValueError, "f is", rule(f), drawn(0))
    assert rule(3)(drawn(0)).shape == (3,)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("rule", ALL)
def test_shape_and_dtype_are_those_of_one_vector(rule, dtype):
    x = drawn(0, 6, 8).to(dtype).reshape(6, 2, 4)
    before = x.clone()
    found = rule()(x)
    assert found.dtype == dtype
    assert found.shape == (2, 4)
    assert torch.equal(x, before)
    assert torch.equal(found, rule()(list(x)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_added_up_in_single(dtype):
    x = torch.full((4096, 1), 0.1, dtype=dtype)
    assert float(Average()(x)) == float(x[0])


@pytest.mark.parametrize("bad", [torch.zeros(3), torch.zeros(0, 3), torch.ones(3, 2).int()])
def test_what_is_no_set_of_vectors_is_refused(bad):
    refused(ValueError, r"give \(n, d\)", Median(), bad)


@pytest.mark.parametrize(
    "rule",
    [
        GeometricMedian(nu=0),
        GeometricMedian(T=0),
        CenteredClipping(L=-1),
        CenteredClipping(tau=-1),
        MoNNA(1, idx=7),
        MoNNA(1, idx=-1),
    ],
)
def test_a_parameter_that_means_nothing_is_refused(rule):
    refused(ValueError, r"nu is|L is|idx is", rule, drawn(0))


def test_too_many_subsets_are_refused():
    refused(ValueError, "subsets", MDA(15), drawn(0, 40))


def test_the_trusted_vector_is_one_of_those_that_count():
    x = torch.tensor([[0.0], [1.0], [10.0]])
    assert MoNNA(2 - 1, idx=2)(x).tolist() == [5.5]
    assert MONNA is MoNNA
    assert aggregate.Average is Average
