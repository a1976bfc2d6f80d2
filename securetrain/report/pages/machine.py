# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The answers of ``doctor``, ``network gc`` and ``cache``: what works and lies on this machine."""

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from securetrain.core import ExitCode
from securetrain.launch import ClearedCaches, Diagnosis, StoredCache
from securetrain.network import Collected
from securetrain.report.document import (
    Document,
    Row,
    Section,
    picked,
    table,
)


def diagnosis(found: Diagnosis) -> Document:
    """Everything that was looked at, by kind, with what to install."""
    works = found.exit_code == 0
    data = {
        "policy": found.asked,
        "findings": [
            picked(one, "kind name works problem", fix="" if one.works else one.fix)
            for one in found.findings
        ],
        "exit": found.exit_code,
    }
    sections = [
        Section(
            title=str(kind),
            rows=[
                Row(
                    state="yes" if one.works else "no",
                    name=one.name,
                    source=one.problem,
                    fix=one.fix if one.problem else "",
                )
                for one in found.findings
                if one.kind == kind
            ],
        )
        for kind in dict.fromkeys(one.kind for one in found.findings)
    ]
    good = sum(one.works for one in found.findings)
    return Document(
        verb="doctor",
        word="WORKS" if works else "DOES NOT WORK",
        about=f"the policy {found.asked} {'works' if works else 'does not work'} on this machine",
        tally={"does not work": len(found.findings) - good, "works": good},
        sections=sections,
        data=data,
        code=found.exit_code,
    )


def leftovers(found: Collected, groups: Collected) -> Document:
    """The networks and groups that were removed, are in use, or could not be removed.

    Args:
        found: The job networks.
        groups: Of cgroup v2.
    """
    problems = {**found.problems, **groups.problems}
    removed, alive = [*found.removed, *groups.removed], [*found.alive, *groups.alive]
    rows = [
        *(Row(state="removed", text=f"{name}: its owner is dead") for name in removed),
        *(Row(state="in use", text=name) for name in alive),
        *(Row(state="left", text=f"{name}: {problem}") for name, problem in problems.items()),
    ]
    code = int(ExitCode.FAILURE if problems else ExitCode.OK)
    data = {"removed": removed, "alive": alive, "problems": problems, "exit": code}
    section = Section(rows=rows, empty="no job networks on this machine")
    return Document(sections=[section], data=data, code=code)


_NO_CACHES = "no caches of this user on this machine"


def caches(found: Sequence[StoredCache]) -> Document:
    """Every cache: its size, its last use, and what it was compiled with."""
    used = {one.name: datetime.fromtimestamp(one.used, UTC) for one in found}
    rows = [
        (
            one.name,
            f"{one.size / 1e6:.1f} MB",
            "in use" if one.in_use else f"used {used[one.name]:%Y-%m-%d}",
            _made(one),
        )
        for one in found
    ]
    data = {
        "caches": [
            picked(
                one,
                "name in_use",
                bytes=one.size,
                used=used[one.name].isoformat(timespec="seconds"),
                key=msgspec.to_builtins(one.key),
            )
            for one in found
        ],
        "exit": int(ExitCode.OK),
    }
    shown = table(("cache", "size", "state", "made with"), rows, empty=_NO_CACHES)
    return Document(sections=[shown], data=data)


def cleared(done: ClearedCaches) -> Document:
    """The caches that were removed, and those that runs use."""
    rows = [
        *(Row(state="removed", text=name) for name in done.removed),
        *(Row(state="in use", text=name) for name in done.in_use),
    ]
    code = int(ExitCode.FAILURE if done.in_use else ExitCode.OK)
    data = {"removed": list(done.removed), "in_use": list(done.in_use), "exit": code}
    return Document(sections=[Section(rows=rows, empty=_NO_CACHES)], data=data, code=code)


def _made(one: StoredCache) -> str:
    if one.key is None:
        return "not described by a key that can be believed"
    packages = " ".join(f"{name} {version}" for name, version in sorted(one.key.packages.items()))
    return f"{packages}, policy {one.key.policy[:19]}, workers of user {one.key.user}"
