# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Batches of any structure: cut into microbatches, and sent to a device without waiting."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from securetrain.parallel.objective import call_plainly, pieces_of, tensors_of, to_device


def test_every_tensor_is_cut_alike_and_keeps_its_place():
    batch = {"a": torch.arange(4), "b": (torch.arange(8).view(4, 2), torch.ones(4))}
    first, second = pieces_of(batch, 2)
    assert first["a"].tolist() == [0, 1]
    assert second["b"][0].tolist() == [[4, 5], [6, 7]]
    assert len(list(tensors_of(second))) == 3
    assert pieces_of(batch, 1) == [batch]


@pytest.mark.parametrize("rows", [(4, 2), (3, 3)])
def test_rows_that_do_not_divide_are_an_error(rows):
    with pytest.raises(ValueError, match="do not divide into 2 microbatches"):
        pieces_of(tuple(torch.ones(n) for n in rows), 2)


def test_any_module_is_called_with_its_inputs():
    def module(*args: Any, **named: Any) -> Any:
        return args, named

    assert call_plainly(module, {"x": 1}, torch.ones(0)) == ((), {"x": 1})
    assert call_plainly(module, (1, 2), torch.ones(0)) == ((1, 2), {})
    assert call_plainly(module, 3, torch.ones(0)) == ((3,), {})


def test_a_batch_on_the_cpu_is_contiguous():
    window = torch.arange(10).view(2, 5)
    found = to_device((window[:, :-1], window[:, 1:]), torch.device("cpu"))
    assert all(x.is_contiguous() for x in found)
    assert found[1].tolist() == [[1, 2, 3, 4], [6, 7, 8, 9]]


def test_a_batch_for_a_gpu_goes_by_pinned_memory_and_nobody_waits(monkeypatch):
    """A GPU that only remembers what was asked of it."""
    asked: list[Any] = []

    def pin(x: torch.Tensor) -> Any:
        asked.append("pinned")
        assert x.is_contiguous()

        def to(device: torch.device, **how: bool) -> torch.Tensor:
            asked.append((device.type, how))
            return x

        return SimpleNamespace(to=to)

    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda _: False)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    to_device((torch.ones(2, 3)[:, :-1],), torch.device("cuda", 0))
    assert asked == ["pinned", ("cuda", {"non_blocking": True})]
