# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Take templates out of a text, so that YAML is left and every line stays where it was.

Rules:

1. an expression inside a line becomes a marker: the value that holds it is open;
2. an expression that has lines of its own inserts a block: it becomes an open value, element or
   key, by what stands around it; when that cannot be told, everything the document lacks is open;
3. a condition or loop loses its lines, and what stands between them is conditional;
4. nothing is evaluated, and a marker remembers the text that it stands for.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from securetrain.audit.parser.files import (
    MAX_DEPTH,
    MAX_HOLES,
    ManifestError,
)

_BEGIN: Final = "\ue000"
_END: Final = "\ue001"
MARKER: Final = re.compile(f"{_BEGIN}([0-9]+){_END}")

_OPENERS: Final = re.compile(r"\$\{\{|\{\{|\{%|\{#|<%|\$\{")
_CLOSERS: Final = {"${{": "}}", "{{": "}}", "{%": "%}", "{#": "#}", "<%": "%>", "${": "}"}
_HERE_VARIABLES: Final = re.compile(r"\$\([^()\n]*\)|`[^`\n]*`|\$[A-Za-z_][A-Za-z0-9_]*|\$[0-9@*?]")
"""What a shell fills in inside a here-document, beside ``${VAR}``."""
_BLOCKS: Final = frozenset(
    {"if", "unless", "range", "with", "define", "block", "for", "macro", "call", "filter", "case"}
)
_MIDDLES: Final = frozenset({"else", "elif", "elsif", "elseif", "when"})
_SILENT: Final = frozenset(
    {"set", "import", "from", "extends", "raw", "endraw", "autoescape", "fail", "require", "do"}
)
_INDENT: Final = re.compile(r"\b(n?)indent\s+([0-9]{1,3})\b")
_GO_NAME: Final = re.compile(r"\$?\.[A-Za-z_][\w.\-]*|\$[A-Za-z_][\w.]*")
_QUOTED_NAME: Final = re.compile(r"(?:include|template|block|define)\s+\"([\w./\-]+)\"")
_PLAIN_NAME: Final = re.compile(r"@?[A-Za-z_][\w.\[\]'\"\-]*")
_LINE: Final = re.compile(r"^( *)((?:- +)*)(.*)$")
_CHART: Final = re.compile(r"\{\{.*(?:\.Values\b|\.Release\b|\.Chart\b|\binclude\b)")
_MAX_NAME: Final = 80


@dataclass(frozen=True, slots=True)
class Hole:
    """An expression that was taken out."""

    text: str
    name: str
    """The variable that decides."""
    is_shell: bool = False
    """Whether it is ``${VAR}`` or ``$VAR``, which a shell in a container may mean, too."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Lines that are there only if something holds."""

    first: int
    last: int
    name: str


@dataclass(slots=True)
class Template:
    """All that was taken out of one text."""

    holes: list[Hole] = field(default_factory=list)
    conditions: list[Condition] = field(default_factory=list)
    indexed: list[tuple[Condition, int]] = field(default_factory=list)
    marked: list[int] = field(default_factory=list)
    """Lines with a mark of a template, of a shell's variables apart; sorted."""
    unplaced: list[int] = field(default_factory=list)
    """Lines of blocks that could not be placed."""
    is_chart: bool = False
    """Whether it is one of Helm's."""

    def marker(self, text: str, name: str, *, is_shell: bool = False) -> str:
        """Note an expression, and return what stands in its place."""
        if len(self.holes) >= MAX_HOLES:
            raise ManifestError(f"more than {MAX_HOLES} places that a template leaves open", 0)
        self.holes.append(Hole(" ".join(text.split("\n")), name[:_MAX_NAME], is_shell))
        return f"{_BEGIN}{len(self.holes) - 1}{_END}"

    def hole(self, number: str) -> Hole:
        """The expression of a marker; one that the file made up is open as well."""
        index = int(number[:9])
        return self.holes[index] if index < len(self.holes) else Hole("", "a marker")

    def holes_of(self, text: str) -> list[Hole]:
        """Expressions whose markers stand in a text."""
        return [self.hole(number) for number in MARKER.findall(text)]

    def restored(self, text: str) -> str:
        """The text as it was written."""
        return MARKER.sub(lambda match: self.hole(match[1]).text, text) if _BEGIN in text else text

    def condition(self, line: int, start: int) -> Condition | None:
        """The condition that `line` stands under and `start`, its record's first line, does not."""
        found = self._innermost(line)
        if found is None or found.first <= start <= found.last:
            return None  # conditions nest: those around this one are around `start` as well
        return found

    def is_conditional(self, line: int) -> bool:
        """Return whether a line stands under any condition."""
        return self._innermost(line) is not None

    def _innermost(self, line: int) -> Condition | None:
        if len(self.indexed) != len(self.conditions):
            self._index()
        place = bisect_right(self.indexed, line, key=lambda one: one[0].first) - 1
        while place >= 0:
            found, parent = self.indexed[place]
            if line <= found.last:
                return found
            place = parent
        return None

    def _index(self) -> None:
        """Order the conditions, each with the number of the one around it."""
        self.indexed = []
        around: list[int] = []
        for one in sorted(self.conditions, key=lambda one: (one.first, -one.last)):
            while around and self.indexed[around[-1]][0].last < one.first:
                around.pop()
            self.indexed.append((one, around[-1] if around else -1))
            around.append(len(self.indexed) - 1)

    def add_shell(self, text: str) -> str:
        """Mark what a shell fills in inside a here-document."""

        def mark(match: re.Match[str]) -> str:
            return self.marker(match[0], match[0], is_shell=True)

        return _HERE_VARIABLES.sub(mark, text)


