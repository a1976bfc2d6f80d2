# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The ledger: every file of a folder has an end, and what was not understood is never clean."""

import os
import re
from dataclasses import replace as replace_fields
from datetime import date, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from securetrain.audit.documents import facts_of
from securetrain.audit.engine.audit import audit
from securetrain.audit.facts import End, Entry, Location, decode_body
from securetrain.audit.ledger import MAX_OPEN, MAX_ROWS, Ledger, entry_of
from securetrain.audit.parser import files
from securetrain.audit.sources.catalogue import load_checks
from securetrain.audit.sources.several import Sources
from securetrain.core.errors import AuditError
from securetrain.core.vocabulary import Severity, State
from securetrain.policy.load import load_policy
from securetrain.policy.schema import OutOfScope
from tests.audit.shelf import Rack, not_ok, ok, read
from tests.vocabulary import refused

CHECKS = load_checks()
GOOD = (
    "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n"
    "  containers: [{name: c, image: registry.example/a@sha256:" + "0" * 64 + "}]\n"
)
BAD = GOOD + "  hostPID: true\n"
ONE_OF_EACH = {
    "pod.yaml": GOOD,
    "job.yaml-template": GOOD,
    "job.yaml.example": GOOD,
    "copy.yaml.orig": GOOD,
    ".hidden.yaml": GOOD,
    "run.sh.bak": "torchrun --standalone t.py\n",
    "launch": "#!/bin/bash\ntorchrun --standalone t.py\n",
    "empty.yaml": "a: 1\n",
    "README.md": "text",
    "train.py": "import torch",
}
OPEN = {
    "broken.yaml": "apiVersion: v1\nkind: Pod\nspec:\n\thostPID: true\n",
    "twice.yaml": BAD + "  hostPID: false\n",
    "block.yaml": GOOD + "{{ include more . }}\n",
    "binary.yaml": "apiVersion: v1\0",
    "main.tf.json": "{}",
    "app.jsonnet": "{}",
    "chart.tgz": "",
    "note.ipynb": "{}",
}
"""Files that can hold a fault, and are not understood: with a reader for one, its row goes."""


def world(folder, given):
    for name, text in given.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def audited(folder, now, policy="baseline", checks=CHECKS, **section):
    loaded = load_policy(policy)
    changed = replace(loaded.policy, audit=replace(loaded.policy.audit, **section))
    facts = Sources(files=(folder,), render=False).facts(loaded, now, {})
    return audit(facts, checks, changed, now)


def ends(result):
    found: dict[End, list[Any]] = {end: [] for end in End}
    for row in result.ledger:
        found[row.entry.end].append(row)
    return found


def test_a_script_is_read_whatever_it_is_called(tmp_path, now, subtests):
    """By the first line, or an ending that schedulers use; behind a link too."""
    launch = "torchrun --nnodes 2 --rdzv_backend c10d t.py\n"
    given = dict.fromkeys(("job.pbs", "run.txt", "start", "a.lsf"), f"#!/bin/bash\n{launch}")
    folder = world(tmp_path, {**given, "b.sub": launch})
    (folder / "linked").symlink_to("start")
    failed = {one.asset for one in audited(folder, now).of(State.FAIL) if one.check == "ST-RDZ-003"}
    for name in (*given, "b.sub", "linked"):
        with subtests.test(name):
            assert f"launch:{folder / name}" in failed


@pytest.mark.parametrize("name", ["go", "go.sh", "go.job", "go.pbs"])
def test_a_script_that_a_script_runs_is_followed_whatever_it_is_called(name, tmp_path, now):
    """What it runs sees the address that the first one exports."""
    start = f"export MASTER_ADDR=n1\nsrun --ntasks 4 ./{name}\n"
    given = {"start.sh": start, name: "#!/bin/bash\npython train.py\n"}
    folder = world(tmp_path, given)
    found = {one.check for one in audited(folder, now).of(State.FAIL)}
    assert "ST-RDZ-009" in found


def test_a_script_that_runs_itself_is_open_whatever_it_is_called(tmp_path, now):
    folder = world(tmp_path, {"go": "#!/bin/sh\n./go\n"})
    why = [row.entry.why for row in audited(folder, now).ledger if row.entry.unit == "word"]
    assert "./go runs itself" in why


