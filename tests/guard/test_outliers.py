# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import math

import msgspec
import pytest
import torch

from securetrain.guard.outliers import Detector, DetectorState
from securetrain.guard.sketch import SketchShape, derive
from securetrain.guard.verdict import Test


def one_nan(sim, x):
    y = x[1].clone()
    y[1234] = math.nan
    return y


def with_value(index, value):
    def attack(sim, x):
        y = x[1].clone()
        y[index] = value
        return y

    return attack


def flip5(sim, x):
    return -5 * x[1]


def flip(sim, x):
    return -x[1]


def labels(sim, x):
    """A rank whose targets are permuted: its signal is reversed, its noise is its own."""
    mean = x[[0, *range(2, len(x))]].mean(dim=0)
    return x[1] - 2 * mean


def gaussian(sim, x):
    y = torch.randn(sim.dimension, generator=sim.generator)
    return y / y.norm() * x[1].norm()


def zero(sim, x):
    return torch.zeros_like(x[1])


def others(x):
    return x[[0, *range(2, len(x))]]


def little_is_enough(sim, x):
    return others(x).mean(dim=0) - 1.5 * others(x).std(dim=0)


def inner_product(sim, x):
    return -1.5 * others(x).mean(dim=0)


def drift(sim, x):
    generator = torch.Generator().manual_seed(99)
    direction = torch.randn(sim.dimension, generator=generator) * sim.spectrum
    return x[1] + 0.7 * others(x).norm(dim=1).mean() * direction / direction.norm()


def mimic(sim, x):
    return x[2].clone()


# attack, ranks, share of attacked steps in which the rank is named, steps until the first
NAMED = [
    *((a, n, 1.0, 0) for n in (3, 4, 8) for a in (flip5, zero)),
    *((one_nan, n, 1.0, 0) for n in (2, 3, 4, 8)),
    *((a, n, 0.9, 1) for n in (4, 8) for a in (flip, labels, inner_product, gaussian)),
    *((little_is_enough, n, 0.7, 20) for n in (4, 8)),
    *((drift, n, 0.7, 20) for n in (4, 8)),
]


@pytest.mark.parametrize(("attack", "ranks", "share", "first"), NAMED)
def test_attacks_are_named(simulation, attack, ranks, share, first):
    seen = simulation(ranks).run(attack, steps=100)
    named = [1 in (*a.outliers, *a.not_finite) and a.attributed for a in seen]
    assert sum(named) >= share * len(named)
    assert True in named[: first + 1]
    honest = sum(len(set(a.outliers) - {1}) for a in seen)
    assert honest == 0, "an honest rank was blamed"


@pytest.mark.parametrize("ranks", [4, 8])
@pytest.mark.parametrize("attack", [flip5, labels, inner_product, zero])
def test_gross_attacks_are_found_in_noise_too(simulation, attack, ranks):
    # Below the noise of one rank (signal 1, falling to .3): gross attacks, given time.
    seen = simulation(ranks, signal=1.0).run(attack, steps=100)
    assert sum(1 in a.outliers for a in seen) > 0.6 * len(seen)
    assert sum(len(set(a.outliers) - {1}) for a in seen) == 0


@pytest.mark.parametrize("attack", [flip5, flip, inner_product, zero])
def test_two_ranks_refuse_without_always_naming(simulation, attack):
    seen = simulation(2, signal=6.0).run(attack)
    assert all(a.outliers or not a.attributed for a in seen)
    assert all(set(a.outliers) <= {1} for a in seen), "never the honest one"
    if attack is zero:
        assert seen[0].outliers == (1,)


def test_a_copy_cannot_be_told_from_its_original(simulation):
    for ranks in (3, 4, 8):
        seen = simulation(ranks).run(mimic, steps=70)
        assert all({1, 2} <= set(a.outliers) for a in seen)
        assert not any(a.attributed for a in seen)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_bad_number_is_named_in_the_very_first_step(simulation, ranks, value):
    sim = simulation(ranks)
    x = sim.honest()
    rank = ranks - 1
    x[rank, 7] = value
    assessment = sim.observe(x)
    assert assessment.not_finite == (rank,)
    assert assessment.table[rank].flags == (Test.FINITE,)
    assert assessment.table[rank].norm is None
    assert assessment.outliers == ()


@pytest.mark.parametrize("ranks", [3, 4, 8])
def test_huge_but_finite(simulation, ranks):
    for index in (0, 1500):
        seen = simulation(ranks).run(with_value(index, 3.0e38), steps=60)
        assert all(1 in (*a.outliers, *a.not_finite) for a in seen)
        assert all(set(a.outliers) <= {1} for a in seen)


def test_everybody_bad(simulation):
    sim = simulation(4)
    assessment = sim.observe(torch.full((4, sim.dimension), math.nan))
    assert assessment.not_finite == (0, 1, 2, 3)
    sim.run(steps=30)


def test_coarse_limits_hold_during_the_warm_up(simulation):
    for ranks in (3, 4, 8):
        sim = simulation(ranks)
        assert all(not a.outliers for a in sim.run(steps=5, start=0))
        x = sim.honest()
        x[1] *= -8
        assessment = sim.observe(x)
        assert assessment.calibrating
        assert assessment.outliers == (1,)


