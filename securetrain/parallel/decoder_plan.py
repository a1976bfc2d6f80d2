# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A plan for causal decoders of `transformers`, inferred from what they say about themselves.

==========  ======================================================================================
of a model  is read from
==========  ======================================================================================
blocks      the list of modules whose class `_no_split_modules` names
stages      what its base model registers before the blocks, and after them
matrices    `_tp_plan` (`config.base_model_tp_plan`): `colwise`, `rowwise`, copies; a mixture's
            experts stay whole, and each rank routes its own positions
attention   modules with `is_causal`
==========  ======================================================================================

What cannot be read is refused by name (ST-USAG-007), and never guessed: a parameter inside of what
is cut must be named by the plan. `tensor` adds to the model's own plan or replaces lines of it, and
every method may be overridden by a subclass. What was inferred can be read with `explain_cuts`, and
the self-check compares it with one process.
"""

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any, Final, NoReturn

import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from securetrain.core.errors import RuntimeRefusal, UsageError
from securetrain.parallel.decoder import Decoder, attentions_of
from securetrain.parallel.positionwise import Copies, Gather

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle

COPIES: Final = frozenset({"replicated_with_grad_allreduce", "replicate", "replicated"})
MIXTURE: Final = ("moe_", "ep_", "grouped_", "packed_")
"""How the styles of experts begin."""


class DecoderPlan:
    """The `ParallelPlan` of a `Decoder`.

    Args:
        tensor: Patterns of modules to styles in the library's words, besides or instead of those of
            the model: ``{"model.layers.*.self_attn.q_proj": "colwise"}``.
    """

    def __init__(self, tensor: Mapping[str, str] | None = None) -> None:
        self._tensor = dict(tensor or {})

    def blocks(self, model: nn.Module) -> Mapping[str, nn.Module]:
        """Those of the list that are here."""
        name, layers = self._list(_own(model))
        return {
            f"{name}.{n}": layer
            for n, layer in layers.named_children()
            if any(True for _ in layer.parameters())
        }

    def split_stage(self, model: nn.Module, layers: range, *, first: bool, last: bool) -> None:
        """Empty what another stage has, and leave the names."""
        own = _own(model)
        _, every = self._list(own)
        before, after = self._around(own)
        for n, layer in every.named_children():
            if int(n) not in layers:
                _empty(layer)
        for name in () if first else before:
            setattr(own.base, name, _Nothing())
        for name in () if last else after:
            setattr(own.base, name, nn.Identity())
        own.first, own.last = first, last
        if not last:
            own.inner.set_output_embeddings(nn.Identity())  # type: ignore[operator]
        if not first:
            entrance = every.get_submodule(str(layers[0]))
            entrance.register_forward_pre_hook(_entering(own), with_kwargs=True)

    def hidden_size(self, model: nn.Module) -> int:
        """As the model's configuration says."""
        return int(_config(model).hidden_size)

    def vocabulary(self, model: nn.Module) -> int:
        """The same."""
        return int(_config(model).vocab_size)

    def tensor_styles(self, model: nn.Module) -> Mapping[str, "ParallelStyle"]:
        """Matrices as the model's own plan says; between blocks, positions are cut."""
        own = _own(model)
        _check_dropout(own)
        found: dict[str, ParallelStyle] = {}
        named = {f"inner.{pattern}": style for pattern, style in self._styles(own).items()}
        for name, block in self.blocks(model).items():
            found |= dict(_block_styles(name, block, named, own))
        before, after = self._around(own)
        base = "inner" if own.base is own.inner else f"inner.{own.inner.base_model_prefix}"
        if own.first:
            for name in before:
                module = own.base.get_submodule(name)
                if not isinstance(module, nn.Embedding) or len(before) > 1:
                    _lacks(own, "tp", f"{name}, which it adds before its blocks")
                found[f"{base}.{name}"] = RowwiseParallel(
                    input_layouts=Replicate(), output_layouts=Shard(1)
                )
        if own.last:
            found |= {f"{base}.{name}": Copies() for name in after}
            found[_head(own)] = ColwiseParallel(
                input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
            )
        return found

    def attentions(self, block: nn.Module) -> Iterable[nn.Module]:
        """Its causal self-attention."""
        return attentions_of(block)

    def experts(self, block: nn.Module) -> Iterable[nn.Module]:
        """None whose rows another rank could compute: `ep` needs a model of your own."""
        del block
        return ()

    def _styles(self, own: Decoder) -> dict[str, str]:
        # Of the class and of its configuration; a property in newer versions.
        said = getattr(own.inner, "tp_plan", None) or getattr(own.inner, "_tp_plan", None) or {}
        # The first pattern that fits is taken.
        return self._tensor | {name: said[name] for name in said if name not in self._tensor}

    def _list(self, own: Decoder) -> tuple[str, nn.Module]:
        """The list of blocks, and its name."""
        classes = set(getattr(own.inner, "_no_split_modules", None) or ())
        for name, module in own.named_modules():
            if (
                isinstance(module, nn.ModuleList)
                and len(module)
                and all(
                    # FSDP makes subclasses.
                    classes & {kind.__name__ for kind in type(one).__mro__}
                    for one in module
                )
            ):
                return name, module
        raise UsageError(
            "ST-USAG-007",
            f"{type(own.inner).__name__} has no list of blocks that _no_split_modules names",
            "DecoderPlan.blocks",
            "a subclass of DecoderPlan with blocks, or PlainPlan for copies and shards",
        )

    def _around(self, own: Decoder) -> tuple[list[str], list[str]]:
        """Children of the base model with parameters, before the blocks and after them."""
        _, layers = self._list(own)
        names = [name for name, _ in own.base.named_children()]
        at = next((n for n, name in enumerate(names) if getattr(own.base, name) is layers), None)
        if at is None:
            _lacks(own, "pp and tp", "its blocks, which are not a child of its base model")
        known = (own.base, own.get_submodule(_head(own)))
        seen = {id(parameter) for one in known for parameter in one.parameters()}
        if any(id(parameter) not in seen for parameter in own.parameters()):
            _lacks(own, "pp and tp", "parameters besides base model and head")
        full = [name for name in names if any(True for _ in getattr(own.base, name).parameters())]
        return [n for n in full if n in names[:at]], [n for n in full if n in names[at + 1 :]]


