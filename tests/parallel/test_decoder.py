# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A decoder of transformers is cut by what it says about itself, and trains as in one process."""

import traceback
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from securetrain.core.errors import SecureTrainError, UsageError
from securetrain.parallel import (
    DecoderPlan,
    Degrees,
    Description,
    Settings,
    decoder,
    grad_norm,
    initialize_as_built,
    make_mesh,
    parallelize,
    self_check,
)
from securetrain.testing.processes import run_ranks
from securetrain.train.planning import explain_cuts
from tests.parallel.like_transformers import PLAN, library, like

CPU, ROWS, RATE = torch.device("cpu"), 4, 0.05
Curve = list[tuple[float, ...]]
Build = Callable[[], nn.Module]
Case = tuple[str, Build, Build, Degrees, Settings]
"""With a name, what builds the model here, and what builds it for a loop by hand."""
TP, CP, PP = Degrees(tp=2), Degrees(cp=2), Degrees(pp=2)
TWO = Settings(microbatches=2)


def rows(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(64, (ROWS, 17), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def alone(build: Build) -> Curve:
    """A loop of torch and the library, with the library's own attention."""
    torch.manual_seed(3)
    model = build()
    curve: Curve = []
    for step in (1, 2):
        tokens, targets = rows(step)
        model.zero_grad()
        every, places = torch.ones_like(tokens), torch.arange(16)[None]
        logits = model(input_ids=tokens, attention_mask=every, position_ids=places).logits
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        norm = torch.stack([grad.double().square().sum() for grad in grads]).sum().sqrt()
        curve.append((loss.item(), norm.item()))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(RATE * parameter.grad)
    return curve


def on_mesh(build: Build, degrees: Degrees, settings: Settings, plan: DecoderPlan) -> Curve | str:
    """The same on a mesh, or what is refused."""
    mesh, made = make_mesh(degrees, "cpu"), decoder(build)
    model = Description(build=made, materialize=initialize_as_built(made, 3), plan=plan)
    try:
        self_check(model, mesh, settings, CPU)
        whole = parallelize(model, mesh, settings, CPU)
    except SecureTrainError as error:
        return f"{error.code} {error.what}"
    optimizer = torch.optim.SGD(whole.parameters(), lr=RATE, foreach=False)
    stages = mesh.pp.get_group() if degrees.pp > 1 else None
    curve: Curve = []
    for step in (1, 2):
        tokens, targets = (one.chunk(degrees.dp)[mesh.dp_rank] for one in rows(step))
        loss = whole.forward_backward(tokens, targets, ROWS * 16).double()
        dist.all_reduce(loss)
        curve.append((loss.item() / degrees.tp, grad_norm(whole.parameters(), stages).item()))
        optimizer.step()
        optimizer.zero_grad()
    return curve


def apart(got: Curve | str, want: Curve) -> float | str:
    """The largest relative difference of two curves."""
    if isinstance(got, str):
        return got
    pairs = [
        pair for one, other in zip(got, want, strict=True) for pair in zip(one, other, strict=True)
    ]
    return max(abs(a / b - 1) for a, b in pairs)


def compare(cases: Iterable[Case], plan: DecoderPlan | None = None) -> dict[str, float | str]:
    found: dict[str, float | str] = {}
    for name, build, plain, degrees, settings in cases:
        case = f"{name} on {degrees}"
        try:
            got = on_mesh(build, degrees, settings, plan or DecoderPlan())
            found[case] = apart(got, alone(plain))
        except Exception:  # noqa: BLE001 - shown by the test
            found[case] = traceback.format_exc()
    return found


def all_cases() -> dict[str, float | str]:
    def case(name: str, degrees: Degrees, **changed: Any) -> Any:
        build = lambda: like(**changed)  # noqa: E731
        settings = TWO if degrees.pp > 1 else Settings()
        return name, build, build, degrees, settings

    bent = {"window": 5, "soft_cap": 3.0, "scale": 3.0}
    with library():
        found = compare(
            [
                *(case("plain", mesh) for mesh in (TP, CP, PP, Degrees(dp_shard=2))),
                *(case("bent", mesh, **bent) for mesh in (TP, PP, CP)),
                case("dropping", TP, attention_dropout=0.1),
                case("sinks", PP, sinks=True),
                case("no plan", TP, named=False),
                case("odd heads", TP, num_key_value_heads=1),
                case("no experts", Degrees(dp_shard=2, ep=2)),
            ]
        )
        return found | compare([case("given", TP, named=False)], DecoderPlan(PLAN))


@pytest.mark.dist
def test_equal_to_one_process_or_refused_by_name():
    for found in run_ranks(all_cases, 2, timeout=180):
        refused = {case: said for case, said in found.items() if isinstance(said, str)}
        assert len(found) - len(refused) == 7, refused
        for case, share in found.items():
            if isinstance(share, float):
                assert share < 1e-5, case
        assert refused.pop("bent on cp 2").startswith(
            "ST-RUNT-010 the attention of Attention has another mask than the causal one and a soft"
        )
        assert refused.pop("dropping on tp 2").startswith("ST-RUNT-010 attention drops 10%")
        assert refused.pop("sinks on pp 2").startswith(
            "ST-RUNT-010 the attention of Attention takes sinks, and what that is to do"
        )
        assert refused.pop("no plan on tp 2").startswith(
            "ST-USAG-007 LikeForCausalLM does not say how tp cuts inner.model.layers.0.self_attn"
        )
        assert refused.pop("odd heads on tp 2") == "ST-USAG-007 tp 2 does not divide kv heads 1"
        assert refused.pop("no experts on dp_shard 2, ep 2").startswith(
            "ST-RUNT-010 experts() finds none in Decoder"
        )
        assert not refused


def test_what_is_cut_where_can_be_read():
    with library():
        cuts = explain_cuts(decoder(like), DecoderPlan(), Degrees(dp_shard=2, tp=2))
        said = "\n".join(map(str, cuts))
        assert (
            "inner.model.layers.*.self_attn.q_proj.weight (32, 32): fsdp 0, tp 0; (8, 32)" in said
        )
        assert "self_attn.q_norm.weight (8,): fsdp 0, tp whole; (4,) on a rank" in said
        assert "mlp.down_proj.weight (32, 64): fsdp 0, tp 1; (16, 32) on a rank" in said
        alone = explain_cuts(decoder(like), DecoderPlan(), Degrees())
        assert str(alone[0]) == (
            "inner.model.embed_tokens.weight (64, 32): whole on every rank; (64, 32) on a rank"
        )


def test_a_model_that_is_no_such_decoder_is_refused():
    with pytest.raises(UsageError, match="Linear is no decoder of transformers"):
        decoder(lambda: nn.Linear(2, 2))()
    with library():
        model: Any = decoder(like)()
        model.inner._no_split_modules = ("Other",)
        with pytest.raises(UsageError, match="no list of blocks that _no_split_modules names"):
            DecoderPlan().blocks(model)
