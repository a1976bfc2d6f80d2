# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Saves that nobody signed: from the workers' reports to one sentence."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import islice
from typing import Final

from securetrain.core import printable
from securetrain.core.vocabulary import NOT_SIGNED, EnforcementMode
from securetrain.launch.process.workerlog import SaveReport, WorkerReport
from securetrain.launch.summary.run_summary import CheckpointSummary
from securetrain.policy import unsigned_demands
from securetrain.policy.schema import Policy

SIGNED: Final = "checkpoints: signed as files"
NOT_KNOWN: Final = "checkpoints: NOT KNOWN"
INSTEAD: Final = "save with securetrain.artifacts (docs/how-to/signed-checkpoints.md)"
_FLAG: Final = "--sign-checkpoints signs what torch and frameworks save, or "
_SHOWN: Final = 3
_NAMED: Final = 16
"""Functions and places that are kept."""
_TEXT: Final = 300
_MOST: Final = 1_000_000


def at_start(policy: Policy, *, protected: bool) -> str:
    """Say what is known before the workers start."""
    if not protected:
        return f"{NOT_KNOWN}: the workers run without the shim"
    required = policy.enforcement is EnforcementMode.REQUIRE
    then = "refused (enforcement: require)" if required else "said (enforcement: report)"
    if policy.checkpoint.sign_saves:
        lacking = unsigned_demands(policy)
        if required and lacking:
            return f"checkpoints: every save by torch is refused: files cannot meet {lacking[0]}"
        return (
            "checkpoints: saves by dcp, torch, safetensors and frameworks are signed as files;"
            f" other saves are {then}"
        )
    return (
        f"checkpoints: signed where the script uses securetrain.artifacts; other saves are {then}"
    )


def at_end(
    policy: Policy, reports: Sequence[WorkerReport], *, protected: bool, num_workers: int
) -> CheckpointSummary:
    """Say what came of it.

    Args:
        policy: The run's.
        reports: Of all attempts: what an attempt saved is there after it failed.
        protected: Whether the workers ran under the shim.
        num_workers: On this node.
    """
    ways, places = _saved(reports)
    signed = _signed(reports)
    silent = num_workers - len({report.rank for report in reports if report.saves is not None})
    why = ""
    if not protected:
        why = "the workers run without the shim"
    elif silent > 0:
        why = f"{silent} of {num_workers} workers left no report"
    fields = unsigned_demands(policy) if ways or signed else ()
    if ways:
        label = f"{NOT_SIGNED}: {_words(ways)}, first {places[0]}; {_consequence(fields)}"
        label += f"; {'' if policy.checkpoint.sign_saves else _FLAG}{INSTEAD}"
        label += f"; {why}" if why else ""
    elif signed:
        label = f"{SIGNED}: {_words(signed)}"
        label += f"; not met by signed files: {', '.join(fields)}" if fields else ""
        label += f"; {why}" if why else ""
    else:
        label = f"{NOT_KNOWN}: {why}" if why else ""
    return CheckpointSummary(
        label=label,
        unsigned=sum(ways.values()),
        ways=ways,
        places=places,
        fields=fields,
        is_known=not why,
        signed=signed,
    )


def _signed(reports: Sequence[WorkerReport]) -> dict[str, int]:
    """Give the saves that were signed, by function; the ledger has each with its rank."""
    ways: Counter[str] = Counter()
    for report in reports:
        for way, times in (report.saves.signed if report.saves is not None else {}).items():
            ways[_safe(way)] += min(max(times, 0), _MOST)
    return dict(islice(((way, ways[way]) for way in sorted(ways) if ways[way]), _NAMED))


def _saved(reports: Sequence[WorkerReport]) -> tuple[dict[str, int], tuple[str, ...]]:
    """Give the calls by function, and the first places.

    What ranks of one attempt do together is one save: the rank with the most counts. A worker may
    write anything into its report: names are made safe for a terminal, and all of it is bounded.
    """
    by_attempt: defaultdict[int, list[SaveReport]] = defaultdict(list)
    for report in sorted(reports, key=lambda one: (one.attempt, one.rank)):
        if report.saves is not None:
            by_attempt[report.attempt].append(report.saves)
    ways: Counter[str] = Counter()
    for said in by_attempt.values():
        for way in {way for one in said for way in one.unsigned}:
            most = max(one.unsigned.get(way, 0) for one in said)
            ways[_safe(way)] += min(max(most, 0), _MOST)
    known = {way: ways[way] for way in sorted(ways) if ways[way]}
    if not known:
        return {}, ()
    places = dict.fromkeys(
        _safe(place) for said in by_attempt.values() for one in said for place in one.places
    )
    some = dict(islice(known.items(), _NAMED))
    return some, tuple(islice(places, _NAMED)) or ("unknown",)


def _safe(text: str) -> str:
    return printable(text[:_TEXT], keep="")[:_TEXT]


def _words(ways: dict[str, int]) -> str:
    total = sum(ways.values())
    return f"{total} save{'' if total == 1 else 's'} by {', '.join(ways)}"


def _consequence(fields: Sequence[str]) -> str:
    if not fields:
        return "'securetrain verify' refuses them"
    more = f" and {len(fields) - _SHOWN} more" if len(fields) > _SHOWN else ""
    return f"'securetrain verify' refuses them; not enforced: {', '.join(fields[:_SHOWN])}{more}"
