# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""`securetrain run` on two machines, which are network namespaces on a bridge that is captured.

Commands of README.md, docs/how-to/run-your-script.md, docs/how-to/two-nodes.md are tried here.
"""

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from ipaddress import ip_address
from pathlib import Path

import pytest

from securetrain.network.addresses import Names, address
from securetrain.network.leftovers import collect
from securetrain.network.process_identity import running
from securetrain.network.record import STATE
from securetrain.testing.cluster import DEVICE, NamespaceCluster, missing
from securetrain.testing.frames import Kind, Traffic
from tests.launch.two_nodes import (
    CANARIES,
    NODES,
    PATIENCE,
    POLICY,
    TRAIN,
    TRAIN_DDP,
    TwoNodes,
    coordinated,
    job_of,
)
from tests.launch.worlds import clean_environment
from tests.vocabulary import needs, ran

pytestmark = [
    pytest.mark.netns,
    pytest.mark.dist,
    pytest.mark.slow,
    needs(missing),
]


@pytest.fixture(scope="module")
def cluster():
    with NamespaceCluster.up(2) as made:
        yield made


@pytest.fixture
def begin(cluster, tmp_path):
    """Starts a job's coordinator on the first host; what was started ends with the test."""
    env = clean_environment(PYTHONPATH=os.environ.get("PYTHONPATH", ""))
    with ExitStack() as stack:

        def start(policy=POLICY, fewest=2, script=TRAIN):
            (tmp_path / "policy.yaml").write_text(policy)
            (tmp_path / "train.py").write_text(script)
            given = {"cluster": cluster, "folder": tmp_path, "job": job_of(tmp_path)}
            return stack.enter_context(coordinated(env=env, fewest=fewest, **given))

        yield start


@pytest.fixture
def nodes(begin):
    return begin()


def tunnels(nodes):
    """Where the ledgers say that the nodes' tunnels are."""
    up = [next(e for e in nodes.events(n) if e.event == "job-network-up") for n in NODES]
    ends = [event.details["endpoint"].partition(" port ") for event in up]
    return {(ip_address(host), int(port)) for host, _, port in ends}


def test_the_whole_life_of_a_job_on_two_machines(begin, cluster):
    """An unmodified script trains, crashes on one machine, trains again on both, and ends.

    On the underlay there is nothing but WireGuard, TLS to the coordinator and the kernel's own.
    """
    nodes = begin(script=TRAIN_DDP)
    with cluster.capture() as capture:
        nodes.train("--require", "overlay", "--max-restarts", "2", crash="0")

    for node in NODES:
        applied = [event for event in nodes.events(node) if event.event == "epoch-applied"]
        assert len(applied) >= 2
        assert {event.details["nodes"] for event in applied} == {"node-a node-b"}
    first, second = nodes.ranks()
    assert first["loss"] == second["loss"]
    assert first["weights"] == second["weights"]
    for rank in (first, second):
        assert rank["master"] == str(address(nodes.job, 0))
        assert rank["underlay"] == 101  # ENETUNREACH
        assert {"lo", "st0"} <= set(rank["devices"])
        assert "eth0" not in rank["devices"]
        assert rank["capabilities"] == 0
        assert rank["run"] == []
        assert rank["pins"] == {
            "GLOO_SOCKET_IFNAME": "st0",
            "TP_SOCKET_IFNAME": "st0",
            "NCCL_SOCKET_IFNAME": "=st0",
        }

    assert capture.lost == 0
    frames = capture.read()
    control = (cluster.hosts[0].address, nodes.port)
    traffic = Traffic(tunnels=tunnels(nodes), control=control)
    assert traffic.strangers(frames) == []
    assert len([f for f in frames if traffic.kind(f) is Kind.WIREGUARD]) > 200
    openings = traffic.openings(frames)
    assert len(openings) == 2, "one machine's; the other one's stays on the coordinator's machine"
    assert all(opening.startswith(b"\x16\x03") for opening in openings)
    for canary in (*CANARIES, b"default_pg", b"torchelastic"):
        assert not [frame for frame in frames if canary in frame]

    for node in NODES:
        summary = nodes.summary(node)
        assert (summary["outcome"], summary["network"]) == ("succeeded", "overlay")
        assert summary["workers"]
        for worker in summary["workers"]:
            assert worker["sockets"]["profile"] == "overlay"
            assert not worker["sockets"].get("outside")
        assert "network      overlay (encrypted between machines)" in nodes.err(node)
        assert "succeeded; this node UNATTESTED" in nodes.err(node)
        events = {event.event for event in nodes.events(node)}
        assert {"job-network-up", "epoch-applied", "job-network-down"} <= events
        assert nodes.remains(node) == []
    assert "preshared" not in (nodes.folder / "ledger.jsonl").read_text()


