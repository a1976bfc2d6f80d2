# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A node of 2:3 is told to end, killed or switched off: the others train on without it."""

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from securetrain.testing.cluster import DEVICE, NamespaceCluster, missing
from tests.launch.two_nodes import POLICY, TwoNodes, coordinated
from tests.vocabulary import needs

pytestmark = [pytest.mark.netns, pytest.mark.dist, pytest.mark.slow, needs(missing)]

NODES = ("node-a", "node-b", "node-c")
PATIENCE = 150

# Says how far it is and in which world; ends when all see the file.
TRAIN = """
import os, sys, time
import torch, torch.distributed as dist
folder, node = sys.argv[1], sys.argv[4]
def say(what):
    with open(f"{folder}/progress-{node}", "a") as file:
        file.write(f"{time.time()} {what} {os.environ['WORLD_SIZE']} {os.environ['RANK']}\\n")
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

BLOW = {
    "SIGTERM": lambda launcher, _host: launcher.send_signal(signal.SIGTERM),
    "SIGKILL": lambda launcher, _host: launcher.kill(),
    "power-off": lambda _launcher, host: host.namespace.ip("link", "set", DEVICE, "down"),
}


class Trio(TwoNodes):
    """Three nodes, of which two are enough; the coordinator has a host of its own."""

    def host(self, node):
        return self.cluster.hosts[1 + self.names.index(node)]

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

    def poll(self, condition: Any, what: str, alive: tuple[str, ...] = ()) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            for node in alive:
                assert self.launchers[node].poll() is None, f"{what}: {self.err(node)[-3000:]}"
            assert time.monotonic() < deadline, f"never happened: {what}" + "".join(
                f"\n{node}: {self.err(node)[-1500:]}" for node in self.names
            )
            time.sleep(0.02)

    def strike(self, victim: str, how: str) -> float:
        """Hit one node; returns how long the others took to train again."""
        others = tuple(node for node in self.names if node != victim)
        at = time.time()
        BLOW[how](self.launchers[victim], self.host(victim))
        self.poll(
            lambda: all(self.steps(node, 2, at) for node in others), f"{others} train on", others
        )
        took = max(min(self.steps(node, 2, at)) for node in others) - at
        if how == "power-off":
            self.launchers[victim].kill()
        return took

    def finish(self, victim: str, how: str) -> None:
        """The others come to their end, and leave nothing."""
        (self.folder / "enough").touch()
        others = [node for node in self.names if node != victim]
        for node in others:
            assert self.wait(node) == 0, self.err(node)[-3000:]
        ended = self.launchers[victim].wait(30)
        if how == "SIGTERM":
            assert ended == 130, self.err(victim)[-3000:]
            others.append(victim)
        assert {node: self.remains(node) for node in others} == {node: [] for node in others}
        for node in others:
            assert "ST-USAG-010" not in self.err(node)


@pytest.fixture
def trio(tmp_path: Path, run_command, clean_environment):
    (tmp_path / "policy.yaml").write_text(POLICY.replace("max_nodes: 2", "max_nodes: 3"))
    (tmp_path / "train.py").write_text(TRAIN)
    with (
        NamespaceCluster.up(4) as cluster,
        coordinated(
            cluster=cluster,
            folder=tmp_path,
            job=f"job-{os.getpid()}-{tmp_path.name[-8:]}",
            run_command=run_command,
            env=clean_environment(),
            names=NODES,
            kind=Trio,
        ) as nodes,
    ):
        yield nodes


@pytest.mark.parametrize("how", BLOW)
@pytest.mark.parametrize("victim", ["node-a", "node-b"])
def test_the_others_train_on(trio, victim, how):
    """node-a is rank 0: the store goes with it."""
    trio.begin()
    trio.poll(lambda: all(len(trio.steps(node, 3)) > 3 for node in NODES), "all train", NODES)
    took = trio.strike(victim, how)
    print(f"LOST {how} {victim}: trained again after {took:.1f} s")  # noqa: T201 - measured
    trio.finish(victim, how)


@pytest.mark.many
@pytest.mark.parametrize("seed", range(30))
def test_at_any_time(trio, seed):
    """From the moment when the first worker starts."""
    chance = random.Random(seed)
    victim, how = chance.choice(NODES), chance.choice(sorted(BLOW))
    trio.begin()
    trio.poll(lambda: any(trio.progress(node) for node in NODES), "a worker starts", NODES)
    time.sleep(chance.uniform(0.0, 4.0))
    took = trio.strike(victim, how)
    print(f"LOST {how} {victim}: trained again after {took:.1f} s")  # noqa: T201 - measured
    trio.finish(victim, how)
