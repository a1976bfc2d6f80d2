# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Scripts of every kind in three real ranks, as they are and then under the seams (ranks.py)."""

import json
import multiprocessing
import runpy
from pathlib import Path

import pytest

from securetrain.testing.processes import PRELOAD
from tests.tables import items

pytestmark = [pytest.mark.dist, pytest.mark.slow, pytest.mark.timeout(900)]
SIZE = 3
UNWATCHED = {
    "halving": "the script has registered a communication hook of its own",
    "thawed ddp": "a parameter (16x8) was frozen when DDP took the model: it is not reduced",
    "unreduced": "an optimizer steps twice on gradients of Net without a reduction",
    "sparse": "gradients are sparse",
    "unwrapped": "no model was wrapped by DistributedDataParallel or fully_shard",
    "outside": "a parameter (scalar) lies outside of the model that is watched",
    "by hand, forgotten": "the script attached a guard and did not call judge",
    "in backward": "an optimizer steps inside of the backward pass",
    "own reduction": "the script has put another reduce-scatter in place of the guard's",
    "fsdp1 not sharded": "FullyShardedDataParallel (FSDP1) with NO_SHARD is not watched",
    "unknown ddp": "weights change without a step of an optimizer that torch knows",
    "alone": "its group has one rank: there is nothing to compare with",
}
UNWATCHED_MORE = {
    "other buffers": "the script uses set_allocate_memory_from_process_group_for_comm",
    "join": "the ranks have uneven inputs (join)",
    "fsdp1 hooked": "the script has registered a communication hook of its own",
    "power": "the script has registered a communication hook of its own",
    "unknown fsdp": "weights change without a step of an optimizer that torch knows",
    "detached": "weights change without a step of an optimizer that torch knows",
    "unknown, once": "weights change without a step of an optimizer that torch knows",
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    return run_ranks(tmp_path_factory.mktemp("unmodified"), "first")


@pytest.fixture(scope="module")
def seen_more(tmp_path_factory):
    return run_ranks(tmp_path_factory.mktemp("more"), "more")


@pytest.fixture(scope="module")
def seen_compiled(tmp_path_factory):
    return run_ranks(tmp_path_factory.mktemp("compiled"), "compiled")


def run_ranks(out, suite):
    # One server imports torch; the ranks are its forks.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOAD))
    script = str(Path(__file__).with_name("ranks.py"))
    shared = {"SIZE": SIZE, "INIT": str(out / "init"), "OUT": str(out), "SUITE": suite}
    processes = [
        context.Process(
            target=runpy.run_path,
            args=(script, {"RANK": rank, **shared}, "worker"),
        )
        for rank in range(SIZE)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(800)
        if process.is_alive():
            process.kill()
    results = [
        json.loads(path.read_text()) if path.exists() else {"error": "no result"}
        for path in (out / f"rank-{rank}.json" for rank in range(SIZE))
    ]
    for result in results:
        assert "error" not in result, result["error"]
    return results


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "fsdp1"])
def test_one_poisoned_rank_ruins_a_plain_script_without_the_seams(seen, kind):
    for result in seen:
        case = result[f"ruined {kind}"]
        assert not case["finite"]
        assert case["moved"] == [0, 1, 2, 3, 4, 5]
        assert case["judged"] == 0


@items(
    "plain, guarded",
    ("plain ddp", "equal ddp"),
    ("plain fsdp", "equal fsdp"),
    ("plain fsdp1", "equal fsdp1"),
    ("plain fp16", "fp16"),
    ("plain halving", "halving"),
)
def test_a_clean_script_computes_the_same_bits(seen, plain, guarded):
    for result in seen:
        assert result[guarded]["end"] == result[plain]["end"]
        assert result[guarded]["refused"] == 0
        assert (result[guarded]["judged"] == 6) == (guarded != "halving")


@items("script", "ddp", "fsdp", "fsdp clipped", "lbfgs", "no_sync", "fsdp1")
def test_the_poisoned_step_changes_nothing_and_its_rank_is_named(seen, script):
    for result in seen:
        assert_one_step_was_refused(result[script])


@pytest.mark.many
@items(
    "script",
    "ddp closure",
    "accumulated fsdp",
    "two optimizers",
    "conditional fsdp",
    "static graph",
    "nested ddp",
    "fsdp1 clipped",
    "fsdp1 accumulated",
    "fsdp1 flat",
    "foreach",
    "nested fsdp",
    "several reductions",
    "early optimizer",
    "loading",
    "initialized again",
    "ddp clipped",
    "wrapped again",
    "thawed fsdp",
    "two models",
    "conditional ddp",
    "accumulated ddp",
    "fsdp closure",
)
def test_so_it_is_in_scripts_of_other_kinds(seen_more, script):
    for result in seen_more:
        assert_one_step_was_refused(result[script])


@pytest.mark.many
def test_two_models_that_train_each_other_are_judged_apart(seen_more):
    for result in seen_more:
        case = result["gan"]
        assert case["finite"]
        assert case["judged"] == 12
        assert case["refused"] == 1, "the critic's step"
        assert case["moved"] == [0, 1, 2, 3, 4, 5], "the maker's"
        assert case["named"] == ["1"]
        assert not case["reasons"]


