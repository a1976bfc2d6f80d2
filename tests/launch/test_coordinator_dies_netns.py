# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The coordinator of a real run over an overlay is killed: for good, or to be started again."""

import base64
import json
import os
import random
import shutil
import signal
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from securetrain.artifacts.verify import verify_path
from securetrain.identity.trust import TrustRoot
from securetrain.testing.cluster import DEVICE, NamespaceCluster, missing
from tests.launch.coordinator_process import PORT, CoordinatorProcess, commanded
from tests.launch.test_eviction_netns import SharedRun, prepare
from tests.launch.two_nodes import POLICY, TwoNodes
from tests.launch.worlds import clean_environment
from tests.vocabulary import needs

pytestmark = [pytest.mark.netns, pytest.mark.dist, pytest.mark.slow, needs(missing)]

NODES = ("node-a", "node-b", "node-c")
PATIENCE = 150

# Counts its steps; ends when all see the file, and says when it is told to end.
TRAIN = """
import os, signal, sys, time
import torch, torch.distributed as dist
folder, node = sys.argv[1], sys.argv[4]
def say(what, number):
    with open(f"{folder}/progress-{node}", "a") as file:
        file.write(f"{what} {number} {os.environ['WORLD_SIZE']}\\n")
step = 0
def on_term(*_):
    say("told", step)
    sys.exit(0)
signal.signal(signal.SIGTERM, on_term)
say("started", 0)
dist.init_process_group("gloo")
enough = torch.zeros(1)
while not enough.item():
    enough[0] = float(os.path.exists(f"{folder}/enough"))
    dist.all_reduce(enough)
    say("step", step)
    step += 1
    time.sleep(0.02)
dist.barrier()
dist.destroy_process_group()
say("ended", step)
while os.path.exists(f"{folder}/linger-{node}"):
    time.sleep(0.02)
"""


class Job(TwoNodes):
    """Nodes that are all needed; the coordinator has a host of its own."""

    process: CoordinatorProcess
    first = 1

    def begin(self, *options: str) -> None:
        for node in self.names:
            self.start(node, *options, crash=node)

    def said(self, node: str, what: str) -> list[int]:
        path = self.folder / f"progress-{node}"
        lines = path.read_text().splitlines() if path.exists() else []
        words = [line.split() for line in lines if line.count(" ") == 2]
        return [int(number) for word, number, _ in words if word == what]

    def all_step(self, number: int = 3) -> None:
        """Every node makes so many steps more."""
        before = {node: len(self.said(node, "step")) for node in self.names}
        self.poll(
            lambda: all(len(self.said(n, "step")) >= before[n] + number for n in self.names),
            "all make steps",
        )

    def finish(self) -> None:
        """All come to their end, with no step lost and nothing left."""
        (self.folder / "enough").touch()
        self.end_well()
        self.intact()

    def intact(self) -> None:
        for node in self.names:
            steps = self.said(node, "step")
            assert steps == list(range(len(steps))), "no step was lost, none made twice"
            assert self.said(node, "started") == [0], "no worker was started again"
        assert {node: self.remains(node) for node in self.names} == {n: [] for n in self.names}

    standby = ""

    @property
    def coordinator(self):
        return super().coordinator + self.standby

    @property
    def epochs(self) -> list[str]:
        return [event["subject"] for event in self.process.events("round-formed")]


def state_of(job: Job) -> Any:
    """The state that the coordinator has left, unverified."""
    signed = json.loads((job.process.run_dir / "coordinator.json").read_bytes())
    return json.loads(base64.b64decode(signed["body"]))


class Training(SharedRun):
    """The built-in trainer on both nodes, one run directory; the coordinator has its own host."""

    process: CoordinatorProcess
    first = 1
    nnodes = ""


@pytest.fixture
def make_job(tmp_path: Path):
    (tmp_path / "train.py").write_text(TRAIN)
    with ExitStack() as stack:

        def make(*, names=NODES[:2], lease=0.0, spare=0) -> Job:
            policy = POLICY.replace("max_nodes: 2", f"max_nodes: {len(names)}")
            (tmp_path / "policy.yaml").write_text(policy)
            cluster = stack.enter_context(NamespaceCluster.up(1 + len(names) + spare))
            given = {"cluster": cluster, "folder": tmp_path, "names": names, "lease": lease}
            found: Job = stack.enter_context(commanded(kind=Job, **given))
            return found

        yield make


def test_killed_for_good_the_run_ends_at_the_lease_and_says_why(make_job):
    job = make_job(lease=12.0)
    job.begin()
    job.all_step()
    job.process.kill()
    job.all_step(20)
    codes = []
    for node in job.names:
        assert job.wait(node) == 1, job.err(node)[-3000:]
        code = job.summary(node)["code"]
        assert code in job.err(node), job.err(node)[-3000:]
        (ended,) = [event for event in job.events(node) if event.event == "run-ended"]
        assert (ended.details["code"], ended.details["stragglers"]) == (code, 0)
        codes.append(code)
    # The first one's end may break the others' connections before their own leases end: those then
    # say that their workers failed, which is as true.
    assert "ST-ADMN-007" in codes
    assert set(codes) <= {"ST-ADMN-007", "ST-RUNT-004"}, "".join(map(job.err, job.names))[-6000:]
    told = [len(job.said(node, "told")) for node in job.names]
    assert max(told) == 1, "whoever still ran was told to end"
    job.intact()


