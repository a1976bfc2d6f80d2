# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Who goes inside, and whom signals reach there (for real: test_rootless_netns)."""

import os
import signal
import subprocess
from ipaddress import ip_address
from typing import Any

import pytest

from securetrain.core.errors import AdmissionError, NetworkError
from securetrain.core.vocabulary import NetworkProfile
from securetrain.launch.network import rootless_launcher
from securetrain.launch.network.rootless_launcher import (
    first_inside,
    needs_user_namespace,
    run_inside,
    signal_inside,
)
from securetrain.launch.options import scan
from securetrain.network import engines
from securetrain.network import rootless as network_rootless
from securetrain.network.wireguard import Endpoint
from securetrain.policy.schema import Network
from tests.vocabulary import refused

OVERLAY, ROOTLESS, LOOPBACK = (
    NetworkProfile.OVERLAY,
    NetworkProfile.OVERLAY_ROOTLESS,
    NetworkProfile.LOOPBACK,
)
TWO = ["--nnodes", "2", "--rdzv-endpoint", "192.0.2.1:29400"]


@pytest.fixture(autouse=True)
def ordinary(monkeypatch):
    """An ordinary user on a machine that can."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)

    def probe(profile):
        return "CAP_NET_ADMIN" if profile is OVERLAY else ""

    monkeypatch.setattr(engines, "probe", probe)


@pytest.mark.parametrize(
    ("require", "argv", "inside"),
    [
        ((ROOTLESS,), TWO, True),
        ((OVERLAY, ROOTLESS), TWO, True),
        ((LOOPBACK, ROOTLESS), TWO, True),
        ((LOOPBACK, ROOTLESS), [], False),
        ((LOOPBACK, ROOTLESS), ["--require", "overlay-rootless"], True),
        ((ROOTLESS, LOOPBACK), [], True),
        ((OVERLAY,), TWO, False),
        ((OVERLAY,), [*TWO, "--require", "overlay-rootless"], False),
        ((OVERLAY, ROOTLESS), [*TWO, "--require", "overlay"], False),
        # What is malformed, or refused, is refused where a ledger records it.
        ((ROOTLESS,), ["--nnodes", "2"], False),
        ((ROOTLESS,), ["--nnodes", "many", *TWO[2:]], False),
        ((ROOTLESS,), [*TWO, "--require", "vpn"], False),
    ],
)
def test_who_goes_inside(require, argv, inside, monkeypatch):
    network = Network(require=require)
    assert needs_user_namespace(network, scan([*argv, "s.py"])) is inside
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert not needs_user_namespace(network, scan([*argv, "s.py"])), "never root"


def test_a_machine_that_cannot(monkeypatch):
    monkeypatch.setattr(engines, "probe", lambda _: "TUN devices")
    assert not needs_user_namespace(Network(require=(ROOTLESS,)), scan([*TWO, "s.py"]))


@pytest.fixture
def way(monkeypatch):
    """A way in that is recorded; what is started inside is a shell."""
    said: list[tuple[Any, ...]] = []
    end = Endpoint(ip_address("192.0.2.7"), 51820)

    def start(argv, **options):
        said.append(("command", argv, options))
        return ["/bin/sh", "-c", "exit 21"]

    monkeypatch.setattr(rootless_launcher, "announced_address", lambda *_: end.address)
    monkeypatch.setattr(rootless_launcher, "underlay_mtu", lambda *_: 1400)
    monkeypatch.setattr(network_rootless, "new_forwarded_endpoint", lambda _: end)
    monkeypatch.setattr(network_rootless, "device_of", lambda _: "eth1")
    monkeypatch.setattr(network_rootless, "rehearse", lambda **o: said.append(("rehearse", o)))
    monkeypatch.setattr(network_rootless, "command", start)
    return said


def test_the_launcher_inside_gets_the_same_command_line_and_its_end_is_ours(way, capfd):
    argv = [*TWO, "s.py", "--lr", "1"]
    assert run_inside(argv, scan(argv), {"PATH": "/usr/bin"}) == 21
    (_, rehearsed), (_, command, options) = way
    assert rehearsed == {"udp": Endpoint(ip_address("192.0.2.7"), 51820), "device": "eth1"}
    assert options == {**rehearsed, "mtu": 1400}
    assert command[1:] == ["-P", "-m", "securetrain", "run", *argv]
    assert "entering a user namespace" in capfd.readouterr().err


def test_one_machine_needs_no_entrance(way):
    assert run_inside(["s.py"], scan(["s.py"]), {}) == 21
    assert way[1][2] == {"udp": None, "device": "", "mtu": 0}


def test_a_launcher_inside_that_was_killed(way, monkeypatch):
    monkeypatch.setattr(
        network_rootless, "command", lambda *_, **__: ["/bin/sh", "-c", "kill -9 $$"]
    )
    assert run_inside(["s.py"], scan(["s.py"]), {}) == 1


def test_without_a_way_in_nothing_is_started(way, monkeypatch):
    def no_way(**_):
        raise NetworkError("ST-NETW-011", "External interface not usable", "pasta")

    monkeypatch.setattr(network_rootless, "rehearse", no_way)
    refused(NetworkError, "not usable", run_inside, TWO, scan([*TWO, "s.py"]), {})
    monkeypatch.undo()
    refused(
        AdmissionError,
        "ST-ADMN-007",
        run_inside,
        [],
        scan(["--rdzv-endpoint", "no-such.invalid:1", "s.py"]),
        {},
    )


@pytest.fixture
def proc(tmp_path):
    def add(pid, parent, numbers, caught=0):
        (tmp_path / str(pid)).mkdir()
        lines = [f"Name:\tx: y\nPPid:\t{parent}", f"NSpid:\t{numbers}", f"SigCgt:\t{caught:016x}"]
        (tmp_path / str(pid) / "status").write_text("\n".join(lines) + "\n")
        stat = f"{pid} (x: y) S {parent} " + "0 " * 15 + "1 0 7"
        (tmp_path / str(pid) / "stat").write_text(stat)

    (tmp_path / "self").mkdir()
    add(100, 1, "100")
    add(101, 100, "101 1")
    add(102, 101, "102 5 1", caught=1 << (signal.SIGTERM - 1))
    add(103, 102, "103 6 2")
    add(104, 103, "104 7 3 1", caught=1 << (signal.SIGHUP - 1))  # of the workers' sandbox
    add(105, 102, "105 8 4 1", caught=1 << (signal.SIGHUP - 1))  # an orphan of theirs
    add(200, 1, "200 7 3 1")  # somebody else's
    return tmp_path


def test_the_launcher_inside_is_the_first_of_its_namespace(proc):
    assert first_inside(100, proc) == 102
    assert first_inside(103, proc) is None
    assert first_inside(9999, proc) is None


def test_a_signal_waits_for_its_handler(proc, monkeypatch):
    sent = []
    monkeypatch.setattr(os, "kill", lambda *what: sent.append(what))
    assert signal_inside(100, signal.SIGTERM, proc)
    assert sent == [(102, signal.SIGTERM)]
    monkeypatch.setattr(rootless_launcher, "_READY_SECONDS", 0.05)
    assert not signal_inside(100, signal.SIGHUP, proc)
    assert not signal_inside(103, signal.SIGTERM, proc)
    assert len(sent) == 1


def test_a_signal_that_nobody_takes_is_said(way, monkeypatch, capfd):
    """Its sender waits for an end that does not come."""
    monkeypatch.setattr(rootless_launcher, "_READY_SECONDS", 0.05)
    shell = "sleep 0.3; kill -TERM $PPID; sleep 0.5; exit 7"
    monkeypatch.setattr(network_rootless, "command", lambda *_, **__: ["/bin/sh", "-c", shell])
    assert run_inside(["s.py"], scan(["s.py"]), {}) == 7
    said = capfd.readouterr().err
    assert "SIGTERM was not delivered" in said
    assert f"SIGKILL of process {os.getpid()}" in said


def test_a_launcher_that_has_ended_needs_no_signal(way, monkeypatch, capfd):
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        rootless_launcher.hand_on_signal(ended.pid, signal.SIGTERM)
    rootless_launcher.hand_on_signal(ended.pid, signal.SIGTERM)
    assert "not delivered" not in capfd.readouterr().err
