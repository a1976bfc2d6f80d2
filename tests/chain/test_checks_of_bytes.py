# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Checks of what a pack holds and of step records, which no other test saw at work. No torch."""

import errno
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from securetrain.artifacts.statement.dataset_predicate import DatasetPredicate
from securetrain.artifacts.statement.statements import Parent
from securetrain.chain import documents, held, packed, packing, records, unpacking
from securetrain.chain.container import Document, Pack
from securetrain.chain.held import WayUp, main_line, rows_wanted, touched
from securetrain.chain.packing import Wanted
from securetrain.chain.records import Recorder, StepRecord, read_page, recorded, records_of
from securetrain.chain.rows import RowBytes, format_of, settings_of
from securetrain.chain.store import EvidenceStore, InMemory
from securetrain.core import canonical
from securetrain.core.errors import IntegrityError, SecureTrainError, UsageError
from securetrain.core.hashtree import PAGE_LEAVES, pages_of
from tests import vocabulary
from tests.chain.test_held import ALL, with_order
from tests.chain.worlds import (
    LEAF,
    PARAMS,
    WHOLE_ORDER,
    Job,
    Run,
    Segment,
    Whole,
    codes,
    dataset,
    opened,
    policy,
    put_together,
    taken_apart,
    tree_of,
)
from tests.chain.worlds import ORDER as SHORT
from tests.tables import each


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    made = Whole(tmp_path_factory.mktemp("checks") / "run")
    for _ in range(2):
        made.save_whole()
    return made


ROWS = Wanted(rows=(11, 12))


def refused(run: Whole, wanted: Wanted) -> SecureTrainError:
    with pytest.raises(SecureTrainError) as found:
        run.pack("none.stpack", wanted)
    assert not (run.root / "none.stpack").exists()
    return found.value


# --- what is packed is what was signed ---


def test_a_leaf_table_of_another_size_is_not_packed(run: Whole) -> None:
    path = run.root / "data" / run.dataset.kind.table_of("a.bin")
    good = path.read_bytes()
    for bad in (good + b"\0", good[:-1]):
        path.write_bytes(bad)
        error = refused(run, ROWS)
        assert (error.code, error.what) == ("ST-DATA-131", "not of the signed size")
    path.write_bytes(good)


def test_data_that_ends_too_early_is_not_packed(run: Whole) -> None:
    path = run.root / "data" / "a.bin"
    good = path.read_bytes()
    path.write_bytes(good[:9])
    error = refused(run, ROWS)
    assert (error.code, error.what) == ("ST-DATA-131", "it ends too early")
    path.write_bytes(good)


def test_a_signed_file_that_is_none_any_more_is_not_packed(run: Whole) -> None:
    path = run.root / "data" / "held_out.bin"
    good = path.read_bytes()
    path.unlink()
    assert refused(run, Wanted(dataset=True)).code == "ST-DATA-140"
    path.mkdir()
    assert isinstance(refused(run, Wanted(dataset=True)), UsageError)
    path.rmdir()
    path.symlink_to(run.root / "data" / "a.bin")
    assert isinstance(refused(run, Wanted(dataset=True)), UsageError)
    path.unlink()
    path.write_bytes(good)


@pytest.mark.parametrize("wanted", [Wanted(dataset=True), ROWS])
def test_a_disk_that_cannot_be_read_is_said(run: Whole, wanted: Wanted, monkeypatch: Any) -> None:
    def fails(*_: object) -> Any:
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(held, "chunks_of", fails)
    assert isinstance(refused(run, wanted), UsageError)


# --- the way up to a signed root ---


def way_up(runs: Any) -> tuple[WayUp, list[tuple[int, bytes]]]:
    """The way up of some leaves of a file of five, and what it yields."""
    data = bytes(range(256)) * 18
    tree = tree_of(data)
    way = WayUp(params=PARAMS, size=len(data), root=tree.root.hex(), runs=runs)
    hashes = pages_of(PARAMS, tree.leaves) + tree.leaves
    leaves = [number for first, count in runs for number in range(first, first + count)]
    parts = b"".join(data[n * LEAF : (n + 1) * LEAF] for n in leaves)
    found = way.leaves(
        lambda at, length: hashes[at : at + length],
        lambda at, length: parts[at : at + length],
        IntegrityError("ST-PACK-131", "refused", ""),
    )
    return way, list(found)


def test_stretches_of_leaves_are_in_order_and_inside(monkeypatch: Any) -> None:
    assert [number for number, _ in way_up(((0, 1), (2, 3)))[1]] == [0, 2, 3, 4]
    for runs in ((), ((0, 0),), ((2, 1), (0, 1)), ((0, 2), (1, 1)), ((0, 1), (1, 1)), ((3, 3),)):
        vocabulary.refused(IntegrityError, "refused", way_up, runs)
    vocabulary.refused(IntegrityError, "refused", way_up, ((-1, 2),))
    monkeypatch.setattr(held, "MAX_ABOVE", 31)
    vocabulary.refused(IntegrityError, "refused", way_up, ((0, 1),))


