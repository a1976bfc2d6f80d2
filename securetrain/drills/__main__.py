# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One side of a drill: ``python -m securetrain.drills MODULE[:NAME] plain|hardened WORKDIR``.

It attacks, and leaves the outcome where `registry.run_drill` finds it.
"""

import sys
from importlib import import_module
from pathlib import Path

from securetrain.core import canonical
from securetrain.core.files import write_atomic
from securetrain.drills.registry import OUTCOME_FILE, Side


def main(where: str, side: Side, workdir: Path) -> None:
    """Attack one stack."""
    module, _, name = where.partition(":")
    sides = import_module(module, __package__)
    outcome = getattr(getattr(sides, name) if name else sides, side)(workdir)
    write_atomic(workdir / OUTCOME_FILE, canonical.encode(outcome))


if __name__ == "__main__":
    main(sys.argv[1], Side(sys.argv[2]), Path(sys.argv[3]))
