# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Plain torchrun on two machines with our rendezvous: an unmodified script, nothing else given.

Each machine is a namespace with a host name that is known nowhere, as in a container.

Commands of docs/how-to/run-your-script.md, docs/how-to/two-nodes.md are tried here.
"""

import sys
from pathlib import Path

import pytest

from securetrain.network.engines import missing_here
from securetrain.testing.cluster import DEVICE, NamespaceCluster
from tests.launch.two_nodes import NODES, POLICY, TRAIN, coordinated, job_of

pytestmark = [
    pytest.mark.netns,
    pytest.mark.dist,
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing_here()), reason=f"needs {', '.join(missing_here())}"),
]

NO_NETWORK = POLICY.replace("[overlay]", "[loopback]")


@pytest.fixture(scope="module")
def cluster():
    with NamespaceCluster.up(2) as made:
        yield made


def torchrun(_run_dir: Path, *arguments: str) -> list[str]:
    """Its command; ours has a policy, too."""
    policy, _, *rest = arguments
    assert policy == "--policy"
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "securetrain"),
        *("--nproc-per-node", "1", "--monitor-interval", "0.1", *rest),
    ]


@pytest.fixture
def begin(cluster, tmp_path):
    def start(policy):
        (tmp_path / "policy.yaml").write_text(policy)
        (tmp_path / "train.py").write_text(TRAIN)
        return coordinated(
            cluster=cluster,
            folder=tmp_path,
            job=job_of(tmp_path),
            run_command=torchrun,
        )

    return start


def start_both(nodes, **given):
    for node in NODES:
        nodes.start(node, "--max-restarts", "1", conf=f",bind={nodes.host(node).address}", **given)
    return [nodes.wait(node) for node in NODES]


def test_an_unmodified_script_trains_on_two_machines(begin):
    """It fails once on the second machine, and is trained again on both."""
    with begin(NO_NETWORK) as nodes:
        codes = start_both(nodes, crash="0")
        assert codes == [0, 0], "\n".join(nodes.err(node)[-3000:] for node in NODES)
        first, second = nodes.ranks()
        assert (first["loss"], first["weights"]) == (second["loss"], second["weights"])
        for rank in (first, second):
            assert rank["master"] == str(nodes.host(NODES[0]).address)
            assert rank["pins"] == {
                "GLOO_SOCKET_IFNAME": DEVICE,
                "TP_SOCKET_IFNAME": DEVICE,
                "NCCL_SOCKET_IFNAME": f"={DEVICE}",
            }


def test_a_policy_that_wants_a_tunnel_refuses_it(begin):
    with begin(POLICY) as nodes:
        assert all(start_both(nodes))
        for node in NODES:
            assert "ST-NETW-001" in nodes.err(node)
        assert not list(nodes.folder.glob("training-*"))


def test_an_address_of_somebody_else_is_refused(begin):
    with begin(NO_NETWORK) as nodes:
        nodes.start(NODES[1], conf=f",bind={nodes.host(NODES[0]).address}")
        assert nodes.wait(NODES[1]) != 0
        assert "ST-NETW-018" in nodes.err(NODES[1])
