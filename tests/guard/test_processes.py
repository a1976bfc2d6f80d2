# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Real ranks: four gloo processes are started once and run every scenario of workers.py."""

import math
from pathlib import Path

import msgspec
import pytest
from torch import nn

from securetrain.guard.guard import GradientGuard
from securetrain.guard.guard_state import GuardState
from securetrain.guard.verdict import StepRecord
from securetrain.policy.schema import Gradients
from tests.scenarios import run_scenarios

pytestmark = [pytest.mark.dist, pytest.mark.slow]
SIZE = 4
ATTACK = [8, 9]


@pytest.fixture(scope="module")
def seen():
    return run_scenarios(Path(__file__).with_name("workers.py"), SIZE, timeout=250)


def refused(verdicts):
    return [v for v in verdicts if not v["ok"]]


@pytest.mark.parametrize("kind", ["fsdp", "ddp"])
@pytest.mark.parametrize("draws", ["one draw", "many draws"])
def test_guarded_training_is_bit_for_bit_the_unguarded(seen, kind, draws):
    for result in seen:
        case = result[f"equal {kind}"][draws]
        assert case["losses"]
        assert case["parameters"]
        assert case["refused"] == 0
        assert case["integrity"] < 0.9
        assert (case["batches"] == 1) == (draws == "one draw")
        record = msgspec.json.decode(case["lines"][0], type=StepRecord)
        assert record.world_size == SIZE
        # 1 KiB for each part, three for each of three groups, and one more.
        assert record.sent_bytes < 1024 * (SIZE + 3 * 3 + 2)


@pytest.mark.parametrize("kind", ["fsdp", "ddp"])
def test_a_sign_flip_is_named_and_its_steps_are_skipped(seen, kind):
    for result in seen:
        case = result[f"flip {kind}"]
        # The plain stack averages it in: the loss rises instead of falling.
        assert case["plain"][1] > case["plain"][0]
        assert case["plain"][1] > case["guarded"][1] + 0.5
        assert case["guarded"][1] < case["guarded"][0] - 0.3
        (bad,) = refused(case["verdicts"])
        assert bad["step"] == ATTACK[0]
        assert bad["codes"] == ["ST-GRAD-002"]
        assert bad["outliers"] == bad["newly_excluded"] == [2]
        assert bad["attributed"]
        assert bad["response"] == "skip-step"
        assert all(v["excluded"] == [2] for v in case["verdicts"][ATTACK[1] :])
        assert case["totals"] == {
            "judged": 14,
            "calibrating": 14,
            "refused": 1,
            "refused_in_a_row": 0,
            "hopeless_in_a_row": 0,
            "settled": 0,
            "without": 5,
            "rolled_back": 0,
        }


@pytest.mark.parametrize("kind", ["fsdp", "ddp"])
def test_a_poisoned_sample_is_named_before_it_spreads(seen, kind):
    for result in seen:
        case = result[f"nan {kind}"]
        assert not case["plain_finite"], "one NaN on one rank ruins every parameter"
        assert math.isnan(case["plain"][1])
        assert case["finite"]
        (bad,) = refused(case["verdicts"])
        assert bad["step"] == ATTACK[0]
        assert bad["codes"] == ["ST-GRAD-001"]
        assert bad["outliers"] == [2]
        assert [s["finite"] for s in bad["table"]] == [True, True, False, True]
        assert bad["table"][2]["norm"] is None
        assert not case["verdicts"][ATTACK[1]]["table"][2]["finite"], "it is looked at further on"


def test_all_ranks_decide_the_same(seen):
    for name, case in seen[0].items():
        others = [result[name] for result in seen[1:]]
        if name.startswith("told another table, late"):
            assert all(other[13:] == case[13:] for other in others), "nothing of it was learned"
        elif name == "told another table":  # the rank that was told otherwise saw it otherwise
            parts = [[(v["codes"], v["step"]) for v in c] for c in (case, *others)]
            assert all(part == parts[0] for part in parts)
            assert all(other[12:] == case[12:] for other in others), "nothing of it was learned"
        elif isinstance(case, list):
            assert all(other == case for other in others), name
        elif "verdicts" in case:
            assert all(other["verdicts"] == case["verdicts"] for other in others), name
            assert all(other["state"] == case["state"] for other in others), name


