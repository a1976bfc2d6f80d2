# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Every benchmark runs and gives one sample for each entry; nothing is said about how long."""

import importlib.util
import random
from functools import partial

import pytest

from benchmarks import (
    ab,
    attest,
    cpu,
    figures,
    frameworks,
    hardware,
    job,
    join,
    joinparts,
    link,
    nodes,
    overlay,
    run,
)
from tests.attest.swtpms import needs_swtpm
from tests.evidence import test_tee_appraiser as cpus
from tests.launch.sandbox.machine import lacking
from tests.vocabulary import needs, refused


def test_every_benchmark_has_a_name_a_goal_and_pairs():
    benchmarks = run.benchmarks([])
    names = [benchmark.name for benchmark in benchmarks]
    assert len(set(names)) == len(names)
    for benchmark in benchmarks:
        assert benchmark.title
        assert benchmark.pairs >= (1 if "join-64" in benchmark.name else 3)
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
@pytest.mark.parametrize("wrapper", [pytest.param("fsdp2", marks=pytest.mark.many), "ddp"])
def test_steps(wrapper):
    from benchmarks.step import Step

    assert len(Step(wrapper, steps=1).run([ab.Side.PLAIN, ab.Side.OURS])) == 2


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.many
@pytest.mark.parametrize("cpu", [True, False])
def test_the_guard_alone(cpu):
    from benchmarks.guard_alone import Alone

    alone = Alone(wrapper="fsdp2", cpu=cpu, goal=ab.Goal(), steps=1)
    ours, plain = alone.run([ab.Side.OURS, ab.Side.PLAIN])
    assert 0 < ours < plain


@pytest.mark.dist
@pytest.mark.many
def test_startup():
    from benchmarks.startup import Startup

    assert len(Startup(1).run([ab.Side.OURS, ab.Side.PLAIN])) == 2


@pytest.mark.dist
@pytest.mark.many
@pytest.mark.parametrize("framework", frameworks.FRAMEWORKS)
def test_unmodified_scripts(framework):
    if importlib.util.find_spec(frameworks.FRAMEWORKS[framework]) is None:
        pytest.skip(f"{framework} is not installed: pip install securetrain[frameworks]")
    benchmark = frameworks.Unmodified(framework, steps=2)
    assert all(seconds > 0 for seconds in benchmark.run(BOTH))


@pytest.mark.dist
@pytest.mark.many
def test_the_start_of_unmodified_scripts():
    assert all(seconds > 0 for seconds in frameworks.Start().run(BOTH))


@pytest.mark.dist
@pytest.mark.netns
@pytest.mark.many
@needs(lacking)
@pytest.mark.parametrize("name", ["start", "alone", "step", "compiled"])
def test_the_sandbox(name):
    (benchmark,) = run.benchmarks([f"sandbox-{name}"])
    assert all(seconds > 0 for seconds in benchmark.run([ab.Side.OURS, ab.Side.PLAIN]))


@pytest.mark.parametrize(
    "prepare",
    [
        pytest.param(partial(attest.renewals, shared=True, nodes=2), id="renew"),
        pytest.param(
            partial(attest.renewals, shared=False, nodes=2), id="renew-new", marks=pytest.mark.many
        ),
        pytest.param(partial(attest.joins, template=attest.P256, nodes=2), id="join"),
        pytest.param(
            partial(attest.joins, template=attest.P256, nodes=2, entries=9),
            id="join-ima",
            marks=pytest.mark.many,
        ),
        pytest.param(partial(attest.passports, nodes=1), id="passport"),
        pytest.param(partial(hardware.board, warm=False), id="hgx-cold"),
        pytest.param(partial(hardware.board, warm=True), id="hgx-warm", marks=pytest.mark.many),
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


BOTH = [ab.Side.OURS, ab.Side.PLAIN]
needs_hosts = needs(nodes.lacking)


def _slow_or_broken(how):
    import time

    if how == "broken":
        raise ValueError("on purpose")
    time.sleep({"slow": 60, "fast": 0}[how])
    return str


def _echo(pipe, rank):
    while True:
        order = pipe.recv()
        pipe.send("a text is a failure" if order == "fail" else (rank, order))


def test_a_node_that_is_late_or_fails():
    def calls(*how):
        return [join.Call(_slow_or_broken, (one,)) for one in how]

    assert 0 < join.together(calls("fast", "fast"), 50) < 50
    assert join.together(calls("fast", "slow"), 0.2) == 0.2
    refused(RuntimeError, "on purpose", lambda: join.together(calls("fast", "broken"), 50))


def test_ranks_answer_in_their_order():
    with nodes.ranks(_echo, [("", (n,)) for n in range(2)]) as made:
        assert made.do(7) == [(0, 7), (1, 7)]
        refused(RuntimeError, "rank 0: a text", made.do, "fail")


@pytest.mark.dist
def test_joining():
    benchmark = join.Join(nodes=2, tunnels=False, limit=200.0)
    assert all(0 < seconds < benchmark.limit for seconds in benchmark.run(BOTH))


@pytest.mark.many
@pytest.mark.dist
@pytest.mark.netns
@needs_hosts
def test_whose_the_time_of_joining_is():
    figure = joinparts.parts(2)
    assert figure is not None
    assert figure.values["s of starting as many engines alone"] > 0
    assert figure.values["ms of its process"] > 0


@pytest.mark.dist
@pytest.mark.netns
@needs_hosts
@pytest.mark.many
def test_joining_with_tunnels():
    benchmark = join.Join(nodes=2, limit=200.0)
    assert all(0 < seconds < benchmark.limit for seconds in benchmark.run(BOTH))


@pytest.mark.dist
@pytest.mark.tpm
@needs_swtpm
@pytest.mark.many
def test_joining_with_software_tpms():
    benchmark = join.Join(nodes=2, tunnels=False, tpm=True, limit=200.0)
    (seconds,) = benchmark.run([ab.Side.OURS])
    assert 0 < seconds < benchmark.limit


@pytest.mark.many
@pytest.mark.dist
@pytest.mark.netns
@needs_hosts
def test_all_reduces():
    assert len(link.AllReduce(size=4096, calls=1, goal=ab.Goal()).run(BOTH)) == 2
    figure = link.rates(["100mbit"], size=4096, times=1)
    assert figure is not None
    assert figure.values["100mbit: plain/overlay"] > 0


@pytest.mark.many
@pytest.mark.netns
@needs_hosts
def test_bringing_up_and_evicting():
    found = overlay.bring_up(times=1, peers=3)
    assert found is not None
    assert found.values["p50 ms"] > 0
    found = overlay.eviction(times=1)
    assert found is not None
    assert found.values["samples"] == 2


@pytest.mark.dist
@pytest.mark.netns
@pytest.mark.slow
@pytest.mark.many
@needs_hosts
def test_steps_of_two_nodes():
    assert len(job.NetworkStep(steps=1).run(BOTH)) == 2
