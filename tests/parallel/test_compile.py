# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Compiled blocks: the silent zero of torch 2.13 and how it is avoided, parity, one compilation for
all layers, and a machine without a compiler.

Graphs are handed to ``aot_eager``, which runs them as they are: what torch does wrong happens
before a backend sees them, and generating C++ takes half a minute. One row uses Inductor, in
``make test-slow``.
"""

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

from securetrain.core.errors import UsageError
from securetrain.parallel import compile as compiling
from securetrain.parallel.compile import apply_compile, check_compiler
from securetrain.testing.processes import run_ranks
from securetrain.train.models.init_weights import init_weights
from securetrain.train.models.llama import Llama
from securetrain.train.models.llama_plan import LlamaPlan
from securetrain.train.models.shape import ModelShape
from tests.parallel.curves import Case, Curve, curve, curves, differences, passes
from tests.vocabulary import refused

COMPILED = "compute: {compile: true}"
AGAIN = "compute: {compile: true, recompute: selective}"
EAGER = "aot_eager"
TWO = (
    Case("ddp", 2, "{dp_replicate: 2}", extra=COMPILED),
    Case("fsdp", 2, "{dp_shard: 2}", extra=COMPILED),
    Case("tp, recompute", 2, "{tp: 2}", extra=AGAIN),
    Case("pp", 2, "{pp: 2, schedule: Interleaved1F1B}", extra=COMPILED),
)
INDUCTOR = (Case("fsdp, recompute", 2, "{dp_shard: 2}", extra=AGAIN),)
SHAPE = ModelShape(dim=32, layers=1, heads=4, kv_heads=2, ffn=64)


def embedding_gradients(*, ours: bool) -> dict[str, float]:
    """The norm of the embedding's gradient with torch alone, eager and compiled: FSDP2 x TP."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tp"))
    plan, found = LlamaPlan(), {}
    for name in ("eager", "compiled"):
        model = Llama(SHAPE)
        init_weights(model, 1, SHAPE)
        parallelize_module(model, mesh["tp"], dict(plan.tensor_styles(model)))
        if name == "compiled" and ours:
            apply_compile(model, plan, torch.device("cpu"), backend=EAGER)
        for block in plan.blocks(model).values():
            if name == "compiled" and not ours:
                block.compile(backend=EAGER)
            fully_shard(block, mesh=mesh["fsdp"])
        fully_shard(model, mesh=mesh["fsdp"])
        tokens = torch.randint(256, (2, 16), generator=torch.Generator().manual_seed(1))
        logits = model(tokens, torch.arange(16))
        (logits.full_tensor() if isinstance(logits, DTensor) else logits).square().mean().backward()
        assert model.tok_embeddings is not None
        grad = model.tok_embeddings.get_parameter("weight").grad
        assert isinstance(grad, DTensor)
        found[name] = float(grad.full_tensor().norm())
    return found


def gradients() -> dict[str, dict[str, float]]:
    return {"stock": embedding_gradients(ours=False), "ours": embedding_gradients(ours=True)}


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.many
def test_an_embedding_gets_its_gradient_through_compiled_blocks():
    found = run_ranks(gradients, 4, timeout=200)[0]
    stock, ours = found["stock"], found["ours"]
    # Torch 2.13. Not an error, not a warning: when this fails, torch is healed and rule 2 can go.
    assert stock["eager"] > 0
    assert stock["compiled"] == 0
    assert ours["compiled"] == pytest.approx(ours["eager"], rel=1e-5)
    assert ours["eager"] == pytest.approx(stock["eager"], rel=1e-6)


def compiled(cases, backend: str) -> tuple[dict[str, Curve | str], int]:
    """The curves, and how many graphs the first case needed."""
    from torch._dynamo.utils import counters

    compiling.BACKEND = backend  # type: ignore[misc]
    first = curves(cases[:1])
    graphs = counters["stats"]["unique_graphs"]
    return first | curves(cases[1:]), graphs


def uncompiled() -> Curve:
    return curve(Case("", 1, "{}"))


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize(
    ("cases", "backend"),
    [
        (TWO[1::2], EAGER),
        pytest.param(TWO[::2], EAGER, marks=pytest.mark.many),
        pytest.param(INDUCTOR, "inductor", marks=pytest.mark.many),
    ],
)
def test_compiled_meshes_equal_one_process(cases, backend):
    want = run_ranks(uncompiled, 1)[0]
    for found, graphs in run_ranks(compiled, cases[0].ranks, list(cases), backend, timeout=240):
        # Four layers, two graphs: blocks share theirs, in training and in evaluation.
        assert graphs == 2
        for case in cases:
            got = found.get(case.name, "not reached")
            assert not isinstance(got, str), (case, got)
            assert passes(got, want), (case, differences(got, want))


def test_without_a_compiler_there_is_one_clear_error(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    model = Llama(SHAPE)
    with pytest.raises(UsageError) as caught:
        apply_compile(model, LlamaPlan(), torch.device("cpu"))
    assert caught.value.code == "ST-USAG-004"
    assert "install g++" in caught.value.fix
    assert caught.value.where == "compute.compile"
    monkeypatch.setenv("CXX", "no-such-compiler")
    refused(UsageError, "no-such-compiler", lambda: check_compiler(torch.device("cpu")))
    check_compiler(torch.device("cuda"))
