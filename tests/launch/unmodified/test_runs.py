# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Foreign scripts under `securetrain run`, as they are: one rank is poisoned and named."""

import importlib.util
from datetime import UTC, datetime
from pathlib import Path

import pytest

from securetrain.core.vocabulary import NOT_WATCHED
from securetrain.report import read_run

pytestmark = [pytest.mark.dist, pytest.mark.slow]
SCRIPTS = Path(__file__).with_name("scripts")
STEPS = 30
OFF = 'mode: "off"'
POLICY = """
apiVersion: securetrain.dev/policy/v1
kind: Policy
extends: dev
metadata: {{id: test, version: 1.0.0, title: test}}
checkpoint: {{require_clean_verdict: false}}
gradients: {{{settings}}}
"""


@pytest.fixture
def start(launch, tmp_path):
    def start(script, *arguments, settings="mode: detect", ranks=4, flags=()):
        policy = tmp_path / "policy.yaml"
        policy.write_text(POLICY.format(settings=settings))
        return launch(
            *(tmp_path / "run", "--standalone", "--policy", str(policy), *flags),
            *("--nproc-per-node", str(ranks), str(SCRIPTS / script), *map(str, arguments)),
        )

    return start


def held_out(done):
    [line] = [line for line in done.out.splitlines() if line.startswith("held-out")]
    return float(line.split()[1])


def is_missing(framework):
    return importlib.util.find_spec(framework) is None


@pytest.mark.parametrize(
    "script", ["plain_ddp.py", pytest.param("plain_fsdp2.py", marks=pytest.mark.many)]
)
def test_a_poisoned_rank_of_a_plain_script_is_named(start, script):
    done = start(script, STEPS, 1, -1000)
    assert done.code == 0, done.err
    assert held_out(done) < 0.5
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
def test_without_the_guard_it_ruins_the_run_which_says_that_nobody_watched(start):
    done = start("plain_ddp.py", STEPS, 1, -1000, settings=OFF)
    assert done.code == 0
    assert not held_out(done) < 1000
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


def test_a_policy_that_requires_the_guard_refuses_its_first_step(start):
    done = start("unwrapped.py", 5, settings="require_watched: true", ranks=2)
    assert done.code == 1
    assert "ST-GRAD-020" in done.err
    assert "steps" not in done.out, "no step was made"
    assert "ST-GRAD-020" in done.codes
    assert done.summary["code"] == "ST-GRAD-020"


@pytest.mark.many
def test_the_option_turns_the_guard_on_that_the_policy_turns_off(start):
    done = start("plain_ddp.py", 4, -1, 1, settings=OFF, flags=["--guard"], ranks=2)
    assert done.code == 0, done.err
    assert "gradients: watched; 4 steps judged, 0 refused" in done.err
    assert done.summary["gradients"]["judged"] == 4


@pytest.mark.many
@pytest.mark.parametrize("factor", [-1000, -5])
@pytest.mark.parametrize(
    ("script", "framework"),
    [
        ("plain_ddp.py", "torch"),
        ("plain_fsdp2.py", "torch"),
        ("accelerated.py", "accelerate"),
        ("lightning_fit.py", "lightning"),
    ],
)
def test_foreign_scripts_survive_and_name_the_rank(start, script, framework, factor, tmp_path):
    if is_missing(framework):
        pytest.skip(f"{framework} is not installed: pip install securetrain[frameworks]")
    done = start(script, 60, 1, factor, tmp_path, ranks=4)
    assert done.code == 0, done.err
    assert held_out(done) < 0.5
    assert_named(done)


@pytest.mark.many
@pytest.mark.parametrize(
    ("script", "framework"),
    [
        ("plain_fsdp2.py", "torch"),
        ("accelerated.py", "accelerate"),
        ("lightning_fit.py", "lightning"),
    ],
)
def test_the_same_scripts_are_ruined_without_the_guard(start, script, framework, tmp_path):
    if is_missing(framework):
        pytest.skip(f"{framework} is not installed: pip install securetrain[frameworks]")
    done = start(script, 60, 1, -1000, tmp_path, ranks=4, settings=OFF)
    assert done.code == 0, done.err
    assert not held_out(done) < 0.5


def assert_named(done):
    """Rank 1 and nobody else, everywhere."""
    assert list(done.summary["gradients"]["named"]) == ["1"]
    assert done.summary["gradients"]["watched"] is True
    assert done.summary["gradients"]["excluded"] == [1]
    assert done.summary["gradients"]["refused"] <= 2
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
