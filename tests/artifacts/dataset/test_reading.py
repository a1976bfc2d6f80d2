# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Files, arrays, file systems, samples and shared memory: every byte verified, whoever asks."""

import fcntl
import io
import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from securetrain.artifacts.dataset.arena import Arena, Layout
from securetrain.artifacts.dataset.files import VerifiedFile, VerifiedFileSystem, VerifiedMemmap
from securetrain.artifacts.dataset.sign import About, sign_in_place
from securetrain.artifacts.dataset.torch_data import ResumableSampler, VerifiedSamples
from securetrain.artifacts.dataset.verified import Dataset
from securetrain.artifacts.statement.dataset_predicate import Removed
from securetrain.artifacts.statement.statements import open_statement
from securetrain.artifacts.tree.layout import STATEMENT, Kind
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.core.hashtree import TreeParams
from tests.vocabulary import refused

SMALL = TreeParams(leaf_size=1024)
TOKENS = np.arange(50_000, dtype="<u2")


@pytest.fixture
def root(tmp_path: Path, keys: Any, now: Any) -> Path:
    """tokens/a.bin and b.bin (uint16), text.jsonl."""
    folder = tmp_path / "data"
    (folder / "train").mkdir(parents=True)
    (folder / "train" / "a.bin").write_bytes(TOKENS[:30_000].tobytes())
    (folder / "train" / "b.bin").write_bytes(TOKENS[30_000:].tobytes())
    (folder / "text.jsonl").write_text("".join(f"line {n}\n" for n in range(200)))
    about = About(
        name="d",
        splits={"train": ["train/a.bin", "train/b.bin"], "text": ["text.jsonl"]},
    )
    sign_in_place(folder, about, key=keys.dataset, now=now, params=SMALL)
    return folder


@pytest.fixture
def open_it(trust: Any, now: Any) -> Callable[[Path], Dataset]:
    later = now + timedelta(minutes=5)
    return lambda path: Dataset.open(path, trust=trust, policy=None, now=later)


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_a_file_reads_as_a_file_does(root: Path, open_it: Any) -> None:
    with open_it(root) as data:
        file = io.BufferedReader(VerifiedFile(data, "text.jsonl"))
        assert file.readline() == b"line 0\n"
        assert len(file.readlines()) == 199
        file.seek(-7, os.SEEK_END)
        assert file.read() == b"ne 199\n"
        file.seek(10_000)
        assert file.read() == b""
        assert [len(line) for line in io.TextIOWrapper(file)] == []
        with pytest.raises(IntegrityError):
            VerifiedFile(data, "none")


@pytest.mark.forgery
def test_a_changed_file_is_refused_where_it_changed(root: Path, open_it: Any) -> None:
    flip(root / "text.jsonl", 1100)
    with open_it(root) as data:
        file = VerifiedFile(data, "text.jsonl")
        assert file.read(1024)
        with pytest.raises(IntegrityError) as error:
            file.read(1)
    assert error.value.code == "ST-DATA-130"


def test_an_array_is_numpys_memmap(root: Path, open_it: Any) -> None:
    with open_it(root) as data:
        flat = VerifiedMemmap(data, "train", "<u2")
        assert flat.shape == (50_000,)
        assert (flat[29_990:30_010] == TOKENS[29_990:30_010]).all()
        assert flat[-1] == TOKENS[-1]
        assert len(flat[10:5]) == 0
        rows = VerifiedMemmap(data, "train", "<u2", row=1000)
        assert rows.shape == (50, 1000)
        assert (rows[30] == TOKENS[30_000:31_000]).all()
        assert (rows[2:4] == TOKENS[2000:4000].reshape(2, 1000)).all()
        rows[0][0] = 1  # a copy of its own
        for key in (50, -51):
            with pytest.raises(IndexError):
                rows[key]
        with pytest.raises(IndexError):
            rows[::2]
        refused(IntegrityError, "ST-DATA-160", VerifiedMemmap, data, "train", "<u2", row=999)


