# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import sys
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from securetrain.artifacts.statement.dataset_predicate import Removed
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.train.data import counts, parquet
from securetrain.train.data.packing import PackedTokens
from securetrain.train.data.parquet import ParquetRows
from securetrain.train.data.source import ByteRange
from securetrain.train.tokenizer import ByteTokenizer
from tests.train.jobs import flip
from tests.vocabulary import refused

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

TEXTS = [f"row {n} " * (1 + n % 5) for n in range(40)]


def table(columns: dict[str, list[object]], rows: int = 7) -> bytes:
    out = BytesIO()
    pq.write_table(pa.table(columns), out, row_group_size=rows)
    return out.getvalue()


def files() -> dict[str, bytes]:
    return {
        "train/a.parquet": table({"id": list(range(25)), "text": list(TEXTS[:25])}),
        "train/b.parquet": table({"text": list(TEXTS[25:])}),
    }


def rows_of(dataset, field: str = "text") -> ParquetRows:
    names = [name for name in dataset.splits["train"] if name.endswith(".parquet")]
    return ParquetRows(dataset, "train", names, field, "job.yaml")


def test_a_row_is_a_document(signed):
    dataset = signed(files())
    rows = rows_of(dataset)
    assert [text for _, text in rows.scan()] == TEXTS
    assert rows.groups == [7, 7, 7, 4, 7, 7, 1]
    assert [rows.text(n) for n in (39, 0, 24, 25)] == [TEXTS[n] for n in (39, 0, 24, 25)]
    assert rows.byte_range(30) == ByteRange("train/b.parquet", 0, dataset.files["train/b.parquet"])


def test_row_groups_stay_together_in_an_epoch(signed):
    rows = rows_of(signed(files()))
    *_, index = counts.count(rows_of(signed(files())), ByteTokenizer())
    assert index is not None
    counts.check(index, rows)
    stream = PackedTokens(rows, index, ByteTokenizer(), 5)
    order = stream._order(0).documents.tolist()
    assert sorted(order) == list(range(40))
    assert order != list(range(40))
    ends = np.cumsum(rows.groups)
    groups = np.searchsorted(ends, order, side="right")
    assert len([1 for a, b in pairwise(groups) if a != b]) == 6


def test_bytes_are_verified_before_pyarrow_sees_them(signed):
    dataset = signed(files())
    rows = rows_of(dataset)
    path = dataset.path / "train/a.parquet"
    flip(path, 10)
    fresh = signed.open(dataset.path)
    refused(IntegrityError, "ST-DATA-130", lambda: list(rows_of(fresh).scan()))
    assert rows.groups


def test_bad_files_and_columns_are_refused_by_name(signed):
    cases = {
        "no column": (table({"body": ["x"]}), "no column 'text'; it has body"),
        "numbers": (table({"text": [1, 2]}), "holds int64, not text"),
        "null": (table({"text": ["x", None]}), "row 1 has no text"),
        "cut": (b"PAR1" + b"\xff" * 100 + b"PAR1", "not Parquet"),
    }
    for content, what in cases.values():
        with pytest.raises(UsageError) as caught:
            list(rows_of(signed({"train/a.parquet": content})).scan())
        assert caught.value.code == "ST-USAG-015"
        assert what in caught.value.what
        assert "train/a.parquet" in caught.value.where


def test_a_row_group_that_unpacks_to_too_much_is_refused_before_it_is_read(signed, monkeypatch):
    monkeypatch.setattr(parquet, "GROUP_LIMIT", 1000)
    with pytest.raises(UsageError, match="a row group of"):
        rows_of(signed({"train/a.parquet": table({"text": ["x" * 5000]})}))


def test_a_file_that_was_removed_is_left_out(signed):
    dataset = signed(files())
    name = "train/a.parquet"
    removed = Removed(file=name, offset=0, length=dataset.files[name])
    later = signed.again(dataset.path, removed=[removed])
    assert [text for _, text in rows_of(later).scan()] == TEXTS[25:]


def test_an_index_of_other_rows_is_refused(signed):
    rows = rows_of(signed(files()))
    for sizes in ([0] * 39, [0] * 39 + [1]):
        refused(IntegrityError, "ST-DATA-133", rows.set_sizes, np.array(sizes, dtype=np.uint32))


def test_without_the_library_the_extra_is_named(signed, monkeypatch, tmp_path: Path):
    dataset = signed(files())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    error = refused(UsageError, "ST-USAG-004", rows_of, dataset)
    assert "pip install '.[parquet]'" in error.fix
