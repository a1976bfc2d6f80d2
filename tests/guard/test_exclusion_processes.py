# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One bad rank of four: the run goes on without it, loses two steps at most, and names nobody else.

The control for each fault is the same training without the guard, or a guard that only observes.
"""

import math
from typing import Any

import pytest

from securetrain.testing.processes import run_ranks
from tests.guard import lies

pytestmark = [pytest.mark.dist, pytest.mark.slow]
SIZE, LIAR, START = 4, lies.LIAR, lies.START
HUGE = 3e38
FAULTS = {
    "nan": lambda step: math.nan,
    "huge": lambda step: (HUGE, -HUGE, math.inf)[step % 3],
    "flip": lambda step: -40.0,
}


EVERY_DAY = {"ddp": ("nan", "huge"), "fsdp": ("nan", "flip")}
"""The other faults of each kind of group are `many`."""


def trained(kind, names):
    """What each of these faults does, with the guard and without, and runs without that rank."""
    lies.quiet()
    found: dict[str, Any] = {
        "oracle": lies.train(kind, None, without=LIAR),
        "oracle, one step less": lies.train(kind, None, without=LIAR, drop=[START]),
    }
    for name in names:
        found[name] = lies.train(kind, lies.SETTINGS, factor=FAULTS[name])
        found[f"{name}, plain"] = lies.train(kind, None, factor=FAULTS[name])
    return found


def faults(kind):
    """The faults of every day, and a step that is reduced again without the rank."""
    found = trained(kind, EVERY_DAY[kind])
    found["exclude"] = lies.train(kind, lies.EXCLUDE, factor=FAULTS["nan"])
    if kind == "ddp":  # whose gradients can be views of its buckets
        found["views"] = lies.train(kind, lies.EXCLUDE, factor=FAULTS["nan"], views=True)
    short: Any = {"steps": START + 1, "keep_grads": True}
    mean = lies.train(kind, None, without=LIAR, **short)["grads"][START]
    seen = lies.train(kind, lies.EXCLUDE, factor=FAULTS["nan"], **short)["grads"][START]
    found["mean"] = [
        float((a - b).abs().max() / a.abs().max()) for a, b in zip(mean, seen, strict=True)
    ]
    return found


@pytest.fixture(scope="module", params=[pytest.param("ddp", marks=pytest.mark.many), "fsdp"])
def seen(request):
    return request.param, run_ranks(faults, SIZE, request.param, timeout=200)


def test_a_persistent_fault_costs_two_steps_at_most(seen):
    kind, results = seen
    for fault in EVERY_DAY[kind]:
        costs_two_steps(results, fault)


@pytest.mark.many
@pytest.mark.parametrize(("kind", "fault"), [("ddp", "flip"), ("fsdp", "huge")])
def test_so_does_the_other_fault(kind, fault):
    costs_two_steps(run_ranks(trained, SIZE, kind, [fault], timeout=200), fault)


def costs_two_steps(results, fault):
    for found in results:
        control, guarded = found[f"{fault}, plain"], found[fault]
        oracle = found["oracle, one step less"]
        assert not control["finite"] or control["held_out"] > 1.2 * oracle["held_out"]
        assert guarded["finite"]
        assert guarded["held_out"] == pytest.approx(oracle["held_out"], rel=1e-4)
        verdicts = guarded["verdicts"]
        lost = [v["step"] for v in verdicts if v["response"] == "skip-step"]
        assert lost == [START]
        assert verdicts[START]["outliers"] == [LIAR]
        assert verdicts[START]["newly_excluded"] == [LIAR]
        for verdict in verdicts[START + 1 :]:
            assert verdict["ok"], "evidence against who is excluded already refuses nothing"
            assert verdict["excluded"] == [LIAR]
            assert verdict["outliers"] == []
        assert guarded["totals"]["without"] == lies.STEPS - START - 1


def test_all_ranks_hold_the_same(seen):
    _, results = seen
    for name, found in results[0].items():
        if isinstance(found, dict) and found["verdicts"]:
            for other in results[1:]:
                assert other[name]["verdicts"] == found["verdicts"], name
                assert other[name]["state"] == found["state"], name
                assert other[name]["sum"] == found["sum"], name


def test_a_step_is_reduced_again_without_the_rank(seen):
    """What the optimizer sees is the mean of the others, in the very step of the fault."""
    _, results = seen
    for found in results:
        assert max(found["mean"]) < 1e-5
        for name in {"exclude", "views"} & found.keys():
            guarded = found[name]
            assert guarded["finite"]
            assert [v["response"] for v in guarded["verdicts"]] == (
                ["observe"] * START + ["exclude-rank"] + ["observe"] * (lies.STEPS - START - 1)
            )
            verdict = guarded["verdicts"][START]
            assert verdict["settled"]
            assert verdict["excluded"] == verdict["newly_excluded"] == [LIAR]
            assert guarded["held_out"] == pytest.approx(found["oracle"]["held_out"], rel=0.01)
            assert guarded["totals"]["refused"] == 0


def long_run(kind):
    lies.quiet()
    return [
        lies.train(kind, None, without=LIAR, steps=150)["held_out"],
        lies.train(kind, lies.SETTINGS, factor=FAULTS["nan"], steps=150)["held_out"],
    ]


@pytest.mark.many
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_the_loss_is_that_of_a_run_without_the_rank(kind):
    for oracle, guarded in run_ranks(long_run, SIZE, kind, timeout=300):
        assert guarded == pytest.approx(oracle, rel=0.01)


LIES = {
    "bends a part": (lies.bends_a_part, ("fsdp",)),
    "scales its row": (lies.scales_its_row, ("ddp",)),
    "sends other than it says": (lies.sends_other_than_it_says, ("ddp",)),
    "tells another hash": (lies.tells_another_hash, ("ddp", "fsdp")),
}


def liars(kind):
    lies.quiet()
    found = {
        "clean": lies.train(kind, lies.SETTINGS),
        "oracle": lies.train(kind, None, without=LIAR, drop=[START]),
    }
    for name, (lie, kinds) in LIES.items():
        if kind in kinds:
            found[name] = lies.train(kind, lies.SETTINGS, lie=lie)
            found[f"{name}, observed"] = lies.train(kind, lies.OBSERVE, lie=lie, steps=START + 2)
    return found


@pytest.fixture(scope="module", params=["ddp", pytest.param("fsdp", marks=pytest.mark.many)])
def lied(request):
    return request.param, run_ranks(liars, SIZE, request.param, timeout=200)


@pytest.mark.parametrize("name", LIES)
def test_a_liar_neither_halts_the_run_nor_gets_another_named(lied, name):
    kind, results = lied
    if kind not in LIES[name][1]:
        pytest.skip("not a lie of this kind of group")
    for rank, found in enumerate(results):
        control = found[f"{name}, observed"]["verdicts"]
        assert all(not v["ok"] for v in control[START:]), "the lie is seen in every step"
        guarded = found[name]
        lost = [v["step"] for v in guarded["verdicts"] if v["response"] == "skip-step"]
        assert len(lost) <= 2, (rank, lost)
        assert all(v["response"] != "halt" for v in guarded["verdicts"])
        for verdict in guarded["verdicts"]:
            assert set(verdict["outliers"]) <= {LIAR}
            assert set(verdict["excluded"]) <= {LIAR}
            for honest in (0, 1, 3):
                assert f"rank {honest}" not in verdict["reason"], verdict["reason"]
        assert guarded["held_out"] < 1.01 * max(found[n]["held_out"] for n in ("clean", "oracle"))


def everybody():
    """All ranks at once: nobody is named, and the cause is looked for upstream."""
    lies.quiet()
    return lies.train(
        "ddp", lies.SETTINGS, factor=lambda step: math.nan, liars=range(SIZE), steps=START + 6
    )


def test_when_all_are_not_finite_nobody_is_named():
    for found in run_ranks(everybody, SIZE, timeout=100):
        bad = found["verdicts"][START:]
        for verdict in bad:
            assert verdict["outliers"] == verdict["excluded"] == []
            assert "no rank is named, look upstream" in verdict["reason"]
            assert not verdict["attributed"]
        # Nobody can be excluded for it, so these steps are counted, and end the run.
        assert [v["response"] for v in bad] == ["skip-step"] * 4 + ["halt"] * 2
