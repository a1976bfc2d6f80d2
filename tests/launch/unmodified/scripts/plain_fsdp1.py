# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A plain script with FSDP1, as people wrote them. One rank may be poisoned.

Arguments: those of `worlds`.
"""

# mypy: ignore-errors

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from worlds import main


def build():
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    cpu = torch.device("cpu")
    for index in (0, 2):
        model[index] = FullyShardedDataParallel(model[index], device_id=cpu, use_orig_params=True)
    return FullyShardedDataParallel(model, device_id=cpu, use_orig_params=True)


if __name__ == "__main__":
    main(build, lambda model: model.clip_grad_norm_(1e9))
