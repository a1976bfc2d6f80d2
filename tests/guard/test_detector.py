# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import math

import msgspec
import numpy as np
import pytest

from securetrain.guard.assessment import Statistic
from securetrain.guard.detector import Detector
from securetrain.guard.detector_state import DetectorState, Served, packed
from securetrain.guard.rows import StepRows
from securetrain.policy.schema import GradientData, Gradients
from tests.guard.simulated import Simulated
from tests.tables import items
from tests.vocabulary import refused

BAD = 2


def flip(g, world):
    g[:, BAD] *= -1


def times(factor):
    def attack(g, world):
        g[:, BAD] *= factor

    return attack


def gaussian(g, world):
    noise = world.draw(*g[:, BAD].shape)
    size = np.linalg.norm(g[:, BAD], axis=1, keepdims=True)
    g[:, BAD] = noise * size / np.linalg.norm(noise, axis=1, keepdims=True)


def fixed(world):
    return np.random.default_rng(99).standard_normal(world.mean.shape)


def drift(g, world):
    g[:, BAD] += 1.2 * fixed(world)


def alie(g, world):
    rest = np.delete(g, BAD, axis=1)
    g[:, BAD] = rest.mean(axis=1) - 1.5 * rest.std(axis=1)


def one_layer(g, world):
    g[3, BAD] *= -1


def matched(g, world):
    """Norm, distances and cosines of an honest rank; its noise points the same way each time."""
    mean = np.delete(g, BAD, axis=1).mean(axis=1)
    way = fixed(world)
    way *= np.linalg.norm(g[:, BAD] - mean, axis=1, keepdims=True)
    g[:, BAD] = mean + way / np.linalg.norm(fixed(world), axis=1, keepdims=True)


def zero(g, world):
    g[:, BAD] = 0.0


def pair(g, world):
    g[:, [BAD, 5]] *= -1


def not_a_number(g, world):
    g[1, BAD, 3] = math.nan


NAMED = [
    *((attack, n, 12) for n in (4, 8) for attack in (times(3), times(-3), gaussian, alie, zero)),
    *((attack, n, 30) for n in (4, 8) for attack in (flip, drift, one_layer, matched)),
    *((not_a_number, n, 6) for n in (4, 8)),
]


@pytest.mark.parametrize(("attack", "ranks", "delay"), NAMED)
def test_a_lasting_attack_is_named_and_nobody_else(attack, ranks, delay):
    seen = Simulated(ranks, seed=1).run(50 + delay, attack, start=40)
    named = [a.named for a in seen]
    first = named.index((BAD,))
    assert 40 <= first <= 40 + delay
    assert set(named[:first]) == {()}
    assert set(named[first:]) == {(BAD,)}
    (who,) = [a.newly_named for a in seen if a.newly_named]
    assert who == (BAD,)


def test_two_ranks_that_flip_are_both_named():
    seen = Simulated(8, seed=2).run(140, pair, start=60)
    assert seen[-1].named == (BAD, 5)
    assert all(set(a.excluded) <= {BAD, 5} for a in seen)
    assert not any(len(a.newly_named) > 1 for a in seen), "one a step"


@pytest.mark.parametrize("data", GradientData)
@pytest.mark.parametrize("ranks", [3, 4, 8])
def test_honest_ranks_are_not_accused(ranks, data):
    world = Simulated(ranks, seed=ranks, data=data, optional="layers.5")
    assert all(a.clean and a.peak < 1 for a in world.run(240))


def test_the_reason_says_which_layer_and_which_way():
    seen = Simulated(4, seed=3).run(120, one_layer, start=60)
    (reason,) = [a.why[BAD] for a in seen if a.newly_named]
    assert reason.group == "layers.3"
    assert reason.statistic in {Statistic.COSINE, Statistic.MOMENTUM, Statistic.DISTANCE}
    assert "its gradient of layers.3 " in str(reason)


def test_without_momentum_the_others_still_tell():
    world = Simulated(8, seed=4)
    for _ in range(60):
        world.observe(world.honest(), momentum=False)
    for _ in range(40):
        g = world.honest()
        flip(g, world)
        seen = world.observe(g, momentum=False)
    assert seen.named == (BAD,)


