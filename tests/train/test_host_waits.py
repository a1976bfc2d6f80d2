# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A step makes the host wait for the device once, where ranks decide; experts once a layer more."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from securetrain.testing.processes import run_ranks
from tests.parallel.curves import DENSE, Case, make_trainer
from tests.parallel.matrix import SPARSE
from tests.parallel.waits import Waits, watching
from tests.tables import each

ONCE = "train/trainer.py:_read_step: tolist"
EXCHANGE = "parallel/experts.py:__call__: tolist"
LAYERS = 4
"""Of the models below."""


@contextmanager
def ranks_that_echo(world: int) -> Iterator[None]:
    """A group of which this process is rank 0, and whose others say what it says."""

    def echo(out: torch.Tensor, x: torch.Tensor, *_: object, **__: object) -> None:
        out.copy_(x)

    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    try:
        with mock.patch.object(dist, "all_to_all_single", echo):
            yield
    finally:
        dist.destroy_process_group()


def second_step(case: Case) -> Waits:
    trainer = make_trainer(case)
    trainer.train_step()
    with watching() as waits:
        trainer.train_step()
    trainer.rows.close()
    return waits


def alone(case: Case) -> Waits:
    with ranks_that_echo(case.ranks):
        return second_step(case)


def together() -> list[dict[str, int]]:
    return [dict(second_step(case).places) for case in (*NOT_ALONE, *GUARDED)]


MESHES = (
    Case("alone", 1, "{}"),
    Case("fsdp", 2, "{dp_shard: 2, microbatches: 2}"),
    Case("hsdp", 4, "{dp_replicate: 2, dp_shard: 2}"),
    Case("fsdp x tp", 4, "{dp_shard: 2, tp: 2}"),
    Case("cp", 2, "{cp: 2, context: ring}"),
    Case("recompute", 2, "{dp_shard: 2}", extra="compute: {recompute: selective}"),
    Case("moe", 2, "{dp_shard: 2}", SPARSE),
)


NOT_ALONE = (Case("ddp", 2, "{dp_replicate: 2}"), Case("pp", 2, "{pp: 2, microbatches: 2}"))
"""What asks for an answer."""

FLUSH = {"guard/collect.py:flush: cpu": 1}
GUARDED = {
    Case("ddp", 2, "{dp_replicate: 2}", guard=True): FLUSH,
    Case("fsdp", 2, "{dp_shard: 2}", guard=True): FLUSH | {
        "guard/bound_numbers.py:<genexpr>: tolist": 1,  # of a mesh, which is on the host
        "guard/tensor_norms.py:norm_of: _local_scalar_dense": 1,
        "guard/bound_numbers.py:bind_norm: _local_scalar_dense": 1,
    },
    Case("tp", 2, "{tp: 2}", guard=True): {"guard/lone_watch.py:judge: tolist": 1},
}  # fmt: skip
"""With the guard: sketches once, and what binds the norm of all ranks to them."""


@pytest.mark.parametrize("case", MESHES, ids=[case.name for case in MESHES])
def test_the_host_waits_once_a_step(case):
    assert alone(case).places == {ONCE: 1}


@pytest.mark.dist
def test_and_so_it_does_with_others():
    for rank in run_ranks(together, 2):
        # What is numpy's already is in the host's memory.
        waits = [{at: n for at, n in case.items() if not at.endswith(": numpy")} for case in rank]
        assert waits[: len(NOT_ALONE)] == [{ONCE: 1}] * len(NOT_ALONE)
        assert waits[len(NOT_ALONE) :] == [{ONCE: 1} | more for more in GUARDED.values()]


def test_experts_of_other_ranks_wait_once_a_layer():
    case = Case("ep", 2, "{dp_shard: 2, ep: 2}", SPARSE)
    assert alone(case).places == {ONCE: 1, EXCHANGE: LAYERS}


@pytest.mark.parametrize(
    ("case", "reductions"),
    [
        (MESHES[1], 1),  # loss, norm and stop
        (MESHES[2], 1 + LAYERS + 1),  # of replicas: each block, and the rest
        (Case("tp", 2, "{tp: 2}"), 1 + 1),  # pending sums of all norms
        (MESHES[-1], 1),
    ],
    ids=lambda x: x.name if isinstance(x, Case) else "",
)
def test_what_ranks_decide_by_travels_once(case, reductions):
    assert alone(case).collectives["allreduce_"] == reductions


def test_single_numbers_are_cast_once_and_angles_computed_once():
    small, large = (
        alone(Case("", 2, "{dp_shard: 2}", DENSE.replace("layers: 4", f"layers: {n}")))
        for n in (2, 4)
    )
    assert small.casts == large.casts <= 4
    assert small.angles == large.angles == 1


@each(
    "read",
    lambda x: x.sum().item(),
    lambda x: x.tolist(),
    lambda x: x.cpu(),
    lambda x: x.numpy(),
    lambda x: float(x[0]),
    lambda x: bool(x[0]),
    lambda x: x[x > 0],
    lambda x: x.nonzero(),
    lambda x: x.int().bincount(),
    lambda x: x.repeat_interleave(x.int()),
    lambda _: torch.cuda.synchronize(),
)
def test_the_spy_sees_every_way_to_wait(read):
    with watching() as waits:
        read(torch.ones(2))
    assert waits.places.total() == 1
    with watching() as waits:
        torch.ones(2).add(1).sum().clamp(max=1.0)
    assert not waits.places
