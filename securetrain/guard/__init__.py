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

Aggregate gradients of which one lies (on CPU or GPU):

>>> import torch
>>> from securetrain.guard import aggregate
>>> stacked = torch.tensor([[1.0, 2.0], [1.1, 2.1], [0.9, 1.9], [-50.0, 90.0]])
>>> aggregate.Median()(stacked)
tensor([0.9500, 2.0500])
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
