# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Datasets are signed where they lie, grow by versions, and prove their samples."""

import io
import json
import struct
import tarfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from securetrain.artifacts.dataset import samples
from securetrain.artifacts.dataset.sign import About, Signed, sign_in_place
from securetrain.artifacts.dataset.verified import Dataset
from securetrain.artifacts.lineage.judging import Floors
from securetrain.artifacts.statement.dataset_predicate import (
    DataFormat,
    DatasetPredicate,
    Removed,
    Scan,
    Verdict,
    digest_of_report,
)
from securetrain.artifacts.statement.statements import Opened, open_statement, sign
from securetrain.artifacts.tree.layout import STATEMENT, Kind
from securetrain.artifacts.verify import verify_path
from securetrain.core.errors import IntegrityError, SecureTrainError, UsageError
from securetrain.core.hashtree import TreeParams
from tests.tables import items
from tests.vocabulary import refused

SMALL = TreeParams(leaf_size=1024)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    root = tmp_path / "corpus"
    (root / "train").mkdir(parents=True)
    (root / "test").mkdir()
    (root / "train" / "a.jsonl").write_text("".join(f'{{"text": "{n}"}}\n' for n in range(500)))
    (root / "test" / "b.jsonl").write_text('{"text": "t"}\n')
    return root


@pytest.fixture
def signing(keys: Any, now: Any) -> Callable[..., Signed]:
    def run(root: Path, previous: Opened | None = None, **about: Any) -> Signed:
        later = now if previous is None else now + timedelta(minutes=1)
        how = {"key": keys.dataset, "now": later, "previous": previous, "params": SMALL}
        return sign_in_place(root, About(name="corpus", **about), **how)

    return run


@pytest.fixture
def opening(trust: Any, now: Any) -> Callable[..., Dataset]:
    def run(root: Path, **more: Any) -> Dataset:
        later = now + timedelta(minutes=5)
        return Dataset.open(root, trust=trust, policy=None, now=later, **more)

    return run


@pytest.fixture
def opened(trust: Any) -> Callable[[Path], Opened]:
    def run(root: Path) -> Opened:
        return open_statement((root / STATEMENT).read_bytes(), Kind.DATASET, trust)

    return run


def test_a_dataset_stays_where_it_is_and_verifies(corpus, signing, opening, trust, now):
    before = (corpus / "train" / "a.jsonl").read_bytes()
    signed = signing(
        corpus,
        licenses=["CC-BY-4.0"],
        sources=["https://example.org/corpus"],
        scans=[
            Scan(
                tool="clamav",
                version="1.4",
                verdict=Verdict.CLEAN,
                result=digest_of_report(b"report"),
            )
        ],
        croissant="c" * 64,
    )
    assert signed.predicate.format is DataFormat.JSONL
    assert {split.name: split.files for split in signed.predicate.splits} == {
        "train": ["train/a.jsonl"],
        "test": ["test/b.jsonl"],
    }
    result = verify_path(corpus, trust=trust, policy=None, now=now + timedelta(minutes=1))
    assert result.ok, result.problems
    with opening(corpus) as data:
        assert data.read("train/a.jsonl", 0, len(before)) == before
        said = data.predicate
        assert said.licenses == ["CC-BY-4.0"]
        assert said.scans[0].verdict is Verdict.CLEAN
        assert said.croissant == "c" * 64


def test_signing_twice_needs_the_version_before(corpus: Path, signing: Any) -> None:
    signing(corpus)
    refused(IntegrityError, "ST-DATA-201", signing, corpus)


@pytest.mark.forgery
def test_a_link_is_refused(corpus: Path, signing: Any) -> None:
    (corpus / "train" / "c.jsonl").symlink_to("/etc/hostname")
    refused(IntegrityError, "ST-DATA-142", signing, corpus)
    assert not (corpus / STATEMENT).exists()


@items(
    "about, what",
    ({"splits": {"train": ["nothing.jsonl"]}}, "nothing.jsonl"),
    ({"format": DataFormat.MDS, "with_samples": True}, "no samples"),
    ({"format": DataFormat.RAW, "with_samples": True}, "no samples"),
    ({"splits": {"A": ["train/a.jsonl"]}}, "split"),
)
def test_what_does_not_fit_is_said_and_nothing_is_signed(about, what, corpus, signing):
    refused(SecureTrainError, what, signing, corpus, **about)
    assert not (corpus / STATEMENT).exists()


# Growth.


