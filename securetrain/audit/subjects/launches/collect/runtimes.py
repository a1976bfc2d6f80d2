# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Containers that no cluster starts, as the pods that they would be.

docker, podman, nerdctl, apptainer, enroot and srun's ``--container-*`` start them, and services of
a compose file describe them. Each becomes a pod's spec with the places of its words, so that what
reads and judges pods does the same here.

Rules:

1. a setting that stands there literally counts, whatever else is open; a word that may be any
   options leaves open what is not set;
2. defaults are the runtime's: docker filters system calls and mounts no token; apptainer, enroot
   and srun start a process of their user, who gains nothing by it, nor by being root inside;
3. a volume below the working folder is the project's, and known to be;
4. a long option of docker that nobody knows takes the next word, unless that is an option, so that
   none behind it is missed.

Options: ``docker run``, ``podman run``, ``apptainer exec``, ``enroot start``, pyxis and the Compose
Specification, as of 2026-11.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from securetrain.audit.facts import Location, Runtime
from securetrain.audit.parser.objects import Object
from securetrain.audit.parser.templates import Template
from securetrain.audit.parser.tree import Node
from securetrain.audit.parser.values import Source
from securetrain.audit.shell.environment import FILE
from securetrain.audit.shell.programs import WRAPPERS, family_of
from securetrain.audit.shell.values import Arg


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command, or a value of a file."""

    text: str
    at: Location
    opens: tuple[str, ...] = ()
    """What decides the rest of it, as its text has it."""
    rest: bool = False
    """Whether it may be any number of words."""

    def part(self, text: str) -> "Word":
        """A part of it, open where what decides stands in it."""
        return Word(text, self.at, tuple(name for name in self.opens if name in text))


def word_of(arg: Arg) -> Word:
    """A word of a command, with what decides each hole in its text."""
    shown = tuple(dict.fromkeys(one.shown for one in arg.segments if one.name))
    return Word("".join(one.shown for one in arg.segments), arg.at, shown, arg.rest)


Setting: TypeAlias = tuple[str, Word]
"""An option's name as docker has it, and its value."""


@dataclass(frozen=True, slots=True)
class Started:
    """A container that a command or a file starts."""

    program: str
    runtime: str
    """docker, apptainer, enroot or pyxis."""
    at: Location
    settings: tuple[Setting, ...]
    words: tuple[Word, ...] = ()
    """Its command, without the image."""
    left_open: tuple[str, ...] = ()
    """What may set anything else."""

    def values(self, *names: str) -> Iterator[Word]:
        """Yield the values of options."""
        return (value for name, value in self.settings if name in names)

    def last(self, *names: str) -> Word | None:
        """The value that counts."""
        return next(reversed([*self.values(*names)]), None)

    @property
    def is_users(self) -> bool:
        """It is a process of its user, with that user's rights."""
        return self.runtime in _OF_USER


# --- commands ------------------------------------------------------------------------------------

_OF_USER: Final = frozenset({"apptainer", "enroot", "pyxis"})
_SHORT: Final[Mapping[str, Mapping[str, str]]] = {
    "docker": {"v": "volume", "u": "user", "e": "env", "p": "publish", "net": "network"},
    "apptainer": {"B": "volume", "bind": "volume", "add-caps": "cap-add", "H": "home"},
    "enroot": {"m": "volume", "mount": "volume", "e": "env", "r": "root"},
}
_VERBS: Final = {
    "docker": frozenset({"run", "create"}),
    "apptainer": frozenset({"exec", "run", "shell", "test", "start"}),
    "enroot": frozenset({"start"}),
}
_FLAGS: Final = frozenset(
    {
        *("privileged", "rm", "detach", "interactive", "tty", "init", "read-only", "publish-all"),
        *("no-healthcheck", "oom-kill-disable", "quiet", "replace", "rmi", "env-host"),
    }
)
"""Options of docker and podman without a value; any other may have one."""
_GROUPS: Final = frozenset({"container", "instance"})
_PYXIS: Final = {"container-image": "image", "container-mounts": "volume"}


def started_by(program: str, args: Sequence[Word], at: Location) -> Started | None:
    """The container that a command starts; None when it starts none."""
    runtime = family_of(program)
    if runtime not in _VERBS:
        return _of_slurm(program, args, at) if runtime == "srun" else None
    behind = _behind_verb(args, _VERBS[runtime])
    if behind is None:
        return None
    settings: list[Setting] = []
    left_open: list[str] = []
    place = _options(runtime, args, behind, settings, left_open)
    if place < len(args):
        image = args[place]
        settings.append(("image", replace(image, opens=(*image.opens, *left_open))))
    words = tuple(args[place + 1 :])
    return Started(program, runtime, at, tuple(settings), words, tuple(left_open))


