# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Sentences about what scripts did out of the policy's reach, from the workers' reports."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

from securetrain.core import printable
from securetrain.core.vocabulary import LOADS_NOT_HELD, PROGRAMS_NOT_PROTECTED, EnforcementMode
from securetrain.launch.run_summary import OutsideSummary
from securetrain.launch.workerlog import WorkerReport
from securetrain.ledger import Ledger, events
from securetrain.policy import load_demands, read_demands
from securetrain.policy.schema import Policy

HOLD: Final = "load with securetrain.artifacts (docs/how-to/signed-checkpoints.md)"
READ: Final = "read data with securetrain.artifacts (docs/how-to/signed-datasets.md)"
_NAMED: Final = 16
_TEXT: Final = 300
_MOST: Final = 1_000_000


def at_start(policy: Policy) -> Iterator[str]:
    """Say what is known before the workers start."""
    required = policy.enforcement is EnforcementMode.REQUIRE
    if fields := load_demands(policy):
        then = "refused (enforcement: require)" if required else "said"
        yield (
            f"loads: held to {', '.join(fields)} where the script uses securetrain.artifacts; other"
            f" loads are {then}"
        )
    if fields := read_demands(policy):
        yield (
            f"data: held to {', '.join(fields)} where the script uses securetrain.artifacts; what"
            " it reads otherwise is NOT KNOWN"
        )


def at_end(policy: Policy, reports: Sequence[WorkerReport]) -> OutsideSummary | None:
    """Say what came of it; None when there is nothing to say.

    Args:
        policy: The run's.
        reports: Of all attempts.
    """
    said = [report.outside for report in reports if report.outside is not None]
    programs = _added(one.programs for one in said)
    loads = _added(one.loads for one in said)
    fields = load_demands(policy) if loads else ()
    unread = () if any(one.reads_signed for one in said) else read_demands(policy)
    lines = []
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
            f"data: NOT KNOWN: none was read with securetrain; not enforced: {', '.join(unread)};"
            f" {READ}"
        )
    if not lines:
        return None
    return OutsideSummary(
        labels=tuple(lines), programs=programs, loads=loads, fields=(*fields, *unread)
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
