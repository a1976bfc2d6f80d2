# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The report of a worker to the launcher: one small JSON file for each rank and attempt.

The worker writes it whole (``<run>/workers/rank-00000-attempt-0.json``), the launcher reads it
after the workers have ended, with a size limit and a strict schema. A file that cannot be read is
reported as missing, never as a pass.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from securetrain.core import RunDir, canonical
from securetrain.core.errors import SecureTrainError
from securetrain.core.files import make_missing_dir, read_file, write_atomic
from securetrain.launch.process.sockets import SocketCheck

LIMIT: Final = 256 << 10
TEXT_LIMIT: Final = 4 << 10
SHUTDOWN: Final = 30.0
LONGEST_SHUTDOWN: Final = 600.0
"""Seconds that a worker's word can make a launcher wait that was told to end."""
_NAME: Final = re.compile(r"rank-(\d{5,10})-attempt-(\d{1,6})(-child-\d{1,8})?\.json")

_LOST: Final = re.compile(
    r"closed by peer|reset by peer|broken pipe|likely closed|got 0 bytes"
    r"|remote process exit|ncclRemoteError|communicator was aborted|timed out waiting"
    r"|pair closure|remote end closed|connection refused|socket.{1,12}timed out|wait timeout after"
    r"|failed to pass monitoredBarrier|socket is not connected|transport endpoint is not connected",
    re.IGNORECASE,
)
"""In torch's words for a connection to another rank that is gone."""


