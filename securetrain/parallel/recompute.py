# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Activation checkpointing: keep less of a forward pass, and compute it again when it is needed.

Rules (Chen et al. 2016, arXiv:1604.06174; selective: Korthikanti et al. 2022, arXiv:2205.05198):

1. the unit is a block: what enters it is kept, and `full` keeps nothing else;
2. `selective` keeps what is dear: results of matrix products and of attention, and what arrived
   from other ranks. The rest (norms, rotary positions, activations) is cheap to compute again.
   `alternate` keeps every second matrix product only, as torchtitan does;
3. a block's `forward` is replaced and nothing is wrapped, so that parameters keep their names on
   every setting and checkpoints fit all of them;
4. in a block with experts, `selective` is about attention, and the experts keep what enters them
   only. They may be a sharded group of their own, whose gathering does not happen the same way
   twice, as torch's selective checkpointing demands of everything inside it;
5. the second pass draws the random numbers of the first (dropout): another mask would give a wrong
   gradient with the right loss. A generator's state is a number in host memory, on a GPU too.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial, wraps
from typing import Any, Final, TypeAlias

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from securetrain.parallel.plan import ParallelPlan, Recompute

Contexts: TypeAlias = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]

_aten: Final = torch.ops.aten
SAVED_OPS: Final = frozenset(
    {
        _aten.mm.default,
        _aten.addmm.default,
        _aten.bmm.default,
        _aten._grouped_mm.default,  # noqa: SLF001 - the operator's own name, here and below
        _aten._scaled_mm.default,  # noqa: SLF001
        _aten._scaled_dot_product_flash_attention_for_cpu.default,  # noqa: SLF001
        _aten._scaled_dot_product_flash_attention.default,  # noqa: SLF001
        _aten._scaled_dot_product_efficient_attention.default,  # noqa: SLF001
        _aten._scaled_dot_product_cudnn_attention.default,  # noqa: SLF001
        torch.ops._c10d_functional.reduce_scatter_tensor.default,  # noqa: SLF001
        torch.ops._c10d_functional.all_to_all_single.default,  # noqa: SLF001
    }
)
"""The operators whose results `selective` keeps."""


def apply_recompute(model: nn.Module, plan: ParallelPlan, recompute: Recompute) -> None:
    """Make every block of `model` forget what the backward pass can compute again, in place."""
    if recompute is Recompute.NONE:
        return
    contexts = _contexts if recompute is Recompute.SELECTIVE else _alternating
    keeping_some = partial(checkpoint, context_fn=contexts)
    for block in plan.blocks(model).values():
        match recompute:
            case Recompute.FULL:
                _replace(block, checkpoint)
            case Recompute.SELECTIVE | Recompute.ALTERNATE if experts := list(plan.experts(block)):
                for attention in plan.attentions(block):
                    _replace(attention, keeping_some)
                for some in experts:
                    _replace(some, checkpoint)
            case Recompute.SELECTIVE | Recompute.ALTERNATE:
                _replace(block, keeping_some)
            case _:
                raise ValueError(f"unknown recompute {recompute!r}")


def _replace(module: nn.Module, again: Callable[..., Any]) -> None:
    module.forward = _recomputing(module.forward, again)


def _recomputing(forward: Callable[..., Any], again: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def recomputed(*inputs: Any, **named: Any) -> Any:
        return again(forward, *inputs, use_reentrant=False, preserve_rng_state=True, **named)

    return recomputed


def _contexts() -> Contexts:
    contexts: Contexts = create_selective_checkpoint_contexts(_policy)
    return contexts


def _alternating() -> Contexts:
    """The same without every second product: forward and recomputing count for themselves."""
    seen = {False: 0, True: 0}

    def policy(context: Any, operator: Any, *args: object, **kwargs: object) -> CheckpointPolicy:
        if operator is _aten.mm.default:
            seen[context.is_recompute] += 1
            if seen[context.is_recompute] % 2 == 0:
                return CheckpointPolicy.PREFER_RECOMPUTE
        return _policy(context, operator, *args, **kwargs)

    contexts: Contexts = create_selective_checkpoint_contexts(policy)
    return contexts


def _policy(_context: object, operator: Any, *_args: object, **_kwargs: object) -> CheckpointPolicy:
    return (
        CheckpointPolicy.MUST_SAVE if operator in SAVED_OPS else CheckpointPolicy.PREFER_RECOMPUTE
    )
