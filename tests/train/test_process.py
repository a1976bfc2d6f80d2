# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import pytest
import torch

from securetrain.core.errors import UsageError
from securetrain.train.process import peak_memory, record_collectives


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


def test_memory_is_a_number_of_bytes():
    before = peak_memory(torch.device("cpu"))
    assert 10 << 20 < before < 1 << 44
    assert peak_memory(torch.device("cpu")) >= before
