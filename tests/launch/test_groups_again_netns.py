# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A script makes its process group again and again, on two nodes of two workers."""

import sys
from pathlib import Path

import pytest

from securetrain.testing.cluster import missing
from tests.launch.two_nodes import POLICY, up
from tests.launch.worlds import clean_environment
from tests.vocabulary import needs, outcome

pytestmark = [pytest.mark.many, pytest.mark.dist]

# In each round another rank is late; what the others find is then of the round before.
SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist
from datetime import timedelta
from torch.nn.parallel import DistributedDataParallel
folder, rounds, wait = sys.argv[1], int(sys.argv[3]), timedelta(seconds=float(sys.argv[4]))
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
for number in range(rounds):
    dist.init_process_group("gloo", timeout=wait)
    half = dist.new_group(range(0, world, 2))
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    model(torch.ones(1, 2)).sum().backward()
    found = [None] * world
    dist.all_gather_object(found, (number, rank))
    assert found == [(number, other) for other in range(world)], found
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3 if rank == number % world else 0.0)
open(f"{folder}/rank-{rank}.done", "w").close()
"""
ROUNDS = 12


def done(folder):
    return sorted(path.name for path in folder.glob("rank-*.done"))


def test_torchrun_meets_the_keys_of_the_last_group(tmp_path):
    """The reason of `fresh_keys`, so that a torch without it is noticed."""
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [str(Path(sys.executable).with_name("torchrun")), "--standalone"]
    command += ["--nproc-per-node", "2", str(tmp_path / "train.py"), str(tmp_path), "-", "3", "15"]
    ended = outcome(command, env=clean_environment())
    assert ended.returncode == 1, ended.stderr
    assert done(tmp_path) == []


@pytest.mark.netns
@needs(missing)
def test_two_nodes_make_their_group_again(tmp_path):
    with up(tmp_path, policy=POLICY, script=SCRIPT) as nodes:
        nodes.train("--nproc-per-node", "2", steps=ROUNDS, crash="300")
    assert done(tmp_path) == [f"rank-{rank}.done" for rank in range(4)]
