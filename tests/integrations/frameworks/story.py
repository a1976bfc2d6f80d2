# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The part that the scripts of all frameworks share: the snippet of the page, and its phases.

Arguments: the page, a JSON list of phases, a folder for results. A phase has `resume`; `plain`
leaves the hook out; `alter` is a checkpoint that is changed first; `poisoned` is a rank.
"""

# mypy: ignore-errors

import json
import os
import re
import sys
from pathlib import Path

import torch
import torch.distributed as dist

PAGE, PHASES, OUT = Path(sys.argv[1]), json.loads(sys.argv[2]), Path(sys.argv[3])
RANK = int(os.environ["RANK"])
FENCE = r'^```python title="{}"\n(.*?)^```$'


def snippet(title):
    """The code of the page, as it stands there."""
    (code,) = re.findall(FENCE.format(title), PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return code


def run(title, names, phase, plain):
    """Run the snippet of a framework; without its hook in a plain phase."""
    code = snippet(title)
    if phase.get("plain"):
        code = "\n".join(
            line for line in code.splitlines() if "securetrain.integrations" not in line
        )
        names.update(plain)
    exec(compile(code, str(PAGE), "exec"), names)
    return names


def tell(once, alter):
    """Go through the phases; what each came to is written down for this rank."""
    told = []
    for phase in PHASES:
        if phase.get("alter"):
            if RANK == 0:
                alter(phase["alter"])
            dist.barrier()
        try:
            told.append(once(phase))
        except BaseException as error:  # torch's CheckpointException is no Exception
            code = getattr(error, "code", None)
            if code is None and not phase.get("plain"):
                raise
            told.append({"code": code, "what": f"{type(error).__name__}: {error}"})
        told[-1]["planted"] = Path("planted").exists()
        if len(told) < len(PHASES) and dist.is_initialized():
            dist.barrier()  # the next phase may plant it: nobody begins before all have looked
    OUT.mkdir(exist_ok=True)
    (OUT / f"rank-{RANK}.json").write_text(json.dumps(told))


class Rows(torch.utils.data.Dataset):
    """Rows whose labels a teacher draws: no model predicts all of them."""

    def __init__(self, number, seed=0):
        generator = torch.Generator().manual_seed(seed)
        teacher = torch.randn(16, 4, generator=torch.Generator().manual_seed(7))
        self.x = torch.randn(number, 16, generator=generator)
        chances = (self.x @ teacher / 2).softmax(dim=1)
        self.y = torch.multinomial(chances, 1, generator=generator).flatten()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


def network():
    """A small classifier, the same on every rank."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))


def summed(model):
    """One number of all weights."""
    return float(sum(p.detach().double().sum() for p in model.parameters()))
