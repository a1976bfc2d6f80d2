# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import os
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from securetrain.core.errors import UsageError
from securetrain.train.process import peak_memory, record_collectives, start_group
from securetrain.train.watching import retained
from tests.vocabulary import ran


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    found: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", found)
    return found


def test_nccl_writes_its_last_collectives_into_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    folder = tmp_path / "flight-recorder"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    record_collectives(folder)
    assert not folder.exists()
    assert not any(name.startswith("TORCH") for name in environment)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    record_collectives(folder)
    record_collectives(folder)  # a restart finds it there
    assert folder.stat().st_mode & 0o777 == 0o700
    assert environment["TORCH_FR_DUMP_TEMP_FILE"] == f"{folder}/rank-"
    assert int(environment["TORCH_FR_BUFFER_SIZE"]) > 0
    assert environment["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"


def test_a_folder_that_cannot_be_made_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(UsageError):
        record_collectives(tmp_path / "missing" / "flight-recorder")


def test_a_group_knows_its_gpu_and_the_guard_keeps_a_share_of_it(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    asked: list[dict[str, object]] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **named: asked.append(named))
    device = torch.device("cuda", 3)
    for given in ({"RANK": "3", "LOCAL_RANK": "3"}, {"LOCAL_RANK": "3"}):
        assert start_group(given, timedelta(minutes=1)) == device
    assert [one["device_id"] for one in asked] == [device, device]
    properties = SimpleNamespace(total_memory=80 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    assert retained(device) == 80 << 30 >> 5
    assert retained(torch.device("cpu")) == 64 << 20


def test_memory_is_a_number_of_bytes():
    before = peak_memory(torch.device("cpu"))
    assert 10 << 20 < before < 1 << 44
    assert peak_memory(torch.device("cpu")) >= before


# Whether products of the same numbers are the same at sixteen places in memory.
PLACES = """
import sys
from datetime import timedelta
import torch
from securetrain.train.process import start_group
if sys.argv[1] == "ours":
    start_group({}, timedelta(minutes=1))
def moved(tensor, offset):
    place = torch.empty(tensor.numel() + 16)[offset : offset + tensor.numel()]
    return place.view_as(tensor).copy_(tensor)
rows, weights = torch.randn(4, 16), torch.randn(8, 16)
places = [(moved(rows, n), moved(weights, n)) for n in range(16)]
products = [torch.cat([a @ b.t(), a.t()[:, :4] @ (a @ b.t())]) for a, b in places]
print(all(one.equal(products[0]) for one in products))
"""


def test_products_do_not_depend_on_where_the_numbers_are() -> None:
    def same(how: str) -> str:
        found = ran([sys.executable, "-c", PLACES, how], env={"OMP_NUM_THREADS": "1"})
        return found.stdout.strip()

    if same("plain") == "True":
        pytest.skip("this processor's products do not depend on addresses")
    assert same("ours") == "True"
