# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A document as text and JSON: what comes first, what is left out, and that no name is broken."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securetrain.core.vocabulary import Severity
from securetrain.report import Document, Row, Section, emit, table, written
from securetrain.report.document import (
    Case,
    Findings,
    Located,
    Place,
    columns,
    facts,
    moment,
    open_rows,
    plural,
    runs,
    stated,
    titled,
    told,
    tone,
)
from securetrain.report.pages.checks import shown
from securetrain.report.render.text import lines
from tests.tables import each
from tests.vocabulary import refused

PATH = "/srv/runs/" + "x" * 90 + "/step-100"
FOUND = Document(
    verb="verify",
    word="REFUSED",
    about="checkpoint step-100",
    sections=[
        facts([("signed by", "key 3f0c, trusted by trust.json"), ("digest", PATH), ("empty", "")]),
        Section(
            title="problems",
            rows=[
                Row(state="fail", name="ST-CKPT-130", text="changed", source="a.bin", fix="get it"),
                Row(state="fail", name="ST-CKPT-130", text="changed", source="b.bin", fix="get it"),
                Row(state="pass", name="ST-CKPT-131", text="here"),
            ],
        ),
    ],
    findings=Findings(
        problems=(Located(code="ST-CKPT-130", what="x", fix="y", at=Place(file="a.bin")),),
        checked=("a.bin", "b.bin", "c.bin"),
    ),
    code=13,
)


def text_of(document: Document, width: int = 80, **asked: bool) -> list[str]:
    return [click.unstyle(line) for line in lines(document, width, **asked)]


def test_the_verdict_and_the_counts_come_first_and_a_fix_once() -> None:
    assert text_of(FOUND, 200) == [
        "REFUSED  checkpoint step-100",
        "1 fail, 2 pass",
        "signed by  key 3f0c, trusted by trust.json",
        f"digest     {PATH}",
        "",
        "problems",
        "  fail  ST-CKPT-130  changed",
        "        a.bin",
        "  fail  ST-CKPT-130  changed",
        "        b.bin",
        "        fix: get it",
    ]


def test_quiet_is_the_verdict_and_verbose_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert emit(FOUND, "text", quiet=True) == 13
    assert capsys.readouterr().out == "REFUSED  checkpoint step-100\n"
    assert emit(FOUND, "text", verbose=True) == 13
    assert "ST-CKPT-131" in capsys.readouterr().out
    assert emit(told("the first", "the second"), "text", quiet=True) == 0
    assert capsys.readouterr().out == "the first\n"
    assert text_of(replace(FOUND, whole=True)) == text_of(FOUND, verbose=True)
    assert text_of(replace(FOUND, whole=True), quiet=True) == text_of(FOUND, quiet=True)


@given(st.sets(st.integers(0, 300)), st.sampled_from([0, 3]))
def test_runs_of_numbers_are_those_numbers(numbers: set[int], width: int) -> None:
    found = runs(sorted(numbers), width)
    ends = [[int(end) for end in one.split("-")] for one in found]
    assert [n for one in ends for n in range(one[0], one[-1] + 1)] == sorted(numbers)
    assert all(other[0] > one[-1] + 1 for one, other in pairwise(ends))
    assert all(len(end) >= width for one in found for end in one.split("-"))


@pytest.mark.parametrize("width", [40, 80, 120])
def test_lines_fit_and_no_name_is_broken(width: int) -> None:
    words = [f"word-{n:03d}" for n in range(60)]
    page = Document(
        word="OPEN",
        about=" ".join(words),
        sections=[
            Section(title=" ".join(words), rows=[Row(name="x" * 60, state="fail", text=PATH)]),
            Section(rows=[Row(state="fail", name="n", text=" ".join(words), fix=" ".join(words))]),
            Section(rows=[Row(name="n", text=PATH), Row(text="deep", depth=60)]),
            table(("a", "b"), [(PATH, "1"), ("short", " ".join(words))]),
            table(("a", "b"), [("x", "1"), ("y", " ".join(words))]),
        ],
    )
    text = text_of(page, width)
    assert all(len(line) <= width or len(line.split()) == 1 for line in text), text
    told_words = " ".join(text).split()
    assert told_words.count(PATH) == 3
    assert told_words.count("word-059") == 6


TITLED = "a|  fail  ST-CKPT-130  one two|                   z||b|  fail  ST-CKPT-130  one two"
SHORT = Section(title="t", rows=[Row(text="x")])
NARROW = Row(state="fail", name="ST-CKPT-130", text="one two")


@each(
    "document, width, text",
    (Document(word="OPEN", sections=[SHORT]), 80, "OPEN||t|  x"),
    (Document(about="a", sections=[SHORT]), 80, "a||t|  x"),
    (Document(sentence="s", sections=[SHORT]), 80, "s||t|  x"),
    (Document(sections=[SHORT]), 80, "t|  x"),
    (Document(sections=[SHORT, SHORT]), 80, "t|  x||t|  x"),
    (Document(sections=[Section(lead="l"), SHORT]), 80, "t|  x"),
    (Document(sections=[Section(lead="l", empty="none")]), 80, "l|none"),
    (Document(sections=[Section(title="t", lead="l")]), 80, "t|  l"),
    (Document(sections=[Section(title="t", rows=[Row(state="pass")])]), 80, ""),
    (Document(sections=[Section(title="t", page_only=True, rows=[Row(text="x")])]), 80, ""),
    (Document(sections=[Section(rows=[NARROW])]), 80, "fail  ST-CKPT-130  one two"),
    (Document(sections=[Section(rows=[NARROW])]), 42, "fail  ST-CKPT-130|  one two"),
    (Document(sections=[stated([("note", "x"), ("open", "y")])]), 80, "note  x|open  y"),
    (Document(sections=titled([("a", NARROW), ("b", NARROW), ("a", Row(text="z"))])), 80, TITLED),
    (Document(sections=[columns("xy", {"a": str, "b": ord})]), 80, "  a  b|  x  120|  y  121"),
    (Document(sections=[columns((), {"a": str}, empty="none")]), 80, "none"),
)
def test_where_lines_stand(document: Document, width: int, text: str) -> None:
    assert text_of(document, width) == (text.split("|") if text else [])


