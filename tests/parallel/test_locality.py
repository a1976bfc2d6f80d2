# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from securetrain.ledger.events.event import encode_event
from securetrain.parallel.degrees import Degrees
from securetrain.parallel.locality import machine_id, tp_machine_span
from securetrain.parallel.mesh import make_mesh
from securetrain.testing.processes import run_ranks

CPU = torch.device("cpu")


def spread(degrees: dict[str, int], per_machine: list[int]) -> list[int]:
    """For several sizes of machines."""
    mesh = make_mesh(Degrees(**degrees), "cpu")
    return [tp_machine_span(mesh, dist.get_rank() // ranks, CPU) for ranks in per_machine]


@pytest.mark.dist
def test_a_tensor_group_over_several_machines_is_seen_by_every_rank():
    # Four ranks on one machine, on two, on machines of three and one, each on its own.
    assert run_ranks(spread, 4, {"dp_shard": 2, "tp": 2}, [4, 2, 3, 1]) == [[1, 1, 2, 2]] * 4
    assert run_ranks(spread, 4, {"tp": 4}, [4, 2, 3, 1]) == [[1, 2, 2, 4]] * 4


def test_without_tensor_parallelism_nobody_is_asked():
    class Alone:
        degrees = Degrees()

    assert tp_machine_span(Alone(), 1, CPU) == 1  # type: ignore[arg-type]


def test_a_machine_is_its_boot(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("0b9c")
    other.write_text("0b9d")
    assert machine_id(one) == machine_id(one) != machine_id(other)
    assert 0 <= machine_id() < 1 << 63


class Page:
    """A console and a ledger."""

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []
        self.text = ""

    def write(self, said: object) -> None:
        if isinstance(said, str):
            self.text += said
            return
        wire = encode_event(said)  # type: ignore[arg-type]
        self.events.append((str(wire.boundary), wire.event, wire.subject, wire.details))


def warned(machines: int) -> tuple[list[tuple[object, ...]], str]:
    """What rank 0 of two tensor-parallel ranks writes down when they lie on so many machines."""
    from securetrain.core.rundir import RunDir
    from securetrain.train import setup
    from tests.parallel.curves import Never
    from tests.train.conftest import now

    page = Page()
    worker = setup.Worker(
        run=RunDir(Path("unused")),
        device=CPU,
        clock=now,
        stop=Never(),
        console=page,  # type: ignore[arg-type]
    )
    vars(setup)["machine_id"] = lambda: dist.get_rank() % machines
    setup._warn_of_spread_tp(make_mesh(Degrees(tp=2), "cpu"), worker, page)
    return page.events, page.text


@pytest.mark.dist
def test_a_spread_tensor_group_is_warned_about_and_written_down():
    assert run_ranks(warned, 2, 1)[0] == ([], "")
    events, text = run_ranks(warned, 2, 2)[0]
    assert events == [("fabric", "tensor-group-spans-machines", "tp 2", {"machines": 2})]
    assert text.startswith("warning: tensor-parallel groups lie over 2 machines")
