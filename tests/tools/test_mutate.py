# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The mutation tool finds the checks, and tells tests that notice from tests that do not."""

from pathlib import Path

import pytest

from tools import mutants, mutate

SOURCE = b"""\
def admit(name: str, age: int, key: object) -> str:
    if not name or len(name) > 64:
        raise ValueError(f"bad name {name or 'none'}")
    if not 18 <= age < 120:
        raise ValueError("bad age")
    _check_key(key)
    print(name)
    label = name or "default"
    match age:
        case 20:
            return label
        case _:
            raise ValueError("unreachable")


def _check_key(key: object) -> None:
    if key is None:
        raise ValueError("no key")
    if key == "wrong":
        raise

"""

JUDGE = b"""\
def judge(said: object, found: object) -> object:
    for name, mine, others in (("one", said, found), ("two", said, found)):
        if mine != others:
            return broken(name)
    return verified("both")


def asked(said: object) -> object:
    yield "size", said, 1
"""

GOOD = """\
import pytest
from securetrain.core.gate import admit

BAD = [("", 20, 1), ("x" * 65, 20, 1), ("a", 17, 1), ("a", 120, 1), ("a", 20, None)]

@pytest.mark.parametrize("bad", BAD)
def test_refuses(bad):
    with pytest.raises(ValueError, match="name|age|key"):
        admit(*bad)

def test_admits():
    assert admit("a", 20, 1) == "a"
"""
WEAK = """\
from securetrain.core.gate import admit

def test_admits():
    assert admit("a", 20, 1) == "a"
"""


def test_what_is_mutated():
    found = [(m.line, m.before, m.replacement) for m in mutate.mutants("core/gate.py", SOURCE)]
    assert sorted(found) == [
        (2, "not name or len(name) > 64", "((len(name) > 64))"),
        (2, "not name or len(name) > 64", "((not name))"),
        (3, "raise ValueError(f\"bad name {name or 'none'}\")", "pass"),
        (4, "18 <= age < 120", "(18 <= age)"),
        (4, "18 <= age < 120", "(age < 120)"),
        (5, 'raise ValueError("bad age")', "pass"),
        (6, "_check_key(key)", "pass"),
        (18, 'raise ValueError("no key")', "pass"),
    ]


def test_checks_that_are_answers_are_mutated_too():
    found = [(m.line, m.before, m.replacement) for m in mutate.mutants("chain/one.py", JUDGE)]
    assert sorted(found) == [
        (2, '(("one", said, found), ("two", said, found))', "(('one', said, found),)"),
        (2, '(("one", said, found), ("two", said, found))', "(('two', said, found),)"),
        (4, "return broken(name)", "pass"),
        (9, 'yield "size", said, 1', "pass"),
    ]


def test_a_mutant_changes_one_thing():
    for mutant in mutate.mutants("core/gate.py", SOURCE):
        before, after = SOURCE.splitlines(), mutant.apply(SOURCE).splitlines()
        changed = [
            n for n, pair in enumerate(zip(before, after, strict=True), 1) if pair[0] != pair[1]
        ]
        assert changed == [mutant.line]
        assert f"core/gate.py:{mutant.line}" in str(mutant)


@pytest.fixture
def copy(tmp_path):
    for folder in ("securetrain/core", "tests/core"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "securetrain/__init__.py").touch()
    (tmp_path / "securetrain/core/__init__.py").touch()
    (tmp_path / "securetrain/core/gate.py").write_bytes(SOURCE)
    return tmp_path


def _key_check():
    return next(m for m in mutate.mutants("core/gate.py", SOURCE) if m.before == "_check_key(key)")


def test_a_good_test_kills_and_a_weak_one_does_not(copy, monkeypatch):
    tests = copy / "tests/core/test_gate.py"
    for text, fate in ((GOOD, mutate.Fate.KILLED), (WEAK, mutate.Fate.SURVIVED)):
        tests.write_text(text)
        assert mutate.judge(_key_check(), SOURCE, copy, 60) is fate
        assert (copy / "securetrain/core/gate.py").read_bytes() == SOURCE
    monkeypatch.setattr(mutate, "run_tests", lambda *_: True)
    assert mutate.judge(_key_check(), SOURCE, copy, 60) is mutate.Fate.SURVIVED
    monkeypatch.setitem(mutants.EQUIVALENT, ("core/gate.py", "_check_key(key)"), "the test says so")
    assert mutate.judge(_key_check(), SOURCE, copy, 60) is mutate.Fate.EQUIVALENT


