# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import json

import numpy as np
import pytest

from securetrain.artifacts.dataset.versions import Removals
from securetrain.artifacts.dataset.write import Document
from securetrain.artifacts.statement.dataset_predicate import Removed
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.train.data import documents
from securetrain.train.data.documents import JsonLines, TextFiles
from securetrain.train.data.source import ByteRange, ByteSplit
from tests.tables import each
from tests.train.jobs import MemorySource
from tests.vocabulary import refused


def line(text: str) -> bytes:
    return json.dumps({"id": 1, "text": text}).encode() + b"\n"


def lines(*files: bytes, removed: list[Removed] | None = None) -> JsonLines:
    names = [f"{n}.jsonl" for n in range(len(files))]
    source = MemorySource(dict(zip(names, files, strict=True)), {"train": tuple(names)})
    source.removals = Removals.of(removed or [])
    return JsonLines(ByteSplit(source, "train", "job.yaml"), "text")


def placed(documents: JsonLines) -> list[str | None]:
    """The texts, by number, after the sizes were taken from a scan."""
    found = list(documents.scan())
    documents.set_sizes(np.array([size for size, _ in found], dtype=np.uint32))
    texts = [None if text is None else documents.text(n) for n, (_, text) in enumerate(found)]
    assert texts == [text for _, text in found]
    return texts


def test_a_line_is_a_document_also_at_the_end_of_a_file():
    made = lines(line("one") + line("two\u00e9\n").rstrip(b"\n"), b"", line("three"))
    assert placed(made) == ["one", "two\u00e9\n", "three"]
    assert made.byte_range(2) == ByteRange("2.jsonl", 0, len(line("three")))


def test_an_empty_line_is_no_document():
    assert placed(lines(line("one") + b"\n\r\n" + line("two"))) == ["one", None, None, "two"]


def test_long_lines_are_read_in_pieces(monkeypatch):
    monkeypatch.setattr(documents, "READ", 7)
    texts = ["x" * n for n in (0, 1, 6, 7, 8, 100)]
    assert placed(lines(b"".join(map(line, texts)))) == texts


def test_a_line_that_is_too_long_is_refused_before_it_is_in_memory(monkeypatch):
    monkeypatch.setattr(documents, "READ", 16)
    monkeypatch.setattr(documents, "DOCUMENT_LIMIT", 64)
    refused(UsageError, "more than 64", list, lines(line("x" * 200)).scan())


@each(
    "bad, what",
    (b"nonsense\n", "Expecting value"),
    (b"[1]\n", "not an object"),
    (b'{"body": "x"}\n', "no text in field 'text'; it has body"),
    (b'{"text": 7}\n', "no text in field"),
    (b'{"text": "a", "text": "b"}\n', "duplicate key"),
    (b'{"text": "\xff"}\n', "invalid start byte"),
    (b'{"text": "\\ud800"}\n', "surrogates"),
    (b"   \n", "Expecting value"),
)
def test_a_line_that_is_not_in_the_format_is_refused_by_place(bad, what):
    error = refused(UsageError, "ST-USAG-015", list, lines(line("fine") + bad).scan(), says=what)
    assert f"byte {len(line('fine'))}" in error.what
    assert error.where == "job.yaml: 0.jsonl"


def test_a_removed_line_is_no_document():
    first, second = line("keep"), line("forget me")
    removed = Removed(file="0.jsonl", offset=len(first), length=len(second))
    assert placed(lines(first + second + line("last"), removed=[removed])) == ["keep", "last"]


@pytest.mark.parametrize("sizes", [[], [5], [1000], [20, 20]])
def test_sizes_that_do_not_cover_the_split_are_refused(sizes):
    with pytest.raises(IntegrityError) as caught:
        lines(line("one") + line("two")).set_sizes(np.array(sizes, dtype=np.uint32))
    assert caught.value.code == "ST-DATA-133"


def test_sizes_that_cut_lines_elsewhere_are_found_when_used():
    """An index that hides a document: the lie covers the split, and no lie survives a read."""
    data = line("one") + line("two") + line("six")
    each = len(line("one"))
    for sizes in ([2 * each, each], [each - 1, 2 * each + 1], [each, each + 5, each - 5]):
        made = lines(data)
        made.set_sizes(np.array(sizes, dtype=np.uint32))
        with pytest.raises(IntegrityError, match="ST-DATA-133"):
            [made.text(number) for number in range(len(sizes))]


def text_files(table: list[Document], *files: bytes) -> TextFiles:
    names = [f"{n}.txt" for n in range(len(files))]
    source = MemorySource(dict(zip(names, files, strict=True)), {"train": tuple(names)})
    return TextFiles(ByteSplit(source, "train", "job.yaml"), table)


def test_a_file_is_a_document():
    made = text_files([], b"one", "zw\u00f6lf".encode())
    assert list(made.scan()) == [(3, "one"), (6, "zw\u00f6lf")]
    assert made.byte_range(1) == ByteRange("1.txt", 0, 6)
    made.set_sizes(np.array([3, 6], dtype=np.uint32))
    refused(IntegrityError, "ST-DATA-133", made.set_sizes, np.array([4, 4], dtype=np.uint32))


def test_a_signed_table_says_what_a_document_is():
    table = [
        Document(name="a", file="0.txt", offset=0, length=2),
        Document(name="b", file="0.txt", offset=2, length=4),
    ]
    assert [text for _, text in text_files(table, b"onetwo").scan()] == ["on", "etwo"]


def test_what_is_no_text_is_refused():
    refused(UsageError, "ST-USAG-015", list, text_files([], b"\xff\xfe").scan())
