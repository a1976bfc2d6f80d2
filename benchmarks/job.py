# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What a hardened job of two nodes pays for a step: `securetrain run` against torchrun.

The same DDP script, unmodified, runs under both at once: under `securetrain run` with a job
network, and under torchrun in the clear, between the same two hosts, over the same link of 1 Gb/s.
They take blocks of steps in turn, as files tell them; a sample is a block. One rank a node; both
nodes and their engines share this machine's cores, which is the worst that can happen to a tunnel.

``python benchmarks/job.py [--pairs N] [--steps N]`` runs it.
"""

import argparse
import os
import random
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import ab, nodes
from benchmarks.join import Place, coordinator
from securetrain.testing.cluster import DEVICE, Host

_PATIENCE: Final = 240.0
_PAUSE: Final = 0.01
_PORT: Final = 29400
_KEPT: Final = ("PATH", "HOME", "LANG", "TMPDIR", "PYTHONPATH")

_POLICY: Final = """\
extends: dev
apiVersion: securetrain.dev/policy/v1
kind: Policy
metadata: {id: two-nodes, version: 1.0.0, title: Two nodes of a benchmark}
node:
  allow_self_asserted: {max_nodes: 2, reason: a benchmark}
network: {require: [overlay]}
"""

# argv: the folder of the turns, steps in a block.
_TRAIN: Final = """
import os, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

