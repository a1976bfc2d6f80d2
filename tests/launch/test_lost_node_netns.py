# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A node of 2:3 is told to end, killed or switched off: the others train on without it."""

import contextlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from securetrain.network import STATE
from securetrain.network.addresses import Names
from securetrain.testing.cluster import DEVICE, missing
from tests.launch.two_nodes import THREE, TwoNodes, three_nodes
from tests.vocabulary import needs, ran

pytestmark = [pytest.mark.netns, pytest.mark.dist, pytest.mark.slow, needs(missing)]

PATIENCE = 150

# Says how far it is and in which world; ends when all see the file.
TRAIN = """
import os, sys, time
folder, node = sys.argv[1], sys.argv[4]
def say(what):
    with open(f"{folder}/progress-{node}", "a") as file:
        file.write(f"{time.time()} {what} {os.environ['WORLD_SIZE']} {os.environ['RANK']}\\n")
say("begun")
import torch, torch.distributed as dist
say("started")
dist.init_process_group("gloo")
say("joined")
enough = torch.zeros(1)
while not enough.item():
    enough[0] = float(os.path.exists(f"{folder}/enough"))
    dist.all_reduce(enough)
    say("step")
    time.sleep(0.02)
dist.barrier()
dist.destroy_process_group()
"""


def switch_off(launcher, host) -> None:
    """Nothing of the machine says goodbye, and nothing of it is there any more."""
    host.namespace.ip("link", "set", DEVICE, "down")
    launcher.kill()
    host.namespace.remove()


BLOW = {
    "SIGTERM": lambda launcher, _host: launcher.send_signal(signal.SIGTERM),
    "SIGKILL": lambda launcher, _host: launcher.kill(),
    "power-off": switch_off,
}


class Trio(TwoNodes):
    """Three nodes, of which two are enough; the coordinator has a host of its own."""

    first = 1
    inside = ""
    """The network namespace of the struck node's workers."""

    def start(self, node, *options, **given):
        temporary = self.folder / f"tmp-{node}"
        temporary.mkdir()
        super().start(node, *options, env={"TMPDIR": str(temporary)}, **given)

    def remains(self, node):
        return super().remains(node) if self.host(node).namespace.exists else []

    def begin(self) -> None:
        for node in self.names:
            self.start(node, nnodes="2:3", crash=node)

    def progress(self, node: str) -> list[tuple[float, str, int, int]]:
        path = self.folder / f"progress-{node}"
        lines = path.read_text().splitlines() if path.exists() else []
        words = [line.split() for line in lines if line.count(" ") == 3]
        return [(float(w[0]), w[1], int(w[2]), int(w[3])) for w in words]

    def steps(self, node: str, world: int, since: float = 0.0) -> list[float]:
        """The times of a node's steps in a world of so many."""
        return [
            at
            for at, what, size, _ in self.progress(node)
            if (what, size) == ("step", world) and at > since
        ]

    def strike(self, victim: str, how: str, gone: tuple[str, ...] = ()) -> float:
        """Hit one node; returns how long those that are left took to train again."""
        others = tuple(node for node in self.names if node not in {victim, *gone})
        at = time.time()
        self.inside = namespace_of(self.job, victim)
        BLOW[how](self.launchers[victim], self.host(victim))
        self.await_steps(others, at)
        return self.took(f"{how} {victim}", others, at)

    def took(self, what: str, others: tuple[str, ...], at: float) -> float:
        """Say how long it was until all of these trained again, and until their workers ran.

        torch's import lies between the two: seconds on a busy machine, and nobody's of ours.
        """
        world = len(others)
        ran = [
            min(
                (t for t, what, size, _ in self.progress(node) if t > at and what == "begun"),
                default=at,
            )
            for node in others
        ]
        trained = max(min(self.steps(node, world, at)) for node in others) - at
        load = os.getloadavg()[0]
        print(  # noqa: T201 - measured
            f"LOST {what}: workers after {max(ran) - at:.1f} s, trained after {trained:.1f} s,"
            f" load {load:.0f}"
        )
        return trained

    def await_steps(self, nodes: tuple[str, ...], since: float) -> None:
        """Until all of these train, in a world of their own."""
        self.poll(
            lambda: all(self.steps(node, len(nodes), since) for node in nodes),
            f"{nodes} train on",
            nodes,
        )

    def finish(self, victim: str, how: str, gone: tuple[str, ...] = ()) -> None:
        """The others come to their end, and leave nothing."""
        (self.folder / "enough").touch()
        others = [node for node in self.names if node not in {victim, *gone}]
        self.end_well(*others)
        ended = self.launchers[victim].wait(30)
        if how == "SIGTERM":
            assert ended == 130, self.err(victim)[-3000:]
            assert '"node-going"' in (self.folder / "ledger.jsonl").read_text()
        if gone or how != "SIGTERM":
            print(f"LEFT before it is cleaned up: {len(self.left_of(victim))}")  # noqa: T201
            assert Names.of(self.job, victim).namespace not in self.collect()["problems"]
        assert {node: self.remains(node) for node in self.names} == {n: [] for n in self.names}
        assert self.left_of(victim) == []
        for node in others:
            assert "ST-USAG-010" not in self.err(node)

    def collect(self) -> dict[str, Any]:
        """What an operator types on the machine of a launcher that was killed."""
        command = [sys.executable, "-m", "securetrain", "network", "gc", "--json"]
        done = ran(command, env=self._env)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def left_of(self, victim: str) -> list[str]:
        """Processes, mounts, records and temporary files of a node that is gone."""
        own, name = str(self.folder / f"run-{victim}"), Names.of(self.job, victim).namespace
        found = [f"record {path}" for path in STATE.glob(f"{name}*")]
        found += [f"namespace {path}" for path in Path("/run/netns").glob(f"{name}*")]
        found += [f"file {path}" for path in (self.folder / f"tmp-{victim}").rglob("*")]
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                said = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
                if own.encode() in said or name.encode() in said:
                    found.append(f"process {process.name} {said[:300]!r}")
                if self.inside and str((process / "ns/net").readlink()) == self.inside:
                    found.append(f"process {process.name} in its namespace")
                if name in (process / "mountinfo").read_text():
                    found.append(f"mount in {process.name}")
        return found


