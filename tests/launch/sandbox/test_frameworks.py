# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Scripts that know nothing of us do in the sandbox what they do under torchrun."""

import os

import pytest

from tests.launch.sandbox.machine import lacking
from tests.vocabulary import needs

SCRIPT = """
import os, torch, torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    compiled = torch.compile(lambda x: (x.sin() ** 2 + x.cos() ** 2).sum())
    assert abs(compiled(torch.randn(64)).item() - 64) < 1e-3
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
    for context in ("fork", "spawn"):
        for x, y in DataLoader(data, 16, num_workers=2, multiprocessing_context=context):
            (model(x) - y).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    dcp.save({"model": model.state_dict()}, checkpoint_id="saved")
    dcp.load({"model": model.state_dict()}, checkpoint_id="saved")
    with open(f"done-{dist.get_rank()}", "w") as file:
        file.write(str(os.getuid()))
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""


@pytest.mark.many
@pytest.mark.dist
@pytest.mark.netns
@needs(lacking)
def test_fsdp2_compile_loaders_and_distributed_checkpoints(launch, tmp_path, monkeypatch):
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(work)
    done = launch(tmp_path / "run", "--standalone", "--nproc-per-node", "2", "train.py")
    assert done.code == 0, done.err
    users = {int((work / f"done-{rank}").read_text()) for rank in range(2)}
    assert len(users) == 1
    assert os.getuid() not in users
    assert {path.stat().st_uid for path in (work / "saved").iterdir()} == {os.getuid()}
