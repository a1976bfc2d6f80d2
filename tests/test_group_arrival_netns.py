# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A member whose workers do not come to the group: the others train on without it, and it is named.

Real launchers, coordinator, tunnel and gloo groups: three nodes, of which two are enough.
"""

import json

import pytest

from securetrain.testing.cluster import missing
from tests.launch.two_nodes import POLICY, THREE, up
from tests.vocabulary import needs

pytestmark = [
    pytest.mark.netns,
    pytest.mark.dist,
    pytest.mark.slow,
    pytest.mark.many,
    needs(missing),
]
ARRIVAL = POLICY.replace("max_nodes: 2", "max_nodes: 3").replace(
    "join_timeout_seconds: 60", "join_timeout_seconds: 60, arrival_seconds: 8"
)

# argv: folder, address, what to do, the node that does it.
TRAIN = """
import os, sys, time
from datetime import timedelta
folder, what, node = sys.argv[1], sys.argv[3], sys.argv[4]
odd = node == "node-c"
if what == "late":
    time.sleep(20)
if odd and what == "idle":
    time.sleep(600)
if odd and what == "ends":
    sys.exit(0)
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=timedelta(seconds=40 if what == "ends" else 1800))
if odd and what == "stops":
    dist.barrier()
    os._exit(0)
dist.barrier()
for _ in range(20):
    dist.all_reduce(torch.ones(1))
    time.sleep(0.05)
open(f"{folder}/finished-{node}", "w").write(str(dist.get_world_size()))
dist.destroy_process_group()
"""


@pytest.fixture
def trio(tmp_path):
    with up(tmp_path, script=TRAIN, policy=ARRIVAL, hosts=3, names=THREE) as nodes:
        yield nodes


def finished(trio):
    found = {name: trio.folder / f"finished-{name}" for name in THREE}
    return {name: path.read_text() for name, path in found.items() if path.exists()}


def said(trio, event):
    lines = (trio.folder / "ledger.jsonl").read_text().splitlines()
    found = [json.loads(line)["body"]["event"] for line in lines]
    return [one for one in found if one["event"] == event]


@pytest.mark.parametrize("what", ["idle", "ends", "stops"])
def test_the_others_train_on_without_it(trio, what):
    for node in THREE:
        trio.start(node, nnodes="2:3", steps=what, crash=node)
    trio.end_well("node-a", "node-b")
    assert finished(trio) == {"node-a": "2", "node-b": "2"}
    (lost,) = {one["details"]["said"] for one in said(trio, "group-failed")} or {"evicted"}
    assert "node-c" in f"{lost} {said(trio, 'node-evicted')}"


def test_nobody_is_late_who_waits_for_nobody(trio):
    for node in THREE:
        trio.start(node, nnodes="2:3", steps="late", crash=node)
    trio.end_well()
    assert finished(trio) == dict.fromkeys(THREE, "3")