def test_a_grown_dataset_holds_all_of_the_version_before(corpus, signing, opened, opening):
    first = signing(corpus)
    old = opened(corpus)
    (corpus / "train" / "c.jsonl").write_text('{"text": "new"}\n')
    second = signing(corpus, previous=old)
    assert second.predicate.seq == 1
    assert second.predicate.previous is not None
    assert second.predicate.previous.digest == first.digest
    assert [file.added for file in second.predicate.files] == [0, 0, 1]
    with opening(corpus) as data:
        assert data.read("train/c.jsonl", 0, 15) == b'{"text": "new"}'
        # Reading order is the order of arrival, so earlier rows stay where they were.
        assert data.splits["train"] == ("train/a.jsonl", "train/c.jsonl")


@pytest.mark.forgery
def test_an_append_without_a_signature_is_found(corpus: Path, signing: Any, opening: Any) -> None:
    signing(corpus)
    (corpus / "train" / "c.jsonl").write_text("{}\n")
    refused(IntegrityError, "ST-DATA-141", opening, corpus)


@pytest.mark.forgery
def test_bytes_appended_to_a_signed_file_are_found(corpus, signing, opening):
    signing(corpus)
    with (corpus / "train" / "a.jsonl").open("a") as file:
        file.write("{}\n")
    refused(IntegrityError, "ST-DATA-131", opening, corpus)


@pytest.mark.forgery
def test_a_file_changed_before_an_append_is_found_when_it_is_read(corpus, signing, opening, opened):
    signing(corpus)
    old = opened(corpus)
    path = corpus / "train" / "a.jsonl"
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)
    (corpus / "train" / "c.jsonl").write_text("{}\n")
    signing(corpus, previous=old)
    with opening(corpus) as found, pytest.raises(IntegrityError) as error:
        found.read("train/a.jsonl", 0, 10)
    assert error.value.code == "ST-DATA-130"


def files(change: Callable[[Any], dict[str, Any]]) -> Callable[[DatasetPredicate], Any]:
    """Its files say something else."""
    return lambda said: replace(said, files=[replace(one, **change(one)) for one in said.files])


def before(**changes: Any) -> Callable[[Any], Any]:
    """It says something else of the version before."""
    return lambda said: replace(said, previous=replace(said.previous, **changes))


def dropped(said: DatasetPredicate) -> DatasetPredicate:
    kept = [file for file in said.files if file.name != "test/b.jsonl"]
    return replace(said, files=kept, splits=[one for one in said.splits if one.name != "test"])


NO_SUPERSET: dict[str, Callable[[Any], Any]] = {
    "dropped": dropped,
    "changed": files(lambda file: {"root": "0" * 64} if file.added == 0 else {}),
    "renumbered": lambda said: replace(said, seq=0),
    "no proof": before(proof=[]),
    "other root": before(files_root="0" * 64),
    "future": files(lambda _: {"added": 7}),
}


@pytest.mark.forgery
def test_a_version_that_is_no_superset_is_refused_even_when_signed(
    corpus, signing, opened, keys, subtests
):
    signing(corpus)
    old = opened(corpus)
    (corpus / "train" / "c.jsonl").write_text('{"text": "new"}\n')
    predicate = signing(corpus, previous=old).predicate
    assert sign(predicate, "corpus", keys.dataset)
    for name, forge in NO_SUPERSET.items():
        with subtests.test(name):
            forged = forge(predicate)
            refused(IntegrityError, "ST-DATA-101", sign, forged, "corpus", keys.dataset)


@pytest.mark.forgery
def test_an_older_version_is_refused_once_a_newer_was_seen(
    corpus: Path, signing: Any, opened: Any, opening: Any, tmp_path: Path
) -> None:
    signing(corpus)
    floors = Floors(tmp_path / "state" / "floors.json")
    old = (corpus / STATEMENT).read_bytes()
    opening(corpus, floors=floors).close()
    (corpus / "train" / "c.jsonl").write_text("{}\n")
    signing(corpus, previous=opened(corpus))
    opening(corpus, floors=floors).close()
    # The attacker puts the version before back, files and all.
    (corpus / STATEMENT).write_bytes(old)
    (corpus / "train" / "c.jsonl").unlink()
    (corpus / "_securetrain" / "train" / "c.jsonl.tree").unlink()
    opening(corpus).close()
    refused(IntegrityError, "ST-DATA-151", opening, corpus, floors=floors)


# Removal.