@pytest.mark.many
def test_killed_for_good_the_trainer_leaves_a_checkpoint(tmp_path):
    """The leases end one after the other, as always; all save when the first one is told to end."""
    name = prepare(tmp_path, every=10**6)
    env = clean_environment(PYTHONPATH=os.environ.get("PYTHONPATH", ""))
    with (
        NamespaceCluster.up(3) as cluster,
        commanded(
            cluster=cluster,
            folder=tmp_path,
            job=name,
            env=env,
            kind=Training,
            names=NODES[:2],
            lease=12.0,
        ) as nodes,
    ):
        nodes.start("node-a")
        nodes.poll(lambda: nodes.process.events("node-admitted"), "the first one is in")
        time.sleep(2.5)
        nodes.start("node-b")
        trained = lambda: nodes.run.metrics.exists() and nodes.run.metrics.stat().st_size  # noqa: E731
        nodes.poll(trained, "both train")
        nodes.process.kill()
        ended = {node: nodes.wait(node) for node in nodes.names}
        assert ended == {"node-a": 1, "node-b": 1}, "".join(map(nodes.err, nodes.names))[-6000:]
        for node in nodes.names:
            assert "ST-ADMN-007" in nodes.err(node), nodes.err(node)[-3000:]
        (newest,) = nodes.steps()
        now, trust = datetime.now(UTC), TrustRoot.load(nodes.run.trust, datetime.now(UTC))
        assert verify_path(nodes.run.checkpoint(newest), trust=trust, policy=None, now=now).ok
        assert [nodes.remains(node) for node in nodes.names] == [[], []]


@pytest.mark.parametrize(
    ("times", "names"),
    [(1, NODES[:2]), pytest.param(10, NODES, marks=pytest.mark.many)],
    ids=["once", "ten-times"],
)
def test_killed_and_started_again_it_costs_no_step(make_job, times, names):
    job = make_job(names=names)
    job.begin()
    job.all_step()
    chance = random.Random(13)
    for n in range(times):
        time.sleep(chance.uniform(0.0, 3.0))
        job.process.kill()
        time.sleep(chance.uniform(0.0, 3.0))
        job.all_step()
        job.process.start()
        wanted = len(names) * (n + 1)
        job.poll(lambda w=wanted: len(job.process.events("node-resumed")) >= w, "they are back")
        job.all_step()
    job.finish()
    assert job.epochs == ["epoch 0"], "the same epoch all the time"
    assert job.process.wait(PATIENCE) == 0, job.process.said()[-3000:]
    print(f"COORDINATOR {times} times: {len(job.said('node-a', 'step'))} steps")  # noqa: T201


@pytest.mark.many
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_coordinator_that_is_started_again_at_the_end_knows_who_is_done(make_job, number):
    """One node has ended its work and waits for the other."""
    job = make_job()
    (job.folder / "linger-node-b").touch()
    job.begin()
    job.all_step()
    (job.folder / "enough").touch()
    job.poll(lambda: job.said("node-a", "ended"), "node-a's work has ended")
    done = lambda: state_of(job)["done"]  # noqa: E731
    job.poll(lambda: done() == ["node-a"], "the coordinator knows that")
    job.process.kill(number)
    job.process.start()
    job.poll(lambda: len(job.process.events("node-resumed")) >= 2, "they are back")
    (job.folder / "linger-node-b").unlink()
    job.finish()
    assert job.epochs == ["epoch 0"]
    assert job.process.wait(PATIENCE) == 0, job.process.said()[-3000:]


@pytest.mark.many
def test_the_job_may_end_while_there_is_no_coordinator(make_job):
    """What the nodes had to say of their end, they say to the next one."""
    job = make_job()
    job.begin()
    job.all_step()
    job.process.kill()
    (job.folder / "enough").touch()
    job.poll(lambda: all(job.said(node, "ended") for node in job.names), "their work has ended")
    job.process.start()
    job.finish()
    assert job.epochs == ["epoch 0"]
    assert job.process.wait(PATIENCE) == 0, job.process.said()[-3000:]


@pytest.mark.many
def test_a_standby_on_another_machine_goes_on(make_job):
    """The one documented command there; the nodes know both places from their start."""
    job = make_job(spare=1)
    host, first = job.cluster.hosts[-1], job.process
    job.standby = f",{host.address}:{PORT}"
    job.begin()
    job.all_step()
    first.host.namespace.ip("link", "set", DEVICE, "down")
    first.kill()
    standby = CoordinatorProcess(
        host, job.folder, job=job.job, nnodes=first.nnodes, env=first.env, name="standby"
    )
    shutil.copytree(first.run_dir, standby.run_dir)
    job.process = standby
    try:
        standby.start()
        job.poll(lambda: len(standby.events("node-resumed")) >= len(job.names), "they are back")
        job.all_step()
        job.finish()
        assert job.epochs == ["epoch 0"]
        assert standby.wait(PATIENCE) == 0, standby.said()[-3000:]
    finally:
        standby.end()
