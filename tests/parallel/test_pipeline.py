# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Stages of a pipeline learn nothing from what another one sends.

The shapes that stages exchange are declared, but torch asks all of them first whether they are, and
one that says no has every rank read pickled objects from its neighbours.
"""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from securetrain.core.errors import RuntimeRefusal
from securetrain.parallel import pipeline
from securetrain.parallel.pipeline import DeclaredStage
from securetrain.testing.processes import run_ranks

RAN: list[int] = []


def explode(number: int) -> None:
    RAN.append(number)


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[int]]:
        return explode, (1,)


def lie(*, send: bool) -> None:
    """Stage 0, which says that its shapes are not known and sends an object in their place."""
    answer = torch.zeros(1, dtype=torch.int32)
    dist.send(torch.zeros(1, dtype=torch.int32), dst=1)
    dist.recv(answer, src=1)
    assert answer.item() == 0
    if send:
        dist.send_object_list([Bomb()], dst=1, device=torch.device("cpu"), use_batch=True)


def listen(kind: type[PipelineStage]) -> str:
    row = torch.zeros(1, 2, requires_grad=True)
    stage = kind(
        nn.Linear(2, 2), 1, 2, torch.device("cpu"), input_args=row, output_args=row,
        group=dist.group.WORLD,
    )  # fmt: skip
    schedule = ScheduleGPipe(stage, 1, loss_fn=lambda out, _: out.sum())
    try:
        schedule.step(target=torch.zeros(1, 2))
    except RuntimeRefusal as refused:
        return f"{refused.code} {refused.what}"
    except Exception as error:  # noqa: BLE001 - what the object was worth after it had run
        return type(error).__name__
    return "took it"


def attack() -> tuple[str, bool, bool]:
    """What ours says, and whether an object ran in ours and in torch's own stage."""
    said, ran = "", []
    for kind, sends in ((DeclaredStage, False), (PipelineStage, True)):
        if dist.get_rank() == 0:
            lie(send=sends)
        else:
            found = listen(kind)
            said = said or found
        ran.append(bool(RAN))
        dist.barrier()
    return said, ran[0], ran[1]


@pytest.mark.dist
def test_a_stage_that_does_not_know_its_shapes_has_nobody_read_objects():
    _, (ours, ran, plain) = run_ranks(attack, 2)
    assert plain  # the counter-test: torch's own stage runs what it is sent
    assert not ran
    assert ours == (
        "ST-RUNT-001 another stage says that shapes are not declared, and its objects would be read"
    )


def test_the_engine_makes_such_stages():
    assert pipeline.DeclaredStage.__mro__[1] is PipelineStage
    with pytest.raises(RuntimeRefusal, match="its objects would be read"):
        DeclaredStage._send_meta(None, None, 0)  # type: ignore[arg-type]