def has_template(text: str) -> bool:
    """Return whether there is anything to take out."""
    return _OPENERS.search(text) is not None


@dataclass(frozen=True, slots=True)
class _Token:
    """One expression or statement of a template."""

    start: int
    end: int
    opener: str
    text: str

    @property
    def inner(self) -> str:
        """The expression without its marks."""
        return self.text[len(self.opener) : -len(_CLOSERS[self.opener])].strip("-+~= \t\r\n")

    @property
    def is_comment(self) -> bool:
        begin = self.text[len(self.opener) :].lstrip("-~ \t\r\n")
        return self.opener == "{#" or begin.startswith(("/*", "#", "!"))


def _tokens(text: str) -> Iterator[_Token]:
    unclosed: set[str] = set()
    position = 0
    while match := _OPENERS.search(text, position):
        opener = match[0]
        closer = _CLOSERS[opener]
        end = -1 if opener in unclosed else text.find(closer, match.end())
        if opener == "${" and end >= 0 and "\n" in text[match.end() : end]:
            position = match.end()
            continue
        if end < 0:
            unclosed.add(opener)
            position = match.end()
            continue
        while (
            closer == "}}" and text.startswith("}", end + 2) and _is_within(text, match.end(), end)
        ):
            end += 1  # {{ dict "a" {}}}: the last two close it
        position = end + len(closer)
        yield _Token(match.start(), position, opener, text[match.start() : position])


def _is_within(text: str, begin: int, end: int) -> bool:
    """Tell whether a brace of the expression is still open: in ``{a: {{ b }}}`` none is."""
    return text.count("{", begin, end) > text.count("}", begin, end)


def _name(token: _Token) -> str:
    """The variable that decides, as far as the text shows it."""
    inner = token.inner
    if token.opener == "${":
        return re.split(r"[:\-=?+#%/,^@]", inner.lstrip("!#"), maxsplit=1)[0] or "a variable"
    if quoted := _QUOTED_NAME.search(inner):
        return quoted[1]
    if token.opener == "{{" and (found := _GO_NAME.search(inner)):
        return found[0].lstrip("$") if found[0].startswith("$.") else found[0]
    words = [word for word in _PLAIN_NAME.findall(inner) if word not in _BLOCKS | _MIDDLES]
    return next(
        (word for word in words if word not in {"not", "and", "or", "eq", "in"}), "template"
    )


_Kind: TypeAlias = Literal["comment", "open", "middle", "close", "silent", "output"]


def _kind(token: _Token) -> _Kind:
    if token.opener in {"${", "${{"}:
        return "output"
    if token.is_comment:
        return "comment"
    words = token.inner.split()
    first = words[0] if words else ""
    is_output = token.text.startswith(("<%=", "<%-=")) or token.opener == "{{"
    if first == "end" or first.startswith("end") or first == "}":
        return "close"
    if first in _MIDDLES:
        return "middle"
    if first in _BLOCKS:
        return "open"
    if token.opener == "<%" and not is_output:
        return "open" if words and (words[-1] in {"do", "{"} or "do" in words) else "silent"
    if token.opener == "{%" or first in _SILENT:
        return "silent"
    if len(words) > 1 and words[1] in {":=", "="} and first.startswith("$"):
        return "silent"
    return "output"


