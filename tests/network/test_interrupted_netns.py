# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Job networks whose making is cut short: an owner killed at every step, a full disk, broken tools.

What a host has is listed before and after, whatever it is called: devices, filters, engines, the
job's namespaces and the state folder.
"""

import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from securetrain.core.errors import NetworkError, SecureTrainError
from securetrain.network import wireguard_go
from securetrain.network.leftovers import collect, devices
from securetrain.network.overlay import Overlay
from securetrain.network.system_tools import program
from securetrain.network.wireguard import Endpoint
from securetrain.network.wireguard_go import WireGuardGo
from securetrain.testing.cluster import NamespaceCluster, missing
from tests import vocabulary
from tests.network.worlds import UNDERLAY, Job, plan_on
from tests.tables import items
from tests.vocabulary import needs

pytestmark = [
    pytest.mark.netns,
    pytest.mark.slow,
    needs(missing, WireGuardGo().missing),
]

PORT = 51820

# argv: job, state, namespace and address of the host. For each number that it reads, a process of
# its own makes a job network and ends it, and is killed after that many commands, if there are.
OWNER = """
import os, signal, sys
from ipaddress import ip_address
from pathlib import Path
from securetrain.network.system_tools import run_command
from securetrain.network.epoch import OverlayMember
from securetrain.network.overlay import Overlay, Plan
from securetrain.network.wireguard import Endpoint, WireGuardKey
from securetrain.network.wireguard_go import GoDevice, WireGuardGo
job, state, host, address = sys.argv[1:]
key = WireGuardKey.generate()
end = Endpoint(ip_address(address), 51820)
other = OverlayMember(node="node-x", public_key=WireGuardKey.generate().public, slot=1,
                      endpoint=Endpoint(end.address, 9), preshared_key=bytes(range(32)))
me = OverlayMember(node="node-0", public_key=key.public, slot=0, endpoint=end)
def die():
    os.kill(os.getpid(), signal.SIGKILL)
def own(last):
    count = 0
    def run(argv, *, data=b""):
        nonlocal count
        result = run_command(argv, data=data)
        count += 1
        if count == last:
            die()
        return result
    if last == 0:
        GoDevice.wait_ready = lambda self: die()  # the engine has been started, and no more
    plan = Plan(job=job, node="node-0", key=key, endpoint=end.address, port=51820, host=host)
    with Overlay.up(plan, state=Path(state), engine=WireGuardGo(), run=run) as overlay:
        overlay.apply(1, [me, other])
        if last == -1:
            die()
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        own(int(line))
        os._exit(0)
    print(os.waitpid(pid, 0)[1], flush=True)