def test_stock_torchrun_shows_all_of_it(cluster, tmp_path):
    """The control: the same script and the same bridge."""
    (tmp_path / "train.py").write_text(TRAIN_DDP)
    first = cluster.hosts[0].address
    launchers = []
    with cluster.capture() as capture, ExitStack() as stack:
        for rank, host in enumerate(cluster.hosts):
            command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
            command += ["--node-rank", str(rank), "--master-addr", str(first)]
            command += [str(tmp_path / "train.py"), str(tmp_path), str(first), "3", ""]
            env = clean_environment(GLOO_SOCKET_IFNAME=DEVICE)
            launchers.append(stack.enter_context(subprocess.Popen(host.command(*command), env=env)))
            stack.callback(launchers[-1].kill)
        assert [launcher.wait(PATIENCE) for launcher in launchers] == [0, 0]
    frames = capture.read()
    for canary in (*CANARIES, b"default_pg", b"torchelastic"):
        assert [frame for frame in frames if canary in frame], canary
    traffic = Traffic(tunnels=set(), control=(first, 1))
    assert any(stranger.startswith("TCP") for stranger in traffic.strangers(frames))
    ranks = [json.loads((tmp_path / f"rank-{n}.json").read_text()) for n in range(2)]
    assert all(rank["underlay"] != 101 for rank in ranks)


def test_a_killed_launcher(nodes):
    """The other node ends with a reason and removes all; what the killed one left, gc removes."""
    for node in NODES:
        nodes.start(node, conf=",join_timeout=20", steps=9999)
    nodes.wait_until_both_train()
    assert [nodes.listeners(node) for node in NODES] == [{nodes.port}, set()]
    nodes.launchers["node-b"].kill()  # nsenter became the launcher: this is its own pid
    assert nodes.wait("node-a") != 0
    assert nodes.summary("node-a")["outcome"] == "failed"
    assert nodes.remains("node-a") == []
    nodes.launchers["node-b"].wait()
    command = [sys.executable, "-m", "securetrain", "network", "gc"]
    done = ran(nodes.cluster.hosts[1].command(*command))
    assert Names.of(nodes.job, "node-b").namespace in done.stdout
    assert nodes.remains("node-b") == []
    assert collect().problems == {}


@pytest.mark.many
def test_an_epoch_without_a_node_that_died(begin):
    """With room for fewer nodes the other one goes on, in an epoch and a network of its own."""
    nodes = begin(fewest=1)
    for node in NODES:
        nodes.start(node, "--max-restarts", "3", nnodes="1:2", steps=200)
    nodes.wait_until_both_train()
    nodes.launchers["node-b"].kill()
    assert nodes.wait("node-a") == 0, nodes.err("node-a")[-3000:]
    applied = [event for event in nodes.events("node-a") if event.event == "epoch-applied"]
    assert [event.details["nodes"] for event in applied][-2:] == ["node-a node-b", "node-a"]
    assert nodes.remains("node-a") == []


@pytest.mark.many
def test_one_machine_with_a_coordinator_of_its_own(tmp_path, launch):
    policy, script = tmp_path / "policy.yaml", tmp_path / "s.py"
    policy.write_text(POLICY)
    script.write_text("import torch.distributed as d; d.init_process_group(); d.barrier()\n")
    words = ("--policy", str(policy), "--nproc-per-node", "2", str(script))
    done = launch(tmp_path / "run", *words, PYTHONPATH=os.environ.get("PYTHONPATH", ""))
    assert done.code == 0, done.err
    assert done.summary["network"] == "overlay"
    assert {worker["sockets"]["profile"] for worker in done.summary["workers"]} == {"overlay"}
    assert len(done.events("job-network-down")) == 1


FILL = """
import os, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
with open(os.environ["SECURETRAIN_RUN_DIR"] + "/checkpoints/filler", "wb", buffering=0) as file:
    try:
        while True: file.write(bytes(1 << 12))
    except OSError as error: print(error)
"""


