# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The list of violations shrinks and never grows; budgets are raised with a reason."""

import pytest

from tests.tables import items
from tests.tools.gates.worlds import git, planted
from tools.gates import violations
from tools.gates.history import History
from tools.gates.rules import commits
from tools.gates.rules.budgets import Budgets, growth
from tools.gates.rules.commits import Commit, faults
from tools.gates.violations import Fault, compare, shrunk

LISTED = {"house/a.py": 3, "house/b.py::f": 1}


def found(**changes):
    places = LISTED | {name.replace("_", "/"): n for name, n in changes.items()}
    return [Fault(where, "is wrong", n) for where, n in places.items() if n]


def test_what_is_listed_passes():
    assert compare(found(), LISTED) == violations.Verdict(moved={})


def test_what_is_new_what_grew_and_what_is_gone_do_not():
    (new,) = compare([*found(), Fault("house/c.py", "is wrong")], LISTED).new
    assert new.where == "house/c.py"
    ((fault, before),) = compare([Fault("house/a.py", "", 4), *found()[1:]], LISTED).grown
    assert (fault.figure, before) == (4, 3)
    assert compare(found()[1:], LISTED).gone == ("house/a.py",)
    assert compare([Fault("house/a.py", "", 2), *found()[1:]], LISTED).shrunk == 1


def test_what_moved_is_not_new_unless_it_grew():
    moved = compare([Fault("house/x/a.py", "", 3), Fault("house/c.py::f", "", 1)], LISTED)
    assert moved.moved == {"house/a.py": "house/x/a.py", "house/b.py::f": "house/c.py::f"}
    assert (moved.new, moved.gone, moved.grown) == ((), (), ())
    assert compare([Fault("house/x/a.py", "", 4), *found()[1:]], LISTED).grown
    store = {"house/a/s3.py::object store": 1}
    assert compare([Fault("house/b/s3.py::object store", "")], store).moved
    assert compare([Fault("house/a/gcs.py::object store", "")], store).new, "another second one"
    init = {"house/desk/__init__.py": 1}
    assert compare([Fault("house/a/desk/__init__.py", "")], init).moved
    assert compare([Fault("house/knock/__init__.py", "")], init).new
    assert compare([*found(), Fault("house/x/a.py", "", 1)], LISTED).new


def test_shrinking_only_goes_down():
    faults = [Fault("house/x/a.py", "", 2), Fault("house/c.py", ""), Fault("house/b.py::f", "", 9)]
    assert shrunk(faults, LISTED) == {"house/x/a.py": 2, "house/b.py::f": 1}
    assert shrunk([], LISTED) == {}
    assert compare(faults, shrunk(faults, LISTED)).new


@items(
    "now, grown",
    (LISTED, []),
    ({}, []),
    ({"house/a.py": 2}, []),
    ({"house/x/a.py": 3}, []),
    ({"house/a.py": 4}, ["g: house/a.py: 3 -> 4"]),
    ({"house/x/a.py": 4}, ["g: house/x/a.py: 3 -> 4"]),
    ({**LISTED, "house/c.py": 1}, ["g: house/c.py"]),
)
def test_a_list_that_grew_by_hand_is_seen(now, grown):
    assert violations.growth({"g": now}, {"g": LISTED}) == grown
    assert violations.growth({"g": now}, {}) == [], "the gate is new"


def test_the_list_is_read_as_it_was_written(tmp_path):
    violations.write(tmp_path / "list.json", {"g": LISTED})
    assert violations.read((tmp_path / "list.json").read_text()) == {"g": LISTED}


REASON = {"room": "a", "from": 2, "to": 3, "reason": "sparse gradients are judged as well"}


