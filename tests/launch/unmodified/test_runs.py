# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Foreign scripts under `securetrain run`, as they are: one rank is poisoned and named."""

import hashlib
import importlib.util
from datetime import UTC, datetime
from pathlib import Path

import pytest

from securetrain.cli.artifacts.verify import command
from securetrain.core.vocabulary import NOT_WATCHED
from securetrain.report import read_run
from tests.launch.worlds import write_policy

pytestmark = [pytest.mark.dist, pytest.mark.slow]
SCRIPTS = Path(__file__).with_name("scripts")
STEPS = 30
OFF = {"mode": "off"}


@pytest.fixture
def start(launch, tmp_path):
    def start(script, *arguments, settings=None, ranks=4, flags=(), run="run"):
        given = {"gradients": settings or {"mode": "detect"}}
        given["checkpoint"] = {"require_clean_verdict": False}
        policy = write_policy(tmp_path / "policy.yaml", **given)
        return launch(
            *(tmp_path / run, "--standalone", "--policy", policy, *flags),
            *("--nproc-per-node", str(ranks), str(SCRIPTS / script), *map(str, arguments)),
        )

    return start


def held_out(done):
    """The loss after each training, by factor and seed."""
    lines = [line.split() for line in done.out.splitlines() if line.startswith("held-out")]
    return {(factor, seed): float(loss) for _, factor, seed, loss in lines}


def is_missing(framework):
    return importlib.util.find_spec(framework) is None


@pytest.mark.parametrize(
    "script", ["plain_ddp.py", pytest.param("plain_fsdp2.py", marks=pytest.mark.many)]
)
def test_a_poisoned_rank_of_a_plain_script_is_named(start, script):
    done = start(script, STEPS, 1, -1000, 0)
    assert done.code == 0, done.err
    assert held_out(done)["-1000", "0"] < 1.3
    assert_named(done)


@pytest.mark.many
@pytest.mark.parametrize("number", ["nan", "1e18"])
def test_a_shard_that_changes_after_the_verdict_ruins_nobody_elses(start, number):
    done = start("clipped_fsdp2.py", STEPS, 1, number)
    assert done.code == 0, done.err
    assert held_out(done) < 1.0
    assert_named(done)
    assert done.summary["gradients"]["named"] == {"1": ["ST-GRAD-013"]}


@pytest.mark.many
def test_it_ruins_all_weights_without_the_guard(start):
    done = start("clipped_fsdp2.py", STEPS, 1, "nan", settings=OFF)
    assert done.code == 0, done.err
    assert not held_out(done) < 1000


@pytest.mark.many
def test_the_words_of_a_dispute_are_signed_kept_and_verified(start, capsys):
    done = start("disputed_ddp.py", 8, settings={"response": "exclude-rank"})
    assert done.code == 0, done.err
    (said,) = done.events("reduction-disputed")
    assert said.details["pairs"] == "0-1"
    assert (said.details["named"], said.details["unsigned"]) == ("", "")
    (path,) = done.run.disputes.iterdir()
    assert path.name == f"{said.details['digest']}.json"
    assert command([str(path), "--trust", str(done.run.trust)], standalone_mode=False) == 0
    page = capsys.readouterr().out
    assert "dispute: rank 0 and rank 1 contradict each other; neither is named" in page
    assert "signed by all: 0, 1, 2, 3" in page
    # One bit of what was said, and a verifier says so.
    data = path.read_bytes().replace(b'"turn":4', b'"turn":5')
    changed = path.with_name(f"{hashlib.sha256(data).hexdigest()}.json")
    changed.write_bytes(data)
    assert command([str(changed), "--trust", str(done.run.trust)], standalone_mode=False) == 11
    assert "not signed: rank 3" in capsys.readouterr().out