def _behind_verb(args: Sequence[Word], verbs: frozenset[str]) -> int | None:
    before = ""
    for number, word in enumerate(args):
        if word.text in verbs:
            return number + 1
        is_value = before.startswith("-") and "=" not in before
        if not word.text.startswith("-") and word.text not in _GROUPS and not is_value:
            return None
        before = word.text
    return None


def _options(
    runtime: str, args: Sequence[Word], i: int, settings: list[Setting], left_open: list[str]
) -> int:
    """Take the options from `i` on; return the place of the first word behind them."""
    while i < len(args):
        word = args[i]
        if word.rest:
            left_open.extend(word.opens)
        elif word.text == "--":
            return i + 1
        elif not word.text.startswith("-") or word.text == "-":
            return i
        else:
            i += _option(runtime, word, args[i + 1] if i + 1 < len(args) else None, settings)
        i += 1
    return i


def _option(runtime: str, word: Word, following: Word | None, settings: list[Setting]) -> int:
    """Take one option; return the number of words behind it that it takes."""
    takes = WRAPPERS[runtime].takes
    dashes = word.text[: 2 if word.text.startswith("--") else 1]
    name, equals, value = word.text[len(dashes) :].partition("=")
    if dashes == "-" and runtime != "apptainer" and len(name) > 1 and name != "net":
        while len(name) > 1 and f"-{name[0]}" not in takes:  # -it, -itv /a:/b
            name = name[1:]
        if len(name) > 1:
            name, equals, value = name[0], "=", name[1:] + equals + value
    known = _SHORT[runtime].get(name, name)
    if equals:
        settings.append((known, word.part(value)))
        return 0
    may_take = runtime == "docker" and dashes == "--" and name not in _FLAGS
    takes_next = f"{dashes}{name}" in takes or (
        may_take and following and following.text[:1] != "-"
    )
    if following is None or not takes_next:
        settings.append((known, Word("true", word.at)))
        return 0
    settings.append((known, following))
    return 1


def _of_slurm(program: str, args: Sequence[Word], at: Location) -> Started | None:
    settings: list[Setting] = []
    for word, following in zip(args, (*args[1:], Word("", at)), strict=False):
        name, equals, value = word.text.removeprefix("--").partition("=")
        if word.text.startswith("--container-") and name in _PYXIS:
            settings.append((_PYXIS[name], word.part(value) if equals else following))
    return Started(program, "pyxis", at, tuple(settings)) if settings else None


# --- pods ----------------------------------------------------------------------------------------

_NO_IMAGE: Final = re.compile(r"[./~]|.*\.(?:sif|simg|sqsh|img)\Z")
"""Images that are files."""
_SCHEME: Final = re.compile(r"(?:docker|oras|library|shub|dockerd)://")
_NAMED: Final = re.compile(r"[A-Za-z0-9][\w.-]*\Z")
"""A volume with a name."""


def made(at: Location | Node, **value: Any) -> Node:
    """A node where a word or another node stands."""
    if isinstance(at, Node):
        return Node(at.line, at.column, at.at, path=at.path, **value)
    return Node(at.line, at.column, at.line, **value)


@dataclass(slots=True)
class _Tree:
    """Makes nodes that stand where words do."""

    template: Template
    at: Location

    def text(self, word: Word, text: str | None = None) -> Node:
        said = word.text if text is None else text
        if word.opens and (text is None or any(name in said for name in word.opens)):
            said = self.template.marker(said, word.opens[0])
        return made(word.at, text=said, plain=True)

    def fixed(self, text: str) -> Node:
        return self.text(Word(text, self.at))

    def entries(self, entries: Mapping[str, Node | None], at: Location | None = None) -> Node:
        there = {key: node for key, node in entries.items() if node is not None}
        return made(at or self.at, entries=there)

    def items(self, items: Iterable[Node]) -> Node | None:
        found = list(items)
        return made(found[0], items=found) if found else None


