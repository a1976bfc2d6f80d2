# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A file may grow at its end, and every version shows that it begins with the one before."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from securetrain.artifacts.dataset import samples
from securetrain.artifacts.dataset import sign as signing
from securetrain.artifacts.dataset.sign import About, Signed, sign_in_place
from securetrain.artifacts.dataset.verified import Dataset
from securetrain.artifacts.report import Report
from securetrain.artifacts.statement.dataset_predicate import (
    DatasetPredicate,
    Stage,
    entries,
    file_hashes,
)
from securetrain.artifacts.statement.statements import Opened, open_statement, sign
from securetrain.artifacts.tree.layout import STATEMENT, Kind
from securetrain.artifacts.verify import verify_path
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.core.hashtree import PAGE_LEAVES, TreeParams
from securetrain.identity.log import merkle
from securetrain.identity.log.leaf_hashes import hashes_of
from tests.tables import items
from tests.vocabulary import refused

SMALL = TreeParams(leaf_size=1024)
PAGE = PAGE_LEAVES * 1024


def content(size: int) -> bytes:
    """Bytes of which no leaf is like another."""
    return b"".join(n.to_bytes(8, "big") for n in range(size // 8 + 1))[:size]


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "tokens.bin"


@pytest.fixture
def version(keys: Any, now: Any, trust: Any) -> Callable[..., Signed]:
    """Signs the next version of a dataset."""

    def run(root: Path, **about: Any) -> Signed:
        previous: Opened | None = None
        seq = 0
        if (root / STATEMENT).exists():
            previous = open_statement((root / STATEMENT).read_bytes(), Kind.DATASET, trust)
            assert isinstance(previous.predicate, DatasetPredicate)
            seq = previous.predicate.seq + 1
        return sign_in_place(
            root,
            About(name="tokens", **about),
            key=keys.dataset,
            now=now + timedelta(minutes=seq),
            previous=previous,
            params=SMALL,
        )

    return run


@pytest.fixture
def check(trust: Any, now: Any) -> Callable[[Path], Report]:
    later = now + timedelta(minutes=9)
    return lambda root: verify_path(root, trust=trust, policy=None, now=later)


@pytest.fixture
def opening(trust: Any, now: Any) -> Callable[[Path], Dataset]:
    later = now + timedelta(minutes=9)
    return lambda root: Dataset.open(root, trust=trust, policy=None, now=later)


def grow(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 1025, PAGE - 1, PAGE, PAGE + 1024, PAGE + 1500])
@pytest.mark.parametrize("more", [1, 3000])
def test_a_file_grows(size, more, *, tokens, version, check, opening):
    root = tokens.parent
    sizes = [size, size + more, size + 2 * more]
    signed = []
    for length in sizes:
        tokens.write_bytes(content(length))
        signed.append(version(root).predicate)
    (file,) = signed[-1].files
    assert [(stage.size, stage.added) for stage in file.stages] == list(
        zip(sizes, (0, 1, 2), strict=True)
    )
    assert [stage.root for stage in file.stages] == [said.files[0].root for said in signed]
    assert file.arrived == 0
    assert signed[-1].previous.num_files == 2
    assert check(root).ok
    with opening(root) as data:
        assert data.read("tokens.bin", 0, sizes[-1]) == content(sizes[-1])


def test_files_that_grow_keep_their_place_in_the_reading_order(tokens: Path, version: Any) -> None:
    root = tokens.parent
    tokens.write_bytes(content(2000))
    version(root)
    (root / "a.bin").write_bytes(content(100))
    version(root)
    grow(tokens, b"more")
    assert version(root).predicate.splits[0].files == ["tokens.bin", "a.bin"]


@pytest.mark.forgery
@pytest.mark.parametrize("at", [0, 1023, 1024, 2499])
def test_a_rewritten_beginning_is_refused(at: int, tokens: Path, version: Any, check: Any) -> None:
    root = tokens.parent
    tokens.write_bytes(content(2500))
    version(root)
    before = (root / STATEMENT).read_bytes()
    data = bytearray(content(4000))
    data[at] ^= 1
    tokens.write_bytes(data)
    found = refused(IntegrityError, "ST-DATA-171", version, root)
    assert "are not those of version 0" in str(found)
    assert (root / STATEMENT).read_bytes() == before
    # Control: what was signed, with as much added, is a new version.
    tokens.write_bytes(content(4000))
    version(root)
    assert check(root).ok


@pytest.mark.forgery
def test_a_file_that_shrank_is_refused(tokens: Path, version: Any) -> None:
    tokens.write_bytes(content(2500))
    version(tokens.parent)
    tokens.write_bytes(content(2499))
    error = refused(IntegrityError, "ST-DATA-171", version, tokens.parent)
    assert "has 2499 bytes, 2500 were signed" in str(error)


@pytest.mark.forgery
@pytest.mark.parametrize("at", [0, 1024, 2499])
def test_readers_do_not_believe_the_signer(at, *, tokens, version, check, opening, monkeypatch):
    """A trusted key signs that other bytes are the old ones with more at the end."""
    root = tokens.parent
    tokens.write_bytes(content(2500))
    version(root)
    data = bytearray(content(4000))
    data[at] ^= 1
    tokens.write_bytes(data)
    monkeypatch.setattr(signing, "check_growth", lambda *_: None)
    version(root)
    result = check(root)
    assert [problem.code for problem in result.problems] == ["ST-DATA-171"]
    with opening(root) as found, pytest.raises(IntegrityError) as error:
        found.read("tokens.bin", 3500, 10)
    assert error.value.code == "ST-DATA-171"


def _forged(predicate: DatasetPredicate, change: str) -> DatasetPredicate:
    replace = msgspec.structs.replace
    (file,) = predicate.files
    old = file.before[0]
    match change:
        case "forgotten":
            file = replace(file, before=[])
        case "as if it had always been so":
            file = replace(file, before=[], added=0)
        case "another root":
            file = replace(file, before=[replace(old, root="0" * 64)])
        case "another size":
            file = replace(file, before=[replace(old, size=old.size + 1)])
        case "as large as now":
            file = replace(file, before=[replace(old, size=file.size)])
        case "in the same version":
            file = replace(file, before=[replace(old, added=file.added)])
        case "one more":
            file = replace(file, before=[old, Stage(size=old.size + 1, root=old.root)])
        case "no version before":
            return replace(predicate, previous=None)
        case _:
            raise ValueError(change)
    return replace(predicate, files=[file])


@pytest.mark.forgery
@items(
    "change",
    "forgotten",
    "as if it had always been so",
    "another root",
    "another size",
    "as large as now",
    "in the same version",
    "one more",
    "no version before",
)
def test_a_false_history_is_refused_even_when_signed(change, tokens, version, keys):
    tokens.write_bytes(content(2500))
    version(tokens.parent)
    grow(tokens, b"more")
    predicate = version(tokens.parent).predicate
    assert sign(predicate, "tokens", keys.dataset)
    refused(IntegrityError, "ST-DATA-101", sign, _forged(predicate, change), "tokens", keys.dataset)


def _with_history(
    predicate: DatasetPredicate, before: list[Stage], known: int = 0
) -> DatasetPredicate:
    """Another history of the only file, and a proof of growth that fits it."""
    replace = msgspec.structs.replace
    file = replace(predicate.files[0], before=before)
    hashes = file_hashes([file])
    count = known or sum(entry.added < predicate.seq for entry in entries([file]))
    assert predicate.previous is not None
    previous = replace(
        predicate.previous,
        num_files=count,
        files_root=merkle.root_hash(count, hashes_of(hashes[:count])).hex(),
        proof=[
            one.hex() for one in merkle.consistency_proof(count, len(hashes), hashes_of(hashes))
        ],
    )
    return replace(predicate, files=[file], previous=previous)


@pytest.mark.forgery
@items(
    "sizes, added, known, what",
    ((1000, 2500), (0, 1), 0, ""),
    ((2500, 1000), (0, 1), 0, "not one of growth"),
    ((2500, 2500), (0, 1), 0, "not one of growth"),
    ((1000, 4000), (0, 1), 0, "not one of growth"),
    ((1000, 2500), (0, 0), 0, "not one of growth"),
    ((1000, 2500), (1, 0), 0, "not one of growth"),
    ((1000, 2500), (0, 1), 1, "not all there"),
    ((1000, 2500), (0, 1), 3, "not all there"),
)
def test_a_history_that_proves_itself_and_is_none(
    sizes: Any, added: Any, known: int, what: str, *, tokens: Path, version: Any, keys: Any
) -> None:
    for size in (1000, 2500, 4000):
        tokens.write_bytes(content(size))
        predicate = version(tokens.parent).predicate
    before = [
        msgspec.structs.replace(stage, size=size, added=number)
        for stage, size, number in zip(predicate.files[0].before, sizes, added, strict=True)
    ]
    forged = _with_history(predicate, before, known)
    if not what:
        assert sign(forged, "tokens", keys.dataset)
        return
    error = refused(IntegrityError, what, sign, forged, "tokens", keys.dataset)
    assert error.code == "ST-DATA-101"


@pytest.mark.forgery
@pytest.mark.parametrize("number", [0, 1])
def test_every_stage_is_checked(number, *, tokens, version, check, opening, keys):
    """A history that fits itself, and not the data."""
    root = tokens.parent
    for size in (1000, 2500, 4000):
        tokens.write_bytes(content(size))
        predicate = version(root).predicate
    before = list(predicate.files[0].before)
    before[number] = msgspec.structs.replace(before[number], root="0" * 64)
    forged = _with_history(predicate, before)
    (root / STATEMENT).write_bytes(sign(forged, "tokens", keys.dataset))
    assert [problem.code for problem in check(root).problems] == ["ST-DATA-171"]
    with opening(root) as found, pytest.raises(IntegrityError, match="ST-DATA-171"):
        found.read("tokens.bin", 3500, 10)


# Samples.


def test_only_what_was_added_is_new_in_the_table_of_samples(tmp_path, version, opening):
    path = tmp_path / "data" / "a.jsonl"
    path.parent.mkdir()
    path.write_bytes(b"one\ntwo\n")
    version(path.parent, with_samples=True)
    grow(path, b"three\nfour")
    signed = version(path.parent)
    index = signed.predicate.samples
    assert index is not None
    assert index.files == [samples.table_name(0), samples.table_name(1)]
    with opening(path.parent) as data:
        tables = [data.read(name, 0, data.files[name]) for name in index.files]
        lines = [line for table in tables for line in table.splitlines()]
        found = [samples.parse(line, "") for line in lines]
        rows = [data.read(one.file, one.offset, one.length) for one in found]
    assert rows == [b"one\n", b"two\n", b"three\n", b"four"]
    assert [one.id for one in found] == [f"a.jsonl#{number}" for number in range(4)]
    proof = samples.prove(signed.digest, lines, 3)
    assert samples.check(proof, signed.digest, index) == found[3]
    # "four" has no end: what comes behind it would make another sample of it.
    grow(path, b"teen\n")
    refused(UsageError, "was signed without it", version, path.parent)