@pytest.mark.many
@pytest.mark.parametrize("moment", ["reduce", "read", "sign"])
def test_a_rank_that_is_killed_inside_a_dispute_ends_the_run_and_nobody_else_is_named(
    start, moment
):
    done = start("disputed_ddp.py", 8, moment, settings={"response": "exclude-rank"})
    assert done.code != 0
    assert "SIGKILL" in done.err
    assert "rank 2" in done.err
    assert not done.run.disputes.exists() or not list(done.run.disputes.iterdir())
    assert not done.events("reduction-disputed")
    assert not done.events("rank-excluded")
    assert set(done.summary["gradients"]["named"]) <= {"2"}
    assert read_run(done.run.root, _now()).facts


@pytest.mark.many
def test_without_the_guard_it_ruins_the_run_which_says_that_nobody_watched(start):
    done = start("plain_ddp.py", STEPS, 1, -1000, 0, settings=OFF)
    assert done.code == 0
    assert not held_out(done)["-1000", "0"] < 1000
    off = f"{NOT_WATCHED}: the policy turns the guard off (gradients.mode)"
    assert done.err.count(off) == 2, "at the start and at the end"
    assert_unwatched(done, "the policy turns the guard off (gradients.mode)")


@pytest.mark.many
def test_a_script_that_wraps_nothing_is_told_at_once_and_at_the_end(start):
    done = start("unwrapped.py", 5, ranks=2)
    assert done.code == 0
    why = "no model was wrapped by DistributedDataParallel or fully_shard"
    assert "securetrain: gradients: not watched yet" in done.err
    assert done.err.count(f"securetrain rank 0: {NOT_WATCHED}: {why}") == 1
    assert f"securetrain: {NOT_WATCHED}: {why}" in done.err
    assert_unwatched(done, why)
    assert {e.subject for e in done.events("gradients-not-watched")} == {"", "end of the run"}


@pytest.mark.many
def test_a_policy_that_requires_the_guard_refuses_its_first_step(start):
    done = start("unwrapped.py", 5, settings={"require_watched": True}, ranks=2)
    assert done.code == 1
    assert "ST-GRAD-020" in done.err
    assert "steps" not in done.out, "no step was made"
    assert "ST-GRAD-020" in done.codes
    assert done.summary["code"] == "ST-GRAD-020"


@pytest.mark.many
def test_the_option_turns_the_guard_on_that_the_policy_turns_off(start):
    done = start("plain_ddp.py", 4, -1, 1, 0, settings=OFF, flags=["--guard"], ranks=2)
    assert done.code == 0, done.err
    assert "gradients: watched; 4 steps judged, 0 refused" in done.err
    assert done.summary["gradients"]["judged"] == 4


FOREIGN = [
    ("plain_ddp.py", "torch"),
    ("plain_fsdp2.py", "torch"),
    ("plain_fsdp1.py", "torch"),
    ("accelerated.py", "accelerate"),
    ("lightning_fit.py", "lightning"),
    ("hf_trainer.py", "transformers"),
]
LONG = 180
SEEDS = ("0", "1", "2")


@pytest.fixture(scope="module")
def without():
    """Losses of each script where the poisoned rank never was."""
    return {}


def needed(framework):
    if is_missing(framework):
        pytest.skip(f"{framework} is not installed: pip install securetrain[frameworks]")


@pytest.mark.many
@pytest.mark.parametrize("factor", ["-1000", "-5", "nan", "3e38"])
@pytest.mark.parametrize("foreign", FOREIGN, ids=lambda one: one[0])
def test_a_foreign_script_ends_as_if_the_rank_had_never_been(
    start, without, foreign, factor, tmp_path
):
    script, framework = foreign
    needed(framework)
    done = start(script, LONG, 1, factor, ",".join(SEEDS), tmp_path / "out")
    assert done.code == 0, done.err
    assert_named(done, trainings=len(SEEDS))
    if script not in without:
        plain = start(
            script, LONG, -1, 1, ",".join(SEEDS), tmp_path / "out", ranks=3, run="without"
        )
        assert plain.code == 0, plain.err
        assert plain.summary["gradients"]["named"] == {}
        assert plain.summary["gradients"]["refused"] == 0
        without[script] = held_out(plain)
    for seed in SEEDS:
        assert held_out(done)[factor, seed] == pytest.approx(without[script]["1", seed], rel=0.01)