def _block_styles(
    name: str, block: nn.Module, named: Mapping[str, str], own: Decoder
) -> Iterator[tuple[str, "ParallelStyle"]]:
    """Styles of a block, child by child."""
    config = _config(own)
    heads = {
        "heads": int(config.num_attention_heads),
        "kv heads": int(getattr(config, "num_key_value_heads", config.num_attention_heads)),
    }
    for child, module in block.named_children():
        path = f"{name}.{child}"
        inside = {n: _style(f"{path}.{n}" if n else path, named) for n, _ in module.named_modules()}
        inside |= {n: _style(f"{path}.{n}", named) for n, _ in module.named_parameters()}
        styles = {n: style for n, style in inside.items() if style}
        if not styles or any(style.startswith(MIXTURE) for style in styles.values()):
            if any(True for _ in module.parameters()):
                _check_whole(path, module, own)
                yield path, Copies()
            continue
        yield path, Gather(heads if attentions_of(module) else {})
        for inner, part in module.named_modules():
            if any(True for _ in part.named_parameters(recurse=False)):
                full = f"{path}.{inner}" if inner else path
                yield full, _matrix(full, styles.get(inner, ""), part, own)


def _matrix(name: str, style: str, module: nn.Module, own: Decoder) -> "ParallelStyle":
    if style in COPIES:
        return Copies()
    if isinstance(module, nn.Linear) and style == "colwise":
        return ColwiseParallel()
    if isinstance(module, nn.Linear) and style == "rowwise":
        return RowwiseParallel(output_layouts=Shard(1))
    return _lacks(own, "tp", f"{name} ({type(module).__name__}, {style or 'no style'})")


def _check_whole(path: str, module: nn.Module, own: Decoder) -> None:
    """Refuse attention that no style names: what stays whole sees one position at a time."""
    if attentions_of(module):
        _lacks(own, "tp", f"{path} ({type(module).__name__}, no style)")


def _style(name: str, named: Mapping[str, str]) -> str:
    return next((style for pattern, style in named.items() if fnmatch(name, pattern)), "")


def _head(own: Decoder) -> str:
    """The name of the module that makes logits."""
    head = own.inner.get_output_embeddings()  # type: ignore[operator]
    for name, module in own.named_modules():
        if module is head:
            return str(name)
    return _lacks(own, "pp and tp", "its head")


def _check_dropout(own: Decoder) -> None:
    share = float(getattr(_config(own), "attention_dropout", None) or 0.0)
    if share:
        raise RuntimeRefusal(
            "ST-RUNT-010",
            f"attention drops {share:.0%}, and tensor- and context-parallel ranks would drop the"
            " same places of different pieces",
            "parallel",
            "set attention_dropout to 0, or tp: 1 and cp: 1",
        )


class _Nothing(nn.Module):
    """Stands where embeddings were: what it gives is replaced before the first block."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros((), device=x.device)


def _entering(own: Decoder) -> Any:
    def replace(
        _block: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if inputs:
            return (own.entering, *inputs[1:]), named
        return inputs, named | {"hidden_states": own.entering}

    return replace


def _empty(layer: nn.Module) -> None:
    """Let a block hand on what it gets; its plain attributes stay, which models look at."""
    for name in [name for name, _ in layer.named_children()]:
        delattr(layer, name)
    for name in [name for name, _ in layer.named_parameters(recurse=False)]:
        delattr(layer, name)

    def hand_on(hidden_states: torch.Tensor, *_inputs: Any, **_named: Any) -> torch.Tensor:
        return hidden_states

    layer.forward = hand_on


def _config(model: nn.Module) -> Any:
    config: Any = _own(model).inner.config
    return config.get_text_config()


def _own(model: nn.Module) -> Decoder:
    assert isinstance(model, Decoder)
    return model


def _lacks(own: Decoder, axis: str, what: str) -> NoReturn:
    raise UsageError(
        "ST-USAG-007",
        f"{type(own.inner).__name__} does not say how {axis} cuts {what}",
        f"parallel.{axis}",
        f"1 for {axis}, DecoderPlan(tensor=...) with its style, or a model and plan of your own",
    )
