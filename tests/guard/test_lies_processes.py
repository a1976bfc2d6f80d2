# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Lies drawn at random, told in real groups; and two liars who cover for each other."""

import re

import pytest

from securetrain.testing.processes import run_ranks
from tests.guard import lies
from tests.guard.drawn import LIAR, SIZE

pytestmark = [pytest.mark.dist, pytest.mark.many]
PAIR = (LIAR, 4)
SIX = 6


def campaign(kind, seeds):
    lies.quiet()
    lost = [lies.START, lies.START + 1]
    found = {
        "clean": lies.train(kind, lies.SETTINGS),
        "oracle": lies.train(kind, None, without=LIAR, drop=lost),
    }
    for seed in seeds:
        name, lying = lies.drawn(seed, kind)
        found[f"{seed}: {name}"] = lies.train(kind, lies.SETTINGS, lie=lying)
    for result in found.values():
        result.pop("grads", None)
    return found


def named(verdict, liars, ranks):
    """Honest ranks in any field or sentence."""
    said = {*verdict["outliers"], *verdict["excluded"], *verdict["newly_excluded"]}
    said |= {int(number) for number in re.findall(r"rank (\d+)", verdict["reason"])}
    said |= {pair[0] for pair in verdict["disputes"] if not {*pair} & {*liars}}
    return said & ({*range(ranks)} - {*liars})


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_twenty_drawn_lies_neither_halt_a_run_nor_name_another(kind):
    results = run_ranks(campaign, SIZE, kind, range(20), timeout=1400)
    for rank, found in enumerate(results):
        if rank == LIAR:
            continue
        most = 1.01 * max(found[name]["held_out"] for name in ("clean", "oracle"))
        for name, result in found.items():
            if name == "oracle":
                continue
            verdicts = result["verdicts"]
            assert len(verdicts) == lies.STEPS, (rank, name)
            lost = [v["step"] for v in verdicts if v["response"] == "skip-step"]
            assert len(lost) <= 2, (rank, name, [v["reason"] for v in verdicts])
            assert all(v["response"] != "halt" for v in verdicts), (rank, name)
            for verdict in verdicts:
                assert not named(verdict, (LIAR,), SIZE), (rank, name, verdict["reason"])
            assert result["finite"], (rank, name)
            assert result["held_out"] < most, (rank, name)


def pair(large):
    lies.quiet()
    lying = lies.against_each_other(large)
    found = {
        "guarded": lies.train("fsdp", lies.SETTINGS, lie=lying, liars=PAIR),
        "observed": lies.train("fsdp", lies.OBSERVE, lie=lying, liars=PAIR),
        "clean": lies.train("fsdp", lies.SETTINGS),
        "before": lies.train("fsdp", None, drop=range(lies.START, lies.STEPS)),
    }
    for result in found.values():
        result.pop("grads", None)
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("large", [1.0, 1e3, 1.5e7])
def test_two_liars_of_six_cannot_switch_the_check_off(large):
    """What they add and take away from the rows of a part moves no limit. Of six ranks one may be
    left out: two are named, no step of theirs is used, and the run ends.
    """
    for rank, found in enumerate(run_ranks(pair, SIX, large, timeout=500)):
        bad = found["observed"]["verdicts"][lies.START :]
        assert not any(v["ok"] for v in bad), "the lie is seen in every step"
        assert found["observed"]["held_out"] > 1.1 * found["clean"]["held_out"], "and does harm"
        verdicts = found["guarded"]["verdicts"]
        for verdict in verdicts:
            assert not named(verdict, PAIR, SIX), (rank, verdict["reason"])
        used = [v for v in verdicts[lies.START :] if v["response"] not in {"skip-step", "halt"}]
        assert all(v["settled"] or v["excluded"] for v in used), "the lie is not used"
        assert verdicts[-1]["response"] == "halt"
        assert verdicts[-1]["outliers"] == list(PAIR)
        assert found["guarded"]["held_out"] < 1.01 * found["before"]["held_out"], "nor does harm"
