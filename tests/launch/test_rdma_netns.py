# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""`securetrain run` under rdma-trusted on two machines that only say that they have RDMA ports.

What is read of the machine is made up (test_verbs has the reading); the policy, the job network,
the environment, the ledger, the report and the end of the run are the real ones.
"""

import os
import sys
from datetime import UTC, datetime

import pytest

from securetrain.report import runs, written
from securetrain.report.run.record import read_run
from securetrain.testing.cluster import missing
from tests.launch.two_nodes import NODES, POLICY, TRAIN, up
from tests.launch.worlds import clean_environment
from tests.vocabulary import needs

pytestmark = [
    pytest.mark.netns,
    pytest.mark.dist,
    pytest.mark.slow,
    needs(missing),
]

IN_CLEAR = """\
network:
  require: [rdma-trusted]
  fabric: trusted-plaintext
  isolation: {statement: a bridge of this test and nobody else, evidence: statement}
"""

# argv: a file that stands for the port: without it there is none. Then as `securetrain`.
LAUNCH = """
import sys
from pathlib import Path
from securetrain.core.errors import NetworkError
from securetrain.launch.network import fabric
from securetrain.network.rdma import Place
from securetrain.network.verbs import Readers
port = Path(sys.argv.pop(1))
def place(address):
    if not port.exists():
        raise NetworkError("ST-NETW-032", "the port is gone")
    return Place(device="mlx5_0", port=1, interface="eth0", address=address, gid=3)
made, readers = fabric.Fabric.__init__, Readers(place=place, is_exclusive=lambda: False)
fabric.Fabric.__init__ = lambda self, **more: made(self, **more, readers=readers)
from securetrain.cli.main import entry
entry()
"""

# The worker says what NCCL is told, and then does all as in every other test, with Gloo.
TOLD = """
import os
with open(f"{__import__('sys').argv[1]}/told-{os.environ['RANK']}", "w") as file:
    file.write(" ".join(sorted(f"{k}={v}" for k, v in os.environ.items() if k.startswith("NCCL_"))))
"""


@pytest.fixture
def nodes(tmp_path):
    network = "network: {require: [overlay]}\n"
    assert network in POLICY
    (tmp_path / "policy.yaml").write_text(POLICY.replace(network, IN_CLEAR))
    (tmp_path / "train.py").write_text(TOLD + TRAIN)
    (tmp_path / "port").touch()

    def run_command(run_dir, *arguments):
        launcher = [sys.executable, "-c", LAUNCH, str(tmp_path / "port")]
        ours = ["--run-dir", str(run_dir), "--output", str(tmp_path)]
        return [*launcher, "run", *ours, *arguments]

    env = clean_environment(PYTHONPATH=os.environ.get("PYTHONPATH", ""))
    with up(tmp_path, run_command=run_command, env=env) as made:
        yield made


def test_a_run_in_clear_says_so_everywhere(nodes):
    nodes.train("--require", "rdma-trusted")
    for rank, node in enumerate(NODES):
        assert "network      rdma-trusted DEGRADED (some bytes in the clear)" in nodes.err(node)
        told = (nodes.folder / f"told-{rank}").read_text().split()
        assert {"NCCL_NET=IB", "NCCL_IB_HCA==mlx5_0:1", "NCCL_IB_GID_INDEX=3"} <= set(told)
        assert "NCCL_SOCKET_IFNAME==st0" in told
        events = {event.event: event for event in nodes.events(node)}
        assert "DEGRADED" in events["profile-achieved"].subject
        assert events["rdma-guarded"].details["isolation"].startswith("a bridge of this test")
        page = runs.page(read_run(nodes.folder / f"run-{node}", datetime.now(UTC)))
        for form in ("text", "json", "html"):
            text = " ".join(written(page, form).split())
            assert "rdma-trusted DEGRADED" in text
            assert "travelled in the clear" in text
            assert "encrypted between" not in text


def test_a_port_that_goes_away_ends_the_run(nodes):
    for node in NODES:
        nodes.start(node, conf=",join_timeout=20", steps=9999)
    nodes.wait_until_both_train()
    (nodes.folder / "port").unlink()
    assert [nodes.wait(node) for node in NODES] == [1, 1]
    for node in NODES:
        assert nodes.remains(node) == []
    assert "ST-NETW-034" in {nodes.summary(node)["code"] for node in NODES}
    assert "the port is gone" in nodes.err("node-a") + nodes.err("node-b")
