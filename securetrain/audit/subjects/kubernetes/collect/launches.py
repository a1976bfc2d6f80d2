# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Files to launches: scripts, containers of any kind, and scripts inside the strings of objects.

Commands are read in `collect/launches`. What could not be read is a problem of the cluster's
document, not of a launch.
"""

import base64
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from securetrain.audit.facts import Collected, Entry, Location, Runtime
from securetrain.audit.parser import files
from securetrain.audit.parser.files import OwnNames, holds_scripts, is_script
from securetrain.audit.parser.objects import Object, strings
from securetrain.audit.parser.tree import Node
from securetrain.audit.parser.values import Scope
from securetrain.audit.shell.environment import FILE, NOTHING, Environment
from securetrain.audit.shell.evaluator import Folder
from securetrain.audit.shell.values import Arg, Places, Text, always, arg_of, hole, script_text
from securetrain.audit.subjects.kubernetes.collect.pods import LISTS, PodSpec, pod_specs
from securetrain.audit.subjects.launches.collect.images import commands_of_runtime, scripts
from securetrain.audit.subjects.launches.collect.launch import (
    container_launches,
    script_launches,
    variable,
)
from securetrain.audit.subjects.launches.collect.runtimes import Started, container_of
from securetrain.audit.subjects.launches.facts import Form, LaunchFacts, Variable
from securetrain.audit.subjects.node.collect.accounts import kind_of

_COMMANDS: Final = re.compile(
    r"^[ \t]*(?:exec\s+|srun\s[^\n]*)?(?:torchrun|mpirun|mpiexec|deepspeed|accelerate|ray\s+start"
    r"|jupyter|tensorboard|python3?\s+-m\s+torch)\b|^[ \t]*StrictHostKeyChecking\s",
    re.MULTILINE,
)
"""Lines that make a string of a ConfigMap one that a shell or ssh will read."""
_OTHER: Final = frozenset(
    {".yaml", ".yml", ".json", ".md", ".txt", ".py", ".toml", ".ini", ".xml", ".html"}
)
MAX_LAUNCHES: Final = 20_000
_MAX_NAME: Final = 120
_MAX_VALUE: Final = 1024
"""Characters of a ConfigMap's value that may be one variable's."""
_MAX_KEY: Final = 253
"""Of a key's name, by Kubernetes' own rule."""
_HOOKS: Final = ("postStart", "preStop", "livenessProbe", "readinessProbe", "startupProbe")
_LINE: Final = re.compile(
    r"^[ \t]*(?:export[ \t]+)?([A-Za-z_]\w*)=([\"']?)([^\n]*?)\2[ \t]*$", re.MULTILINE
)
"""A line of a file of variables."""
MAX_BLOCKS: Final = 20
_RUNTIME: Final = "runtimeEnvYAML"
_ENTRY_POINTS: Final = frozenset({"entrypoint", "entryPoint"})


@dataclass(slots=True)
class Launches:
    """The launches of files and their objects, in the order in which they are handed over."""

    collected: Collected
    roots: tuple[Path, ...] = ()
    """The folders that are audited."""
    found: list[LaunchFacts] = field(default_factory=list)
    _containers: list[Object] = field(default_factory=list)
    _variables: dict[str, tuple[Variable, ...]] = field(default_factory=dict)
    """Those of each ConfigMap and Secret, by `_stored`."""
    _values: dict[str, Arg | None] = field(default_factory=dict)
    """What stands under each key of ConfigMaps, by `_key_of`; None where two of a name differ."""
    _names: OwnNames = field(default_factory=OwnNames)
    _places: Places = field(default_factory=lambda: Places("", ""))

    def take_file(self, file: files.Text) -> None:
        """Note the launch of a script; its objects come next."""
        self._places = Places(file.path, file.text)
        if file.is_script:
            name = PurePosixPath(file.path).name
            text = script_text(file.text, self._places.at)
            folder = self._folder(Path(file.path))
            self._add(script_launches(file.path, name, text, self.collected, folder=folder))
        elif holds_scripts(file.path):
            for one in scripts(file.path, file.text):
                name, text = f"{file.path}#{one.name}", script_text(one.text, one.place)
                folder = self._folder(Path(file.path))
                made = script_launches(
                    *(name, one.name, text, self.collected, one.form),
                    folder=folder,
                    unread=one.unread,
                )
                self._add(made)

    def _folder(self, script: Path) -> Folder:
        """The files that a script can name: those of the folder that is audited."""

        def read(name: str) -> Arg | str:
            for beside in (script.parent, *self.roots):
                try:
                    real = (beside / name).resolve(strict=True)
                except (OSError, RuntimeError, ValueError):
                    continue
                if not any(real.is_relative_to(root.resolve()) for root in self.roots):
                    return "it lies outside of the folder"
                found = files.read(beside / name)
                if isinstance(found, files.Text):
                    return script_text(found.text, Places(found.path, found.text).at)
                return found.why if isinstance(found, Entry) else found.reason
            return "it is not in the folder"

        return read

    def take_object(self, file: files.Text, one: Object) -> bool:
        """Note the launches in an object of a file; return whether there was room for them."""
        looking = _Looking(file, self._places, one, self.collected)
        for pod in pod_specs(one):
            self._add(looking.pod(pod))
        self._add(looking.texts())
        self._add(looking.operators())
        if one.kind in {"ConfigMap", "Secret"} and len(self._variables) < MAX_LAUNCHES:
            self._store(looking, one)
        return len(self.found) < MAX_LAUNCHES

    def finish(self) -> list[LaunchFacts]:
        """The launches, with the variables of ConfigMaps and Secrets that are among the files."""
        return [_joined(one, self._given, self._values) for one in self.found]

    def _given(self, one: LaunchFacts, named: str) -> Iterable[Variable] | None:
        """The variables of an object or a file that a launch names; None when it is not there."""
        path = named.removeprefix(FILE)
        if path == named:
            return self._variables.get(named)
        text = self._folder(Path(one.launch.at.path))(path)
        if isinstance(text, str):
            return None
        lines = _LINE.finditer(text.text)
        found = {line[1]: text.part(*line.span(3)) for line in lines if kind_of(line[1])}
        return [variable(path, name, value) for name, value in found.items()]

    def _store(self, looking: "_Looking", one: Object) -> None:
        """Note the variables of a ConfigMap or Secret."""
        found: list[Variable] = []
        mappings = [(key, one.node.get(key)) for key in ("data", "stringData")]
        if any(node is not None and (node.holes or node.entries is None) for _, node in mappings):
            return  # a template may add to it
        stored = _stored(one.kind[:1].lower() + one.kind[1:], one, one.said("name"))
        scope = Scope(one.source, one.node.at)
        for key, mapping in mappings:
            for name, node in ((mapping.entries if mapping else None) or {}).items():
                value = looking.text(node)
                if one.kind == "Secret" and key == "data":
                    value = Text(_decoded(value.text), always(looking.at(node)))
                arg = script_text(value.text, value.place)
                if kind_of(name):
                    found.append(variable(one.kind, name, arg))
                if one.kind == "ConfigMap":
                    opens = scope.opened(node) or name in (mapping.twice or () if mapping else ())
                    self._note(_key(stored, name), None if opens else arg)
        self._variables[stored] = tuple(found)

    def _note(self, key: str, value: Arg | None) -> None:
        """Note a value of a ConfigMap; of two that differ, and of a long one, none is known."""
        before = self._values.get(key, value)
        if key in self._values or len(self._values) < MAX_LAUNCHES:
            is_known = value is not None and len(value.text) <= _MAX_VALUE
            same = before is not None and value is not None and before.text == value.text
            self._values[key] = value if is_known and same else None

    def started(self) -> Iterator[Object]:
        """Yield the containers that commands start, noted since the last time."""
        found, self._containers = self._containers, []
        yield from found

    def _add(self, launches: Iterable[LaunchFacts | Started]) -> None:
        inside = ""
        for one in launches:
            if isinstance(one, Started):
                self._containers.append(
                    container_of(self._names.of(f"{inside}/{one.program}"), one)
                )
                continue
            inside = one.file
            if len(self.found) < MAX_LAUNCHES:
                self.found.append(msgspec.structs.replace(one, file=self._names.of(one.file)))


@dataclass(frozen=True, slots=True)
class _Looking:
    """Looks at one object for what is run."""

    file: files.Text
    places: Places
    one: Object
    collected: Collected

    def text(self, node: Node) -> Text:
        """A scalar as it was written, with its places."""
        text = self.one.source.template.restored(node.text or "")
        return Text(text, self.places.of(node.line, node.column, text))

    def pod(self, pod: PodSpec) -> Iterator[LaunchFacts | Started]:
        if pod.single:
            node = pod.spec if pod.single == "." else pod.spec.get(pod.single)
            if node is not None:
                yield from self.container(pod, node, 1)
            return
        number = 0
        for key in pod.beside:
            number += 1
            if (inner := pod.containers.get(key)) is not None:
                yield from self.container(pod, inner, number)
        for key in LISTS:
            for node in pod.spec.listed(key):
                number += 1
                if node.entries is not None:
                    yield from self.container(pod, node, number)

    def container(self, pod: PodSpec, node: Node, number: int) -> Iterator[LaunchFacts | Started]:
        opened = tuple(itertools.islice(self.one.blocks(node, "launch"), MAX_BLOCKS))
        for one in self._container(pod, node, number):
            if opened and isinstance(one, LaunchFacts):
                yield msgspec.structs.replace(one, ledger=(*one.ledger, *opened))
            else:
                yield one

    def _container(self, pod: PodSpec, node: Node, number: int) -> Iterator[LaunchFacts | Started]:
        words = [*self.words(node, "command"), *self.words(node, "args")]
        variables = dict(self.variables(node))
        source = node.get("source")
        base = self.given(node)
        said = node.get("name")
        name = self.text(said).text[:120] if said is not None and said.text else f"#{number}"
        way = "/".join(part for part in (pod.role, name) if part)
        if source is not None and source.text is not None:
            text = self.text(source)
            script = script_text(text.text, text.place)
            yield from script_launches(
                f"{self.one.name}/{way}/source", "source", script, self.collected, self.form
            )
        if words or variables or base != NOTHING:
            yield from container_launches(
                f"{self.one.name}/{way}",
                name,
                words=words,
                variables=variables,
                base=base,
                form=self.form,
                at=self.at(node),
                collected=self.collected,
            )
        yield from self.hooks(f"{self.one.name}/{way}", node)

    def hooks(self, name: str, node: Node) -> Iterator[LaunchFacts | Started]:
        """Yield the launches of lifecycle hooks and probes that execute a command."""
        lifecycle = node.get("lifecycle") or node
        for key in _HOOKS:
            hook = (node if key.endswith("Probe") else lifecycle).get(key)
            command = hook.get("exec") if hook is not None else None
            if command is not None and (words := self.words(command, "command")):
                yield from self.made(f"{name}/{key}", words, command)

    def words(self, node: Node, key: str) -> list[Text]:
        found = node.get(key)
        if found is None:
            return []
        nodes = found.items if found.items is not None else [found]
        return [self.text(one) for one in nodes if one.text is not None]

    def variables(self, node: Node) -> Iterator[tuple[str, Text]]:
        for one in node.listed("env"):
            name, value = one.get("name"), one.get("value")
            if name is not None and name.text and value is not None and value.text is not None:
                yield name.text, self.text(value)

    def given(self, node: Node) -> Environment:
        """The variables that other objects and files give a container."""
        seen, template = NOTHING, self.one.source.template
        for one in node.listed("envFrom"):
            why = next((hole.name for hole in template.holes_of(one.text or "")), "an object")
            for key in ("configMapRef", "secretRef"):
                ref = one.get(key)
                name = ref.get("name") if ref is not None else None
                if name is not None and name.text:
                    why = _stored(key.removesuffix("Ref"), self.one, name.text)
            seen = seen.open_by(arg_of((), self.at(one)), why)
        for one in node.listed("env"):
            name, at = one.get("name"), always(self.at(one))
            source = one.get("valueFrom")
            if name is not None and name.text and source is not None:
                why = _key_of(self.one, source) or "another object"
                seen = seen.having(name.text, arg_of([hole(why, at)], at(0)))
        return seen

    def at(self, node: Node) -> Location:
        return Location(path=self.file.path, line=node.line)

    def texts(self) -> Iterator[LaunchFacts | Started]:
        """Scripts in the strings of a ConfigMap, and entry points of jobs."""
        for way, node in strings(self.one.node):
            key, text = way[-1] if way else "", node.text or ""
            if self.one.kind in {"ConfigMap", "Secret"}:
                if way[0] not in {"data", "stringData"} or not _is_commands(key, text):
                    continue
            elif key not in _ENTRY_POINTS and key != _RUNTIME:
                continue
            said = self.text(node)
            if key == _RUNTIME:
                said = self.lines(node, commands_of_runtime(said.text))
            name = f"{self.one.name}/{key[:120]}"
            script = script_text(said.text, said.place)
            yield from script_launches(name, key, script, self.collected, self.form)

    @property
    def form(self) -> Form:
        """A task on a machine is a script; what stands in another object starts in its pods."""
        return Form.SCRIPT if self.one.runtime is Runtime.HOST else Form.CONTAINER

    def lines(self, node: Node, text: str) -> Text:
        """A text that has the lines of a scalar, with their places."""
        first = node.line + 1 if node.literal else node.line
        return Text(text, Places(self.file.path, text, first).at)

    def operators(self) -> Iterator[LaunchFacts | Started]:
        """Commands that an operator makes of fields of its kind."""
        for key, parameters in _below(self.one.node, "rayStartParams"):
            if "headGroupSpec" in key:
                words = [*_fixed("ray", "start", "--head", node=parameters, path=self.file.path)]
                words += self.options(parameters)
                yield from self.made(f"{self.one.name}/rayStartParams", words, parameters)
        for _, policy in _below(self.one.node, "elasticPolicy"):
            if backend := policy.get("rdzvBackend"):
                text = self.text(backend)
                word = Text(f"--rdzv-backend={text.text}", lambda _: self.at(backend))
                words = [*_fixed("torchrun", node=policy, path=self.file.path), word]
                yield from self.made(f"{self.one.name}/elasticPolicy", words, policy)

    def options(self, node: Node) -> Iterator[Text]:
        for name, value in (node.entries or {}).items():
            if value.text is not None:
                text, at = self.text(value).text, self.at(value)
                yield Text(f"--{name}={text}", lambda _, at=at: at)  # type: ignore[misc]

    def made(self, name: str, words: list[Text], node: Node) -> Iterator[LaunchFacts | Started]:
        return container_launches(
            name,
            name.rpartition("/")[2],
            words=words,
            variables={},
            at=self.at(node),
            collected=self.collected,
        )


def _stored(kind: str, one: Object, name: str) -> str:
    """The name of a ConfigMap or Secret beside an object."""
    return f"{kind} {one.said('namespace') or 'default'}/{name[:_MAX_NAME]}"


def _key_of(one: Object, source: Node) -> str:
    """The key of a ConfigMap beside an object that decides a value; empty where none does."""
    ref = source.get("configMapKeyRef")
    name, key = (ref.get("name"), ref.get("key")) if ref is not None else (None, None)
    if name is None or key is None or not name.text or not 0 < len(key.text or "") <= _MAX_KEY:
        return ""
    return _key(_stored("configMap", one, name.text), key.text or "")


def _key(stored: str, name: str) -> str:
    """The name of what stands under a key of an object; no letter first: it is no variable."""
    return f'"{name}" of {stored}'


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode()
    except ValueError:
        return ""


def _joined(
    one: LaunchFacts,
    given: Callable[[LaunchFacts, str], Iterable[Variable] | None],
    values: Mapping[str, Arg | None],
) -> LaunchFacts:
    """The launch, in which what stands in an object or a file among these is known."""
    found = one.launch.environment.value or ()
    known = {each.name.value for each in found}
    joined: list[Variable] = []
    for each in found:
        if (name := each.name.value) is not None:
            value = values.get(each.value.reason.removesuffix(" decides"))
            joined.append(each if value is None else variable(each.program, name, value))
            continue
        there = given(one, each.name.reason.removesuffix(" decides"))
        joined.extend([each] if there is None else (n for n in there if n.name.value not in known))
    if tuple(joined) == found:
        return one
    environment = msgspec.structs.replace(one.launch.environment, value=tuple(joined))
    launch = msgspec.structs.replace(one.launch, environment=environment)
    return msgspec.structs.replace(one, launch=launch)


def _fixed(*words: str, node: Node, path: str) -> Iterator[Text]:
    at = Location(path=path, line=node.at)
    for word in words:
        yield Text(word, lambda _: at)


def _is_commands(key: str, text: str) -> bool:
    if is_script(key, text[:200]):
        return True
    return PurePosixPath(key).suffix not in _OTHER and bool(_COMMANDS.search(text))


def _below(node: Node, wanted: str, way: str = "") -> Iterator[tuple[str, Node]]:
    """Mappings under a key, at any depth."""
    if node.entries is not None:
        for key, value in node.entries.items():
            if key == wanted and value.entries is not None:
                yield way, value
            else:
                yield from _below(value, wanted, f"{way}/{key}")
    for one in node.items or ():
        yield from _below(one, wanted, way)
