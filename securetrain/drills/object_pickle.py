# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""D-OBJ-PICKLE.

Two ranks gather their metrics with ``gather_object``; rank 1 was taken over and sends an object
that runs code where it is unpickled. Plain: stock torchrun, and the marker holds rank 0's process
id. Hardened: the same script under ``securetrain run``; rank 0 refuses the object with ST-RUNT-001
in the run's ledger, no marker exists, and the run says why it ended.
"""

from pathlib import Path
from typing import Final

from securetrain.core.vocabulary import Boundary
from securetrain.drills import jobs
from securetrain.drills.ledgers import refusals
from securetrain.drills.pickles import marked_by
from securetrain.drills.registry import DRILLS, Outcome

CODE: Final = DRILLS["D-OBJ-PICKLE"].expected_code

# The job. Its payload writes one small file below the drill's work directory.
_SCRIPT: Final = """\
import os, sys
import torch.distributed as dist

class Metrics:
    def __reduce__(self):
        code = f"import os\\nopen({sys.argv[1] + '/marker'!r}, 'a').write(f'{{os.getpid()}} ')"
        return exec, (code,)

dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 0:
    with open(sys.argv[1] + "/victim", "w") as file:
        file.write(str(os.getpid()))
found = [None, None] if rank == 0 else None
dist.gather_object(Metrics() if rank == 1 else {"loss": 0.5}, found, dst=0)
dist.destroy_process_group()
"""


def plain(workdir: Path) -> Outcome:
    """Run the job under stock torchrun."""
    job = jobs.Script(workdir, _SCRIPT, 2)
    exit_code, _ = job.run(*job.plain(*jobs.TORCHRUN))
    victim, marked = _victim(job), marked_by(job.folder / "marker")
    hit = victim in marked
    ran = f"rank 0 (pid {victim}) ran its payload" if hit else "its payload did not run in rank 0"
    return Outcome.of_plain(
        hit,
        f"Rank 1 sent an object through gather_object, and {ran}. The job ended with exit code"
        f" {exit_code}.",
    )


def hardened(workdir: Path) -> Outcome:
    """Run the same job under `securetrain run`."""
    job = jobs.Script(workdir, _SCRIPT, 2)
    exit_code, _ = job.run(*job.hardened())
    victim, marked = _victim(job), marked_by(job.folder / "marker")
    codes = [event.code for event in refusals(job.run_dir, Boundary.CHECKPOINT)]
    return Outcome.of_hardened(
        marked,
        victim and CODE in codes and exit_code == 1 and not marked,
        CODE if CODE in codes else next(iter(codes), ""),
        f"Rank 1 sent the same object. The run's ledger says {', '.join(codes) or 'nothing'}:"
        f" what it names is not on the allow-list. Processes that ran the payload:"
        f" {marked or 'none'}. The run ended with exit code {exit_code}.",
    )


def _victim(job: jobs.Script) -> int:
    """The process id of rank 0; 0 when it never got so far."""
    path = job.folder / "victim"
    return int(path.read_text()) if path.exists() else 0
