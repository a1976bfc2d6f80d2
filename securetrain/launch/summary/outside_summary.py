# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Sentences about what scripts did out of the policy's reach, from the workers' reports."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

from securetrain.core import printable
from securetrain.core.errors import RuntimeRefusal
from securetrain.core.vocabulary import (
    DATA_NOT_KNOWN,
    LOADS_NOT_HELD,
    PROGRAMS_NOT_PROTECTED,
    EnforcementMode,
)
from securetrain.launch.process.workerlog import WorkerReport
from securetrain.launch.summary.run_summary import OutsideSummary
from securetrain.ledger import Ledger, events
from securetrain.policy import load_demands, read_demands, shim_demands
from securetrain.policy.schema import Policy

HOLD: Final = "load with securetrain.artifacts (docs/how-to/signed-checkpoints.md)"
SHIELD: Final = "start a Python script without --no-python"
READ: Final = "read data with securetrain.artifacts (docs/how-to/signed-datasets.md)"
_NAMED: Final = 16
_TEXT: Final = 300
_MOST: Final = 1_000_000


def at_start(policy: Policy, *, protected: bool = True) -> Iterator[str]:
    """Say what is known before the workers start."""
    required = policy.enforcement is EnforcementMode.REQUIRE
    if not protected:
        yield _without_shim(policy)
    elif fields := load_demands(policy):
        then = "refused (enforcement: require)" if required else "said"
        yield (
            f"loads: held to {', '.join(fields)} where the script uses securetrain.artifacts; other"
            f" loads are {then}"
        )
    if fields := read_demands(policy):
        then = "; a run that reads none so is refused at its end (enforcement: require)"
        yield (
            f"data: held to {', '.join(fields)} where the script uses securetrain.artifacts; what"
            f" it reads otherwise is NOT KNOWN{then if required else ''}"
        )


def at_end(
    policy: Policy, reports: Sequence[WorkerReport], *, protected: bool = True
) -> OutsideSummary | None:
    """Say what came of it; None when there is nothing to say.

    Args:
        policy: The run's.
        reports: Of all attempts.
        protected: Whether the workers ran under the shim.
    """
    said = [report.outside for report in reports if report.outside is not None]
    programs = _added(one.programs for one in said)
    loads = _added(one.loads for one in said)
    fields = load_demands(policy) if loads else ()
    unread = () if any(one.reads_signed for one in said) else read_demands(policy)
    lines = [] if protected else [_without_shim(policy)]
    unshielded = () if protected else shim_demands(policy)
    if programs:
        lines.append(
            f"{PROGRAMS_NOT_PROTECTED}: {_count(programs, 'program')} without the shim, first"
            f" {next(iter(programs))}; what they train, save and load is not known; start workers"
            " with 'securetrain run', or processes with multiprocessing"
        )
    if loads:
        place = next((_safe(one.places[0]) for one in said if one.places), "unknown")
        lines.append(
            f"{LOADS_NOT_HELD}: {_count(loads, 'load')} by {', '.join(loads)}, first {place}; not"
            f" enforced: {', '.join(fields)}; {HOLD}"
        )
    if unread:
        lines.append(
            f"{DATA_NOT_KNOWN}: none was read with securetrain; not enforced: {', '.join(unread)};"
            f" {READ}"
        )
    if not lines:
        return None
    return OutsideSummary(
        labels=tuple(lines),
        programs=programs,
        loads=loads,
        fields=(*dict.fromkeys((*unshielded, *fields, *unread)),),
        unread=unread,
        unshielded=unshielded,
    )


def refusal(policy: Policy, found: OutsideSummary | None) -> RuntimeRefusal | None:
    """The refusal of a run that ended well, where all that is asked of its data is required."""
    if policy.enforcement is not EnforcementMode.REQUIRE or found is None or not found.unread:
        return None
    return RuntimeRefusal(
        "ST-RUNT-021",
        "no signed dataset was opened, and the policy requires that all of it is enforced"
        " (enforcement)",
        f"policy: {', '.join(found.unread)}",
        f"{READ}; or allow it, and have it reported: enforcement: report",
    )


def _without_shim(policy: Policy) -> str:
    fields = ", ".join(shim_demands(policy))
    return (
        f"{PROGRAMS_NOT_PROTECTED}: the workers run without the shim"
        f"{f'; not enforced: {fields}' if fields else ''}; {SHIELD}"
    )


def record_outside(
    found: OutsideSummary | None, ledger: Ledger, say: Callable[[str], None]
) -> None:
    """Record and say the end of it."""
    if found is None:
        return
    for line in found.labels:
        say(line)
    end = "end of the run"
    if found.unshielded:
        fields = ", ".join(found.unshielded)[:500]
        ledger.write(events.ProgramsNotProtected(subject="all workers", fields=fields))
    if found.programs:
        total = sum(found.programs.values())
        ledger.write(events.ProgramsNotProtected(subject=end, programs=total))
    if found.loads:
        ledger.write(
            events.LoadsNotHeld(
                subject=end,
                ways=", ".join(found.loads)[:500],
                fields=", ".join(found.fields)[:500],
                loads=sum(found.loads.values()),
            )
        )
    if found.unread:
        ledger.write(events.DataNotKnown(subject=end, fields=", ".join(found.unread)[:500]))


def _added(said: Iterator[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in said:
        for name, times in one.items():
            total[_safe(name)] += min(max(times, 0), _MOST)
    return dict(islice(((name, total[name]) for name in sorted(total) if total[name]), _NAMED))


def _safe(text: str) -> str:
    return printable(text[:_TEXT], keep="")[:_TEXT]


def _count(times: dict[str, int], noun: str) -> str:
    total = sum(times.values())
    return f"{total} {noun}{'' if total == 1 else 's'}"