def test_named_tests_judge_alone(copy):
    near, far = copy / "tests/core/test_near.py", copy / "tests/core/test_gate.py"
    near.write_text(WEAK)
    far.write_text(GOOD)
    assert mutate.judge(_key_check(), SOURCE, copy, 60) is mutate.Fate.KILLED
    named = [Path("tests/core/test_near.py")]
    assert mutate.judge(_key_check(), SOURCE, copy, 60, named) is mutate.Fate.SURVIVED


def test_own_tests_come_before_those_that_import_it_and_the_rooms(copy):
    tests, room = copy / "tests/core", (Path("tests/core"),)
    (tests / "test_gate.py").write_text("from securetrain.core.gate import admit\n")
    (copy / "tests/test_ledger.py").touch()
    assert mutate.tests_of("core/gate.py", copy) == [(Path("tests/core/test_gate.py"),), room]
    (tests / "test_other.py").write_text("from securetrain.core import codes, gate\n")
    (tests / "test_third.py").write_text("from securetrain.core.gates import admit\n")
    assert mutate.tests_of("core/gate.py", copy) == [
        (Path("tests/core/test_gate.py"),),
        (Path("tests/core/test_other.py"),),
        room,
    ]
    assert mutate.tests_of("core/absent.py", copy) == [room]
    assert mutate.tests_of("ledger.py", copy) == [(Path("tests/test_ledger.py"),)]
    assert mutate.tests_of("identity/job_ca.py", copy) == []
    (tests / "deep").mkdir()
    (tests / "deep/test_far.py").write_text("from securetrain.core.more.gate import admit\n")
    assert mutate.tests_of("core/deep/gate.py", copy) == [
        (Path("tests/core/test_gate.py"),),
        (Path("tests/core/deep"),),
    ], "tests of a module may stand in the room above"
    assert mutate.tests_of("core/more/gate.py", copy) == [
        (Path("tests/core/test_gate.py"),),
        (Path("tests/core/deep/test_far.py"),),
        room,
    ], "and in any folder of that one, where it has no room of its own"


def test_a_copy_has_all_that_a_test_may_ask_for(tmp_path):
    copy = mutate.make_copy(tmp_path / "0")
    for name in ("README.md", "examples/kubernetes", "securetrain/core/files.py", ".github"):
        assert (copy / name).exists(), name


def test_a_file_without_tests_to_run_kills_nothing(copy):
    (copy / "tests/core/test_gate.py").touch()
    assert mutate.run_tests(copy, [Path("tests/core/test_gate.py")], 60)


def test_the_summary_fails_when_anything_survives(capsys):
    planned = mutate.mutants("core/gate.py", SOURCE)
    fates = dict.fromkeys(planned[:-1], mutate.Fate.KILLED)
    assert mutate.summary(["core/gate.py"], planned, fates) == 0
    assert "7 of 7 killed (100.0 %); 1 not reached" in capsys.readouterr().out
    fates[planned[-1]] = mutate.Fate.SURVIVED
    assert mutate.summary(["core/gate.py"], planned, fates) == 1
    assert "7 of 8 killed (87.5 %)" in capsys.readouterr().out
    assert mutate.summary([], [], {}) == 1


def test_a_survivor_is_known_again_on_another_line():
    (one,) = (m for m in mutate.mutants("core/gate.py", SOURCE) if m.before == "_check_key(key)")
    (moved,) = (
        m for m in mutate.mutants("core/gate.py", b"\n\n" + SOURCE) if m.before == one.before
    )
    assert str(one) != str(moved)
    assert mutate._of_no_line(str(one)) == mutate._of_no_line(str(moved))


def test_what_is_kept_names_every_survivor():
    planned = mutate.mutants("core/gate.py", SOURCE)
    fates = dict.fromkeys(planned[:-1], mutate.Fate.KILLED)
    fates[planned[0]] = mutate.Fate.SURVIVED
    assert mutate.record(["core/gate.py"], planned, fates) == {
        "modules": {"core/gate.py": {"killed": 6, "survived": 1, "equivalent": 0, "not run": 1}},
        "survivors": [str(planned[0])],
    }


def test_the_listed_modules_exist():
    assert len(set(mutants.MODULES)) == len(mutants.MODULES)
    for module in mutants.MODULES:
        assert (mutate.ROOT / "securetrain" / module).is_file(), module
