# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Job networks of an ordinary user, in user namespaces. Root is only needed to make the hosts."""

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from securetrain.network import rootless
from securetrain.network.wireguard import Endpoint, decode_key, encode_key, pairwise_psk
from securetrain.network.wireguard_go import WireGuardGo
from securetrain.testing.cluster import DEVICE, NamespaceCluster, missing
from securetrain.testing.frames import Traffic
from tests.network.ordinary_user import AS_USER, ENVIRONMENT, interpreter
from tests.vocabulary import is_below, needs

pytestmark = [
    pytest.mark.netns,
    pytest.mark.slow,
    needs(missing, rootless.missing, WireGuardGo().missing),
]

PORT = 51820

# A launcher: reads what the coordinator would send, runs a program inside, says what it printed.
LAUNCHER = """
import json, os, subprocess, sys
from securetrain.core.vocabulary import NetworkProfile
from securetrain.network import rootless
from securetrain.network.engines import probe
from securetrain.network.epoch import OverlayMember
from securetrain.network.overlay import Overlay, Plan
from securetrain.network.wireguard import Endpoint, WireGuardKey, decode_key, encode_key
job, node, address = sys.argv[1:]
key = WireGuardKey.generate()
entrance = rootless.forwarded_endpoint(os.environ)
assert str(entrance) == address
plan = Plan(job=job, node=node, key=key, endpoint=rootless.INNER_ADDRESS, port=entrance.port)
with Overlay.up(plan) as overlay:
    print(json.dumps({
        "key": encode_key(key.public),
        "inside": rootless.is_inside(),
        "overlay": probe(NetworkProfile.OVERLAY),
        "rootless": probe(NetworkProfile.OVERLAY_ROOTLESS),
    }), flush=True)
    overlay.apply(1, [
        OverlayMember(node=m["node"], public_key=decode_key(m["key"]), slot=m["slot"],
                      endpoint=Endpoint.parse(m["endpoint"]),
                      preshared_key=decode_key(m["psk"]) if m["psk"] else b"")
        for m in json.loads(sys.stdin.readline())
    ])
    print("applied", flush=True)
    code = sys.stdin.readline()
    while code:
        subprocess.run(overlay.command([sys.executable, "-I", "-c", json.loads(code)]))
        code = sys.stdin.readline()
"""
SERVE = """
import socket
s = socket.create_server(("node-0", 7000)); print("ready", flush=True)
c, peer = s.accept(); print(peer[0], len(c.makefile("rb").read()), flush=True)
"""
SEND = """
import socket
s = socket.create_connection(("node-0", 7000), 30); s.sendall(b"CANARY" * 100000); s.close()
print("sent", flush=True)
"""
PEEK = """
import socket
for target in ("198.18.0.1", "198.18.0.2", "192.0.0.1", "169.254.169.254"):
    try: socket.create_connection((target, 80), 2); print(0)
    except OSError as error: print(error.errno)
print("end", flush=True)
"""


class Launcher:
    def __init__(self, python, host, job, node) -> None:
        end = Endpoint(host.address, PORT)
        argv = [python, "-c", LAUNCHER, job, node, str(end)]
        command = rootless.command(argv, udp=end, device=DEVICE, mtu=1500)
        self.process = subprocess.Popen(
            [*host.command(*AS_USER), *command],
            env=rootless.inner_environment(ENVIRONMENT, end),
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, value):
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()

    def hear(self):
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@pytest.fixture
def cluster():
    with NamespaceCluster.up(2) as made:
        yield made


@pytest.fixture
def launchers(cluster, monkeypatch):
    python = interpreter()
    if python is None:
        pytest.skip("no Python that an ordinary user may start finds the package")
    monkeypatch.setattr(sys, "executable", python)  # what the user's own launcher runs in
    job = f"job-{secrets.token_hex(4)}"
    made = [Launcher(python, host, job, f"node-{n}") for n, host in enumerate(cluster.hosts)]
    yield made
    for launcher in made:
        launcher.process.kill()
        launcher.process.communicate()


def test_an_ordinary_user_gets_an_encrypted_network(cluster, launchers):
    said = [json.loads(launcher.hear()) for launcher in launchers]
    for entry in said:
        assert entry["inside"] is True
        assert "overlay-rootless" in entry["overlay"]  # the label is the honest one
        assert entry["rootless"] == ""
    keys = [decode_key(entry["key"]) for entry in said]
    shared = encode_key(pairwise_psk(secrets.token_bytes(32), *keys))
    with cluster.capture() as capture:
        for own, launcher in enumerate(launchers):
            launcher.tell(
                [
                    {
                        "node": f"node-{n}",
                        "key": entry["key"],
                        "slot": n,
                        "endpoint": f"{cluster.hosts[n].address}:{PORT}",
                        "psk": "" if n == own else shared,
                    }
                    for n, entry in enumerate(said)
                ]
            )
            assert launcher.hear() == "applied"
        server, client = launchers
        server.tell(SERVE)
        assert server.hear() == "ready"
        client.tell(SEND)
        assert client.hear() == "sent"
        address, size = server.hear().split()
        assert address.startswith("100.")
        assert int(size) == 600_000
        frames = capture.read()
        # Some are missed on a busy machine, and segments may be merged: enough that CANARY is seen.
        assert sum(map(len, frames)) > 60_000
        assert not [frame for frame in frames if b"CANARY" in frame]
        ends = {(host.address, PORT) for host in cluster.hosts}
        nobody = (cluster.hosts[0].address, 0)
        assert Traffic(tunnels=ends, control=nobody).strangers(frames) == []
    client.tell(PEEK)
    assert [client.hear() for _ in range(5)] == ["101", "101", "101", "101", "end"]


def test_a_killed_launcher_leaves_nothing(cluster, launchers):
    launcher = launchers[0]
    assert json.loads(launcher.hear())["inside"]
    mine = [pid for pid in everything() if is_below(pid, launcher.process.pid)]
    assert len(mine) >= 2  # pasta's child, the launcher, its engine
    first = [pid for pid in mine if b"-c\0" in command_line(pid)]
    os.kill(first[-1], 9)
    launcher.process.wait(10)
    assert [pid for pid in mine if command_line(pid)] == []


def everything():
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
