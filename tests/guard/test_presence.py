# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The guard's own deadline: who did not speak is named, and nobody who only came late."""

import threading
import time
from typing import Any

import pytest
import torch

from securetrain.core.errors import GuardError
from securetrain.guard.presence import Deadline, Waiting
from securetrain.testing.processes import run_ranks
from tests.tables import items
from tests.vocabulary import refused


class Store:
    """The job's store, in memory."""

    def __init__(self):
        self.values = {}

    def set(self, key, value):
        self.values[key] = value

    def check(self, keys):
        return all(key in self.values for key in keys)

    def get(self, key):
        return self.values[key]


class Work:
    """A collective that ends when it is told to."""

    def __init__(self, error=None):
        self.done = threading.Event()
        self.error = error

    def is_completed(self):
        return self.done.is_set()

    def wait(self, timeout):
        if self.error is not None:
            raise RuntimeError(self.error)
        if not self.done.wait(timeout.total_seconds()):
            raise RuntimeError("Operation timed out!")


def deadline(store, rank, **options):
    return Deadline(
        store=store, rank=rank, name="0", seconds=options.pop("seconds", 0.6), **options
    )


def wait_all(store, work, ranks, *, late=None, **options):
    """What each of some ranks of four meets; `late` is one that comes half-way to the deadline."""
    errors: dict[int, Any] = {}
    together = threading.Barrier(len(ranks))

    def one(rank):
        together.wait(20)
        if rank == late:
            time.sleep(options["seconds"] / 2)
        try:
            deadline(store, rank, **dict(options)).wait(work, "0,1,2,3", 5, range(4))
            errors[rank] = None
        except GuardError as error:
            errors[rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    return errors


def test_a_rank_that_does_not_speak_is_named_at_the_deadline():
    told: list[Any] = []
    errors = wait_all(Store(), Work(), (0, 1, 3), report=told.append)
    for error in errors.values():
        assert error.code == "ST-GRAD-010"
        assert "rank 2 did not speak" in error.what
        assert "rank 0" not in error.what
    assert told == [(2,)] * 3


def test_who_comes_late_but_before_the_end_is_not_named():
    errors = wait_all(Store(), Work(), (0, 1, 3), late=3, seconds=2.0)
    assert all("rank 2 did not" in error.what for error in errors.values())
    assert not any("rank 3" in error.what for error in errors.values())


def test_whoever_says_that_it_waits_and_is_silent_is_not_proof_against_anybody():
    store = Store()
    store.set("securetrain-guard/0/2", b'{"step":9,"place":"0,1,2,3","count":99}')
    errors = wait_all(store, Work(), (0, 1, 3))
    assert all("rank 2" not in error.what for error in errors.values())
    assert all(error.code == "ST-GRAD-010" for error in errors.values())


@items("said", b"", b"[]", b'{"step":1e400}', b'{"step":0,"place":"","count":"x"}')
def test_what_is_not_a_message_is_no_presence(said):
    store = Store()
    store.set("securetrain-guard/0/2", said)
    errors = wait_all(store, Work(), (0, 1, 3))
    assert all("rank 2 did not speak" in error.what for error in errors.values())


def test_a_rank_of_another_group_that_waits_there_is_not_named():
    store = Store()
    other = Deadline(store=store, rank=2, name="0", seconds=0.6, step=4)
    other._post(Waiting(4, "2,6", 1))
    one = Deadline(store=store, rank=0, name="0", seconds=0.6, step=4)
    refused(GuardError, "rank 1 did not speak", lambda: one.wait(Work(), "0,1,2", 7, (0, 1, 2)))
    one.step = 5  # it still waits in the step before: it has not come to this one
    refused(GuardError, "rank 1, rank 2 did not speak", one.wait, Work(), "0,1,2", 8, (0, 1, 2))


def test_a_lost_connection_is_this_error_too_and_says_why():
    errors = wait_all(Store(), Work("Connection closed by peer"), (0, 1, 3))
    for error in errors.values():
        assert "rank 2 did not speak" in error.what
        assert "Connection closed" in error.what


def test_without_a_store_nobody_is_named():
    errors = wait_all(None, Work(), (0, 1, 3))
    assert all(error.what.startswith("a message of the guard") for error in errors.values())


def test_a_message_in_time_costs_no_word():
    store, work = Store(), Work()
    work.done.set()
    assert wait_all(store, work, range(4)) == dict.fromkeys(range(4))
    assert store.values == {}


def silent(victim: int, kind: str) -> str:
    """One rank of a real group does not take part in judging, or in the second message of it."""
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from securetrain.guard import GradientGuard
    from securetrain.policy.schema import Gradients

    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Linear(8, 8))
    guard = GradientGuard(None, Gradients(deadline_seconds=3))
    guard.attach(model)
    for step in range(3):
        model(torch.randn(4, 8)).sum().backward()
        if step == 2 and dist.get_rank() == victim:
            if kind == "ends":
                return "gone"
            if kind == "row":
                mute: Any = guard._watches[0]
                mute.channel.all_gather = lambda _: threading.Event().wait(12) and None
            elif kind == "comparison":
                mute = guard._watches[0]
                real = mute.channel.all_gather
                mute.channel.all_gather = lambda data, real=real: (
                    threading.Event().wait(12) and None if len(data) == 17 else real(data)
                )
            else:
                time.sleep(12)
        begin = time.monotonic()
        try:
            guard.judge(step)
        except GuardError as error:
            return f"{error.code} {error.what} after {time.monotonic() - begin:.1f} s"
        except Exception as error:  # noqa: BLE001 - of the liar itself
            return type(error).__name__
    return "no error"


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["judge", "row", "comparison"])
def test_a_silent_rank_of_a_real_group_ends_in_a_refusal_that_names_it(kind):
    said = run_ranks(silent, 4, 2, kind, timeout=100)
    for rank in (0, 1, 3):
        assert said[rank].startswith("ST-GRAD-010"), said
        assert "rank 2 did not speak" in said[rank]
        assert not any(f"rank {other} " in said[rank] for other in (0, 1, 3)), said
