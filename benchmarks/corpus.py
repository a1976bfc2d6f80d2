# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The audit of files beside Checkov, on a corpus that people labelled (`tests/audit/corpus`).

Checkov is not installed with the project: it wants other versions of what the project uses. Put it
into an environment of its own and name it::

    python3 -m venv /tmp/checkov && /tmp/checkov/bin/pip install checkov
    CHECKOV=/tmp/checkov/bin/checkov make bench

Checkov names the lines of an object, ours the line of a setting. What is found at its line is for
Checkov a label inside the lines that it names, by one of its checks for the same fault.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.ab import Figure
from securetrain.audit.documents import facts_of
from securetrain.audit.engine.audit import audit
from securetrain.audit.sources.catalogue import load_checks
from securetrain.audit.subjects.kubernetes.collect.collect import collect_manifests
from securetrain.audit.subjects.slurm.collect.cluster import collect_slurm
from securetrain.audit.subjects.storage.collect.files import collect_storage
from securetrain.core.vocabulary import State
from securetrain.policy.load import load_policy
from tests.audit.corpus.labels import Label, unpack

if TYPE_CHECKING:
    from securetrain.audit.facts import Body

SAME: Final = {
    "ST-K8S-001": {"CKV_K8S_16", "CKV_K8S_2"},
    "ST-K8S-002": {"CKV_K8S_19"},
    "ST-K8S-003": {"CKV_K8S_18"},
    "ST-K8S-004": {"CKV_K8S_17"},
    "ST-K8S-006": {"CKV_K8S_27"},
    "ST-K8S-007": {"CKV_K8S_25", "CKV_K8S_39", "CKV_K8S_28"},
    "ST-K8S-008": {"CKV_K8S_23", "CKV_K8S_40", "CKV_K8S_6"},
    "ST-K8S-009": {"CKV_K8S_20", "CKV_K8S_31"},
    "ST-K8S-010": {"CKV_K8S_43", "CKV_K8S_14"},
    "ST-K8S-013": {"CKV_K8S_35"},
    "ST-K8S-014": {"CKV_K8S_38"},
    "ST-K8S-015": {"CKV_K8S_49", "CKV_K8S_156", "CKV_K8S_157", "CKV_K8S_158", "CKV2_K8S_5"},
    "ST-K8S-016": {"CKV2_K8S_6"},
}
"""Checkov's checks for the same faults; those for secrets are ``CKV_SECRET_*``."""
_SECRETS: Final = {"ST-K8S-013", "ST-SEC-002", "ST-SEC-023"}

Spans = dict[tuple[str, str], list[tuple[int, int]]]


def _share(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


def ours() -> Figure:
    """Settings found at their line, findings that nobody labelled, and the time of both."""
    with tempfile.TemporaryDirectory(prefix="securetrain-corpus-") as name:
        folder = Path(name)
        labels = unpack(folder)
        begin = time.process_time()
        now = datetime.now(UTC)
        clusters = {
            one.parent: collect_slurm(one.parent, now=now) for one in folder.rglob("slurm.conf")
        }
        bodies: list[Body] = [
            *collect_manifests([folder], now=now),
            *collect_storage([folder], now=now),
            *clusters.values(),
        ]
        folders = {body.asset: path for path, body in clusters.items()}
        facts = facts_of(bodies)
        result = audit(facts, load_checks(), load_policy("baseline").policy, now)
        seconds = time.process_time() - begin
        spans: Spans = defaultdict(list)
        failed = result.of(State.FAIL)
        for one in failed:
            if one.location:
                whole = folders.get(one.asset, folder) / one.location.path
                file = str(whole.relative_to(folder))
                spans[file, one.check].append((one.location.line, one.location.line))
    faults = [label for label in labels if label.wanted == "fail"]
    found = [label for label in faults if _at_line(label, spans, {label.check})]
    at = {
        (label.file, label.line + i, label.check)
        for label in faults
        for i in range(label.slack + 1)
    }
    wrong = [
        line
        for (file, check), lines in spans.items()
        for line, _ in lines
        if (file, line, check) not in at
    ]
    good = [one for one in labels if one.wanted == "ok" and _at_line(one, spans, {one.check})]
    values = {
        "labels": len(labels),
        "found at line %": _share(len(found), len(faults)),
        "wrong %": _share(len(wrong), len(failed)),
        "good sides that fail": len(good),
        "CPU s": seconds,
    }
    met = values["found at line %"] >= 95 and values["wrong %"] <= 2 and not good
    goal = "at least 95 % at their line, at most 2 % wrong, no good side fails"
    title = "faults that the audit of files finds"
    return Figure(name="audit-corpus", title=title, values=values, goal=goal, goal_met=met)


def _at_line(label: Label, spans: Spans, checks: set[str]) -> bool:
    return any(
        first <= label.line + label.slack and label.line <= last
        for check in checks
        for first, last in spans[label.file, check]
    )


def found_checkov() -> str | None:
    """Checkov's program; None, and a line that says so, where there is none."""
    program = os.environ.get("CHECKOV") or shutil.which("checkov")
    if not program:
        print("  SKIPPED: there is no checkov; see benchmarks/corpus.py for how to name one")
    return program


def checkov() -> Figure | None:
    """The same for Checkov; None, and a line that says why, where it is not there."""
    program = found_checkov()
    if program is None:
        return None
    with tempfile.TemporaryDirectory(prefix="securetrain-corpus-") as name:
        folder = Path(name)
        labels = unpack(folder)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [program, "-d", str(folder), "--framework", "kubernetes", "secrets"]
        done = subprocess.run(
            [*command, "-o", "json", "--compact", "--quiet"],
            capture_output=True,
            check=False,
            timeout=600,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spans: Spans = defaultdict(list)
        for file, check, first, last in _records(json.loads(done.stdout)):
            spans[file, check].append((first, last))
    checks = {check for _, check in spans}
    faults = [label for label in labels if label.wanted == "fail"]
    same = {label: _same(label.check, checks) for label in faults}
    at_line = [one for one in faults if _at_line(one, spans, same[one])]
    in_file = [one for one in faults if any(spans[one.file, check] for check in same[one])]
    values = {
        "found at line %": _share(len(at_line), len(faults)),
        "found in the file %": _share(len(in_file), len(faults)),
        "CPU s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    }
    return Figure(
        name="audit-corpus-checkov",
        title="faults that Checkov finds",
        values=values,
        goal="none",
        goal_met=True,
    )


def _same(check: str, theirs: set[str]) -> set[str]:
    secrets = {one for one in theirs if one.startswith("CKV_SECRET_")}
    return SAME.get(check, set()) | (secrets if check in _SECRETS else set())


def _records(document: Any) -> Iterator[tuple[str, str, int, int]]:
    for part in document if isinstance(document, list) else [document]:
        for one in part.get("results", {}).get("failed_checks", ()):
            first, last = one["file_line_range"]
            yield one["file_path"].lstrip("/"), one["check_id"], first, last


FIGURES: Final[dict[str, Callable[[], Figure | None]]] = {
    "audit-corpus": ours,
    "audit-corpus-checkov": checkov,
}

if __name__ == "__main__":
    print(ours())
    print(checkov())
    sys.exit(0)