"""


PIPES: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}


@pytest.fixture(scope="module")
def hosts():
    with NamespaceCluster.up(2) as made:
        yield made.hosts


class Trial:
    """A job that others may not disturb, and what its machine has."""

    def __init__(self, host, state) -> None:
        self.host = host
        self.state = state
        self.name = f"job-{secrets.token_hex(4)}"
        self.job = Job({"node-0": Endpoint(host.address, PORT)})

    def plan(self):
        return plan_on(self.host, self.name, key=self.job.keys["node-0"], port=PORT)

    def up(self):
        return Overlay.up(self.plan(), state=self.state, engine=WireGuardGo())

    def everything(self):
        place = self.host.namespace
        engines = [pid for pid in place.processes() if command_name(pid) == "wireguard-go"]
        spaces = [path.name for path in Path("/run/netns").iterdir() if self.name in path.name]
        state = self.state.iterdir() if self.state.exists() else ()
        return {
            "devices": sorted(devices(place)),
            "tables": sorted(self.host.tables()),
            "engines": engines,
            "namespaces": spaces,
            "ports": sorted(self.host.udp_ports()),
            "state": sorted(path.name for path in state if path.name != "lock"),
        }


def command_name(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.fixture
def trial(hosts, state):
    made = Trial(hosts[0], state)
    before = made.everything()
    yield made
    assert made.everything() == before


def test_an_owner_killed_at_any_moment_leaves_nothing_after_gc_or_the_next_up(trial, hosts):
    neighbour = Trial(hosts[1], trial.state)  # of the same state folder, and alive
    before, killed = trial.everything(), 0
    arguments = [trial.name, str(trial.state), trial.host.name, str(trial.host.address)]
    with (
        neighbour.up() as living,
        subprocess.Popen([sys.executable, "-c", OWNER, *arguments], **PIPES) as owner,
    ):
        assert owner.stdin is not None
        assert owner.stdout is not None
        (folder,) = trial.everything()["state"]
        assert folder == living.names.namespace
        for step in range(-1, 60):
            owner.stdin.write(f"{step}\n")
            owner.stdin.flush()
            if owner.stdout.readline() != "9\n":
                break
            killed += 1
            left = trial.everything()
            claims = len(left["state"]) - 1
            assert claims or left == {**before, "state": [folder]}, "nothing without a claim"
            if step % 2:
                found = collect(trial.state)
                assert (len(found.removed), len(found.alive), found.problems) == (claims, 1, {})
            else:
                trial.up().down()
            assert trial.everything() == {**before, "state": [folder]}, f"after command {step}"
        owner.stdin.close()
        assert living.read().port == PORT, "nobody touched the neighbour"
    assert killed > 15


@pytest.fixture
def small_disk(tmp_path):
    """Makes file systems with room for so many files."""
    made = []

    def make(files):
        folder = tmp_path / f"disk-{files}"
        folder.mkdir()
        options = f"size=1m,nr_inodes={files},mode=0700"
        command = [program("mount"), "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        subprocess.run(command, check=True)
        made.append(folder)
        return folder

    yield make
    # All of them, whoever still has a file open there.
    left = [subprocess.run(["/bin/umount", "-l", str(f)], check=False).returncode for f in made]
    assert not any(left), left


def test_a_full_disk_is_one_clear_error_at_every_file(trial, small_disk):
    before, refused = trial.everything(), []
    for files in range(2, 30):
        trial.state = small_disk(files) / "state"
        try:
            trial.up().down()
            break
        except SecureTrainError as error:
            refused.append(error.code)
        assert trial.everything() == before, f"with room for {files} files"
    assert len(refused) >= 4, "the folder, its lock, the record, the names"
    assert set(refused) == {"ST-USAG-006"}


def test_a_disk_that_fills_up_later_is_no_way_to_stay_half_configured(trial, small_disk):
    """The names of an epoch cannot be written: the whole job network goes."""
    disk = small_disk(40)
    trial.state = disk / "state"
    before = trial.everything()
    others = {f"node-{n}-{'x' * 40}": Endpoint(UNDERLAY + n, PORT) for n in range(200)}
    trial.job = Job({"node-0": Endpoint(trial.host.address, PORT), **others})
    overlay = trial.up()
    (disk / "filler").write_bytes(bytes(os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize))
    for number in range(os.statvfs(disk).f_favail):
        (disk / str(number)).touch()
    members = trial.job.members("node-0")  # more than a block
    vocabulary.refused(SecureTrainError, "ST-USAG-006", overlay.apply, 1, members)
    assert trial.everything() == before
    vocabulary.refused(NetworkError, "ST-NETW-014", overlay.read)


@items(
    "script, said",
    ("echo 'no such key' >&2; exit 1", "no such key"),
    ("exec sleep 60", "does not answer"),
    ("kill -SEGV $$", "killed by signal 11"),
)
def test_an_engine_that_does_not_come_up(trial, tmp_path, monkeypatch, script, said):
    engine = tmp_path / "engine"
    engine.write_text(f"#!/bin/sh\n{script}\n")
    engine.chmod(0o755)
    real = program
    monkeypatch.setattr(
        wireguard_go, "program", lambda name: str(engine) if name == "wireguard-go" else real(name)
    )
    monkeypatch.setattr(wireguard_go, "_PATIENCE_SECONDS", 1.0)
    error = vocabulary.refused(NetworkError, "ST-NETW-013", trial.up)
    assert said in str(error)


def test_an_engine_that_dies_between_two_steps(trial, monkeypatch):
    """It is gone when its port is to be looked at."""
    real = wireguard_go.GoDevice.moved

    def moved(self, place, name):
        self.child.kill()
        self.child.wait()
        real(self, place, name)

    monkeypatch.setattr(wireguard_go.GoDevice, "moved", moved)
    vocabulary.refused(NetworkError, "^ST-NETW-01[13]", trial.up)
