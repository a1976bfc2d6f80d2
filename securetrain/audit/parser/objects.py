# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Texts to Kubernetes objects, wherever these stand.

Objects stand in YAML documents, in the items of a List, below other keys (a task of Ansible), in
strings (a ConfigMap, an argument) and in here-documents of scripts. Each has a name: the file, the
number of its document, and the way from there.
"""

import os
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from securetrain.audit.facts import End, Entry, Location, Runtime
from securetrain.audit.parser.files import (
    ALL,
    MAX_DOCUMENTS,
    MAX_EMBEDDED,
    MAX_ITEMS,
    Large,
    ManifestError,
    Text,
    holds_scripts,
)
from securetrain.audit.parser.templates import (
    Template,
    has_template,
    take_out,
)
from securetrain.audit.parser.tree import Builder, Node, Slowly
from securetrain.audit.parser.values import Source
from securetrain.core.files import open_regular

OPEN_LINES: Final = (
    *("workload", "launch", "cluster.namespaces", "cluster.entrances", "cluster.admissions"),
    "cluster.secrets",
)
"""What open lines of a template bear on: all but the objects, which know their holes."""
DEFINITIONS: Final = "apiextensions.k8s.io"
"""The group of definitions of kinds, which are no objects of these kinds."""

_SEPARATOR: Final = re.compile(r"^(?:---(?=\s|$)|\.\.\.(?=\s|$))", re.MULTILINE)
_DIRECTIVE: Final = re.compile(r"^%(?:YAML|TAG)[^\n]*$", re.MULTILINE)
_CONTENT: Final = re.compile(r"^[ \t]*[^#\s]", re.MULTILINE)
_HAS_KIND: Final = re.compile(r"(?:^|[\s\"'{,])[\"']?kind[\"']?\s*:")
_HERE: Final = re.compile(r"<<(-?)[ \t]*(?:\\?([A-Za-z_][\w.]*)|'([^'\n]+)'|\"([^\"\n]+)\")")
_ITEMS: Final = re.compile(r"^(?:[{][^{]{0,200})?[ \t]*[\"']?items[\"']?[ \t]*:", re.MULTILINE)
_MIN_STRING: Final = 24
_MAX_NAME: Final = 120


@dataclass(frozen=True, slots=True)
class Object:
    """One object."""

    name: str
    """As in assets: ``jobs/a.yaml#2``."""
    node: Node
    source: Source
    kind: str
    """Empty when a template decides it."""
    api_version: str
    inside: str
    marks: int
    """Places that a template leaves open in it; 0 for plain YAML."""
    runtime: Runtime = Runtime.KUBERNETES

    @property
    def group(self) -> str:
        """The group of its API version; empty for the core's."""
        return self.api_version.rpartition("/")[0]

    @property
    def metadata(self) -> Node | None:
        """Its metadata."""
        return self.node.get("metadata")

    def said(self, key: str) -> str:
        """A word of its metadata; empty when it has none or a template decides it."""
        node = self.metadata.get(key) if self.metadata else None
        text = node.text if node is not None and node.text is not None else ""
        return "" if self.source.template.holes_of(text) else text

    def blocks(self, node: Node, *bears_on: str) -> Iterator[Entry]:
        """Yield an entry for each block that a template inserts among the keys below a node."""
        for inner in node.walk():
            if inner.holes:
                why = "a template inserts something here"
                yield Entry(
                    unit="block", at=self.source.at(inner), end=End.NOT_UNDERSTOOD, why=why,
                    help="render it first", bears_on=bears_on,
                )  # fmt: skip

    @property
    def title(self) -> str:
        """Kind and name."""
        return f"{self.kind}/{self.said('name')}"


@dataclass(frozen=True, slots=True)
class Part:
    """A text inside a file, and how it got there."""

    name: str
    text: str
    source: Source
    line: int
    """The file's line that it begins at."""
    fixed: bool = False
    """Whether its lines are not the file's."""
    inside: str = ""
    depth: int = 0
    relocate: Callable[[Node, Template], None] | None = None
    """Gives an object of a rendered text the lines of the file that it came from."""
    before: int = 0
    """Documents of its name that were read before."""


