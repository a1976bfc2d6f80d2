# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Attacks on a saved checkpoint: what torch's own format lets through, and that ours refuses."""

import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from securetrain.artifacts import load, save
from securetrain.artifacts.statement.reading import LeafReader, SignedFile
from securetrain.artifacts.tree import index as index_file
from securetrain.artifacts.tree.layout import INDEX, STATEMENT
from securetrain.core.errors import IntegrityError
from tests.artifacts.checkpoint.worlds import DATA, SMALL, context_of, flip, stock_load, stock_save
from tests.tables import items
from tests.trees import tree_of

TABLE = f"{DATA}.leaves"


def state():
    torch.manual_seed(1)
    return {"first": torch.randn(1000), "second": torch.randn(40, 30), "step": 7}


def blank():
    return {"first": torch.ones(1000), "second": torch.ones(40, 30), "step": None}


@pytest.fixture
def saved(keys, now, tmp_path):
    def run(name="ckpt", *, key=None, content=None):
        how = {"key": key or keys.checkpoint, "context": context_of(now, 7), "params": SMALL}
        return save(content or state(), tmp_path / name, **how).path

    return run


@pytest.fixture
def refusal(trust, now):
    """Load into fresh targets; the error, after checking that nothing unverified is left there."""

    def run(path, *, zeroed=True):
        target = blank()
        with pytest.raises(IntegrityError) as caught:
            load(target, path, trust=trust, policy=None, now=now)
        for tensor in (target["first"], target["second"]):
            assert torch.all(tensor == (0.0 if zeroed else 1.0))
        assert target["step"] is None
        return caught.value

    return run


def find(path: Path, tensor: torch.Tensor) -> int:
    return path.read_bytes().index(tensor.numpy().tobytes())


def test_a_flipped_bit_stock_loads_it_ours_refuses(tmp_path, saved, refusal):
    good = state()
    data = stock_save(good, tmp_path / "stock")
    flip(data, find(data, good["first"]) + 2000)
    target = blank()
    stock_load(target, tmp_path / "stock")
    assert (target["first"] != good["first"]).sum() == 1  # silently wrong

    ours = saved()
    flip(ours / DATA, find(ours / DATA, good["first"]) + 2000)
    error = refusal(ours)
    assert error.code == "ST-CKPT-130"
    assert f"{DATA} bytes 1024..2048 (tensor first)" in error.where


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return (Path.touch, (self.marker,))


def test_a_pickle_in_torchs_index_runs_with_stock_and_never_with_ours(tmp_path, saved, refusal):
    marker = tmp_path / "ran"
    stock_save(state(), tmp_path / "stock")
    metadata = tmp_path / "stock" / ".metadata"
    metadata.write_bytes(pickle.dumps(Payload(marker)))

    # Ours refuses the directory, and refuses the file planted in a signed directory.
    error = refusal(tmp_path / "stock", zeroed=False)
    assert error.code == "ST-CKPT-100"
    assert ".metadata is a pickle" in error.what
    ours = saved()
    for name in (".metadata", "__0.metadata"):
        shutil.copyfile(metadata, ours / name)
        error = refusal(ours, zeroed=False)
        assert error.code == "ST-CKPT-141"
        assert name in error.where
        (ours / name).unlink()
    assert not marker.exists()

    # Control: the same file runs when torch loads the checkpoint.
    with pytest.raises(BaseException):  # noqa: B017, PT011 - CheckpointException is a BaseException
        stock_load(blank(), tmp_path / "stock")
    assert marker.exists()


def test_a_pickle_in_place_of_a_value_runs_with_stock_and_has_no_place_in_ours(
    tmp_path, saved, refusal
):
    marker = tmp_path / "ran"
    stock_save({"step": Payload(marker)}, tmp_path / "stock")
    stock_load({"step": None}, tmp_path / "stock")
    assert marker.exists()

    ours = saved()
    index = (ours / INDEX).read_bytes()
    assert b'{"fqn":"step","value":7}' in index
    (ours / INDEX).write_bytes(index.replace(b'"value":7', b'"value":8'))
    assert refusal(ours, zeroed=False).code == "ST-CKPT-132"


def test_every_kind_of_damage_to_the_files(saved, refusal):
    good = saved()
    size = (good / DATA).stat().st_size
    changes = [
        (lambda p: flip(p / DATA, 0), "ST-CKPT-130"),
        (lambda p: flip(p / DATA, size - 1), "ST-CKPT-130"),
        (lambda p: flip(p / TABLE, 5), "ST-CKPT-132"),
        (lambda p: flip(p / INDEX, 30), "ST-CKPT-132"),
        (lambda p: flip(p / STATEMENT, 30), "ST-CKPT-110"),
        (lambda p: (p / STATEMENT).unlink(), "ST-CKPT-100"),
        (lambda p: (p / DATA).unlink(), "ST-CKPT-140"),
        (lambda p: os.truncate(p / DATA, size - 1), "ST-CKPT-131"),
        (lambda p: os.truncate(p / DATA, size + 1), "ST-CKPT-131"),
        (lambda p: (p / "rank-00001.bin").write_bytes(b"x"), "ST-CKPT-141"),
        (lambda p: (p / "zzz.safetensors").write_bytes(b"x"), "ST-CKPT-141"),
        (lambda p: os.link(p / DATA, p.parent / f"{p.name}.link"), "ST-CKPT-142"),
        (lambda p: _to_link(p / DATA), "ST-CKPT-142"),
        (lambda p: os.mkfifo(p / "pipe"), "ST-CKPT-142"),
    ]
    for number, (change, code) in enumerate(changes):
        copy = good.with_name(f"copy-{number}")
        shutil.copytree(good, copy)
        change(copy)
        # Targets are touched only when reading had begun: by then the listing was as signed.
        assert refusal(copy, zeroed=number <= 2).code == code, number


