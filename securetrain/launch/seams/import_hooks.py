# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Run a function right after a module has been imported, without importing it.

The finder stands first on `sys.meta_path`, lets the ordinary finders find the module, and wraps the
loader's ``exec_module``. A module that is already there is treated at once. When the function fails
the import fails: a seam that could not be closed is not left open.

While torch is imported nothing is collected as garbage: there is none, and looking for it takes a
quarter of the time that a worker needs until it trains.
"""

import gc
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Final, TypeAlias

Patch: TypeAlias = Callable[[ModuleType], None]
_LARGE: Final = frozenset({"torch", "torch._dynamo", "transformers"})
"""Modules that import hundreds of others."""


class PostImportFinder(importlib.abc.MetaPathFinder):
    """Calls a patch once for each of the modules that it knows."""

    def __init__(self, patches: Mapping[str, Patch]) -> None:
        self._patches = dict.fromkeys(_LARGE, lambda _: None) | dict(patches)

    def install(self) -> None:
        """Treat the modules that are loaded already, and wait for the others."""
        sys.meta_path.insert(0, self)
        for name in [name for name in self._patches if name in sys.modules]:
            self._patches.pop(name)(sys.modules[name])

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find a known module by the other finders and wrap its loader."""
        patch = self._patches.get(fullname)
        spec = self._found_by_others(fullname, path, target) if patch is not None else None
        if patch is None or spec is None or (loader := spec.loader) is None:
            return None
        run = loader.exec_module

        def exec_and_patch(module: ModuleType) -> None:
            collects = gc.isenabled() and fullname in _LARGE
            if collects:
                gc.disable()
            try:
                run(module)
            finally:
                if collects:
                    gc.enable()
            patch(module)
            self._patches.pop(fullname, None)

        # Each spec has a loader of its own; set on it, the hook lives as long as this import.
        loader.exec_module = exec_and_patch  # type: ignore[method-assign]
        return spec

    def _found_by_others(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        others = [one for one in sys.meta_path if one is not self and hasattr(one, "find_spec")]
        found = (one.find_spec(name, path, target) for one in others)
        return next((spec for spec in found if spec is not None), None)
