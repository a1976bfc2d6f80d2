# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Numbers after the verdict: what a rank says about its shard when all clip, and skip steps.

Real ranks run an unmodified fully_shard script under the seams (after_verdict.py).
"""

import math
from typing import Any

import pytest

from securetrain.testing.processes import run_ranks
from tests.guard import after_verdict
from tests.guard.after_verdict import ATTACKS, LIAR, SAMPLE, START

pytestmark = [pytest.mark.dist, pytest.mark.slow]


@pytest.fixture(scope="module")
def seen():
    return run_ranks(after_verdict.few, 4, timeout=280)


@pytest.fixture(scope="module", params=["fsdp", "hsdp"])
def seen_all(request):
    return run_ranks(after_verdict.many, 4, request.param, timeout=580)


def codes(found: dict[str, Any]) -> set[str]:
    return {code for verdict in found["verdicts"] for code in verdict["codes"]}


def lost(found: dict[str, Any]) -> list[int]:
    return [v["step"] for v in found["verdicts"] if v["response"] == "skip-step"]


def assert_named(found: dict[str, Any]) -> None:
    assert found["finite"]
    assert codes(found) == {"ST-GRAD-013"}
    assert lost(found) == [START + 1]
    first = next(v for v in found["verdicts"] if v["codes"])
    assert first["outliers"] == first["newly_excluded"] == [LIAR]
    assert first["attributed"]
    for verdict in found["verdicts"]:
        assert set(verdict["outliers"]) | set(verdict["excluded"]) <= {LIAR}
    # The norm is that of the shards as they were delivered, whatever the rank says.
    assert max(found["norms"]) < 2.0


def test_without_the_seams_one_shard_ruins_all_weights(seen):
    for found in seen:
        assert not found["nan, plain"]["finite"]


def test_a_norm_that_the_shard_contradicts_names_its_owner_and_ruins_nothing(seen):
    for found in seen:
        assert_named(found["nan"])


def test_a_smaller_lie_is_corrected_and_named_in_the_fourth_step(seen):
    for found in seen:
        case = found["says times 5"]
        assert codes(case) == {"ST-GRAD-013"}
        after = [v for v in case["verdicts"] if v["codes"]]
        assert [v["outliers"] for v in after] == [[], [], [], [LIAR]]
        assert not any(v["attributed"] for v in after[:3])
        assert max(case["norms"]) < 2.0


def test_a_step_goes_on_without_the_shard_where_the_policy_says_so(seen):
    for found in seen:
        case = found["exclude"]
        assert case["finite"]
        assert lost(case) == []
        first = next(v for v in case["verdicts"] if v["codes"])
        assert first["settled"]
        assert first["newly_excluded"] == [LIAR]


def test_a_flag_does_not_stall_the_run_and_names_its_owner(seen):
    for found in seen:
        case = found["inf, scaled"]
        assert case["finite"]
        assert codes(case) == {"ST-GRAD-013"}
        assert lost(case) == [START + 1]
        assert next(v for v in case["verdicts"] if v["codes"])["outliers"] == [LIAR]
        assert case["scale"] == 1024.0, "no rank's flag moves the scale"


def test_an_honest_run_that_clips_computes_the_same_bits(seen):
    for found in seen:
        assert found["scaled"]["losses"] == found["scaled, plain"]["losses"]
        assert found["scaled"]["norms"] == found["scaled, plain"]["norms"]
        assert not codes(found["scaled"])


def test_all_ranks_decide_alike(seen):
    for other in seen[1:]:
        for name in (*SAMPLE, "exclude", "inf, scaled"):
            assert other[name]["verdicts"] == seen[0][name]["verdicts"], name
            assert other[name]["norms"] == seen[0][name]["norms"], name


@pytest.mark.many
@pytest.mark.parametrize("name", ATTACKS)
def test_every_lie_is_found_or_corrected(seen_all, name):
    for found in seen_all:
        case = found[name]
        assert case["finite"]
        assert codes(case) == {"ST-GRAD-013"}
        assert len(lost(case)) <= 1
        assert {r for v in case["verdicts"] for r in v["outliers"]} <= {LIAR}
        assert max(case["norms"]) < 4.0
    # Where shards have copies, the others of its own replica clip by it.
    assert max(seen_all[LIAR]["huge, plain"]["norms"]) > 1e17


@pytest.mark.many
def test_other_scripts_are_left_alone(seen_all):
    for found in seen_all:
        assert found["clean"]["losses"] == found["clean, plain"]["losses"]
        assert not codes(found["clean"])
        for order in (1.0, 3.0, math.inf):
            honest = found[f"order {order}"]
            assert honest["norms"] == found[f"order {order}, plain"]["norms"]
            assert not codes(honest)
            poisoned = found[f"order {order}, nan"]
            assert poisoned["finite"]
            assert codes(poisoned) == {"ST-GRAD-013"}
        # A script that divides all gradients by its tokens lies to nobody.
        assert not codes(found["tokens"])
        assert_named(found["tokens, huge"])
        assert not found["observe"]["finite"]
        assert codes(found["observe"]) >= {"ST-GRAD-013"}
        everybody = found["all"]
        assert not {r for v in everybody["verdicts"] for r in v["outliers"]}


@pytest.mark.many
def test_a_norm_that_a_trainer_computes_itself_is_bound_too():
    plain = run_ranks(after_verdict.by_hand, 4, False, timeout=200)
    for without, found in zip(
        plain,
        run_ranks(after_verdict.by_hand, 4, True, timeout=200),
        strict=True,
    ):
        steps = after_verdict.STEPS
        assert found["losses"][: steps - 1] == without["losses"][: steps - 1]
        assert found["seconds"] == [None] * (steps - 2) + [[LIAR], None]
        assert found["finite"]


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("fsdp1, original parameters", ("nan",)),
        pytest.param("fsdp1, original parameters", tuple(ATTACKS), marks=pytest.mark.many),
        pytest.param("fsdp1", tuple(ATTACKS), marks=pytest.mark.many),
    ],
)
def test_norms_and_flags_of_fsdp1_are_bound_too(kind, names):
    for rank, found in enumerate(run_ranks(after_verdict.few_flat, 4, kind, names, timeout=580)):
        assert rank == LIAR or not found["nan, plain"]["finite"]
        for honest in ("order 2.0", "order 1.0", "order inf", "scaled"):
            assert found[honest]["losses"] == found[f"{honest}, plain"]["losses"]
            assert found[honest]["norms"] == found[f"{honest}, plain"]["norms"]
            assert not codes(found[honest])
        for name in names:
            case = found[name]
            assert case["finite"]
            assert codes(case) == {"ST-GRAD-013"}
            assert len(lost(case)) <= 1
            assert {r for v in case["verdicts"] for r in v["outliers"]} <= {LIAR}
            assert max(case["norms"]) < 4.0
        assert_named(found["nan"])
        flagged = found["inf, scaled"]
        assert flagged["finite"]
        assert codes(flagged) == {"ST-GRAD-013"}
        assert flagged["scale"] == 1024.0
        assert next(v for v in flagged["verdicts"] if v["codes"])["outliers"] == [LIAR]
