# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Every benchmark runs and gives one sample for each entry; nothing is said about how long."""

import random

import pytest

from benchmarks import ab, run


def test_every_benchmark_has_a_name_a_goal_and_pairs():
    benchmarks = run.benchmarks([])
    names = [benchmark.name for benchmark in benchmarks]
    assert len(set(names)) == len(names)
    for benchmark in benchmarks:
        assert benchmark.title
        assert benchmark.pairs >= 3
        assert benchmark.goal != ab.Goal()
    assert [b.name for b in run.benchmarks(["startup"])] == ["startup-1", "startup-2"]
    assert run.benchmarks(["no-such"]) == []


@pytest.mark.parametrize("name", ["Save", "Load"])
def test_checkpoints(monkeypatch, name):
    from benchmarks import checkpoint

    monkeypatch.setattr(checkpoint, "MEGABYTES", 1)
    benchmark = getattr(checkpoint, name)()
    assert ab.measure(benchmark, 1, random.Random(0)).pairs == 1


@pytest.mark.dist
@pytest.mark.parametrize("wrapper", ["fsdp2", "ddp"])
def test_steps(wrapper):
    from benchmarks.step import Step

    assert len(Step(wrapper, steps=1).run([ab.Side.PLAIN, ab.Side.OURS])) == 2


@pytest.mark.dist
def test_startup():
    from benchmarks.startup import Startup

    assert len(Startup(1).run([ab.Side.OURS, ab.Side.PLAIN])) == 2