def test_what_may_be_a_script_and_does_not_open_is_not_read(tmp_path, now):
    folder = world(tmp_path, {"pod.yaml": GOOD, "notes.txt": "text"})
    os.mkfifo(folder / "start")
    (folder / "away").symlink_to("/bin/sh")
    found = {row.entry.at.path: row.entry.end for row in audited(folder, now).ledger}
    assert found[str(folder / "start")] is End.NOT_UNDERSTOOD
    assert found[str(folder / "away")] is End.NOT_UNDERSTOOD
    assert found[str(folder / "notes.txt")] is End.NOT_OURS


def test_every_file_of_a_folder_has_an_end(tmp_path, now):
    given = ONE_OF_EACH | OPEN
    result = audited(world(tmp_path, given), now)
    counted = sum(row.entry.count for row in result.ledger if row.entry.unit == "file")
    broken = {row.entry.at.path for row in result.ledger if row.entry.unit == "document"}
    read_too = {str(tmp_path / "twice.yaml")}  # and open in a part
    assert counted + len(broken - read_too) == len(given)


@pytest.mark.parametrize("name", OPEN)
def test_what_is_not_understood_is_no_clean_audit(name, tmp_path, now):
    world(tmp_path, {"pod.yaml": GOOD, name: OPEN[name]})
    result = audited(tmp_path, now)
    (row, *_) = ends(result)[End.NOT_UNDERSTOOD]
    assert row.entry.at.path == str(tmp_path / name)
    assert row.counts
    assert result.exit_code in {1, 3}
    states = {one.check: one.state for one in result.findings if one.asset.startswith("cluster")}
    if "cluster" in row.entry.bears_on:
        assert State.PASS not in states.values()


def test_a_pipe_a_link_out_and_too_many_files_are_open(tmp_path, now, monkeypatch):
    inside = world(tmp_path / "in", {f"{n}.yaml": GOOD for n in range(3)})
    os.mkfifo(inside / "pipe.yaml")
    (inside / "out.yaml").symlink_to("/etc/hostname")
    (inside / "folder").symlink_to("/etc")
    why = {row.entry.at.path[-9:]: row.entry.why for row in audited(inside, now).ledger}
    assert "not a regular file" in why["pipe.yaml"]
    assert "out of the folder" in why["/out.yaml"]
    assert "not followed" in why["in/folder"]
    monkeypatch.setattr(files, "MAX_FILES", 2)
    assert "more than 2 files" in {row.entry.why for row in audited(inside, now).ledger}


def test_without_a_positive_reading_nothing_passes(run_check, shelf):
    predicate = "{none: [shelf, racks], where: {field: [name], op: eq, value: x}}"
    wanted = ("shelf.racks[*]", "shelf.racks", predicate)

    def state(*ledger):
        (finding,) = run_check(shelf(ledger=ledger), subject=wanted[0], evidence=wanted[1],
                               predicate=wanted[2])  # fmt: skip
        return finding.state, finding.reason

    hole = Entry(
        unit="word", at=Location(path="a", line=4), end=End.NOT_UNDERSTOOD, why="$X",
        bears_on=("shelf.racks",),
    )  # fmt: skip
    assert state(read())[0] is State.NOT_APPLICABLE
    assert state() == (State.UNKNOWN, "shelf.racks: nothing says that it was read")
    assert state(read(), hole) == (State.UNKNOWN, "$X")
    assert state(read(), replace(hole, bears_on=("shelf",)))[0] is State.UNKNOWN
    assert state(read(), replace(hole, bears_on=("shelf.auth",)))[0] is State.NOT_APPLICABLE


def test_a_known_failure_stays_one(run_check, shelf):
    hole = Entry(
        unit="word", at=Location(path="a"), end=End.NOT_UNDERSTOOD, why="$X", bears_on=("shelf",)
    )
    found = {
        value: run_check(
            shelf(auth=auth, ledger=(read(), hole)),
            subject="shelf", evidence="shelf.auth",
            predicate="{field: [shelf, auth], op: eq, value: munge}",
        )[0].state
        for value, auth in (
            ("none", ok("none")),
            ("munge", ok("munge")),
        )
    }  # fmt: skip
    assert found == {"none": State.FAIL, "munge": State.UNKNOWN}


