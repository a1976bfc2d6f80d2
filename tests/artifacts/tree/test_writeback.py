# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The disk begins early; what makes a file durable stays its fsync."""

import os
from pathlib import Path

import pytest

from securetrain.artifacts.tree import lease, storage
from securetrain.artifacts.tree.storage import LocalStorage


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(storage, "PIECE", 1000)
    monkeypatch.setattr(storage, "begin_writeback", lambda _, *place: found.append(place))
    return found


def write(folder: Path, *, durable: bool, monkeypatch: pytest.MonkeyPatch) -> int:
    """Write 2,500 bytes and then 300; how often the file was flushed."""
    synced = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append(fd)
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    staging = LocalStorage(folder / "c", durable=durable).staging("0" * 32)
    staging.begin()
    with staging.create("x") as sink:
        sink.write(memoryview(bytes(range(250)) * 10))
        sink.write(memoryview(b"z" * 300))
    assert Path(staging.name, "x").read_bytes() == bytes(range(250)) * 10 + b"z" * 300
    return len(synced)


def test_every_byte_is_begun_once_and_the_file_is_flushed_at_the_end(tmp_path, begun, monkeypatch):
    assert write(tmp_path, durable=True, monkeypatch=monkeypatch) == 1
    assert begun == [(0, 1000), (1000, 1000), (2000, 500), (2500, 300)]


def test_a_file_that_need_not_last_is_left_to_the_kernel(tmp_path, begun, monkeypatch):
    assert write(tmp_path, durable=False, monkeypatch=monkeypatch) == 0
    assert begun == []


def test_a_kernel_that_refuses_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "_sync_file_range", lambda: None)
    assert write(tmp_path, durable=True, monkeypatch=monkeypatch) == 1
    storage.begin_writeback(-1, 0, 1)
    monkeypatch.undo()
    storage.begin_writeback(-1, 0, 1)


@pytest.mark.parametrize("mine", [True, False])
def test_small_files_are_flushed_before_the_name_or_at_once(tmp_path, monkeypatch, mine):
    calls: list[str] = []
    sync, rename = os.fsync, os.rename

    def fsync(fd: int) -> None:
        calls.append(Path(f"/proc/self/fd/{fd}").readlink().name.removeprefix(".")[:4])
        sync(fd)

    def renamed(source: Path, target: Path) -> None:
        calls.append(f"> {Path(target).name}")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    for call in ("rename", "replace"):
        monkeypatch.setattr(os, call, renamed)
    staging = LocalStorage(tmp_path / "final").staging("0" * 32)
    staging.begin()
    if not mine:  # as another rank's process, which commits nothing
        monkeypatch.setattr(lease, "is_held", lambda _: False)
    staging.put("text", b"x")
    assert calls == (["> text"] if mine else ["text", "> text"])
    assert [path.name for path in Path(staging.name).iterdir()] == ["text"]
    staging.commit()
    before = calls[: calls.index("> final")]
    assert before[-2:] == ["text", "fina"]  # the file, and then the folder that names it
    assert (tmp_path / "final" / "text").read_bytes() == b"x"
