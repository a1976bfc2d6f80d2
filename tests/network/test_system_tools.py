# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import pytest

from securetrain.core.errors import NetworkError
from securetrain.network import system_tools
from securetrain.network.system_tools import find_program, missing_programs, program, run_command
from tests.tables import items
from tests.vocabulary import refused


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """A program of our own in the only folder that is looked into."""
    folder = tmp_path / "bin"
    folder.mkdir(mode=0o755)

    def write(text, mode=0o755):
        path = folder / "tool"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(mode)
        return path

    monkeypatch.setattr(system_tools, "FOLDERS", (str(folder),))
    monkeypatch.setattr(system_tools.find_program, "__defaults__", ((str(folder),),))
    return write


def test_a_program_is_found_in_the_system(monkeypatch, tmp_path):
    (tmp_path / "sh").write_text("#!/bin/sh\nexit 7\n")
    (tmp_path / "sh").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = find_program("sh")
    assert found is not None
    assert str(found) in {"/usr/bin/sh", "/bin/sh"}
    assert program("sh") == str(found)


def test_a_program_that_others_may_write_to_is_not_used(tool):
    path = tool("echo hello")
    assert find_program("tool") == path
    path.chmod(0o777)
    assert find_program("tool") is None
    path.chmod(0o755)
    path.parent.chmod(0o777)
    assert find_program("tool") is None


def test_what_is_missing_is_named_with_its_package(tmp_path):
    found = missing_programs(["nft", "no-such"], [str(tmp_path)])
    assert found == ["the program nft (package nftables)", "the program no-such (package no-such)"]
    assert missing_programs(["sh"]) == []


def test_a_missing_program_is_a_refusal():
    refused(NetworkError, "ST-NETW-010", run_command, ["no-such-program"], says="no-such-program")


def test_output_comes_back_and_input_goes_in(tool):
    tool("cat; printf '%s' \"$1\"")
    assert run_command(["tool", "$(id) ;"], data=b"secret ") == b"secret $(id) ;"


def test_the_environment_is_ours(tool, monkeypatch):
    monkeypatch.setenv("LD_PRELOAD_X", "1")
    monkeypatch.setenv("LANG", "de_DE")
    tool("/usr/bin/env; pwd")
    lines = run_command(["tool"]).decode().split()
    assert "LC_ALL=C" in lines
    assert "/" in lines
    assert not [line for line in lines if line.startswith(("LD_", "LANG", "HOME"))]


@items(
    "text, says",
    ("echo out; echo why >&2; exit 2", "why"),
    ("echo out; exit 2", "out"),
    ("exit 3", "exit code 3"),
)
def test_a_failure_says_why(tool, text, says):
    tool(text)
    error = refused(NetworkError, "ST-NETW-011", run_command, ["tool", "-x"])
    assert error.what == says
    assert error.where == "tool -x"


def test_input_never_stands_in_an_error(tool):
    tool("exit 1")
    with pytest.raises(NetworkError) as error:
        run_command(["tool"], data=b"PrivateKey = abc")
    assert "abc" not in str(error.value)


def test_a_command_that_hangs(tool, monkeypatch):
    monkeypatch.setattr(system_tools, "_TIMEOUT_SECONDS", 0.05)
    tool("exec sleep 60")
    refused(NetworkError, "ST-NETW-011", run_command, ["tool"])


def test_a_program_that_cannot_start(tool):
    tool("", mode=0o644)
    refused(NetworkError, "ST-NETW-011", run_command, ["tool"])