def test_what_is_unknown_says_why_and_where(run_check, shelf):
    (found,) = run_check(
        shelf(racks=(Rack(name="r", boxes=not_ok("templated", "$X", 9)),)),
        subject="shelf.racks[*].boxes[*]", evidence="shelf.racks",
        predicate='{none: [shelf, racks, "*", boxes], where: {field: [name], op: eq, value: x}}',
    )  # fmt: skip
    assert "$X" in found.reason
    assert found.location == Location(path="a.yaml", line=9)


def test_an_entry_says_why_and_what_it_bears_on():
    at = Location(path="a")
    said = [entry_of("file", "a", not_ok("denied", why), "b").why for why in ("x", "")]
    assert said == ["x", "denied"]
    with pytest.raises(ValueError, match="bears on nothing"):
        Entry(unit="file", at=at, end=End.NOT_UNDERSTOOD, why="x")
    refused(ValueError, "without a reason", Entry, unit="file", at=at, end=End.NOT_OURS)


def test_facts_without_a_ledger_are_refused(fixtures):
    old = fixtures.case("reference", "launch").document.body.to_json()
    old = old.replace(b"securetrain.facts/v3", b"securetrain.facts/v2")
    from securetrain.audit.documents import BODIES

    refused(AuditError, "collect them again", decode_body, old, BODIES, "a.json")


def test_equal_entries_are_counted_and_none_is_lost():
    ledger, number = Ledger(), 3 * MAX_OPEN + 5
    for n in range(number):
        at = Location(path=f"d{n}/a.cue")
        ledger.add(
            Entry(unit="file", at=at, end=End.NOT_UNDERSTOOD, why="x", bears_on=(f"b{n % 7}",))
        )
        ledger.add(Entry(unit="file", at=at, end=End.NOT_OURS, why="y"))
    found = ledger.entries()
    assert len(found) <= MAX_OPEN + MAX_ROWS + 2
    for end in (End.NOT_UNDERSTOOD, End.NOT_OURS):
        assert sum(one.count for one in found if one.end is end) == number
    names = {name for one in found for name in one.bears_on}
    assert names == {f"b{n}" for n in range(7)}
    same = Ledger()
    for n in range(4):
        same.add(files.not_ours(f"docs/{n}.md", "text"))
    (row,) = same.entries()
    assert (row.at.path, row.count) == ("docs", 4)


FEW = [one for one in CHECKS if one.id in {"ST-K8S-004", "ST-SEC-023", "ST-RDZ-003"}]
LIGHT = [one for one in CHECKS if one.id in {"ST-K8S-004", "ST-SEC-021"}]
EXIT_CODES = {
    "clean": ({"pod.yaml": GOOD}, {}, (0, 0, 0)),
    "a failure": ({"pod.yaml": BAD}, {}, (1, 1, 1)),
    "a failure beside an unread file": ({"pod.yaml": BAD, "a.cue": ""}, {}, (1, 1, 1)),
    "a file that could hold a critical fault": ({"pod.yaml": GOOD, "a.cue": ""}, {}, (3, 3, 3)),
    "nothing judged": ({"README.md": "x"}, {}, (3, 3, 3)),
    "nothing at all": ({}, {}, (3, 3, 3)),
    "out of scope": ({"pod.yaml": GOOD, "a.cue": ""}, {"*.cue": 1}, (0, 0, 0)),
    "out of scope, and ended": ({"pod.yaml": GOOD, "a.cue": ""}, {"*.cue": -1}, (3, 3, 3)),
    "a failure out of scope": ({"pod.yaml": GOOD, "ex/b.yaml": BAD}, {"ex/*": 1}, (0, 0, 0)),
    "all out of scope": ({"pod.yaml": GOOD}, {"*": 1}, (3, 3, 3)),
}
"""Files, rules of `audit.out_of_scope` with the days that are left, and what each policy says."""


@pytest.mark.parametrize("name", EXIT_CODES)
def test_exit_codes(name, tmp_path, now, subtests):
    given, rules, codes = EXIT_CODES[name]
    world(tmp_path, given)
    scope = tuple(
        OutOfScope(glob=glob, reason="tests want it so", owner="ops", end=now.date() + timedelta(n))
        for glob, n in rules.items()
    )
    for policy, code in zip(("dev", "baseline", "hardened"), codes, strict=True):
        with subtests.test(policy):
            result = audited(tmp_path, now, policy, FEW, out_of_scope=scope)
            assert result.exit_code == code, result.of(State.FAIL, State.UNKNOWN)


