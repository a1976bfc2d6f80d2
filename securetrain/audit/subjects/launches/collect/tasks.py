# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Containers and commands of YAML that is no Kubernetes object: services of compose, and tasks.

Rules:

1. a document is told by its keys, whatever the file is called: ``services`` of compose; ``run`` or
   ``setup`` beside ``resources``, ``envs`` and the like for SkyPilot; a list of tasks for Ansible;
2. each service, task and module becomes an `Object` with the nodes that stand in the file, so that
   the readers of pods and commands have the rest;
3. ``extends`` is followed inside the file, to a depth; what another file adds is left open.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from securetrain.audit.facts import Runtime
from securetrain.audit.parser.objects import Object
from securetrain.audit.parser.tree import Node
from securetrain.audit.parser.values import Source
from securetrain.audit.shell.syntax import parse
from securetrain.audit.subjects.launches.collect.runtimes import (
    Setting,
    Started,
    Word,
    made,
    pod_of,
)

MAX_EXTENDS: Final = 16
_SERVICE: Final = frozenset({"image", "build", "extends", "command", "entrypoint", "privileged"})
_NAMES: Final = (
    ("env", ("environment",)),
    ("network", ("network_mode",)),
    ("pid", ("pid_mode",)),
    ("ipc", ("ipc_mode",)),
    ("publish", ("ports", "published_ports")),
    ("volume", ("volumes",)),
    ("device", ("devices",)),
    ("mount", ("mounts",)),
    ("cap-add", ("cap_add", "capabilities")),
    ("security-opt", ("security_opt", "security_opts")),
)
_SAME: Final = ("privileged", "pid", "ipc", "user", "env", "image", "gpus", "runtime")
_DASHED: Final = ("cap_drop", "env_file", "volumes_from")
_OPTIONS: Final = {
    **{name: name.replace("_", "-") for name in (*_SAME, *_DASHED)},
    **{name: option for option, names in _NAMES for name in names},
}
"""Keys of compose and of Ansible's modules to options of docker."""
_SKYPILOT: Final = frozenset(
    {"resources", "num_nodes", "envs", "workdir", "file_mounts", "secrets", "service"}
)
_COMMANDS: Final = frozenset({"shell", "command", "raw", "win_shell"})
_CONTAINERS: Final = frozenset({"docker_container", "podman_container"})
_TASKS: Final = ("tasks", "pre_tasks", "post_tasks", "handlers", "block", "rescue", "always")
_MAX_TASKS: Final = 2_000
_VARIABLE: Final = re.compile(r"(?<!\$)\$[A-Za-z_]\w*")


def started_in(name: str, root: Node, source: Source, marks: int) -> Iterator[Object]:
    """Yield what a document starts that holds no Kubernetes object."""
    reader = _Reader(source, marks)
    entries = root.entries or {}
    services = entries.get("services")
    if services is not None and _is_compose(services):
        for key in services.entries or {}:
            yield reader.service(f"{name}/services/{key}", key, services)
    elif _SKYPILOT & entries.keys() and any(_is_text(root, key) for key in ("run", "setup")):
        for key in ("setup", "run"):
            if _is_text(root, key):
                yield reader.task(f"{name}/{key}", "SkyPilot", _skypilot(root, key))
    elif root.items is not None:
        for number, (way, task) in enumerate(_tasks(root, ())):
            if number >= _MAX_TASKS:
                return
            yield from _task(f"{name}/{way}", task, reader)


def _is_text(node: Node, key: str) -> bool:
    found = node.get(key)
    return found is not None and found.text is not None


@dataclass(frozen=True, slots=True)
class _Reader:
    """Makes objects of one document."""

    source: Source
    marks: int

    def task(self, name: str, kind: str, container: Node) -> Object:
        """A command on a machine."""
        spec = made(container, entries={"containers": made(container, items=[container])})
        return self._object(name, kind, "", spec, Runtime.HOST)

    def container(self, name: str, kind: str, title: str, started: Started) -> Object:
        """A container that docker starts."""
        spec = pod_of(started, self.source.template)
        return self._object(name, kind, title, spec, Runtime.DOCKER)

    def _object(self, name: str, kind: str, title: str, spec: Node, runtime: Runtime) -> Object:
        metadata = made(spec, entries={"name": made(spec, text=title)})
        node = made(spec, entries={"metadata": metadata, "spec": spec})
        return Object(name, node, self.source, kind, "", "", self.marks, runtime)

    def service(self, name: str, key: str, services: Node) -> Object:
        """A service of a compose file."""
        node, source = (services.entries or {})[key], self.source
        settings: list[Setting] = []
        left_open: list[str] = []
        words: dict[str, Node] = {}
        for one in reversed(list(_extended(node, services, left_open))):
            for option, found in (one.entries or {}).items():
                if option in _OPTIONS:
                    settings.extend(_settings(_OPTIONS[option], found, source))
                elif option in {"command", "entrypoint"}:
                    words[option] = found
            settings.extend(("gpus", _of(node, source)) for node in _reserved(one))
        command = tuple(
            _of(one, source)
            for option in ("entrypoint", "command")
            for one in split(words.get(option))
        )
        opened = tuple(dict.fromkeys(left_open))
        at = source.at(node)
        started = Started("compose", "docker", at, tuple(settings), command, opened)
        return self.container(name, "compose", key, started)


# --- compose -------------------------------------------------------------------------------------


def _is_compose(services: Node) -> bool:
    return any(_SERVICE & (one.entries or {}).keys() for one in (services.entries or {}).values())


