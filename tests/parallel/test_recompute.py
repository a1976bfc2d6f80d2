# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What is kept of a forward pass, and that nothing else changes."""

from collections import Counter

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from securetrain.parallel.plan import Recompute
from securetrain.parallel.recompute import apply_recompute
from securetrain.train.models.init_weights import init_weights
from securetrain.train.models.llama import Llama
from securetrain.train.models.llama_plan import LlamaPlan
from securetrain.train.models.shape import ModelShape

SHAPE = ModelShape(dim=32, layers=3, heads=4, kv_heads=2, ffn=64, vocab=32)
TOKENS = torch.randint(32, (2, 64), generator=torch.Generator().manual_seed(1))
POSITIONS = torch.arange(64)


class Watch(TorchDispatchMode):
    """Counts operators, and knows which of their results are still there."""

    def __init__(self):
        super().__init__()
        self.operators: Counter[object] = Counter()
        self.made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.operators[func] += 1
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self.made[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        return out

    def kept(self):
        return sum(size for reference, size in self.made.values() if not reference.expired())


def model(recompute):
    made = Llama(SHAPE)
    init_weights(made, 1, SHAPE)
    apply_recompute(made, LlamaPlan(), recompute)
    return made


def step(recompute):
    """Bytes that the forward pass keeps, gradients, and matrix products of the backward pass."""
    made = model(recompute)
    with Watch() as watch:
        loss = made(TOKENS, POSITIONS).square().sum()
        kept = watch.kept()
        before = Counter(watch.operators)
        loss.backward()
        after = watch.operators - before
    grads = {name: parameter.grad for name, parameter in made.named_parameters()}
    return kept, grads, after


def test_what_is_forgotten_is_computed_again_to_the_same_bits():
    kept, grads, operators = {}, {}, {}
    for recompute in Recompute:
        kept[recompute], grads[recompute], operators[recompute] = step(recompute)
    # Full keeps about the input of each block; selective less than half of everything.
    assert kept[Recompute.FULL] < 0.25 * kept[Recompute.NONE]
    assert kept[Recompute.FULL] < kept[Recompute.SELECTIVE] < 0.75 * kept[Recompute.NONE]
    for recompute in (Recompute.SELECTIVE, Recompute.FULL):
        assert grads[recompute].keys() == grads[Recompute.NONE].keys(), "names must not change"
        for name, grad in grads[recompute].items():
            assert torch.equal(grad, grads[Recompute.NONE][name]), (recompute, name)
    products = torch.ops.aten.mm.default
    assert operators[Recompute.SELECTIVE][products] == operators[Recompute.NONE][products]
    assert operators[Recompute.FULL][products] > operators[Recompute.NONE][products]
    silu = torch.ops.aten.silu.default
    assert operators[Recompute.SELECTIVE][silu] == operators[Recompute.FULL][silu] == SHAPE.layers


def test_parameters_and_modules_keep_their_names():
    names = [name for name, _ in model(Recompute.NONE).named_parameters()]
    for recompute in Recompute:
        made = model(recompute)
        assert [name for name, _ in made.named_parameters()] == names
        assert list(made.state_dict()) == names


def test_an_unknown_choice_is_an_error():
    with pytest.raises(ValueError, match="unknown recompute"):
        apply_recompute(Llama(SHAPE), LlamaPlan(), "some")  # type: ignore[arg-type]