def test_a_momentum_that_is_not_finite_is_no_momentum():
    world = Simulated(4, seed=4)
    world.run(30)
    world.momentum[0, 0] = math.inf
    assert world.observe(world.honest()).clean


# -- gross -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [20.0, -20.0, 1e30])
def test_a_gross_gradient_counts_zero_at_once(factor):
    world = Simulated(4, seed=5)
    world.run(30)
    g = world.honest()
    g[:, BAD] *= factor
    seen = world.observe(g)
    assert seen.gross == (BAD,)
    assert seen.why[BAD].statistic is Statistic.NORM
    assert world.observe(world.honest()).excluded == (), "in this step only"


def test_an_honest_batch_of_five_times_the_length_is_no_outlier_and_raises_no_bound():
    world = Simulated(8, seed=5)
    world.run(30)
    g = world.honest()
    g[:, BAD] *= 5
    assert world.observe(g).clean
    g = world.honest()
    g[:, BAD] *= 20
    assert world.observe(g).gross == (BAD,)


def test_a_gradient_against_the_others_is_gross_where_one_with_them_is_not():
    for factor, gross in ((5, ()), (-5, (BAD,)), (-2, ())):
        world = Simulated(8, seed=5, noise=1.0)
        world.run(30)
        g = world.honest()
        g[:, BAD] *= factor
        assert world.observe(g).gross == gross, factor


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_a_bad_number_is_known_in_the_very_first_step(ranks, value):
    world = Simulated(ranks)
    g = world.honest()
    g[0, ranks - 1, 0] = value
    seen = world.observe(g)
    assert seen.not_finite == seen.excluded == (ranks - 1,)
    assert seen.norms[ranks - 1] is None


def test_a_number_that_overflows_is_not_said():
    """Records are JSON, which has no infinity."""
    world = Simulated(4, seed=5)
    world.run(3)
    seen = world.observe(1e200 * world.honest())
    known = [*seen.norms, *(seen.cosines or ())]
    assert all(one is None or math.isfinite(one) for one in known)
    zero = world.observe(0 * world.honest())
    assert all(one is None or math.isfinite(one) for one in [*zero.norms, *(zero.cosines or ())])


def test_more_gross_ranks_than_may_be_excluded_are_undecided():
    world = Simulated(4, seed=5)
    world.run(30)
    g = world.honest()
    g[:, :2] *= 50
    seen = world.observe(g)
    assert seen.gross == ()
    assert seen.undecided


def test_everybody_bad():
    world = Simulated(4)
    seen = world.observe(np.full((6, 4, 64), math.nan))
    assert seen.not_finite == (0, 1, 2, 3)
    assert seen.evidence == ()
    assert all(a.clean for a in world.run(30))


def test_no_group_at_all_is_nothing_to_judge():
    detector = Detector(4)
    rows = StepRows(groups=(), gradients=np.zeros((0, 4, 8)), momentum=None)
    seen = detector.observe(rows)
    assert seen.clean
    assert seen.norms == (None,) * 4


def test_coarse_limits_hold_from_the_first_step():
    world = Simulated(4, seed=6)
    g = world.honest()
    g[:, BAD] *= 30
    seen = world.observe(g)
    assert seen.learning
    assert seen.gross == (BAD,)


# -- probation -------------------------------------------------------------------------------------


def test_a_fault_that_is_over_comes_back_and_a_lasting_one_does_not():
    world = Simulated(8, seed=7)
    seen = world.run(300, times(3), start=50, stop=80)
    (named,) = [i for i, a in enumerate(seen) if a.newly_named]
    (back,) = [i for i, a in enumerate(seen) if a.readmitted]
    assert 50 < named < 60
    assert 30 + 50 < back - 50 + 30 < 160
    assert all(BAD in a.named for a in seen[named:back])
    again = world.run(200, times(3))
    assert not any(a.readmitted for a in again), "twice as long, and always new evidence"


def test_three_ranks_give_evidence_and_exclude_nobody():
    seen = Simulated(3, seed=8).run(140, times(3), start=60)
    assert max(a.evidence[BAD] for a in seen) >= seen[-1].limit
    assert any(a.undecided for a in seen[60:])
    assert not any(a.named for a in seen)
    assert not any(a.undecided for a in seen[:60])


