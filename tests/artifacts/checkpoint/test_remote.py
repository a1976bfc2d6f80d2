# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in an object store, through fsspec: memory://."""

import uuid

import fsspec  # type: ignore[import-untyped]
import pytest
import torch

from securetrain.artifacts import Freshness, SaveContext, async_save, load, save, verify_path
from securetrain.artifacts.lineage.head import advance, read_head
from securetrain.artifacts.statement.statements import CheckpointPredicate, open_statement
from securetrain.artifacts.tree.layout import STATEMENT, Kind
from securetrain.artifacts.tree.remote import FsspecStorage
from securetrain.artifacts.tree.storage import LocalStorage, storage_of
from securetrain.core.errors import IntegrityError, UsageError
from tests.artifacts.checkpoint.worlds import DATA, SMALL, context_of
from tests.tables import items
from tests.vocabulary import refused


@pytest.fixture
def bucket():
    """A place of its own in the one store in memory."""
    name = f"memory://bucket-{uuid.uuid4().hex}"
    yield name
    fs = fsspec.filesystem("memory")
    if fs.exists(name):
        fs.rm(name, recursive=True)


def state():
    torch.manual_seed(4)
    return {"w": torch.randn(500, 9), "b": torch.randn(3), "n": {"step": 3}}


@pytest.fixture
def store(bucket, keys, now):
    def run(name="c1", *, how=save, seq=0, content=None):
        given = {"key": keys.checkpoint, "context": context_of(now, seq, seq=seq), "params": SMALL}
        return how(content or state(), f"{bucket}/{name}", **given)

    return run


@pytest.fixture
def read(trust, now):
    def run(place, known=None):
        target = {"w": torch.ones(500, 9), "b": torch.ones(3), "n": {"step": 0}}
        try:
            load(target, place, trust=trust, policy=None, now=now, freshness=known)
        except IntegrityError as error:
            return target, error.code
        return target, ""

    return run


def fs_of(place) -> FsspecStorage:
    found = storage_of(place)
    assert isinstance(found, FsspecStorage)
    return found


def test_saved_verified_and_loaded(store, read, bucket, trust, now):
    made = store()
    assert made.path == f"{bucket}/c1"
    result = verify_path(made.path, trust=trust, policy=None, now=now)
    assert result.ok
    assert result.digest == made.digest
    target, code = read(made.path)
    assert code == ""
    assert torch.equal(target["w"], state()["w"])
    assert target["n"]["step"] == 3


def test_in_the_background(store, read):
    made = store(how=async_save).result(timeout=60)
    assert read(made.path)[1] == ""


def test_the_bytes_are_those_of_a_local_directory(store, keys, now, tmp_path):
    context = SaveContext(run_id="r", step=0, created=now)
    local = save(state(), tmp_path / "c", key=keys.checkpoint, context=context, params=SMALL)
    assert store().digest == local.digest


@items(
    "change, code",
    (lambda s: _flip(s, DATA, 3000), "ST-CKPT-130"),
    (lambda s: _flip(s, f"{DATA}.leaves", 3), "ST-CKPT-132"),
    (lambda s: _flip(s, "index.json", 30), "ST-CKPT-132"),
    (lambda s: _flip(s, STATEMENT, 40), "ST-CKPT-101"),
    (lambda s: s.fs.rm_file(s.place(DATA)), "ST-CKPT-140"),
    (lambda s: s.fs.rm_file(s.place(STATEMENT)), "ST-CKPT-100"),
    (lambda s: s.fs.pipe_file(s.place("zzz.safetensors"), b"x"), "ST-CKPT-141"),
    (lambda s: s.fs.pipe_file(s.place("sub/dir/file"), b"x"), "ST-CKPT-141"),
    (lambda s: s.fs.pipe_file(s.place("RANK-00000.bin"), b"x"), "ST-CKPT-142"),
    (lambda s: _cut(s, DATA), "ST-CKPT-131"),
)
def test_damage_is_refused(store, read, *, trust, now, change, code):
    place = store().path
    change(fs_of(place))
    target, found = read(place)
    assert found == code
    assert not torch.equal(target["w"], state()["w"])
    assert target["n"]["step"] == 0
    assert not verify_path(place, trust=trust, policy=None, now=now).ok


