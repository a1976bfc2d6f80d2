# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A plain DDP script, as people write them. One rank may be poisoned.

Arguments: those of `worlds`.
"""

# mypy: ignore-errors

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from worlds import main


def build():
    return DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)))


if __name__ == "__main__":
    main(build, lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1e9))
