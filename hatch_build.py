# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The build step: compile the guard's kernel into the wheel, or in place for an editable install.

A wheel with the kernel is one of a platform, and of any Python: the kernel does not use Python's
interface. Without a compiler, or with SECURETRAIN_PURE=1 at build time, the wheel is a pure one: it
says so here, and the guard says so when it runs. With SECURETRAIN_KERNEL=required, as for a
release, there is no wheel without a kernel.
"""

import importlib.util
import os
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelHook(BuildHookInterface):  # type: ignore[type-arg]
    """Called by hatchling before it collects the files of a wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and tell hatchling what came of it."""
        root = Path(self.root)
        kernel = _tool(root)
        target = root / kernel.LIBRARY
        if version == "editable":
            target.unlink(missing_ok=True)  # of another source or another machine
        else:
            self._folder = tempfile.TemporaryDirectory(prefix="securetrain-kernel-")
            target = Path(self._folder.name) / target.name
        if os.environ.get("SECURETRAIN_PURE", "0") != "0":
            self.app.display_info("SECURETRAIN_PURE: no kernel is compiled")
            return
        try:
            kernel.compile_kernel(root / kernel.SOURCE, target)
        except kernel.NoKernelError as error:
            if os.environ.get("SECURETRAIN_KERNEL", "") == "required":
                raise
            self.app.display_warning(
                f"the gradient guard's kernel was not compiled: {error}. Sketches are computed by "
                "torch: the same numbers, about twenty times slower"
            )
            return
        if version != "editable":
            build_data["force_include"][str(target)] = kernel.LIBRARY
            build_data["pure_python"] = False
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"py3-none-{platform}"


def _tool(root: Path) -> Any:
    """tools/kernel.py, which is no package of the build environment."""
    spec = importlib.util.spec_from_file_location("kernel", root / "tools" / "kernel.py")
    assert spec is not None, "the file is part of every source distribution"
    assert spec.loader is not None, "a Python file has one"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
