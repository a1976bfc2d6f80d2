# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Two NCCL ranks on one GPU, each in a job namespace of its own, train over WireGuard.

A GPU is not meant for two ranks. With another ``NCCL_HOSTID`` each, NCCL takes them for two hosts
and uses its sockets, which is the transport that is tested here; shared memory and peer access are
off, so that it has no other (NCCL's environment variables; nccl issue 418).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed

from securetrain.network.addresses import address
from securetrain.testing.cluster import NamespaceCluster, missing
from tests.launch.two_nodes import NODES, PATIENCE, POLICY, coordinated
from tests.launch.worlds import clean_environment

LACKING = missing()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.netns,
    pytest.mark.dist,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: NCCL was not run"),
    pytest.mark.skipif(
        not torch.distributed.is_nccl_available(), reason="this torch has no NCCL: it was not run"
    ),
    pytest.mark.skipif(bool(LACKING), reason=f"job networks need: {'; '.join(LACKING)}"),
]

CANARY = b"CANARY-GRADIENT-0123456789"

# argv: folder, and what else the harness gives. Every rank has the one GPU.
TRAIN = """
import json, os, sys
for name, value in {
    "NCCL_HOSTID": "host-" + os.environ["RANK"],
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",  # NCCL 2.30 and later ask for it
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MAX_NCHANNELS": "1",
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,NET",
    "NCCL_DEBUG_FILE": sys.argv[1] + "/nccl-" + os.environ["RANK"] + ".log",
}.items():
    os.environ[name] = value

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from securetrain.network.kernel_sockets import own_listeners

torch.cuda.set_device(0)
dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
rank = dist.get_rank()
canary = torch.tensor(list(b"CANARY-GRADIENT-0123456789" * 400), dtype=torch.uint8, device="cuda")
if rank:
    canary.zero_()
dist.broadcast(canary, 0)
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(64, 64).cuda(), device_ids=[0])
optimizer = torch.optim.SGD(model.parameters(), 0.01)
data = torch.randn(16, 64, generator=torch.Generator().manual_seed(rank)).cuda()
first = last = None
for _ in range(20):
    optimizer.zero_grad()
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    first, last = first or total.item(), total.item()
with open(f"{sys.argv[1]}/rank-{rank}.json", "w") as file:
    json.dump({
        "first": first, "last": last,
        "weight": model.module.weight.double().sum().item(),
        "canary": bytes(canary.cpu().tolist()[:26]).decode(),
        "listens": sorted({entry.address for entry in own_listeners()}),
        "net": os.environ.get("NCCL_NET"),
        "interface": os.environ.get("NCCL_SOCKET_IFNAME"),
    }, file)
dist.barrier()
dist.destroy_process_group()
"""


def results(folder: Path):
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


def require_training(ranks) -> None:
    """Both ranks trained one model, on what the other sent them."""
    first, second = ranks
    assert first["last"] == second["last"] < first["first"]
    assert first["weight"] == second["weight"]
    assert {rank["canary"] for rank in ranks} == {CANARY.decode()}


def test_two_ranks_on_one_gpu_over_wireguard(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "policy.yaml").write_text(POLICY)
    env = clean_environment(PYTHONPATH=os.environ.get("PYTHONPATH", ""))
    job = f"gpu-{os.getpid()}"
    with NamespaceCluster.up(2) as cluster:
        with coordinated(cluster=cluster, folder=tmp_path, job=job, env=env) as nodes:
            with cluster.capture() as capture:
                for node in NODES:
                    nodes.start(node, "--require", "overlay")
                codes = [nodes.wait(node) for node in NODES]
                frames = capture.read()
            logs = [path.read_text()[-3000:] for path in sorted(tmp_path.glob("nccl-*.log"))]
            assert codes == [0, 0], "\n".join([*(nodes.err(n)[-3000:] for n in NODES), *logs])
            outside = [nodes.listeners(node) for node in NODES]
        ranks = results(tmp_path)
    require_training(ranks)
    for number, rank in enumerate(ranks):
        # Inside: the tunnel's address, or loopback; NCCL was told so, and did so.
        assert set(rank["listens"]) <= {str(address(job, number)), "127.0.0.1", "::1"}, rank
        assert (rank["net"], rank["interface"]) == ("Socket", "=st0")
        log = (tmp_path / f"nccl-{number}.log").read_text()
        assert "st0" in log
        assert "eth0" not in log
    # Outside: nobody listens but the coordinator, and nothing is in the clear.
    assert outside == [{nodes.port}, set()]
    assert len(frames) > 100
    assert not [frame for frame in frames if CANARY in frame]
    assert {
        port
        for frame in frames
        if frame[12:14] == b"\x08\x00" and frame[23] == 6
        for port in (int.from_bytes(frame[at : at + 2], "big") for at in (34, 36))
        if port < 32768 or port == nodes.port
    } <= {nodes.port}


def test_control_plain_nccl_is_read_on_the_wire(tmp_path):
    """The same script under torchrun: NCCL listens on the machine's address, in the clear."""
    (tmp_path / "train.py").write_text(TRAIN)
    env = clean_environment(
        PYTHONPATH=os.environ.get("PYTHONPATH", ""),
        NCCL_SOCKET_IFNAME="=eth0",
        NCCL_NET="Socket",
        NCCL_IB_DISABLE="1",
    )
    with NamespaceCluster.up(2) as cluster:
        first = str(cluster.hosts[0].address)
        with cluster.capture() as capture:
            started = [
                subprocess.Popen(
                    host.command(
                        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"),
                        *("--nproc-per-node", "1", "--node-rank", str(number)),
                        *("--master-addr", first, "--master-port", "29500"),
                        *(str(tmp_path / "train.py"), str(tmp_path)),
                    ),
                    env=env,
                )
                for number, host in enumerate(cluster.hosts)
            ]
            try:
                codes = [process.wait(PATIENCE) for process in started]
            finally:
                for process in started:
                    process.kill()
            frames = capture.read()
        assert codes == [0, 0]
        for rank, host in zip(results(tmp_path), cluster.hosts, strict=True):
            assert str(host.address) in rank["listens"]
    assert [frame for frame in frames if CANARY in frame]
    require_training(results(tmp_path))
