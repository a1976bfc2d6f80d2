# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import hashlib
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest

from securetrain.core.errors import IntegrityError, UsageError
from securetrain.train.data import counts
from securetrain.train.data.counts import Index, Subject
from securetrain.train.tokenizer import ByteTokenizer
from tests.tables import items
from tests.train.data.test_documents import line, lines
from tests.vocabulary import refused

SUBJECT = Subject(dataset="d" * 64, split="train", format="jsonl:text", tokenizer="t" * 64)
DATA = line("one") + b"\n" + line("three")


def counted() -> Index:
    *_, index = counts.count(lines(DATA), ByteTokenizer())
    assert index is not None
    return index


def test_tokens_are_counted_with_the_end_token():
    index = counted()
    assert index.tokens.tolist() == [4, 0, 6]
    assert index.sizes.tolist() == [len(line("one")), 1, len(line("three"))]
    assert index.digest == counted().digest


def test_many_documents_are_counted_in_batches(monkeypatch):
    whole = lines(b"".join(line("x" * n) for n in range(50)))
    *steps, index = counts.count(whole, ByteTokenizer())
    monkeypatch.setattr(counts, "BATCH", 7)
    monkeypatch.setattr(counts, "BATCH_TEXT", 60)
    *more, again = counts.count(whole, ByteTokenizer())
    assert steps == [None]
    assert len(more) > 8
    assert again is not None
    assert index is not None
    assert again.digest == index.digest


def test_an_index_is_kept_and_found(tmp_path: Path):
    list(counts.make(SUBJECT, lines(DATA), ByteTokenizer(), tmp_path / "index"))
    found = counts.find(SUBJECT, lines(DATA), tmp_path / "index")
    assert found is not None
    assert found.digest == counted().digest
    assert [p.name for p in (tmp_path / "index").iterdir()] == [SUBJECT.file]
    assert (tmp_path / "index" / SUBJECT.file).stat().st_mode & 0o777 == 0o600


def test_nothing_is_kept_without_a_folder():
    assert counts.find(SUBJECT, lines(DATA), None) is None
    *_, index = counts.make(SUBJECT, lines(DATA), ByteTokenizer(), None)
    assert index is not None


@pytest.mark.parametrize("field", ["dataset", "split", "format", "tokenizer"])
def test_an_index_of_something_else_is_not_read(tmp_path: Path, field):
    other = msgspec.structs.replace(SUBJECT, **{field: "other"})
    assert other.file != SUBJECT.file
    counts.save(counted(), other, tmp_path / SUBJECT.file)
    assert counts.load(SUBJECT, tmp_path / SUBJECT.file) is None


def test_a_damaged_index_is_not_read(tmp_path: Path):
    path = tmp_path / SUBJECT.file
    counts.save(counted(), SUBJECT, path)
    good = path.read_bytes()
    for n in range(len(good)):
        path.write_bytes(good[:n] + bytes([good[n] ^ 1]) + good[n + 1 :])
        assert counts.load(SUBJECT, path) is None
    for n in range(len(good)):
        path.write_bytes(good[:n])
        assert counts.load(SUBJECT, path) is None
    path.write_bytes(good + b"\0")
    assert counts.load(SUBJECT, path) is None
    path.write_bytes(good)
    assert counts.load(SUBJECT, path) is not None


def test_a_link_is_not_followed(tmp_path: Path):
    counts.save(counted(), SUBJECT, tmp_path / "elsewhere")
    (tmp_path / SUBJECT.file).symlink_to(tmp_path / "elsewhere")
    refused(UsageError, "ST-USAG-002", counts.load, SUBJECT, tmp_path / SUBJECT.file)


def forged(tmp_path: Path, sizes: list[int], tokens: list[int]) -> None:
    """A whole index with a digest of its own, that lies."""
    made = Index.of(np.array(sizes, dtype="<u4"), np.array(tokens, dtype="<u4"))
    counts.save(made, SUBJECT, tmp_path / SUBJECT.file)


@items(
    "sizes, tokens",
    ([1, 2, 3], [4, 0, 6]),
    ([], []),
    ([len(DATA)], [0]),
    ([len(line("one")), 1, len(line("three"))], [4, 0, 0]),
)
def test_a_whole_index_that_leaves_something_out_is_refused(tmp_path: Path, sizes, tokens):
    forged(tmp_path, sizes, tokens)
    refused(IntegrityError, "ST-DATA-133", counts.find, SUBJECT, lines(DATA), tmp_path)


def test_too_many_documents_are_refused_while_they_are_counted(monkeypatch):
    monkeypatch.setattr(counts, "MAX_DOCUMENTS", 2)
    refused(UsageError, "more than 2 documents", list, counts.count(lines(DATA), ByteTokenizer()))


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch):
    def full(fd: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="ST-USAG-006"):
        list(counts.make(SUBJECT, lines(DATA), ByteTokenizer(), tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_the_digest_is_of_the_numbers():
    index = counted()
    body = index.sizes.tobytes() + index.tokens.tobytes()
    assert index.digest == hashlib.sha256(body).hexdigest()
