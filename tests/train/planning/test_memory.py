# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What is counted is what autograd keeps and what is cut."""

import dataclasses

import pytest
import torch
from torch import nn

from securetrain.parallel.degrees import Degrees
from securetrain.parallel.plan import Precision, Recompute, Settings, Zero
from securetrain.parallel.schedule import Schedule, layers_of, rank_of_stage, stages_of
from securetrain.train.models.llama import Block, rotary
from securetrain.train.models.shape import ModelShape, num_parameters
from securetrain.train.planning.activations import block_activations
from securetrain.train.planning.fake_mesh import local_elements, local_parameters
from securetrain.train.planning.flights import microbatches_in_flight
from securetrain.train.planning.memory import memory_of
from securetrain.train.planning.workload import Workload, held
from tests.tables import items

SHAPE = ModelShape(dim=256, layers=4, heads=8, kv_heads=4, ffn=768, vocab=512)


def work(degrees: Degrees | None = None, **settings: object) -> Workload:
    return Workload(
        shape=SHAPE,
        degrees=degrees or Degrees(),
        settings=dataclasses.replace(Settings(), **settings),  # type: ignore[arg-type]
        rows=2,
        length=128,
    )


def kept_bytes(block: nn.Module, x: torch.Tensor) -> int:
    """What autograd keeps of one forward pass, parameters aside."""
    parameters = {p.untyped_storage().data_ptr() for p in block.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        positions = torch.arange(x.shape[1])
        result = block(x, positions, rotary(positions, SHAPE.head, SHAPE.rope_theta))
    assert result.requires_grad  # and alive until here, so that no storage is used twice
    return sum(kept.values())


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
def test_activations_are_what_autograd_keeps(precision):
    dtype = torch.bfloat16 if precision is Precision.BF16 else torch.float32
    block = Block(SHAPE).to(dtype)
    x = torch.randn(2, 128, SHAPE.dim, dtype=dtype, requires_grad=True)
    counted = block_activations(work(precision=precision))
    assert counted == pytest.approx(kept_bytes(block, x), rel=0.25)


def test_recomputation_keeps_less():
    plain, selective, alternate, full = (
        block_activations(work(recompute=kind)) for kind in Recompute
    )
    assert full < alternate < selective < plain
    assert full == 2 * 128 * SHAPE.dim * 4


@items(
    "degrees, settings, rank",
    (Degrees(dp_shard=4), Settings(), 0),
    (Degrees(dp_replicate=2, dp_shard=2, tp=2), Settings(), 0),
    (Degrees(pp=2, dp_shard=2, tp=2), Settings(microbatches=4), 0),
    (Degrees(pp=2, dp_shard=2, tp=2), Settings(microbatches=4), 1),
    (
        Degrees(pp=2, dp_shard=2),
        Settings(microbatches=4, schedule=Schedule.ZBV_ZERO_BUBBLE),
        0,
    ),
    (Degrees(dp_replicate=4), Settings(), 0),
)
def test_the_count_from_sizes_is_the_count_of_what_is_cut(degrees, settings, rank):
    laid_out = sum(local_parameters(SHAPE, degrees, settings, rank).values())
    job = Workload(shape=SHAPE, degrees=degrees, settings=settings, rows=1, length=128)
    found = held(job, rank)
    assert found.local == pytest.approx(laid_out, rel=0.02)
    # One block of each stage stands for all of them.
    assert local_elements(SHAPE, degrees, settings, found) == laid_out


def test_all_ranks_together_hold_the_model():
    degrees = Degrees(pp=2, dp_shard=2)
    settings = Settings(microbatches=2, schedule=Schedule.LOOPED_BFS)
    counted = [local_parameters(SHAPE, degrees, settings, rank) for rank in range(2)]
    assert not counted[0].keys() & counted[1].keys()
    # FSDP cuts the first dimension, which two divides everywhere.
    assert 2 * sum(sum(c.values()) for c in counted) == num_parameters(SHAPE)


def test_what_sharing_saves():
    whole = Degrees(dp_replicate=8)
    shared = Degrees(dp_shard=8)

    def total(degrees: Degrees, **settings: object) -> int:
        job = work(degrees, **settings)
        return memory_of(job, held(job, 0)).total

    three = total(shared)
    two = total(shared, zero=Zero.GRADIENTS)
    one = total(shared, zero=Zero.OPTIMIZER, microbatches=2)
    assert three < two < one < total(whole)
    assert total(shared, cpu_offload=True) < three


@pytest.mark.parametrize("schedule", Schedule)
def test_microbatches_in_flight_are_bounded(schedule):
    for ranks in (2, 4):
        flying = [microbatches_in_flight(schedule, ranks, r, 16) for r in range(ranks)]
        assert all(0 < f <= 16 for f in flying)
        assert flying == sorted(flying, reverse=True)
    assert microbatches_in_flight(schedule, 1, 0, 16) == 1


@pytest.mark.parametrize("schedule", Schedule)
def test_every_stage_has_one_owner_and_every_layer_one_stage(schedule):
    stages = sorted(s for rank in range(4) for s in stages_of(schedule, rank, 4))
    assert stages == list(range(len(stages)))
    assert all(s in stages_of(schedule, rank_of_stage(schedule, s, 4), 4) for s in stages)
    layers = [layer for s in stages for layer in layers_of(s, len(stages), 19)]
    assert layers == list(range(19))
