# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The word of every rank, known to all alike, whatever a liar tells each of them."""

import random
import threading
from collections.abc import Callable

import pytest

from securetrain.guard.common_word import gather_words
from securetrain.guard.one_verdict import OneVerdict

Lie = Callable[[int, int, bytes], bytes]
"""Of the number of a message, who is told and the honest message."""


def meeting(words: list[bytes], liars: dict[int, Lie]) -> dict[int, tuple[bytes | None, ...]]:
    """The words as the honest ranks know them; all messages in lock step."""
    size = len(words)
    barrier, said = threading.Barrier(size), [[b""] * size for _ in range(size)]
    found: dict[int, tuple[bytes | None, ...]] = {}

    def work(rank: int) -> None:
        count = iter(range(1 << 20))

        def gather(mine: bytes) -> list[bytes]:
            number, lie = next(count), liars.get(rank)
            said[rank] = [mine if lie is None else lie(number, to, mine) for to in range(size)]
            barrier.wait(20)
            heard = [said[other][rank] for other in range(size)]
            barrier.wait(20)
            return heard

        known = gather_words(words[rank], gather)
        if rank not in liars:
            found[rank] = known

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


@pytest.mark.parametrize("size", [4, 5, 8])
def test_the_words_of_honest_ranks_are_known(size):
    words = [bytes([rank]) * 3 for rank in range(size)]
    assert set(meeting(words, {}).values()) == {tuple(words)}


def test_one_message_would_leave_ranks_with_different_words():
    """The liar says `a` to one and `b` to two: each of them hears it once."""
    found = meeting(
        [b"x"] * 4, {3: lambda number, to, mine: b"ab"[to == 0 :][:1] if not number else mine}
    )
    assert len(set(found.values())) == 1
    assert found[0] == (b"x", b"x", b"x", b"a")


def test_who_says_another_word_to_each_has_none():
    found = meeting([b"x"] * 4, {1: lambda number, to, mine: mine if number else bytes([to])})
    assert set(found.values()) == {(b"x", None, b"x", b"x")}


def test_who_passes_on_what_nobody_said_is_outvoted():
    found = meeting([b"x", b"y", b"z", b"w"], {0: lambda _n, _to, mine: b"q" * len(mine)})
    assert set(found.values()) == {(b"q", b"y", b"z", b"w")}


def drawn(source: random.Random) -> None:
    size = source.choice((4, 5, 7))
    words = [source.randbytes(2) for _ in range(size)]
    liar = source.randrange(size)

    def lie(_number: int, _to: int, mine: bytes) -> bytes:
        kind = source.random()
        if kind < 0.4:
            return mine
        return source.randbytes(len(mine)) if kind < 0.7 else mine[::-1]

    found = meeting(words, {liar: lie})
    assert len(set(found.values())) == 1
    known = next(iter(found.values()))
    assert all(known[rank] == word for rank, word in enumerate(words) if rank != liar)


def test_drawn_liars_part_nobody():
    source = random.Random(3)
    for _ in range(60):
        drawn(source)


@pytest.mark.many
@pytest.mark.timeout(600)
def test_two_thousand_drawn_liars_part_nobody():
    source = random.Random(4)
    for _ in range(2000):
        drawn(source)


class FirstLies:
    """A channel on which rank 0 says anything else, in every message."""

    rank, size = 1, 4

    def all_gather(self, data: bytes) -> list[bytes]:
        return [b"q" * len(data), data, data, data]

    def broadcast(self, data: bytes, size: int, source: int) -> bytes:
        raise NotImplementedError


def test_a_message_counts_only_when_it_is_what_most_have_said():
    assert OneVerdict(FirstLies(), 1).choose(b"mine") == b"mine"
