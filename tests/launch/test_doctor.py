# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What works on a machine is what the launcher would find; a probe that fails is never a pass."""

import json

import pytest

from securetrain.cli.main import main
from securetrain.core.errors import NetworkError
from securetrain.core.vocabulary import NetworkProfile
from securetrain.launch import doctor
from securetrain.launch.doctor import Kind


@pytest.fixture
def told(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "collect_node", lambda *_, **__: None)
    monkeypatch.setattr(doctor, "audit", lambda *_: type("R", (), {"exit_code": 1}))
    monkeypatch.setattr("securetrain.network.engines.probe", lambda _: "no wireguard-go")

    def tell(*arguments):
        code = main(["doctor", "--json", *arguments])
        found = json.loads(capsys.readouterr().out)
        assert found["exit"] == code
        return code, {(one["kind"], one["name"]): one for one in found["findings"]}

    return tell


def test_a_machine_without_an_engine(told):
    code, found = told()
    assert code == 0, "dev takes loopback"
    assert found["network profile", "loopback"]["works"]
    overlay = found["network profile", "overlay"]
    assert not overlay["works"]
    assert overlay["problem"] == "no wireguard-go"
    assert {name for kind, name in found if kind == "network profile"} == set(NetworkProfile)
    assert {name for kind, name in found if kind == "policy"} == {"dev", "baseline", "hardened"}
    assert found["policy", "dev"]["works"]
    assert "preflight" in found["policy", "baseline"]["problem"]


def test_the_policy_that_was_asked_for_decides(told):
    assert told("--policy", "hardened")[0] == 1
    assert main(["doctor", "--policy", "none-such"]) == 2


def test_the_newest_wireguard_that_is_needed_is_named(told, monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 0)
    _, found = told()
    assert "wireguard-go 0.0.20231211 or newer" in found["network profile", "overlay"]["fix"]


def test_a_probe_that_fails_is_a_reason():
    def fails():
        raise OSError(13, "Permission denied")

    def refuses():
        raise NetworkError("ST-NETW-010", "missing: nft")

    found = doctor._tried(Kind.SANDBOX, [("a", fails, "x"), ("b", refuses, "y")])
    assert [one.works for one in found] == [False, False]
    assert found[1].problem == "missing: nft"


def test_the_parts_of_a_sandbox(tmp_path):
    assert "v2" in doctor._cgroup(tmp_path)
    (tmp_path / "cgroup.controllers").write_text("cpu pids\n")
    assert "memory" in doctor._cgroup(tmp_path)
    (tmp_path / "cgroup.controllers").write_text("cpu pids memory\n")
    assert doctor._cgroup(tmp_path) == ""
    assert doctor._seccomp(tmp_path / "none")


def test_for_people(told, capsys):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "the policy dev works on this machine" in out
    assert "no wireguard-go" in out
