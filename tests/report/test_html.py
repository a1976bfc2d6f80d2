# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import re
import subprocess
import sys
from datetime import timedelta
from html.parser import HTMLParser

import click
import pytest
from msgspec.structs import replace

from securetrain.core.errors import UsageError
from securetrain.core.vocabulary import Boundary
from securetrain.report import runs, write_report
from securetrain.report.graph.plots import MAX_POINTS, thin
from securetrain.report.render.text import lines
from securetrain.report.run.model import RunRecord
from securetrain.report.run.record import read_run
from securetrain.testing.runs import SmallRun, make_run

HOSTILE = "<script>alert(1)</script>\"'&<img src=x onerror=y>[red]{{7*7}}"
VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """Every tag with its attributes, and whether tags are balanced."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag


def parse(text: str) -> Page:
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == []
    return page


def page_of(run: SmallRun) -> str:
    path = write_report(run.run_dir.root, run.clock() + timedelta(hours=1))
    assert path == run.run_dir.report
    return path.read_text(encoding="utf-8")


def shown(record: RunRecord) -> str:
    """A run as text that is wide and has no colour."""
    return click.unstyle("\n".join(lines(runs.page(record), 400)))


@pytest.fixture(scope="module")
def text(tmp_path_factory, fill) -> str:
    """The page of a run that has everything; the plots take a while."""
    return page_of(fill(make_run(tmp_path_factory.mktemp("page") / "run")))


def test_the_page_needs_nothing_else(text):
    assert "//" not in re.sub(r"/\*.*?\*/", "", text)
    assert "http" not in text.replace("http-equiv", "")
    assert "@import" not in text
    assert "<script" not in text
    for tag, attributes in parse(text).tags:
        assert tag not in {"script", "link", "iframe", "object", "embed", "img", "base", "form"}
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in {"href", "xlink:href"}:
                assert str(value).startswith("#"), (tag, value)
            assert name not in {"src", "srcset", "action", "data"}
            assert "url(" not in str(value).replace("url(#", ""), (tag, value)
    assert "default-src 'none'" in text


def test_every_boundary_is_on_the_picture_in_words(text):
    picture = text[text.index('<svg class="picture"') : text.index("</svg>")]
    for boundary in Boundary:
        assert f">{boundary.value}</text>" in picture
        assert f'id="b-{boundary.value}"' in text
    for word in ("UNATTESTED", "checked", "not recorded"):
        assert word in picture


def test_all_sections_and_curves_are_there(text):
    for words in (
        "What this run did not prove", "Loss in bits per byte", "Gradient norm", "bigram 3.77",
        "Time of a step",
        "Norm of each rank", "Evidence against each rank", "step-00000300",
        "D-RDZ-PICKLE", "refused ST-ADMN-002", "attack succeeded", "ST-HST-001", "ulimit -c 0",
        "node-admitted",
    ):  # fmt: skip
        assert words in text, words


def test_ids_are_unique_and_every_drawing_has_a_title(text):
    tags = parse(text).tags
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in tags:
        if tag == "svg":
            labels = str(attributes["aria-labelledby"]).split()
            assert labels
            assert set(labels) <= set(ids)


def test_hostile_text_is_only_text(tmp_path, fill, refuse):
    run = fill(make_run(tmp_path / "run"), hostile=HOSTILE)
    refuse(run, HOSTILE)
    text = page_of(run)
    assert "<script" not in text
    assert "<img" not in text
    assert "&lt;script&gt;" in text
    assert "{{7*7}}" in text
    assert "49" not in re.findall(r"onerror=y&gt;\[red\](\S*)", text)
    parse(text)


def test_hostile_text_is_no_markup_on_the_terminal(tmp_path, fill):
    run = fill(make_run(tmp_path / "run"), hostile="[red]x[/nonsense]\x1b[31m")
    text = shown(read_run(run.run_dir.root, run.clock()))
    assert "[/nonsense]" in text
    assert "\x1b" not in text


def test_the_terminal_says_what_is_open_at_a_boundary_first(full):
    record = read_run(full.run_dir.root, full.clock())
    node = next(view for view in record.boundaries if view.boundary == "node")
    many = replace(node, reasons=("one", "two", "three", *node.reasons))
    text = shown(replace(record, boundaries=(many,)))
    assert re.search(r"node +partial +UNATTESTED; one; two; three; ", text)


def test_a_bare_run_is_shown_as_not_recorded(bare):
    text = page_of(bare)
    parse(text)
    for words in ("No metrics are recorded", "No audit is recorded", "No drill is recorded"):
        assert words in text


def test_a_refused_ledger_is_shown_in_red_and_not_used(full):
    full.run_dir.ledger.write_bytes(b"{}\n")
    text = page_of(full)
    assert "ledger refused ST-LEDG-001" in text
    assert "Nothing that this ledger says is used" in text
    assert "node-admitted" not in text


def test_malformed_files_are_named_on_the_page(full):
    full.run_dir.audit.write_text("{")
    assert "Files of this run that could not be used" in page_of(full)


def test_the_page_is_the_same_for_the_same_run(full):
    assert page_of(full) == page_of(full)


def test_it_can_be_written_elsewhere_and_says_when_it_cannot(full, tmp_path):
    now = full.clock() + timedelta(hours=1)
    assert write_report(full.run_dir.root, now, tmp_path / "x.html").exists()
    with pytest.raises(UsageError) as caught:
        write_report(full.run_dir.root, now, tmp_path / "missing" / "x.html")
    assert caught.value.code == "ST-USAG-002"


@pytest.mark.parametrize("module", ["jinja2", "matplotlib"])
def test_a_missing_extra_is_named(full, monkeypatch, module):
    for name in [m for m in sys.modules if m.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError) as caught:
        page_of(full)
    assert caught.value.code == "ST-USAG-004"
    assert "pip install '.[report]'" in caught.value.fix


def test_thinning_keeps_the_extremes():
    series = [(step, 0.0) for step in range(100_000)]
    series[54_321] = (54_321, 9.0)
    series[65_432] = (65_432, -9.0)
    kept = thin(series)
    assert len(kept) <= MAX_POINTS + 2
    assert (54_321, 9.0) in kept
    assert (65_432, -9.0) in kept
    assert kept == sorted(kept)


def test_reading_a_run_imports_neither_torch_nor_numpy():
    script = (
        "import sys, securetrain.report.run.record, securetrain.report.pages.runs,"
        " securetrain.report.render.text;"
        "print([m for m in ('torch', 'numpy', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
