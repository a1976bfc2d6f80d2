# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Views of one mesh share what they have in common."""

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from securetrain.parallel.degrees import Degrees
from securetrain.parallel.mesh import Mesh, make_mesh

ALL = Degrees(pp=2, dp_replicate=2, dp_shard=2, cp=2, tp=2, ep=2)
VIEWS = ("dense", "data", "sparse", "grads", "expert_grads")


def views(mesh: Mesh) -> list[dist.ProcessGroup]:
    found = [getattr(mesh, name) for name in VIEWS]
    return [group for view in found if view is not None for group in view.get_all_groups()]


@pytest.fixture
def world(request: pytest.FixtureRequest):
    ranks, rank = request.param
    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    yield ranks
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("world", "degrees"),
    [
        ((32, 0), ALL),
        ((32, 13), ALL),
        ((4, 3), Degrees(dp_shard=4)),
        ((4, 1), Degrees(dp_shard=2, tp=2, ep=2)),
        ((8, 5), Degrees(pp=2, dp_replicate=2, tp=2)),
    ],
    indirect=["world"],
)
def test_ranks_that_are_together_twice_have_one_group(world, degrees):
    mesh = make_mesh(degrees, "cpu")
    by_ranks: dict[tuple[int, ...], dist.ProcessGroup] = {}
    for group in views(mesh):
        ranks = tuple(dist.get_process_group_ranks(group))
        assert by_ranks.setdefault(ranks, group) is group, ranks
        assert dist.get_rank() in ranks
    assert set(mesh.groups) == set(by_ranks.values())
    assert by_ranks.get(tuple(range(world)), dist.group.WORLD) is dist.group.WORLD
    for name in VIEWS:
        view = getattr(mesh, name)
        for axis in () if view is None else view.mesh_dim_names:
            assert dist.get_process_group_ranks(view.get_group(axis)) == view[axis].mesh.tolist()


@pytest.mark.parametrize("world", [(4, 0)], indirect=True)
def test_experts_over_the_ranks_of_the_rest_are_compared_with_them(world):
    mesh = make_mesh(Degrees(dp_shard=2, tp=2, ep=2), "cpu")
    assert mesh.comparable.size() == 2
    assert mesh.comparable_experts is None


@pytest.mark.parametrize("world", [(16384, 77)], indirect=True)
def test_a_rank_of_many_makes_its_own_groups_only(world):
    mesh = make_mesh(Degrees(pp=16, dp_replicate=4, dp_shard=32, tp=8), "cpu")
    assert len(mesh.groups) <= 8
    assert mesh.pp_rank == 0
