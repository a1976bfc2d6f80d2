# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain plan --check``: a small copy of a job's model, on a small mesh of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from securetrain.core.errors import RuntimeRefusal, UsageError

if TYPE_CHECKING:
    from securetrain.parallel import Degrees
    from securetrain.train import JobConfig

SECONDS: Final = 600.0
"""For all of it: thirty-two processes may share two cores."""


def check_mesh(job: JobConfig, degrees: Degrees) -> str:
    """Compare two steps on the mesh, with at most two ranks on each axis, with one process.

    Returns:
        The result in one line.

    Raises:
        RuntimeRefusal: ST-RUNT-013 naming the layer that differs, or another of its family.
        UsageError: the settings do not go together.
    """
    from securetrain.drills import run_ranks
    from securetrain.train import check_rank, small_degrees

    small = small_degrees(degrees)
    found = run_ranks(check_rank, small.world, job, small, timeout=SECONDS)[0]
    if isinstance(found, tuple):
        code, what, where, fix = found
        kind = UsageError if code.startswith("ST-USAG") else RuntimeRefusal
        raise kind(code, what, where, fix)
    text = (
        f"checked: {found.steps} steps of a small copy on {small} equal one process"
        f" (loss {found.loss:.0e}, gradient norm {found.norm:.0e} apart)"
    )
    return f"{text}; not compared: {', '.join(found.left_out)}" if found.left_out else text
