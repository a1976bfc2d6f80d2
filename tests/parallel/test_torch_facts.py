# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What torch 2.13 does that these modules are built around, beside what ours does instead.

When one of these fails with a newer torch, a rule in `securetrain.parallel` may have lost its
reason.
"""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Partial
from torch.nn.parallel import DistributedDataParallel

from securetrain.parallel.gradients import grad_norm
from securetrain.testing.processes import run_ranks
from tests.parallel.curves import Case, make_trainer

pytestmark = pytest.mark.dist


def raised(function) -> str:
    try:
        function()
    except Exception as error:  # noqa: BLE001 - the test reads it
        return f"{type(error).__name__}: {error}"
    return ""


def divide() -> tuple[str, bool]:
    """A divide factor on Gloo: torch's way and ours."""
    model = nn.Linear(4, 4)
    fully_shard(model)
    assert isinstance(model, FSDPModule)
    model.set_gradient_divide_factor(3.0)
    error = raised(lambda: model(torch.ones(1, 4)).sum().backward())
    trainer = make_trainer(Case("", 2, "{dp_shard: 2}"))
    trainer._forward_backward(1)
    return error, all(p.grad is not None for p in trainer.model.parameters())


def test_gloo_has_no_premultiplied_sum():
    for error, ours in run_ranks(divide, 2):
        assert "PREMUL_SUM" in error
        assert ours


def pending() -> tuple[float, float, float]:
    """Gradients of norms under sequence parallelism: what a rank holds is part of a sum."""
    trainer = make_trainer(Case("", 2, "{tp: 2}"))
    trainer._forward_backward(1)
    grads = [
        p.grad
        for _, p in trainer.model.named_parameters()
        if isinstance(p.grad, DTensor) and any(isinstance(x, Partial) for x in p.grad.placements)
    ]
    assert grads, "torch finishes them now"
    local = torch.stack([g.to_local().norm() for g in grads]).norm()
    whole = torch.stack([g.full_tensor().norm() for g in grads]).norm()
    names = [n for n, _ in trainer.model.named_parameters() if "norm" in n]
    ours = grad_norm(p for n, p in trainer.model.named_parameters() if n in names)
    return float(local), float(whole), float(ours)


def test_a_gradient_can_be_a_pending_sum():
    (local, whole, ours), (other, _, _) = run_ranks(pending, 2)
    assert local != pytest.approx(whole, rel=1e-3)
    assert other != pytest.approx(whole, rel=1e-3)
    assert ours == pytest.approx(whole, rel=1e-5)


def gloo_limits() -> dict[str, str]:
    """What Gloo refuses, and one mesh axis that must wait for NCCL."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("cp",))
    eighth = torch.ones(4).to(torch.float8_e4m3fn)
    replicated = DistributedDataParallel(nn.Linear(4, 4))
    q, k, v = (torch.randn(1, 2, 8, 4, requires_grad=True) for _ in range(3))

    def attend() -> None:
        from torch.distributed.tensor.experimental import context_parallel

        with context_parallel(mesh, buffers=[q, k, v], buffer_seq_dims=[2] * 3):
            nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    return {
        "float8": raised(lambda: dist.all_reduce(eighth)),
        "bf16 hook": raised(
            lambda: replicated.register_comm_hook(None, default_hooks.bf16_compress_hook)
        ),
        "context_parallel": raised(attend),
    }


def test_gloo_reduces_no_float8_takes_no_bfloat16_hook_and_attends_in_no_context():
    for found in run_ranks(gloo_limits, 2):
        assert "Float8" in found["float8"] or "scalar type" in found["float8"].lower()
        assert "BF16" in found["bf16 hook"]
        assert found["context_parallel"]
