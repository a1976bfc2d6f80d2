# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The `ParallelPlan` of the Llama family."""

from collections.abc import Iterable, Mapping

from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)

from securetrain.train.models.llama import Llama
from securetrain.train.models.moe import Experts


class LlamaPlan:
    """The `ParallelPlan` of the built-in models."""

    def blocks(self, model: nn.Module) -> Mapping[str, nn.Module]:
        """The layers."""
        return {f"layers.{name}": layer for name, layer in _llama(model).layers.items()}

    def split_stage(self, model: nn.Module, layers: range, *, first: bool, last: bool) -> None:
        """Take out what another stage has."""
        llama = _llama(model)
        for name in [name for name in llama.layers if int(name) not in layers]:
            del llama.layers[name]
        if not first:
            llama.tok_embeddings = None
        if not last:
            llama.norm = llama.output = None

    def hidden_size(self, model: nn.Module) -> int:
        """The model's width."""
        return _llama(model).shape.dim

    def vocabulary(self, model: nn.Module) -> int:
        """The number of tokens in the vocabulary."""
        return _llama(model).shape.vocab

    def tensor_styles(self, model: nn.Module) -> Mapping[str, ParallelStyle]:
        """Heads and widths are cut inside a block, positions between blocks (Megatron-LM,
        arXiv:1909.08053; sequence parallelism, arXiv:2205.05198).
        """
        llama, styles = _llama(model), dict[str, ParallelStyle]()
        if llama.tok_embeddings is not None:
            styles["tok_embeddings"] = RowwiseParallel(
                input_layouts=Replicate(), output_layouts=Shard(1)
            )
        for name in self.blocks(model):
            block = _block_styles(sparse=llama.shape.experts > 0)
            styles |= {f"{name}.{inner}": style for inner, style in block.items()}
        if llama.output is not None:
            styles["norm"] = SequenceParallel()
            styles["output"] = ColwiseParallel(
                input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
            )
        return styles

    def attentions(self, block: nn.Module) -> Iterable[nn.Module]:
        """The one of a layer."""
        return (block.get_submodule("attention"),)

    def experts(self, block: nn.Module) -> Iterable[nn.Module]:
        """Those of a mixture."""
        return (module for module in block.modules() if isinstance(module, Experts))


def _block_styles(*, sparse: bool) -> dict[str, ParallelStyle]:
    return {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(
            input_layouts=(Shard(1), None, None),
            desired_input_layouts=(Replicate(), None, None),
        ),
        "attention.wq": ColwiseParallel(),
        "attention.wk": ColwiseParallel(),
        "attention.wv": ColwiseParallel(),
        "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
        "ffn_norm": SequenceParallel(),
        **(_mixture_styles() if sparse else _network_styles()),
    }


def _mixture_styles() -> dict[str, ParallelStyle]:
    """Every rank routes its own positions; how experts lie is decided by `parallel.experts`."""
    return {
        "moe": PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Shard(1),), use_local_output=True
        ),
        # It sees tokens, not rows of them.
        "moe.router": SequenceParallel(sequence_dim=0, use_local_output=True),
    }


def _network_styles() -> dict[str, ParallelStyle]:
    return {
        "feed_forward": PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
        ),
        "feed_forward.w1": ColwiseParallel(),
        "feed_forward.w3": ColwiseParallel(),
        "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
    }


def _llama(model: nn.Module) -> Llama:
    assert isinstance(model, Llama)
    return model