def test_a_file_system_shows_what_was_signed(root: Path, open_it: Any) -> None:
    with open_it(root) as data:
        system = VerifiedFileSystem(data)
        assert sorted(system.find("")) == ["text.jsonl", "train/a.bin", "train/b.bin"]
        assert system.ls("train", detail=False) == ["train/a.bin", "train/b.bin"]
        assert system.isdir("train")
        assert system.size("text.jsonl") == (root / "text.jsonl").stat().st_size
        assert system.cat_file("text.jsonl", 0, 6) == b"line 0"
        with system.open("train/a.bin") as file:
            assert file.read(4) == TOKENS[:2].tobytes()
        for path in ("none", f"../{root.name}/text.jsonl", "train/../text.jsonl"):
            with pytest.raises(FileNotFoundError):
                system.info(path)
        refused(OSError, "read only", system.open, "text.jsonl", "wb")


# Samples and their order.


@pytest.fixture
def texts(tmp_path: Path, keys: Any, now: Any, trust: Any, open_it: Any) -> Dataset:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.jsonl").write_text("".join(f"{n}\n" for n in range(10, 30)))
    about = About(name="t", with_samples=True)
    sign_in_place(folder, about, key=keys.dataset, now=now)
    gone = Removed(file="a.jsonl", offset=6, length=3, sample="a.jsonl#2")
    old = open_statement((folder / STATEMENT).read_bytes(), Kind.DATASET, trust)
    sign_in_place(folder, About(name="t", removed=[gone]), key=keys.dataset, now=now, previous=old)
    found: Dataset = open_it(folder)
    return found


def test_samples_leave_out_what_was_removed(texts: Dataset) -> None:
    rows = VerifiedSamples(texts)
    assert len(rows) == 19
    assert [rows[n] for n in range(3)] == [b"10\n", b"11\n", b"13\n"]
    assert rows.describe(2).id == "a.jsonl#3"


def test_every_rank_has_its_share_and_goes_on_where_it_stopped(texts: Dataset) -> None:
    rows = VerifiedSamples(texts)

    def sampler(rank: int, ranks: int) -> ResumableSampler:
        return ResumableSampler(len(rows), seed=3, rank=rank, ranks=ranks)

    whole = list(sampler(0, 1))
    assert sorted(whole) == list(range(19))
    halves = [list(sampler(rank, 2)) for rank in range(2)]
    assert [n for pair in zip(*halves, strict=True) for n in pair] == whole[:18]
    stopped = sampler(0, 1)
    taken = iter(stopped)
    first = [next(taken) for _ in range(8)]
    # Another number of ranks goes on from the same state.
    resumed = [sampler(rank, 2) for rank in range(2)]
    for one in resumed:
        one.load_state_dict(stopped.state_dict())
    rest = [n for pair in zip(*map(list, resumed), strict=True) for n in pair]
    assert first + rest == whole[:18]
    assert resumed[0].state_dict()["epoch"] == 1
    second = list(resumed[0])
    assert second != halves[0]
    with pytest.raises(UsageError):
        sampler(0, 1).load_state_dict({"seed": 4, "epoch": 0, "seen": 0, "length": 19})
    with pytest.raises(UsageError):
        ResumableSampler(1, seed=0, rank=0, ranks=2)


def test_torchs_loader_takes_them(texts: Dataset) -> None:
    rows = VerifiedSamples(texts)
    loader = DataLoader(rows, batch_size=None, sampler=ResumableSampler(len(rows), seed=1))
    assert len(list(loader)) == 19


def test_a_dataset_without_samples_says_so(root: Path, open_it: Any) -> None:
    with open_it(root) as data, pytest.raises(UsageError) as error:
        VerifiedSamples(data)
    assert error.value.code == "ST-USAG-007"


# The arena.


@pytest.mark.forgery
def test_the_arena_keeps_the_good_bytes(root: Path, open_it: Any) -> None:
    with open_it(root) as data:
        arena = data.share()
        before = data.read("train/a.bin", 5000, 3000)
        flip(root / "train" / "a.bin", 6000)
        assert data.read("train/a.bin", 5000, 3000) == before
        assert arena.arena.has("train/a.bin", 5)
        # The control: whoever maps the file sees the change.
        with (root / "train" / "a.bin").open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            assert mapped[5000:8000] != before
        # And what had not been verified yet is refused, and stays unmarked and zero.
        flip(root / "train" / "b.bin", 10)
        refused(IntegrityError, "ST-DATA-130", data.read, "train/b.bin", 0, 100)
        assert not arena.arena.has("train/b.bin", 0)
        assert bytes(arena.arena.place("train/b.bin", 0)) == bytes(1024)


