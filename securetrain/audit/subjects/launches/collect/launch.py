# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts of one launch from its text: a container's words, or a script."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final, TypeVar

import msgspec

from securetrain.audit.facts import (
    Collected,
    End,
    Entry,
    Location,
    Outcome,
    Reading,
    SecretKind,
    Section,
)
from securetrain.audit.parser.files import is_script
from securetrain.audit.parser.secrets import secret_kind, shaped
from securetrain.audit.parser.values import absent, ok
from securetrain.audit.shell.environment import NOTHING, Environment, processes
from securetrain.audit.shell.evaluator import Call, Commands, Folder, Open, evaluate, evaluate_words
from securetrain.audit.shell.programs import SHELLS
from securetrain.audit.shell.values import HOLE, Arg, Text, container_word
from securetrain.audit.subjects.launches.collect.fetches import fetches_of
from securetrain.audit.subjects.launches.collect.observe import (
    Seen,
    observe,
    open_words,
)
from securetrain.audit.subjects.launches.collect.options import options_of, reading
from securetrain.audit.subjects.launches.collect.runtimes import Started, started_by, word_of
from securetrain.audit.subjects.launches.facts import (
    Fetch,
    Form,
    Launch,
    LaunchFacts,
    Rendezvous,
    Variable,
    WrittenSecret,
)
from securetrain.audit.subjects.node.collect.accounts import kind_of
from securetrain.audit.subjects.node.facts.node import EnvKind

T = TypeVar("T")

_TRAINS: Final = re.compile(r"(?:train|finetune|fine_tune|sft|pretrain|main)\w*\.py\Z|\.train\Z")
_DIRECTIVE: Final = re.compile(r"^#(?:SBATCH|PBS|BSUB|\$)\s([^\n]*)", re.MULTILINE)
_DIRECTED: Final = re.compile(r"[^\s#]\S*")
_BATCH: Final = frozenset({".sbatch", ".slurm"})
_COMMANDS: Final = re.compile(
    r"^[ \t]*(?:srun|torchrun|mpirun|deepspeed|accelerate|pip3?|git|curl|wget|python3?|bash)[ \t]",
    re.MULTILINE,
)
"""Lines that make a variable's text one that a shell will read: ``read -d '' CMD <<EOF``."""
_EVIDENCE: Final = tuple(
    f"launch.{name}" for name in Launch.__struct_fields__ if name not in {"at", "name", "form"}
)
_OF_BUILD: Final = ("launch.fetches", "launch.revisions", "launch.secrets")
"""The evidence that building an image bears on: no job starts there."""


def script_launches(
    file: str,
    name: str,
    text: Arg,
    collected: Collected,
    form: Form | None = None,
    *,
    folder: Folder | None = None,
    unread: str = "",
) -> Iterator[LaunchFacts | Started]:
    """The launch of a script, and those of the scripts that it writes; what it starts follows."""
    directives = tuple(
        text.part(word.start(), word.end())
        for line in _DIRECTIVE.finditer(text.text)
        for word in _DIRECTED.finditer(text.text, line.start(1), line.end(1))
    )
    batch = bool(directives) or PurePosixPath(name).suffix in _BATCH
    within = (Call("sbatch", directives, text.place(0)),) if batch else ()
    commands = evaluate(text, folder, within)
    commands.open.extend([Open(text.place(0), unread)] if unread else [])
    form = form or (Form.BATCH if batch else Form.SCRIPT)
    yield _facts(file, name, form, text.place(0), commands, observe(commands), collected)
    yield from _started(commands)
    for call, body in commands.bodies:
        target = next((one for one in call.targets if one), "")
        written = call.program in {"cat", "tee"} and is_script(target, body.text[:200])
        if written or (call.program == "read" and _COMMANDS.search(body.text)):
            inner = target or "here-document"
            yield from script_launches(f"{file}#{inner}", inner, body, collected)


def container_launches(
    file: str,
    name: str,
    *,
    words: Sequence[Text],
    variables: Mapping[str, Text],
    base: Environment = NOTHING,
    form: Form = Form.CONTAINER,
    at: Location,
    collected: Collected,
) -> Iterator[LaunchFacts | Started]:
    """The launch of a container: its command and args, with the variables that it gets."""
    known = {key: value for key, value in variables.items() if "$" not in value.text}
    given = {key: container_word(one, known) for key, one in variables.items()}
    commands = evaluate_words([container_word(one, known) for one in words], given)
    if form is not Form.CONTAINER:  # where the variables are written is no manifest of a pod
        commands.settings[:0] = given.items()
    seen = observe(commands, given)
    for key, value in given.items():
        base = base.having(key, value)
    yield _facts(file, name, form, at, commands, seen, collected, base)
    yield from _started(commands)


def _started(commands: Commands) -> Iterator[Started]:
    """Yield the containers that commands start, each once: a loop may start it again."""
    found = (
        started_by(call.program, [word_of(arg) for arg in call.args], call.at)
        for call in commands.calls
    )
    yield from dict.fromkeys(one for one in found if one is not None)


def _facts(  # noqa: PLR0917 - the parts of a launch
    file: str,
    name: str,
    form: Form,
    at: Location,
    commands: Commands,
    seen: Seen,
    collected: Collected,
    base: Environment = NOTHING,
) -> LaunchFacts:
    found = {record: _whole(getattr(seen, record)) for record in Seen.__slots__}
    launch = Launch(
        at=at,
        name=name,
        form=form,
        **found,
        fetches=_whole(_fetches(form, commands, seen.rendezvous)),
        secrets=_whole(secrets_of(commands)),
        environment=_whole(_variables(processes(commands, base))),
    )
    read = Entry(unit="section", at=at, end=End.READ)
    opens = dict.fromkeys([*commands.open, *(one for x in commands.calls for one in open_words(x))])
    ledger = (read, *(_entry(one, _OF_BUILD if form is Form.BUILD else _EVIDENCE) for one in opens))
    return LaunchFacts(collected=collected, file=file, launch=launch, ledger=ledger)


