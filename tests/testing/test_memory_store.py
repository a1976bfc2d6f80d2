# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The fake store, and that it does what torch's own in-memory store does."""

import threading
from datetime import timedelta

import pytest

from securetrain.testing.memory_store import MemoryStore, StoreTimeoutError
from tests.vocabulary import refused

SHORT = timedelta(milliseconds=20)


def _script(store):
    """One sequence of calls and every answer to them."""
    store.set("a", "1")
    store.set("b", b"\x00\xff")
    return [
        store.get("a"),
        store.get("b"),
        store.add("n", 2),
        store.add("n", -5),
        store.get("n"),
        store.check(["a", "b"]),
        store.check(["a", "missing"]),
        store.compare_set("a", "1", "2"),
        store.compare_set("a", "1", "3"),
        store.compare_set("new", "", "first"),
        store.delete_key("b"),
        store.delete_key("b"),
        store.check(["b"]),
    ]


def test_answers_as_torch_does():
    torch_store = pytest.importorskip("torch.distributed").HashStore()
    assert _script(MemoryStore()) == _script(torch_store)


def test_several_keys_at_once():
    store = MemoryStore()
    store.multi_set(["x", "y"], ["1", b"2"])
    store.append("x", "0")
    assert store.multi_get(["x", "y"]) == [b"10", b"2"]
    assert store.list_keys() == ["x", "y"]
    assert store.num_keys() == 2
    assert store.compare_set("absent", "something", "else") == b"something"
    assert not store.check(["absent"])
    refused(ValueError, "zip", store.multi_set, ["x"], [])


def test_a_wait_that_cannot_end_ends_in_time():
    store = MemoryStore(timeout=SHORT)
    for waiting in (
        lambda: store.get("x"),
        lambda: store.wait(["x"]),
        lambda: store.wait(["x"], SHORT),
    ):
        refused(StoreTimeoutError, r"\['x'\]", waiting)
    assert store.timeout == SHORT
    store.set_timeout(SHORT * 2)
    assert store.timeout == SHORT * 2


def test_a_waiter_wakes_when_another_thread_sets_the_key():
    store = MemoryStore()
    got = []
    waiter = threading.Thread(target=lambda: got.append(store.get("late")))
    waiter.start()
    store.set("late", "now")
    waiter.join(5)
    assert got == [b"now"]