def test_only_the_pages_that_leaves_are_in_are_touched() -> None:
    assert touched([(0, 1), (5 * PAGE_LEAVES, 1)]) == [0, 5]
    assert touched([(0, 1), (2, PAGE_LEAVES)]) == [0, 1]
    assert touched([(1, 1), (3, 1)]) == [0]


# --- rows by the records ---


def wanted_of(run: Whole, **changes: Any) -> dict[str, set[int]]:
    """The rows of two steps of the first checkpoint, which says something else."""
    said = replace(run.made[0], **changes)
    return rows_wanted([opened(said)], run.dataset, run.job.pieces, (1, 2))


def test_rows_of_another_dataset_are_not_these(run: Whole) -> None:
    assert wanted_of(run).keys() == {"a.bin", "b.bin"}
    other = replace(run.made[0].dataset, digest="ab" * 32)
    vocabulary.refused(IntegrityError, "read another dataset", wanted_of, run, dataset=other)


def test_rows_that_the_order_does_not_have_are_not_packed(run: Whole) -> None:
    line, data, pieces = with_order(run, WHOLE_ORDER)
    with pytest.raises(IntegrityError, match="read other rows than its order's"):
        rows_wanted(line, data, pieces, (1, 2))


def test_rows_of_documents_are_no_stretches_of_bytes(run: Whole) -> None:
    in_turn = replace(WHOLE_ORDER, kind="epochs", epochs=1, sequential=True)
    line, data, pieces = with_order(run, in_turn)
    vocabulary.refused(UsageError, "cut from documents", rows_wanted, line, data, pieces, (1, 2))
    settings = {"seed": 7, "data": {"format": "text", "train_split": "train"}}
    declared = run.job.pieces.keep(documents.Declared(program="p", settings=settings))
    job = run.job.pieces.keep(documents.Job(program=None, module="m", declared=declared))
    with pytest.raises(UsageError, match="cut from documents"):
        wanted_of(run, bound=replace(run.made[0].bound, job=job))


def test_the_line_of_a_run_ends_at_what_is_no_checkpoint(run: Whole) -> None:
    assert isinstance(run.dataset.predicate, DatasetPredicate)
    said = replace(run.made[1], parents=[Parent(digest=run.dataset.digest)])
    assert main_line(opened(said), [run.dataset]) == [opened(said)]


# --- what is unpacked ---


def test_rows_that_are_too_many_are_refused_and_not_read(run: Whole, monkeypatch: Any) -> None:
    path = run.pack("many.stpack", ROWS)
    assert run.verify(path).problems == []
    monkeypatch.setattr(held, "MAX_ROWS", 1)
    assert codes(run.verify(path)) == {"ST-PACK-101"}