@pytest.mark.forgery
def test_what_was_removed_is_not_served(corpus, signing, opened, opening):
    signing(corpus)
    gone = Removed(file="train/a.jsonl", offset=14, length=14, sample="s1", reason="erasure")
    before = opened(corpus)
    # It is another dataset to whoever names it by its digest.
    assert signing(corpus, previous=before, removed=[gone]).digest != before.digest
    with opening(corpus) as data:
        assert data.read("train/a.jsonl", 0, 14)
        assert data.read("train/a.jsonl", 28, 20)
        for offset, length in [(14, 1), (27, 1), (0, 15), (27, 9), (0, 200), (16, 2)]:
            what = ("train/a.jsonl", offset, length)
            assert "erasure" in refused(IntegrityError, "ST-DATA-122", data.read, *what).what
    # It stays removed in later versions.
    (corpus / "train" / "c.jsonl").write_text("{}\n")
    later = signing(corpus, previous=opened(corpus))
    assert later.predicate.removed == [gone]


@items(
    "removed",
    [Removed(file="none", offset=0, length=1)],
    [Removed(file="test/b.jsonl", offset=10, length=100)],
    [
        Removed(file="train/a.jsonl", offset=0, length=10),
        Removed(file="train/a.jsonl", offset=5, length=10),
    ],
)
def test_a_removal_that_does_not_fit_is_refused(removed, corpus, signing, opened):
    signing(corpus)
    previous = opened(corpus)
    refused(IntegrityError, "ST-DATA-101", signing, corpus, previous=previous, removed=removed)


# Samples.


def tar_bytes(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def mds_bytes(rows: list[bytes]) -> bytes:
    head = 4 + 4 * (len(rows) + 1)
    ends = [head]
    for row in rows:
        ends.append(ends[-1] + len(row))
    return struct.pack(f"<I{len(ends)}I", len(rows), *ends) + b"".join(rows)


def make(root: Path, data_format: DataFormat) -> None:
    root.mkdir()
    match data_format:
        case DataFormat.JSONL:
            (root / "a.jsonl").write_text("one\ntwo\nthree")
        case DataFormat.WEBDATASET:
            members = {"1.txt": b"one", "1.cls": b"0", "d/2.txt": b"two", "d/2.seg.txt": b"x"}
            (root / "a.tar").write_bytes(tar_bytes(members))
        case DataFormat.MDS:
            (root / "shard.00000.mds").write_bytes(mds_bytes([b"one", b"", b"three"]))
            shard = {"raw_data": {"basename": "shard.00000.mds"}, "samples": 3, "zip_data": None}
            (root / "index.json").write_text(json.dumps({"version": 2, "shards": [shard]}))
        case DataFormat.PARQUET:
            (root / "a.parquet").write_bytes(b"PAR1" + bytes(50) + b"PAR1")
        case DataFormat.RAW:
            (root / "tokens.bin").write_bytes(bytes(4096))


def lines_of(opening: Any, root: Path) -> list[bytes]:
    """The lines of the first table of samples."""
    table = samples.table_name(0)
    with opening(root) as data:
        return list(data.read(table, 0, data.files[table]).splitlines())


@items(
    "data_format, found",
    (DataFormat.JSONL, [b"one\n", b"two\n", b"three"]),
    (DataFormat.MDS, [b"one", b"", b"three"]),
)
def test_samples_are_found_in_every_format(data_format, found, tmp_path, signing, opening):
    root = tmp_path / "data"
    make(root, data_format)
    signed = signing(root, with_samples=True)
    assert signed.predicate.format is data_format
    rows = [samples.parse(line, "") for line in lines_of(opening, root)]
    with opening(root) as data:
        table = samples.table_name(0)
        assert [data.read(row.file, row.offset, row.length) for row in rows] == found
        # The table itself belongs to no split: it is not trained on.
        assert all(table not in names for names in data.splits.values())


def test_members_of_a_tar_that_share_a_key_are_one_sample(tmp_path, signing, opening):
    root = tmp_path / "data"
    make(root, DataFormat.WEBDATASET)
    signing(root, with_samples=True)
    rows = [samples.parse(line, "") for line in lines_of(opening, root)]
    with opening(root) as data:
        assert [row.id for row in rows] == ["a.tar#1", "a.tar#d/2"]
        pieces = [data.read(row.file, row.offset, row.length) for row in rows]
    assert b"one" in pieces[0]
    assert b"two" not in pieces[0]
    # Each piece is a tar archive by itself.
    with tarfile.open(fileobj=io.BytesIO(pieces[1])) as archive:
        assert archive.getnames() == ["d/2.txt", "d/2.seg.txt"]


@pytest.mark.parametrize("data_format", [DataFormat.PARQUET, DataFormat.RAW])
def test_other_formats_are_signed_as_files(data_format, tmp_path, signing, trust, now):
    root = tmp_path / "data"
    make(root, data_format)
    assert signing(root).predicate.format is data_format
    assert verify_path(root, trust=trust, policy=None, now=now + timedelta(minutes=1)).ok


@items(
    "name, data, data_format",
    ("a.tar", b"not a tar", DataFormat.WEBDATASET),
    ("a.parquet", b"PAR1 no end", DataFormat.PARQUET),
    ("index.json", b'{"shards": [{"raw_data": {}}]}', DataFormat.MDS),
    ("index.json", b"[]", DataFormat.MDS),
)
def test_a_file_that_is_not_in_its_format_is_said(name, data, data_format, tmp_path, signing):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).write_bytes(data)
    about = {"format": data_format, "with_samples": True}
    refused(UsageError, "ST-USAG-001", signing, tmp_path / "data", **about)
    assert not (tmp_path / "data" / STATEMENT).exists()


