# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The share of the settings of public training repositories that the audit finds.

`recall.csv` was written by reading the files, before the audit read any of them, and is never
corrected: repository, commit, file and line of each setting that a reviewer would point at, and the
check that is for it. ``line`` is a setting that stands there (``line+2``: there or up to two lines
below), ``lacks`` one that is absent, for which its document counts. The files themselves are not
kept here; RECALL names a folder of clones, each named OWNER+NAME::

    git clone https://github.com/kubeflow/mpi-operator /tmp/clones/kubeflow+mpi-operator
    RECALL=/tmp/clones make bench
"""

import csv
import os
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.ab import Figure
from securetrain.audit.documents import facts_of
from securetrain.audit.engine.audit import audit
from securetrain.audit.sources.catalogue import load_checks
from securetrain.audit.subjects.kubernetes.collect.collect import collect_manifests
from securetrain.core.vocabulary import Severity, State
from securetrain.policy.load import load_policy

LABELS: Final = Path(__file__).with_name("recall.csv")
GOAL: Final = 90.0


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the labels."""

    repository: str
    commit: str
    file: str
    line: int
    check: str
    place: str

    @property
    def path(self) -> str:
        """Its file below a folder of all repositories."""
        return f"{self.repository.replace('/', '+')}/{self.file}"


def settings() -> list[Setting]:
    """All labels."""
    with LABELS.open(newline="") as file:
        rows: list[dict[str, Any]] = [dict(row) for row in csv.DictReader(file)]
    return [Setting(**{**row, "line": int(row["line"])}) for row in rows]


@dataclass(slots=True)
class Said:
    """What the audit says: the lines of what it finds, and where documents begin, of each file."""

    used: dict[tuple[str, str], set[tuple[int, State]]]
    """Where a command or field says it."""
    written: dict[tuple[str, str], set[tuple[int, State]]]
    """Where a variable's text says it that a command uses."""
    starts: dict[str, list[int]]

    def at(self, one: Setting, places: Iterable[str]) -> State | None:
        """A failure, not known, or nothing: at its line, or anywhere in its ``document``."""
        first, last = one.line, one.line + int(one.place.partition("+")[2] or 0)
        if one.place == "lacks" or "document" in places:
            starts = self.starts[one.path]
            first = max(start for start in starts if start <= one.line)
            last = min((start for start in starts if start > one.line), default=1 << 30)
        key = one.path, one.check
        found = [self.used[key]] if "used" in places else []
        found += [self.written[key]] if "written" in places else []
        states = {state for lines in found for line, state in lines if first <= line <= last}
        return State.FAIL if State.FAIL in states else State.UNKNOWN if states else None


def measured(clones: Path) -> Said:
    """What the audit says of the repositories."""
    labels = settings()
    said = Said(defaultdict(set), defaultdict(set), {})
    with tempfile.TemporaryDirectory(prefix="recall-") as name:
        folder = Path(name)
        for one in labels:
            target = folder / one.path
            if target.exists():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            clone = clones / one.repository.replace("/", "+")
            clone = clone / "repo" if (clone / "repo").is_dir() else clone
            command = ["git", "-C", str(clone), "show", f"{one.commit}:{one.file}"]
            data = subprocess.run(command, check=True, capture_output=True).stdout
            target.write_bytes(data)
            lines = data.decode().splitlines()
            said.starts[one.path] = [0, *(n for n, line in enumerate(lines, 1) if line == "---")]
        policy = load_policy("baseline").policy
        for part in sorted(folder.iterdir()):  # each repository by itself, as a user would
            now = datetime.now(UTC)
            facts = facts_of(collect_manifests([part], now=now))
            for finding in audit(facts, load_checks(), policy, now).findings:
                at = finding.location
                if finding.state not in {State.FAIL, State.UNKNOWN} or at is None:
                    continue
                for kind, place in ((said.used, at), (said.written, at.written)):
                    if place:
                        file = str(Path(place.path).relative_to(folder))
                        kind[file, finding.check].add((place.line, finding.state))
    return said


def recall() -> Figure | None:
    """The share that fails at its place, of all and of critical and high ones; what is unknown
    there, and what fails elsewhere in its document. Its place is that of the command that uses it,
    or that of the text that a variable brings there.
    """
    clones = os.environ.get("RECALL")
    if not clones:
        print("  SKIPPED: RECALL names no folder of clones; see benchmarks/recall.py")
        return None
    found = measured(Path(clones))
    said = {one: found.at(one, ("used", "written")) for one in settings()}
    used = {one: found.at(one, ("used",)) for one in said}
    anywhere = {one: found.at(one, ("used", "written", "document")) for one in said}
    weights = {check.id: check.severity for check in load_checks()}
    serious = [one for one in said if weights[one.check] >= Severity.HIGH]
    values = {
        "settings": len(said),
        "found %": _share(said, list(said)),
        "critical and high %": _share(said, serious),
        "at their line %": _share(said, [one for one in said if one.place != "lacks"]),
        "in their document %": _share(anywhere, list(anywhere)),
        "critical and high in their document %": _share(anywhere, serious),
        "found where it is used": Counter(used.values())[State.FAIL],
        "only where it is written": sum(said[one] is State.FAIL is not used[one] for one in said),
        "unknown instead": Counter(said.values())[State.UNKNOWN],
        "silent": Counter(said.values())[None],
    }
    return Figure(
        name="audit-recall",
        title="settings of public repositories that the audit finds",
        values=values,
        goal=f">= {GOAL:.0f} % of all, and of critical and high ones",
        goal_met=min(values["found %"], values["critical and high %"]) >= GOAL,
    )


def _share(said: Mapping[Setting, State | None], of: list[Setting]) -> float:
    return 100 * sum(said[one] is State.FAIL for one in of) / len(of)


FIGURES: Final[dict[str, Callable[[], Figure | None]]] = {"audit-recall": recall}
