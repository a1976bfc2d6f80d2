# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Attacks replayed on the gradients of a real training: a sample; the study is marked many."""

import sys

import pytest
import torch

from securetrain.guard.detector import Detector
from securetrain.guard.response import Findings
from securetrain.guard.verdict import Totals
from securetrain.policy.load import load_policy
from securetrain.policy.schema import GuardResponse
from tests.guard.replay import ATTACKS, BOTH, GUILTY, Training, replay, summary

NORM_CHANGES = [
    *("x3", "x-3", "gaussian", "alie.5", "alie1", "alie1.5", "min-max", "min-sum"),
    *("ipm.5", "ipm1.5", "drift.5", "drift.25", "null", "matched"),
]
TURNS = ["flip"]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_liars_of_a_real_training_are_named_alone():
    names = ["clean", "x-3", "alie1.5", "null", "matched", "flip", "rotating"]
    worlds = replay(Training(4, 0, 75), names, start=45)
    rotated = summary(worlds.pop("rotating"))
    assert rotated["undecided"] is not None, rotated
    assert rotated["honest"] == 0, rotated
    for name, world in worlds.items():
        found = summary(world)
        assert found["honest"] == 0, (name, found)
        if name != "clean":
            assert found["first"] <= 25, (name, found)
            assert found["exact"] == 1.0, (name, found)
            assert world.seen[-1].named == (GUILTY,)


def test_a_module_that_is_skipped_in_every_second_step_forgets_nothing():
    worlds = replay(Training(4, 1, 70), ["clean", "drift.5"], start=40, skip="layers.2")
    assert summary(worlds["clean"])["honest"] == 0
    assert summary(worlds["drift.5"])["first"] <= 15
    assert worlds["drift.5"].seen[-1].named == (GUILTY,)


@pytest.mark.many
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("ranks", [4, 8])
def test_delays(ranks, seed):
    names = [name for name in ATTACKS if name not in BOTH or ranks >= 8]
    worlds = replay(Training(ranks, seed, 300), names, start=100)
    found = {name: summary(world) for name, world in worlds.items()}
    assert all(one["honest"] == 0 for one in found.values()), found
    delay = {name: one["first"] or 999 for name, one in found.items()}
    late = {name: delay[name] for name in NORM_CHANGES if delay[name] > 12}
    late |= {name: delay[name] for name in TURNS if delay[name] > 25}
    assert late == {}
    assert ranks < 8 or found["two"]["all"] <= 30
    # Of four ranks after 100 steps of a training the cosines are nearly none: 15 to 95 steps.
    assert ranks < 8 or found["rotating"]["undecided"] <= 60
    named = [one["exact"] for name, one in found.items() if name in NORM_CHANGES + TURNS]
    assert min(named) >= 0.99


@pytest.mark.many
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("per_rank", [False, True])
def test_honest_ranks_are_accused_within_the_budget(per_rank):
    # 8 ranks, 4 trainings of 1,600 steps: 51,200 rank-steps, of seeds and files that no rule of the
    # detector was chosen by.
    accused = 0
    for seed in range(140, 144):
        training = Training(8, seed, 1600, per_rank=per_rank, packages=True)
        (world,) = replay(training, ["clean"]).values()
        accused += sum(len(a.newly_named) for a in world.seen)
        sys.stdout.write(f"{training} {summary(world)}\n")
        assert not any(a.spike for a in world.seen)
    assert accused <= (5 if per_rank else 0)


def verdicts(training, policy):
    """The verdicts of a clean training under a policy: its sketches, its decisions; no processes.

    Integrity, which needs what was reduced, is not part of it.
    """
    settings = load_policy(policy).policy.gradients
    (world,) = replay(
        training,
        ["clean"],
        keys=settings.sketch_keys,
        detector=lambda ranks, **_: Detector.of(ranks, settings),
    ).values()
    totals, ranks = Totals(), range(training.ranks)
    for step, assessment in enumerate(world.seen):
        findings = Findings()
        findings.add_assessment(assessment, ranks)
        verdict, totals = findings.verdict(
            step, totals, settings.response, settings.max_refused_steps
        )
        yield verdict


@pytest.mark.many
@pytest.mark.timeout(7200)
def test_an_honest_run_survives_the_hardened_policy():
    training = Training(8, 151, 2000, packages=True)
    seen = list(verdicts(training, "hardened"))
    assert len(seen) == 2000
    # A batch that is honest and four times as long as the others' counts zero in its step.
    assert len([v.step for v in seen if not v.ok]) <= 2
    assert all(v.response is not GuardResponse.HALT for v in seen)
