# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Commands of a script or a container as they would be run: variables filled in, wrappers opened.

``srun bash -c "torchrun ..."`` is srun, bash and torchrun; ``ssh HOST "..."`` is what the host
runs.
A variable counts as known when this text sets it to one value; every
other is open.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

from securetrain.audit.documents.facts import Location
from securetrain.audit.shell.words import (
    Expansion,
    Place,
    Simple,
    Word,
    expansions_of,
    parse,
)

MAX_NESTED: Final = 6
_MAX_VALUE: Final = 32 << 10
_MAX_FILLED: Final = 16 << 20
"""Characters that variables may add to one text."""

SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash"})
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)(\[[^]]*\])?\+?=", re.ASCII)
SETTERS: Final = frozenset({"export", "declare", "local", "readonly", "typeset"})
_WRAPPERS: Final = frozenset(
    {
        *("srun", "salloc", "sbatch", "mpirun", "mpiexec", "orterun", "prun", "prterun"),
        *("sudo", "su", "env", "nohup", "exec", "command", "eval", "time", "timeout", "nice"),
        *("ionice", "numactl", "taskset", "stdbuf", "setsid", "xargs", "parallel", "watch"),
        *("docker", "podman", "nerdctl", "singularity", "apptainer", "enroot", "shifter"),
        *("kubectl", "ssh", "pdsh", "clush", "tmux", "screen", "script", "unbuffer"),
        *("uv", "poetry", "pixi", "conda", "micromamba", "pipenv", "hatch", "rye"),
        *("nsys", "ncu", "dumb-init", "tini", "catchsegv", "gosu", "su-exec", "sshpass"),
        *("colossalai", "torchx", "trap", "ld.so", "flock", "chroot", "runuser", "proxychains4"),
    }
)
"""Programs that run another one which stands among their words."""
_TAKES_TEXT: Final = frozenset(
    {"ssh", "pdsh", "clush", "su", "eval", "tmux", "screen", "parallel", "watch", "trap", "runuser"}
)
"""Programs that hand a word to a shell."""
_SSH_VALUE: Final = re.compile(r"-[A-Za-z0-9]*[BbcDEeFIiJLlmOopQRSWw]")
"""Options of ssh whose value is the next word."""
_CLIENTS: Final = frozenset({"kubectl", "docker", "podman", "nerdctl", "conda", "uv"})
"""Wrappers that read other things than commands, too."""
RUNS: Final = frozenset(
    {
        *SHELLS,
        *("torchrun", "accelerate", "deepspeed", "horovodrun", "composer", "tune", "axolotl"),
        *("securetrain", "python", "python2", "python3", "ipython", "pypy3"),
        *("mpirun", "mpiexec", "orterun", "prun", "srun"),
        *("ray", "tensorboard", "jupyter", "jupyter-lab", "jupyter-notebook", "jupyterhub"),
        *("start-notebook.sh", "start-singleuser.sh", "start-notebook.py"),
        *("etcd", "sshd", "gdbserver", "debugpy", "vllm", "sglang", "mlflow", "lldb-server"),
        *("pip", "pip3", "uv", "conda", "mamba", "micromamba", "apt", "apt-get", "npm", "yum"),
        *("dnf", "apk", "git", "curl", "wget", "huggingface-cli", "hf", "wandb", "aws"),
        *("ssh", "scp", "rsync", "sshpass", "env", "docker", "sudo", "timeout", "nohup", "exec"),
        *("numactl", "nsys", "singularity", "apptainer", "etcdctl", "colossalai"),
    }
)
"""Programs that a wrapper's words are searched for."""


@dataclass(frozen=True, slots=True)
class Arg:
    """A word as the program gets it."""

    text: str
    at: Location
    place: Place
    """The place of a character of the text."""
    opens: tuple[str, ...] = ()
    """What decides the rest, where this text does not."""
    rest: bool = False
    """Whether it may be any number of words."""


@dataclass(slots=True)
class Call:
    """A program with its words."""

    program: str
    args: tuple[Arg, ...]
    """Without the program itself."""
    at: Location
    pipeline: int = 0
    fed_by: int | None = None
    inside: str = ""
    """The program that runs it: ``srun`` of ``srun torchrun``."""
    targets: tuple[str, ...] = ()
    opened: bool = False
    """Whether what it runs is among the calls too."""


