# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Environments of frameworks are what their files say, and old results do not outlive a failure."""

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest

from securetrain.integrations import TESTED
from tests.environments import OfEnvironment
from tests.vocabulary import refused
from tools import compatibility, frameworks
from tools.frameworks import ABSENT, MARK, Environment, NotMadeError

MARKED = re.compile(r'mark\.compat\("([^"]+)"\)')


@pytest.mark.parametrize("name", frameworks.names())
def test_an_environment_has_the_tested_version_and_exact_ones_of_what_it_brings(name):
    environment = Environment(name)
    pins = environment.pins()
    assert pins[name] == TESTED[name]
    assert all(re.fullmatch(r"\d[\w.+]*", version) for version in pins.values())
    assert MARK in environment.file.read_text("utf-8")
    # torch is not installed again; a second one, or what it brings for GPUs, is gigabytes.
    assert not [one for one in pins if one in {"torch", "triton"} or one.startswith("nvidia-")]


def test_every_row_of_the_tables_has_an_environment_and_a_test():
    rows = {*compatibility.FRAMEWORKS, *compatibility.LIBRARIES}
    assert rows == set(frameworks.names())
    places = [compatibility.ROOT / one for one in frameworks.TESTS]
    inside = {p for one in places for p in (one.rglob("*.py") if one.is_dir() else [one])}
    found: set[str] = set()
    for path in (compatibility.ROOT / "tests").rglob("test_*.py"):
        names = set(MARKED.findall(path.read_text("utf-8")))
        assert not names or path in inside, f"make test-compat does not look into {path}"
        found |= names
    # Those of the hooks are parameters of tests/integrations/test_frameworks.py.
    assert found >= set(compatibility.LIBRARIES)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An environment whose installation is a stand-in: it has what `there` says."""
    for name in ("FILES", "PLACE"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(frameworks, name, tmp_path / name)
    results = tmp_path / "compatibility.json"
    old = {"version": "1.0", "checks": {"told": "one run"}}
    results.write_text(json.dumps({compatibility.OTHERS: {"wandb": old}}))
    monkeypatch.setattr(frameworks, "RESULTS", results)
    (tmp_path / "FILES" / "wandb.txt").write_text(f"wandb==0.31.0\n{MARK}\nsix==1.0\n")
    environment = Environment("wandb")
    ran: list[tuple[str, ...]] = []
    it = SimpleNamespace(
        environment=environment, ran=ran, there={"wandb": "0.31.0", "six": "1.0"}, results=results
    )
    monkeypatch.setattr(frameworks, "_fresh", lambda one: one.folder.mkdir(exist_ok=True))
    monkeypatch.setattr(frameworks, "_pip", lambda _, *words: ran.append(words))
    monkeypatch.setattr(frameworks, "installed", lambda _: it.there)
    return it


def test_a_whole_environment_is_used_again_until_its_file_changes(place):
    assert frameworks.make(place.environment)
    number = len(place.ran)
    assert not frameworks.make(place.environment)
    assert len(place.ran) == number
    file = place.environment.file
    file.write_text(file.read_text().replace("six==1.0", "six==1.1"))
    place.there["six"] = "1.1"
    assert frameworks.make(place.environment)


@pytest.mark.parametrize("there", [{"wandb": "0.31.0"}, {"wandb": "0.31.0", "six": "2.0"}])
def test_what_is_not_what_the_file_says_is_not_used(place, there):
    place.there = there
    refused(NotMadeError, r"not those of wandb\.txt: six", frameworks.make, place.environment)
    assert not place.environment.stamp.exists()


def test_one_that_was_cut_short_is_made_anew(place):
    place.environment.folder.mkdir()
    assert frameworks.make(place.environment)


def kept(place):
    return json.loads(place.results.read_text())[compatibility.OTHERS]["wandb"]


def test_what_cannot_be_installed_is_told_and_has_no_old_result(place, monkeypatch, capsys):
    def nothing(*_):
        raise NotMadeError("ERROR: no such package")

    monkeypatch.setattr(frameworks, "_pip", nothing)
    assert frameworks.main(["--only", "wandb"]) == 1
    assert f"{ABSENT}: ERROR: no such package" in capsys.readouterr().out
    assert kept(place) == {"version": "0.31.0", "checks": {}, "absent": ABSENT}


@pytest.mark.parametrize("status", [0, 1])
def test_tests_that_fail_leave_no_old_result(place, monkeypatch, status):
    monkeypatch.setattr(frameworks, "tested", lambda _: status)
    assert frameworks.main(["--only", "wandb"]) == status
    assert kept(place) == {"version": "0.31.0", "checks": {}}


def test_in_its_environment_a_skip_is_a_failure():
    wrapped = OfEnvironment("wandb").pytest_runtest_makereport()
    next(wrapped)
    report: Any = SimpleNamespace(skipped=True, outcome="skipped", longrepr="not here")
    with pytest.raises(StopIteration) as ended:
        wrapped.send(report)
    assert ended.value.value.outcome == "failed"
    assert "skipped where it must run: not here" in report.longrepr
