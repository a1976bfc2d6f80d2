# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The table of codes decides everything, is raised and tested, and is the only one."""

import ast
import gc
import itertools
import json
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from securetrain.artifacts.scan.findings import Finding, ScanResult
from securetrain.artifacts.tree.layout import Problem, most_telling
from securetrain.core.codes import ALONE, CODES, RETIRED, Code, ExitCode, Node, Retry
from securetrain.core.errors import AttestationError, SecureTrainError, UsageError
from securetrain.core.vocabulary import Severity
from securetrain.report import written
from securetrain.report.document import Document, Findings, Located
from securetrain.threats.threat_model import load_model, models_dir
from tests.core import code_rules as rules
from tests.tables import items
from tests.vocabulary import refused

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "securetrain"
TABLE = "securetrain/core/codes/"
MAKERS = {"layout.py": "Kind.code", "agreement.py": "the bits of a row"}
"""The files that may put a code together from parts."""

SCAN_ORDER = (
    *("190", "191", "194", "195", "196", "197", "193", "192", "142", "031", "032", "200", "030"),
)
STORED_ORDER = (
    *(
        "100",
        "101",
        "110",
        "120",
        "161",
        "180",
        "125",
        "126",
        "127",
        "128",
        "173",
        "174",
        "111",
        "122",
        "190",
        "142",
        "191",
    ),
    *("130", "131", "132", "133", "134", "140", "143", "141", "200", "202"),
    *("160", "171", "154", "151", "152", "153", "150", "170", "172", "123", "124", "121", "201"),
)
"""The last three digits, the most telling first."""


