# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The plan of a model that says nothing about itself: copies and shards, and nothing else.

Its blocks are the longest list of modules of one class in it (an `nn.ModuleList`, `ModuleDict` or
`Sequential`): the units of sharding, recomputing and compiling. Without such a list the model is
one unit.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NoReturn

from torch import nn

from securetrain.core.errors import UsageError

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle


class PlainPlan:
    """A `ParallelPlan` for `dp_replicate` and `dp_shard`."""

    def blocks(self, model: nn.Module) -> Mapping[str, nn.Module]:
        """The longest list of modules of one class."""
        longest: dict[str, nn.Module] = {}
        for name, module in model.named_modules():
            if not isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential):
                continue
            found = {f"{name}.{n}" if name else n: m for n, m in module.named_children()}
            alike = len({type(one) for one in found.values()}) == 1
            if alike and len(found) > max(1, len(longest)):
                longest = found
        return longest

    def split_stage(self, model: nn.Module, layers: range, *, first: bool, last: bool) -> None:
        """Not without a plan of the model's own."""
        del layers, first, last
        _lacks(model, "pp", "split_stage")

    def hidden_size(self, model: nn.Module) -> int:
        """The same."""
        _lacks(model, "pp", "hidden_size")

    def vocabulary(self, model: nn.Module) -> int:
        """The same."""
        _lacks(model, "pp", "vocabulary")

    def tensor_styles(self, model: nn.Module) -> Mapping[str, "ParallelStyle"]:
        """The same."""
        _lacks(model, "tp", "tensor_styles")

    def attentions(self, block: nn.Module) -> Iterable[nn.Module]:
        """The same."""
        _lacks(block, "cp", "attentions")

    def experts(self, block: nn.Module) -> Iterable[nn.Module]:
        """None are known."""
        del block
        return ()


def _lacks(model: nn.Module, axis: str, method: str) -> NoReturn:
    raise UsageError(
        "ST-USAG-007",
        f"{type(model).__name__} has no plan that says how {axis} cuts it",
        f"parallel.{axis}",
        f"{axis}: 1, or give fit a plan with {method} (securetrain.parallel.ParallelPlan)",
    )