@pytest.mark.parametrize(("policy", "code"), [("dev", 0), ("baseline", 0), ("hardened", 3)])
def test_a_light_file_counts_where_every_file_does(policy, code, tmp_path, now, monkeypatch):
    world(tmp_path, {"pod.yaml": GOOD, "light.cue": ""})
    light = replace_fields(
        files.KINDS[0], names=re.compile("light.cue"), bears_on=("launch.mpi_as_root",)
    )
    monkeypatch.setattr(files, "KINDS", (light,))
    assert audited(tmp_path, now, policy, LIGHT).exit_code == code
    assert audited(tmp_path, now, policy, LIGHT, every_file=True).exit_code == 3


def test_what_is_unknown_weighs_what_its_failure_would(fixtures, catalogue, now):
    case = fixtures.case("no-sysctls")
    found = {}
    for severity in (Severity.CRITICAL, Severity.HIGH, Severity.MEDIUM):
        policy = replace(
            case.policy, host=replace(case.policy.host, fail_on=severity, max_unknown=1000)
        )
        found[severity] = audit(case.facts, catalogue, policy, now).exit_code
    assert found == {Severity.CRITICAL: 0, Severity.HIGH: 0, Severity.MEDIUM: 3}


def test_an_unknown_check_above_the_limit_is_incomplete(now, fixtures):
    case = fixtures.case("rendezvous-templated", "launch")
    result = audit(case.facts, CHECKS, case.policy, now)
    assert [f.check for f in result.of(State.UNKNOWN) if f.severity is Severity.CRITICAL]
    assert result.exit_code == 3


def test_what_is_out_of_scope_is_shown(tmp_path, now):
    rule = OutOfScope(glob="*.cue", reason="another team's", owner="ops", end=date(2030, 1, 1))
    old = replace(rule, glob="x", end=date(2020, 1, 1))
    world(tmp_path, {"pod.yaml": GOOD, "a.cue": "", "ex/b.yaml": GOOD})
    result = audited(tmp_path, now, out_of_scope=(rule, replace(rule, glob="ex/*"), old))
    said = {one.entry.at.path[-6:]: one.scope for one in result.ledger if one.scope}
    why = "out of scope until 2030-01-01 (ops): another team's"
    assert said == {"/a.cue": why, "b.yaml": why}
    assert any("x ended on 2020-01-01 (ops)" in note for note in result.notes)


def test_a_part_counts_by_its_checks_and_a_file_by_itself(fixtures, catalogue, now):
    case = fixtures.case("reference")
    at, bears_on = Location(path="a"), ("node.firewall",)
    rule = Entry(unit="rule", at=at, end=End.NOT_UNDERSTOOD, why="x", bears_on=bears_on)
    body = replace(case.document.body, ledger=(rule, replace(rule, unit="file")))
    rows = audit(facts_of([body]), catalogue, case.policy, now).ledger
    assert {row.entry.unit: row.counts for row in rows} == {"rule": False, "file": True}


def test_what_is_left_out_is_no_file_of_a_node(fixtures, catalogue, now):
    case = fixtures.case("sshd-match")
    rule = OutOfScope(glob="*", reason="x", owner="ops", end=date(2030, 1, 1))
    policy = replace(case.policy, audit=replace(case.policy.audit, out_of_scope=(rule,)))
    (found,) = audit(case.facts, catalogue, policy, now).of(State.FAIL)
    assert found.location is not None


def test_what_is_open_and_in_scope_comes_first(tmp_path, now):
    rule = OutOfScope(glob="a.cue", reason="x", owner="ops", end=date(2030, 1, 1))
    world(tmp_path, {"a.cue": "", "pod.yaml": GOOD, "z.cue": ""})
    first, *_ = audited(tmp_path, now, checks=[], out_of_scope=(rule,)).ledger
    assert first.entry.at.path.endswith("z.cue")


def test_the_sums_of_several_kinds(tmp_path, now):
    world(tmp_path, {"pod.yaml": GOOD, "a.cue": "", "exports": "/data *(rw)\n", "b.md": ""})
    sums = {one.what: (one.seen, one.of, one.not_ours) for one in audited(tmp_path, now).coverage}
    assert sums == {"files": (1, 2, 1), "exports": (1, 1, 0)}
