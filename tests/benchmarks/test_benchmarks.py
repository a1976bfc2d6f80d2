# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Every benchmark runs and gives one sample for each entry; nothing is said about how long."""

import random
from functools import partial

import pytest

from benchmarks import ab, attest, cpu, figures, hardware, run
from tests.attest.swtpms import needs_swtpm
from tests.attest.tee import test_appraisal as cpus


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
    assert list(run.figures(["memory"])) == ["attest-memory"]


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


@pytest.mark.parametrize(
    "prepare",
    [
        pytest.param(partial(attest.renewals, shared=True, nodes=2), id="renew"),
        pytest.param(partial(attest.renewals, shared=False, nodes=2), id="renew-new"),
        pytest.param(partial(attest.joins, template=attest.P256, nodes=2), id="join"),
        pytest.param(
            partial(attest.joins, template=attest.P256, nodes=2, entries=9), id="join-ima"
        ),
        pytest.param(partial(attest.passports, nodes=1), id="passport"),
        pytest.param(partial(hardware.board, warm=False), id="hgx-cold"),
        pytest.param(partial(hardware.board, warm=True), id="hgx-warm"),
        pytest.param(partial(hardware.reports, make=cpus.snp, warm=False), id="snp"),
        pytest.param(partial(hardware.reports, make=cpus.tdx, warm=True), id="tdx"),
    ],
)
def test_attestation(prepare):
    bench = cpu.Cpu(
        name="x", title="x", goal=ab.Goal(), bound=cpu.Bound(p256=1), prepare=prepare, pairs=1
    )
    assert len(bench.run([ab.Side.PLAIN, ab.Side.OURS, ab.Side.OURS])) == 3


@pytest.mark.parametrize("kind", ["p256", "p384", "rsa4096", "oaep", "ecdh384", "signatures"])
def test_the_bare_cryptography(kind):
    assert cpu.Bound(**{kind: 1}).sample()() > 0


def test_the_memory_of_a_verifier():
    found = figures.memory(2)
    assert found.goal_met
    assert found.values["MB"] > 1


@needs_swtpm
def test_the_latency_of_an_agent():
    found = figures.agent(3)
    assert found is not None
    assert set(found.values) == {"p50 ms", "p95 ms", "first ms", "renewal p95 ms"}