def take_out(text: str, template: Template, first_line: int = 1) -> str:
    """The text without its template; `first_line` is the file's line that it begins at."""
    pieces: list[str] = []
    blocks: list[tuple[int, str]] = []
    marked: list[int] = []
    inserted: dict[int, int] = {}
    position, line = 0, first_line
    for token in _tokens(text):
        between = text[position : token.start]
        pieces.append(between)
        line += between.count("\n")
        height = token.text.count("\n")
        kind, name = _kind(token), _name(token)
        if token.opener != "${":
            marked.append(line)
            template.is_chart = template.is_chart or _CHART.search(token.text) is not None
        match kind:
            case "open":
                blocks.append((line, name))
                if len(blocks) > MAX_DEPTH:
                    raise ManifestError(f"a template nested deeper than {MAX_DEPTH}", line)
            case "close" if blocks:
                begun, named = blocks.pop()
                template.conditions.append(Condition(begun, line + height, named))
        alone = _is_alone(text, token)
        if kind == "output" or (kind != "comment" and not alone):
            mark = template.marker(token.text, name, is_shell=token.opener == "${")
            pieces.append(mark)
            if alone and token.opener != "${":
                inserted[line] = _indent(text, token)
        pieces.append("\n" * height)
        position = token.end
        line += height
    pieces.append(text[position:])
    last = line + text.count("\n", position)
    template.conditions.extend(Condition(begun, last, name) for begun, name in blocks)
    template.marked = sorted({*template.marked, *marked})
    plain = "".join(pieces)
    return _place(plain, inserted, template, first_line) if inserted else plain


def _is_alone(text: str, token: _Token) -> bool:
    """Return whether nothing else stands on the lines of a token."""
    begin = text.rfind("\n", 0, token.start) + 1
    end = text.find("\n", token.end)
    rest = text[begin : token.start] + text[token.end : end if end >= 0 else len(text)]
    return not rest.strip()


def _indent(text: str, token: _Token) -> int:
    """The column that a block is inserted at."""
    own = token.start - text.rfind("\n", 0, token.start) - 1
    found = _INDENT.search(token.text)
    if found is None:
        return own
    return int(found[2]) if found[1] else own + int(found[2])


@dataclass(frozen=True, slots=True)
class _Shape:
    """A line's indentation and what it begins with."""

    indent: int
    inner: int
    """Where the first key or word stands, behind dashes."""
    text: str

    @property
    def is_item(self) -> bool:
        return self.inner > self.indent or self.text == "-"

    @property
    def opens(self) -> bool:
        """Tell a key that has no value yet."""
        return self.text.split(" #")[0].rstrip().endswith(":")


def _shape(line: str) -> _Shape | None:
    match = _LINE.match(line)
    if match is None or not match[3].strip() or match[3].startswith(("#", "---", "...")):
        return None
    indent = len(match[1])
    return _Shape(indent, indent + len(match[2]), match[3])


def _place(plain: str, inserted: dict[int, int], template: Template, first_line: int) -> str:
    """Turn blocks that a template inserts into open values, elements or keys (rule 2)."""
    lines = plain.split("\n")
    shapes = [_shape(line.rstrip("\r")) for line in lines]
    for number in inserted:
        shapes[number - first_line] = None
    following: list[int | None] = [None] * (len(lines) + 1)
    for index in range(len(lines) - 1, -1, -1):
        following[index] = index if shapes[index] else following[index + 1]
    open_lines: list[int] = []  # lines above, by growing indentation
    done = 0
    for number, indent in sorted(inserted.items()):
        index = number - first_line
        for above in range(done, index):
            if shape := shapes[above]:
                while open_lines and _indent_of(shapes[open_lines[-1]]) >= shape.indent:
                    open_lines.pop()
                open_lines.append(above)
        done = index
        below = following[index]
        placed = _placed(lines[index].strip(), indent, shapes, open_lines, below)
        if placed is None:
            template.unplaced.append(number)
        lines[index] = placed or ""
    return "\n".join(lines)


def _indent_of(shape: _Shape | None) -> int:
    return shape.indent if shape else 0


def _placed(
    marker: str,
    indent: int,
    shapes: list[_Shape | None],
    above: list[int],
    below: int | None,
) -> str | None:
    """The line of an inserted block; None when its place cannot be told."""
    pad = " " * indent
    after = shapes[below] if below is not None else None
    if after and indent in {after.indent, after.inner}:
        if after.indent == indent and after.is_item:
            return f"{pad}- {marker}"
        if after.indent == indent:
            return f"{pad}{marker}: {marker}"
    around = (shape for i in reversed(above) if (shape := shapes[i]) and shape.indent <= indent)
    before = next(around, None)
    if before is None:
        return f"{marker}: {marker}" if indent == 0 and after is not None else None
    if before.opens and before.inner <= indent:
        if before.inner < indent and not (after and after.indent > before.inner):
            return f"{pad}{marker}"
        if before.inner == indent and not (after and after.indent >= indent):
            return f"{pad}- {marker}"
        return None
    if before.is_item and before.indent == indent:
        return f"{pad}- {marker}"
    if before.inner == indent:
        return f"{pad}{marker}: {marker}"
    return None