def test_the_state_is_plain_json(seen):
    state = seen[0]["flip fsdp"]["state"]
    (piece,) = msgspec.convert(state, GuardState).pieces
    assert piece.ranks == tuple(range(SIZE))
    assert piece.detector.ranks == SIZE
    guard = GradientGuard(None, Gradients())
    guard.load_state_dict(state)  # one rank now: totals go on, thresholds are learned anew
    guard.attach(nn.Linear(2, 2))
    assert guard.totals.refused == 1
    assert guard.state_dict()["pieces"][0]["detector"]["steps"] == 0


@pytest.mark.parametrize("name", ["tampered shard", "tampered copy"])
def test_a_tampered_reduction_is_found_and_done_again(seen, name):
    bad = refused(seen[0][name])
    assert [v["step"] for v in bad] == [11]
    assert bad[0]["codes"] == ["ST-GRAD-003"]
    assert "this does not show which" in bad[0]["reason"]
    assert "rank 3" not in bad[0]["reason"]
    assert bad[0]["settled"]
    assert bad[0]["response"] == "exclude-rank"
    assert bad[0]["integrity"] > 10
    assert not bad[0]["attributed"]
    assert bad[0]["outliers"] == []


@pytest.mark.parametrize("name", ["lying sketch", "lying sketch, two keys"])
def test_a_rank_that_sketches_something_else_is_found(seen, name):
    bad = refused(seen[0][name])
    assert [v["step"] for v in bad] == ATTACK
    assert all(v["codes"] == ["ST-GRAD-003"] for v in bad)


def test_a_rank_that_was_told_another_table_goes_by_that_of_most(seen):
    for rank, result in enumerate(seen):
        verdicts = result["told another table"]
        assert not refused(verdicts), rank
        assert [v["step"] for v in verdicts if v["disputes"]] == [11]
        assert verdicts[11]["disputes"] == [[0, 1]], "the one told it, or the other says so"
        assert not any(v["outliers"] or v["newly_excluded"] for v in verdicts)
        assert ("told otherwise" in verdicts[11]["reason"]) == (rank == 1)


def test_a_rank_that_does_not_open_its_commitment_is_named(seen):
    bad = refused(seen[0]["broken commitment"])
    # What it revealed is its commitment from then on; it is excluded by then.
    assert [v["step"] for v in bad] == [7]
    assert all(v["codes"] == ["ST-GRAD-004"] and v["outliers"] == [2] for v in bad)
    assert bad[0]["newly_excluded"] == [2]


def test_what_the_guard_would_not_see_is_refused(seen):
    assert seen[0]["refusals"] == dict.fromkeys(seen[0]["refusals"], "ST-GRAD-006")
    assert len(seen[0]["refusals"]) == 9


def test_accumulation_narrow_reduction_and_observe_change_nothing(seen):
    for result in seen:
        others = result["others"]
        assert others["micro fsdp"] == [True, 0]
        assert others["micro ddp"] == [True, 0]
        assert others["bf16"] == [True, 0]
        assert others["bucket view"] == [True, 0]
        assert others["observe"] == [True, 2], "observed, refused twice, and applied"


def test_a_policy_that_says_so_halts_at_once(seen):
    first = seen[0]["others"]["halt"][0]
    assert first["response"] == "halt"
    assert first["codes"] == ["ST-GRAD-002", "ST-GRAD-005"]
    assert first["excluded"] == []


def test_a_refusal_reaches_the_other_pieces_of_a_replica(seen):
    # Ranks 0 and 2 hold one piece of the model, 1 and 3 the other; rank 2 is poisoned.
    for rank, result in enumerate(seen):
        verdicts = result["others"]["peers"]
        (bad,) = refused(verdicts)
        assert bad["step"] == ATTACK[0]
        assert bad["codes"] == ["ST-GRAD-001"], rank
        assert bad["outliers"] == bad["newly_excluded"] == [2], rank
        assert verdicts[ATTACK[1]]["excluded"] == [2], "of two ranks one that says so of itself"