def test_a_budget_is_raised_with_a_new_reason_only():
    before = Budgets({"a": 2})
    assert growth(Budgets({"a": 1}), before) == []
    assert growth(Budgets({"a": 3}), before) == ["a: 2 -> 3"]
    assert growth(Budgets({"a": 3, "b": 1}), before) == ["a: 2 -> 3", "b: 0 -> 1"]
    assert growth(Budgets({"a": 3}, (REASON,)), before) == []
    assert growth(Budgets({"a": 3}, ({**REASON, "to": 9},)), before) == [], "and lowered since"
    assert growth(Budgets({"a": 4}, (REASON,)), before) == ["a: 2 -> 4"]
    assert growth(Budgets({"a": 3}, ({**REASON, "reason": "more"},)), before) == ["a: 2 -> 3"]
    assert growth(Budgets({"a": 3}, (REASON,)), Budgets({"a": 2}, (REASON,))) == ["a: 2 -> 3"]


# --- history -------------------------------------------------------------------------------------

WHY = "The reason why, with its figures."


@pytest.fixture
def clone(tmp_path):
    root = tmp_path / "clone"
    root.mkdir()
    git(root, "init", "-q")
    for name, message in [("old", "Names were given"), ("marker", "make: add a gate\n\n" + WHY)]:
        (root / name).write_text(name)
        git(root, "add", name)
        git(root, "commit", "-q", "-m", message)
    return root


def commit(root, text, message):
    (root / "list").write_text(text)
    git(root, "add", "list")
    git(root, "commit", "-q", "-m", message)


def test_commits_are_judged_from_the_marker_on(clone):
    history = History(clone)
    assert not history.blind
    assert commits.since(history, "marker") == []
    commit(clone, "1", f"list: write it\n\n{WHY}")
    commit(clone, "2", "Lists are written")
    assert [one.subject for one in commits.since(history, "marker")] == [
        "Lists are written",
        "list: write it",
    ]
    (fault,) = commits.messages(planted(clone, {}), "marker")
    assert fault.where == "Lists are written"
    assert "no body" in fault.says
    assert "area" in fault.says


def test_earlier_lists_are_those_of_head_its_parent_and_where_the_branch_left_main(clone):
    for text in "123":
        commit(clone, text, f"list: write it\n\n{WHY}")
    git(clone, "update-ref", "refs/remotes/origin/main", "HEAD~2")
    earlier = History(clone).earlier("list")
    assert earlier == {"HEAD": "3", "HEAD^": "2", "origin/main": "1"}
    assert History(clone).earlier("nothing") == {}


def test_without_a_whole_history_it_says_that_it_saw_nothing(clone, tmp_path, monkeypatch):
    commit(clone, "1", "Lists are written")
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{clone}", "shallow")
    shallow = History(tmp_path / "shallow")
    assert shallow.blind == "this clone is shallow"
    assert commits.since(shallow, "marker") == []
    assert shallow.earlier("list") == {}
    assert History(tmp_path).blind == "this is no clone"
    monkeypatch.setenv("PATH", "")
    assert History(clone).blind == "git is not installed"


@items(
    "subject, fault",
    ("guard: refuse a rank that is late", ""),
    ("tests/evidence: fold refusals into tables", ""),
    ("core, ledger: pass the clock in", ""),
    ("report: embed the picture", ""),
    ("guard: discuss what bring means", ""),
    ("guard: feed the sketch", ""),
    ("guard: bring the ranks", ""),
    ("guard: bypass nothing", ""),
    ("Guard: refuse a rank", "area"),
    ("refuse a rank", "area"),
    ("guard:refuse a rank", "area"),
    ("guard: ", "area"),
    ("guard: refused a rank", "imperative"),
    ("guard: refuses a rank", "imperative"),
    ("guard: refusing a rank", "imperative"),
    ("guard: a rank is refused", "imperative"),
    ("guard: is refused", "imperative"),
    (f"guard: refuse {'x' * 60}", "more than 72"),
)
def test_subjects(subject, fault):
    found = list(faults(Commit("0", subject, WHY)))
    assert bool(found) is bool(fault)
    assert all(fault in one for one in found)


def test_a_commit_without_a_reason():
    assert list(faults(Commit("0", "guard: refuse a rank", " \n"))) == [
        "it has no body: say why, with the figures"
    ]
