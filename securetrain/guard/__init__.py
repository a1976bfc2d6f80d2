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

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
