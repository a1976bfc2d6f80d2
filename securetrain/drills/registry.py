# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The table of drills and how one is run.

Rules:

1. a drill is one attack, run twice: against the plain stack, where it must succeed, and against
   the hardened one, where it must be refused with the expected code;
2. an attack that fails against the plain stack proves nothing: ST-DRIL-001, whatever the hardened
   side did. An attack that is not refused is ST-DRIL-002; refused for another reason, ST-DRIL-003;
3. each side is a process of its own, with a clean environment, bounded in time and killed with
   all that it started; it connects to loopback only and writes below its own work directory, and
   a temporary one of its own (short: a UNIX socket's path has 107 bytes) that is removed;
4. a side that crashes, hangs or reports nothing has neither succeeded nor refused anything;
5. a side that needs what this machine lacks says so, and the drill was not run: ST-DRIL-004.

This module never imports torch; the sides do, in their own processes.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgspec

import securetrain
from securetrain.core import canonical
from securetrain.core.errors import AuditError, SecureTrainError, UsageError
from securetrain.core.files import make_private_dir, read_file
from securetrain.core.vocabulary import Boundary
from securetrain.drills.process_tree import end_of, started

SIDE_TIMEOUT: Final = 120.0
"""Seconds that one side may take. On two idle cores a side takes less than fifteen."""

STACK: Final = ("torch", "numpy")
"""The packages that are attacked, and without which `audit` and `verify` work."""
OUTCOME_FILE: Final = "outcome.json"
_OUTCOME_LIMIT: Final = 256 << 10
_LOG_TAIL: Final = 2000

Progress: TypeAlias = Callable[[str], None]


class Side(StrEnum):
    """The stack under attack."""

    PLAIN = "plain"
    HARDENED = "hardened"


class Outcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The outcome of one side."""

    side: Side
    succeeded: bool
    """Whether the attack reached its aim."""
    refused: bool = False
    """Whether the attack was stopped by a check that said so."""
    code: str = ""
    """The refusal's code, empty when nothing was refused."""
    lacks: str = ""
    """What this machine lacks for the attack; empty when it was made."""
    evidence: str
    """The observations, in plain sentences."""
    seconds: float = 0.0

    @classmethod
    def not_made(cls, side: Side, lacks: str) -> "Outcome":
        """The outcome where this machine lacks what the attack needs."""
        return cls(side=side, succeeded=False, lacks=lacks, evidence="It was not started.")

    @classmethod
    def of_plain(cls, succeeded: bool, evidence: str) -> "Outcome":  # noqa: FBT001 - as in a table
        """The outcome of the side that has no check."""
        return cls(side=Side.PLAIN, succeeded=succeeded, evidence=evidence)

    @classmethod
    def of_hardened(
        cls, harm: object, refused: object, code: str, evidence: str, *, lacks: str = ""
    ) -> "Outcome":
        """The outcome of ours: whether there was harm, and whether the attack was refused."""
        return cls(
            side=Side.HARDENED,
            succeeded=bool(harm),
            refused=bool(refused),
            code=code,
            evidence=evidence,
            lacks=lacks,
        )


Attack: TypeAlias = Callable[[Path], Outcome]


class Sides(NamedTuple):
    """An attack on each of the stacks, given its work directory."""

    plain: Attack
    hardened: Attack


_WHERE: Final = "run it where that is; 'securetrain doctor' says what is missing"


class DrillResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Both sides of one drill, and what they prove."""

    id: str
    title: str
    boundary: Boundary
    expected_code: str
    plain: Outcome
    hardened: Outcome
    ok: bool
    problem: str = ""
    """The drill's own code (ST-DRIL-001 to 004) when it is not ok."""

    def error(self) -> AuditError | None:
        """The failure of the drill as an error, None when it is ok."""
        if not self.problem:
            return None
        plain, ours = self.plain, self.hardened
        other = f"{ours.code or 'no code'} instead of {self.expected_code}: {ours.evidence}"
        what, fix = other, "see the side's log in the work directory"
        if self.problem == "ST-DRIL-001":
            what = plain.evidence
        elif self.problem == "ST-DRIL-002":
            what, fix = ours.evidence, "do not train on this machine until it is"
        elif self.problem == "ST-DRIL-004":
            what, fix = plain.lacks or ours.lacks, _WHERE
        return AuditError(self.problem, what, self.id, fix)


class Drill(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One attack."""

    id: str
    module: str
    """The module that has a function for each side, or ``module:name`` of what has them."""
    boundary: Boundary
    expected_code: str
    """The code with which the hardened side must refuse the attack."""
    title: str
    summary: str
    timeout: float = SIDE_TIMEOUT
    in_quickstart: bool = False
    """Whether the tour of `securetrain quickstart` runs it."""


def _table(*drills: Drill) -> dict[str, Drill]:
    table = {drill.id: drill for drill in drills}
    assert len(table) == len(drills), "a drill is defined twice"
    return table


DRILLS: Final[Mapping[str, Drill]] = _table(
    Drill(
        *("D-RDZ-PICKLE", ".rendezvous_pickle", Boundary.RENDEZVOUS, "ST-ADMN-002"),
        "Run code in the launcher through the rendezvous port",
        "One TCP connection to the c10d rendezvous store lists its keys and overwrites the "
        "rendezvous state with a pickle; torchrun's agent unpickles it.",
        in_quickstart=True,
    ),
    Drill(
        *("D-OBJ-PICKLE", ".object_pickle", Boundary.CHECKPOINT, "ST-RUNT-001"),
        "Run code in one rank from another",
        "A rank that was taken over sends an object through gather_object; whoever gathers "
        "unpickles it.",
        in_quickstart=True,
    ),
    Drill(
        *("D-CKPT-METADATA", ".checkpoint_metadata", Boundary.CHECKPOINT, "ST-CKPT-141"),
        "Run code in the trainer through a checkpoint's index",
        "A checkpoint's .metadata file is a pickle; whoever can write beside the weights replaces "
        "it, and the next load runs it.",
        in_quickstart=True,
    ),
    Drill(
        *("D-CKPT-SWAP", ".artifact_swap", Boundary.CHECKPOINT, "ST-CKPT-125"),
        "Put another signed artifact in the place of the one that is meant",
        "A whole directory that the same key signed is copied over the one that is meant.",
    ),
    Drill(
        *("D-GRAD-POISON", ".gradient_cases:POISON", Boundary.GRADIENTS, "ST-GRAD-002"),
        "Ruin the model from one rank",
        "One of four ranks sends its gradients with the sign flipped and ten times as long; the "
        "mean that everybody applies points uphill.",
        in_quickstart=True,
    ),
    Drill(
        *("D-GRAD-NAN", ".gradient_cases:NOT_FINITE", Boundary.GRADIENTS, "ST-GRAD-001"),
        "Put NaN into every weight from one rank",
        "One rank's gradient is NaN or infinite from one step on, in a replicated and in a "
        "sharded model.",
    ),
    Drill(
        *("D-GRAD-LIES", ".gradient_cases:LIES", Boundary.GRADIENTS, "ST-GRAD-011"),
        "Lie to whoever compares gradients",
        "One rank says the honest sketch of what it sends times -5, scales or bends its rows, "
        "shifts two parts by +V and -V, or accuses the others of having told it another table.",
    ),
    Drill(
        *("D-GRAD-DRIFT", ".gradient_cases:DRIFT", Boundary.GRADIENTS, "ST-GRAD-002"),
        "Bend the model a little in every step",
        "One rank drifts by its own length, flips its sign (also where a module is skipped in "
        "every second step), or copies its neighbour.",
    ),
    Drill(
        *("D-GRAD-NULL", ".gradient_cases:NULL_SPACE", Boundary.GRADIENTS, "ST-GRAD-002"),
        "Hide from a sketch whose seed is known",
        "One rank knows the code and all seeds so far, and drifts only where the sketch of the "
        "newest one sees nothing.",
    ),
    Drill(
        *("D-GRAD-SILENT", ".gradient_silent", Boundary.GRADIENTS, "ST-GRAD-010"),
        "Stop all ranks by saying nothing",
        "One rank sends its gradient and is silent from then on; the others wait for it.",
    ),
    Drill(
        *("D-GRAD-SCRIPT", ".gradient_script", Boundary.GRADIENTS, "ST-GRAD-002"),
        "Poison one rank of a script that knows of no guard",
        "A plain DistributedDataParallel script, started as it is; one of four ranks sends its "
        "gradient times -1000.",
    ),
    Drill(
        *("D-MBR-CLOSE", ".member_close", Boundary.RENDEZVOUS, "ST-ADMN-033"),
        "End the job for everybody from one member",
        "A member that was taken over says that the job is over; in torch's rendezvous the word "
        "of any node ends it for all.",
    ),
    Drill(
        *("D-MBR-ACCUSE", ".member_accusation", Boundary.RENDEZVOUS, "ST-ADMN-035"),
        "Throw an honest node out from another one",
        "A member that was taken over takes another one out of the round: every node may write "
        "the state of torch's rendezvous.",
    ),
    Drill(
        *("D-MBR-FLOOD", ".member_flood", Boundary.RENDEZVOUS, "ST-ADMN-031"),
        "Wear the control plane down from one member",
        "A member that was taken over writes to torch's store, or renews its lease, without end; "
        "memory or the ledger grows with it.",
    ),
    Drill(
        *("D-MBR-ADDRESS", ".member_address", Boundary.RENDEZVOUS, "ST-ADMN-032"),
        "Announce an address or key that can be nobody's",
        "A member that was taken over announces 0.0.0.0 and is rank 0; the workers of all nodes "
        "are sent there.",
    ),
    Drill(
        *("D-MBR-DROP", ".member_drop", Boundary.RENDEZVOUS, "ST-ADMN-005"),
        "Keep the others waiting by going at the wrong moment",
        "A member drops out of a complete round, or never says what it runs; torch's agents wait "
        "for it in the store for five minutes.",
    ),
    Drill(
        *("D-MBR-RANK", ".member_ranks", Boundary.RENDEZVOUS, "ST-ADMN-040"),
        "Take another node's rank through the store",
        "A member that was taken over writes the ranks of all into the store of the round; "
        "torch's agents believe it.",
    ),
    Drill(
        *("D-ENR-CROWD", ".enrollment_crowd", Boundary.RENDEZVOUS, "ST-ADMN-010"),
        "Keep machines from enrolling with 200 addresses",
        "200 addresses hold the port at which machines enroll, and come back as soon as they are "
        "pushed out.",
    ),
    Drill(
        *("D-RUN-LINK", ".run_dir_link", Boundary.HOST, "ST-USAG-018"),
        "Have a run write into another directory",
        "Whoever may write to the working directory plants a link in the place of the run "
        "directory's parent; logs, and keys, go where it leads.",
    ),
    Drill(
        *("D-WRK-HOST", ".worker_host", Boundary.HOST, "ST-RUNT-004"),
        "Rewrite the machine from a training script",
        "A script that root starts tries 72 things: cron, keys, homes, other processes, other "
        "jobs, mounts, devices, the kernel. Needs root.",
        timeout=3 * SIDE_TIMEOUT,
    ),
    Drill(
        *("D-WRK-SIGN", ".worker_signs", Boundary.IDENTITY, "ST-RUNT-031"),
        "Sign in another's name from a training script",
        "A script takes the run's keys and writes into the ledger as the launcher; where it has "
        "none, it asks the signing socket to sign for another rank.",
    ),
)


def run_drill(drill_id: str, workdir: Path, progress: Progress | None = None) -> DrillResult:
    """Run both sides of a drill below `workdir`, which is made when missing.

    Args:
        drill_id: A key of `DRILLS`.
        workdir: Where all files of the drill go; each run needs an unused one.
        progress: Told in a few words what is going on.

    Raises:
        UsageError: ST-USAG-001 for an unknown id, ST-USAG-005 when the work directory was used.
    """
    if drill_id not in DRILLS:
        fix = f"name one of {', '.join(DRILLS)}"
        raise UsageError("ST-USAG-001", f"there is no drill {drill_id!r}", "", fix)
    return run_sides(DRILLS[drill_id], workdir, progress or (lambda _: None))


def run_sides(drill: Drill, workdir: Path, progress: Progress) -> DrillResult:
    """Run both sides of `drill` and judge them; see `run_drill`."""
    outcomes = {}
    for side in Side:
        progress(f"{drill.id}: attacking the {side} stack")
        outcomes[side] = _run_side(drill, side, workdir.resolve() / side)
        progress(f"{drill.id}: {side}: {outcomes[side].evidence.splitlines()[0]}")
    return judge(drill, outcomes[Side.PLAIN], outcomes[Side.HARDENED])


def judge(drill: Drill, plain: Outcome, hardened: Outcome) -> DrillResult:
    """Say what two outcomes prove (rules 1, 2 and 5)."""
    problem = ""
    if plain.lacks or hardened.lacks:
        problem = "ST-DRIL-004"
    elif not plain.succeeded:
        problem = "ST-DRIL-001"
    elif hardened.succeeded or not hardened.refused:
        problem = "ST-DRIL-002"
    elif hardened.code != drill.expected_code:
        problem = "ST-DRIL-003"
    told = {name: getattr(drill, name) for name in ("id", "title", "boundary", "expected_code")}
    return DrillResult(plain=plain, hardened=hardened, ok=not problem, problem=problem, **told)


def lacking() -> str:
    """Name what is not installed of the stack, and how it is; empty when all of it is there."""
    missing = " and ".join(name for name in STACK if find_spec(name) is None)
    installing = "in a checkout: pip install -e '.[train]'"
    return f"the stack that is attacked: no {missing} ({installing})" if missing else ""


def clean_environment(home: Path, temporary: Path) -> dict[str, str]:
    """The environment of a side: nothing of the caller's, so neither his secrets nor settings."""
    root = str(Path(securetrain.__file__).resolve().parent.parent)
    return {
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.defpath]),
        "PYTHONPATH": root,
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(temporary),
    }


