# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What is kept for the next time is bounded, in the order in which it came."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from securetrain.evidence.recent import Recent


def test_what_is_kept_is_found_until_there_is_no_room():
    recent: Recent[str, int] = Recent(2)
    assert recent.get("a") is None
    assert recent.put("a", 1) == 1
    recent.put("b", 2)
    assert (recent.get("a"), recent.get("b"), len(recent)) == (1, 2, 2)
    recent.put("c", 3)
    assert (recent.get("a"), recent.get("b"), recent.get("c")) == (None, 2, 3)


def test_a_new_value_takes_the_place_of_the_old_one():
    recent: Recent[str, int] = Recent(2)
    for key, value in (("a", 1), ("b", 2), ("a", 3)):
        recent.put(key, value)
    assert (recent.get("a"), recent.get("b")) == (3, 2)


def test_no_room_at_all_is_a_mistake():
    with pytest.raises(AssertionError):
        Recent[str, int](0)


def test_threads_keep_it_bounded():
    recent: Recent[tuple[int, int], int] = Recent(8)

    def use(number: int) -> None:
        for value in range(500):
            recent.put((number, value), value)
            recent.get((number, value - 1))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(use, range(4)))
    assert len(recent) == 8


def test_who_makes_room_is_told():
    gone: list[int] = []
    recent: Recent[str, int] = Recent(2, gone.append)
    for number, key in enumerate("abacd"):
        recent.put(key, number)
    assert gone == [2, 1], "a value that was replaced makes no room"
