# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Attention over ranks equals attention of one process, forward and backward, and by both ways of
computing a part.
"""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from securetrain.parallel import blockwise
from securetrain.parallel.blockwise import PartialAttention
from securetrain.parallel.context import head_tail, make_attention
from securetrain.parallel.plan import ContextKind
from securetrain.parallel.ring import ring_backward, ring_forward
from securetrain.testing.processes import run_ranks

B, H, G, S, K = 2, 4, 2, 32, 8


def made(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    sizes = ((B, H, S, K), (B, G, S, K), (B, G, S, K), (B, H, S, K))
    return [torch.randn(size, generator=generator).to(dtype) for size in sizes]


def alone(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Result and gradients of queries, keys and values."""
    *qkv, grad = made(dtype)
    q, k, v = (x.requires_grad_() for x in qkv)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    out.backward(grad)
    return [out.detach(), *(x.grad for x in (q, k, v) if x.grad is not None)]


def test_head_and_tail_deal_out_every_position_and_equal_work():
    for ranks in (1, 2, 4):
        dealt = [head_tail(16, ranks, rank) for rank in range(ranks)]
        assert sorted(torch.cat(dealt).tolist()) == list(range(16))
        assert len({int(positions.sum()) for positions in dealt}) == 1
        assert all((p.diff() > 0).all() for p in dealt), "in order within a rank"
    assert head_tail(8, 2, 0).tolist() == [0, 1, 6, 7]


def over_ranks(dtype: torch.dtype) -> dict[str, list[float]]:
    """The largest differences from one process, by kind: of the result and of each gradient."""
    group = dist.group.WORLD
    assert group is not None
    positions = head_tail(S, dist.get_world_size(), dist.get_rank())
    want = [x[:, :, positions] for x in alone(dtype)]
    found = {}
    for kind in ContextKind:
        if kind is ContextKind.ULYSSES and dist.get_world_size() > G:
            continue  # no heads to spare: the job is refused
        *qkv, grad = (x[:, :, positions].contiguous() for x in made(dtype))
        q, k, v = (x.requires_grad_() for x in qkv)
        out = make_attention(kind, group)(q, k, v, positions)
        out.backward(grad)
        got = [out.detach(), q.grad, k.grad, v.grad]
        assert all(x is not None and x.dtype == dtype for x in got)
        found[kind.value] = [
            float((a.float() - b.float()).abs().max())
            for a, b in zip(got, want, strict=True)
            if a is not None
        ]
    return found


@pytest.mark.dist
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 5e-6), (torch.bfloat16, 0.06)])
def test_every_kind_equals_one_process(ranks, dtype, tolerance):
    for differences in run_ranks(over_ranks, ranks, dtype):
        assert len(differences) == (3 if ranks <= G else 2)
        for kind, values in differences.items():
            assert max(values) < tolerance, (kind, values)


@pytest.mark.parametrize("causal", [True, False])
def test_matrix_products_give_what_the_kernel_gives(causal, monkeypatch):
    monkeypatch.setattr(blockwise, "ROWS", 5)  # does not divide the length
    q, k, v, grad = made()
    out, lse = blockwise.attend(q, k, v, causal=causal)
    wide_k, wide_v = (x.repeat_interleave(H // G, dim=1) for x in (k, v))
    same = blockwise._attend_by_products(q, wide_k, wide_v, causal=causal)
    torch.testing.assert_close(same, (out, lse))
    want = blockwise.gradients(grad, q, k, v, (out, lse), causal=causal)
    got = blockwise._gradients_by_products(grad, q, wide_k, wide_v, (out, lse), causal=causal)
    narrow = (got[0], *(blockwise._for_each_key(x, G) for x in got[1:]))
    torch.testing.assert_close(narrow, want)


def test_parts_merge_to_the_whole():
    q, k, v, _ = made()
    want, lse = blockwise.attend(q, k, v, causal=False)
    so_far = PartialAttention.empty(q)
    for columns in (slice(0, 7), slice(7, 30), slice(30, S)):
        part = blockwise.attend(q, k[:, :, columns], v[:, :, columns], causal=False)
        so_far.merge(slice(None), *part)
    torch.testing.assert_close(so_far.out, want)
    torch.testing.assert_close(so_far.lse, lse)


def in_one_graph() -> dict[str, tuple[int, bool]]:
    """For each kind, how many graphs a compiler needs, and whether they compute the same."""
    from torch._dynamo.utils import counters

    group = dist.group.WORLD
    assert group is not None
    positions = head_tail(S, dist.get_world_size(), dist.get_rank())
    found = {}
    for kind in ContextKind:
        attend = make_attention(kind, group)
        got = []
        torch._dynamo.reset()
        counters.clear()
        whole = torch.compile(attend, backend="aot_eager", fullgraph=True)
        for compute in (attend, whole):
            *qkv, grad = (x[:, :, positions].contiguous() for x in made())
            q, k, v = (x.requires_grad_() for x in qkv)
            out = compute(q, k, v, positions)
            out.backward(grad)
            got.append([out.detach(), q.grad, k.grad, v.grad])
        same = all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*got, strict=True))
        found[kind.value] = counters["stats"]["unique_graphs"], same
    return found


@pytest.mark.dist
@pytest.mark.many
def test_a_compiled_block_with_context_parallelism_is_one_graph():
    for found in run_ranks(in_one_graph, 2, timeout=120):
        assert found == {kind.value: (1, True) for kind in ContextKind}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("causal", [True, False])
def test_the_cuda_kernel_gives_what_matrix_products_give(causal):
    q, k, v, grad = (x.cuda() for x in made(torch.bfloat16))
    wide_k, wide_v = (x.repeat_interleave(H // G, dim=1) for x in (k, v))
    out, lse = blockwise.attend(q, k, v, causal=causal)
    want_out, want_lse = blockwise._attend_by_products(q, wide_k, wide_v, causal=causal)
    torch.testing.assert_close(out, want_out, rtol=0.02, atol=0.02)
    torch.testing.assert_close(lse, want_lse, rtol=0.02, atol=0.02)
    got = blockwise.gradients(grad, q, k, v, (out, lse), causal=causal)
    want = blockwise._gradients_by_products(grad, q, wide_k, wide_v, (out, lse), causal=causal)
    narrow = (want[0], *(blockwise._for_each_key(x, G) for x in want[1:]))
    for a, b in zip(got, narrow, strict=True):
        torch.testing.assert_close(a.float(), b.float(), rtol=0.05, atol=0.05)


class Largest(torch.utils._python_dispatch.TorchDispatchMode):
    """Remembers the size of the largest tensor that was made."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else [out]:
            if isinstance(x, torch.Tensor):
                self.numel = max(self.numel, x.numel())
        return out


LONG = 512


def largest_of_a_ring() -> int:
    group = dist.group.WORLD
    assert group is not None
    q = torch.randn(1, 1, LONG // dist.get_world_size(), K, requires_grad=True)
    with Largest() as seen, torch.no_grad():
        out, lse = ring_forward(q, q, q, group)
        ring_backward(torch.ones_like(out), (q, q, q), (out, lse), group)
    return int(seen.numel)


@pytest.mark.dist
def test_a_ring_never_holds_a_matrix_of_scores():
    for numel in run_ranks(largest_of_a_ring, 4):
        # Keys and values of one rank, in float32.
        assert numel == 2 * LONG // 4 * K < (LONG // 4) ** 2
