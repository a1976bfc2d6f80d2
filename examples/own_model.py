# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Train a model of your own on any mesh, with `securetrain.parallel` and nothing else.

::

    securetrain run --standalone --nproc-per-node 4 examples/own_model.py --dp-shard 2 --tp 2
    securetrain run --standalone --nproc-per-node 4 examples/own_model.py --pp 2 --dp-shard 2

The model is a small decoder with learned positions and GELU, so it is not the built-in one. What a
mesh needs to know about it is the class `OwnPlan`; the loss and the gradient norm that it prints
are the same on every mesh, to rounding.
"""

import argparse
import os
import pydoc_data.topics
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)

from securetrain.parallel import (
    Degrees,
    Description,
    Settings,
    clip_grads,
    grad_norm,
    initialize,
    make_mesh,
    parallelize,
    self_check,
)

WIDTH, HEADS, LAYERS, VOCABULARY, LONGEST = 64, 4, 4, 256, 256
ROWS, LENGTH = 16, 64


class Attention(nn.Module):
    """Causal attention; `attend` is what context parallelism replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.attend: Callable[..., torch.Tensor] = lambda q, k, v, _: (
            F.scaled_dot_product_attention(q, k, v, is_causal=True)
        )

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        # -1 heads: a tensor-parallel rank has a part of them.
        q, k, v = (
            weight(x).view(rows, length, -1, WIDTH // HEADS).transpose(1, 2)
            for weight in (self.q, self.k, self.v)
        )
        attended = self.attend(q, k, v, positions).transpose(1, 2)
        out: torch.Tensor = self.out(attended.reshape(rows, length, -1))
        return out


class Mlp(nn.Module):
    """Widen, bend, narrow."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(F.gelu(self.up(x)))
        return out


class Layer(nn.Module):
    """Attention and network around residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.mlp = Attention(), Mlp()

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), positions)
        out: torch.Tensor = x + self.mlp(self.norm2(x))
        return out


class OwnModel(nn.Module):
    """Tokens and their positions in, logits out; parts may be taken out for a pipeline stage."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens: nn.Module | None = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleDict({str(n): Layer() for n in range(LAYERS)})
        self.norm: nn.Module | None = nn.LayerNorm(WIDTH)
        self.head: nn.Module | None = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        if self.tokens is not None:
            x = self.tokens(x)
        for layer in self.layers.values():
            x = layer(x, positions)
        if self.norm is None or self.head is None:
            return x
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


class OwnPlan:
    """What the model says about itself: see `securetrain.parallel.plan.ParallelPlan`."""

    def blocks(self, model: nn.Module) -> Mapping[str, nn.Module]:
        return {f"layers.{n}": layer for n, layer in _own(model).layers.items()}

    def split_stage(self, model: nn.Module, layers: range, *, first: bool, last: bool) -> None:
        own = _own(model)
        for name in [name for name in own.layers if int(name) not in layers]:
            del own.layers[name]
        own.tokens = own.tokens if first else None
        own.norm, own.head = (own.norm, own.head) if last else (None, None)

    def hidden_size(self, _model: nn.Module) -> int:
        return WIDTH

    def vocabulary(self, _model: nn.Module) -> int:
        return VOCABULARY

    def tensor_styles(self, model: nn.Module) -> Mapping[str, ParallelStyle]:
        own, styles = _own(model), dict[str, ParallelStyle]()
        if own.tokens is not None:
            styles["tokens"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
        for name in self.blocks(model):
            styles |= {
                f"{name}.norm1": SequenceParallel(),
                f"{name}.attention": PrepareModuleInput(
                    input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
                ),
                **{f"{name}.attention.{w}": ColwiseParallel() for w in "qkv"},
                f"{name}.attention.out": RowwiseParallel(output_layouts=Shard(1)),
                f"{name}.norm2": SequenceParallel(),
                f"{name}.mlp": PrepareModuleInput(
                    input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
                ),
                f"{name}.mlp.up": ColwiseParallel(),
                f"{name}.mlp.down": RowwiseParallel(output_layouts=Shard(1)),
            }
        if own.head is not None:
            styles["norm"] = SequenceParallel()
            styles["head"] = ColwiseParallel(
                input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
            )
        return styles

    def attentions(self, block: nn.Module) -> Iterable[nn.Module]:
        return (block.get_submodule("attention"),)

    def experts(self, _block: nn.Module) -> Iterable[nn.Module]:
        return ()


def _own(model: nn.Module) -> OwnModel:
    assert isinstance(model, OwnModel)
    return model


def draw(name: str, size: torch.Size, generator: torch.Generator) -> torch.Tensor:
    """A parameter's first value, the same on every mesh."""
    if "norm" in name:
        return torch.ones(size) if name.endswith("weight") else torch.zeros(size)
    return torch.randn(size, generator=generator) * 0.08


def rows_of(step: int, rank: int, ranks: int) -> torch.Tensor:
    """This data-parallel rank's share of a step's rows, (rows, LENGTH + 1)."""
    text = torch.frombuffer(bytearray(str(pydoc_data.topics.topics).encode()), dtype=torch.uint8)
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - LENGTH - 1, (ROWS,), generator=generator)
    mine = starts[rank * ROWS // ranks : (rank + 1) * ROWS // ranks]
    return torch.stack([text[start : start + LENGTH + 1] for start in mine.tolist()]).long()


def main() -> None:
    """Train for some steps."""
    parser = argparse.ArgumentParser()
    for axis in ("pp", "dp-replicate", "dp-shard", "cp", "tp"):
        parser.add_argument(f"--{axis}", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20)
    options = vars(parser.parse_args())
    steps = options.pop("steps")

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(timeout=timedelta(minutes=2))
    mesh = make_mesh(Degrees(**options), device.type)
    description = Description(
        build=OwnModel, materialize=lambda part: initialize(part, 0, draw), plan=OwnPlan()
    )
    settings = Settings(microbatches=4 if mesh.degrees.pp > 1 else 1)
    # The model is small as it is; of a large one give it a copy with few and narrow layers.
    self_check(description, mesh, settings, device)
    model = parallelize(description, mesh, settings, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)
    stages = mesh.pp.get_group() if mesh.degrees.pp > 1 else None
    for step in range(1, steps + 1):
        rows = rows_of(step, mesh.dp_rank, mesh.degrees.dp)
        part = model.forward_backward(rows[:, :-1], rows[:, 1:], ROWS * LENGTH)
        norm = grad_norm(model.parameters(), stages)
        clip_grads(model.parameters(), norm, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss = part.double()
        dist.all_reduce(loss)
        if dist.get_rank() == 0 and step % 5 == 0:
            nats = loss.item() / mesh.degrees.tp
            print(f"step {step}: loss {nats:.4f}, gradient norm {norm.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
