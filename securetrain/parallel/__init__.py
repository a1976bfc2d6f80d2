# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Parallel training over named mesh axes.

```python
mesh = make_mesh(Degrees(dp_shard=2, tp=4), "cuda")     # in every process of a group of eight
description = Description(build=..., materialize=..., plan=MyPlan())
model = parallelize(description, mesh, Settings(), device)
loss = model.forward_backward(inputs, targets, tokens)  # the same call on every mesh
norm = grad_norm(model.parameters(), stages)
clip_grads(model.parameters(), norm, 1.0)
```

The names are loaded when they are used: importing this package does not import torch.

Resolve degrees for a group of eight, and weigh a pipeline's schedule:

>>> from securetrain.parallel import Degrees, Schedule, bubble, stages_of
>>> Degrees(dp_shard=2, tp=4)
Degrees(pp=1, dp_replicate=1, dp_shard=2, cp=1, tp=4, ep=1)
>>> bubble(Schedule.ONE_F_ONE_B, ranks=4, microbatches=8)
0.2727272727272727
>>> stages_of(Schedule.INTERLEAVED_1F1B, rank=1, ranks=4)
(1, 5)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