def _fetches(form: Form, commands: Commands, met: Sequence[Rendezvous]) -> list[Fetch]:
    """The fetches of a launch; what builds an image or installs a machine starts no job."""
    found = fetches_of(commands.calls)
    trains = any(one.program != "etcd" for one in met)
    scripted = form is Form.SCRIPT and not trains and not any(map(_is_program, commands.calls))
    if form is not Form.BUILD and not scripted:
        return found
    return [msgspec.structs.replace(one, pinned=absent(one.at, "no job starts")) for one in found]


def _is_program(call: Call) -> bool:
    """Tell a program that trains from what installs something or prepares data."""
    return call.program == "python" and any(_TRAINS.search(arg.text) for arg in call.args[:3])


def _variables(found: Iterable[tuple[str, Environment]]) -> Iterator[Variable]:
    """Yield the variables that checks ask about, each value once."""
    seen: set[tuple[str, Reading[str]]] = set()
    for program, environment in found:
        for one in environment.opens:
            why = f"{one.why} decides"
            decided: Reading[str] = Reading(outcome=Outcome.TEMPLATED, reason=why, at=one.at)
            if ("", decided) not in seen:
                seen.add(("", decided))
                yield Variable(at=one.at, program=program, name=decided, value=decided)
        for name, values in environment.variables.items():
            for value in values if kind_of(name) else ():
                made = variable(program, name, value)
                if (name, made.value) not in seen:
                    seen.add((name, made.value))
                    yield made


def variable(program: str, name: str, value: Arg) -> Variable:
    """The record of a variable."""
    at = value.place(0)
    read = reading(value, str)
    if not value.opens and kind_of(name, value.text) is EnvKind.SECRET:
        read = Reading(outcome=Outcome.DENIED, reason="a secret is not kept", at=at)
    return Variable(at=at, program=program, name=ok(name, at), value=read)


def _entry(one: Open, evidence: tuple[str, ...]) -> Entry:
    bears_on = tuple(name for name in one.bears_on or evidence if name in evidence)
    if one.is_foreign or not bears_on:
        return Entry(unit="word", at=one.at, end=End.NOT_OURS, why=one.why)
    end, help_ = End.NOT_UNDERSTOOD, "write it out, or audit what sets it as well"
    return Entry(unit="word", at=one.at, end=end, why=one.why, help=help_, bears_on=bears_on)


def _whole(found: Iterable[T]) -> Section[tuple[T, ...]]:
    """Each record once: a loop, or another value of a variable, may say it again."""
    return Section(outcome=Outcome.OK, value=tuple(dict.fromkeys(found)))


# --- secrets -------------------------------------------------------------------------------------

_SHORT: Final = {"docker": "p", "podman": "p", "sshpass": "p", "mysql": "p"}
_HEX: Final = re.compile(r"[0-9a-f]{32,}\Z")
_MIN: Final = 6


def secrets_of(commands: Commands) -> list[WrittenSecret]:
    """The secrets in these commands, one of each line."""
    lines: dict[tuple[str, int], WrittenSecret] = {}
    for one in (*_in_settings(commands), *_in_calls(commands)):
        lines.setdefault((one.at.path, one.at.line), one)
    return list(lines.values())


def _in_settings(commands: Commands) -> Iterator[WrittenSecret]:
    for name, value in commands.settings:
        if not value.opens and (kind := _kind(name, value)):
            yield _secret(value, name, kind)


def _in_calls(commands: Commands) -> Iterator[WrittenSecret]:
    for call in commands.calls:
        if call.program in SHELLS and call.opened:
            continue
        if not call.opened or call.program == "sshpass":
            yield from _named(call)
        yield from _shaped(call)


def _named(call: Call) -> Iterator[WrittenSecret]:
    for option in options_of(call):
        value = option.value
        if value is None or value.opens:
            continue
        is_short = option.name == _SHORT.get(call.program) and _takes_password(call)
        name = call.program if is_short else option.name
        if _kind("password" if is_short else name, value) is SecretKind.NAME:
            yield _secret(value, name, SecretKind.NAME)
    texts = [arg.text for arg in call.args]
    if "login" in texts[:2] and call.args and _HEX.match(texts[-1]):
        yield _secret(call.args[-1], call.program, SecretKind.PATTERN)


def _takes_password(call: Call) -> bool:
    if call.program in {"docker", "podman"}:
        return bool(call.args) and call.args[0].text == "login"
    return True


def _shaped(call: Call) -> Iterator[WrittenSecret]:
    for arg in call.args:
        for found, kind in shaped(arg.text):
            if HOLE not in found[0]:
                at, length = arg.place(found.start()), len(found[0])
                name = call.program
                yield WrittenSecret(at=at, program=name, name=name, kind=kind, length=length)
                break


def _secret(value: Arg, name: str, kind: SecretKind) -> WrittenSecret:
    return WrittenSecret(at=value.at, program=name, name=name, kind=kind, length=len(value.text))


def _kind(name: str, value: Arg) -> SecretKind | None:
    kind = secret_kind(name, value.text)
    return None if kind is SecretKind.NAME and len(value.text) < _MIN else kind
