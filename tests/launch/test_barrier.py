# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Ranks that wait for each other, over torch's own store, in threads of one process."""

import sys
import threading
import types
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import HashStore

from securetrain.core.errors import RuntimeRefusal
from securetrain.launch.seams.folder_saves import Barrier


@pytest.fixture
def world(monkeypatch):
    store = HashStore()
    fake = types.SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_world_size=lambda: 2,
        distributed_c10d=types.SimpleNamespace(_get_default_store=lambda: store),
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", fake)
    return fake


def test_nobody_goes_on_before_all_are_there(world):
    first, other = Barrier(), Barrier()
    order = []

    def late():
        for step in range(3):
            order.append(f"other {step}")
            other.wait("save")

    thread = threading.Thread(target=late)
    thread.start()
    for step in range(3):
        first.wait("save")
        assert f"other {step}" in order
    thread.join(60)
    assert not thread.is_alive()


def test_a_rank_that_does_not_come_is_said_and_one_that_failed_is_not_waited_for(world):
    with pytest.raises(RuntimeRefusal, match="1 of 2 ranks have returned from save") as refused:
        Barrier(timedelta(milliseconds=50)).wait("save")
    assert refused.value.code == "ST-RUNT-038"
    first, other = Barrier(), Barrier()
    first._number = other._number = 7
    other.pass_by(2)
    first.wait("save")
    first.wait("save")


def test_one_process_waits_for_nobody(world):
    world.get_world_size = lambda: 1
    Barrier(timedelta(0)).wait("save")
    world.is_initialized = lambda: False
    Barrier(timedelta(0)).wait("save")
