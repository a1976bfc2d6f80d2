# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The threads that read and hash: their number, their order and what they hold."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from securetrain.artifacts.tree import pool as pool_module
from securetrain.artifacts.tree.pool import Pool, cores, fetch_ahead
from securetrain.artifacts.tree.storage import LocalStorage
from tests.vocabulary import refused


def test_results_come_in_the_order_of_the_pieces() -> None:
    def work(number: int) -> int:
        time.sleep(0.002 * (number % 3))
        return number * number

    with Pool(4) as pool:
        found = [(piece, future.result()) for piece, future in pool.each(work, range(40))]
    assert found == [(number, number * number) for number in range(40)]


def test_pieces_are_taken_only_as_they_are_begun() -> None:
    """A folder of a million files holds no more memory than one of ten."""
    taken, done, most = 0, 0, 0

    def pieces() -> Iterator[int]:
        nonlocal taken, most
        for number in range(100):
            taken += 1
            most = max(most, taken - done)
            yield number

    with Pool(3) as pool:
        for _, future in pool.each(lambda number: number, pieces()):
            future.result()
            done += 1
    assert taken == 100
    assert most <= 2 * 3 + 1


def test_no_more_threads_work_than_were_let_in() -> None:
    lock, working, most = threading.Lock(), 0, 0

    def work(_: int) -> None:
        nonlocal working, most
        with lock:
            working += 1
            most = max(most, working)
        time.sleep(0.001)
        with lock:
            working -= 1

    pool = Pool()
    with pool:
        for _, future in pool.each(work, range(10)):
            future.result()
        assert most <= pool.width <= pool.most


def test_who_stops_asking_waits_for_what_has_begun() -> None:
    running, ended = threading.Event(), threading.Event()

    def work(number: int) -> None:
        if number == 1:
            running.set()
            time.sleep(0.2)
            ended.set()

    with Pool(2) as pool:
        every = pool.each(work, range(50))
        next(every)
        assert running.wait(10)
        every.close()
        assert ended.is_set()


def test_an_error_of_one_piece_is_its_own() -> None:
    def work(number: int) -> int:
        return 1 // number

    with Pool(2) as pool:
        errors = [type(f.exception()) for _, f in pool.each(work, [1, 0, 2])]
    assert errors == [type(None), ZeroDivisionError, type(None)]


def test_threads_that_wait_let_one_more_in() -> None:
    """A disk or a store that answers slowly is asked more at a time, up to the limit."""
    with Pool() as pool:
        begun = pool.width
        for _, future in pool.each(lambda _: time.sleep(0.002), range(60 * begun)):
            future.result()
        assert begun == min(cores(), pool_module.MOST)
        assert begun < pool.width <= pool.most


def test_threads_that_compute_stay_as_many_as_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    with Pool() as pool:
        begun = pool.width
        clock = iter(range(10**6))
        # Each piece has computed for as long as it took.
        monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
        monkeypatch.setattr(time, "thread_time", lambda: next(clock) * 10)
        for _ in range(100):
            pool.submit(int).result()
        monkeypatch.undo()
        assert pool.width == begun


def test_a_count_that_was_given_is_kept_to() -> None:
    with Pool(1) as pool:
        for _, future in pool.each(lambda _: time.sleep(0.001), range(50)):
            future.result()
        assert pool.width == pool.most == 1
    refused(ValueError, "at least 1", Pool, 0)


def test_a_containers_quota_bounds_the_cores(tmp_path, monkeypatch):
    """128 threads under a quota of two cores would be stopped most of the time."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(128)))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    new, old = tmp_path / "cpu.max", tmp_path / "cpu"
    monkeypatch.setattr(pool_module, "_QUOTA", new)
    monkeypatch.setattr(pool_module, "_QUOTA_V1", old)
    assert cores() == 128
    old.mkdir()
    (old / "cpu.cfs_quota_us").write_text("300000\n")
    (old / "cpu.cfs_period_us").write_text("100000\n")
    assert cores() == 3
    new.write_text("max 100000\n")
    assert cores() == 128
    new.write_text("150000 100000\n")
    assert cores() == 2
    with Pool() as pool:
        assert (pool.width, pool.most) == (2, 8)
    new.unlink()
    (old / "cpu.cfs_quota_us").write_text("-1\n")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert cores() == 16
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")
    assert cores() == 1


def test_reading_ahead_is_a_hint_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345678")
    source = LocalStorage(tmp_path).open("x")
    try:
        fetch_ahead(source, 0, 1 << 20)
        fetch_ahead(source, 4, 0)
        data = bytearray(8)
        source.read_into(memoryview(data), 0)
    finally:
        source.close()
    assert data == b"12345678"
    fetch_ahead(source, 0, 1)