def namespace_of(job: str, node: str) -> str:
    """What /proc/PID/ns/net says of processes in a node's job network; empty before it is made."""
    with contextlib.suppress(FileNotFoundError):
        return f"net:[{Path('/run/netns', Names.of(job, node).namespace).stat().st_ino}]"
    return ""


@pytest.fixture
def fewest() -> int:
    """So many nodes are enough."""
    return 2


@pytest.fixture
def trio(tmp_path: Path, fewest):
    with three_nodes(
        folder=tmp_path,
        script=TRAIN,
        fewest=fewest,
        hosts=4,
        kind=Trio,
    ) as nodes:
        yield nodes


@pytest.mark.many
@pytest.mark.parametrize(
    ("victim", "how"), [(victim, how) for victim in ("node-a", "node-b") for how in BLOW]
)
def test_the_others_train_on(trio, victim, how):
    """node-a is rank 0: the store goes with it."""
    trio.begin()
    trio.poll(lambda: all(len(trio.steps(node, 3)) > 3 for node in THREE), "all train", THREE)
    trio.strike(victim, how)
    trio.finish(victim, how)


def test_a_node_that_waits_for_others_ends_when_it_is_told_to(trio):
    trio.start("node-b", nnodes="2:3", crash="node-b")
    ledger = trio.folder / "ledger.jsonl"
    trio.poll(lambda: '"node-admitted"' in ledger.read_text(), "it has joined", ("node-b",))
    at = time.time()
    trio.launchers["node-b"].send_signal(signal.SIGTERM)
    assert trio.launchers["node-b"].wait(PATIENCE) == 130, trio.err("node-b")[-3000:]
    print(f"LOST alone: ended after {time.time() - at:.1f} s")  # noqa: T201 - measured
    assert trio.remains("node-b") == []


