# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The cause of a failed run: from the workers' ends to one error.

torch's agent knows ranks, exit codes and signals; the workers' own reports know exceptions. When
the exception was one of ours, its code becomes the run's, and so its exit code. Otherwise the run
ends with ST-RUNT-004. A report is written by the worker: its code is only believed if it exists.
"""

import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from securetrain.core import CODES
from securetrain.core.errors import RuntimeRefusal, SecureTrainError
from securetrain.launch.agent.elastic_agent import Failure
from securetrain.launch.node.confinement import Confinement
from securetrain.launch.process.workerlog import (
    WorkerError,
    WorkerReport,
    is_only_lost,
    is_second_hand,
)
from securetrain.network import address
from securetrain.rendezvous.wire import Membership, node_ranks

_TERMINATED: Final = -15
_KILLED: Final = -9
_RANK: Final = re.compile(r"\brank[ :]{1,2}(\d{1,7})\b|default_pg/\S*/(\d{1,7})\b", re.IGNORECASE)
_ADDRESS: Final = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")
_ASKED: Final = frozenset({130, 143})
"""Exit codes of who ends because it was asked to."""


def as_error(
    failures: Sequence[Failure],
    reports: Sequence[WorkerReport],
    log_dir: Path,
    *,
    confined: Confinement | None = None,
    membership: Membership | None = None,
    lost: Sequence[str] = (),
) -> SecureTrainError:
    """The one error for a set of failed workers.

    Args:
        failures: Not empty.
        reports: Of all attempts; the latest of each rank counts.
        log_dir: Where torch keeps workers' logs.
        confined: Whose sandbox may have refused a path, and what limits it has reached.
        membership: The epoch in which they failed.
        lost: Its members that were out by then.
    """
    latest: dict[int, WorkerReport] = {}
    for report in sorted(reports, key=lambda r: r.attempt):
        latest[report.rank] = report
    errors = {
        f.rank: latest[f.rank].error
        for f in failures
        # Who was killed said nothing: what there is, is of an attempt before.
        if f.rank in latest and f.exit_code != _KILLED
    }
    first = root_cause(failures, errors)
    cause = errors.get(first.rank)
    others = len({f.rank for f in failures}) - 1
    more = f" ({others} other {'ranks' if others > 1 else 'rank'} ended after it)" if others else ""
    log = log_file(log_dir, first)
    if cause is not None and not is_only_lost(cause) and (family := _family(cause.code)):
        return family(
            cause.code, f"rank {first.rank}: {cause.message}{more}", cause.where, cause.fix
        )
    why = f": {cause.kind}: {cause.message}" if cause is not None else ""
    if membership is not None and is_second_hand(cause):
        why += others_of_group(latest[first.rank], membership, lost)
    return RuntimeRefusal(
        "ST-RUNT-004",
        f"rank {first.rank} (pid {first.pid}) ended with {first.ending}{why}{more}",
        str(log) if log else f"its output above; --tee 3 keeps it below {log_dir}",
        _fix(first, cause, confined),
    )


def others_of_group(report: WorkerReport, membership: Membership, lost: Sequence[str]) -> str:
    """The ranks and nodes that a rank has lost: torch names keys, addresses and ranks.

    Args:
        report: Of the rank.
        membership: The epoch.
        lost: Its members that were out.
    """
    message = report.error.message if report.error is not None else ""
    group = report.group
    ranks = set(group.missing) if group is not None and not group.arrived else set()
    named = {int(one or other) for one, other in _RANK.findall(message)}
    ranks |= named - {report.rank}
    said = [
        f"rank {', '.join(map(str, here))} is on {node.node}"
        for node in node_ranks(membership)
        if (here := sorted(ranks.intersection(node.ranks)))
    ]
    addresses = set(_ADDRESS.findall(message))
    for member in membership.members:
        inside = address(membership.job, member.rank) if member.wireguard else member.address
        if str(inside) in addresses:
            said.append(f"{inside} is {member.node}")
    said += [f"{node} had left the epoch" for node in lost]
    return f"; {'; '.join(said)}" if said else ""


def _fix(first: Failure, cause: WorkerError | None, confined: Confinement | None) -> str:
    if confined is not None and confined.reached:
        return "; ".join(confined.reached)
    if first.exit_code <= 0:
        return "find out what ended it: out of memory, a fault, or somebody's kill"
    if is_second_hand(cause):
        return (
            "another rank or node ended before it: read what is said of that one, there; then start"
            " the run again, it goes on from its last checkpoint"
        )
    boxed = confined is not None and confined.sandbox is not None
    return (sandbox_fix(cause) if boxed else "") or "correct the script and run it again"


def sandbox_fix(cause: WorkerError | None) -> str:
    """The option by which a path is let into the sandbox; empty when that is not the reason."""
    if cause is None or not cause.where:
        return ""
    match cause.errno:
        case errno.EROFS | errno.EACCES | errno.EPERM:
            folder = Path(cause.where).parent
            return f"workers may not write there: --output {folder}, or --output {cause.where}"
        case errno.ENOENT if os.path.lexists(cause.where):
            return f"workers do not see it: --input {cause.where}"
        case _:
            return ""


def root_cause(
    failures: Sequence[Failure], errors: dict[int, WorkerError | None] | None = None
) -> Failure:
    """The failure that came first.

    An error of ours explains more than anything else. A worker that was killed had no time to
    report, and is found later than those whose connections to it broke. These come after everything
    that has a cause of its own, also where a save or a guard has put their loss in words of ours.
    Workers that the agent itself ended, by SIGTERM or because they did not follow it, come last.
    """
    known = errors or {}

    def order(failure: Failure) -> tuple[int, int, int]:
        error = known.get(failure.rank)
        return _place(failure, error), failure.timestamp, failure.rank

    return min(failures, key=order)


def _place(failure: Failure, error: WorkerError | None) -> int:
    second_hand = is_second_hand(error)
    if error is not None and not second_hand and _family(error.code) is not None:
        return 0
    if failure.was_killed or failure.exit_code == _TERMINATED:
        return 5
    if failure.exit_code == _KILLED:  # nobody's consequence, however late it is seen
        return 1
    if second_hand or (failure.was_told and failure.exit_code in _ASKED):
        return 4
    return 3 if failure.was_told and failure.exit_code > 0 else 2


def log_file(log_dir: Path, failure: Failure) -> Path | None:
    """The newest file with the worker's standard error or output, if torch was told to keep one."""
    found = [
        path
        for name in ("stdout.log", "stderr.log")
        for path in log_dir.glob(f"*/attempt_*/{failure.local_rank}/{name}")
    ]
    return max(found, key=lambda path: (path.stat().st_mtime_ns, path.name), default=None)


def _family(code: str) -> type[SecureTrainError] | None:
    if code not in CODES:
        return None
    families = SecureTrainError.__subclasses__()
    return next((cls for cls in families if CODES[code].family in cls.families), None)