@dataclass(slots=True)
class Commands:
    """All of a text: its calls, assignments and here-documents."""

    calls: list[Call] = field(default_factory=list)
    settings: list[tuple[str, Arg]] = field(default_factory=list)
    bodies: list[tuple[Call, Arg]] = field(default_factory=list)
    problem: str = ""


def commands_of_text(
    text: str, place: Place, variables: Mapping[str, str] | None = None
) -> Commands:
    """The commands of a shell script; `variables` are what its surroundings set."""
    found = Commands()
    _Unfolding(found, dict(variables or {})).script(text, place, 0)
    return found


def commands_of_words(
    words: Sequence[tuple[str, Place]], variables: Mapping[str, str] | None = None
) -> Commands:
    """The commands of a container: `words` are its command and args, which no shell reads."""
    found = Commands()
    unfolding = _Unfolding(found, dict(variables or {}))
    args = []
    for text, place in words:
        word = Word(text, tuple(range(len(text) + 1)), expansions_of(text), quoted=True)
        args.extend(unfolding.fill(word, place))
    if args:
        call = Call(program_of(args[0]), tuple(args[1:]), args[0].at)
        unfolding.call(call, 0)
    return found


def program_of(arg: Arg) -> str:
    """The program's name without its folder, and without the version behind ``python``."""
    name = PurePosixPath(arg.text.strip()).name
    return re.sub(r"^(python|pip)[0-9.]+\Z", r"\1", name)