def trees(folder):
    """Syntax trees of the files that may name a code, one after the other; none is kept."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        name, text = str(path.relative_to(ROOT)), path.read_bytes()
        if name.startswith(TABLE) or path == Path(__file__):
            continue
        if folder != "tests" or b"ST-" in text:
            yield name, ast.parse(text)


def uncollected(make):
    """What it makes, without a collector that looks through all trees again and again."""
    gc.disable()
    try:
        return make()
    finally:
        gc.enable()


@cache
def source():
    return uncollected(lambda: rules.read(dict(trees("securetrain"))))


@cache
def names():
    return uncollected(lambda: rules.named(tree for _, tree in trees("tests")))


@cache
def cited():
    """Threats and exceptions of the shipped models, with the codes that each cites."""
    found = {}
    for model in map(load_model, sorted(models_dir().glob("*.yaml"))):
        for threat in model.threats:
            found[threat.id] = {code for control in threat.controls for code in control.codes}
        found |= {item.id: set(item.codes) for item in model.out_of_scope}
    return found


def missing(table):
    """Everything that is missing around a table."""
    return [
        *rules.incomplete(table),
        *rules.untraced(table, cited()),
        *rules.unraised(table, source()),
        *rules.untested(table, names()),
    ]


# The table as it is.


def test_every_row_is_decided_raised_traced_and_tested():
    assert missing(CODES) == []


def test_every_column_is_mandatory():
    for column in fields(Code):
        row = {f.name: getattr(CODES["ST-USAG-001"], f.name) for f in fields(Code)}
        del row[column.name]
        refused(TypeError, column.name, Code, **row)


def test_there_is_no_other_table_of_codes():
    assert source().tables == []
    assert {Path(file).name for file in source().made} == set(MAKERS)


def test_retired_codes_are_not_used_again():
    assert RETIRED.isdisjoint(CODES)
    assert all(rules.CODE.fullmatch(code) for code in RETIRED)


def test_titles_and_fixes_read_as_clauses():
    for code in CODES.values():
        for text in (code.title, code.fix):
            assert text == text.strip(), code.id
            assert text[-1] not in ".!?:;", code.id
        assert not code.title.startswith(("who ", "what ", "whether ")), code.id


# Each rule, with a row that breaks it.

NEW = replace(CODES["ST-ATTS-008"], id="ST-ATTS-999", node=Node.OUT)


def with_row(**changes):
    row = replace(NEW, **changes)
    return CODES | {row.id: row}


@items(
    "changes, said",
    ({"title": ""}, "column 'title' is empty"),
    ({"fix": " "}, "column 'fix' is empty"),
    ({"threat": ""}, "column 'threat' is empty"),
    ({"threat": "none: "}, "column 'threat': say why there is none"),
    ({"threat": "T-NOT-001"}, "no threat model has T-NOT-001"),
    ({"threat": "T-NOD-001"}, "T-NOD-001 does not cite it"),
    ({"rank": 5}, "its rank is ALONE"),
    ({"id": "ST-CKPT-199", "rank": ALONE}, "decide where this one stands"),
    ({"id": "ST-CKPT-199", "rank": CODES["ST-CKPT-130"].rank}, "ST-CKPT-130 stands there"),
    ({"id": "ST-NETW-999", "node": Node.BARRED}, "only evidence can bar a node"),
    ({}, "nothing raises it"),
    ({}, "no test asserts it"),
)
def test_a_row_that_decides_nothing_is_told_what_is_missing(changes, said):
    row = changes.get("id", NEW.id)
    assert [line for line in missing(with_row(**changes)) if line.startswith(row) and said in line]


FAMILIES = sorted({code.family for code in CODES.values()})


@given(
    st.builds(
        Code,
        id=st.tuples(st.sampled_from(FAMILIES), st.integers(0, 999))
        .map(lambda parts: f"ST-{parts[0]}-{parts[1]:03}")
        .filter(lambda code: code not in CODES | dict.fromkeys(RETIRED)),
        exit=st.sampled_from(ExitCode),
        title=st.text(max_size=20),
        fix=st.text(max_size=20),
        severity=st.sampled_from(Severity),
        rank=st.integers(0, ALONE),
        node=st.sampled_from(Node),
        retry=st.sampled_from(Retry),
        threat=st.sampled_from(["", "none: x", "T-NOD-001", "T-CKP-002"]),
    )
)
def test_a_random_new_code_in_the_table_alone_is_told_what_is_missing(row):
    said = [line for line in missing(CODES | {row.id: row}) if line.startswith(row.id)]
    assert f"{row.id}: nothing raises it; raise it, or delete the row and retire the code" in said
    if row.id not in names():
        assert f"{row.id}: no test asserts it; write one that provokes it" in said


@given(st.sampled_from(sorted(CODES)), st.sampled_from(sorted(CODES)))
def test_any_code_can_be_one_of_several_problems(one, other):
    problems = [Problem(code=code, what="x") for code in (one, other)]
    assert most_telling(problems).code in {one, other}
    assert problems[0].fix == CODES[one].fix


def test_a_raising_site_without_a_row():
    said = list(rules.unraised(CODES, rules.read({"x.py": ast.parse('E("ST-ATTS-998", "x")')})))
    assert "ST-ATTS-998: it is raised and has no row in core/codes" in said
    said = list(rules.unraised(CODES, rules.read({"x.py": ast.parse("kind.code(998)")})))
    assert "Kind.code(998): neither family has such a row in core/codes" in said


@items(
    "text, raised",
    ('E("ST-ATTS-998")', True),
    ('E(code="ST-ATTS-998" if x else "ST-ATTS-001")', True),
    ('_X = "ST-ATTS-998"\nE(_X)', True),
    ('_X = "ST-ATTS-998"', False),
    ('_X = "ST-ATTS-998"\nif e.code == _X: pass', False),
    ('if e.code != "ST-ATTS-998": pass', False),
    ('match e.code:\n    case "ST-ATTS-998": pass', False),
    ('"""ST-ATTS-998 is told."""', False),
)
def test_what_counts_as_raising(text, raised):
    assert ("ST-ATTS-998" in rules.read({"x.py": ast.parse(text)}).raised) == raised


@items(
    "text",
    '{"ST-ATTS-001": "a fix"}',
    '{Kind.A: "ST-ATTS-001", Kind.B: "ST-ATTS-002"}',
    '{Kind.A: ("ST-ATTS-001", "a"), Kind.B: ("ST-ATTS-002", "b")}',
    'frozenset({"ST-ATTS-001"})',
    '("ST-ATTS-001", "ST-ATTS-002")',
    'error.code in ("ST-ATTS-001",)',
    '["ST-ATTS-001"]',
    '_A = "ST-ATTS-001"\nX = {_A: "a fix"}',
    '_A = "ST-ATTS-001"\n_B = "ST-ATTS-002"\nX = (_A, _B)',
    'frozenset(f"ST-ATTS-{number:03}" for number in (1, 2))',
    '{f"ST-ATTS-{number:03}": number for number in (1, 2)}',
)
def test_the_check_for_other_tables_can_see(text):
    assert rules.read({"x.py": ast.parse(text)}).tables


@items(
    "text",
    'E("ST-ATTS-001", "what", "where", "fix")',
    '{"code": "ST-THRT-002", "what": what}',
    'code, field = "ST-ATTS-217", "firmware"',
    'x == "ST-ATTS-001"',
    'f"ST-THRT-002 {what}"',
)
def test_the_check_for_other_tables_leaves_sites_alone(text):
    found = rules.read({"x.py": ast.parse(text)})
    assert (found.tables, found.made) == ([], [])


def test_what_names_a_code_in_a_test():
    def named(text):
        return rules.named([ast.parse(text)])

    assert named('refused("ST-ATTS-998")') == {"ST-ATTS-998"}
    assert named('def refused(n): return f"ST-ATTS-{n}"\nrefused(998)') == {"ST-ATTS-998"}
    assert named("# ST-ATTS-998\n") == set()
    assert named('"""Many\nlines: ST-ATTS-998."""') == set()
    assert named('X = {f"ST-ATTS-{n}" for n in (998,)}') == set()


# What the rest of the package reads from it.


def test_what_varies_is_all_that_an_error_needs():
    row = CODES["ST-USAG-006"]
    error = UsageError("ST-USAG-006", where="/data")
    assert (error.what, error.fix, error.exit_code) == (row.title, row.fix, row.exit)
    assert UsageError("ST-USAG-006", "a", "b", "c").to_dict()["fix"] == "c"


def test_every_error_says_what_to_do():
    for code in CODES.values():
        (cls,) = (c for c in SecureTrainError.__subclasses__() if code.family in c.families)
        assert cls(code.id, "x").fix == code.fix


def test_the_fix_of_a_dataset_is_its_own():
    assert "signer on every rank" in Problem(code="ST-CKPT-122", what="x").fix
    assert "VerifiedSamples" in Problem(code="ST-DATA-122", what="x").fix


@pytest.mark.parametrize("family", ["CKPT", "DATA", "OMSB"])
def test_the_order_of_what_is_stored_is_the_old_one(family):
    mine = sorted((code for code in CODES.values() if code.family == family), key=lambda c: c.rank)
    known = [number for number in STORED_ORDER if f"ST-{family}-{number}" in CODES]
    assert [code.id[-3:] for code in mine] == known


def test_the_order_of_a_scan_is_the_old_one():
    order = [f"ST-SCAN-{number}" for number in SCAN_ORDER]
    for first, second in itertools.combinations(order, 2):
        findings = [Finding(code=code, what="x") for code in (second, first)]
        assert ScanResult(path=Path(), findings=findings).exit_code is CODES[first].exit
    assert {code.id for code in CODES.values() if code.family == "SCAN"} == set(order)


def test_what_a_waiver_excuses():
    waived = {code.id for code in CODES.values() if code.retry is Retry.WAIVED}
    assert waived == {"ST-CKPT-151", "ST-CKPT-160", "ST-CKPT-171"}


def test_what_says_nothing_about_a_node():
    unproven = {code.id for code in CODES.values() if code.node is Node.UNPROVEN}
    own = {code.id for code in CODES.values() if code.family in {"USAG", "LEDG"}}
    coordinator = {f"ST-ADMN-{number}" for number in ("005", "007", "012", "041", "042", "047")}
    assert unproven == coordinator | own
    free = [code.id for code in CODES.values() if code.node is Node.FREE]
    assert [code[-3:] for code in free] == ["008", "043", "044", "046", "048"]


def test_what_bars_a_node_is_what_the_row_says():
    assert AttestationError("ST-ATTS-008", "x").definition.bars_node
    assert not AttestationError("ST-ATTS-007", "x").definition.bars_node


@items(
    "code, level",
    ("ST-CKPT-130", "error"),
    ("ST-SCAN-030", "warning"),
    ("ST-USAG-001", "note"),
)
def test_the_level_in_sarif_is_the_severity(code, level):
    problem = Located(code=code, what="x", fix="y")
    outcome = Document(verb="verify", findings=Findings(root="r", problems=(problem,)), code=1)
    run = json.loads(written(outcome, "sarif"))["runs"][0]
    rule = run["tool"]["driver"]["rules"][0]
    assert run["results"][0]["level"] == rule["defaultConfiguration"]["level"] == level
    assert rule["help"]["text"] == CODES[code].fix


def test_everything_that_verify_or_scan_finds_is_at_least_a_warning_in_sarif():
    for code in CODES.values():
        if code.family in rules.COLLECTED and code.exit is not ExitCode.USAGE:
            assert code.severity >= Severity.MEDIUM, code.id
