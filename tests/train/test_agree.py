# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Work that one rank does and others wait for."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from securetrain.core.errors import (
    GuardError,
    IntegrityError,
    RuntimeRefusal,
    SecureTrainError,
    UsageError,
)
from securetrain.ledger import events
from securetrain.testing.processes import run_ranks
from securetrain.train import agree
from tests.tables import each

CPU = torch.device("cpu")


def pieces(count: int, done: list[int], fails_at: int = -1) -> Iterator[int]:
    for n in range(count):
        if n == fails_at:
            raise UsageError("ST-USAG-015", f"piece {n}")
        done.append(n)
        yield n


def scenario(fails_at: int) -> tuple[int, str]:
    """Rank 0 has much to do, rank 1 nothing; every piece is a word to the others."""
    agree.HEARTBEAT_SECONDS = 0.0  # type: ignore[misc]
    done: list[int] = []
    work = pieces(5, done, fails_at) if dist.get_rank() == 0 else iter(())
    try:
        agree.run_together(work, CPU)
    except SecureTrainError as error:
        return len(done), error.code
    # Nobody goes on before everybody is done, and the group still works.
    total = torch.tensor([len(done)])
    dist.all_reduce(total)
    return int(total), ""


@pytest.mark.dist
def test_all_go_on_together_or_stop_together():
    assert run_ranks(scenario, 2, -1) == [(5, ""), (5, "")]
    assert run_ranks(scenario, 2, 3) == [(3, "ST-USAG-015"), (0, "ST-RUNT-004")]


@each(
    "error, entered",
    (IntegrityError("ST-DATA-101", "cut"), [(events.DatasetRefused, "ST-DATA-101", "corpus")]),
    (GuardError("ST-GRAD-010", "gone"), [(events.RunHalted, "ST-GRAD-010", "gradients")]),
    (RuntimeRefusal("ST-RUNT-004", "rank 0 has refused"), []),
)
def test_a_refusal_is_entered_as_what_it_is(error, entered):
    class Written:
        def write(self, event):
            found.append((type(event), event.code, event.subject))

    found: list[object] = []
    with (
        pytest.raises(type(error)),
        agree.recording_refusals(Written(), events.DatasetRefused, "corpus"),
    ):
        raise error
    assert found == entered