def test_one_sample_is_proven_without_the_data(corpus, signing, opening, opened):
    signing(corpus, with_samples=True)
    (corpus / "train" / "c.jsonl").write_text('{"text": "new"}\n')
    signed = signing(corpus, previous=opened(corpus))
    index = signed.predicate.samples
    assert index is not None
    assert index.count == 502
    with opening(corpus) as data:
        tables = [data.read(name, 0, data.files[name]) for name in index.files]
    lines = b"".join(tables).splitlines()
    for number in (0, 250, 500, 501):
        proof = samples.prove(signed.digest, lines, number)
        assert len(proof.proof) <= 10
        assert samples.check(proof, signed.digest, index) == samples.parse(lines[number], "")


@pytest.mark.forgery
def test_a_false_proof_is_refused(corpus, signing, opening, subtests):
    signed = signing(corpus, with_samples=True)
    index = signed.predicate.samples
    proof = samples.prove(signed.digest, lines_of(opening, corpus), 7)
    for name, change in (
        ("sample", {"sample": replace(proof.sample, license="MIT")}),
        ("index", {"index": 8}),
        ("proof", {"proof": ["0" * 64, *proof.proof[1:]]}),
        ("dataset", {"dataset": "0" * 64}),
        ("longer", {"proof": [*proof.proof, "0" * 64]}),
    ):
        with subtests.test(name):
            false = replace(proof, **change)
            refused(IntegrityError, "ST-DATA-172", samples.check, false, signed.digest, index)
    refused(IntegrityError, "ST-DATA-172", samples.check, proof, signed.digest, None)


@pytest.mark.forgery
@pytest.mark.parametrize("change", ["reordered", "duplicated"])
def test_samples_in_another_order_are_not_what_was_signed(change, corpus, signing, opening):
    """Reordered and duplicated lines of the table change its tree, which is signed."""
    signing(corpus, with_samples=True)
    table = corpus / samples.table_name(0)
    lines = table.read_bytes().splitlines(keepends=True)
    match change:
        case "reordered":
            lines[0], lines[1] = lines[1], lines[0]
        case _:
            # As many bytes as before: one line stands twice, in the place of another.
            lines[2] = lines[1]
    table.write_bytes(b"".join(lines))
    with pytest.raises(IntegrityError) as error, opening(corpus) as data:
        data.read(samples.table_name(0), 0, 1000)
    assert error.value.code in ("ST-DATA-130", "ST-DATA-131")


@pytest.mark.forgery
def test_exchanged_page_tables_are_found(tmp_path: Path, signing: Any, opening: Any) -> None:
    root = tmp_path / "data"
    root.mkdir()
    for name in ("a.bin", "b.bin"):
        (root / name).write_bytes(name.encode() * 4000)
    signing(root)
    trees = root / "_securetrain"
    first, second = (trees / "a.bin.tree").read_bytes(), (trees / "b.bin.tree").read_bytes()
    (trees / "a.bin.tree").write_bytes(second)
    (trees / "b.bin.tree").write_bytes(first)
    with opening(root) as data, pytest.raises(IntegrityError) as error:
        data.read("a.bin", 0, 10)
    assert error.value.code == "ST-DATA-132"
