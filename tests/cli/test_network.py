# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from securetrain.cli.main import main
from securetrain.network.leftovers import Collected

FOUND = Collected(removed=("st-a-1",), alive=("st-b-2",), problems={"st-c-3": "bad\x1b[2J"})


@pytest.fixture(autouse=True)
def groups(monkeypatch):
    """The groups of cgroup v2 that are found: none of this machine's."""

    def set_to(value):
        monkeypatch.setattr("securetrain.launch.collect_groups", lambda: value)

    set_to(Collected())
    return set_to


@pytest.fixture
def found(monkeypatch):
    def set_to(value):
        monkeypatch.setattr("securetrain.network.collect", lambda state: value)

    return set_to


def test_nothing_is_left(tmp_path, capsys):
    assert main(["network", "gc", "--state", str(tmp_path / "none")]) == 0
    assert capsys.readouterr().out == "no job networks on this machine\n"


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_who_may_not_look_is_told_that_nothing_was_looked_at(
    tmp_path, capsys, monkeypatch, options
):
    monkeypatch.setattr("os.geteuid", lambda: tmp_path.stat().st_uid + 1)
    assert main(["network", "gc", "--state", str(tmp_path), *options]) == 20
    said = "".join(capsys.readouterr())
    assert "ST-USAG-002" in said
    assert "it was not searched" in said
    assert str(tmp_path.stat().st_uid) in said


def test_a_folder_that_cannot_even_be_looked_for(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["network", "gc", "--state", str(tmp_path / "file" / "state")]) == 20
    assert "ST-USAG-002" in capsys.readouterr().err


def test_everything_is_named(found, capsys):
    found(FOUND)
    assert main(["network", "gc"]) == 1
    out = capsys.readouterr().out
    assert "removed  st-a-1" in out
    assert "in use   st-b-2" in out
    assert "left     st-c-3: bad\\x1b[2J" in out


def test_json(found, capsys):
    found(FOUND)
    assert main(["network", "gc", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {
        "removed": ["st-a-1"],
        "alive": ["st-b-2"],
        "problems": {"st-c-3": "bad\x1b[2J"},
        "exit": 1,
    }
    found(Collected(alive=("st-b-2",)))
    assert main(["network", "gc", "--json"]) == 0


def test_the_groups_of_workers_are_named_too(found, groups, capsys):
    found(Collected(removed=("st-a-1",)))
    groups(Collected(removed=("g-1",), alive=("g-2",), problems={"g-3": "bad"}))
    assert main(["network", "gc", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {
        "removed": ["st-a-1", "g-1"],
        "alive": ["g-2"],
        "problems": {"g-3": "bad"},
        "exit": 1,
    }
    groups(Collected(alive=("g-2",)))
    found(Collected())
    assert main(["network", "gc"]) == 0
    assert capsys.readouterr().out == "in use  g-2\n"


def test_a_state_folder_of_others(tmp_path, capsys):
    real = tmp_path / "real"
    real.mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(real)
    assert main(["network", "gc", "--json", "--state", str(tmp_path / "link")]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "ST-NETW-022"


def test_the_usual_folder(monkeypatch, capsys):
    asked = []

    def collect(state):
        asked.append(str(state))
        return Collected()

    monkeypatch.setattr("securetrain.network.collect", collect)
    assert main(["network", "gc"]) == 0
    assert asked == ["/run/securetrain/network"]
