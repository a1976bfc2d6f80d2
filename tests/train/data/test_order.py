# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from securetrain.core.errors import UsageError
from securetrain.train.data.order import EpochOrder, permute
from tests.vocabulary import refused


def order(**given: object) -> EpochOrder:
    values: dict[str, object] = {
        "seed": 7, "split": "train", "windows": 10, "seq_len": 16, "batch_rows": 4, "epochs": 2,
        "sequential": False, "where": "job.yaml: data.train_split",
    }  # fmt: skip
    return EpochOrder(**(values | given))  # type: ignore[arg-type]


@given(count=st.integers(1, 3000), key=st.integers(0, (1 << 64) - 1))
def test_a_permutation_takes_each_number_once(count, key):
    numbers = np.arange(count, dtype=np.uint64)
    assert sorted(permute(numbers, count, key)) == list(range(count))


@given(count=st.integers(1, 1 << 40), number=st.integers(0, (1 << 40) - 1))
def test_one_number_needs_no_other(count, number):
    number %= count
    alone = permute(np.array([number], dtype=np.uint64), count, 3)
    with_others = permute(np.array([0, number, count - 1], dtype=np.uint64), count, 3)
    assert alone[0] == with_others[1] < count


def test_permutations_look_random():
    """Where number 0 goes, over many keys; and how far neighbours end up from each other."""
    numbers = np.arange(64, dtype=np.uint64)
    made = np.stack([permute(numbers, 64, key) for key in range(2000)])
    for column in (0, 31, 63):
        counts = np.bincount(made[:, column].astype(int), minlength=64)
        chi = ((counts - 2000 / 64) ** 2 / (2000 / 64)).sum()
        assert chi < 120, "63 degrees of freedom: beyond one in a hundred thousand"
    steps = np.abs(np.diff(made.astype(int), axis=1)).mean()
    assert 20 < steps < 23, "two random places of 64 are 21.3 apart"


def test_an_epoch_takes_each_window_once_and_the_next_in_another_order():
    rows = [order().start(1 + n // 4, n % 4) for n in range(20)]
    first = [start for epoch, start in rows if epoch == 0]
    second = [start for epoch, start in rows if epoch == 1]
    assert sorted(first) == sorted(second) == [16 * n for n in range(10)]
    assert first != second
    assert first != sorted(first)


def test_the_order_is_pinned():
    """An old run must stay reproducible."""
    assert [order().start(1, row)[1] // 16 for row in range(4)] == [1, 4, 6, 8]


def test_seed_and_split_matter():
    def first(**given: object) -> list[int]:
        one = order(windows=1000, **given)
        return [one.start(1, row)[1] for row in range(4)]

    assert len({tuple(first()), tuple(first(seed=8)), tuple(first(split="x"))}) == 3


def test_windows_come_in_turn_when_the_stream_shuffles():
    one = order(sequential=True)
    rows = [one.start(1 + n // 4, n % 4) for n in range(12)]
    assert rows == [(n // 10, 16 * (n % 10)) for n in range(12)]


def test_the_end_of_data_is_an_error_with_what_to_do():
    one = order()
    assert one.start(5, 3)[0] == 1
    error = refused(UsageError, "ST-USAG-014", one.start, 6, 0)
    assert error.fix == "set steps to 5 or fewer, or data.epochs to 3"
    one.check(5)
    refused(UsageError, "ST-USAG-014", one.check, 6)