def _to_link(path: Path) -> None:
    away = path.parent.with_name(f"{path.parent.name}.away")
    path.rename(away)
    path.symlink_to(away)


def test_files_of_another_step_with_their_tables(saved, refusal):
    old = saved("old", content={**state(), "first": torch.zeros(1000)})
    new = saved("new")
    for name in (DATA, TABLE):
        shutil.copyfile(old / name, new / name)
    assert refusal(new).code == "ST-CKPT-132"


def test_tables_edited_together_with_the_data(saved, refusal):
    path = saved()
    flip(path / DATA, 0)
    (path / TABLE).write_bytes(tree_of(SMALL, (path / DATA).read_bytes()).leaves)
    assert refusal(path).code == "ST-CKPT-132"


def test_a_strangers_signature(saved, refusal, keys):
    assert refusal(saved(key=keys.stranger), zeroed=False).code == "ST-CKPT-120"
    assert refusal(saved("other", key=keys.dataset), zeroed=False).code == "ST-CKPT-120"


def swap(index: index_file.Index) -> index_file.Index:
    """The index of `state()` with one tensor shifted onto the other's bytes."""
    first, second = index.tensors
    chunk = replace(first.chunks[0], offset=second.chunks[0].offset)
    return replace(index, tensors=(replace(first, chunks=(chunk,)), second))


@items(
    "lie",
    swap,
    lambda index: pickle.dumps(print),
    lambda index: index_file.encode(index).replace(b"float32", b"float64"),
    lambda index: index_file.encode(index).replace(b"[1000]", b"[9007199254740991]"),
    lambda index: index_file.encode(index).replace(b"rank-00000.bin", b"../../etc/shad"),
)
def test_a_false_index_signed_by_a_trusted_key(saved, refusal, forge, tmp_path, lie):
    honest = saved()
    files = {DATA: (honest / DATA).stat().st_size}
    index = index_file.parse((honest / INDEX).read_bytes(), files)
    forge(tmp_path / "forged", (honest / DATA).read_bytes(), index=lie(index), params=SMALL)
    assert refusal(tmp_path / "forged", zeroed=False).code == "ST-CKPT-191"


def test_an_index_that_is_false_within_its_rules_is_the_signers_word(
    saved, forge, trust, now, tmp_path
):
    # Control for the test above: the same way of forging, with an honest index, loads.
    honest = saved()
    raw = (honest / INDEX).read_bytes()
    forge(tmp_path / "forged", (honest / DATA).read_bytes(), index=raw, params=SMALL)
    target = blank()
    load(target, tmp_path / "forged", trust=trust, policy=None, now=now)
    assert torch.equal(target["first"], state()["first"])


def test_a_file_that_changes_between_the_listing_and_the_reads(saved, refusal, monkeypatch):
    path = saved()
    real = LeafReader.open.__func__  # type: ignore[attr-defined]

    def open_then_change(cls, *args, **kwargs):
        reader = real(cls, *args, **kwargs)
        flip(path / DATA, 100)
        return reader

    monkeypatch.setattr(LeafReader, "open", classmethod(open_then_change))
    assert refusal(path).code == "ST-CKPT-130"


def test_a_file_that_changes_after_a_leaf_was_read_changes_nothing(saved, trust, now, monkeypatch):
    path = saved(content={"first": torch.arange(256.0)})
    real = SignedFile.read_raw
    changed = []

    def read_then_change(self, *args):
        real(self, *args)
        if self.name == DATA:
            (path / DATA).write_bytes(bytes((path / DATA).stat().st_size))
            changed.append(args)

    monkeypatch.setattr(SignedFile, "read_raw", read_then_change)
    target = {"first": torch.zeros(256)}
    load(target, path, trust=trust, policy=None, now=now)
    assert torch.equal(target["first"], torch.arange(256.0))
    assert len(changed) == 1


def test_damage_in_bytes_that_are_not_needed_is_not_read(saved, trust, now):
    # "second" lies behind "first", so the last leaf holds none of "first".
    path = saved()
    flip(path / DATA, (path / DATA).stat().st_size - 1)
    target = {"first": torch.zeros(1000)}
    load(target, path, trust=trust, policy=None, now=now)
    assert torch.equal(target["first"], state()["first"])