def test_processes_share_what_one_of_them_verified(root: Path, open_it: Any) -> None:
    with open_it(root) as owner, owner.share().served() as path, open_it(root) as reader:
        reader.join(path)
        assert (
            reader.read("train/b.bin", 100, 5000)
            == ((root / "train" / "b.bin").read_bytes()[100:5100])
        )
        assert reader.read("text.jsonl", 0, 6) == b"line 0"
        # Verified once: the change that follows is seen by nobody.
        flip(root / "train" / "b.bin", 200)
        assert reader.read("train/b.bin", 100, 5000) == owner.read("train/b.bin", 100, 5000)
        flip(root / "train" / "a.bin", 0)
        refused(IntegrityError, "ST-DATA-130", reader.read, "train/a.bin", 0, 10)


@pytest.mark.forgery
def test_a_reader_cannot_write_into_the_arena(root: Path, open_it: Any) -> None:
    with open_it(root) as owner:
        arena = owner.share().arena
        with pytest.raises(PermissionError):
            mmap.mmap(arena.fd, mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        refused(OSError, "not permitted", os.pwrite, arena.fd, b"x", 0)
        refused(OSError, "not permitted", os.ftruncate, arena.fd, 0)


@pytest.mark.forgery
def test_an_arena_of_another_dataset_is_refused(root, texts, open_it):
    with texts.share().served() as path, open_it(root) as reader:
        refused(IntegrityError, "ST-DATA-130", reader.join, path)


@pytest.mark.forgery
def test_an_owner_that_is_gone_is_a_refusal(root: Path, open_it: Any) -> None:
    with open_it(root) as reader:
        refused(IntegrityError, "ST-DATA-200", reader.join, root / "none")
        with open_it(root) as owner, owner.share().served() as path:
            reader.join(path)
            assert reader.read("text.jsonl", 0, 1)
        reader._arena._socket.close()
        assert reader.read("text.jsonl", 0, 1) == b"l"  # verified before
        refused(IntegrityError, "ST-DATA-200", reader.read, "train/a.bin", 0, 1)


@pytest.mark.forgery
def test_memory_that_is_not_sealed_is_refused(root, open_it, monkeypatch):
    real = fcntl.fcntl

    def no_seals(fd: int, command: int, *rest: Any) -> Any:
        return 0 if command == fcntl.F_ADD_SEALS else real(fd, command, *rest)

    with open_it(root) as owner:
        monkeypatch.setattr(fcntl, "fcntl", no_seals)
        shared = owner.share()
        monkeypatch.undo()
        with shared.served() as path, open_it(root) as reader:
            refused(IntegrityError, "ST-DATA-200", reader.join, path, says="not sealed")


def test_the_layout_is_a_function_of_the_statement() -> None:
    layout = Layout.of({"b": 1, "a": 2049, "c": 0}, 1024)
    assert layout.names == ("a", "b", "c")
    assert layout.counts == [3, 1, 0]
    assert layout.size == mmap.PAGESIZE + 4 * 1024
    arena = Arena.create(layout)
    assert len(arena.place("a", 2)) == 1
    arena.close()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
@pytest.mark.forgery
def test_another_user_gets_nothing(root: Path, open_it: Any) -> None:
    with open_it(root) as owner, owner.share().served() as path:
        os.chmod(path.parent, 0o755)  # noqa: PTH101
        os.chmod(path, 0o777)  # noqa: PTH101
        script = (
            "import os, socket, sys\n"
            "os.setuid(65534)\n"
            "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
            "s.connect(sys.argv[1])\n"
            "print(len(s.recv(100)))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, str(path)],
            check=True,
            capture_output=True,
            text=True,
            timeout=30,
        )
    assert done.stdout == "0\n"
