# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from securetrain.core.errors import UsageError
from securetrain.parallel import available
from securetrain.parallel.available import check_device
from securetrain.parallel.plan import Compression, Settings

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def refusal(settings, device, capability=None):
    with pytest.raises(UsageError) as caught:
        check_device(settings, device, capability)
    assert caught.value.fix
    return caught.value


def test_plain_settings_need_nothing():
    check_device(Settings(), CPU)
    check_device(Settings(compression=Compression.FP16), CPU)


@pytest.mark.parametrize("compression", [Compression.BF16, Compression.POWERSGD])
def test_some_compression_travels_by_nccl_only(compression):
    error = refusal(Settings(compression=compression), CPU)
    assert (error.code, error.where) == ("ST-USAG-007", "parallel.compression")
    assert error.fix == "compression: fp16"
    check_device(Settings(compression=compression), CUDA)


def test_messages_overlap_on_gpus_only():
    error = refusal(Settings(async_tp=True), CPU)
    assert (error.code, error.where) == ("ST-USAG-007", "parallel.async_tp")
    check_device(Settings(async_tp=True), CUDA)


@pytest.mark.parametrize(
    ("device", "capability", "shown"),
    [(CPU, None, "the CPU"), (CUDA, (8, 0), "capability 8.0"), (CUDA, (7, 5), "capability 7.5")],
)
def test_float8_needs_a_gpu_that_has_it(device, capability, shown):
    error = refusal(Settings(float8=True), device, capability)
    assert (error.code, error.where) == ("ST-USAG-007", "compute.float8")
    assert shown in error.what


def test_float8_needs_torchao(monkeypatch):
    monkeypatch.setattr(available, "find_spec", lambda _name: None)
    error = refusal(Settings(float8=True), CUDA, (9, 0))
    assert error.code == "ST-USAG-004"
    assert "pip install '.[float8]'" in error.fix
    monkeypatch.setattr(available, "find_spec", lambda name: name)
    check_device(Settings(float8=True), CUDA, (8, 9))
