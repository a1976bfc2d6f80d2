# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The answers of ``doctor``, ``network gc`` and ``cache``: what works and lies on this machine."""

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from securetrain.core import ExitCode
from securetrain.launch import ClearedCaches, Diagnosis, StoredCache
from securetrain.network import Collected
from securetrain.report.document import Document, Row, picked, stated, table, titled


def diagnosis(found: Diagnosis) -> Document:
    """Everything that was looked at, by kind, with what to install."""
    works = found.exit_code == 0
    rows, told = [], []
    for one in found.findings:
        told.append(picked(one, "kind name works problem", fix="" if one.works else one.fix))
        state, fix = "yes" if one.works else "no", one.fix if one.problem else ""
        row = Row(state=state, name=one.name, source=one.problem, fix=fix)
        rows.append((str(one.kind), row))
    good = sum(one.works for one in found.findings)
    return Document(
        verb="doctor",
        word="WORKS" if works else "DOES NOT WORK",
        about=f"the policy {found.asked} {'works' if works else 'does not work'} on this machine",
        tally={"does not work": len(found.findings) - good, "works": good},
        sections=titled(rows),
        data={"policy": found.asked, "findings": told, "exit": found.exit_code},
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
        *(("removed", f"{name}: its owner is dead") for name in removed),
        *(("in use", name) for name in alive),
        *(("left", f"{name}: {problem}") for name, problem in problems.items()),
    ]
    code = int(ExitCode.FAILURE if problems else ExitCode.OK)
    data = {"removed": removed, "alive": alive, "problems": problems, "exit": code}
    shown = stated(rows, empty="no job networks on this machine")
    return Document(sections=[shown], data=data, code=code)


_NO_CACHES = "no caches of this user on this machine"


def caches(found: Sequence[StoredCache]) -> Document:
    """Every cache: its size, its last use, and what it was compiled with."""
    rows, told = [], []
    for one in found:
        used, size = datetime.fromtimestamp(one.used, UTC), f"{one.size / 1e6:.1f} MB"
        state = "in use" if one.in_use else f"used {used:%Y-%m-%d}"
        rows.append((one.name, size, state, _made(one)))
        more = {"used": used.isoformat(timespec="seconds"), "key": msgspec.to_builtins(one.key)}
        told.append(picked(one, "name in_use", bytes=one.size, **more))
    shown = table(("cache", "size", "state", "made with"), rows, empty=_NO_CACHES)
    return Document(sections=[shown], data={"caches": told, "exit": int(ExitCode.OK)})


def cleared(done: ClearedCaches) -> Document:
    """The caches that were removed, and those that runs use."""
    rows = [("removed", name) for name in done.removed] + [("in use", n) for n in done.in_use]
    code = int(ExitCode.FAILURE if done.in_use else ExitCode.OK)
    data = {"removed": list(done.removed), "in_use": list(done.in_use), "exit": code}
    return Document(sections=[stated(rows, empty=_NO_CACHES)], data=data, code=code)


def _made(one: StoredCache) -> str:
    if one.key is None:
        return "not described by a key that can be believed"
    packages = " ".join(f"{name} {version}" for name, version in sorted(one.key.packages.items()))
    script = one.key.script.split(" of ")[0][:19]
    return f"{packages}, {script}, policy {one.key.policy[:19]}, workers of user {one.key.user}"
