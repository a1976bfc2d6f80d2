# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""`securetrain run` of an ordinary user on two machines; root only makes the machines."""

import os
import shutil
import signal
import subprocess
import tempfile
from ipaddress import ip_address
from pathlib import Path

import pytest

from securetrain.network import rootless
from securetrain.network.wireguard_go import WireGuardGo
from securetrain.testing.cluster import missing
from securetrain.testing.frames import Kind, Traffic
from tests.launch.two_nodes import CANARIES, NODES, PATIENCE, POLICY, TRAIN, up
from tests.network.ordinary_user import AS_USER, ENVIRONMENT, USER, interpreter
from tests.vocabulary import is_below, needs

pytestmark = [
    pytest.mark.netns,
    pytest.mark.dist,
    pytest.mark.slow,
    needs(missing, rootless.missing, WireGuardGo().missing),
]

ROOTLESS = POLICY.replace("[overlay]", "[overlay, overlay-rootless]")


@pytest.fixture
def folder():
    """A folder of the user's: pytest's own are root's."""
    made = Path(tempfile.mkdtemp(prefix="rootless-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def nodes(folder):
    python = interpreter("torch")
    if python is None:
        pytest.skip("no Python that an ordinary user may start finds torch and the package")

    def run_command(run_dir, *arguments):
        return [
            *(*AS_USER, python, "-m", "securetrain", "run", "--run-dir", str(run_dir)),
            *("--output", str(folder)),
            *arguments,
        ]

    env = {**ENVIRONMENT, "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    with up(folder, policy=ROOTLESS, script=TRAIN, run_command=run_command, env=env) as made:
        for path in {folder, *folder.rglob("*")} - {folder / "ledger.jsonl"}:  # the coordinator's
            os.chown(path, USER, USER)
        yield made


def inside(nodes, node):
    """The processes of a launcher, by pid, with what they run."""
    launcher = nodes.launchers[node].pid
    pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())
    return {pid: command_line(pid) for pid in pids if pid == launcher or is_below(pid, launcher)}


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def test_an_ordinary_user_trains_on_two_machines(nodes):
    with nodes.cluster.capture() as capture:
        nodes.train()
    first, second = nodes.ranks()
    assert first["loss"] == second["loss"]
    for rank in (first, second):
        assert rank["underlay"] == 101  # ENETUNREACH
        assert rank["capabilities"] == 0
        assert rank["run"] == []
        assert "eth0" not in rank["devices"]
    tunnels = set()
    for node in NODES:
        assert nodes.summary(node)["network"] == "overlay-rootless"
        assert "network      overlay-rootless (encrypted between machines" in nodes.err(node)
        (up,) = [event for event in nodes.events(node) if event.event == "job-network-up"]
        host, _, port = up.details["endpoint"].partition(" port ")
        assert host == str(nodes.host(node).address), "the machine's, not the one inside"
        tunnels.add((ip_address(host), int(port)))
    frames = capture.read()
    assert capture.lost == 0
    traffic = Traffic(tunnels=tunnels, control=(nodes.cluster.hosts[0].address, nodes.port))
    assert traffic.strangers(frames) == []
    assert len([f for f in frames if traffic.kind(f) is Kind.WIREGUARD]) > 100
    for canary in CANARIES:
        assert not [frame for frame in frames if canary in frame]


def test_signals_reach_the_launcher_inside_and_a_kill_leaves_nothing(nodes):
    for node in NODES:
        nodes.start(node, conf=",join_timeout=20", steps=9999)
    nodes.wait_until_both_train()
    processes = {node: inside(nodes, node) for node in NODES}
    assert all(any(b"wireguard-go" in line for line in p.values()) for p in processes.values())
    nodes.launchers["node-a"].send_signal(signal.SIGTERM)
    assert nodes.wait("node-a") == 130
    assert nodes.summary("node-a")["outcome"] == "interrupted"
    assert "ended by SIGTERM" in nodes.err("node-a")
    nodes.launchers["node-b"].kill()
    nodes.launchers["node-b"].wait(PATIENCE)
    for node in NODES:
        left = [pid for pid, line in processes[node].items() if gone_after(pid, line)]
        assert left == [], node


def gone_after(pid, line):
    """Whether a process is still what it was, a while after the kernel was told to end it."""
    wait = ["timeout", "20", "tail", f"--pid={pid}", "-f", "/dev/null"]
    if command_line(pid) == line:
        subprocess.run(wait, check=False)
    return command_line(pid) == line