@pytest.mark.many
def test_a_model_of_some_of_the_ranks_is_watched_by_them(seen_more):
    for result in seen_more[:2]:
        case = result["subgroup"]
        assert case["finite"]
        assert case["moved"] == [0, 1, 2, 4, 5]
        assert case["models"] == ["DDP, 6 parameters, 2 ranks"]
        assert not case["reasons"]
    assert seen_more[2]["subgroup"]["judged"] == 0
    assert not seen_more[2]["subgroup"]["reasons"]


@pytest.mark.many
def test_a_script_that_catches_what_a_step_raises_makes_no_step(seen_more):
    for result in seen_more:
        case = result["catching"]
        assert case["codes"] == ["ST-GRAD-020"] * 6
        assert case["moved"] == []


def test_an_optimizer_that_nobody_knows_is_refused_before_the_second_step(seen):
    for result in seen:
        case = result["unknown, required"]
        assert case["code"] == "ST-GRAD-020"
        assert case["step"] == 1
        assert case["events"] == ["UnwatchedStepRefused"]


def test_a_step_that_is_not_finite_once_under_a_scaler_is_skipped_by_it(seen):
    skipped_by_the_scaler(seen, "scaler")


@pytest.mark.many
@pytest.mark.parametrize("script", ["scaler fused", "scaler unscaled"])
def test_so_it_is_under_other_ones(seen_more, script):
    skipped_by_the_scaler(seen_more, script)


def skipped_by_the_scaler(seen, script):
    for result in seen:
        case = result[script]
        assert case["moved"] == [0, 1, 2, 4, 5]
        assert case["finite"]
        assert (case["refused"], case["named"], case["reasons"]) == (1, [], [])


def test_numbers_that_fp16_rounds_to_zero_are_not_refused(seen):
    for result in seen:
        assert_not_refused(result["tiny fp16"])


@pytest.mark.many
def test_nor_are_those_of_which_nothing_is_left(seen_more):
    for result in seen_more:
        assert_not_refused(result["tinier fp16"])


def assert_not_refused(case):
    assert (case["judged"], case["refused"], case["settled"]) == (6, 0, 0)


def test_overflows_under_a_loss_scale_are_the_scalers_and_name_nobody(seen):
    for result in seen:
        assert_left_to_scaler(result["overflow"], {2, 5, 9})


@pytest.mark.many
def test_so_are_those_of_all_ranks_while_a_scale_is_sought(seen_more):
    for result in seen_more:
        assert_left_to_scaler(result["overflow of all"], set(range(9)))


def assert_left_to_scaler(case, steps):
    assert case["moved"] == sorted(set(range(14)) - steps)
    assert case["judged"] == 14
    assert case["refused"] == len(steps)
    assert case["named"] == []
    assert case["scales"][-1] == 2.0 ** (16 - len(steps))


def test_a_rank_that_overflows_at_every_scale_is_named(seen):
    for result in seen:
        case = result["overflow for ever"]
        assert case["named"] == ["1"]
        assert case["refused"] == 7
        assert case["moved"] == [0, 1, *range(9, 14)]


@pytest.mark.many
@pytest.mark.parametrize("script", ["compiled ddp", "compiled fsdp", "compiled before"])
def test_a_compiled_script_is_watched_too(seen_compiled, script):
    for result in seen_compiled:
        assert_one_step_was_refused(result[script])


def assert_one_step_was_refused(case):
    # Weight decay and momentum move nothing either.
    assert case["moved"] == [0, 1, 2, 4, 5]
    assert case["finite"]
    assert case["refused"] == 1
    assert case["named"] == ["1"]
    assert not case["reasons"]
    assert not case["said"]
    assert case["judged"] >= 6


def test_a_poison_that_spreads_by_accumulation_changes_nothing_either(seen):
    for result in seen:
        case = result["accumulated early ddp"]
        assert case["moved"] == [0, 1, 2, 4, 5]
        assert case["finite"]


@pytest.mark.parametrize("script", UNWATCHED)
def test_a_script_that_is_not_watched_is_told_at_its_first_step(seen, script):
    for result in seen:
        assert_told(result[script], UNWATCHED[script])


@pytest.mark.many
@pytest.mark.parametrize("script", UNWATCHED_MORE)
def test_so_is_one_of_another_kind(seen_more, script):
    for result in seen_more:
        assert_told(result[script], UNWATCHED_MORE[script])


def assert_told(case, why):
    assert case["reasons"] == [why]
    assert case["said"] == [f"gradients: NOT WATCHED: {why}"]
    assert [e for e in case["events"] if e != "GradientsWatched"] == ["GradientsNotWatched"]
    assert case["unwatched steps"] > 0


def test_a_policy_that_requires_it_refuses_the_first_step_that_is_not_watched(seen):
    for result in seen:
        case = result["unwrapped, required"]
        assert case["code"] == "ST-GRAD-020"
        assert case["events"] == ["UnwatchedStepRefused"]
        assert case["unwatched steps"] == 1


def test_models_that_are_never_stepped_cost_nothing(seen):
    for result in seen:
        case = result["unused"]
        assert case["judged"] == case["unwatched steps"] == 0
        assert case["models"] == []


def test_a_guard_that_the_script_attaches_has_its_model_for_itself(seen):
    for result in seen:
        case = result["by hand"]
        assert case["judged"] == 4
        assert case["models"] == case["reasons"] == []