folder, steps = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
layers = [layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.ReLU())]
model = DistributedDataParallel(nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
rows = torch.randn(512, 512)
turn = 0
while True:
    while not os.path.exists(f"{folder}/turn-{turn}"):
        time.sleep(0.01)
    if os.path.exists(f"{folder}/end"):
        break
    dist.barrier()
    started = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()
    dist.barrier()
    if dist.get_rank() == 0:
        with open(f"{folder}/part", "w") as file:
            file.write(str(time.perf_counter() - started))
        os.rename(f"{folder}/part", f"{folder}/done-{turn}")
    turn += 1
dist.barrier()
dist.destroy_process_group()
"""


@dataclass(frozen=True, slots=True)
class NetworkStep:
    """Seconds for a block of optimizer steps."""

    pairs: int = 9
    steps: int = 3
    """Steps in a block."""

    @property
    def goal(self) -> ab.Goal:
        """At most five percent, where the engine has cores of its own."""
        return ab.Goal(ratio=1.05)

    @property
    def name(self) -> str:
        """Short name."""
        return "step-network"

    @property
    def title(self) -> str:
        """What is compared."""
        return (
            f"{self.steps} DDP steps (4 MB of gradients) of two nodes under securetrain run with a"
            f" job network against torchrun in the clear, {nodes.RATE}"
        )

    def run(self, order: Sequence[ab.Side]) -> list[float]:
        """Start both jobs, and take one block for each entry."""
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="job-")))
            script = folder / "train.py"
            script.write_text(_TRAIN)
            hosts = stack.enter_context(nodes.two_hosts())
            turns = {}
            for side in ab.Side:
                turns[side] = Turns(folder / side.value)
                turns[side].folder.mkdir()
                stack.callback(turns[side].stop)
            for host in hosts:
                turns[ab.Side.PLAIN].start(host, self._plain(turns, script, host, hosts[0]))
            job = f"bench-{secrets.token_hex(4)}"
            policy = folder / "policy.yaml"
            policy.write_text(_POLICY)
            place = Place(hosts[0].name, str(hosts[0].address))
            meeting = stack.enter_context(coordinator(folder, job, 2, str(policy), place))
            for node, host in enumerate(hosts):
                command = self._ours(turns, script, policy, job, meeting, node)
                turns[ab.Side.OURS].start(host, command)
            for side in ab.Side:
                turns[side].take()  # both have started
            seconds = [turns[side].take() for side in order]
            for side in ab.Side:
                turns[side].end()
            return seconds

    def _plain(
        self, turns: "dict[ab.Side, Turns]", script: Path, host: Host, first: Host
    ) -> list[str]:
        options = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-id", "plain"]
        options += ["--rdzv-endpoint", f"{first.address}:{_PORT}"]
        options += ["--local-addr", str(host.address)]
        # By its name it would not know itself: a namespace has none of its own.
        options += ["--rdzv-conf", f"is_host={int(host is first)}"]
        tail = [str(script), str(turns[ab.Side.PLAIN].folder), str(self.steps)]
        return ["-m", "torch.distributed.run", *options, *tail]

    def _ours(  # noqa: PLR0917 - each stands in the command
        self,
        turns: "dict[ab.Side, Turns]",
        script: Path,
        policy: Path,
        job: str,
        meeting: str,
        node: int,
    ) -> list[str]:
        folder = turns[ab.Side.OURS].folder
        options = ["--policy", str(policy), "--run-dir", str(folder / f"run-{node}")]
        options += ["--nnodes", "2", "--rdzv-id", job, "--rdzv-endpoint", meeting]
        options += ["--rdzv-conf", f"identity={policy.parent / f'node-{node}'}"]
        options += ["--require", "overlay", "--output", str(folder)]
        tail = [str(script), str(folder), str(self.steps)]
        return ["-m", "securetrain", "run", *options, *tail]


class Turns:
    """A job's two launchers, and the files by which it is told to go on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._launchers: list[subprocess.Popen[bytes]] = []
        self._turn = 0

    def start(self, host: Host, command: list[str]) -> None:
        """Start one node's launcher."""
        env = {name: os.environ[name] for name in _KEPT if name in os.environ}
        env |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": DEVICE}
        log = (self.folder / f"log-{len(self._launchers)}").open("wb")
        with log:
            launcher = subprocess.Popen(
                host.command(sys.executable, *command), env=env, stdout=log, stderr=log
            )
        self._launchers.append(launcher)

    def take(self) -> float:
        """Have the job take a block; its seconds."""
        (self.folder / f"turn-{self._turn}").touch()
        done = self.folder / f"done-{self._turn}"
        deadline = time.monotonic() + _PATIENCE
        while not done.exists():
            if time.monotonic() > deadline or any(x.poll() is not None for x in self._launchers):
                raise RuntimeError(f"the job does not go on:\n{self._logs()}")
            time.sleep(_PAUSE)
        self._turn += 1
        return float(done.read_text())

    def end(self) -> None:
        """Let the job end by itself."""
        (self.folder / "end").touch()
        (self.folder / f"turn-{self._turn}").touch()
        for launcher in self._launchers:
            if launcher.wait(_PATIENCE) != 0:
                raise RuntimeError(f"the job failed:\n{self._logs()}")

    def stop(self) -> None:
        """End what still runs, as a person would."""
        for launcher in self._launchers:
            if launcher.poll() is None:
                launcher.terminate()
        for launcher in self._launchers:
            try:
                launcher.wait(30)
            except subprocess.TimeoutExpired:
                launcher.kill()
                launcher.wait()

    def _logs(self) -> str:
        logs = sorted(self.folder.glob("log-*"))
        return "\n".join(log.read_text(errors="replace")[-2000:] for log in logs)


def _benchmarks(steps: int = 3) -> tuple[ab.Benchmark, ...]:
    if why := nodes.lacking():
        print(f"A JOB OF TWO NODES IS NOT MEASURED: {'; '.join(why)}", file=sys.stderr)
        return ()
    return (NetworkStep(steps=steps),)


BENCHMARKS: Final[tuple[ab.Benchmark, ...]] = _benchmarks()


def main(argv: Sequence[str] | None = None) -> int:
    """Run it and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="in a block")
    options = parser.parse_args(argv)
    ab.clean_up_when_terminated()
    rng = random.Random(0)  # noqa: S311 - the order of samples is no secret
    chosen = _benchmarks(options.steps)
    print(ab.table([ab.measure(benchmark, options.pairs, rng) for benchmark in chosen]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
