# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Starts `holder` in milliseconds: without site-packages, and without what our packages import.

A program, run by path (``python -I -S start.py``). It is no module of the house: it stands for the
packages above `holder`, whose own ``__init__`` needs what only site-packages have.
"""

import sys
from types import ModuleType


def main() -> int:
    """Run the holder."""
    folder = __file__.rpartition("/")[0]
    for name in ("securetrain.launch.sandbox", "securetrain.launch", "securetrain"):
        package = ModuleType(name)
        package.__path__ = [folder]
        sys.modules[name] = package
        folder = folder.rpartition("/")[0]
    from securetrain.launch.sandbox import holder  # noqa: PLC0415 - only now it can be found

    return holder.main()


if __name__ == "__main__":
    sys.exit(main())