def test_at_most_a_third_is_ever_excluded():
    def three(g, world):
        g[:, 1:4] *= 3

    seen = Simulated(8, seed=9).run(200, three, start=60)
    assert max(len(a.named) for a in seen) == 2
    assert any(a.undecided for a in seen)
    assert all(set(a.named) <= {1, 2, 3} for a in seen)


# -- copies ----------------------------------------------------------------------------------------


def test_who_copies_an_honest_rank_gives_no_evidence():
    def copies(g, world):
        g[:, 1] = g[:, 4]

    seen = Simulated(8, seed=10).run(100, copies, start=30)
    assert all(a.copies == ((1, 4),) for a in seen[30:])
    assert not any(a.named or a.undecided for a in seen)
    assert not any(a.copies for a in seen[:30])


def test_two_ranks_that_tell_one_lie_are_both_named():
    def same(g, world):
        rest = np.delete(g, [1, 4], axis=1)
        g[:, 1] = g[:, 4] = rest.mean(axis=1) - 1.5 * rest.std(axis=1)

    assert Simulated(8, seed=11).run(120, same, start=50)[-1].named == (1, 4)


def test_with_too_few_others_copies_are_evidence_of_nothing():
    def copies(g, world):
        g[:, 1] = g[:, 2] = -3 * g[:, 2]

    seen = Simulated(4, seed=12).run(60, copies, start=30)
    assert all(a.copies == ((1, 2),) for a in seen[30:])
    assert not any(a.named for a in seen)


def test_ranks_with_the_same_batch_are_no_copies_and_not_odd():
    for ranks in (2, 4):
        world = Simulated(ranks, seed=13)
        for _ in range(80):
            g = world.honest()
            g[:] = g[:, :1] * (1 + 1e-7 * world.draw(1, ranks, 1))
            seen = world.observe(g)
            assert seen.clean
            assert seen.copies == ()


# -- data of their own -----------------------------------------------------------------------------


def test_lasting_offsets_of_domains_are_learned_and_new_ones_named():
    world = Simulated(8, seed=14, data=GradientData.PER_RANK, budget=100.0)
    world.offsets = 0.7 * world.draw(6, 8, 64)
    assert all(a.clean for a in world.run(300))
    seen = world.run(60, times(-3))
    assert seen[-1].named == (BAD,)
    assert not any(set(a.named) - {BAD} for a in seen)


def test_ranks_with_their_own_data_are_learned_about_for_longer():
    world = Simulated(4, groups=2, k=8, seed=14, data=GradientData.PER_RANK)
    learning = [a.learning for a in world.run(165)]
    assert all(learning[:160])
    assert not any(learning[160:])


def test_the_same_offsets_are_named_where_data_should_be_shuffled():
    world = Simulated(8, seed=14)
    world.offsets[:, BAD] = 2 * world.draw(6, 64)
    assert world.run(100)[-1].named == (BAD,)


# -- two ranks, and one ----------------------------------------------------------------------------


@pytest.mark.parametrize("attack", [flip, times(-5), zero])
def test_two_ranks_refuse_without_always_naming(attack):
    world = Simulated(2, noise=0.5, seed=15)
    assert all(a.clean for a in world.run(80))
    global_bad, seen = 1, []
    for _ in range(5):
        g = world.honest()
        bent = np.repeat(g, 2, axis=1)
        attack(bent, world)
        g[:, global_bad] = bent[:, BAD]
        seen.append(world.observe(g))
    assert all(a.pair for a in seen)
    assert all(set(a.gross) <= {1} for a in seen), "never the honest one"
    assert seen[0].gross == (() if attack is flip else (1,))


def test_of_two_ranks_that_both_leave_their_past_neither_is_named():
    world = Simulated(2, noise=0.5, seed=15)
    world.run(80)
    g = world.honest()
    g[:, 0] *= 30
    g[:, 1] *= 1e4
    seen = world.observe(g)
    assert seen.pair
    assert seen.gross == ()


