# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import pytest

from securetrain.artifacts.dataset.versions import Removals
from securetrain.artifacts.statement.dataset_predicate import Removed
from securetrain.core.errors import UsageError
from securetrain.train.data.source import ByteRange, ByteSplit
from tests.train.jobs import MemorySource, documents, memory_source
from tests.vocabulary import refused


def split(name: str = "train") -> ByteSplit:
    return ByteSplit(memory_source(), name, "job.yaml: data.train_split")


def small(removed: list[Removed] | None = None, unit: int = 1) -> ByteSplit:
    source = MemorySource(
        {"a": bytes(range(10)), "b": b"", "c": bytes(range(10, 20))}, {"train": ("a", "b", "c")}
    )
    source.removals = Removals.of(removed or [])
    return ByteSplit(source, "train", "job.yaml", unit=unit)


def test_a_split_is_its_documents_one_after_the_other():
    whole = b"".join(documents()["train"])
    data = split()
    assert len(data) == len(whole)
    for start, length in [(0, 10), (len(whole) - 7, 7), (0, len(whole)), (5, 0)]:
        assert data.read(start, length) == whole[start : start + length]
    first = len(documents()["train"][0])
    assert data.read(first - 3, 6) == whole[first - 3 : first + 3]
    assert data.byte_ranges(first - 3, 6) == [
        ByteRange("train-0", first - 3, 3),
        ByteRange("train-1", 0, 3),
    ]


@pytest.mark.parametrize(("start", "length"), [(-1, 4), (0, 10**9), (10**9, 0)])
def test_a_read_outside_is_refused(start, length):
    refused(ValueError, "outside", split().read, start, length)


def test_an_unknown_split_is_refused_with_the_known_ones():
    error = refused(UsageError, "ST-USAG-007", split, "test")
    assert error.fix == "name one of: train, validation"


def test_files_begin_where_they_do_and_empty_ones_nowhere():
    assert small().file_starts == [0, 10]


def test_what_was_removed_is_left_out_and_never_read():
    data = small([Removed(file="a", offset=2, length=3), Removed(file="c", offset=0, length=4)])
    assert len(data) == 13
    assert data.read(0, 13) == bytes([0, 1, 5, 6, 7, 8, 9, 14, 15, 16, 17, 18, 19])
    assert data.file_starts == [0, 7]


def test_a_unit_of_which_something_was_removed_is_left_out_whole():
    data = small([Removed(file="a", offset=3, length=2)], unit=2)
    assert data.read(0, len(data)) == bytes([0, 1, 6, 7, 8, 9, *range(10, 20)])


def test_files_divide_into_units():
    error = refused(UsageError, "ST-USAG-007", small, unit=4)
    assert "data.token_bytes" in error.fix