class _Unfolding:
    """Reads commands with what is known of variables."""

    def __init__(self, found: Commands, variables: dict[str, str]) -> None:
        self.found = found
        self.variables: dict[str, str | None] = dict(variables)
        self.pipelines = 0
        self.filled = 0

    def script(self, text: str, place: Place, depth: int) -> None:
        """Add the commands of a shell's text."""
        if depth > MAX_NESTED:
            self.found.problem = f"commands nested deeper than {MAX_NESTED}"
            return
        read = parse(text)
        self.found.problem = self.found.problem or read.problem
        self._learn(read.commands)
        shift, self.pipelines = self.pipelines, self.pipelines + 2 * len(read.commands) + 2
        highest = max((one.pipeline for one in read.commands), default=0)
        self.pipelines = max(self.pipelines, shift + highest)
        for simple in read.commands:
            self._simple(simple, place, depth, shift)

    def _learn(self, commands: Sequence[Simple]) -> None:
        """Note what this text sets: one value, or several, which is none that is known."""
        for simple in commands:
            words = list(simple.words)
            if words and words[0].text == "for" and len(words) > 1:
                self.variables[words[1].text] = None
            for word in _assigning(words):
                name, value = _split(word)
                known = self._value(value)
                if name in self.variables and self.variables[name] != known:
                    known = None
                self.variables[name] = known

    def _value(self, word: Word) -> str | None:
        (arg,) = self.fill(word, _nowhere, split=False)
        return None if arg.opens else arg.text

    def _simple(self, simple: Simple, place: Place, depth: int, shift: int) -> None:
        for word in _assigning(simple.words):
            name, value = _split(word)
            for arg in self.fill(value, place, split=False):
                self.found.settings.append((name, arg))
        words = list(simple.words)
        while words and _ASSIGNMENT.match(words[0].text):
            words.pop(0)
        args = [arg for word in words for arg in self.fill(word, place)]
        if not args:
            return
        call = Call(
            program_of(args[0]),
            tuple(args[1:]),
            args[0].at,
            pipeline=simple.pipeline + shift,
            fed_by=None if simple.fed_by is None else simple.fed_by + shift,
            targets=tuple(word.text for word in simple.targets),
        )
        self.call(call, depth)
        for body in simple.bodies:
            for arg in self.fill(body, place, split=False):
                self._body(call, arg, depth)

    def _body(self, call: Call, arg: Arg, depth: int) -> None:
        self.found.bodies.append((call, arg))
        inside = call.program in _WRAPPERS - _CLIENTS or any(
            one.text in {"exec", "run"} for one in call.args[:3]
        )
        if call.program in SHELLS or inside:
            self.script(arg.text, arg.place, depth + 1)

    def call(self, call: Call, depth: int) -> None:
        """Add a program's call, and those of the programs that it runs."""
        self.found.calls.append(call)
        if depth > MAX_NESTED:
            self.found.problem = f"commands nested deeper than {MAX_NESTED}"
            return
        if call.program in SHELLS:
            self._shell(call, depth)
        elif call.program in _WRAPPERS:
            self._wrapper(call, depth)

    def _shell(self, call: Call, depth: int) -> None:
        for i, arg in enumerate(call.args[:-1]):
            if re.fullmatch(r"-[a-z]*c[a-z]*", arg.text):
                text = call.args[i + 1]
                call.opened = True
                self.script(text.text, text.place, depth + 1)
                return

    def _wrapper(self, call: Call, depth: int) -> None:
        if call.program in _TAKES_TEXT:
            words = ["", *(arg.text for arg in call.args)]
            for before, arg in zip(words, call.args, strict=False):
                if call.program == "ssh" and _SSH_VALUE.fullmatch(before):
                    continue  # of ssh itself: -o "StrictHostKeyChecking no"
                if re.search(r"\s", arg.text) and not arg.text.startswith("-"):
                    call.opened = True
                    self.script(arg.text, arg.place, depth + 1)
                    return
        for i, arg in enumerate(call.args):
            if arg.text.startswith("-") or "=" in arg.text:
                continue
            program = program_of(arg)
            if program in RUNS and program != call.program:
                inner = Call(
                    program,
                    call.args[i + 1 :],
                    arg.at,
                    pipeline=call.pipeline,
                    inside=call.program,
                    targets=call.targets,
                )
                call.opened = True
                self.call(inner, depth + 1)
                return

    # --- variables -------------------------------------------------------------------------------

    def fill(self, word: Word, place: Place, *, split: bool = True) -> list[Arg]:
        """The word with known variables filled in; several where the shell splits it."""
        at = place(word.at[0]) if word.at else place(0)
        text, offsets, opens = self._filled(word)

        def inside(i: int) -> Location:
            return place(word.at[offsets[min(i, len(offsets) - 1)]])

        whole = (
            len(word.expansions) == 1
            and word.expansions[0].start == 0
            and word.expansions[0].end == len(word.text)
        )
        many = whole and (not word.quoted or "@" in word.text)
        if split and many and not opens:
            return [Arg(part, at, lambda _: at) for part in text.split()]
        return [Arg(text, at, inside, opens, rest=bool(many and opens))]

    def _filled(self, word: Word) -> tuple[str, list[int], tuple[str, ...]]:
        parts: list[str] = []
        offsets: list[int] = []
        opens: list[str] = []
        last = 0
        for one in word.expansions:
            if one.start < last:
                continue
            parts.append(word.text[last : one.start])
            offsets.extend(range(last, one.start))
            known = self._lookup(one)
            if known is None:
                opens.append(one.name)
                known = word.text[one.start : one.end]
            parts.append(known)
            offsets.extend([one.start] * len(known))
            last = one.end
        parts.append(word.text[last:])
        offsets.extend(range(last, len(word.text) + 1))
        return "".join(parts), offsets, tuple(dict.fromkeys(opens))

    def _lookup(self, one: Expansion) -> str | None:
        value = self.variables.get(one.name.removesuffix("[@]").removesuffix("[*]"))
        if value is None or len(value) > _MAX_VALUE:
            return None
        self.filled += len(value)
        if self.filled > _MAX_FILLED:
            self.found.problem = f"its variables fill in more than {_MAX_FILLED} characters"
            return None
        return value


def _assigning(words: Sequence[Word]) -> Iterator[Word]:
    """The assignments of a command: before the program, or behind export and the like."""
    behind = bool(words) and words[0].text in SETTERS
    for word in words[1 if behind else 0 :]:
        if _ASSIGNMENT.match(word.text):
            yield word
        elif not behind and word.text != "env":
            return


def _split(word: Word) -> tuple[str, Word]:
    """Name and value of an assignment."""
    found = _ASSIGNMENT.match(word.text)
    assert found, word.text
    n = found.end()
    shifted = tuple(
        Expansion(one.start - n, one.end - n, one.name, one.default)
        for one in word.expansions
        if one.start >= n
    )
    return found[1], Word(word.text[n:], word.at[n:], shifted, word.quoted)


def _nowhere(_: int) -> Location:
    return Location(path="")