def container_of(name: str, started: Started) -> Object:
    """The container of a command, as an object of its own."""
    source = Source(started.at.path)
    tree = _Tree(source.template, started.at)
    image = started.last("image")
    title = tree.fixed("" if image is None or image.opens else image.text)
    spec = pod_of(started, source.template)
    node = tree.entries({"metadata": tree.entries({"name": title}), "spec": spec})
    runtime = Runtime.APPTAINER if started.is_users else Runtime.DOCKER
    return Object(name, node, source, started.program, "", "", 0, runtime)


def pod_of(started: Started, template: Template) -> Node:
    """The spec of the pod that a container would be."""
    tree = _Tree(template, started.at)
    volumes, mounted = [], []
    for number, mount in enumerate(_mounts(started)):
        name = f"v{number}"
        volumes.append(_volume(tree, mount, name))
        where = tree.text(mount.target if mount.target.text else mount.source)
        fixed = tree.text(mount.word, "true") if mount.read_only else None
        entry = {"name": tree.fixed(name), "mountPath": where, "readOnly": fixed}
        mounted.append(tree.entries(entry, mount.word.at))
    security = tree.entries(_security(started, tree))
    image = started.last("image")
    is_file = image is None or bool(_NO_IMAGE.match(image.text))
    container = tree.entries(
        {
            "name": tree.fixed(started.runtime),
            "image": None if image is None or is_file else _image(image, tree),
            "command": tree.items(
                tree.text(one) for one in started.values("entrypoint") if one.text
            ),
            "args": tree.items(tree.text(one) for one in started.words),
            "env": tree.items(_env(started, tree)),
            "envFrom": tree.items(
                tree.text(one, tree.template.marker(one.text, f"{FILE}{one.text}"))
                for one in started.values("env-file")
            ),
            "ports": tree.items(_ports(started, tree)),
            "resources": _resources(started, tree),
            "volumeMounts": tree.items(mounted),
            "securityContext": security,
        }
    )
    pod = tree.entries(
        {
            **{
                key: tree.text(value, "true")
                for option, key in _NAMESPACES.items()
                for value in [started.last(option)]
                if value is not None and (value.text == "host" or value.opens)
            },
            "automountServiceAccountToken": tree.fixed("false"),
            "containers": tree.items([container]),
            "volumes": tree.items(volumes),
        }
    )
    if started.left_open:
        marker = tree.template.marker(started.left_open[0], started.left_open[0])
        for node in (pod, container, security):
            node.holes = [marker]
    return pod


_NAMESPACES: Final = {"pid": "hostPID", "ipc": "hostIPC", "network": "hostNetwork"}


def _image(word: Word, tree: _Tree) -> Node:
    return tree.text(word, None if word.opens else _SCHEME.sub("", word.text).replace("#", "/", 1))


@dataclass(frozen=True, slots=True)
class _Mount:
    """A mount as its option says it."""

    word: Word
    source: Word
    target: Word
    read_only: bool


def _mounts(started: Started) -> Iterator[_Mount]:
    for word in started.values("volume"):
        for one in word.text.split(",") if started.is_users else [word.text]:
            parts = re.split(r":(?![^{}()]*[})])", one)
            source, target = parts[0], parts[1] if len(parts) > 1 else ""
            if not started.is_users and len(parts) == 1:
                continue  # a folder of its own in the container
            is_fixed = "ro" in ",".join(parts[2:]).split(",")
            yield _Mount(word, word.part(source), word.part(target or source), is_fixed)
    for word in started.values("mount"):
        pairs = (part.partition("=") for part in word.text.split(","))
        said = {key.strip(): value for key, _, value in pairs}
        source = said.get("source") or said.get("src") or ""
        if said.get("type", "bind") != "bind" and not source.startswith("/"):
            continue
        target = said.get("target") or said.get("dst") or said.get("destination") or source
        read_only = any(said.get(key, "false") in {"", "true", "1"} for key in ("ro", "readonly"))
        yield _Mount(word, word.part(source), word.part(target), read_only)
    for word in started.values("device"):
        if "=" not in word.text:  # a name of CDI is a claim
            source, _, rest = word.text.partition(":")
            yield _Mount(word, word.part(source), word.part(rest or source), read_only=False)
    for word in started.values("volumes-from"):
        other = Word(word.text, word.at, (f"the container {word.text}",))
        yield _Mount(word, other, other, read_only=False)


_HERE: Final = re.compile(r"(?:\$\{?PWD\}?|\$\(pwd\)|`pwd`|\.)(?=/|\Z)")
_HOME: Final = re.compile(r"(?:\$\{?HOME\}?|~)(?=/|\Z)")


