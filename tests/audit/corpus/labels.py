# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The labels of the corpus: by hand, in the files, and taken off before anybody reads these.

A line may end in ``#@ LABEL, LABEL``. A label is a check's id without ``ST-``:

- ``K8S-001``: this setting is what the check is for: it fails here;
- ``ok:K8S-001``: the good side of it: it does not fail here;
- ``open:K8S-001``: a template or variable decides: it is unknown here, no pass and no failure;
- ``gone:SLM-006``: the file lacks what would keep it from failing, and no line of it is at fault;
- ``~2`` behind it: here or up to two lines below (a block that lacks something has no line of its
  own).

What is absent is labelled at the block that would hold it: the container's securityContext (its
first line if it has none), the pod's spec, the namespace's metadata, the command.

`SHORT` are labels that stand for several. What is labelled is what a reviewer would point at.
Labels come from no check's code: a file is labelled by reading it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FILES: Final = Path(__file__).parent / "files"
SECOND: Final = Path(__file__).parent / "second"
"""Labelled before the audit read it, and never corrected since."""
THIRD: Final = Path(__file__).parent / "third"
"""Other files, labelled in the same way, and never corrected either."""

SHORT: Final = {
    "tag": ("K8S-010",),  # an image without a digest
    "bare": ("K8S-008~1", "K8S-009~1"),  # a container without any security context
    "lone": ("K8S-014~1", "K8S-016~1"),  # a pod with the default token and no network policy
}
CUSTOM: Final = re.compile(
    r"^\s*[\"']?kind[\"']?:\s*[\"']?(?!(?:Pod|Job|CronJob|Deployment|StatefulSet|DaemonSet|ReplicaSet"
    r"|List|Service|Namespace|ConfigMap|Secret|Ingress|NetworkPolicy|Role|RoleBinding|ClusterRole"
    r"|ClusterRoleBinding|ServiceAccount|User|Group)\b)",
    re.MULTILINE,
)
_MARK: Final = re.compile(r"[ \t]*#@ (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, order=True)
class Label:
    """What stands at a line, in a reviewer's eyes."""

    file: str
    line: int
    check: str
    wanted: str
    """``fail``, ``ok`` or ``open``."""
    slack: int = 0

    def covers(self, check: str, line: int) -> bool:
        return check == self.check and self.line <= line <= self.line + self.slack


def labels_of(file: str, text: str) -> Iterator[Label]:
    for number, line in enumerate(text.splitlines(), 1):
        if found := _MARK.search(line):
            for word in found[1].split(", "):
                for one in SHORT.get(word, (word,)):
                    yield _label(file, number, one)


def _label(file: str, line: int, word: str) -> Label:
    found = re.fullmatch(r"(?:(ok|open|gone):)?([A-Z0-9]{3}-[0-9]{3})(?:~(\d+))?", word)
    assert found, f"{file}:{line}: {word!r} is no label"
    if found[1] == "gone":
        return Label(file, 0, f"ST-{found[2]}", "fail")
    return Label(file, line, f"ST-{found[2]}", found[1] or "fail", int(found[3] or 0))


def plain(text: str) -> str:
    """The text without labels, line by line the same."""
    return _MARK.sub("", text)


def unpack(target: Path, files: Path = FILES) -> list[Label]:
    """Write the files without their labels below `target`, and return the labels."""
    found: list[Label] = []
    for path in sorted(files.rglob("*")):
        if path.is_file():
            name = str(path.relative_to(files))
            text = path.read_text()
            found.extend(labels_of(name, text))
            copy = target / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(plain(text))
    return found