@dataclass(slots=True)
class Reader:
    """Reads the objects of texts, and notes what it could not read."""

    note: Callable[[Entry], None]
    others: "Callable[[str, Node, Source, int], Iterator[Object]]"
    """Finds what a document starts that holds no object of Kubernetes."""
    documents: int = 0
    words: dict[str, str] = field(default_factory=dict)
    """A word of `WATCHED` to the first file that has it and could not be read."""

    def objects(self, file: Text) -> Iterator[Object]:
        """Yield the objects of one file."""
        part = Part(file.path, file.text, Source(file.path, Template()), 1)
        if file.is_script or holds_scripts(file.path):
            yield from self._here_documents(part)
            return
        yield from self._without_template(part)

    def rendered(self, part: Part, relocate: Callable[[Node, Template], None]) -> Iterator[Object]:
        """Yield the objects of a text that a tool made; its source is where they came from."""
        yield from self._without_template(replace(part, relocate=relocate))

    def _without_template(self, part: Part) -> Iterator[Object]:
        text = part.text
        try:
            text = take_out(text, part.source.template) if has_template(text) else text
        except ManifestError as error:
            self._fail(part, part.name, error)
            return
        yield from self._documents(replace(part, text=text))

    def items(self, part: Part, source: str | Slowly, marks: int = 0) -> Iterator[Object]:
        """Yield the objects of a `List`, of which never more than one is in memory.

        Raises:
            ManifestError: with the line; what came before it was read.
        """
        builder = Builder(part.source.template, part.line, part.fixed)
        for number, node in enumerate(builder.stream(source)):
            if number >= MAX_ITEMS:
                raise ManifestError(f"more than {MAX_ITEMS} objects in one List", node.line)
            if node.get("kind") is None or node.get("apiVersion") is None:
                raise ManifestError("an element of items has no kind", node.line)
            inner = replace(part, name=f"{part.name}/items[{number}]")
            yield from self._of_document(inner, node, marks)
        if builder.root is None or not _is_list(builder.root):
            raise ManifestError("it is no List, or has more than items", part.line)
        self._twice(part, part.name, builder)

    def large(self, file: Large) -> Iterator[Object]:
        """Yield the objects of a file that is one `List` and too large to be read whole.

        Raises:
            ManifestError: with the line; what came before it was read.
        """
        part = Part(f"{file.path}#1", "", Source(file.path, Template()), 1)
        with os.fdopen(open_regular(file.real), "rb") as source:
            yield from self.items(part, Slowly(source))

    # -- documents ------------------------------------------------------------------------------

    def _documents(self, part: Part) -> Iterator[Object]:
        number = part.before
        for text, line in split(part.text, part.line, fixed=part.fixed):
            number += 1
            name = f"{part.name}#{number}"
            self.documents += 1
            if self.documents > MAX_DOCUMENTS:
                reason = f"more than {MAX_DOCUMENTS} documents; what follows was not read"
                place = Location(path=part.source.path, line=line)
                self._open(name, reason, place, part.text)
                return
            last = line if part.fixed else line + text.count("\n")
            template = part.source.template
            unplaced = any(line <= one <= last for one in template.unplaced)
            source = replace(part.source, unplaced=unplaced)
            builder = Builder(template, line, part.fixed)
            try:
                root = builder.build(text)
            except ManifestError as error:
                inner = replace(part, name=name, source=source, line=line)
                yield from self._instead(inner, text, error)
                continue
            self._twice(part, name, builder)
            if root is None:
                continue
            marks = _count(template.marked, line, last)
            if part.relocate is not None:
                part.relocate(root, template)
            yield from self._of_document(replace(part, name=name, source=source), root, marks)

    def _instead(self, part: Part, text: str, error: ManifestError) -> Iterator[Object]:
        """Yield the objects of a document that is too large, where it is a `List`."""
        try:
            if not error.is_large or _ITEMS.search(text) is None:
                raise error
            last = part.line + text.count("\n")
            yield from self.items(part, text, _count(part.source.template.marked, part.line, last))
        except ManifestError as found:
            self._fail(part, part.name, found, text)

    def _of_document(self, part: Part, root: Node, marks: int) -> Iterator[Object]:
        found = False
        for one in self._expanded(part, root, part.name, marks, ""):
            found = True
            yield one
            if one.group != DEFINITIONS:
                yield from self._strings(part, one)
        if not found:
            for one in self.others(part.name, root, part.source, marks):
                found = True
                yield one
        if not found and marks and any(_holds_containers(node) for node in root.walk()):
            found = True
            yield Object(part.name, root, part.source, "", "", part.inside, marks)
        if marks and (found or not part.inside):
            what = f"a template with {marks} open lines"
            self._open(part.name, what, part.source.at(root), help="render it first", of=OPEN_LINES)

    def _expanded(
        self, part: Part, node: Node, name: str, marks: int, kind: str
    ) -> Iterator[Object]:
        """Yield the object that a node is, or those below it."""
        template = part.source.template
        said = node.get("kind")
        version = node.get("apiVersion")
        if node.entries is not None and (said or kind) and (version or kind):
            word = said.text or "" if said else kind
            items = node.entries.get("items")
            if word.endswith("List") and items is not None and items.items is not None:
                for number, item in enumerate(items.items):
                    inner = f"{name}/items[{number}]"
                    yield from self._expanded(part, item, inner, marks, word.removesuffix("List"))
                return
            group = version.text or "" if version else ""
            word = "" if template.holes_of(word) else word[:_MAX_NAME]
            group = "" if template.holes_of(group) else group[:_MAX_NAME]
            yield Object(name, node, part.source, word, group, part.inside, marks)
            return
        below = [(f"/{key}", value) for key, value in (node.entries or {}).items()]
        below += [(f"[{i}]", value) for i, value in enumerate(node.items or ())]
        for key, value in below:
            if value.text is None:
                yield from self._expanded(part, value, f"{name}{key[:_MAX_NAME]}", marks, "")

    # -- strings --------------------------------------------------------------------------------

    def _strings(self, part: Part, one: Object) -> Iterator[Object]:
        """Yield the objects in the strings of an object."""
        if part.depth >= MAX_EMBEDDED:
            return
        for way, node in strings(one.node):
            text = node.text or ""
            if len(text) < _MIN_STRING or way[:2] == ("metadata", "annotations"):
                continue
            key = "/".join(way[1:] if way[0] in {"data", "stringData"} else way)
            inner = Part(
                name=f"{one.name}/{key[:_MAX_NAME]}",
                text=text,
                source=part.source,
                line=node.line + 1 if node.literal else node.at,
                fixed=not node.literal,
                inside=f"{one.title} {key[:_MAX_NAME]}",
                depth=part.depth + 1,
            )
            if "<<" in text:
                yield from self._here_documents(inner)
            if looks_like_objects(text) and not text.startswith("#!") and "<<" not in text:
                yield from self._documents(inner)

    def _here_documents(self, part: Part) -> Iterator[Object]:
        """Yield the objects in the here-documents of a script."""
        number = 0
        for body in here_documents(part.text):
            if not looks_like_objects(body.text):
                continue
            number += 1
            template = part.source.template
            text, line = body.text, part.line + (0 if part.fixed else body.line)
            try:
                if has_template(text):
                    text = take_out(text, template, line)
                if not body.quoted:
                    text = template.add_shell(text)
            except ManifestError as error:
                self._fail(part, part.name, error, text)
                return
            inner = replace(
                part,
                name=part.name if number == 1 else f"{part.name}/{number}",
                text=text,
                line=line,
                inside=f"{part.inside} here-document".strip(),
                depth=part.depth + 1,
            )
            yield from self._documents(inner)

    # -- what was not understood ----------------------------------------------------------------

    def _fail(self, part: Part, name: str, error: ManifestError, text: str = "") -> None:
        self._open(name, error.what, self._line(part, error.line), text or part.text)

    def _twice(self, part: Part, name: str, builder: Builder) -> None:
        for key, at in builder.duplicates[:10]:
            self._open(name, f"the key {key[:40]} stands twice", self._line(part, at))

    def _line(self, part: Part, line: int) -> Location:
        return Location(path=part.source.path, line=line if part.relocate is None else 0)

    def _open(
        self,
        name: str,
        why: str,
        at: Location,
        text: str = "",
        *,
        help: str = "",  # noqa: A002 - the entry's field
        of: tuple[str, ...] = ALL,
    ) -> None:
        for word in WATCHED:
            if word in text:
                self.words.setdefault(word, name)
        self.note(
            Entry(
                unit="document", at=at, end=End.NOT_UNDERSTOOD, why=why[:200], help=help,
                bears_on=of,
            )
        )  # fmt: skip


