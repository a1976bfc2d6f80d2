# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Targets in GPU memory: read through a host buffer, verified there, zeroed on refusal."""

import pytest
import torch

from securetrain.artifacts import SaveContext, load, save
from securetrain.core.errors import IntegrityError
from tests.vocabulary import refused

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]


@pytest.fixture
def saved(keys, now, lineage, tmp_path):
    context = SaveContext(
        **{"run_id": "r", "step": 1, "created": now, **lineage, "nodes": tuple(lineage["nodes"])}
    )
    state = {"weight": torch.arange(3_000_000, dtype=torch.float32, device="cuda")}
    save(state, tmp_path / "ckpt", key=keys.checkpoint, context=context)
    return tmp_path / "ckpt"


def test_a_checkpoint_goes_from_gpu_to_gpu(saved, trust, now):
    state = {"weight": torch.zeros(3_000_000, device="cuda")}
    load(state, saved, trust=trust, policy=None, now=now)
    assert torch.equal(state["weight"].cpu(), torch.arange(3_000_000, dtype=torch.float32))


def test_a_changed_byte_leaves_zeros_in_gpu_memory(saved, trust, now):
    data = saved / "rank-00000.bin"
    content = bytearray(data.read_bytes())
    content[5_000_000] ^= 1
    data.write_bytes(content)
    state = {"weight": torch.ones(3_000_000, device="cuda")}
    refused(IntegrityError, "ST-CKPT-130", load, state, saved, trust=trust, policy=None, now=now)
    assert not state["weight"].any()
