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
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from securetrain.parallel.build import Description, parallelize
    from securetrain.parallel.degrees import Axis, Degrees
    from securetrain.parallel.engine import ParallelModel
    from securetrain.parallel.gradients import clip_grads, grad_norm
    from securetrain.parallel.initialization import initialize
    from securetrain.parallel.mesh import Mesh, make_mesh
    from securetrain.parallel.plan import (
        ContextKind,
        ParallelPlan,
        Precision,
        Recompute,
        Settings,
        Zero,
    )
    from securetrain.parallel.schedule import Schedule

__all__ = [
    "Axis",
    "ContextKind",
    "Degrees",
    "Description",
    "Mesh",
    "ParallelModel",
    "ParallelPlan",
    "Precision",
    "Recompute",
    "Schedule",
    "Settings",
    "Zero",
    "clip_grads",
    "grad_norm",
    "initialize",
    "make_mesh",
    "parallelize",
]

_WHERE = {
    "Axis": "degrees",
    "ContextKind": "plan",
    "Degrees": "degrees",
    "Description": "build",
    "Mesh": "mesh",
    "ParallelModel": "engine",
    "ParallelPlan": "plan",
    "Precision": "plan",
    "Recompute": "plan",
    "Schedule": "schedule",
    "Settings": "plan",
    "Zero": "plan",
    "clip_grads": "gradients",
    "grad_norm": "gradients",
    "initialize": "initialization",
    "make_mesh": "mesh",
    "parallelize": "build",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    globals()[name] = value
    return value