WATCHED: Final = (
    "NetworkPolicy",
    "RoleBinding",
    "ServiceAccount",
    "Namespace",
)
"""Kinds that other objects' facts depend on: when one may stand in what could not be read, what
these say is not known."""


@dataclass(frozen=True, slots=True)
class HereDocument:
    """A here-document of a script."""

    text: str
    line: int
    """Lines of the script before its first one."""
    quoted: bool


def here_documents(text: str) -> Iterator[HereDocument]:
    """Yield the here-documents of a script, in order, with tabs taken off as ``<<-`` does."""
    lines = text.split("\n")
    ends: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        if len(line) <= _MAX_NAME:
            ends.setdefault(line.lstrip("\t").rstrip("\r"), []).append(number)
    index = 0
    while index < len(lines):
        line = lines[index]
        index += 1
        if "<<" not in line or line.lstrip().startswith("#"):
            continue
        for match in _HERE.finditer(line.replace("<<<", "   ")):
            word = match[2] or match[3] or match[4]
            quoted = match[2] is None or "\\" in match[0]
            closing = ends.get(word, [])
            place = bisect_left(closing, index)
            while place < len(closing) and not match[1] and lines[closing[place]][:1] == "\t":
                place += 1
            if place >= len(closing):
                break
            taken = lines[index : closing[place]]
            if match[1]:
                taken = [one.lstrip("\t") for one in taken]
            yield HereDocument("\n".join(taken), index, quoted)
            index = closing[place] + 1


