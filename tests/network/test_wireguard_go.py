# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from securetrain.core.errors import NetworkError
from securetrain.network import wireguard_go as module
from securetrain.network.namespace import Namespace
from securetrain.network.wireguard import DeviceState, WireGuardKey
from securetrain.network.wireguard_go import GoDevice, WireGuardGo, open_ports, version_problem
from tests.tables import each
from tests.vocabulary import refused

PRINTED = b"wireguard-go v%s\n\nUserspace WireGuard daemon for linux-amd64.\n"


@each(
    "version, good",
    (b"0.0.20220316", False),  # Debian 12
    (b"0.0.20230222", False),
    (b"0.0.20230223", True),  # also what 0.0.20231211 prints: the device decides
    (b"0.0.20230224", False),
    (b"0.0.20231210", False),
    (b"0.0.20231211", True),
    (b"0.0.20250522", True),
    (b"0.0.99999999", True),
    (b"0.0.2025052", False),
    (b"0.0.202505221", False),
    (b"1.0.0", False),
    (b"", False),
)
def test_versions(version, good):
    assert (version_problem(PRINTED % version) == []) is good
    assert version_problem(b"") != []


def test_an_old_version_is_named():
    (reason,) = version_problem(PRINTED % b"0.0.20220316")
    assert "0.0.20231211" in reason
    assert "0.0.20220316" in reason


UDP = """\
   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
 1234: 00000000:CA6C 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 1 2 0 0
 1235: 0100007F:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 1 2 0 0

"""


def test_ports_that_are_open():
    assert open_ports(UDP) == {51820, 53}
    assert open_ports(UDP.splitlines()[0]) == set()
    assert open_ports("") == set()


def test_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "TUN", Path("/dev/null"))
    monkeypatch.setattr(module, "missing_programs", lambda _: [])
    monkeypatch.setattr(module, "run_command", lambda _: PRINTED % b"0.0.20231211")
    assert WireGuardGo().missing() == []
    monkeypatch.setattr(module, "run_command", lambda _: PRINTED % b"0.0.20220316")
    monkeypatch.setattr(module, "TUN", tmp_path / "tun")
    old, tun = WireGuardGo().missing()
    assert "newer" in old
    assert "TUN" in tun
    monkeypatch.setattr(module, "missing_programs", lambda _: ["the program wireguard-go"])
    assert WireGuardGo().missing()[0] == "the program wireguard-go"


# Stands in for the chain of programs: the last word is the device, as for the real one.
ENGINE = """
import socket, sys, os
server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
server.bind(os.environ["SOCKET"]); server.listen()
while True:
    connection, _ = server.accept()
    connection.recv(1000); connection.sendall(b"listen_port=%d\\nerrno=0\\n\\n" % PORT)
    connection.close()
"""


@pytest.fixture(autouse=True)
def no_endless_wait(monkeypatch):
    """Waiting is counted, so that a loop without an end fails soon."""
    pauses, sleep = iter(range(3000)), time.sleep

    def pause(seconds):
        assert next(pauses, None) is not None, "it waits for ever"
        sleep(seconds)

    monkeypatch.setattr("time.sleep", pause)


REAL_POPEN = subprocess.Popen


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Start a program of ours as the engine, with a socket where the real one's would be."""
    socket = tmp_path / "s"
    started = []

    def make(code, *, offloads=True, port=0, private=False):
        text = code.replace("PORT", str(port))
        if not private:
            monkeypatch.setattr(module, "start_privately", lambda *given: given[-1]())
        monkeypatch.setattr(module, "program", lambda name: f"/usr/bin/{name}")
        monkeypatch.setattr(module, "ENVIRONMENT", {"SOCKET": str(socket)})
        monkeypatch.setattr(GoDevice, "socket", property(lambda self: str(socket)))

        def ip(argv, *, data=b""):
            assert "stnew" in argv
            info = {"vnet_hdr": offloads, "type": "tun"}
            return json.dumps([{"ifname": "stnew", "linkinfo": {"info_data": info}}]).encode()

        def popen(*args, **kwargs):
            words = [sys.executable, "-c", text, "--", *args[0]]
            started.append(REAL_POPEN(words, *args[1:], **kwargs))
            assert kwargs["start_new_session"] is True
            return started[-1]

        monkeypatch.setattr("subprocess.Popen", popen)
        device = WireGuardGo().start(Namespace("", ip), "stnew", tmp_path)
        device.wait_ready()
        return device

    yield make
    for process in started:
        process.kill()
        process.wait()


