# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Experts over ranks: what a peer announces is believed within bounds only, and the parity gate
sees the two mistakes that raise no error.
"""

import resource

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as funcol
from torch.distributed.device_mesh import DeviceMesh

from securetrain.core.errors import RuntimeRefusal
from securetrain.parallel.engine import ParallelModel
from securetrain.parallel.experts import ExpertExchange, check_row_counts
from securetrain.parallel.mesh import EFSDP, Mesh
from securetrain.testing.processes import run_ranks
from securetrain.train import trainer
from securetrain.train.models import moe
from securetrain.train.models.shape import ModelShape
from tests.parallel.curves import Case, Curve, curve, passes
from tests.parallel.matrix import SPARSE

HUGE = 1 << 40


def test_what_peers_announce_is_checked_before_memory_is_taken():
    assert check_row_counts([[1, 2], [0, 4], [0, 0]], limit=4) == [3, 4, 0]
    for counts, named in (
        ([5, 0], "5 (of them 5 for one expert)"),
        ([3, 2], "5 (of them 3 for one expert)"),
        ([-1, 2], "1 (of them 2 for one expert)"),
        ([HUGE, 0], str(HUGE)),
        ([1 << 62, 1 << 62], "one expert"),
    ):
        with pytest.raises(RuntimeRefusal) as refused:
            check_row_counts([[0, 0], counts], limit=4)
        assert refused.value.code == "ST-RUNT-009"
        assert "rank 1 " in refused.value.what
        assert named in refused.value.what


def double(rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    assert len(rows) == counts.sum()
    return rows * 2


def there_and_back() -> tuple[bool, bool, list[int]]:
    """Every rank sends other numbers of rows to each of four experts, two on a rank."""
    group = dist.group.WORLD
    assert group is not None
    rank = dist.get_rank()
    counts = torch.tensor([[3, 0, 1, 2], [0, 0, 6, 0]][rank])
    rows = torch.arange(6.0)[:, None].repeat(1, 2).add(10 * rank).requires_grad_()
    seen: list[int] = []

    def compute(mine: torch.Tensor, here: torch.Tensor) -> torch.Tensor:
        seen.extend([*mine[:, 0].int().tolist(), -1, *here.tolist()])
        return double(mine, here)

    out = ExpertExchange(group)(compute, rows, counts)
    out.sum().backward()
    assert rows.grad is not None
    return torch.equal(out, rows * 2), bool((rows.grad == 2).all()), seen


@pytest.mark.dist
def test_rows_go_to_their_experts_and_come_back():
    (came, grads, first), (also, too, second) = run_ranks(there_and_back, 2)
    assert came
    assert grads
    assert also
    assert too
    assert first == [0, 1, 2, -1, 3, 0]
    # By expert, and by rank within an expert.
    assert second == [3, 10, 11, 12, 13, 14, 15, 4, 5, -1, 7, 2]


def hostile_and_victim(*, ours: bool) -> str:
    """Rank 1 announces rows for more memory than there is; what happens to rank 0."""
    group = dist.group.WORLD
    assert group is not None
    counts, rows = torch.tensor([2, 2, 2, 2]), torch.randn(8, 4)
    arriving = torch.empty_like(counts)
    if dist.get_rank() == 1:
        dist.all_to_all_single(arriving, torch.tensor([HUGE, 0, 4, 0]), group=group)
        return "hostile"
    # Whatever this machine allows: the attack must not hurt who runs the test.
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (64 << 30, hard))
    try:
        if ours:
            ExpertExchange(group)(double, rows, counts)
        else:
            dist.all_to_all_single(arriving, counts, group=group)
            received = arriving.view(2, 2).sum(1).tolist()
            funcol.all_to_all_single_autograd(rows, received, [4, 4], group)
    except RuntimeRefusal as refused:
        return refused.code
    except RuntimeError as error:
        return str(error)
    return "trusted"


@pytest.mark.dist
def test_attack_a_peer_announces_more_rows_than_there_is_memory():
    # torch's own exchange allocates what the peer says.
    stock = run_ranks(stock_victim, 2)[0]
    assert "allocate" in stock
    assert str((HUGE + 4) * 4 * 4) in stock
    assert run_ranks(our_victim, 2)[0] == "ST-RUNT-009"


def stock_victim() -> str:
    return hostile_and_victim(ours=False)


def our_victim() -> str:
    return hostile_and_victim(ours=True)


def alone() -> Curve:
    return curve(Case("", 1, "{}", SPARSE))


def without_replicas() -> Curve:
    """Experts of HSDP whose mesh lacks the replicas."""

    def experts(mesh: Mesh) -> DeviceMesh:
        assert mesh.sparse is not None
        return mesh.sparse[EFSDP]

    Mesh.experts = property(experts)  # type: ignore[assignment, method-assign]
    return curve(Case("", 4, "{dp_replicate: 2, dp_shard: 2, ep: 2}", SPARSE))


def without_counting_together() -> Curve:
    """A bias that knows this rank's tokens only."""
    own: list[torch.Tensor] = []

    def pop(model: ParallelModel, shape: ModelShape) -> torch.Tensor | None:
        own[:] = [x for x in [moe.pop_expert_loads(model, shape)] if x is not None]
        return own[0].clone()

    vars(trainer)["pop_expert_loads"] = pop
    vars(trainer)["balance_experts"] = lambda model, shape, _: moe.balance_experts(
        model, shape, own[0]
    )
    return curve(Case("", 2, "{dp_shard: 2, ep: 2}", SPARSE))


@pytest.mark.dist
@pytest.mark.slow
def test_the_gate_sees_forgotten_replicas_and_loads_that_were_not_added_up():
    reference = run_ranks(alone, 1)[0]
    assert passes(reference, reference)
    assert not passes(run_ranks(without_replicas, 4)[0], reference)
    assert not passes(run_ranks(without_counting_together, 2)[0], reference)
