# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import os
import threading
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from securetrain.artifacts.dataset.verified import Dataset, sign_dataset, sign_documents
from securetrain.artifacts.statement.statements import Split, sign
from securetrain.artifacts.tree.layout import STATEMENT
from securetrain.core import canonical
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.core.hashtree import PAGE_LEAVES, HashAlgorithm, TreeParams
from securetrain.policy.load import load_policy
from tests import vocabulary
from tests.tables import items

SMALL = TreeParams(leaf_size=1024)
BIG = os.urandom(100_000)


@pytest.fixture
def source(tmp_path):
    root = tmp_path / "source"
    (root / "shards").mkdir(parents=True)
    (root / "shards" / "a.bin").write_bytes(BIG)
    (root / "shards" / "b.bin").write_bytes(b"b" * 1024)
    (root / "empty.txt").write_bytes(b"")
    return root


@pytest.fixture
def signed(source, tmp_path, keys, now):
    splits = {"train": ["shards/b.bin", "shards/a.bin"], "validation": ["empty.txt"]}
    about: dict[str, Any] = {"name": "corpus", "splits": splits, "metadata": {"license": "CC0-1.0"}}
    how = {"key": keys.dataset, "now": now, "params": SMALL}
    return sign_dataset(source, tmp_path / "signed", **about, **how)


@pytest.fixture
def open_it(trust, now):
    return lambda path, **more: Dataset.open(
        path, **{"trust": trust, "policy": None, "now": now, **more}
    )


def refused(function, *args) -> IntegrityError:
    return vocabulary.refused(IntegrityError, "", function, *args)


def flip(path, offset):
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def test_what_was_signed_is_what_is_read(signed, open_it, source):
    with open_it(signed.path) as data:
        assert data.digest == signed.digest
        assert data.files == {"empty.txt": 0, "shards/a.bin": 100_000, "shards/b.bin": 1024}
        assert data.splits == {
            "train": ("shards/b.bin", "shards/a.bin"),
            "validation": ("empty.txt",),
        }
        assert data.predicate.metadata == {"license": "CC0-1.0"}
        for offset, length in [(0, 1), (1023, 2), (5000, 7000), (99_999, 1), (0, 100_000), (7, 0)]:
            assert data.read("shards/a.bin", offset, length) == BIG[offset : offset + length]
        assert data.split_size("train") == 101_024
        assert data.read_split("train", 1000, 50_000) == b"b" * 24 + BIG[:49_976]
        assert data.read_split("validation", 0, 0) == b""
        assert data.read("empty.txt", 0, 0) == b""
    # The data lies under its own names, byte for byte.
    assert (signed.path / "shards/a.bin").read_bytes() == BIG


def test_the_digest_does_not_depend_on_when_and_who(source, tmp_path, keys, now, signed):
    how = {"key": keys.stranger, "now": now + timedelta(days=3), "params": SMALL}
    again = sign_dataset(source, tmp_path / "again", name="corpus", **how)
    assert again.digest == signed.digest
    assert again.predicate.splits[0].name == "all"


def test_sha256_for_fips(source, tmp_path, keys, now, open_it):
    params = TreeParams(algorithm=HashAlgorithm.SHA256, leaf_size=1024)
    how = {"key": keys.dataset, "now": now, "params": params}
    made = sign_dataset(source, tmp_path / "fips", name="d", **how)
    with open_it(made.path) as data:
        assert data.read("shards/a.bin", 3, 5000) == BIG[3:5003]


def test_more_than_one_page_of_leaves(tmp_path, keys, now, open_it):
    size = 1024 * PAGE_LEAVES + 5000
    body = os.urandom(size)
    made = sign_documents(
        [("train", "d", body)], tmp_path / "d", name="d", key=keys.dataset, now=now, params=SMALL
    )
    table = made.path / "_securetrain/train.bin.tree"
    assert table.stat().st_size == (2 + PAGE_LEAVES + 5) * 32
    with open_it(made.path) as data:
        assert data.read("train.bin", size - 3000, 3000) == body[-3000:]
    # Each part of the tree file is checked when, and only when, it is needed.
    original = table.read_bytes()
    for offset, needed in [(0, True), (40, True), (64, False), (64 + PAGE_LEAVES * 32, True)]:
        flip(table, offset)
        with open_it(made.path) as data:
            if needed:
                error = refused(data.read, "train.bin", size - 10, 10)
                assert error.code == "ST-DATA-132"
                assert "train.bin.tree" in error.where
            else:
                assert data.read("train.bin", size - 10, 10) == body[-10:]
                assert refused(data.read, "train.bin", 0, 10).code == "ST-DATA-132"
        table.write_bytes(original)


