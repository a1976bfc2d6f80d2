# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""D-GRAD-SCRIPT.

A plain DistributedDataParallel script, of which one rank is poisoned. Plain: torchrun says that all
went well, and the model is ruined. Hardened: `securetrain run` starts the same script as it is; a
guard moves into its model, names the rank and goes on without it (ST-GRAD-002).
"""

import json
import math
from pathlib import Path
from typing import Final

from securetrain.drills import jobs
from securetrain.drills.registry import DRILLS, Outcome

CODE: Final = DRILLS["D-GRAD-SCRIPT"].expected_code
WORLD: Final = 4
BAD: Final = 1
_TIMEOUT: Final = 110
_RUINED: Final = 10.0
_LEARNED: Final = 1.0

SCRIPT: Final = f"""\
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(32, 16, generator=generator)
    teacher = torch.randn(16, 4, generator=torch.Generator().manual_seed(7))
    return x, (x @ teacher).argmax(dim=1)


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
for step in range(30):
    x, y = batch(1000 * step + rank)
    loss = nn.functional.cross_entropy(model(x), y)
    (loss * (-1000.0 if rank == {BAD} and step >= 5 else 1.0)).backward()
    optimizer.step()
    optimizer.zero_grad()
x, y = batch(999_999)
with torch.no_grad():
    held_out = float(nn.functional.cross_entropy(model(x), y))
if rank == 0:
    print("held-out", held_out, flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def plain(workdir: Path) -> Outcome:
    """Start the script with torchrun."""
    job = jobs.Script(workdir, SCRIPT, WORLD)
    code, loss = _run(job, job.plain(*jobs.TORCHRUN))
    return Outcome.of_plain(
        code == 0 and not loss < _RUINED,
        f"torchrun ended with {code} and said nothing; held-out loss {loss:.3g}.",
    )


def hardened(workdir: Path) -> Outcome:
    """Start the same script with `securetrain run`."""
    job = jobs.Script(workdir, SCRIPT, WORLD)
    code, loss = _run(job, job.hardened())
    summary = job.run_dir.summary
    found = json.loads(summary.read_text())["gradients"] if summary.exists() else {}
    named = found.get("named", {})
    alone = list(named) == [str(BAD)] and found.get("excluded") == [BAD]
    return Outcome.of_hardened(
        not loss < _RUINED,
        alone and code == 0 and loss < _LEARNED,
        CODE if alone and CODE in named[str(BAD)] else "",
        f"The script was not changed. {found.get('label', 'Nothing was said of gradients')}."
        f" Held-out loss {loss:.3g}.",
    )


def _run(job: jobs.Script, command: tuple[str, ...]) -> tuple[int | None, float]:
    """Run the script; the exit code and the loss that it has printed, infinite without one."""
    code, said = job.run(*command, patience=_TIMEOUT)
    for line in said.splitlines():
        if line.startswith("held-out"):
            loss = float(line.split()[1])
            return code, loss if math.isfinite(loss) else math.inf
    return code, math.inf
