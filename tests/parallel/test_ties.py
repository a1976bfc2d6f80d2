# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Parameters with several names stay one, or are refused."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor.parallel import ParallelStyle
from torch.testing._internal.distributed.fake_pg import FakeStore

from securetrain.core.errors import RuntimeRefusal
from securetrain.parallel import (
    Degrees,
    Description,
    Schedule,
    Settings,
    make_mesh,
    parallelize,
)
from securetrain.parallel.ties import keep_ties, tied_names
from tests.parallel.foreign import GEMMA2, NANO, Foreign, ForeignPlan, describe

CPU = torch.device("cpu")
NAMES = ("embed.weight", "head.weight")


@pytest.fixture
def world():
    """Starts a made-up group of some ranks, of which this process is rank 0."""

    def start(ranks):
        dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())

    yield start
    dist.destroy_process_group()


def test_memory_unties_and_the_names_tie_again():
    with torch.device("meta"):
        model = Foreign(NANO)
    ties = tied_names(model)
    assert ties == (NAMES,)
    model.to_empty(device=CPU)
    assert tied_names(model) == (), "torch keeps ties by now: the rule is not needed any more"
    keep_ties(model, ties)
    assert tied_names(model) == ties
    assert model.get_parameter(NAMES[0]) is model.get_parameter(NAMES[1])


@pytest.mark.parametrize(
    "degrees",
    [Degrees(dp_replicate=2), Degrees(dp_shard=2), Degrees(tp=2), Degrees(dp_shard=2, tp=2)],
    ids=str,
)
def test_what_one_process_ties_is_tied_on_a_mesh(world, degrees):
    world(degrees.world)
    model = parallelize(describe(GEMMA2), make_mesh(degrees, "cpu"), Settings(), CPU)
    names = [name for name, _ in model.named_parameters()]
    assert names.count("embed.weight") == 1
    assert "head.weight" not in names


class Uneven(ForeignPlan):
    """Cuts the head and leaves the embedding whole."""

    def tensor_styles(self, model: nn.Module) -> Mapping[str, ParallelStyle]:
        return {n: s for n, s in super().tensor_styles(model).items() if n != "embed"}


def refused(description, degrees, settings=None):
    mesh = make_mesh(degrees, "cpu")
    with pytest.raises(RuntimeRefusal) as caught:
        parallelize(description, mesh, settings or Settings(), CPU)
    assert caught.value.code == "ST-RUNT-010"
    return caught.value.what


def test_names_that_are_cut_in_different_ways_are_refused(world):
    world(2)
    text = refused(describe(GEMMA2, Uneven(GEMMA2)), Degrees(tp=2))
    assert text.startswith("embed.weight and head.weight are one parameter, and the plan cuts")


@pytest.mark.parametrize("schedule", [Schedule.ONE_F_ONE_B, Schedule.ZBV_ZERO_BUBBLE])
def test_a_parameter_on_two_stages_is_refused_on_every_rank(world, schedule):
    """By the V schedule, too, where both are on one rank and in two modules."""
    world(2)
    variant = replace(GEMMA2, layers=4)
    text = refused(describe(variant), Degrees(pp=2), Settings(schedule=schedule, microbatches=4))
    assert text.startswith("embed.weight of pipeline stage 0 and head.weight of stage")


def test_a_parameter_of_two_units_of_fsdp_is_refused(world):
    def build() -> nn.Module:
        model = Foreign(NANO)
        one, two = (model.get_submodule(f"layers.{n}.mlp.up") for n in range(2))
        two.weight = one.weight
        return model

    world(2)
    shared = Description(build=build, materialize=lambda _: None, plan=ForeignPlan(NANO))
    text = refused(shared, Degrees(dp_shard=2))
    assert text.startswith("layers.0.mlp.up.weight and layers.1.mlp.up.weight are one parameter")
