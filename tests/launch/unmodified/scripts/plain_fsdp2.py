# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A plain script with fully_shard, as people write them. One rank may be poisoned.

Arguments: those of `worlds`.
"""

# mypy: ignore-errors

from torch import nn
from torch.distributed.fsdp import fully_shard
from worlds import main


def build():
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    for layer in (model[0], model[2]):
        fully_shard(layer)
    return fully_shard(model)


if __name__ == "__main__":
    main(build)
