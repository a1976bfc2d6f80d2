# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import torch

from securetrain.core.errors import IntegrityError, UsageError
from securetrain.train.data import counts, packing
from securetrain.train.data.counts import Index
from securetrain.train.data.documents import JsonLines
from securetrain.train.data.packing import PackedTokens
from securetrain.train.data.rows import Rows, epoch_order
from securetrain.train.tokenizer import ByteTokenizer
from tests.train.data.test_documents import line, lines
from tests.train.jobs import prose
from tests.vocabulary import refused

TEXTS = [prose(2 + 7 * n % 11, n).decode() for n in range(30)]
EOS = ByteTokenizer.eos


def documents() -> JsonLines:
    return lines(b"".join(map(line, TEXTS[:20])), b"\n" + b"".join(map(line, TEXTS[20:])))


def packed(seed: int | None = 3, index: Index | None = None) -> PackedTokens:
    found = documents()
    if index is None:
        *_, index = counts.count(documents(), ByteTokenizer())
    assert index is not None
    counts.check(index, found)
    return PackedTokens(found, index, ByteTokenizer(), seed)


def texts_of(stream: PackedTokens, epoch: int) -> list[str]:
    """Cut the whole stream at the end tokens."""
    whole = stream.read(0, len(stream), epoch).tolist()
    assert whole[-1] == EOS
    found, text = [], bytearray()
    for token in whole:
        if token == EOS:
            found.append(text.decode())
            text.clear()
        else:
            text.append(token)
    return found


def test_an_epoch_has_every_document_once_in_an_order_of_its_own():
    stream = packed()
    first, second = texts_of(stream, 0), texts_of(stream, 1)
    assert sorted(first) == sorted(second) == sorted(TEXTS)
    assert first != second
    assert first != TEXTS
    assert texts_of(packed(seed=4), 0) != first
    assert texts_of(packed(), 0) == first


def test_held_out_documents_come_in_their_order():
    stream = packed(seed=None)
    assert texts_of(stream, 0) == TEXTS == texts_of(stream, 5)


def test_any_window_is_the_same_alone_as_in_the_whole():
    stream = packed()
    whole = stream.read(0, len(stream), 1)
    for start in range(0, len(stream) - 40, 37):
        assert torch.equal(packed().read(start, 40, 1), whole[start : start + 40])


def test_rows_are_windows_of_an_epoch_without_a_gap():
    stream = packed()
    order = epoch_order(stream, seq_len=16, seed=3, batch_rows=4, epochs=2)
    rows = Rows(stream, 16, 3, order)
    windows = (len(stream) - 1) // 16
    made = [rows.batch(1 + n // 4, [n % 4]) for n in range(windows)]
    whole = stream.read(0, windows * 16 + 1, 0)
    assert torch.equal(torch.cat([x[0] for x, _ in made]), whole[:-1])
    assert torch.equal(torch.cat([y[0] for _, y in made]), whole[1:])


def test_an_auditor_finds_the_documents_of_a_row():
    stream, found = packed(), documents()
    source = found.split
    for place in stream.byte_ranges(100, 17, 0):
        data = found.split._source.read(*place)
        assert data.startswith(b'{"id": 1')
        assert data.endswith(b"\n")
    assert source.name == "train"


def test_few_documents_are_kept_and_rows_stay_the_same(monkeypatch):
    whole = packed().read(0, len(packed()), 0)
    monkeypatch.setattr(packing, "KEPT_TOKENS", 1)
    stream = packed()
    for start in (0, 500, 0, 900):
        assert torch.equal(stream.read(start, 50, 0), whole[start : start + 50])
    assert len(stream._texts) == 1


def test_a_count_that_is_wrong_is_found_when_its_document_is_read():
    """A false index moves tokens from one document to another: the sum stays, the lie shows."""
    *_, true = counts.count(documents(), ByteTokenizer())
    assert true is not None
    tokens = true.tokens.copy()
    tokens[3] += 1
    tokens[4] -= 1
    stream = packed(index=Index.of(true.sizes, np.asarray(tokens)))
    refused(IntegrityError, "ST-DATA-133", texts_of, stream, 0)


def test_a_split_without_documents_is_refused():
    found = lines(b"\n")
    *_, index = counts.count(lines(b"\n"), ByteTokenizer())
    assert index is not None
    refused(UsageError, "ST-USAG-015", PackedTokens, found, index, ByteTokenizer(), 0)