class WorkerError(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The exception that ended a worker."""

    kind: str
    message: str
    code: str = ""
    """The refusal's code, when it was one of ours."""
    where: str = ""
    fix: str = ""
    errno: int = 0
    """Of a system call that was refused for a path, which is in `where`."""


class GradientReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The gradients of one rank, by its own word."""

    models: tuple[str, ...] = ()
    """The models into which a guard moved by itself."""
    judged: int = 0
    """Steps."""
    refused: int = 0
    settled: int = 0
    """Steps that were reduced again without the ranks that spoiled them."""
    named: dict[str, tuple[str, ...]] = {}
    """The ranks that verdicts name, with the codes of these."""
    excluded: tuple[int, ...] = ()
    """Ranks whose gradients counted zero at some time."""
    unwatched_steps: int = 0
    """Steps of optimizers on gradients that nobody judged."""
    reasons: tuple[str, ...] = ()
    """Why, each once."""
    seconds: int = 0
    """Of the longest step."""


class SaveReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The saves of one rank that nobody signed, by its own word."""

    unsigned: dict[str, int] = {}
    """How often each function was called."""
    places: tuple[str, ...] = ()
    """The first of the files and directories."""
    signed: dict[str, int] = {}
    """How often what each function saved was signed by the launcher."""
    seconds: int = 0
    """Of the longest."""
    is_saving: bool = False
    """Whether one has been going on for a while."""


class OutsideReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The doings of one rank's script outside of the policy's reach, by the rank's own word."""

    programs: dict[str, int] = {}
    """How often programs in Python were started without the shim."""
    loads: dict[str, int] = {}
    """How often functions loaded what is not held to the policy's demands."""
    places: tuple[str, ...] = ()
    """The first of the files that were loaded."""
    reads_signed: bool = False
    """Whether the script has used securetrain's readers of datasets."""


class GroupReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The way of one rank into its first default group, by its own word (`worker.arrival`)."""

    arrived: bool
    missing: tuple[int, ...] = ()
    """The ranks that it waits for, as far as it can tell."""
    timeout: float
    """Seconds that the script gives the group."""
    begun: float
    """When the process was started, by the machine's steady clock: workers that are started again
    may have the same rank and attempt."""


class WorkerReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The report of one rank of one attempt."""

    rank: int
    attempt: int
    protected: tuple[str, ...] = ()
    """The modules whose seams were closed, in the order in which they were imported."""
    num_checks: int = 0
    """How often the sockets were checked."""
    sockets: SocketCheck | None = None
    """The last check that found another set of listeners than the one before."""
    nccl_tls: tuple[str, ...] = ()
    """The NCCL libraries that encrypt with the job's key."""
    gradients: GradientReport | None = None
    """None where the policy watches no gradients."""
    saves: SaveReport | None = None
    """None from a shim that did not look."""
    outside: OutsideReport | None = None
    """None from a shim that did not look."""
    group: GroupReport | None = None
    """None from a rank that has not begun to make one."""
    child: int = 0
    """The id of the process, when the worker has started it; only what it did is in its report."""
    error: WorkerError | None = None

    @property
    def has_news(self) -> bool:
        """Tell whether it says that anything was trained, saved, loaded or started."""
        gradients, saves, outside = self.gradients, self.saves, self.outside
        return bool(
            (gradients and (gradients.judged or gradients.unwatched_steps or gradients.reasons))
            or (saves and (saves.unsigned or saves.signed))
            or (outside and (outside.programs or outside.loads))
        )


def report_path(run: RunDir, rank: int, attempt: int, child: int = 0) -> Path:
    """The path of a rank's report, or of a process that it has started."""
    own = f"-child-{child}" if child else ""
    return run.workers / f"rank-{rank:05d}-attempt-{attempt}{own}.json"


def write_report(run: RunDir, report: WorkerReport) -> None:
    """Write a worker's report, replacing an older one of the same rank and attempt."""
    path = report_path(run, report.rank, report.attempt, report.child)
    make_missing_dir(path.parent)
    write_atomic(path, canonical.encode(report), mode=0o600)


def read_reports(run: RunDir) -> Iterator[tuple[str, WorkerReport | SecureTrainError]]:
    """Every report of a run by file name, in order; the error instead of an unreadable one."""
    folder = run.workers
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    for name in names:
        if not _NAME.fullmatch(name):
            continue
        try:
            yield (
                name,
                canonical.decode(
                    read_file(folder / name, LIMIT), WorkerReport, limit=LIMIT, where=name
                ),
            )
        except SecureTrainError as error:
            yield name, error


def read_report(run: RunDir, rank: int, attempt: int) -> WorkerReport | None:
    """The report of a rank and an attempt; None when there is none that can be read."""
    path = report_path(run, rank, attempt)
    if not path.exists():
        return None
    try:
        return canonical.decode(read_file(path, LIMIT), WorkerReport, limit=LIMIT, where=path.name)
    except SecureTrainError:
        return None


def good_reports(run: RunDir) -> list[WorkerReport]:
    """Those that can be read."""
    return [report for _, report in read_reports(run) if isinstance(report, WorkerReport)]


def shutdown_seconds(run: RunDir) -> float:
    """The time that workers want to finish a step, save and end, by what they took until now.

    It is their word: torch's half a minute is theirs in any case, and `LONGEST_SHUTDOWN` the most.
    """
    reports = good_reports(run)
    saves = [one.saves for one in reports if one.saves is not None]
    steps = [one.gradients.seconds for one in reports if one.gradients is not None]
    if any(one.is_saving for one in saves):
        return LONGEST_SHUTDOWN
    took = max(steps, default=0) + max((one.seconds for one in saves), default=0)
    return min(LONGEST_SHUTDOWN, SHUTDOWN + took)


def is_second_hand(error: WorkerError | None) -> bool:
    """Tell whether an error says no more than that another rank is gone."""
    if error is None:
        return False
    match error.code:
        case "ST-RUNT-004" | "ST-GRAD-010":  # another rank refused, or is silent
            return True
        case "":
            return bool(_LOST.search(error.message))
        case _:
            return is_only_lost(error)


def is_only_lost(error: WorkerError) -> bool:
    """Tell whether it is our words around a lost connection: in a save torch's errors get them."""
    return error.code.startswith("ST-USAG-") and bool(_LOST.search(error.message))


def describe(error: BaseException) -> WorkerError:
    """An exception as data, bounded."""
    error = _unwrapped(error)
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{kind.__module__}.{name}"
    if isinstance(error, SecureTrainError):
        return WorkerError(
            kind=name,
            message=error.what[:TEXT_LIMIT],
            code=error.code,
            where=error.where[:TEXT_LIMIT],
            fix=error.fix[:TEXT_LIMIT],
        )
    refused = _refused_path(error)
    return WorkerError(
        kind=name,
        message=str(error)[:TEXT_LIMIT],
        where=refused[1],
        errno=refused[0],
    )


def _refused_path(error: BaseException) -> tuple[int, str]:
    """The path of a file that could not be used, if that is why a worker ended."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno and isinstance(seen.filename, str):
            return seen.errno, str(Path(seen.filename).absolute())[:TEXT_LIMIT]
        seen = seen.__cause__ or seen.__context__
    return 0, ""


def _unwrapped(error: BaseException) -> BaseException:
    """Our own error inside torch's CheckpointException, which holds one for each rank."""
    failures = getattr(error, "failures", None)
    for found in failures.values() if isinstance(failures, dict) else ():
        inner = found[0] if isinstance(found, tuple) and found else found
        if isinstance(inner, SecureTrainError):
            return inner
    return error