def test_one_rank_alone_knows_only_its_past():
    detector = Detector(1)

    def observe(norm):
        return detector.observe(
            StepRows(groups=("all",), gradients=np.array([[[norm]]]), momentum=None)
        )

    generator = np.random.default_rng(0)
    for step in range(200):
        jitter = generator.standard_normal()
        assert not observe(5 * math.exp(-step / 60 + 0.2 * jitter) + 0.5).spike
    assert observe(40.0).spike
    assert not observe(0.7).spike
    assert observe(0.0).spike
    assert observe(math.nan).not_finite == (0,)


def test_a_norm_that_changes_for_good_is_learned():
    detector = Detector(1)
    rows = [
        StepRows(groups=("all",), gradients=np.full((1, 1, 1), value), momentum=None)
        for value in [1.0] * 30 + [30.0] * 60
    ]
    spikes = [detector.observe(one).spike for one in rows]
    assert spikes[30]
    assert not any(spikes[:30])
    assert not any(spikes[-20:])


def test_all_ranks_together_spike_and_nobody_is_named():
    world = Simulated(4, seed=16)
    world.run(60)
    seen = world.observe(100 * world.honest())
    assert seen.spike
    assert seen.excluded == ()


def test_one_gross_rank_among_gradients_that_all_leap_is_the_cause_and_no_spike():
    world = Simulated(4, seed=16)
    world.run(60)
    table = 100 * world.honest()
    table[:, BAD] *= 1000
    seen = world.observe(table)
    assert seen.gross == (BAD,)
    assert not seen.spike


# -- the rest --------------------------------------------------------------------------------------


def test_a_smaller_budget_needs_more_evidence():
    delays = []
    for budget in (1e4, 20.0, 0.01):
        seen = Simulated(4, seed=17, budget=budget).run(100, flip, start=40)
        delays.append(next(i for i, a in enumerate(seen) if BAD in a.named))
    assert delays == sorted(delays)
    assert delays[0] < delays[2]


def test_the_policy_says_budget_and_data():
    detector = Detector.of(4, Gradients(data=GradientData.PER_RANK))
    rows = StepRows(groups=(), gradients=np.zeros((0, 4, 8)), momentum=None)
    assert detector.observe(rows).limit == pytest.approx(math.log(1e4), abs=1e-3)
    assert detector.observe(rows).learning


def test_a_table_of_another_group_is_refused():
    rows = StepRows(groups=("a",), gradients=np.zeros((1, 4, 8)), momentum=None)
    refused(ValueError, "for 1 groups and 3 ranks", Detector(3).observe, rows)


def test_a_lying_majority_is_the_stated_limit():
    def most(g, world):
        g[:, 1:] *= -1

    seen = Simulated(4, seed=18, noise=0.5).run(100, most, start=60)
    assert seen[-1].named == (0,)


# -- somebody --------------------------------------------------------------------------------------


def rotating(g, world):
    g[:, world.step % g.shape[1]] *= -1


@pytest.mark.parametrize("ranks", [4, 8])
def test_a_rotating_liar_is_not_named_and_somebody_is_said_to_lie(ranks):
    world = Simulated(ranks, seed=30)
    assert not any(a.undecided for a in world.run(130))
    seen = world.run(60, rotating)
    assert any(a.undecided and a.somebody >= a.limit for a in seen)
    assert not any(a.excluded for a in seen)


def test_nothing_is_said_about_somebody_while_there_is_no_past():
    seen = Simulated(4, seed=31).run(48, rotating)
    assert {a.somebody for a in seen} == {0.0}


def test_somebody_is_learned_of_whole_steps_alone():
    """Not while domains are unknown, nor from a step in which too few are left to compare with."""
    world = Simulated(4, seed=31, data=GradientData.PER_RANK)
    world.run(30)
    assert not world.detector._somebody.waiting
    world = Simulated(4, seed=31)
    world.run(30)
    seen = len(world.detector._somebody.waiting)
    assert seen == 30
    g = world.honest()
    g[:, 1] = g[:, BAD]  # a copy: two are left
    world.observe(g)
    g = world.honest()
    g[:, BAD] *= 50
    assert world.observe(g).gross == (BAD,)
    assert len(world.detector._somebody.waiting) == seen
    world.observe(world.honest())
    assert len(world.detector._somebody.waiting) == seen + 1


