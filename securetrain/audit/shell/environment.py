# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The one model of what a process will see: its variables, and the place that decides each.

Rules:

1. a value is known, open or unset, and what applies later decides: the image, the pod or task, the
   script's exports, the assignments before a command, then what the programs around it hand on;
2. what may set any variable (a file that is not there, ``--export=$X``, a ConfigMap that is not
   among the files) leaves open everything that nothing later sets;
3. what a login shell, an image elsewhere or a machine brings is judged where it stands, and is
   nothing here;
4. what is recorded of it is for the reader of launches to choose: no secret, and what is asked.

How programs hand on variables: env(1), sudo(8), mpirun(1) of Open MPI 5, Hydra's ``-genv``, srun(1)
and sbatch(1), ``docker run``, ``apptainer exec``, pyxis and ssh(1).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from securetrain.audit.facts import Location
from securetrain.audit.shell.evaluator import Call, Commands
from securetrain.audit.shell.programs import WRAPPERS, family_of, inner
from securetrain.audit.shell.values import HOLE, Arg, Segment, always, arg_of, hole

_ASSIGNED: Final = re.compile(r"([A-Za-z_]\w*)=", re.ASCII)


@dataclass(frozen=True, slots=True)
class Hole:
    """Something that may set or take away any variable."""

    why: str
    at: Location


@dataclass(frozen=True, slots=True)
class Environment:
    """The variables of one process."""

    variables: Mapping[str, tuple[Arg, ...]] = field(default_factory=dict)
    """The values that each may have; none where it is not set, for certain."""
    opens: tuple[Hole, ...] = ()

    def having(self, name: str, *values: Arg) -> "Environment":
        """The same with a variable set, or taken away."""
        return replace(self, variables={**self.variables, name: values})

    def open_by(self, arg: Arg, why: str = "") -> "Environment":
        """The same, where a word may set anything that is not set later."""
        opening = Hole(why or next(one.shown for one in arg.segments if one.name), arg.at)
        left = {name: (_open(opening),) for name in self.variables}
        return Environment(left, (*self.opens, opening))


NOTHING: Final = Environment()
FILE: Final = "the file "
"""In front of a file of variables that leaves an environment open."""


def _open(opening: Hole) -> Arg:
    return arg_of([hole(opening.why, always(opening.at), splits=False)], opening.at)


_HandsOn: TypeAlias = Callable[[Environment, Sequence[Arg]], Environment]


def handed_on(call: Call, seen: Environment) -> Environment:
    """The environment of what a program runs, by its own and its words."""
    hands_on = _FAMILIES.get(family_of(call.program))
    if hands_on is None:
        return seen
    end = len(call.args) if call.program == "sbatch" else inner(call.program, call.args)
    return hands_on(seen, call.args[:end])


def seen_by(call: Call, base: Environment = NOTHING) -> Environment:
    """The variables of a call: of its surroundings and the shells around it, as handed on."""
    seen = base
    inherited: Mapping[str, tuple[Arg, ...]] = {}
    for one in (*call.within, call):
        for name in inherited.keys() | one.environment.keys():
            values = one.environment.get(name, ())
            if _segments(values) != _segments(inherited.get(name, ())):
                seen = seen.having(name, *values)
        inherited = one.environment
        if one is not call:
            seen = handed_on(one, seen)
            wrapper = WRAPPERS.get(one.program)
            inherited = {} if wrapper is not None and wrapper.far else inherited
    return seen


def _segments(values: Iterable[Arg]) -> list[tuple[Segment, ...]]:
    return [one.segments for one in values]


_SILENT: Final = frozenset(
    {
        *("echo", "printf", "cd", "test", "[", "[[", "source", ".", "set", "shift", "read"),
        *("trap", "unset", "export", "exit", "return", "wait"),
    }
)
"""Built into the shell, which has read its variables."""


def processes(commands: Commands, base: Environment) -> Iterator[tuple[str, Environment]]:
    """Yield the programs that are started, each with what it sees or its container will.

    Variables that no program was started with are the last one's: of whoever sources the script.
    """
    handed = []
    for call in commands.calls:
        if call.program not in _SILENT:
            handed.append(call.environment)
            if not call.opened:
                yield call.program, handed_on(call, seen_by(call, base))
    left = NOTHING if handed else base
    for name, values in commands.exported.items():
        if not any(name in one for one in handed):
            left = left.having(name, *values)
    yield "", left


def _named(seen: Environment, words: Iterable[Arg], before: Environment) -> Environment:
    """``NAME=VALUE``, ``NAME`` for what is seen before, or an open word for anything."""
    for word in words:
        if found := _ASSIGNED.match(word.text):
            seen = seen.having(found[1], word.part(found.end()))
        elif HOLE in word.text:
            seen = seen.open_by(word)
        elif word.text in before.variables:
            seen = seen.having(word.text, *before.variables[word.text])
        else:
            seen = replace(seen, opens=seen.opens or before.opens)
    return seen


