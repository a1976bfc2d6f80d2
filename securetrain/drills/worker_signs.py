# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""D-WRK-SIGN.

A training script speaks for somebody else. Plain: it runs as the launcher's user without a sandbox,
as under torchrun, takes the launcher's key from the run directory and writes into the ledger that
the run has succeeded. Hardened: in the sandbox it finds no key, and the launcher's signing socket
refuses to sign in the name of another rank: ST-RUNT-031.
"""

import json
from pathlib import Path
from typing import Any, Final

from securetrain.core import RunDir
from securetrain.drills import jobs
from securetrain.drills.ledgers import LACKING, endings, recorded
from securetrain.drills.registry import DRILLS, Outcome
from securetrain.ledger import events

CODE: Final = DRILLS["D-WRK-SIGN"].expected_code

TAKE_KEYS: Final = """
from datetime import UTC, datetime
from securetrain.core.rundir import RunDir
from securetrain.identity.keys import PrivateKey
from securetrain.ledger import Ledger, events
def take_keys(root):
    run = RunDir(root)
    key = PrivateKey.load(run.key("agent"))
    lie = events.RunEnded(outcome="succeeded", exit_code=0)
    Ledger(run.ledger, key, "agent", lambda: datetime.now(UTC)).write(lie)
"""
"""Write into the ledger of a run as its launcher."""

ASK: Final = """
from securetrain import artifacts
from securetrain.artifacts.statement import members
from securetrain.artifacts.statement.statements import TreeInfo
from securetrain.core.errors import RuntimeRefusal
from securetrain.core.hashtree import TreeParams
def lie_to_the_socket(rank, world_size):
    run, codes = artifacts.this_run(), {}
    said = dict(run_id=run.run_id, step=9, save_id="ab" * 16, world_size=world_size, rank=rank)
    said |= {"file": None, "tree": TreeInfo.of(TreeParams())}
    for name, lie in {"rank": 0, "run_id": "job-other", "step": 1, "world_size": 1}.items():
        try:
            run.signer.hand_in(members.rank_message(**{**said, name: lie}))
        except RuntimeRefusal as error:
            codes[name] = error.code
    return codes
"""
"""Ask the signing socket for what is another's, as any rank but 0 (step 1: after a later one)."""

LIES: Final = ("rank", "run_id", "world_size")
"""What is refused in a run that has saved nothing yet."""

_JOB: Final = """
import json, os, sys
from pathlib import Path
root, out = Path(os.environ["SECURETRAIN_RUN_DIR"]), Path(sys.argv[1])
rank = int(os.environ["RANK"])
if rank == 1:
    found = {"taken": "", "codes": {}}
    try:
        take_keys(root)
        found["taken"] = "agent"
    except Exception as error:
        found["why"] = type(error).__name__
    found["codes"] = lie_to_the_socket(rank, 2)
    (out / "found.json").write_text(json.dumps(found))
"""

_OPEN: Final = """\
apiVersion: securetrain.dev/policy/v1
kind: Policy
extends: dev
metadata: {id: open, version: 1.0.0, title: Workers with the launcher's rights}
host: {sandbox: "off"}
"""


def plain(workdir: Path) -> Outcome:
    """Take the keys of a run whose workers are the launcher's user."""
    policy = workdir / "open.yaml"
    policy.write_text(_OPEN)
    run, found = _run(workdir, policy=str(policy))
    ended = endings(run)
    return Outcome.of_plain(
        found.get("taken") == "agent" and len(ended) > 1,
        f"Without a sandbox rank 1 took the launcher's key ({found.get('taken') or 'none'}):"
        f" the ledger says {len(ended)} times, with good signatures, how the run ended.",
    )


def hardened(workdir: Path) -> Outcome:
    """Let the same script loose in the sandbox."""
    run, found = _run(workdir, "--require", "sandbox")
    ended = endings(run)
    lacks = [event.code for event in ended if event.code == LACKING]
    codes: dict[str, str] = found.get("codes", {})
    refused = [e.code for e in recorded(run) if isinstance(e, events.SigningRefused)]
    all_refused = tuple(codes) == LIES and refused == list(codes.values())
    return Outcome.of_hardened(
        found.get("taken") or len(ended) > 1,
        all_refused and codes["rank"] == CODE,
        codes.get("rank", ""),
        f"Keys that rank 1 found: {found.get('taken') or 'none'}. Asked for the signature of"
        f" another, the socket refused:"
        f" {', '.join(f'{name} {code}' for name, code in codes.items()) or 'nothing'}; the"
        f" ledger has {len(refused)} entries of that.",
        lacks="the sandbox of workers" if lacks else "",
    )


def _run(workdir: Path, *words: str, **policy: str) -> tuple[RunDir, dict[str, Any]]:
    """Run the script on two ranks; the run, and what the script found."""
    job = jobs.Script(workdir, TAKE_KEYS + ASK + _JOB, 2)
    job.run(*job.hardened(*words, **policy))
    path = job.folder / "found.json"
    return job.run_dir, json.loads(path.read_text()) if path.exists() else {}
