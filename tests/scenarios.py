# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Many scenarios for one group of real ranks: a script whose `main()` each rank runs.

The script finds RANK, SIZE and what else it is given among its globals, before its first line. What
`main()` returns comes back as JSON has it, so that assertions compare lists and numbers.
"""

import json
import runpy
from pathlib import Path
from typing import Any

import torch.distributed as dist

from securetrain.testing.processes import run_ranks


def run_scenarios(script: Path, size: int, *, timeout: float, **given: Any) -> list[Any]:
    """What `main()` of the script returned on each rank, in their order."""
    return run_ranks(_main, size, str(script), given, timeout=timeout)


def _main(script: str, given: dict[str, Any]) -> Any:
    names = {"RANK": dist.get_rank(), "SIZE": dist.get_world_size(), **given}
    return json.loads(json.dumps(runpy.run_path(script, names, "worker")["main"]()))