@pytest.mark.many
def test_a_disk_that_fills_up_during_a_run(tmp_path, launch):
    """The ledger cannot be closed: the run has failed, says so once, and leaves no network."""
    policy, script, disk = tmp_path / "policy.yaml", tmp_path / "s.py", tmp_path / "disk"
    policy.write_text(POLICY)
    script.write_text(FILL)
    disk.mkdir()
    mount = ["/bin/mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "tmpfs", str(disk)]
    subprocess.run(mount, check=True)
    try:
        done = launch(disk / "run", "--policy", str(policy), str(script))
        assert "No space left" in done.out
        assert done.code != 0
        assert done.err.count("error ST-") == 1, done.err
        assert "ST-USAG-006" in done.err
        entries = map(json.loads, done.run.ledger.read_text().splitlines())
        events = [entry["body"]["event"] for entry in entries]
        made = [event for event in events if event["event"] == "job-network-up"]
        (space,) = [event["subject"] for event in made]
        assert not Path("/run/netns", space).exists()
        assert not (STATE / space).exists()
    finally:
        subprocess.run(["/bin/umount", "-l", str(disk)], check=True)


def test_a_dead_engine_ends_the_run_with_its_own_code(nodes):
    for node in NODES:
        nodes.start(node, steps=9999)
    nodes.wait_until_both_train()
    for pid in running("wireguard-go", Names.of(nodes.job, "node-b").device):
        os.kill(pid, signal.SIGKILL)
    assert nodes.wait("node-b") == 1
    summary = nodes.summary("node-b")
    assert (summary["outcome"], summary["code"]) == ("failed", "ST-NETW-014")
    assert "ST-NETW-014" in nodes.err("node-b")
    assert nodes.remains("node-b") == []
    nodes.launchers["node-a"].send_signal(signal.SIGTERM)
    assert nodes.wait("node-a") != 0
    assert nodes.remains("node-a") == []


@pytest.mark.many
def test_commands_only_and_a_revoked_machine(cluster, tmp_path):
    """From the CA to the last epoch as a person does it; a machine is revoked on the way."""
    env = clean_environment(PYTHONPATH=os.environ.get("PYTHONPATH", ""))
    first = cluster.hosts[0]
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "train.py").write_text(TRAIN)

    def ours(host, *arguments):
        command = host.command(sys.executable, "-m", "securetrain", *map(str, arguments))
        subprocess.run(command, env=env, cwd=tmp_path, timeout=60, check=True, capture_output=True)

    ours(first, "ca", "init", tmp_path / "ca")
    job = f"run-{os.getpid()}"
    options = ["--ca", tmp_path / "ca", "--job", job, "--nnodes", "1:2", "--bind", first.address]
    options += ["--policy", tmp_path / "policy.yaml", "--port", "0", "--enroll-port", "0", "--json"]
    options += [word for node in NODES for word in ("--invite", node)]
    coordinator = subprocess.Popen(
        first.command(sys.executable, "-m", "securetrain", "coordinator", *map(str, options)),
        env=env,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert coordinator.stdout is not None
        ready: dict[str, str] = {}
        tokens: dict[str, str] = {}
        while len(tokens) < len(NODES):
            match json.loads(coordinator.stdout.readline()):
                case {"event": "ready"} as ready:
                    pass
                case {"event": "token", "node": node, "token": token}:
                    tokens[node] = token
        for node, host in zip(NODES, cluster.hosts, strict=True):
            ours(host, "enroll", "join", tokens[node], "--out", tmp_path / node)
        nodes = TwoNodes(
            cluster=cluster,
            folder=tmp_path,
            port=int(ready["address"].rpartition(":")[2]),
            job=job,
            env=env,
        )
        try:
            for node in NODES:
                nodes.start(node, nnodes="1:2", steps=300)
            nodes.wait_until_both_train()
            ours(first, "ca", "revoke", tmp_path / "ca", "--node", "node-b", "--reason", "a test")
            assert nodes.wait("node-b") != 0
            assert nodes.wait("node-a") == 0, nodes.err("node-a")[-3000:]
        finally:
            nodes.end()
        assert coordinator.wait(60) == 0
    finally:
        coordinator.kill()
        coordinator.communicate()
    applied = [event for event in nodes.events("node-a") if event.event == "epoch-applied"]
    assert [event.details["nodes"] for event in applied][-2:] == ["node-a node-b", "node-a"]
    assert [nodes.remains(node) for node in NODES] == [[], []]
