# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Poison one rank of the built-in trainer, on a PYTHONPATH: its gradients point the other way.

``POISON=rank:step`` names the rank and the first step.
"""

import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder

_MODULE = "securetrain.train.trainer"
_RANK, _, _STEP = os.environ.get("POISON", "").partition(":")


class _Finder(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != _MODULE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if isinstance(spec, ModuleSpec) and spec.loader is not None:
            _wrap(spec.loader)
        return spec


def _wrap(loader: Loader) -> None:
    execute = loader.exec_module

    def exec_module(module):
        execute(module)
        honest = module.Trainer._forward_backward

        def poisoned(trainer, step):
            if step < int(_STEP):
                return honest(trainer, step)
            batch = trainer.rows.batch(step, trainer._share(trainer.job.data.batch_rows))
            return trainer.model.forward_backward(*batch, -trainer.tokens_per_step)

        module.Trainer._forward_backward = poisoned

    loader.exec_module = exec_module  # type: ignore[method-assign]


if _RANK and os.environ.get("RANK") == _RANK:
    sys.meta_path.insert(0, _Finder())
