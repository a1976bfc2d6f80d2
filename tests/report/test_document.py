# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import json
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest

from securetrain.report.document import Document, aligned, emit, moment, plural
from securetrain.report.policy_fields import shown
from tests.vocabulary import refused


def test_text_is_one_line_each_and_cannot_repaint_a_terminal(capsys):
    assert emit(Document(text=["a", "b\x1b[2J\nc"], exit_code=3), "text") == 3
    assert capsys.readouterr().out == "a\nb\\x1b[2J\\nc\n"


def test_no_lines_are_no_output(capsys):
    assert emit(Document(text=()), "text") == 0
    assert capsys.readouterr().out == ""


def test_text_may_be_what_prints_it(capsys):
    emit(Document(text=lambda: click.echo("printed")), "text")
    assert capsys.readouterr().out == "printed\n"


def test_plain_values_are_sorted_json_and_written_json_stays(capsys):
    emit(Document(data={"b": Path("x"), "a": 1}, text=()), "json")
    assert json.loads(out := capsys.readouterr().out) == {"a": 1, "b": "x"}
    assert out.index('"a"') < out.index('"b"')
    emit(Document(data='{"b":1,"a":2}', text=()), "json")
    assert capsys.readouterr().out == '{"b":1,"a":2}\n'


def test_other_formats_are_those_of_the_document(capsys):
    page = Document(text=(), machine={"sarif": lambda: "made\n"}, exit_code=13)
    assert emit(page, "sarif") == 13
    assert capsys.readouterr().out == "made\n"
    refused(ValueError, "junit", emit, page, "junit")


def test_small_pieces():
    assert aligned([("a", "1"), ("long", "2")]) == ["a     1", "long  2"]
    assert aligned([("a", "1")], width=3) == ["a    1"]
    assert moment(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)) == "2026-01-02T03:04:05Z"
    assert (plural(1, "witness", "witnesses"), plural(2, "problem")) == ("1 witness", "2 problems")


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (True, "true"), (["a", 1], "[a, 1]"), ({}, "(below)"), (3, "3"), ("x", "x")],
)
def test_values_as_in_the_file(value, text):
    assert shown(value) == text