def test_who_is_named_is_not_somebody():
    seen = Simulated(8, seed=32).run(170, times(-3), start=120)
    first = next(i for i, a in enumerate(seen) if a.named)
    assert seen[-1].named == (BAD,)
    assert not any(a.undecided or a.somebody for a in seen[first:])


# -- checkpoints -----------------------------------------------------------------------------------


def through_json(state):
    return msgspec.json.decode(msgspec.json.encode(state), type=DetectorState)


@pytest.mark.parametrize("data", GradientData)
def test_a_state_survives_json_and_goes_on_where_it_was(data):
    world = Simulated(4, seed=20, data=data)
    world.run(40 if data is GradientData.SHUFFLED else 175, times(3), start=30)
    other = Detector(4, data=data)
    assert other.restart(through_json(world.detector.state()))
    assert other.state() == world.detector.state()
    g = world.honest()
    rows = StepRows(groups=world.names, gradients=g, momentum=None)
    old, new = world.detector.observe(rows), other.observe(rows)
    assert new.named == old.named
    assert new.evidence == pytest.approx(old.evidence, abs=0.2)
    assert new.peak == old.peak
    assert (BAD in new.named) is (data is GradientData.SHUFFLED)


def test_the_state_of_a_pair_and_of_one_rank():
    for ranks in (1, 2):
        world = Simulated(ranks, seed=21, noise=0.5)
        world.run(60)
        other = Detector(ranks)
        assert other.restart(through_json(world.detector.state()))
        rows = StepRows(groups=world.names, gradients=50 * world.honest(), momentum=None)
        assert other.observe(rows).spike


@pytest.mark.parametrize(
    "change",
    [{"ranks": 5}, {"version": 1}, {"data": GradientData.PER_RANK}, {"series": {}}],
    ids=str,
)
def test_a_state_of_another_kind_is_learned_anew(change):
    world = Simulated(4, seed=22)
    world.run(40, times(3), start=20)
    state = msgspec.structs.replace(world.detector.state(), **change)
    other = Detector(4)
    assert not other.restart(state)
    assert other.state() == Detector(4).state()


def of_evidence(**change):
    return lambda state: msgspec.structs.replace(
        state, evidence=msgspec.structs.replace(state.evidence, **change)
    )


def of_probation(*records):
    return lambda state: msgspec.structs.replace(state, probation=list(records))


@items(
    "change, word",
    (of_evidence(cusum="AAAA"), "3 bytes"),
    (of_evidence(cusum="?"), "not base64"),
    (of_evidence(groups=["layers.0"] * 6), "twice"),
    (of_evidence(groups=["layers.0"]), "shape"),
    (of_evidence(pool=packed(np.full((10, 8, 4, 1), -1.0))), "no detector has"),
    (of_evidence(count=packed(np.full((8, 4, 1), np.nan))), "no detector has"),
    (of_probation(*[Served(rank=one, term=50) for one in (1, 2)]), "2 ranks on probation"),
    (of_probation(*[Served(rank=1, term=50)] * 2), "on probation"),
    (of_probation(Served(rank=4, term=50)), "not one of 4"),
    (lambda state: msgspec.structs.replace(state, peak=math.nan), "cannot be nan"),
    (lambda state: msgspec.structs.replace(state, peak=-1.0), "cannot be -1"),
    (lambda state: msgspec.structs.replace(state, peak=math.inf), "cannot be inf"),
)
def test_a_state_that_contradicts_itself_is_refused(change, word):
    world = Simulated(4, seed=23)
    world.run(5)
    refused(ValueError, word, Detector(4).restart, change(world.detector.state()))


def test_a_step_can_be_taken_back():
    world = Simulated(4, seed=24)
    world.run(40)
    before = world.detector.snapshot()
    state = world.detector.state()
    g = world.honest()
    g[:, BAD] *= 50
    rows = StepRows(groups=(*world.names[:-1], "another"), gradients=g, momentum=None)
    first = world.detector.observe(rows)
    assert world.detector.state() != state
    world.detector.rewind(before)
    assert world.detector.state() == state
    assert world.detector.observe(rows) == first
    world.detector.rewind(before)
    assert world.detector.state() == state, "the snapshot is not used up"
