# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Gradients watched: who is off, and was the reduction tampered with?

```python
guard = GradientGuard(group, policy.gradients, on_record=write_line)
guard.attach(model)                 # after fully_shard or DistributedDataParallel, once
...
loss.backward()
verdict = guard.judge(step)         # every rank, before clipping and before optimizer.step()
verdict.raise_if_halted()
optimizer.step()                    # the gradients of a refused step are already dropped
```

Mode `detect` (this room today) watches ordinary collectives. What it catches and what it cannot
is stated in the docstring of each module: :mod:`~securetrain.guard.sketch`,
:mod:`~securetrain.guard.beacon`, :mod:`~securetrain.guard.hooks`,
:mod:`~securetrain.guard.integrity`, :mod:`~securetrain.guard.detector`.

The names are loaded on first use, so that reading records (`StepRecord`) does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from securetrain.guard.guard import GradientGuard
    from securetrain.guard.verdict import RankScore, StepRecord, Totals, Verdict

__all__ = ["GradientGuard", "RankScore", "StepRecord", "Totals", "Verdict"]


def __getattr__(name: str) -> Any:
    match name:
        case "GradientGuard":
            module = "securetrain.guard.guard"
        case "RankScore" | "StepRecord" | "Totals" | "Verdict":
            module = "securetrain.guard.verdict"
        case _:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)
