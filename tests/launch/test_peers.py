# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A member that was taken over against the others: all ways by which torch unpickles a peer's word.

One script, once under stock torchrun, where each bomb goes off in rank 0, and once under ours.
"""

import json

import pytest

from securetrain.core.vocabulary import Decision
from tests.launch.worlds import clean_environment, run_plain

pytestmark = [
    pytest.mark.dist,
    pytest.mark.slow,
    # importing the module says so; the attack is on what it does
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

# argv: folder. Rank 1 attacks rank 0; what went off leaves a folder with the attack's name.
BOMBS = """\
import json, os, sys
from datetime import timedelta
import torch
import torch.distributed as dist
from torch.distributed import rpc
from torch.distributed.checkpoint._pg_transport import PGTransport
from torch.distributed.optim import ZeroRedundancyOptimizer

class Bomb:
    def __init__(self, name):
        self.path = os.path.join(sys.argv[1], name)
    def __reduce__(self):
        return os.makedirs, (self.path, 0o777, True)

dist.init_process_group("gloo")
rank, results, first = dist.get_rank(), {}, None

def attempt(name, call):
    global first
    try:
        call(Bomb(name) if rank == 1 else "plain")
        results[name] = "passed"
    except Exception as error:
        results[name] = getattr(error, "code", repr(error))
        if hasattr(error, "code"):
            first = first or error

def point_to_point(value):
    if rank == 1:
        dist.send_object_list([value], dst=0)
    else:
        dist.recv_object_list([None], src=1)

def checkpoint_of_a_peer(value):
    group = dist.distributed_c10d._get_default_group()
    if rank == 0:
        PGTransport(group, timedelta(seconds=30), torch.device("cpu")).recv_checkpoint(1)
        return
    import pickle
    data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
    group.send([torch.tensor([len(data)])], 0, tag=1).wait()
    group.send([data], 0, tag=2).wait()

def optimizer_of_a_peer(value):
    model = torch.nn.Linear(2, 2)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    if rank == 1:
        optimizer.optim.state_dict = lambda: {"state": value}
    optimizer.consolidate_state_dict(to=0)

attempt("all_gather", lambda v: dist.all_gather_object([None, None], v))
attempt("gather", lambda v: dist.gather_object(v, [None, None] if rank == 0 else None, dst=0))
attempt("broadcast", lambda v: dist.broadcast_object_list([v], src=1))
attempt("scatter", lambda v: dist.scatter_object_list([None], [v, v] if rank else None, src=1))
attempt("send", point_to_point)
attempt("checkpoint", checkpoint_of_a_peer)
attempt("optimizer", optimizer_of_a_peer)
good = [None, None]
dist.all_gather_object(good, {"rank": rank, "metrics": [1.5, None, (2, 3)]})
results["good"] = good[1]["metrics"][2][1]

rpc.init_rpc(f"w{rank}", rank=rank, world_size=2)
if rank == 1:
    results["sum"] = rpc.rpc_sync("w0", torch.add, args=(torch.ones(2), 1)).tolist()
    try:
        rpc.rpc_sync("w0", os.makedirs, args=(os.path.join(sys.argv[1], "rpc"),))
        results["rpc"] = "passed"
    except Exception as error:
        results["rpc"] = "ST-RUNT-001" if "ST-RUNT-001" in str(error) else repr(error)
rpc.shutdown()
with open(os.path.join(sys.argv[1], f"rank{rank}.json"), "w") as file:
    json.dump(results, file)
dist.barrier()
if first is not None:
    raise first
"""

COLLECTIVES = {"all_gather", "gather", "broadcast", "scatter", "send", "checkpoint", "optimizer"}


def test_a_pickle_from_a_peer(launch, tmp_path):
    script = tmp_path / "bombs.py"
    script.write_text(BOMBS)
    stock, ours = tmp_path / "stock", tmp_path / "ours"
    stock.mkdir()
    ours.mkdir()
    env = clean_environment(TP_SOCKET_IFNAME="lo", GLOO_SOCKET_IFNAME="lo")
    run_plain(env, "--nproc-per-node=2", script, stock)
    went_off = {path.name for path in stock.iterdir() if path.is_dir()}
    assert went_off == COLLECTIVES | {"rpc"}

    done = launch(tmp_path / "run", "--standalone", "--nproc-per-node=2", str(script), str(ours))
    assert {path.name for path in ours.iterdir() if path.is_dir()} == set()
    victim, attacker = (json.loads((ours / f"rank{n}.json").read_text()) for n in range(2))
    assert {name: victim[name] for name in COLLECTIVES} == dict.fromkeys(COLLECTIVES, "ST-RUNT-001")
    assert attacker["rpc"] == "ST-RUNT-001"
    assert victim["good"] == 3
    assert attacker["sum"] == [2, 2]
    assert done.code == 1
    assert "error ST-RUNT-001: rank" in done.err
    assert "os.makedirs" in done.err
    refused = done.events("pickle-refused")
    assert {event.decision for event in refused} == {Decision.REFUSE}
    assert {event.subject for event in refused} == {"os.makedirs"}
    assert done.summary["code"] == "ST-RUNT-001"