def test_an_engine_that_starts(start):
    device = start(ENGINE, port=7)
    assert device.failure_reason() == ""
    assert device.process() == device.child.pid
    assert device.read() == DeviceState(port=7)
    words = Path(f"/proc/{device.child.pid}/cmdline").read_text().split("\0")
    assert words[-3:-1] == ["-f", "stnew"]
    assert "--bounding-set=-all,+net_admin" in words
    assert words[words.index("-n") + 1] == "-10"
    device.moved(Namespace("st-x"), "st0")
    device.close()
    assert "signal 9" in device.failure_reason()
    device.close()


def test_an_engine_without_offloads_is_too_old_and_ended(start):
    refused(NetworkError, "ST-NETW-012", start, ENGINE, offloads=False)


def test_an_engine_that_ends_at_once(start, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 3600.0)  # it is not waited for
    error = refused(NetworkError, "ST-NETW-013", start, "import sys; sys.exit('no such device')")
    assert "exit code 1" in error.what
    assert "no such device" in error.what


def test_an_engine_whose_mounts_cannot_be_made(start, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted", "mount")

    monkeypatch.setattr("securetrain.network.exec_private.unshare", refuse)
    error = refused(NetworkError, "ST-NETW-013", start, ENGINE, private=True)
    assert "Operation not permitted" in error.what


def test_an_engine_that_never_answers(start, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.2)
    error = refused(NetworkError, "ST-NETW-013", start, "import time; time.sleep(60)")
    assert "does not answer" in error.what


def test_an_engine_that_speaks_something_else(start):
    refused(NetworkError, "ST-NETW-015", start, ENGINE.replace("errno=0", "hello"))


def test_a_port_that_does_not_open(start, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.2)
    device = start(ENGINE, port=1)
    refused(NetworkError, "ST-NETW-013", device.wait_port, says="port")


def test_an_engine_that_dies_before_its_port_opens(start, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 3600.0)
    device = start(ENGINE, port=1)
    device.close()
    with pytest.raises(NetworkError) as error:
        device.wait_port()
    assert "signal 9" in error.value.what


def test_what_an_engine_said_is_safe_to_print(start):
    with pytest.raises(NetworkError) as error:
        start("import sys; sys.exit('\\x1b[2J no')")
    assert error.value.what.endswith("\\x1b[2J no")
    with pytest.raises(NetworkError) as error:
        start("import os; os._exit(3)")
    assert error.value.what.endswith("exit code 3")


def test_a_port_that_is_open(start):
    code = "u=__import__('socket').socket(2, 2); u.bind(('127.0.0.1', 0))\n" + ENGINE
    device = start(code.replace("% PORT", "% u.getsockname()[1]"))
    assert device.wait_port() == device.read().port > 0


def test_keys_go_through_the_socket_only(start, monkeypatch):
    told = []
    monkeypatch.setattr("securetrain.network.uapi.write_device", lambda *given: told.append(given))
    device, key = start(ENGINE), WireGuardKey.generate()
    device.set_key(key, 7)
    device.set_peers([])
    assert [path for path, _ in told] == [device.socket] * 2
    assert key.secret().hex().encode() in told[0][1]


def test_the_socket_is_in_the_engines_own_mounts():
    class Child:
        pid = 4242

    device = GoDevice(Child(), "stnew", Path("/x"), Namespace())  # type: ignore[arg-type]
    assert device.socket.startswith("/proc/4242/root/")
    assert device.socket.endswith("/wireguard/stnew.sock")
    assert len(device.socket) < 100  # sun_path holds 108