def _run_side(drill: Drill, side: Side, workdir: Path) -> Outcome:
    if workdir.exists():
        raise UsageError("ST-USAG-005", "already exists", str(workdir))
    if lacks := lacking():
        return Outcome.not_made(side, lacks)
    make_private_dir(workdir)
    log = workdir / "side.log"
    begin = time.monotonic()
    with log.open("wb") as out, tempfile.TemporaryDirectory(prefix="drill-") as temporary:
        command = [sys.executable, "-m", __package__, drill.module, side, str(workdir)]
        environment = clean_environment(workdir, Path(temporary))
        with started(command, cwd=workdir, env=environment, stdout=out) as process:
            code = end_of(process, drill.timeout)
    seconds = round(time.monotonic() - begin, 2)
    return _collect(side, workdir, code, seconds, log)


def _collect(side: Side, workdir: Path, code: int | None, seconds: float, log: Path) -> Outcome:
    """Read what a side reported; anything else than a report and exit 0 proves nothing (rule 4)."""
    problem = "ran out of time" if code is None else f"ended with exit code {code}"
    if code == 0:
        try:
            data = read_file(workdir / OUTCOME_FILE, _OUTCOME_LIMIT)
            outcome = canonical.decode(data, Outcome, where=str(workdir / OUTCOME_FILE))
            if outcome.side is side:
                return msgspec.structs.replace(outcome, seconds=seconds)
            problem = f"reported for the side {outcome.side}"
        except SecureTrainError as error:
            problem = f"left no report ({error.what})"
    tail = log.read_bytes()[-_LOG_TAIL:].decode("utf-8", "replace").strip()
    evidence = f"The {side} side {problem}. The end of its log:\n{tail}"
    return Outcome(side=side, succeeded=False, evidence=evidence, seconds=seconds)