def test_a_full_disk_leaves_no_directory(run: Whole, tmp_path: Path, monkeypatch: Any) -> None:
    path = run.pack("full.stpack", ALL)
    (rows,) = [one for one in run.verify(path).pack.held if one.steps is not None]

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with Pack.open(path) as file, pytest.raises(UsageError):
        unpacking.unpack(file, rows, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


# --- records ---


def test_a_page_has_a_size_and_an_end(job: Job, monkeypatch: Any) -> None:
    page = b"".join(line + b"\n" for line in Segment(job).lines)
    vocabulary.refused(IntegrityError, f"a page of {len(page) - 1} bytes", read_page, page[:-1])
    monkeypatch.setattr(records, "PAGE_LIMIT", len(page) - 1)
    vocabulary.refused(IntegrityError, f"a page of {len(page)} bytes", read_page, page)


def test_a_word_of_nobody_changes_no_record() -> None:
    """Another rank says nothing of a step that was not applied there."""
    taken = Recorder(run="job-1", order=WHOLE_ORDER)
    for step in (1, 2):
        taken.add(step=step, loss=1.0, norm=1.0, lr=0.1, verdict="clean", watched=True)
    taken.say_as(bytes([0, 2]))
    assert taken.applied == bytes([1, 2])
    for words in (b"", b"\1", bytes(3), bytes([1, 4])):
        vocabulary.refused(ValueError, "words on", taken.say_as, words)


def test_more_steps_than_pages_hold_are_said(monkeypatch: Any) -> None:
    taken = Recorder(run="job-1", order=WHOLE_ORDER)
    taken.add(step=1, loss=1.0, norm=1.0, lr=0.1, verdict="clean", watched=True)
    assert taken.taken().pages
    monkeypatch.setattr(records, "MAX_PAGES", 0)
    vocabulary.refused(UsageError, "1 steps since the last checkpoint", taken.taken)


@pytest.mark.parametrize(
    "named",
    [
        {"table": "ab" * 32},
        {"seeds": ("ab" * 32,)},
        {"anchors": "ab" * 32},
        {"learned": 1},
        {"anew": True},
    ],
    ids=lambda named: next(iter(named)),
)
def test_the_first_version_names_nothing_of_tables(job: Job, named: dict[str, Any]) -> None:
    segment = Segment(job)
    line = canonical.decode(segment.lines[0], StepRecord)
    segment.lines[0] = canonical.encode(replace(line, **named))
    pieces = InMemory()
    for tabled in (True, False):
        made = recorded("job-1", 8, segment.lines, WHOLE_ORDER, tabled=tabled)
        for data in (made.document, *made.pages):
            pieces.put(data)
        if tabled:
            assert records_of(pieces, made.digest) is not None
            continue
        vocabulary.refused(IntegrityError, "step 9 names a table", records_of, pieces, made.digest)


# --- the list of contents makes no work of its own ---


@pytest.fixture
def small(tmp_path: Path) -> Run:
    made = Run(tmp_path / "run")
    for _ in range(6):
        made.save()
    return made


def counted(patch: Any, do: Callable[[], object]) -> list[str]:
    """The documents that are read meanwhile."""
    found: list[str] = []
    read = Pack.read

    def counts(self: Pack, digest: str, limit: int) -> bytes:
        found.append(digest)
        return read(self, digest, limit)

    with patch.context() as within:
        within.setattr(Pack, "read", counts)
        do()
    return found


@pytest.mark.forgery
def test_a_statement_that_is_listed_a_thousand_times_is_read_once(small, tmp_path, monkeypatch):
    """Nobody has signed the list: a small pack must not make hours of work."""
    subject, found, plain = taken_apart(small.pack())
    junk = Document.of(packing.STATEMENT_TYPE, b"x" * 4096)
    for entry in (plain["statements"][1], {"statement": junk.digest}):
        plain["statements"] += [entry, *({**entry, "ledger": f"{n:064x}"} for n in range(999))]
    out = put_together(tmp_path / "x.stpack", subject, {**found, junk.digest: junk}, plain)

    def verify() -> None:
        assert small.verify(out, policy=policy("nodes", "parents")).ok

    read = counted(monkeypatch, verify)
    assert read.count(junk.digest) == 1
    assert read.count(plain["statements"][1]["statement"]) == 1


@pytest.mark.forgery
def test_ledgers_do_not_fill_the_memory(small: Run, tmp_path: Path) -> None:
    """Each checkpoint is given a ledger of its own, which may be a GiB of zeros."""
    subject, found, plain = taken_apart(small.pack())
    size = 4 << 20
    for number, entry in enumerate(plain["statements"]):
        path = tmp_path / f"{number}"
        path.write_bytes(bytes(size - number))
        made = Document.of(packing.LEDGER_TYPE, path.read_bytes())
        entry["ledger"] = made.digest
        found[made.digest] = Document(
            media_type=made.media_type, digest=made.digest, size=made.size, source=path
        )
    out = put_together(tmp_path / "x.stpack", subject, found, plain)
    del made
    tracemalloc.start()
    result = small.verify(out, policy=policy("ledger"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert codes(result) == {"ST-CHAN-019"}
    assert len(result.judged) == 6
    assert packed.MAX_LEDGERS < 6
    # Two that are kept, and one that is read: its pieces and their sum.
    assert peak < (packed.MAX_LEDGERS + 2.5) * size


# --- the bytes of rows ---


def test_a_job_that_declared_nothing_has_no_settings(tmp_path: Path) -> None:
    store = EvidenceStore(tmp_path)
    job = store.keep(documents.Job(program=None, module="m"))
    assert settings_of(store, job) is None
    assert settings_of(store, None) is None
    assert settings_of(store, "ab" * 32) is None


@each(
    "metadata, data, found",
    ({}, {"tokenizer": "bytes"}, "bytes"),
    ({}, {}, "text"),
    ({}, {"token_bytes": 2}, "tokens"),
    ({"token_bytes": "2"}, {}, "tokens"),
    ({}, {"format": "jsonl"}, "jsonl"),
    ({}, {"format": "of nobody"}, None),
)
def test_the_format_is_the_jobs_or_the_datasets(metadata, data, found):
    said = replace(dataset(), metadata=metadata)
    assert format_of(said, {"data": data}) == found


def test_no_row_ends_behind_the_data() -> None:
    """An order that says more places than there are, windows after the last, and no data at all."""
    short = replace(SHORT, starts=969)
    steps_ = range(1, 400)
    assert RowBytes.of(dataset(), SHORT, 1).leaves(steps_, 1024) == {"a.bin": {0}}
    with pytest.raises(IntegrityError, match="ends behind the data"):
        RowBytes.of(dataset(1000), short, 1).leaves(steps_, 1024)
    with pytest.raises(IntegrityError, match="ends behind the data"):
        RowBytes.of(dataset(0), SHORT, 1).leaves([1], 1024)
    windows = replace(SHORT, kind="epochs", starts=31, epochs=1)
    with pytest.raises(IntegrityError, match="after the last row"):
        RowBytes.of(dataset(), windows, 1).leaves([9], 1024)
