# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What a process keeps of a dataset: bounded, and never a byte that was not verified."""

import mmap
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from securetrain.artifacts.dataset import arena
from securetrain.artifacts.dataset.arena import LEAST, Kept, room
from securetrain.core.errors import IntegrityError

LEAF = 4096


def filled(value: int):
    def fill(slot: memoryview) -> None:
        slot[:] = bytes([value]) * len(slot)

    return fill


def failing(slot: memoryview) -> None:
    slot[:] = b"\xff" * len(slot)
    raise IntegrityError("ST-DATA-130", "the content is not what was signed")


def nothing(slot: memoryview) -> None:
    raise AssertionError(f"{len(slot)} bytes are read again")


def test_a_leaf_is_read_once():
    kept = Kept(LEAF, 4, 1 << 20)
    assert kept.find("f", 0, 0, 8) is None
    assert kept.get("f", 0, 0, 8, filled(7)) == b"\7" * 8
    assert kept.find("f", 0, 8, 16) == b"\7" * 8
    assert kept.get("f", 0, 0, LEAF, nothing) == b"\7" * LEAF
    assert kept.find("f", 1, 0, 8) is None
    assert kept.find("g", 0, 0, 8) is None


def test_a_leaf_that_does_not_verify_is_never_found():
    kept = Kept(LEAF, 1, LEAF)
    for _ in range(3):
        with pytest.raises(IntegrityError):
            kept.get("f", 0, 0, 8, failing)
        assert kept.find("f", 0, 0, 8) is None
        assert len(kept) == 0
    assert kept.get("f", 0, 0, 8, filled(1)) == b"\1" * 8


def test_memory_is_bounded_and_never_more_than_the_files():
    assert Kept(LEAF, 3, 1 << 40).slots == 3
    assert Kept(LEAF, 1000, 0).slots == 1
    kept = Kept(LEAF, 1000, 5 * LEAF + 1)
    for index in range(200):
        assert kept.get("f", index, 0, 1, filled(index)) == bytes([index])
        assert len(kept) <= kept.slots == 5
    assert len(kept._memory) == 5 * LEAF


def test_a_leaf_that_is_asked_for_stays_before_one_that_is_not():
    kept = Kept(LEAF, 100, 4 * LEAF)
    for index in range(4):
        kept.get("f", index, 0, 1, filled(index))
    kept.get("f", 4, 0, 1, filled(4))  # everybody had a chance, so that one is given up
    for index in range(5, 40):
        kept.get("f", 2, 0, 1, filled(2))
        kept.get("f", index, 0, 1, filled(index))
    kept.get("f", 2, 0, 1, nothing)


def test_a_leaf_is_forgotten_before_its_memory_is_filled_anew():
    kept = Kept(LEAF, 100, LEAF)
    kept.get("f", 0, 0, 1, filled(1))

    def fill(slot: memoryview) -> None:
        slot[:] = b"\xff" * len(slot)
        assert kept.find("f", 0, 0, 1) is None
        assert kept.find("f", 1, 0, 1) is None

    kept.get("f", 1, 0, 1, fill)


@pytest.mark.parametrize("moment", ["before the copy", "after the copy"])
def test_a_copy_during_which_the_memory_changed_hands_is_thrown_away(moment: str):
    """A reader without a lock is stopped at the worst moment: it has found its leaf, and the slot
    goes to another leaf, which is not verified yet.
    """
    kept = Kept(LEAF, 100, LEAF)
    kept.get("f", 0, 0, 1, filled(1))
    real = kept._memory

    class Stopped:
        def __getitem__(self, place: slice) -> bytes:
            data = real[place] if moment == "after the copy" else b""
            with pytest.raises(IntegrityError):
                kept.get("f", 1, 0, 1, failing)
            return data or real[place]

    kept._memory = Stopped()  # type: ignore[assignment]
    assert kept.find("f", 0, 0, 1) is None


def test_a_reader_that_was_stopped_before_it_looked_finds_nothing():
    """The number is raised after the leaf is forgotten: between the two there is no way in."""
    kept = Kept(LEAF, 100, LEAF)
    kept.get("f", 0, 0, 1, filled(1))
    found: list[bytes | None] = []

    class Watched(dict[int, int]):
        def __delitem__(self, index: int) -> None:
            before = kept._given_up
            super().__delitem__(index)
            assert kept._given_up == before
            found.append(kept.find("f", 0, 0, 1))

    watched = Watched(kept._known["f"])
    kept._known["f"] = watched
    kept._owners[0] = (watched, 0)
    kept.get("f", 1, 0, 1, filled(2))
    assert found == [None]


def test_threads_get_what_was_verified():
    kept, lock, wrong = Kept(LEAF, 64, 8 * LEAF), threading.Lock(), []

    def work(seed: int) -> None:
        for step in range(3000):
            index = (seed * 7919 + step * 104_729) % 64
            data = kept.find("f", index, 0, 64)
            if data is None:
                with lock:
                    data = kept.get("f", index, 0, 64, filled(index))
            if data != bytes([index]) * 64:
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_where_the_system_gives_less_memory_less_is_kept(monkeypatch: pytest.MonkeyPatch):
    real = mmap.mmap

    def stingy(fd: int, size: int, **more: Any) -> mmap.mmap:
        if size > 2 * LEAF:
            raise OSError(12, "Cannot allocate memory")
        return real(fd, size, **more)

    monkeypatch.setattr(mmap, "mmap", stingy)
    assert Kept(LEAF, 100, 16 * LEAF).slots == 2


def test_room_is_a_share_of_what_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    free = tmp_path / "meminfo"
    monkeypatch.setattr(arena, "_FREE", free)
    monkeypatch.setattr(arena, "_CGROUP", tmp_path)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert room() == LEAST
    free.write_text(f"MemTotal: 1 kB\nMemAvailable: {64 << 20} kB\n")
    assert room() == 8 << 30
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert room() == 2 << 30
    (tmp_path / "memory.max").write_text(f"{10 << 30}\n")
    (tmp_path / "memory.current").write_text(f"{2 << 30}\n")
    assert room() == 1 << 28
    (tmp_path / "memory.max").write_text("max\n")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "many")
    assert room() == 8 << 30
    os.truncate(free, 0)
    assert room() == LEAST