def test_a_word_without_a_tone_is_not_coloured() -> None:
    page = Document(sections=[Section(rows=[Row(state="seen", text="x"), Row(text="y")])])
    assert list(lines(page, 80)) == ["seen  x", "    y"]


@each(
    "tally, problems, counts",
    ({}, (), {"pass": 1}),
    ({}, ({}, {"undecided": True}), {"fail": 1}),
    ({}, ({"undecided": True}, {"accepted": "ours"}), {"unknown": 1}),
    ({}, ({"accepted": "ours"},), {"waived": 1}),
    ({"works": 2, "pass": 1, "fail": 3, "none": 0}, (), {"fail": 3, "pass": 1, "works": 2}),
)
def test_the_worst_of_a_case_counts_and_the_worst_counts_first(
    tally: dict[str, int], problems: tuple[dict[str, Any], ...], counts: dict[str, int]
) -> None:
    found = tuple(Located(code="ST-CKPT-130", what="x", fix="y", **one) for one in problems)
    page = Document(findings=Findings(tests=[Case(name="a", problems=found)]), tally=tally)
    assert list(page.counts.items()) == list(counts.items())


def test_what_is_left_out_is_counted() -> None:
    rows = [Row(text=f"row {n}", detail=tuple(map(str, range(9)))) for n in range(4)]
    page = Document(sections=[Section(rows=rows, most=1)])
    assert text_of(page)[-2:] == ["  and 4 more (-v or --json)", "and 3 more (-v or --json)"]
    assert len(text_of(page, verbose=True)) == 40


def test_text_is_one_line_each_and_cannot_repaint_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = Document(
        sections=[
            Section(rows=[Row(text="a"), Row(text="b\x1b[2J\nc", name="\x1bn")]),
            table(("t",), [("\x1b[2J",)]),
            Section(rows=[Row(text="\x1b  kept")], verbatim=True),
        ],
        code=3,
    )
    assert emit(page, "text") == 3
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "b\\x1b[2J\\nc" in out
    assert "\\x1b  kept" in out


def test_an_answer_stands_alone_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    page = Document(answer="token", sections=told("for node-1, once").sections)
    assert emit(page, "text") == 0
    caught = capsys.readouterr()
    assert (caught.out, caught.err) == ("token\n", "for node-1, once\n")
    emit(page, "text", quiet=True)
    assert capsys.readouterr() == ("token\n", "")
    emit(Document(), "text")
    assert capsys.readouterr().out == ""


def test_plain_values_are_sorted_json_and_written_json_stays(
    capsys: pytest.CaptureFixture[str],
) -> None:
    emit(Document(data={"b": Path("x"), "a": 1}), "json")
    assert json.loads(out := capsys.readouterr().out) == {"a": 1, "b": "x"}
    assert out.index('"a"') < out.index('"b"')
    emit(Document(data='{"b":1,"a":2}'), "json")
    assert capsys.readouterr().out == '{"b":1,"a":2}\n'
    refused(ValueError, "odt", written, Document(), "odt")


@pytest.mark.parametrize(
    ("states", "code", "exit_code"),
    [
        ((), None, 0),
        (("pass", "waived"), None, 0),
        (("pass", "unknown"), None, 3),
        (("unknown", "fail"), None, 1),
        (("fail",), 13, 13),
        (("fail",), 0, 0),
    ],
)
def test_the_exit_code_is_the_judges_or_the_worst_rows(
    states: tuple[str, ...], code: int | None, exit_code: int
) -> None:
    rows = [Row(state=state, text="x") for state in states]
    assert Document(sections=[Section(rows=rows)], code=code).exit_code == exit_code


def test_open_rows_stand_worst_first() -> None:
    rows = [
        Row(state=state, label=label)
        for state, label in (
            ("unknown", Severity.HIGH),
            ("fail", Severity.LOW),
            ("pass", Severity.HIGH),
            ("fail", Severity.CRITICAL),
            ("held", ""),
        )
    ]
    found = open_rows([Section(rows=rows[:2]), Section(rows=rows[2:])])
    assert [row.label for row in found] == ["critical", "low", "high"]


def test_small_pieces() -> None:
    assert moment(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)) == "2026-01-02T03:04:05Z"
    assert (plural(1, "witness", "witnesses"), plural(2, "problem")) == ("1 witness", "2 problems")
    words = ("REFUSED", "verified", "NOT VERIFIED (3)", "waived", "x")
    assert [tone(word) for word in words] == ["bad", "good", "warn", "warn", "plain"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (True, "true"), (["a", 1], "[a, 1]"), ({}, "(below)"), (3, "3"), ("x", "x")],
)
def test_values_as_in_the_file(value: object, text: str) -> None:
    assert shown(value) == text
