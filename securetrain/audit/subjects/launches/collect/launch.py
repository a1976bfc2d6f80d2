# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts of one launch from its text: a container's words, or a script."""

import bisect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final, TypeVar

import msgspec

from securetrain.audit.documents.facts import Collected, Location, Outcome, Section
from securetrain.audit.shell.commands import (
    Arg,
    Commands,
    commands_of_text,
    commands_of_words,
)
from securetrain.audit.shell.words import Place
from securetrain.audit.subjects.launches.collect.fetches import fetches_of
from securetrain.audit.subjects.launches.collect.observe import Seen, observe, observe_variables
from securetrain.audit.subjects.launches.collect.options import absent
from securetrain.audit.subjects.launches.collect.runtimes import Started, started_by, word_of
from securetrain.audit.subjects.launches.collect.written import secrets_of
from securetrain.audit.subjects.launches.facts import Fetch, Form, Launch, LaunchFacts

T = TypeVar("T")

SCRIPT_NAMES: Final = frozenset({".sh", ".bash", ".sbatch", ".slurm", ".batch", ".job", ".sub"})
_TEMPLATES: Final = frozenset({".j2", ".jinja", ".jinja2", ".erb", ".tmpl", ".tpl", ".template"})
_SHEBANG: Final = re.compile(r"#!\s*\S*?(?:/|/env\s+(?:-S\s*)?)(?:ba|da|k|z|a)?sh\b")
_DIRECTIVE: Final = re.compile(r"^#(?:SBATCH|PBS|BSUB|\$)\s", re.MULTILINE)
_BATCH: Final = frozenset({".sbatch", ".slurm"})
_COMMANDS: Final = re.compile(
    r"^[ \t]*(?:srun|torchrun|mpirun|deepspeed|accelerate|pip3?|git|curl|wget|python3?|bash)[ \t]",
    re.MULTILINE,
)
"""Lines that make a variable's text one that a shell will read: ``read -d '' CMD <<EOF``."""


@dataclass(frozen=True, slots=True)
class Text:
    """A word of a container, or the value of a variable, with the place of each character."""

    text: str
    place: Place


def is_script(name: str, head: str) -> bool:
    """Return whether a file or a string is a shell script, by its name or how it begins."""
    path = PurePosixPath(name)
    if path.suffix in _TEMPLATES:
        path = path.with_suffix("")
    return path.suffix in SCRIPT_NAMES or bool(_SHEBANG.match(head))


def places_in(path: str, text: str, first_line: int = 1, column: int = 1) -> Place:
    """The places of a text that stands in a file line by line."""
    starts = [0, *(found.end() for found in re.finditer("\n", text))]

    def place(i: int) -> Location:
        row = bisect.bisect_right(starts, i) - 1
        return Location(path=path, line=first_line + row, column=column + i - starts[row])

    return place


def script_launches(  # noqa: PLR0917 - what a script is
    file: str,
    name: str,
    text: str,
    place: Place,
    collected: Collected,
    form: Form | None = None,
) -> Iterator[LaunchFacts | Started]:
    """The launch of a script, and those of the scripts that it writes; what it starts follows."""
    commands = commands_of_text(text, place)
    batch = bool(_DIRECTIVE.search(text)) or PurePosixPath(name).suffix in _BATCH
    form = form or (Form.BATCH if batch else Form.SCRIPT)
    yield _facts(file, _launch(name, form, place(0), commands, observe(commands)), collected)
    yield from _started(commands)
    for call, body in commands.bodies:
        target = next((one for one in call.targets if one), "")
        written = call.program in {"cat", "tee"} and is_script(target, body.text[:200])
        if written or (call.program == "read" and _COMMANDS.search(body.text)):
            inner = target or "here-document"
            yield from script_launches(f"{file}#{inner}", inner, body.text, body.place, collected)


def container_launches(
    file: str,
    name: str,
    *,
    words: Sequence[Text],
    variables: Mapping[str, Text],
    at: Location,
    collected: Collected,
) -> Iterator[LaunchFacts | Started]:
    """The launch of a container: its command and args, with the variables that it gets."""
    known = {key: value.text for key, value in variables.items() if "$" not in value.text}
    commands = commands_of_words([(one.text, one.place) for one in words], known)
    seen = observe(commands)
    observe_variables(seen, {key: _arg(value) for key, value in variables.items()})
    yield _facts(file, _launch(name, Form.CONTAINER, at, commands, seen), collected)
    yield from _started(commands)


def _started(commands: Commands) -> Iterator[Started]:
    """Yield the containers that commands start."""
    for call in commands.calls:
        words = [word_of(arg) for arg in call.args]
        if (started := started_by(call.program, words, call.at)) is not None:
            yield started


def _arg(value: Text) -> Arg:
    opens = tuple(dict.fromkeys(re.findall(r"\$[({]?(\w+)|\{\{\s*(\S+)", value.text)[:1]))
    names = tuple("".join(one) for one in opens)
    return Arg(value.text, value.place(0), value.place, names)


def _launch(name: str, form: Form, at: Location, commands: Commands, seen: Seen) -> Launch:
    def whole(found: Sequence[T]) -> Section[tuple[T, ...]]:
        if commands.problem:
            return Section(outcome=Outcome.ERROR, reason=commands.problem)
        return Section(outcome=Outcome.OK, value=tuple(found))

    return Launch(
        at=at,
        name=name,
        form=form,
        rendezvous=whole(seen.rendezvous),
        addresses=whole(seen.addresses),
        services=whole(seen.services),
        fetches=whole(_fetches(form, commands)),
        revisions=whole(seen.revisions),
        remote_code=whole(seen.remote_code),
        mpi_as_root=whole(seen.mpi_as_root),
        host_keys=whole(seen.host_keys),
        secrets=whole(secrets_of(commands)),
    )


def _fetches(form: Form, commands: Commands) -> list[Fetch]:
    """The fetches of a launch; those of an image are built in, and none when a job starts."""
    found = fetches_of(commands.calls)
    if form is not Form.BUILD:
        return found
    built = "an image is built, and no job starts"
    return [msgspec.structs.replace(one, pinned=absent(one.at, built)) for one in found]


def _facts(file: str, launch: Launch, collected: Collected) -> LaunchFacts:
    return LaunchFacts(collected=collected, file=file, launch=launch)