def _flip(storage, name, offset):
    data = bytearray(storage.fs.cat_file(storage.place(name)))
    data[offset % len(data)] ^= 4
    storage.fs.pipe_file(storage.place(name), bytes(data))


def _cut(storage, name):
    storage.fs.pipe_file(storage.place(name), storage.fs.cat_file(storage.place(name))[:-1])


def test_nothing_is_overwritten(store):
    store()
    refused(IntegrityError, "ST-CKPT-201", store)


def test_an_interrupted_save_is_nothing_that_loads(store, read, bucket, monkeypatch):
    """The statement comes last; a store has no rename."""
    from securetrain.artifacts.tree import remote

    real = remote._ObjectStaging.put

    def put(self, name, data):
        if name == STATEMENT:
            raise OSError("the connection was cut")
        real(self, name, data)

    monkeypatch.setattr(remote._ObjectStaging, "put", put)
    monkeypatch.setattr(remote._ObjectStaging, "discard", lambda _: None)
    refused(IntegrityError, "ST-CKPT-200", store)
    monkeypatch.undo()
    assert read(f"{bucket}/c1")[1] == "ST-CKPT-100"
    with pytest.raises(IntegrityError, match="ST-CKPT-201"):
        store()  # somebody has to look at what is there first


def test_a_failed_save_takes_its_files_away(store, bucket, monkeypatch):
    from securetrain.artifacts.tree import remote

    def put(self, name, data):
        raise OSError("no")

    monkeypatch.setattr(remote._ObjectStaging, "put", put)
    refused(IntegrityError, "ST-CKPT-200", store)
    assert fs_of(f"{bucket}/c1").survey() == ([], [])


def test_heads_in_a_store(store, read, *, bucket, keys, trust, now):
    folder = fs_of(f"{bucket}/c1").above()
    for seq in range(2):
        place = store(f"c{seq}", seq=seq, content={**state(), "b": torch.full((3,), seq)}).path
        data = fs_of(place).read(STATEMENT, 1 << 20)
        predicate = open_statement(data, Kind.CHECKPOINT, trust).predicate
        assert isinstance(predicate, CheckpointPredicate)
        advance(folder, predicate, keys.checkpoint, trust, now)
    head = read_head(folder, trust)
    assert head is not None
    assert head.seq == 1
    assert read(f"{bucket}/c1", Freshness())[1] == ""
    assert read(f"{bucket}/c0", Freshness())[1] == "ST-CKPT-151"


def test_a_store_that_sends_other_bytes_each_time(store, read, monkeypatch):
    """What is hashed is what is used: there is no second request for the same bytes."""
    place = store().path
    fs = fs_of(place).fs
    real = type(fs).cat_file
    asked: dict[int, int] = {}

    def cat_file(self, path, start=None, end=None, **options):
        data = real(self, path, start=start, end=end, **options)
        if path.endswith(DATA):
            for offset in range(start or 0, end):
                asked[offset] = asked.get(offset, 0) + 1
        return data

    monkeypatch.setattr(type(fs), "cat_file", cat_file)
    assert read(place)[1] == ""
    assert set(asked.values()) == {1}


def test_a_store_that_calls_a_link_a_file(store, read, monkeypatch):
    """As file systems behind fsspec do; the statement is opened before anything is listed."""
    place = store().path
    fs = fs_of(place).fs
    real = type(fs).info

    def info(self, path, **options):
        return {**real(self, path, **options), "islink": path.endswith(STATEMENT)}

    with monkeypatch.context() as patch:
        patch.setattr(type(fs), "info", info)
        assert read(place)[1] == "ST-CKPT-142"

    real_find = type(fs).find

    def find(self, path, **options):
        found = real_find(self, path, **options)
        return {name: {**entry, "islink": name.endswith(DATA)} for name, entry in found.items()}

    monkeypatch.setattr(type(fs), "find", find)
    assert read(place)[1] == "ST-CKPT-142"


def test_places():
    assert isinstance(storage_of("a/b"), LocalStorage)
    assert storage_of("memory://x/y/z/").name == "memory://x/y/z"
    assert storage_of("memory://x/y/z").above().name == "memory://x/y"
    refused(UsageError, "ST-USAG-00", storage_of, "nosuchscheme://x")
    storage = storage_of("memory://x/absent")
    assert not storage.exists()
    refused(UsageError, "ST-USAG-002", storage.read, "no", 10)
