# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The runner: its exit code, what it prints, and what `--shrink` writes."""

import json
from itertools import product

import pytest

from tests.tools.gates.worlds import HEADER, git, planted
from tools.gates.__main__ import LIST, faults_of, grown, main
from tools.gates.history import History
from tools.gates.rules import commits, pages
from tools.gates.rules.budgets import FILE, RAISE, Budgets
from tools.gates.table import Gate
from tools.gates.violations import Fault

BASE = {
    "tests/faces.json": json.dumps({"faces": {}, "for_programs": {}}),
    FILE: json.dumps({"rooms": {"a": 80, "evidence": 80}, "raised": []}),
    LIST: json.dumps({"words": {}, "parameters": {}}),
    pages.WHERE: "",
    "docs/explanation/vocabulary.md": "house, evidence, judge, sketch, m, a",
    "house/evidence/judge.py": f'{HEADER}"""The judge."""\n' + "x = 1\n" * 80,
    "house/a/sketch.py": f'{HEADER}"""Sketches."""\n' + "x = 1\n" * 79,
}
WIDE = {"house/a/sketch.py": f'{HEADER}"""Sketches."""\ndef f(a, b, c, d, e, f, g, h, i): ...\n'}


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Judge a planted tree whose concepts are nobody's; the exit code and the output."""
    monkeypatch.setattr("tools.gates.table.concepts.TABLE", tmp_path / "none.toml")
    (tmp_path / "none.toml").write_text("concept = []\n")

    def judged(files, *arguments):
        tree = planted(tmp_path, BASE | files)
        for init in (tmp_path / tree.top).rglob("__init__.py"):
            init.write_text(HEADER)
        listed = (tmp_path / LIST).read_text()
        (tmp_path / LIST).write_text(listed.replace("house/", f"{tree.top}/"))
        again = type(tree)(tmp_path, tree.top)
        code = main(list(arguments), again)
        return code, capsys.readouterr().out.replace(tree.top, "house"), tmp_path

    return judged


def test_a_clean_tree_passes_and_says_what_was_not_looked_at(run):
    code, out, _ = run({})
    assert code == 0, out
    assert "commits and earlier lists were not looked at: this is no clone" in out
    assert "lines under their budget (python -m tools.gates --shrink takes them): a 1" in out


def test_a_violation_fails_with_what_to_do(run):
    code, out, _ = run(WIDE)
    assert code == 1
    assert "parameters: house/a/sketch.py::f: 9 parameters\n    at most 8" in out


def test_what_is_listed_passes_and_what_is_gone_fails_until_it_is_taken_off(run):
    listed = {LIST: json.dumps({"parameters": {"house/a/sketch.py::f": 9}})}
    assert run(WIDE | listed)[0] == 0
    code, out, _ = run(listed)
    assert code == 1
    assert "is listed and gone: take it off: python -m tools.gates --shrink" in out
    code, out, root = run(listed, "--shrink")
    assert code == 0, out
    assert json.loads((root / LIST).read_text()) == {"parameters": {}}
    assert Budgets.parse((root / FILE).read_text()).rooms == {"a": 79, "evidence": 80}


def test_shrinking_adds_nothing(run):
    code, _, root = run(WIDE | {FILE: json.dumps({"rooms": {"a": 0}, "raised": []})}, "--shrink")
    assert code == 1
    assert json.loads((root / LIST).read_text())["parameters"] == {}
    assert Budgets.parse((root / FILE).read_text()).rooms == {"a": 0}


def test_a_gate_is_introduced_once(run):
    code, _, root = run(WIDE | {LIST: json.dumps({"words": {}})}, "--introduce", "parameters")
    assert code == 0
    assert list(json.loads((root / LIST).read_text())["parameters"].values()) == [9]
    assert run(WIDE, "--introduce", "parameters")[0] == 1


def test_a_clone_is_judged_with_its_history(run):
    marked = {commits.MARKER: HEADER}
    _, _, root = run(marked)
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "tools/gates: add them\n\nNothing held the house small.")
    (root / "note").touch()
    git(root, "add", "note")
    git(root, "commit", "-q", "-m", "A note was added")
    code, out, _ = run(marked | {LIST: json.dumps({"words": {"house/b.py": 1}})})
    assert code == 1
    assert "commit: A note was added: " in out
    assert "list: words: house/b.py grew" in out
    assert "gates: 1 commits were looked at" in out
    listed = {LIST: json.dumps({"commit": {"A note was added": 1, "gone": 1}})}
    _, out, _ = run(marked | listed)
    assert "commit: A note" not in out, "it was pushed before there was a list"
    assert "commit: gone is listed and gone" in out
    (root / ".git").rename(root / "no-git")
    assert "commit: gone" not in run(marked | listed)[1], "nothing was looked at"


def test_a_list_in_conflict_is_a_sentence(run):
    for file, text in product((LIST, FILE), ("<<<<<<< HEAD\n", "")):
        code, out, _ = run({file: text})
        assert code == 2
        assert "take either side of a conflict" in out


def test_a_gate_that_lists_nothing_cannot_be_given_a_list():
    gate = Gate("header", lambda _: (), "begin with it", listed=False)
    assert list(faults_of(gate, [], {"header": {"a.py": 1}}))
    assert list(faults_of(gate, [Fault("a.py", "lacks it")], {})) == [
        "header: a.py: lacks it\n    begin with it"
    ]


def test_lists_and_budgets_that_grew_against_git_are_named(tmp_path, monkeypatch):
    before = {LIST: json.dumps({"words": {"a": 1}}), FILE: '{"rooms": {"a": 1}, "raised": []}'}
    monkeypatch.setattr(
        History, "earlier", lambda _, path: dict.fromkeys(("HEAD", "HEAD^"), before[path])
    )
    tree = planted(tmp_path, {FILE: '{"rooms": {"a": 2}, "raised": []}'})
    assert list(grown(History(tmp_path), {"words": {"a": 2}}, tree)) == [
        f"list: words: a: 1 -> 2 grew, and {LIST} only shrinks: mend it (since HEAD, HEAD^)",
        f"budget: a: 1 -> 2: {RAISE} (since HEAD, HEAD^)",
    ]
