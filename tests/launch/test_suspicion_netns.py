# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Nodes report a rank to the rendezvous: silence evicts by a majority, statistics do not."""

import json
import time

import pytest

from securetrain.testing.cluster import missing
from tests.launch.two_nodes import THREE, three_nodes
from tests.vocabulary import needs

pytestmark = [
    pytest.mark.netns,
    pytest.mark.dist,
    pytest.mark.slow,
    pytest.mark.many,
    needs(missing),
]
DEADLINE = 5
GRADIENTS = f"gradients: {{response: evict-node, deadline_seconds: {DEADLINE}}}\n"

# argv: folder, address, what to do, the node that does it. "silent" says nothing to the guard.
TRAIN = """
import os, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
folder, what, node = sys.argv[1], sys.argv[3], sys.argv[4]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    loss = model(torch.randn(32, 16, generator=generator)).square().mean()
    odd = node == "node-c" and step >= 5 and os.environ["LOCAL_RANK"] == "0"
    (loss * (1e6 if odd and what == "odd" else 1.0)).backward()
    if odd and what == "silent":
        time.sleep(600)
    optimizer.step()
    optimizer.zero_grad()
open(f"{folder}/finished-{node}", "w").write(str(world))
dist.destroy_process_group()
"""


@pytest.fixture
def trio(tmp_path):
    with three_nodes(
        folder=tmp_path,
        script=TRAIN,
        policy=GRADIENTS,
    ) as nodes:
        yield nodes


def said(trio, event):
    lines = (trio.folder / "ledger.jsonl").read_text().splitlines()
    events = [json.loads(line)["body"]["event"] for line in lines]
    return [one for one in events if one["event"] == event]


def begin(trio, what, workers=1):
    for node in THREE:
        asked = ("--nproc-per-node", str(workers))
        trio.start(node, *asked, nnodes="2:3", steps=what, crash=node)


def test_a_silent_rank_costs_its_node_the_job_and_the_others_go_on(trio):
    begin(trio, "silent")
    trio.end_well("node-a", "node-b")
    for node in ("node-a", "node-b"):
        assert (trio.folder / f"finished-{node}").read_text() == "2", "without the silent one"
    voices = said(trio, "member-suspected")
    assert {one["details"]["suspect"] for one in voices} == {"node-c"}
    assert {one["details"]["cause"] for one in voices} == {"ST-GRAD-010"}
    assert max(one["details"]["voices"] for one in voices) == 2
    assert any(one["code"] == "ST-ADMN-034" for one in said(trio, "node-evicted"))
    for node in ("node-a", "node-b"):
        reported = [e for e in trio.events(node) if e.event == "rank-suspected"]
        assert [e.details["cause"] for e in reported] == ["ST-GRAD-010"]


def test_statistics_are_recorded_by_all_and_evict_nobody(trio):
    begin(trio, "odd", workers=2)
    trio.end_well()
    for node in THREE:
        assert (trio.folder / f"finished-{node}").read_text() == "6", "nobody was evicted"
    deadline = time.monotonic() + 120
    while len(said(trio, "member-suspected")) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    voices = said(trio, "member-suspected")
    assert {one["details"]["suspect"] for one in voices} == {"node-c"}
    assert {one["details"]["cause"] for one in voices} <= {"ST-GRAD-001", "ST-GRAD-002"}
    assert {one["details"]["voices"] for one in voices} == {0}, "none counts"
    assert not said(trio, "node-evicted")
