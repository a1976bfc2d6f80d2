# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0

import sys
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from securetrain.core.errors import NetworkError
from securetrain.network import namespace
from securetrain.network.namespace import Namespace, is_closing, write_names
from tests.tables import each
from tests.vocabulary import refused


def num_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_make_and_remove(system):
    assert not Namespace("st-x", system).exists
    space = Namespace("st-x", system)
    space.create()
    assert Namespace("st-x", system).exists
    assert system.spaces["st-x"]["lo"].is_up
    space.remove()
    assert not Namespace("st-x", system).exists
    assert system.is_clean
    before = len(system.commands)
    space.remove()
    assert len(system.commands) == before


def test_what_runs_in_it_goes_first(system, monkeypatch):
    space = Namespace("st-x", system)
    space.create()
    system.processes["st-x"] = [41, 42]
    killed = []

    def kill(pids):
        assert space.exists
        killed.extend(pids)
        return []

    monkeypatch.setattr(namespace, "kill", kill)
    space.remove()
    assert killed == [41, 42]
    assert system.is_clean


def test_a_process_that_stays_is_told(system, monkeypatch):
    space = Namespace("st-x", system)
    space.create()
    system.processes["st-x"] = [41]
    monkeypatch.setattr(namespace, "kill", lambda pids: pids)
    refused(NetworkError, "ST-NETW-021", space.remove, says="41")
    assert not space.exists  # its name is free; what stays has no way out


def test_the_own_namespace_is_never_removed(system, monkeypatch):
    own = Namespace("", system)
    assert own.exists
    monkeypatch.setattr(namespace, "FOLDER", Path("/nonexistent"))  # as before the first `ip netns`
    assert own.exists
    own.remove()
    assert system.commands == []
    assert own.enter_command() == []
    own.ip("link", "set", "lo", "up")
    assert system.commands == [["ip", "link", "set", "lo", "up"]]


def test_names_for_programs_inside(tmp_path):
    hosts = {"node-1": IPv4Address("100.64.0.2"), "node-0": IPv4Address("100.64.0.1")}
    write_names(tmp_path, hosts)
    assert (tmp_path / "hosts").read_text() == (
        "127.0.0.1 localhost\n::1 localhost\n100.64.0.1 node-0\n100.64.0.2 node-1\n"
    )
    assert "hosts: files\n" in (tmp_path / "nsswitch.conf").read_text()
    assert "nameserver" not in (tmp_path / "resolv.conf").read_text()
    write_names(tmp_path, {})
    assert "node" not in (tmp_path / "hosts").read_text()


def test_the_command_of_a_program(system, tmp_path, monkeypatch):
    monkeypatch.setattr(namespace, "program", lambda name: f"/usr/bin/{name}")
    space = Namespace("st-x", system)
    command = space.program_command(["/usr/bin/python3", "train.py"], tmp_path)
    assert command[:3] == ["/usr/bin/nsenter", f"--net={namespace.FOLDER}/st-x", "--"]
    assert command[3:8] == ["/usr/bin/unshare", "--mount", "--propagation", "private", "--"]
    assert command[8:11] == [sys.executable, "-I", "-S"]
    assert command[-2:] == ["/usr/bin/python3", "train.py"]
    text = " ".join(command)
    assert f"--bind {tmp_path}/hosts /etc/hosts" in text
    assert "--empty /run --" in text
    limits = "/usr/bin/setpriv --no-new-privs --bounding-set=-all --inh-caps=-all --"
    assert limits in text
    assert text.index("--empty") < text.index("setpriv")
    assert "setpriv" not in " ".join(
        space.program_command(["/bin/true"], tmp_path, keep_capabilities=True)
    )


def test_what_a_program_alone_gets_is_handed_over(system, tmp_path, monkeypatch):
    monkeypatch.setattr(namespace, "program", lambda name: f"/usr/bin/{name}")
    command = Namespace("st-x", system).program_command(
        ["/bin/true"], tmp_path, inherited_files={"KEY": tmp_path / "key"}
    )
    at = command.index("--hand")
    assert command[at : at + 3] == ["--hand", str(tmp_path / "key"), "KEY"]
    assert at < command.index("/usr/bin/setpriv"), "by who makes the mounts"
    plain = Namespace("st-x", system).program_command(["/bin/true"], tmp_path)
    assert "--hand" not in plain


def test_what_is_no_namespace_cannot_be_entered(system):
    system.add("st-x")  # an ordinary file
    before = num_descriptors()
    with pytest.raises(OSError, match="setns"), Namespace("st-x", system).entered():
        pytest.fail("entered")
    assert num_descriptors() == before


@pytest.mark.parametrize("fails", [False, True])
def test_a_thread_enters_and_comes_back(system, monkeypatch, fails):
    system.add("st-x")
    went = []

    def setns(descriptor):
        went.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    monkeypatch.setattr(namespace, "_set_namespace", setns)
    before = num_descriptors()
    try:
        with Namespace("st-x", system).entered():
            if fails:
                raise KeyError
    except KeyError:
        assert fails
    assert went[0] == str(namespace.FOLDER / "st-x")
    assert went[1].startswith("net:[")
    assert len(went) == 2
    assert num_descriptors() == before


@each(
    "states, closing",
    ((), False),
    (("01", "0A", "06"), False),
    (("01", "04"), True),
    (("09",), True),
)
def test_connections_whose_end_nobody_has_noted(states, closing):
    rows = [f"  0: 0100007F:1 0100007F:2 {state} 00000000:00000000 00:00" for state in states]
    assert is_closing("\n".join(["  sl  local_address rem_address   st", *rows])) is closing


def test_a_batch_is_one_process_and_says_what_was_shown():
    ran = []

    def run(argv, *, data=b""):
        ran.append((argv, data))
        return b'[{"ifname":"lo"}]\n\n[]\n'

    space = Namespace("st-x", run)
    assert space.ip_batch("link set lo up", "link show", "route show") == [[{"ifname": "lo"}], []]
    assert ran == [
        (
            ["ip", "-n", "st-x", "-json", "-batch", "-"],
            b"link set lo up\nlink show\nroute show\n",
        )
    ]
    assert Namespace("", lambda argv, **_: b"" if argv[1] == "-json" else b"x").ip_batch("a") == []


def test_a_batch_that_fails_says_what_it_was():
    def run(argv, *, data=b""):
        raise NetworkError("ST-NETW-011", "Command failed -:1")

    with pytest.raises(NetworkError) as error:
        Namespace("st-x", run).ip_batch("link set st0 up")
    assert error.value.__notes__ == ["link set st0 up"]


def test_a_batch_that_does_not_say_what_was_asked_for_is_no_answer():
    with pytest.raises(ValueError):  # noqa: PT011 - of the JSON parser
        Namespace("st-x", lambda *_, **__: b"[] oh").ip_batch("link show")