def _assignments(args: Iterable[Arg]) -> Iterator[Arg]:
    return (arg for arg in args if _ASSIGNED.match(arg.text))


def _values(args: Sequence[Arg], *names: str) -> Iterator[Arg]:
    """Yield the values of options, in their own word or the next."""
    for number, arg in enumerate(args):
        name = arg.text.partition("=")[0]
        if name in names and arg.text[len(name) + 1 :]:
            yield arg.part(len(name) + 1)
        elif name in names and number + 1 < len(args):
            yield args[number + 1]


def _listed(arg: Arg) -> Iterator[Arg]:
    """Yield the parts between commas."""
    start = 0
    for part in arg.text.split(","):
        yield arg.part(start, start + len(part))
        start += len(part) + 1


def _files(seen: Environment, args: Sequence[Arg]) -> Environment:
    for file in _values(args, "--env-file", "--export-file"):
        seen = seen.open_by(file, f"{FILE}{file.text}")
    return seen


def _env(seen: Environment, args: Sequence[Arg]) -> Environment:
    for arg in args:
        if arg.text in {"-", "--ignore-environment"} or re.match(r"-[a-zA-Z]*i", arg.text):
            seen = NOTHING
        elif arg.rest:
            seen = seen.open_by(arg)
    for name in _values(args, "-u", "--unset"):
        seen = seen.having(name.text)
    return seen


def _sudo(seen: Environment, args: Sequence[Arg]) -> Environment:
    keeps = any(re.fullmatch(r"-[a-zA-Z]*E|--preserve-env", arg.text) for arg in args)
    lists = (arg.part(15) for arg in args if arg.text.startswith("--preserve-env="))
    kept = [part for one in lists for part in _listed(one)]
    return _named(seen if keeps else NOTHING, [*kept, *_assignments(args)], seen)


def _mpi(seen: Environment, args: Sequence[Arg]) -> Environment:
    cleared = any(arg.text in {"-genvnone", "-envnone"} for arg in args)
    listed = [part for one in _values(args, "-genvlist", "-envlist") for part in _listed(one)]
    after = _named(NOTHING if cleared else seen, [*_values(args, "-x"), *listed], seen)
    for option, name, value in zip(args, args[1:], args[2:], strict=False):
        if option.text in {"-genv", "-env"}:
            after = after.having(name.text, value)
    return after


def _slurm(seen: Environment, args: Sequence[Arg]) -> Environment:
    seen = _files(seen, args)
    said = [*seen.variables.get("SLURM_EXPORT_ENV", ()), *_values(args, "--export")]
    if not said:
        return seen
    parts = list(_listed(said[-1]))
    if unknown := [one for one in parts if HOLE in one.text.partition("=")[0]]:
        return seen.open_by(unknown[0])
    words = {part.text.upper() for part in parts}
    named = (part for part in parts if part.text.upper() not in {"ALL", "NONE", "NIL"})
    return _named(seen if "ALL" in words else NOTHING, named, seen)


def _docker(seen: Environment, args: Sequence[Arg]) -> Environment:
    after = seen if any(arg.text == "--env-host" for arg in args) else NOTHING
    after = _files(_named(after, (arg for arg in args if arg.rest), seen), args)
    joined = (arg.part(2) for arg in args if arg.text.startswith("-e"))
    return _named(after, [*_values(args, "-e", "--env"), *_assignments(joined)], seen)


def _apptainer(seen: Environment, args: Sequence[Arg]) -> Environment:
    clean = {"-e", "--cleanenv", "-C", "--containall"}
    after = _files(NOTHING if any(arg.text in clean for arg in args) else seen, args)
    for name, value in seen.variables.items():
        if found := re.match(r"(?:APPTAINER|SINGULARITY)ENV_", name):
            after = after.having(name[found.end() :], *value)
    listed = (part for one in _values(args, "--env") for part in _listed(one))
    return _named(after, listed, seen)


def _elsewhere(seen: Environment, args: Sequence[Arg]) -> Environment:
    """Another machine, or a login: nothing of these variables is there."""
    found = ((arg, re.match(r"(?:-o)?SetEnv[= ]", arg.text)) for arg in args)
    sent = [arg.part(match.end()) for arg, match in found if match]
    return _named(NOTHING, [*sent, *_values(args, "--env")], seen)


def _su(seen: Environment, args: Sequence[Arg]) -> Environment:
    return NOTHING if any(arg.text in {"-", "-l", "--login"} for arg in args) else seen


_FAMILIES: Final[Mapping[str, _HandsOn]] = {
    "env": _env,
    "sudo": _sudo,
    "mpirun": _mpi,
    "srun": _slurm,
    **dict.fromkeys(("docker", "enroot"), _docker),
    "apptainer": _apptainer,
    **dict.fromkeys(("ssh", "pdsh", "kubectl"), _elsewhere),
    "su": _su,
    "uv": _files,
}