@pytest.mark.many
@pytest.mark.parametrize(("script", "framework"), FOREIGN)
def test_the_same_scripts_are_ruined_without_the_guard(start, script, framework, tmp_path):
    needed(framework)
    done = start(script, LONG, 1, "1,-1000,-5,nan,3e38", 0, tmp_path / "out", settings=OFF)
    assert done.code == 0, done.err
    losses = held_out(done)
    for factor in ("-1000", "-5", "nan", "3e38"):
        assert not losses[factor, "0"] < 1.03 * losses["1", "0"], factor


@pytest.mark.many
@pytest.mark.parametrize("framework", ["torch", "accelerate", "lightning", "transformers"])
def test_buffers_of_a_foreign_script_are_compared_and_a_liars_are_not_taken(
    start, framework, tmp_path
):
    needed(framework)

    def train(value, run, **options):
        return start("normalized.py", framework, 60, value, tmp_path / "out", run=run, **options)

    honest = train("none", "honest")
    assert honest.code == 0, honest.err
    said = honest.summary["gradients"]
    assert (said["named"], said["refused"], said["judged"]) == ({}, 0, 60)
    assert not honest.codes
    unwatched = train("none", "unwatched", settings=OFF)
    assert held_out(honest) == held_out(unwatched), "to the last bit"
    ruined = train("nan", "ruined", settings=OFF)
    assert not held_out(ruined)["nan", "0"] < 1000
    for value in ("nan", "1e18"):
        done = train(value, value)
        assert done.code == 0, done.err
        assert done.summary["gradients"]["named"] == {"0": ["ST-GRAD-014"]}
        assert done.summary["gradients"]["refused"] == 0
        assert done.summary["gradients"]["excluded"] == [0]
        assert held_out(done)[value, "0"] == pytest.approx(held_out(honest)["none", "0"], rel=0.05)


@pytest.mark.many
@pytest.mark.parametrize("required", [False, True])
def test_deepspeed_is_said_not_to_be_watched_or_refused(start, required):
    needed("deepspeed")
    settings = {"require_watched": True} if required else None
    done = start("deepspeed_zero.py", 3, 1, ranks=2, settings=settings)
    why = "DeepSpeed is not watched"
    assert done.err.count(f"securetrain rank 0: {NOT_WATCHED}: {why}") == 1
    if required:
        assert done.code == 1
        assert done.summary["code"] == "ST-GRAD-020"
        assert "steps" not in done.out
        return
    assert done.code == 0, done.err
    assert f"securetrain: {NOT_WATCHED}: {why}" in done.err
    assert_unwatched(done, why)


def assert_named(done, trainings=1):
    """Rank 1 and nobody else, everywhere."""
    assert list(done.summary["gradients"]["named"]) == ["1"]
    assert done.summary["gradients"]["watched"] is True
    assert done.summary["gradients"]["excluded"] == [1]
    assert done.summary["gradients"]["refused"] <= 2 * trainings
    assert done.events("rank-excluded")
    [judged] = done.events("gradients-judged")
    assert judged.details["named"].startswith("rank 1 (ST-GRAD-0")
    assert "rank 0" not in judged.details["named"]
    assert done.events("gradients-watched")
    assert NOT_WATCHED not in done.err
    facts = {fact.name: fact.value for fact in read_run(done.run.root, _now()).facts}
    assert "named: rank 1" in facts["gradients"]


def assert_unwatched(done, why):
    assert done.summary["gradients"]["watched"] is False
    assert done.summary["gradients"]["reasons"] == [why]
    assert done.events("gradients-not-watched")
    record = read_run(done.run.root, _now())
    facts = {fact.name: fact.value for fact in record.facts}
    assert facts["gradients"].startswith(NOT_WATCHED)
    labels = {label for view in record.boundaries for label in view.labels}
    assert NOT_WATCHED in labels
    assert any(NOT_WATCHED in line for line in record.limits)


def _now():
    return datetime.now(UTC)