def test_documents_and_their_boundaries(tmp_path, keys, now, open_it):
    documents = [
        ("train", "one", b"first document"),
        ("validation", "v", b"held out"),
        ("train", "two \u00e9", b""),
        ("train", "three", b"x" * 3000),
    ]
    calls = []
    how = {"key": keys.dataset, "now": now, "params": SMALL}
    how["progress"] = lambda done, total: calls.append((done, total))
    made = sign_documents(iter(documents), tmp_path / "d", name="d", **how)
    assert calls[-1][1] == 0
    assert calls == sorted(calls)
    with open_it(made.path) as data:
        assert data.splits == {"train": ("train.bin",), "validation": ("validation.bin",)}
        found = [
            (split, d.name, data.read(d.file, d.offset, d.length))
            for split in ("train", "validation")
            for d in data.documents(split)
        ]
    assert sorted(found) == sorted(documents)


@items(
    "lines",
    b"not json\n",
    b'{"file":"train.bin","length":14,"name":"x","offset":1}\n',
    b'{"file":"train.bin","length":13,"name":"x","offset":0}\n',
    b'{"file":"train.bin","length":-14,"name":"x","offset":0}\n',
    b'{"file":"other.bin","length":14,"name":"x","offset":0}\n',
    b'{"file":"train.bin","length":14,"name":"x","offset":0,"z":1}\n',
    b'{"file": "train.bin","length":14,"name":"x","offset":0}\n',
    b"",
)
def test_a_false_table_of_documents_is_refused(tmp_path, keys, now, open_it, lines):
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.bin").write_bytes(b"first document")
    (source / "t.documents.jsonl").write_bytes(lines)
    made = sign_dataset(source, tmp_path / "d", name="d", key=keys.dataset, now=now)
    predicate = msgspec.structs.replace(
        made.predicate,
        splits=[Split(name="train", files=["train.bin"], documents="t.documents.jsonl")],
    )
    (made.path / STATEMENT).write_bytes(sign(predicate, "d", keys.dataset))
    with open_it(made.path) as data:
        assert refused(data.documents, "train").code == "ST-DATA-101"


def test_a_split_without_a_table_has_no_documents(signed, open_it):
    with open_it(signed.path) as data:
        assert data.documents("train") == ()


@pytest.mark.parametrize("offset", [0, 4096, 99_999])
def test_a_changed_byte_is_refused_when_it_is_read(signed, open_it, offset):
    flip(signed.path / "shards/a.bin", offset)
    with open_it(signed.path) as data:
        error = refused(data.read, "shards/a.bin", offset, 1)
        assert error.code == "ST-DATA-130"
        start = offset // 1024 * 1024
        assert f"shards/a.bin bytes {start}.." in error.where
        # What was not touched can still be read.
        assert data.read("shards/a.bin", 50_000, 10) == BIG[50_000:50_010]


def test_what_was_verified_stays_good(signed, open_it):
    path = signed.path / "shards/a.bin"
    with open_it(signed.path) as data:
        assert data.read("shards/a.bin", 0, 10) == BIG[:10]
        with path.open("r+b") as file:
            file.write(b"\0" * 100_000)
        assert data.read("shards/a.bin", 0, 1024) == BIG[:1024]
        assert refused(data.read, "shards/a.bin", 1024, 1).code == "ST-DATA-130"
    # Without room for it, the leaf is read again, and refused.
    path.write_bytes(BIG)
    with open_it(signed.path, cache_bytes=1024) as data:
        data.read("shards/a.bin", 0, 10)
        data.read("shards/a.bin", 5000, 10)
        with path.open("r+b") as file:
            file.write(b"\0" * 100_000)
        assert refused(data.read, "shards/a.bin", 0, 10).code == "ST-DATA-130"