def _extended(node: Node, services: Node, left_open: list[str]) -> Iterator[Node]:
    """Yield a service and those that it extends."""
    for _ in range(MAX_EXTENDS):
        yield node
        extends = node.get("extends")
        if extends is None:
            return
        file = extends.get("file")
        base = extends if extends.text is not None else extends.get("service")
        found = (services.entries or {}).get((base.text or "") if base else "")
        if file is not None or found is None:
            left_open.append(f"the service that {(file or extends).text or 'it'} extends")
            return
        node = found
    left_open.append("a chain of services that extend each other")


def _reserved(node: Node) -> Iterator[Node]:
    """Yield the GPUs that a service reserves."""
    found: Node | None = node
    for key in ("deploy", "resources", "reservations"):
        found = found.get(key) if found is not None else None
    for one in found.listed("devices") if found is not None else ():
        yield made(one, text="all")


def _of(node: Node, source: Source) -> Word:
    """A value as a word; what compose or a template fills in stays marked in its text."""
    text = node.text or ""
    opens = tuple(_VARIABLE.findall(text))
    return Word(text.replace("$$", "$"), source.at(node), opens)


def _settings(option: str, node: Node, source: Source) -> Iterator[Setting]:
    if node.is_null:
        return
    if node.text is not None:
        yield option, _of(node, source)
    for key, value in (node.entries or {}).items():
        equals = "" if value.is_null else f"={value.text or ''}"
        word = _of(value, source)
        yield option, Word(f"{key}{equals}", word.at, word.opens)
    for one in node.items or ():
        if one.text is not None:
            yield option, _of(one, source)
        elif option == "env-file" and (path := one.get("path")) is not None:
            yield option, _of(path, source)
        elif option in {"volume", "mount"}:
            yield "mount", _as_mount(one, source)
        elif one.entries is not None and option == "publish":
            ports = [one.get(key) for key in ("published", "target")]
            text = ":".join(port.text or "" for port in ports if port is not None)
            yield option, Word(text, source.at(one))


def _as_mount(node: Node, source: Source) -> Word:
    said = {key: value.text or "" for key, value in (node.entries or {}).items()}
    text = ",".join(f"{key}={value}" for key, value in said.items() if key != "read_only")
    text += ",ro=true" if said.get("read_only", "").lower() in {"true", "yes"} else ""
    return Word(text, source.at(node), tuple(_VARIABLE.findall(text)))


def split(node: Node | None) -> Iterator[Node]:
    """Yield the words of a command, which is a list or one text."""
    if node is None or node.is_null:
        return
    if node.items is not None:
        yield from (one for one in node.items if one.text is not None)
        return
    text = node.text or ""
    for command in parse(text).block[:1]:
        for word in command.words:
            lines = text[: word.start].count("\n") + 1 if node.literal else 0
            line = node.line + lines
            said = "".join(part.text for part in word.parts)
            yield Node(line, 1 if lines else node.column, line, text=said, path=node.path)


# --- tasks ---------------------------------------------------------------------------------------


def _skypilot(root: Node, key: str) -> Node:
    """The task as a container without an image: a shell, with what SkyPilot sets."""
    run = root.get(key)
    assert run is not None, "the caller has looked"
    env = list(_variables(root, ("envs", "secrets")))
    nodes = root.get("num_nodes")
    if nodes is not None and nodes.text:
        env.append(_variable(nodes, "SKYPILOT_NUM_NODES", made(nodes, text=nodes.text)))
    return _shell(run, env)


def _shell(text: Node, env: list[Node]) -> Node:
    words = [made(text, text=word) for word in ("bash", "-c")]
    lists = {"command": words, "args": [text], "env": env}
    return made(text, entries={key: made(text, items=found) for key, found in lists.items()})


def _variable(at: Node, name: str, value: Node) -> Node:
    return made(at, entries={"name": made(at, text=name), "value": value})


def _variables(node: Node, keys: Iterable[str]) -> Iterator[Node]:
    for key in keys:
        found = node.get(key)
        for name, value in ((found.entries if found else None) or {}).items():
            if value.text is not None and not value.is_null:
                yield _variable(value, name, value)


def _tasks(node: Node, way: tuple[str, ...]) -> Iterator[tuple[str, Node]]:
    """Yield the tasks of a list of tasks or plays, with those in their blocks."""
    for number, one in enumerate(node.items or ()):
        if one.entries is None:
            continue
        here = (*way, str(number))
        yield "/".join(here), one
        for key in _TASKS:
            if len(here) < MAX_EXTENDS and (inner := one.get(key)) is not None:
                yield from _tasks(inner, (*here, key))


def _task(name: str, task: Node, reader: _Reader) -> Iterator[Object]:
    env = list(_variables(task, ("environment",)))
    for key, value in (task.entries or {}).items():
        module = key.rpartition(".")[2]
        if module in _COMMANDS:
            said = value if value.text is not None else value.get("cmd")
            argv = value.get("argv")
            if said is not None and said.text is not None:
                yield reader.task(name, "Ansible", _shell(said, env))
            elif argv is not None:
                words = {"command": argv, "env": made(value, items=env)}
                yield reader.task(name, "Ansible", made(value, entries=words))
        elif module in _CONTAINERS and value.entries is not None:
            yield reader.container(name, "Ansible", "", _module(value, reader.source))


def _module(node: Node, source: Source) -> Started:
    settings: list[Setting] = []
    for key, value in (node.entries or {}).items():
        if key in _OPTIONS:
            settings.extend(_settings(_OPTIONS[key], value, source))
    words = tuple(_of(one, source) for one in split(node.get("command")))
    return Started("ansible", "docker", source.at(node), tuple(settings), words)
