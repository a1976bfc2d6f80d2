# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import threading
from collections.abc import Iterable

import pytest
import torch

from securetrain.core.errors import UsageError
from securetrain.train.data.prefetch import Prefetch
from securetrain.train.data.rows import Batch
from tests.vocabulary import refused


class Source:
    """Rows whose numbers say what they are; remembers what was asked of it."""

    def __init__(self, ends: int = 10**9) -> None:
        self.ends = ends
        self.asked: list[tuple[int, tuple[int, ...]]] = []
        self.threads: set[str] = set()

    def batch(self, step: int, rows: Iterable[int]) -> Batch:
        numbers = tuple(rows)
        self.asked.append((step, numbers))
        self.threads.add(threading.current_thread().name)
        if step > self.ends:
            raise UsageError("ST-USAG-014", f"step {step}")
        made = torch.tensor([[step * 100 + row] for row in numbers])
        return made, made + 1


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_rows_are_the_same_however_far_ahead_they_are_made(depth):
    ahead = Prefetch(Source(), depth)
    plain = Source()
    for step in (1, 2, 3, 4, 9, 10, 2, 3):
        for rows in (range(2), range(2, 4), [3, 1]):
            for found, wanted in zip(ahead.batch(step, rows), plain.batch(step, rows), strict=True):
                assert torch.equal(found, wanted)
    ahead.close()


def test_the_next_steps_are_made_by_another_thread_and_only_once():
    source = Source()
    ahead = Prefetch(source, 2, last=5)
    ahead.batch(1, range(4))
    while len(source.asked) < 3:
        threading.Event().wait(0.001)
    for step in range(2, 6):
        ahead.batch(step, range(4))
    ahead.close()
    assert sorted(source.asked) == [(step, (0, 1, 2, 3)) for step in range(1, 6)]
    assert len(source.threads) == 2


def test_an_error_comes_at_its_step_and_not_before():
    ahead = Prefetch(Source(ends=3), 2)
    for step in (1, 2, 3):
        ahead.batch(step, [0])
    refused(UsageError, "step 4", ahead.batch, 4, [0])
    refused(UsageError, "step 4", ahead.batch, 4, [0])
    ahead.close()


def test_waiting_is_measured():
    ticks = iter(range(100))
    ahead = Prefetch(Source(), 0, clock=lambda: float(next(ticks)))
    ahead.batch(1, [0])
    ahead.batch(2, [0])
    assert ahead.seconds == 2.0


def test_after_closing_no_thread_is_left_and_rows_still_come():
    before = threading.active_count()
    ahead = Prefetch(Source(), 4)
    ahead.batch(1, [0])
    ahead.close()
    ahead.close()
    assert threading.active_count() == before
    assert ahead.batch(2, [0])[0].item() == 200