@pytest.mark.parametrize("signal", [0.5, 3.0, 10.0])
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.slow
def test_clean_training_raises_no_alarm(simulation, ranks, signal):
    # 9 cases, 220 steps each: 9,240 rank-steps in all.
    seen = simulation(ranks, signal=signal, seed=ranks).run(steps=220, start=0)
    for step, a in enumerate(seen):
        assert not a.outliers, (step, [s for s in a.table if s.flags])
        assert a.attributed
        assert not a.spike
        assert not a.not_finite


def test_identical_ranks_are_not_outliers(simulation):
    # The same batch on every rank: all distances are zero, nobody is odd.
    for ranks in (2, 4):
        sim = simulation(ranks)
        for _ in range(40):
            x = sim.honest()[:1].expand(ranks, -1).contiguous()
            x = x * (1 + 1e-7 * torch.randn(ranks, 1, generator=sim.generator))
            assert not sim.observe(x).outliers


def test_a_fault_that_is_over_does_not_echo(simulation):
    sim = simulation(4)
    sim.run(steps=40)
    for _ in range(3):
        x = sim.honest()
        x[1] *= -5
        assert sim.observe(x).outliers == (1,)
    assert all(not sim.observe(sim.honest()).outliers for _ in range(30))


def test_a_known_seed_hides_the_attack_and_a_fresh_one_does_not(simulation):
    def attacked(fresh):
        sim = simulation(4, dimension=100_000)
        for _ in range(25):
            sim.observe(sim.honest())
        x = sim.honest()
        known = sim.fresh()
        rows = known.left.T.tolist()
        a, b, sign = next(
            (a * known.stride, b * known.stride, sign)
            for a in range(40)
            for b in range(a)
            for sign in (1.0, -1.0)
            if rows[a] == [sign * value for value in rows[b]]
        )
        x[1, a] += 4 * x[1].norm()
        x[1, b] -= sign * x[1, a]
        # The window sketch would tell; here only the seed of the step is at stake.
        sim.window = known
        return sim.observe(x, fresh=known if not fresh else sim.fresh())

    assert attacked(fresh=False).outliers == ()
    assert attacked(fresh=True).outliers == (1,)


def test_one_rank_alone_knows_only_its_past():
    detector = Detector(1, warmup_steps=20, threshold=8.0)
    shape = SketchShape(rows=1, buckets=1)

    def observe(norm):
        row = torch.tensor([[norm]], dtype=torch.float64)
        return detector.observe(row, torch.zeros_like(row), shape)

    generator = torch.Generator().manual_seed(0)
    for step in range(200):
        jitter = float(torch.randn((), generator=generator))
        assert not observe(5 * math.exp(-step / 60 + 0.2 * jitter) + 0.5).spike
    assert observe(40.0).spike
    assert not observe(0.7).spike
    assert observe(0.0).spike
    assert observe(math.nan).not_finite == (0,)


def test_a_norm_that_changes_for_good_is_learned():
    detector = Detector(1, warmup_steps=5, threshold=8.0)
    shape = SketchShape(rows=1, buckets=1)
    rows = [torch.full((1, 1), v, dtype=torch.float64) for v in [1.0] * 30 + [30.0] * 60]
    spikes = [detector.observe(r, torch.zeros_like(r), shape).spike for r in rows]
    assert spikes[30]
    assert not any(spikes[:30])
    assert not any(spikes[-20:])


def test_state_survives_json_and_another_size_starts_again(simulation):
    sim = simulation(4)
    sim.run(steps=40)
    raw = msgspec.json.encode(sim.detector.state())
    state = msgspec.json.decode(raw, type=DetectorState)
    fresh = Detector(4, warmup_steps=20, threshold=8.0)
    fresh.restart(state)
    assert msgspec.json.encode(fresh.state()) == raw
    x = sim.honest()
    x[1] *= -5
    sim.detector = fresh
    assessment = sim.observe(x)
    assert not assessment.calibrating
    assert assessment.outliers == (1,)
    smaller = Detector(3, warmup_steps=20, threshold=8.0)
    smaller.restart(state)
    assert smaller.state().steps == 0
    sim_rows = torch.zeros(4, 256, dtype=torch.float64)
    with pytest.raises(ValueError, match="4 sketches for 3 ranks"):
        smaller.observe(sim_rows, sim_rows, SketchShape())


def test_other_directions_forget_the_history(simulation):
    sim = simulation(4)
    sim.run(drift, steps=90)
    assert sim.detector._history.__dict__["_average"].steps > 50
    sim.detector.forget_history()
    sim.window = derive(b"n" * 32, "x", numel=sim.dimension, parts=1, shape=sim.shape)
    assert sim.detector._history.__dict__["_average"].steps == 0


def test_a_lying_majority_is_the_stated_limit(simulation):
    # Three of four ranks turn around together: the honest one is what looks odd.
    sim = simulation(4)
    sim.run(steps=40)
    x = sim.honest()
    x[1:] = -x[1:]
    assert sim.observe(x).outliers == (0,)