# In front of the launcher: it kills itself at one point.
PROLOGUE = """
import importlib, os, runpy, signal, sys, threading, time
point, progress = sys.argv[1:3]
def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
def watch(word):
    while not (os.path.exists(progress) and word in open(progress).read()):
        time.sleep(0.005)
    die()
where, _, when = point.partition(" ")
if where == "worker":
    threading.Thread(target=watch, args=(when,), daemon=True).start()
else:
    module, _, name = where.partition(":")
    place = importlib.import_module(module)
    *path, last = name.split(".")
    for part in path:
        place = getattr(place, part)
    before = getattr(place, last)
    def struck(*args, **kwargs):
        if when == "before":
            die()
        before(*args, **kwargs)
        die()
    setattr(place, last, struck)
sys.argv = ["securetrain", *sys.argv[3:]]
runpy.run_module("securetrain", run_name="__main__")
"""

_MEMBER = "securetrain.rendezvous.member"
_AGENT = "securetrain.launch.agent.member_agent:MemberAgent"
POINTS = [
    f"{_MEMBER}.client:verify_membership after",
    "securetrain.rendezvous.wire.tunnel:Tunnel.apply before",
    "securetrain.rendezvous.wire.tunnel:Tunnel.apply after",
    f"{_MEMBER}.client:Member._take_store before",
    f"{_MEMBER}.client:Member._take_store after",
    "securetrain.launch.checkpoints.restart:Restart.begin before",
    "securetrain.launch.checkpoints.restart:Restart.begin after",
    f"{_MEMBER}.handler:SecureRendezvousHandler._meet after",
    f"{_MEMBER}.agent_store:AgentStore.__init__ after",
    f"{_MEMBER}.agent_store:AgentStore.set before",
    f"{_MEMBER}.agent_store:AgentStore.set after",
    f"{_MEMBER}.agent_store:AgentStore.get before",
    f"{_MEMBER}.agent_store:AgentStore.get after",
    f"{_AGENT}._assign_worker_ranks before",
    f"{_AGENT}._assign_worker_ranks after",
    f"{_AGENT}._start_workers before",
    f"{_AGENT}._start_workers after",
    f"{_AGENT}._monitor_workers before",
    "worker started",
    "worker joined",
]
RANK_0_POINTS = [
    f"{_MEMBER}.handler:host_store before",
    f"{_MEMBER}.handler:host_store after",
]
CASES = [
    *(("node-b", point) for point in POINTS),
    *(("node-a", point) for point in RANK_0_POINTS),
]


def die_at(trio, victim, point, nnodes="2:3"):
    """Start all; one kills itself before its first step, and the others train without it."""
    ours = trio._run_command

    def with_prologue(run_dir, *arguments):
        python, _, _, *rest = ours(run_dir, *arguments)
        progress = str(trio.folder / f"progress-{victim}")
        return [python, "-c", PROLOGUE, point, progress, *rest]

    for node in THREE:
        trio._run_command = with_prologue if node == victim else ours
        trio.start(node, nnodes=nnodes, crash=node)
    assert trio.launchers[victim].wait(PATIENCE) == -signal.SIGKILL, trio.err(victim)[-3000:]
    at = time.time()
    others = tuple(node for node in THREE if node != victim)
    trio.await_steps(others, at)
    trio.took(f"at {point}", others, at)


@pytest.mark.many
@pytest.mark.parametrize(("victim", "point"), CASES, ids=[point for _, point in CASES])
def test_a_member_that_dies_before_the_first_step_keeps_nobody(trio, victim, point):
    """From the moment when the round is complete. Stock agents wait for it for five minutes."""
    die_at(trio, victim, point)
    trio.finish(victim, "SIGKILL")


@pytest.mark.parametrize("fewest", [1])
def test_one_dies_before_its_first_step_and_rank_0_is_told_to_end(trio, fewest):
    """A sample of the two campaigns in one job; with node-a goes the store."""
    die_at(trio, "node-c", f"{_AGENT}._start_workers after", nnodes="1:3")
    trio.strike("node-a", "SIGTERM", gone=("node-c",))
    trio.finish("node-a", "SIGTERM", gone=("node-c",))


@pytest.mark.many
@pytest.mark.parametrize("seed", range(30))
def test_at_any_time(trio, seed):
    """From the moment when the first worker starts."""
    chance = random.Random(seed)
    victim, how = chance.choice(THREE), chance.choice(sorted(BLOW))
    trio.begin()
    trio.poll(lambda: any(trio.progress(node) for node in THREE), "a worker starts", THREE)
    time.sleep(chance.uniform(0.0, 4.0))
    trio.strike(victim, how)
    trio.finish(victim, how)
