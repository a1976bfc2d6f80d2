# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A module of one's own, with a loss, a batch and metrics of its own, is right on every mesh."""

import math
import re
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from securetrain.core.errors import GuardError, RuntimeRefusal, SecureTrainError
from securetrain.parallel import Degrees, RequestedDegrees, Settings, engine
from securetrain.testing.processes import run_ranks
from securetrain.train.fit import FitStep, fit
from tests.tables import each
from tests.vocabulary import refused

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_image_model.py"
ROWS, STEPS = 8, 4


class Vit(nn.Module):
    """Patches of a picture and a word of text in, two answers out; a buffer and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Linear(4, 16)
        self.words = nn.Embedding(5, 16)
        self.register_buffer("places", torch.arange(4.0)[:, None] / 4)
        layer = nn.TransformerEncoderLayer
        self.layers = nn.ModuleList(
            layer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True) for _ in range(3)
        )
        self.kind, self.size = nn.Linear(16, 3), nn.Linear(16, 1)

    def forward(self, image: torch.Tensor, word: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.patches(image.unflatten(1, (4, 4)))
        x = x + self.get_buffer("places") + self.words(word)[:, None]
        for layer in self.layers:
            x = layer(x)
        x = x.mean(1)
        return {"kind": self.kind(x), "size": self.size(x)[:, 0]}


def rows(step: int, numbers: range) -> tuple[Any, Any]:
    generator = [torch.Generator().manual_seed(step * 100 + n) for n in numbers]
    image = torch.stack([torch.randn(16, generator=g) for g in generator])
    word = torch.tensor([n % 5 for n in numbers])
    kind = torch.tensor([n % 3 if n % 4 else -100 for n in numbers])  # some are not known
    return {"image": image, "word": word}, {"kind": kind, "size": image.sum(1)}


def loss(outputs: Any, targets: Any) -> torch.Tensor:
    kind = F.cross_entropy(outputs["kind"], targets["kind"], reduction="sum")
    return kind + F.mse_loss(outputs["size"], targets["size"], reduction="sum") / 10


def known(targets: Any) -> torch.Tensor:
    found: torch.Tensor = (targets["kind"] >= 0).sum()
    return found


def right(outputs: Any, targets: Any) -> torch.Tensor:
    found: torch.Tensor = (outputs["kind"].argmax(-1) == targets["kind"]).sum()
    return found


def curve(mesh: Degrees | None = None, microbatches: int = 1) -> list[tuple[float, ...]]:
    said: list[FitStep] = []
    fit(
        Vit, rows, loss, steps=STEPS, batch_rows=ROWS, count=known, metrics={"right": right},
        mesh=mesh, settings=Settings(microbatches=microbatches), on_step=said.append,
    )  # fmt: skip
    return [(x.loss, x.grad_norm, x.metrics["right"]) for x in said]


def by_hand() -> list[tuple[float, ...]]:
    """One process and torch alone."""
    torch.manual_seed(0)
    model = Vit()
    optimizer = torch.optim.AdamW(model.parameters())
    found: list[tuple[float, ...]] = []
    for step in range(1, STEPS + 1):
        inputs, targets = rows(step, range(ROWS))
        outputs = model(**inputs)
        mean = loss(outputs, targets) / known(targets)
        optimizer.zero_grad()
        mean.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        share = right(outputs, targets) / known(targets)
        found.append((float(mean.detach()), float(norm), float(share)))
    return found


def two_ranks() -> tuple[list[list[tuple[float, ...]]], list[str]]:
    curves = [curve(), curve(Degrees(dp_replicate=2), 2), curve(Degrees(dp_shard=2), 2)]

    def over_rows(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a - b).sum(0).square().sum()  # no sum: parts of it do not add up

    said = [
        said_of(Own, mesh=Degrees(tp=2)),
        said_of(Own, loss=over_rows),
        said_of(lambda: nn.Sequential(Own(), nn.BatchNorm1d(3))),
    ]
    return curves, said


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def squares(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a - b).square().sum()


def said_of(build: Any, *, loss: Any = squares, mesh: Degrees | None = None) -> str:
    def pair(_: int, numbers: range) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.tensor([[n % 3.0, n % 2, n / 8] for n in numbers])
        return x, x.flip(1)

    try:
        fit(
            build, pair, loss, steps=1, batch_rows=8, mesh=mesh, on_step=lambda _: None,
            settings=Settings(microbatches=2),
        )  # fmt: skip
    except SecureTrainError as error:
        return f"{error.code} {error.what} {error.fix}"
    return "trained"


@pytest.mark.dist
def test_every_mesh_equals_a_loop_by_hand():
    want = by_hand()
    assert want[-1][0] < want[0][0]
    (alone,) = run_ranks(curve, 1)
    (curves, (without_plan, not_a_sum, normed)), again = run_ranks(two_ranks, 2)
    assert curves == again[0]
    assert normed == "trained"
    assert without_plan.startswith("ST-USAG-007 Own has no plan that says how tp cuts it")
    assert "tensor_styles" in without_plan
    assert not_a_sum.startswith("ST-RUNT-013 step 1 of the self-check: the loss, behind the last")
    for got in (alone, *curves):
        for ours, theirs in zip(got, want, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-5)


def test_the_example_describes_its_training_in_at_most_15_lines():
    text = EXAMPLE.read_text("utf-8")
    call = text[text.index("\nfit(") :].strip().splitlines()
    imports = [line for line in text.splitlines() if re.match(r"(from|import) ", line)]
    assert len(call) + len(imports) <= 15


pytestmark = pytest.mark.usefixtures("one_rank")


def small(**changed: Any) -> list[FitStep]:
    said: list[FitStep] = []
    asked: dict[str, Any] = {
        "steps": 5, "batch_rows": 2, "on_step": said.append,
        "optimizer": lambda p: torch.optim.SGD(p, lr=0.1),
    } | changed  # fmt: skip
    pair = asked.pop("rows", lambda *_: (torch.ones(2, 3), torch.ones(2, 1)))
    fit(lambda: nn.Linear(3, 1), pair, lambda a, b: (a - b).square().sum(), **asked)
    return said


def ends(step: int, _: range) -> tuple[torch.Tensor, torch.Tensor]:
    if step == 3:
        raise StopIteration
    return torch.ones(2, 3), torch.ones(2, 1)


@each(
    "changed, code, said",
    ({"rows": ends}, "ST-USAG-014", "step 3"),
    ({"rows": lambda *_: None}, "ST-USAG-014", "step 1"),
    ({"steps": 0}, "ST-USAG-007", "0 steps"),
    ({"batch_rows": 0}, "ST-USAG-007", "0 rows"),
    ({"clip": math.nan}, "ST-USAG-007", "nan"),
    ({"optimizer": lambda p: torch.optim.SGD(p, lr=math.inf)}, "ST-USAG-007", "inf"),
    ({"mesh": RequestedDegrees(tp=2)}, "ST-USAG-007", "tp 2"),
    ({"mesh": Degrees(dp_shard=2)}, "ST-USAG-007", "2 ranks"),
    ({"settings": Settings(microbatches=4)}, "ST-USAG-007", "4 microbatches"),
)
def test_what_cannot_be_is_one_error_with_a_fix(changed, code, said):
    error = refused(SecureTrainError, code, small, **changed, says=said)
    assert error.fix


def test_a_module_that_differs_from_one_process_does_not_begin(monkeypatch, capsys):
    # The mesh's loss is wrong, and the reference's is its own.
    monkeypatch.setattr(engine, "detach_loss", lambda loss: 1.01 * loss.detach())
    error = refused(RuntimeRefusal, "the loss, behind the last block", small)
    assert error.code == "ST-RUNT-013"
    assert capsys.readouterr().err == ""


def test_training_begins_from_weights_that_are_given():
    given = nn.Linear(3, 1)
    nn.init.zeros_(given.weight)
    nn.init.constant_(given.bias, 3.0)
    first, *_ = small(weights=lambda: given)
    assert first.loss == 4.0  # (3 - 1) squared, over rows
    assert small(weights=None)[0].loss != 4.0


def test_what_was_not_compared_is_said(monkeypatch, capsys):
    small(steps=1, check=False)
    assert "fit: not compared with one process (check=False)" in capsys.readouterr().err
    module = import_module("securetrain.train.fit")
    monkeypatch.setattr(module, "MOST_CHECKED", 3)
    small(steps=1)
    assert "4 parameters are too many for it; give fit small=" in capsys.readouterr().err
    small(steps=1, small=lambda: nn.Linear(3, 1))
    assert capsys.readouterr().err == ""


def test_numbers_that_are_not_finite_never_reach_the_weights():
    """Positive control first: the same rows without the odd number train."""
    losses = [x.loss for x in small()]
    assert all(b < a for a, b in pairwise(losses))

    def odd(step: int, _: range) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((2, 3), math.nan if step >= 2 else 1.0), torch.ones(2, 1)

    said: list[FitStep] = []
    refused(GuardError, "ST-GRAD-001", small, rows=odd, on_step=said.append)
    assert [x.taken for x in said] == [True, False, False, False]
    assert all(torch.isfinite(p).all() for p in said[-1].model.parameters())
