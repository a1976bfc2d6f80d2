# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A mixture of experts in place of a block's feed-forward network.

Sources: Shazeer et al. 2017, arXiv:1701.06538; Jiang et al. 2024 (Mixtral), arXiv:2401.04088; load
balancing without an auxiliary loss, Wang et al. 2024, arXiv:2408.15664. Rules:

1. a router gives every token a score for each expert (softmax over all of them, in float32); the
   token goes to the `experts_per_token` highest, whose outputs are added by their scores, divided
   by the chosen scores' sum. No token is dropped, and no expert is padded;
2. which experts are chosen, and nothing else, is decided by score plus a bias. After each step the
   bias of an expert that had fewer tokens than the mean goes up by `expert_balance`, and down where
   it had more (`balance_experts`). The tokens of all ranks are counted, so each has the same bias;
3. an expert's matrices are one parameter each for all experts: (experts, out, in). A rank with
   some of the experts replaces `dispatch`, which takes rows to their experts and back.

Names in a layer: ``moe.router.weight``, ``moe.experts.w1``, ``w2``, ``w3`` (as in Mixtral: gate,
down, up), ``moe.expert_bias``.
"""

import torch
import torch.nn.functional as F
from torch import nn

from securetrain.parallel import Dispatch, ParallelModel, dispatch_local, local_weight, unwrap
from securetrain.train.models.shape import ModelShape


class Experts(nn.Module):
    """SwiGLU networks side by side."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        count, width, inside = shape.experts, shape.dim, shape.ffn
        self.w1 = nn.Parameter(torch.empty(count, inside, width))
        self.w2 = nn.Parameter(torch.empty(count, width, inside))
        self.w3 = nn.Parameter(torch.empty(count, inside, width))
        self.dispatch: Dispatch = dispatch_local

    def forward(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Compute each row by its own expert.

        Args:
            rows: (T, D), sorted by expert.
            counts: (experts,) int64: how many rows each has.
        """
        return self.dispatch(self._compute, rows, counts)

    def _compute(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """The same for the experts whose weights are here."""
        w1, w2, w3 = (
            local_weight(weight).transpose(-2, -1) for weight in (self.w1, self.w2, self.w3)
        )
        ends = counts.cumsum(0).int()
        x = rows.to(w1.dtype)
        gate = F.silu(F.grouped_mm(x, w1, offs=ends)) * F.grouped_mm(x, w3, offs=ends)
        return F.grouped_mm(gate, w2, offs=ends).to(rows.dtype)


class MoE(nn.Module):
    """The router and its experts."""

    expert_bias: torch.Tensor

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.per_token = shape.experts_per_token
        self.router = nn.Linear(shape.dim, shape.experts, bias=False)
        self.experts = Experts(shape)
        self.register_buffer("expert_bias", torch.zeros(shape.experts))
        self._load: torch.Tensor | None = None

    # How many rows an expert gets is data: nothing that a compiler could keep.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Each token's experts' outputs, added by score; `x` and the result are (B, S, D)."""
        tokens = x.flatten(0, 1)
        scores = self.router(tokens).float().softmax(-1)
        choice = (scores.detach() + self.expert_bias).topk(self.per_token).indices
        weights = scores.gather(1, choice)
        weights = weights / weights.sum(-1, keepdim=True)
        counts = _count(choice, len(self.expert_bias))
        self._remember(counts)
        order = choice.flatten().argsort(stable=True)
        rows = tokens[:, None].expand(-1, self.per_token, -1).flatten(0, 1)[order]
        found = self.experts(rows, counts)[order.argsort()]
        each = found.unflatten(0, (-1, self.per_token))
        out: torch.Tensor = (each * weights[..., None].to(each.dtype)).sum(1)
        return out.view_as(x)

    def pop_expert_load(self) -> torch.Tensor | None:
        """Rows that this rank gave to each expert since the last call: (experts,) int64.

        Recomputed activations count again, the same number of times for every expert.
        """
        load, self._load = self._load, None
        return load

    def _remember(self, counts: torch.Tensor) -> None:
        if self.training:
            self._load = counts if self._load is None else self._load + counts


def _count(choice: torch.Tensor, experts: int) -> torch.Tensor:
    """Count the choices of each expert: (experts,) int64. `bincount` would have the host look."""
    each = choice.flatten()
    counts = torch.zeros(experts, dtype=torch.int64, device=choice.device)
    return counts.scatter_add_(0, each, torch.ones_like(each))


@torch.no_grad()
def pop_expert_loads(model: ParallelModel, shape: ModelShape) -> torch.Tensor | None:
    """Rows that this rank gave to each expert in this step: (layers, experts) float64, zero for the
    layers of other stages; None for a dense model. To be added up over all ranks.
    """
    if not shape.experts:
        return None
    loads = torch.zeros(shape.layers, shape.experts, dtype=torch.float64, device=model.device)
    for layer, moe in _mixtures(model):
        if (counts := moe.pop_expert_load()) is not None:
            loads[layer] = counts.double()
    return loads


def busiest_expert(loads: torch.Tensor) -> torch.Tensor:
    """The rows of the busiest expert over the mean, in the layer where that is largest: a scalar.

    Ranks that saw the same tokens count them twice, for every expert alike.
    """
    return (loads.amax(1) / loads.mean(1)).max()


@torch.no_grad()
def balance_experts(model: ParallelModel, shape: ModelShape, loads: torch.Tensor) -> None:
    """After a step that was taken: even out the load of experts.

    Args:
        model: Its parts have seen this step's tokens.
        shape: Its sizes.
        loads: What `pop_expert_loads` gave, added up over all ranks: equal on each, so that biases
            stay equal.
    """
    means = loads.mean(1, keepdim=True)
    for layer, moe in _mixtures(model):
        moe.expert_bias += shape.expert_balance * (means - loads)[layer].sign().float()


def _mixtures(model: ParallelModel) -> list[tuple[int, MoE]]:
    """The mixtures of this rank, by the number of their layer."""
    return [
        (int(name.split(".")[1]), module)
        for part in model.parts
        for name, module in unwrap(part).named_modules()
        if isinstance(module, MoE)
    ]
