# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What works on a machine is what the launcher would find; a probe that fails is never a pass."""

import json
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from securetrain.cli.main import main
from securetrain.core.vocabulary import NetworkProfile
from securetrain.launch import doctor
from securetrain.launch.sandbox.cgroup import NoLimitsError
from securetrain.launch.sandbox.sandbox import PARTS
from securetrain.launch.sandbox.trial import lacking_here
from tests.launch.sandbox.machine import lacking
from tests.launch.worlds import write_policy
from tests.vocabulary import needs


@pytest.fixture
def told(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "node_facts", lambda *_: None)
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


@pytest.mark.parametrize("part", [*PARTS, "gaps"])
def test_a_part_of_the_sandbox_that_is_lacking(told, monkeypatch, part):
    monkeypatch.setattr(doctor, "lacking_here", lambda: {part: "not here"})
    _, found = told()
    name = doctor.SANDBOX[part][0]
    assert [one["name"] for (kind, _), one in found.items() if one["problem"] == "not here"] == [
        name
    ]
    refused = "the sandbox lacks" in found["policy", "hardened"]["problem"]
    assert refused is (part not in {"limits", "network"}), "hardened asks for an overlay"
    assert found["policy", "dev"]["works"], "it goes on without"


def test_limits_that_a_policy_asks_for(told, monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "lacking_here", lambda: {"limits": "no cgroup v2 is mounted"})
    policy = tmp_path / "mine.yaml"
    write_policy(policy, host={"sandbox": "required", "max_tasks": 100})
    code, found = told("--policy", str(policy))
    assert code == 1
    assert "no cgroup v2 is mounted" in found["policy", str(policy)]["problem"]


class Tried:
    """A sandbox that lacks Landlock, and a detail."""

    lacking: ClassVar[dict[str, str]] = {"landlock": "this kernel has none"}
    gaps = ("a", "b")

    def __init__(self, scene):
        self.scene = scene

    def close(self):
        if self.scene.user is not None:
            self.scene.user.release()


def test_the_trial_is_a_runs_own_sandbox():
    scenes: list[Any] = []

    def start(scene):
        scenes.append(scene)
        return Tried(scene)

    def find(_limits):
        raise NoLimitsError("none")

    found = lacking_here(cast("Any", start), find)
    assert found == {"landlock": "this kernel has none", "gaps": "a; b", "limits": "none"}
    assert scenes[0].cwd == Path.cwd()
    assert not scenes[0].run.exists()

    def fails(_scene):
        raise OSError("nothing works")

    found = lacking_here(fails, cast("Any", lambda _: None))
    assert found == dict.fromkeys(PARTS, "nothing works")


@pytest.mark.netns
@needs(lacking)
def test_the_trial_on_this_machine():
    """As a run's sandbox finds it: all that `needs` asks for, limits or their reason."""
    assert set(lacking_here()) <= {"limits"}


def test_for_people(told, capsys):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "the policy dev works on this machine" in out
    assert "no wireguard-go" in out