def looks_like_objects(text: str) -> bool:
    """Return whether a string may hold objects: cheap, and before anything is parsed."""
    return "apiVersion" in text and _HAS_KIND.search(text) is not None


def strings(node: Node) -> Iterator[tuple[tuple[str, ...], Node]]:
    """Yield every string below a node, with the way to it."""
    stack: list[tuple[tuple[str, ...], Node]] = [((), node)]
    while stack:
        way, one = stack.pop()
        if one.text is not None:
            yield way, one
        elif one.entries is not None:
            stack.extend(((*way, key), value) for key, value in reversed(one.entries.items()))
        else:
            items = list(enumerate(one.items or ()))
            stack.extend(((*way, str(i)), value) for i, value in reversed(items))


def split(text: str, first_line: int, *, fixed: bool = False) -> Iterator[tuple[str, int]]:
    """Yield each YAML document that is not empty, and its first line in the file."""
    marks = [0, *(match.start() for match in _SEPARATOR.finditer(text)), len(text)]
    line = first_line
    for begin, end in pairwise(marks):
        piece = text[begin:end]
        body = piece[3:] if _SEPARATOR.match(piece) else piece
        if begin == 0 or "%" in body:
            body = _DIRECTIVE.sub("", body)
        if _CONTENT.search(body):
            if body.lstrip().startswith(("{", "[")):
                body = body.replace("\t", " ")
            yield body, line
        line += 0 if fixed else piece.count("\n")


def _is_list(root: Node) -> bool:
    kind = root.get("kind")
    says = kind is not None and (kind.text or "").endswith("List")
    return says and (root.entries or {}).keys() <= {"apiVersion", "items", "kind", "metadata"}


def _count(marked: list[int], first: int, last: int) -> int:
    return bisect_left(marked, last + 1) - bisect_left(marked, first)


def _holds_containers(node: Node) -> bool:
    found = node.entries.get("containers") if node.entries is not None else None
    return found is not None and found.items is not None