def test_the_cache_is_bounded(signed, open_it):
    with open_it(signed.path, cache_bytes=8 * 1024) as data:
        assert data.read("shards/a.bin", 0, 100_000) == BIG
        assert data._kept is not None
        assert len(data._kept) * 1024 <= 8 * 1024
    # Nobody said how much: never more than the dataset is.
    with open_it(signed.path) as data:
        assert data.read("shards/a.bin", 0, 100_000) == BIG
        leaves = sum(-(-size // 1024) for size in data.files.values())
        assert data._kept is not None
        assert data._kept.slots == leaves


def test_swapped_leaves_and_swapped_files(signed, open_it):
    path = signed.path / "shards/a.bin"
    path.write_bytes(BIG[1024:2048] + BIG[:1024] + BIG[2048:])
    with open_it(signed.path) as data:
        assert refused(data.read, "shards/a.bin", 0, 1).code == "ST-DATA-130"


def test_tables_edited_together_with_the_data(signed, open_it, tmp_path, keys, now):
    other = tmp_path / "other"
    (other / "shards").mkdir(parents=True)
    (other / "shards/a.bin").write_bytes(BIG[::-1])
    made = sign_dataset(
        other, tmp_path / "forged", name="x", key=keys.stranger, now=now, params=SMALL
    )
    for name in ("shards/a.bin", "_securetrain/shards/a.bin.tree"):
        (signed.path / name).write_bytes((made.path / name).read_bytes())
    with open_it(signed.path) as data:
        assert refused(data.read, "shards/a.bin", 0, 1).code == "ST-DATA-132"


@items(
    "change, code",
    (lambda p: (p / STATEMENT).unlink(), "ST-DATA-100"),
    (lambda p: (p / STATEMENT).write_bytes(b"{}"), "ST-DATA-101"),
    (lambda p: (p / "shards/b.bin").unlink(), "ST-DATA-140"),
    (lambda p: (p / "_securetrain/shards/b.bin.tree").unlink(), "ST-DATA-140"),
    (lambda p: (p / "shards/c.bin").write_bytes(b"x"), "ST-DATA-141"),
    (lambda p: (p / ".hidden").write_bytes(b""), "ST-DATA-141"),
    (lambda p: os.truncate(p / "shards/a.bin", 99_999), "ST-DATA-131"),
    (lambda p: os.truncate(p / "shards/a.bin", 100_001), "ST-DATA-131"),
    (lambda p: os.mkfifo(p / "pipe"), "ST-DATA-142"),
    (lambda p: (p / "folder").mkdir(), "ST-DATA-142"),
    (lambda p: (p / "Empty.txt").write_bytes(b""), "ST-DATA-142"),
    (lambda p: (p / "a\nb").write_bytes(b""), "ST-DATA-142"),
)
def test_a_directory_that_is_not_as_signed_does_not_open(signed, open_it, change, code):
    change(signed.path)
    assert refused(open_it, signed.path).code == code


def test_links_are_never_followed(signed, open_it, tmp_path):
    path = signed.path / "shards/b.bin"
    away = tmp_path / "away"
    path.rename(away)
    path.symlink_to(away)
    assert refused(open_it, signed.path).code == "ST-DATA-142"
    path.unlink()
    os.link(away, path)
    assert refused(open_it, signed.path).code == "ST-DATA-142"
    path.unlink()
    away.rename(path)
    latest = tmp_path / "latest"
    latest.symlink_to(signed.path)
    # Whose kind cannot be known before it is followed.
    assert refused(open_it, latest).code == "ST-DATA-142"


def test_a_file_that_becomes_a_link_after_opening(signed, open_it, tmp_path):
    path = signed.path / "shards/b.bin"
    with open_it(signed.path) as data:
        away = tmp_path / "away"
        path.rename(away)
        path.symlink_to(away)
        assert refused(data.read, "shards/b.bin", 0, 1).code == "ST-DATA-142"
        path.unlink()
        assert refused(data.read, "shards/b.bin", 0, 1).code == "ST-DATA-140"
        path.write_bytes(b"short")
        assert refused(data.read, "shards/b.bin", 0, 1).code == "ST-DATA-131"
        path.write_bytes(b"b" * 1025)
        assert refused(data.read, "shards/b.bin", 0, 1).code == "ST-DATA-131"
        path.write_bytes(b"b" * 1024)
        os.link(path, tmp_path / "second-name")
        assert refused(data.read, "shards/b.bin", 0, 1).code == "ST-DATA-142"
        (tmp_path / "second-name").unlink()
        assert data.read("shards/b.bin", 0, 1) == b"b"


def test_a_file_that_shrinks_while_it_is_read(signed, open_it):
    with open_it(signed.path) as data:
        data.read("shards/a.bin", 0, 1)
        os.truncate(signed.path / "shards/a.bin", 2000)
        assert refused(data.read, "shards/a.bin", 50_000, 1).code == "ST-DATA-131"


def test_another_key_and_another_role(source, tmp_path, keys, now, open_it):
    for name, key in [("a", keys.stranger), ("b", keys.checkpoint)]:
        made = sign_dataset(source, tmp_path / name, name="x", key=key, now=now)
        assert refused(open_it, made.path).code == "ST-DATA-120"


def test_age(signed, open_it, now):
    hardened = load_policy("hardened").policy
    open_it(signed.path, policy=hardened).close()
    late = now + timedelta(days=366)
    late_open = {"policy": hardened, "now": late}
    vocabulary.refused(IntegrityError, "ST-DATA-150", open_it, signed.path, **late_open)
    # Control: baseline sets no limit.
    open_it(signed.path, policy=load_policy("baseline").policy, now=late).close()


def test_reads_past_the_end_and_unknown_names(signed, open_it):
    with open_it(signed.path) as data:
        for args in [("shards/a.bin", 99_999, 2), ("shards/a.bin", -1, 1), ("nothing", 0, 1)]:
            assert refused(data.read, *args).code == "ST-DATA-160"
        for args in [("train", 101_024, 1), ("train", 0, -1), ("nothing", 0, 1)]:
            assert refused(data.read_split, *args).code == "ST-DATA-160"
        assert refused(data.documents, "nothing").code == "ST-DATA-160"


def test_threads_share_one_dataset(signed, open_it):
    wrong = []
    with open_it(signed.path, cache_bytes=16 * 1024) as data:

        def work(seed):
            for i in range(200):
                at = (seed * 7919 + i * 104_729) % 99_000
                if data.read("shards/a.bin", at, 900) != BIG[at : at + 900]:
                    wrong.append(at)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_many_files_stay_within_the_limit_of_open_ones(tmp_path, keys, now, open_it):
    source = tmp_path / "source"
    source.mkdir()
    for n in range(50):
        (source / f"{n:02}").write_bytes(bytes([n]))
    made = sign_dataset(source, tmp_path / "d", name="d", key=keys.dataset, now=now)
    with open_it(made.path) as data:
        assert data.read_split("all", 0, 50) == bytes(range(50))
        assert len(data._open) <= 32


def test_nothing_is_overwritten_and_nothing_half_made_is_left(source, tmp_path, keys, now):
    out = tmp_path / "out"
    out.mkdir()
    arguments = {"name": "d", "key": keys.dataset, "now": now}
    assert refused(lambda: sign_dataset(source, out, **arguments)).code == "ST-DATA-201"
    out.rmdir()

    def breaks():
        yield ("train", "a", b"x")
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError):
        sign_documents(breaks(), out, **arguments)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source"]


def test_bad_sources(source, tmp_path, keys, now):
    out = tmp_path / "out"
    arguments = {"name": "d", "key": keys.dataset, "now": now}
    with pytest.raises(UsageError, match="names 'z'"):
        sign_dataset(source, out, splits={"train": ["z"]}, **arguments)
    vocabulary.refused(UsageError, "no documents", sign_documents, [], out, **arguments)
    with pytest.raises(UsageError, match="ST-USAG-001"):
        sign_documents([("../evil", "a", b"x")], out, **arguments)
    with pytest.raises(UsageError):
        sign_dataset(tmp_path / "nowhere", out, **arguments)
    (source / STATEMENT).write_bytes(b"")
    assert refused(lambda: sign_dataset(source, out, **arguments)).code == "ST-DATA-101"
    (source / STATEMENT).unlink()
    (source / "link").symlink_to("/etc/passwd")
    assert refused(lambda: sign_dataset(source, out, **arguments)).code == "ST-DATA-142"
    assert not out.exists()
    empty = tmp_path / "none"
    empty.mkdir()
    vocabulary.refused(UsageError, "no file", sign_dataset, empty, out, **arguments)


def test_the_statement_is_canonical_and_names_no_path(signed, tmp_path):
    data = (signed.path / STATEMENT).read_bytes()
    assert canonical.dumps(canonical.loads(data)) == data
    assert str(tmp_path).encode() not in data
