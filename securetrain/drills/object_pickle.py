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

from securetrain.core import RunDir
from securetrain.core.vocabulary import Boundary
from securetrain.drills import jobs
from securetrain.drills.ledgers import refusals
from securetrain.drills.pickles import marked_by
from securetrain.drills.registry import DRILLS, Outcome, Side

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
    exit_code = _run(workdir, *jobs.TORCHRUN)
    victim, marked = _victim(workdir), marked_by(_work(workdir) / "marker")
    hit = victim in marked
    ran = f"rank 0 (pid {victim}) ran its payload" if hit else "its payload did not run in rank 0"
    return Outcome(
        side=Side.PLAIN,
        succeeded=hit,
        evidence=(
            f"Rank 1 sent an object through gather_object, and {ran}. The job ended with exit code"
            f" {exit_code}."
        ),
    )


def hardened(workdir: Path) -> Outcome:
    """Run the same job under `securetrain run`."""
    run_dir = RunDir(workdir / "run")
    words = ("--policy", "dev", "--output", str(_work(workdir)))
    exit_code = _run(workdir, *jobs.ours(run_dir, *words))
    victim, marked = _victim(workdir), marked_by(_work(workdir) / "marker")
    codes = [event.code for event in refusals(run_dir, Boundary.CHECKPOINT)]
    refused = bool(victim) and CODE in codes and exit_code == 1 and not marked
    return Outcome(
        side=Side.HARDENED,
        succeeded=bool(marked),
        refused=refused,
        code=CODE if CODE in codes else next(iter(codes), ""),
        evidence=(
            f"Rank 1 sent the same object. The run's ledger says {', '.join(codes) or 'nothing'}:"
            f" what it names is not on the allow-list. Processes that ran the payload:"
            f" {marked or 'none'}. The run ended with exit code {exit_code}."
        ),
    )


def _run(workdir: Path, *program: str) -> int | None:
    """Run the job's two ranks; returns the exit code, None when it ran out of time."""
    work = _work(workdir)
    work.mkdir()
    script = work / "job.py"
    script.write_text(_SCRIPT)
    words = (*program, "--nproc-per-node", "2", str(script), str(work))
    return jobs.run(*words, cwd=workdir)[0]


def _work(workdir: Path) -> Path:
    """The job's own folder, which holds no run and so can be written to anywhere."""
    return workdir / "work"


def _victim(workdir: Path) -> int:
    """The process id of rank 0; 0 when it never got so far."""
    path = _work(workdir) / "victim"
    return int(path.read_text()) if path.exists() else 0
