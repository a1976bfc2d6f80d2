# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A group that a worker makes again meets no key of the group before."""

import types
from typing import Any

import pytest
import torch.distributed

from securetrain.launch.seams import patches
from securetrain.launch.worker.fresh_keys import FreshKeys
from tests.vocabulary import refused

dist: Any = torch.distributed


class FakeTorch:
    """`init_process_group` as torch has it: it asks its own module's `rendezvous`."""

    def __init__(self) -> None:
        self.module = types.ModuleType("torch.distributed.distributed_c10d")
        self.asked: list[Any] = []
        self.fails = False
        vars(self.module).update(rendezvous=self.meet, init_process_group=self.init)

    def meet(self, url, rank=-1, world_size=-1, **given):
        self.asked.append((url, rank, world_size, given))
        yield self.store, rank, world_size
        raise RuntimeError("Unable to perform re-rendezvous")

    def init(self, url="env://", *, store=None):
        if store is None:
            store, _, _ = next(self.module.rendezvous(url, 1, 2, timeout=3))
        if self.fails:
            raise RuntimeError("nobody came")
        return store

    store: Any = None


@pytest.fixture
def fake():
    fake, fresh = FakeTorch(), FreshKeys()
    fake.store = dist.HashStore()
    patches.wrap(fresh.rendezvous, "rendezvous", fake.module)
    patches.wrap(fresh.group, "init_process_group", fake.module)
    return fake


def test_the_first_group_has_torchs_own_keys(fake):
    assert fake.module.init_process_group() is fake.store
    assert fake.asked == [("env://", 1, 2, {"timeout": 3})]


def test_each_further_group_has_keys_of_its_own(fake):
    first, second, third = (fake.module.init_process_group() for _ in range(3))
    for store, value in ((first, b"1"), (second, b"2"), (third, b"3")):
        store.set("cpu//0/1", value)
    assert [one.get("cpu//0/1") for one in (first, second, third)] == [b"1", b"2", b"3"]
    assert fake.store.get("securetrain/group-1/cpu//0/1") == b"2"
    assert fake.store.get("securetrain/group-2/cpu//0/1") == b"3"


def test_a_group_that_was_not_made_is_not_counted(fake):
    """Another rank may have come late; it has not counted either."""
    fake.module.init_process_group()
    fake.fails = True
    refused(RuntimeError, "nobody came", fake.module.init_process_group)
    fake.fails = False
    fake.module.init_process_group().set("key", b"here")
    assert fake.store.get("securetrain/group-1/key") == b"here"


def test_each_method_is_counted_alone(fake):
    """A rank may be in a group of some, or in RPC, before it is in the group of all."""
    fake.module.init_process_group("tcp://127.0.0.1:1")
    next(fake.module.rendezvous("env://"))  # RPC makes no group
    assert fake.module.init_process_group() is fake.store


def test_a_store_of_the_scripts_own_is_left_alone(fake):
    fake.module.init_process_group()
    own = dist.HashStore()
    assert fake.module.init_process_group(store=own) is own
    assert fake.module.init_process_group(store=own) is own
    fake.module.init_process_group().set("key", b"here")
    assert fake.store.get("securetrain/group-1/key") == b"here"
