# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Scripts of every kind in three real ranks, as they are and then under the seams (ranks.py)."""

import json
import multiprocessing
import runpy
from pathlib import Path

import pytest

from securetrain.testing.processes import PRELOAD

pytestmark = [pytest.mark.dist, pytest.mark.slow]
SIZE = 3
UNWATCHED = {
    "halving": "the script has registered a communication hook of its own",
    "thawed ddp": "a parameter (16x8) was frozen when DDP took the model: it is not reduced",
    "unreduced": "an optimizer steps twice on gradients of Net without a reduction",
    "sparse": "gradients are sparse",
    "unwrapped": "no model was wrapped by DistributedDataParallel or fully_shard",
    "outside": "a parameter (scalar) lies outside of the model that is watched",
    "fsdp1": "FullyShardedDataParallel (FSDP1) is not watched",
    "by hand, forgotten": "the script attached a guard and did not call judge",
    "join": "the ranks have uneven inputs (join)",
    "in backward": "an optimizer steps inside of the backward pass",
    "own reduction": "the script has put another reduce-scatter in place of the guard's",
    "other buffers": "the script uses set_allocate_memory_from_process_group_for_comm",
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    return run_ranks(tmp_path_factory.mktemp("unmodified"), compiles=False)


@pytest.fixture(scope="module")
def seen_compiled(tmp_path_factory):
    return run_ranks(tmp_path_factory.mktemp("compiled"), compiles=True)


def run_ranks(out, *, compiles):
    # One server imports torch; the ranks are its forks.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOAD))
    script = str(Path(__file__).with_name("ranks.py"))
    shared = {"SIZE": SIZE, "INIT": str(out / "init"), "OUT": str(out), "COMPILES": compiles}
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
        process.join(280)
        if process.is_alive():
            process.kill()
    results = [
        json.loads(path.read_text()) if path.exists() else {"error": "no result"}
        for path in (out / f"rank-{rank}.json" for rank in range(SIZE))
    ]
    for result in results:
        assert "error" not in result, result["error"]
    return results


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_one_poisoned_rank_ruins_a_plain_script_without_the_seams(seen, kind):
    for result in seen:
        case = result[f"ruined {kind}"]
        assert not case["finite"]
        assert case["moved"] == [0, 1, 2, 3, 4, 5]
        assert case["judged"] == 0


@pytest.mark.parametrize(
    ("plain", "guarded"),
    [
        ("plain ddp", "equal ddp"),
        ("plain fsdp", "equal fsdp"),
        ("plain fp16", "fp16"),
        ("plain halving", "halving"),
    ],
)
def test_a_clean_script_computes_the_same_bits(seen, plain, guarded):
    for result in seen:
        assert result[guarded]["end"] == result[plain]["end"]
        assert result[guarded]["refused"] == 0
        assert (result[guarded]["judged"] == 6) == (guarded != "halving")


@pytest.mark.parametrize(
    "script",
    [
        "ddp",
        "fsdp",
        "ddp clipped",
        "fsdp clipped",
        "ddp closure",
        "fsdp closure",
        "lbfgs",
        "scaler",
        "scaler unscaled",
        "scaler fused",
        "accumulated ddp",
        "accumulated fsdp",
        "no_sync",
        "two optimizers",
        "two models",
        "conditional ddp",
        "conditional fsdp",
        "static graph",
        "thawed fsdp",
    ],
)
def test_the_poisoned_step_changes_nothing_and_its_rank_is_named(seen, script):
    for result in seen:
        assert_one_step_was_refused(result[script])


@pytest.mark.many
@pytest.mark.parametrize("script", ["compiled ddp", "compiled fsdp"])
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
        case = result[script]
        assert case["reasons"] == [UNWATCHED[script]]
        assert case["said"] == [f"gradients: NOT WATCHED: {UNWATCHED[script]}"]
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
