# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Files to launches: scripts, containers of any kind, and scripts inside the strings of objects.

Commands are read in `collect/launches`. What could not be read is a problem of the cluster's
document, not of a launch.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from securetrain.audit.documents.facts import Collected, Entry, Location
from securetrain.audit.shell.evaluator import Folder
from securetrain.audit.shell.values import Arg, script_text
from securetrain.audit.subjects.kubernetes.collect.parser import files
from securetrain.audit.subjects.kubernetes.collect.parser.names import OwnNames
from securetrain.audit.subjects.kubernetes.collect.parser.objects import Object, strings
from securetrain.audit.subjects.kubernetes.collect.parser.tree import Node
from securetrain.audit.subjects.kubernetes.collect.pods.pods import LISTS, PodSpec, pod_specs
from securetrain.audit.subjects.launches.collect.images import holds_scripts, scripts
from securetrain.audit.subjects.launches.collect.launch import (
    Text,
    container_launches,
    is_script,
    places_in,
    script_launches,
)
from securetrain.audit.subjects.launches.collect.places import Places
from securetrain.audit.subjects.launches.collect.ray import commands_of_runtime
from securetrain.audit.subjects.launches.collect.runtimes import Started, container_of
from securetrain.audit.subjects.launches.facts import LaunchFacts

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
    _names: OwnNames = field(default_factory=OwnNames)
    _places: Places = field(default_factory=lambda: Places("", ""))

    def take_file(self, file: files.Text) -> None:
        """Note the launch of a script; its objects come next."""
        self._places = Places(file.path, file.text)
        if file.is_script:
            name = PurePosixPath(file.path).name
            place = places_in(file.path, file.text)
            text = script_text(file.text, place)
            folder = self._folder(Path(file.path))
            self._add(script_launches(file.path, name, text, self.collected, folder=folder))
        elif holds_scripts(file.path):
            for one in scripts(file.path, file.text):
                name, text = f"{file.path}#{one.name}", script_text(one.text, one.place)
                self._add(script_launches(name, one.name, text, self.collected, one.form))

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
                    return script_text(found.text, places_in(found.path, found.text))
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
        return len(self.found) < MAX_LAUNCHES

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
            found = pod.spec.get(key)
            for node in (found.items if found is not None else None) or ():
                number += 1
                if node.entries is not None:
                    yield from self.container(pod, node, number)

    def container(self, pod: PodSpec, node: Node, number: int) -> Iterator[LaunchFacts | Started]:
        words = [*self.words(node, "command"), *self.words(node, "args")]
        variables = dict(self.variables(node))
        source = node.get("source")
        if not words and not variables and source is None:
            return
        said = node.get("name")
        name = self.text(said).text[:120] if said is not None and said.text else f"#{number}"
        way = "/".join(part for part in (pod.role, name) if part)
        if source is not None and source.text is not None:
            text = self.text(source)
            script = script_text(text.text, text.place)
            yield from script_launches(
                f"{self.one.name}/{way}/source", "source", script, self.collected
            )
        if words or variables:
            yield from container_launches(
                f"{self.one.name}/{way}",
                name,
                words=words,
                variables=variables,
                at=self.at(node),
                collected=self.collected,
            )

    def words(self, node: Node, key: str) -> list[Text]:
        found = node.get(key)
        if found is None:
            return []
        nodes = found.items if found.items is not None else [found]
        return [self.text(one) for one in nodes if one.text is not None]

    def variables(self, node: Node) -> Iterator[tuple[str, Text]]:
        found = node.get("env")
        for one in (found.items if found is not None else None) or ():
            name, value = one.get("name"), one.get("value")
            if name is not None and name.text and value is not None and value.text is not None:
                yield name.text, self.text(value)

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
            yield from script_launches(name, key, script, self.collected)

    def lines(self, node: Node, text: str) -> Text:
        """A text that has the lines of a scalar, with their places."""
        first = node.line + 1 if node.literal else node.line
        return Text(text, places_in(self.file.path, text, first))

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