def _host_path(source: Word) -> Word:
    """A path of the host, of which the working folder and the home are known to be theirs."""
    for pattern, folder in ((_HERE, "/$PWD"), (_HOME, "/home/$USER")):
        found = pattern.match(source.text)
        below = source.text[found.end() :] if found else ".."
        if ".." not in below.split("/"):
            rest = source.part(below)
            return replace(rest, text=f"{folder}{below}")
    return source


def _volume(tree: _Tree, mount: _Mount, name: str) -> Node:
    source = _host_path(mount.source)
    entries: dict[str, Node | None] = {"name": tree.fixed(name)}
    if not source.opens and _NAMED.match(source.text):
        entries["persistentVolumeClaim"] = tree.entries({"claimName": tree.text(source)})
    else:
        entries["hostPath"] = tree.entries({"path": tree.text(source)}, mount.word.at)
    return tree.entries(entries, mount.word.at)


def _security(started: Started, tree: _Tree) -> dict[str, Node | None]:
    said: dict[str, Node | None] = {}
    if (word := started.last("privileged")) is not None:
        said["privileged"] = tree.text(word, None if word.opens else word.text.lower())
    capabilities = {
        key: tree.items(
            tree.text(word, one) for word in started.values(option) for one in word.text.split(",")
        )
        for key, option in (("add", "cap-add"), ("drop", "cap-drop"))
    }
    if any(capabilities.values()):
        said["capabilities"] = tree.entries(capabilities)
    default = "User" if started.is_users else "RuntimeDefault"
    said["seccompProfile"] = tree.entries({"type": tree.fixed(default)})
    for word in started.values("security-opt", "security"):
        key, _, value = re.sub(r"[:=]", "=", word.text, count=1).partition("=")
        if key == "no-new-privileges" and value in {"", "true"}:
            said["allowPrivilegeEscalation"] = tree.text(word, "false")
        elif key == "systempaths" and value == "unconfined":
            said["procMount"] = tree.text(word, "Unmasked")
        elif key in {"seccomp", "apparmor"} or word.opens:
            profile = "appArmorProfile" if key == "apparmor" else "seccompProfile"
            kind = None if word.opens else "Unconfined" if value == "unconfined" else "Localhost"
            said[profile] = tree.entries({"type": tree.text(word, kind)}, word.at)
    return said | _user(started, tree)


def _user(started: Started, tree: _Tree) -> dict[str, Node | None]:
    if started.is_users:
        fixed = {"allowPrivilegeEscalation": "false", "runAsNonRoot": "true"}
        return {key: tree.fixed(text) for key, text in fixed.items()}
    word = started.last("user")
    if word is None:
        return {}
    name = word.part(word.text.partition(":")[0])
    if name.opens or name.text.isdigit():
        return {"runAsUser": tree.text(name)}
    if name.text == "root":
        return {"runAsUser": tree.text(name, "0")}
    return {"runAsNonRoot": tree.text(name, "true")}


def _env(started: Started, tree: _Tree) -> Iterator[Node]:
    for word in started.values("env"):
        name, equals, value = word.text.partition("=")
        text = tree.text(word, value)
        if not equals:  # what its surroundings have under that name
            text = tree.text(word, tree.template.marker(f"${name}", name))
        elif any(one in value for one in word.opens):
            text = tree.text(word, tree.template.marker(value, word.opens[0]))
        text.plain = False
        yield tree.entries({"name": tree.text(word, name), "value": text}, word.at)


def _ports(started: Started, tree: _Tree) -> Iterator[Node]:
    for word in started.values("publish"):
        parts = word.text.partition("/")[0].rsplit(":", 2)
        if len(parts) > 1 and not word.opens and parts[-1].isdigit() and parts[-2].isdigit():
            inner, outer = tree.text(word, parts[-1]), tree.text(word, parts[-2])
            yield tree.entries({"containerPort": inner, "hostPort": outer}, word.at)


def _resources(started: Started, tree: _Tree) -> Node | None:
    words = [*started.values("gpus", "device")]  # a device that is named was assigned
    words += [one for one in started.values("runtime") if one.text == "nvidia"]
    words += [*started.values("nv", "rocm")] if started.is_users else []
    if not words:
        return None
    limits = tree.entries({"nvidia.com/gpu": tree.text(words[0], "1")})
    return tree.entries({"limits": limits})
