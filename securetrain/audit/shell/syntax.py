# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Shell text to its tree: commands, words and what a word is made of. Nothing is run or expanded.

Rules:

1. what a construct is follows from bash's grammar; one that is not read (an unclosed quote, a
   stray ``fi``) is a problem with its place, and reading goes on in the line below where it began;
2. the commands of substitutions, here-documents that a shell expands, and function bodies are in
   the tree: what may run counts;
3. the parser is bounded (`MAX_TEXT`, `MAX_COMMANDS`, `MAX_DEPTH`, `MAX_PROBLEMS`) and never fails.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

MAX_TEXT: Final = 256 << 10
MAX_COMMANDS: Final = 20_000
MAX_DEPTH: Final = 30
MAX_PROBLEMS: Final = 20

SETTERS: Final = frozenset({"export", "declare", "local", "readonly", "typeset"})
_BLANK: Final = re.compile(r"(?:[ \t\r]|\\\r?\n)*(?:#[^\n]*)?")
_META: Final = " \t\r\n|&;()<>"
_PLAIN: Final = {
    "": re.compile(r"[^\s|&;()<>'\"\\$`]+"),
    '"': re.compile(r"[^\"\\$`]+"),
    "}": re.compile(r"[^}'\"\\$`]+"),
    '"}': re.compile(r"[^}\"\\$`]+"),
    "body": re.compile(r"[^\\$`]+"),
}
"""Characters that stand for themselves: in a word, in quotes, in ``${...}``, in a here-document."""
_ESCAPED: Final = {'"': '"\\$`', '"}': '}"\\$`', "body": "\\$`"}
_PARAMETER: Final = re.compile(r"\$([A-Za-z_](?:\w|\\\n)*|[0-9@*#?$!-])", re.ASCII)
_BRACED: Final = re.compile(
    r"\$\{([!#](?=[\w@*]))?(\w+|[@*#?$!-])(?:\[([^]\n]*)\])?(:?[-=+?]|(?=\}))?", re.ASCII
)
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)(?:\[([^]\n]*)\])?(\+?)=", re.ASCII)
_REDIRECTION: Final = re.compile(
    r"(?:\d+|\{[A-Za-z_]\w*\})?(<<<|<<-?|>>|[<>]&|&>>?|>\||<>|[<>])(?!\()", re.ASCII
)
_DELIMITER: Final = re.compile(r"(?:\\.|'[^'\n]*'|\"[^\"\n]*\"|[^\s|&;()<>'\"\\])+")
_ANSI: Final = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}
_KEYWORD: Final = re.compile(r"(?:[a-z]+|[{}!]|\[\[)(?=[\s;&|()<>]|\Z)")
_BRACES: Final = re.compile(r"\{[^{}]*(?:,|\.\.)[^{}]*\}")
_CLOSERS: Final = frozenset({"then", "elif", "else", "fi", "do", "done", "esac", "}"})


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a word."""

    kind: str
    """``text``, without its quotes; ``parameter``; ``commands``, which write it; ``file``, which
    holds what commands write; ``opaque``, for what only a running shell can tell."""
    text: str
    """As it is written."""
    start: int
    quoted: bool = False
    name: str = ""
    index: str = ""
    operator: str = ""
    """``:-`` and its like; ``other`` for those that are not followed."""
    word: "tuple[Part, ...]" = ()
    """Behind the operator."""
    body: "tuple[Node, ...]" = ()


@dataclass(slots=True)
class Word:
    """One word, before it is expanded, or the body of a here-document."""

    parts: list[Part]
    start: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """``NAME=WORD``, ``NAME[INDEX]=WORD``, ``NAME+=WORD`` or ``NAME=(WORDS)``."""

    name: str
    start: int
    words: list[Word]
    index: str
    append: bool
    is_array: bool


@dataclass(frozen=True, slots=True)
class Node:
    """A command."""

    kind: str
    """``simple``; ``test``, whose words matter for their substitutions only; ``pipeline``, a block
    for each command; ``and`` and ``or``, two blocks; ``if``, what always runs and then blocks of
    which at most one does; ``choice``, where one of them must; ``for`` with a name, and with words
    unless it takes the arguments; ``loop``; ``group``; ``subshell``; ``function``."""
    start: int
    blocks: "list[list[Node]]" = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    assignments: list[Assignment] = field(default_factory=list)
    """Before the words; behind ``export`` and its like, among them."""
    redirections: list[tuple[str, Word]] = field(default_factory=list)
    name: str = ""


class ParseError(Exception):
    """A place from which a text cannot be read."""

    def __init__(self, start: int, why: str) -> None:
        super().__init__(why)
        self.start = start
        self.why = why


@dataclass(slots=True)
class Script:
    """The commands of a text in their order, and what of it was not read."""

    block: list[Node] = field(default_factory=list)
    problems: list[ParseError] = field(default_factory=list)


def parse(text: str) -> Script:
    """The tree of a shell script."""
    script = Script()
    if len(text) > MAX_TEXT:
        script.problems.append(ParseError(0, f"longer than {MAX_TEXT} characters"))
        return script
    if "\0" in text:
        script.problems.append(ParseError(text.index("\0"), "a zero byte"))
    parser = _Parser(text)
    start = 0
    while len(script.problems) < MAX_PROBLEMS and parser.commands <= MAX_COMMANDS:
        try:
            start = parser.skip()
            if start >= len(text):
                break
            script.block.append(parser.statement())
        except ParseError as problem:
            script.problems.append(problem)
            parser.resume(start)
    return script


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.i = 0
        self.end = len(text)
        self.depth = 0
        self.commands = 0
        self.pending: list[tuple[Word, str, bool, bool]] = []

    def resume(self, start: int) -> None:
        """Go on below the line in which what was not read began."""
        newline = self.text.find("\n", start)
        self.i = len(self.text) if newline < 0 else newline + 1
        self.end, self.depth = len(self.text), 0
        self.pending.clear()

    @contextmanager
    def _nested(self) -> Iterator[None]:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ParseError(self.i, f"nested deeper than {MAX_DEPTH}")
        yield
        self.depth -= 1

    def skip(self, ends: str = "\n;&") -> int:
        """Skip blanks and comments, and the ends of lines and commands."""
        while True:
            if found := _BLANK.match(self.text, self.i, self.end):
                self.i = found.end()
            if self.i >= self.end or self.text[self.i] not in ends or self.at(";;", ";&"):
                return self.i
            self.i += 1
            if self.pending and self.text[self.i - 1] == "\n":
                self._bodies()

    def at(self, *stops: str) -> bool:
        """Return whether a keyword, bracket or operator of these stands here."""
        found = _KEYWORD.match(self.text, self.i, self.end)
        keyword = found[0] if found else ""
        return any(
            keyword == one if one.isalpha() or one in {"{", "}"} else self._starts(one)
            for one in stops
        )

    def _starts(self, text: str) -> bool:
        return self.text.startswith(text, self.i, self.end)

    def _expect(self, stop: str) -> None:
        if not self.at(stop):
            raise ParseError(self.i, f"no {stop!r} where one must stand")
        self.i += len(stop)

    # --- commands --------------------------------------------------------------------------------

    def block(self, *stops: str, take: bool = True) -> list[Node]:
        """The commands until one of these; a single one is taken too."""
        nodes = []
        while self.skip() < self.end and not self.at(*stops):
            nodes.append(self.statement())
        if stops and take:
            self._expect(stops[0])
        return nodes

    def statement(self) -> Node:
        """Pipelines with ``&&`` and ``||`` between them."""
        node = self._pipeline()
        while self.skip("") < self.end and self.at("&&", "||"):
            kind = "and" if self.at("&&") else "or"
            self.i += 2
            self.skip("\n")
            node = Node(kind, node.start, [[node], [self._pipeline()]])
        return node

    def _pipeline(self) -> Node:
        nodes = []
        start, negated = self.i, False
        while True:
            while self.at("time") or (self.at("!") and _KEYWORD.match(self.text, self.i)):
                negated = negated or self.at("!")
                self.i += 4 if self.at("time") else 1
                self.skip("")
            nodes.append(self._command())
            self.skip("")
            if not self.at("|") or self.at("||"):
                break
            self.i += 2 if self.at("|&") else 1
            self.skip("\n")
        if len(nodes) > 1:
            return Node("pipeline", start, [[one] for one in nodes])
        return Node("group", start, [nodes]) if negated else nodes[0]

    def _command(self) -> Node:
        self.commands += 1
        if self.commands > MAX_COMMANDS:
            raise ParseError(self.i, f"more than {MAX_COMMANDS} commands")
        with self._nested():
            node = self._compound()
            if node is None:
                return self._simple()
            while one := self._redirection():
                node.redirections.append(one)
            return node

    def _compound(self) -> Node | None:  # noqa: C901 - an arm for each keyword
        start = self.i
        if self.at("((") and self._arithmetic(start):
            return Node("test", start)
        if self.at("("):
            self.i += 1
            return Node("subshell", start, [self.block(")")])
        found = _KEYWORD.match(self.text, start, self.end)
        keyword = found[0] if found else ""
        if keyword in _CLOSERS or self.at(")", ";;", ";&", "|"):
            raise ParseError(start, f"{keyword or self.text[start]!r} closes nothing")
        self.i += len(keyword)
        match keyword:
            case "{":
                return Node("group", start, [self.block("}")])
            case "if":
                return self._if(start)
            case "while" | "until":
                return Node("loop", start, [self.block("do") + self.block("done")])
            case "for" | "select":
                return self._for(start)
            case "case":
                return self._case(start)
            case "function":
                self.skip("")
                return self._function(start, self.word())
            case "[[":
                return self._test(start)
            case _:
                self.i = start
                return None

    def _if(self, start: int) -> Node:
        blocks = [self.block("then"), self.block("elif", "else", "fi", take=False)]
        kind = "choice"
        if self.at("elif"):
            self.i += 4
            blocks.append([self._if(self.i)])
        elif self.at("else"):
            self.i += 4
            blocks.append(self.block("fi"))
        else:
            self._expect("fi")
            kind = "if"
        return Node(kind, start, blocks)

    def _for(self, start: int) -> Node:
        self.skip("")
        kind, name = "for", ""
        words = [Word([Part("parameter", '"$@"', start, quoted=True, name="@")], start)]
        if self.at("((") and self._arithmetic(self.i):
            kind = "loop"
        else:
            name = _text_of(self.word())
            self.skip("\n")
            if self.at("in"):
                self.i += 2
                words = list(self._words())
        self.skip()
        opening, closing = ("{", "}") if self.at("{") else ("do", "done")
        self._expect(opening)
        return Node(kind, start, [self.block(closing)], words, name=name)

    def _words(self) -> Iterator[Word]:
        while self.skip("") < self.end and self.text[self.i] not in "\n;&|()":
            yield self.word()

    def _case(self, start: int) -> Node:
        self.skip("")
        blocks = [[Node("test", start, words=[self.word()])]]
        kind = "if"
        self.skip("\n")
        self._expect("in")
        while self.skip() < self.end and not self.at("esac"):
            self.i += self.at("(")
            while not self.at(")"):
                self.i += self.at("|")
                self.skip("")
                pattern = self.i
                self.word()
                kind = "choice" if self.text[pattern : self.i] == "*" else kind
                self.skip("")
            self.i += 1
            blocks.append(self.block(";;", ";&", "esac", take=False))
            while self.i < self.end and self.text[self.i] in ";&":
                self.i += 1
        self._expect("esac")
        return Node(kind, start, blocks)

    def _function(self, start: int, name: Word) -> Node:
        if self.skip("") < self.end and self.at("("):
            self.i += 1
            self.skip("")
            self._expect(")")
        self.skip("\n")
        return Node("function", start, [[self._command()]], name=_text_of(name))

    def _test(self, start: int) -> Node:
        """``[[ ... ]]``, of which only the substitutions can matter."""
        word = Word([], start)
        while self.i < self.end and not self.at("]]"):
            if self.text[self.i] in "'\"\\$`":
                self._part(word.parts, "")
            else:
                self.i += 1
        self._expect("]]")
        return Node("test", start, words=[word])

    def _simple(self) -> Node:
        node = Node("simple", self.i)
        while (self.skip("") < self.end and self.text[self.i] not in "\n;&|)") or self.at("&>"):
            sets = not node.words or _text_of(node.words[0]) in SETTERS
            if one := self._redirection():
                node.redirections.append(one)
            elif sets and (assignment := self._assignment(alone=not node.words)):
                node.assignments.append(assignment)
            elif self.at("(") and len(node.words) == 1 and not node.assignments:
                return self._function(node.start, node.words[0])
            else:
                node.words.append(self.word())
        return node

    def _assignment(self, *, alone: bool) -> Assignment | None:
        start = self.i
        found = _ASSIGNMENT.match(self.text, start, self.end)
        if not found:
            return None
        self.i = found.end()
        words: list[Word] = []
        is_array = self.at("(")
        if is_array:
            self.i += 1
            while self.skip("\n") < self.end and not self.at(")"):
                words.append(self.word())
            self._expect(")")
        elif self.i < self.end and self.text[self.i] not in _META:
            words.append(self.word(value=alone))
        return Assignment(found[1], start, words, found[2] or "", bool(found[3]), is_array)

    # --- redirections ----------------------------------------------------------------------------

    def _redirection(self) -> tuple[str, Word] | None:
        self.skip("")
        found = _REDIRECTION.match(self.text, self.i, self.end)
        if not found:
            return None
        self.i = found.end()
        self.skip("")
        if not found[1].startswith("<<") or found[1] == "<<<":
            return found[1], self.word()
        said = _DELIMITER.match(self.text, self.i, self.end)
        if not said:
            raise ParseError(self.i, "a here-document without its end")
        self.i = said.end()
        body = Word([], self.i)
        delimiter = re.sub(r"\\(.)|['\"]", r"\1", said[0])
        self.pending.append((body, delimiter, found[1] == "<<-", delimiter != said[0]))
        return "<<", body

    def _bodies(self) -> None:
        """Read the here-documents that begin on this line."""
        pending, self.pending = self.pending, []
        for body, delimiter, strip, verbatim in pending:
            tabs = r"\t*" if strip else ""
            ends = re.compile(rf"^{tabs}{re.escape(delimiter)}\r?$\n?", re.MULTILINE)
            found = ends.search(self.text, self.i, self.end)
            if not found and self.end == len(self.text):
                raise ParseError(self.i, f"a here-document that {delimiter[:40]!r} never ends")
            stop = found.start() if found else self.end
            while self.i < stop:
                if strip:
                    self.i = re.compile(r"\t*").match(self.text, self.i).end()  # type: ignore[union-attr]
                newline = self.text.find("\n", self.i, stop) + 1 if strip else 0
                self._line(body.parts, newline or stop, verbatim=verbatim)
            self.i = found.end() if found else stop

    def _line(self, parts: list[Part], stop: int, *, verbatim: bool) -> None:
        """Take a here-document, or a line of one whose tabs go."""
        if verbatim:
            parts.append(Part("text", self.text[self.i : stop], self.i, quoted=True))
            self.i = stop
            return
        before, self.end = self.end, stop
        while self.i < stop:
            self._part(parts, "body")
        self.end = before

    # --- words -----------------------------------------------------------------------------------

    def word(self, *, value: bool = False) -> Word:
        """The word that begins here; `value` for what stands behind an equals sign."""
        start = self.i
        parts: list[Part] = []
        if re.compile(r"~(?=[/\s;&|)]|\Z)").match(self.text, start, self.end):
            parts.append(Part("parameter", "~", start, quoted=True, name="HOME"))
            self.i += 1
        while self.i < self.end and (
            self.text[self.i] not in _META or self._starts("<(") or self._starts(">(")
        ):
            self._part(parts, "")
        if self.i == start:
            raise ParseError(start, f"{self.text[start : start + 1]!r} is not read")
        bare = "".join("." if one.quoted or one.kind != "text" else one.text for one in parts)
        if not value and "{" in bare and _BRACES.search(bare):
            parts = [Part("opaque", self.text[start : self.i], start)]
        return Word(parts, start)

    def _part(self, parts: list[Part], inside: str) -> None:
        """Take what begins here; `inside` is a key of `_PLAIN`."""
        text, start = self.text, self.i
        quoted = inside in _ESCAPED
        if found := _PLAIN[inside].match(text, start, self.end):
            self.i = found.end()
            parts.append(Part("text", found[0], start, quoted))
        elif text[start] == "\\":
            self._escape(parts, inside)
        elif text[start] == "'":
            stop = text.find("'", start + 1, self.end)
            if stop < 0:
                raise ParseError(start, "a quote that nothing closes")
            parts.append(Part("text", text[start + 1 : stop], start + 1, quoted=True))
            self.i = stop + 1
        elif text[start] == '"':
            self._double(parts, start + 1)
        elif text[start] == "`":
            self._backticks(parts, quoted=quoted)
        elif text[start] == "$":
            self._dollar(parts, quoted=quoted)
        elif text[start] in "<>":
            self.i += 2
            body = self.block(")")
            parts.append(Part("file", text[start : self.i], start, body=tuple(body)))
        else:
            raise ParseError(start, f"{text[start]!r} is not read")

    def _double(self, parts: list[Part], start: int) -> None:
        self.i = start
        parts.append(Part("text", "", start, quoted=True))
        while self.i < self.end and self.text[self.i] != '"':
            self._part(parts, '"')
        self._close(start - 1)

    def _close(self, start: int) -> None:
        if self.i >= self.end:
            raise ParseError(start, "a quote or bracket that nothing closes")
        self.i += 1

    def _escape(self, parts: list[Part], inside: str) -> None:
        start = self.i
        following = self.text[start + 1 : min(start + 2, self.end)]
        self.i += 1 + len(following)
        if following == "\n":
            return
        if following in _ESCAPED.get(inside, following):
            parts.append(Part("text", following, start + 1, quoted=True))
        else:
            parts.append(Part("text", "\\" + following, start, quoted=True))

    def _backticks(self, parts: list[Part], *, quoted: bool) -> None:
        start = self.i
        stop = start + 1
        while stop < self.end and self.text[stop] != "`":
            stop += 2 if self.text[stop] == "\\" else 1
        before, self.end, self.i = self.end, min(stop, self.end), start + 1
        body = self.block()
        self.end = before
        self._close(start)
        text = self.text[start : self.i]
        parts.append(Part("commands", text, start, quoted, body=tuple(body)))

    def _dollar(self, parts: list[Part], *, quoted: bool) -> None:
        text, start = self.text, self.i
        if self._starts("$((") and self._arithmetic(start + 1):
            parts.append(Part("opaque", text[start : self.i], start, quoted))
        elif self._starts("$("):
            self.i += 2
            body = tuple(self.block(")"))
            parts.append(Part("commands", text[start : self.i], start, quoted, body=body))
        elif self._starts("${"):
            parts.append(self._braced(quoted=quoted))
        elif found := _PARAMETER.match(text, start, self.end):
            self.i = found.end()
            parts.append(
                Part("parameter", found[0], start, quoted, name=found[1].replace("\\\n", ""))
            )
        elif not quoted and (found := _ANSI.match(text, start, self.end)):
            self.i = found.end()
            if any(one not in _ESCAPES for one in re.findall(r"\\(.)", found[1], re.DOTALL)):
                parts.append(Part("opaque", found[0], start, quoted=True))
            for one in re.finditer(r"\\(.)|[^\\]+|\Z", found[1], re.DOTALL):
                said = _ESCAPES.get(one[1], "") if one[1] else one[0]
                parts.append(Part("text", said, start + 2 + one.start(), quoted=True))
        elif not quoted and self._starts('$"'):
            self._double(parts, start + 2)
        else:
            parts.append(Part("text", "$", start, quoted))
            self.i += 1

    def _braced(self, *, quoted: bool) -> Part:
        text, start = self.text, self.i
        found = _BRACED.match(text, start, self.end)
        self.i = found.end() if found else start + 2
        word: list[Part] = []
        with self._nested():
            while self.i < self.end and text[self.i] != "}":
                self._part(word, '"}' if quoted else "}")
        self._close(start)
        if not found:
            return Part("opaque", text[start : self.i], start, quoted)
        known = found[4] is not None and not found[1]
        return Part(
            *("parameter", text[start : self.i], start, quoted, found[2], found[3] or ""),
            operator=found[4] or "" if known else "other",
            word=tuple(word),
        )

    def _arithmetic(self, start: int) -> bool:
        """Skip ``((...))``; what only looks like it is left."""
        depth = 0
        for i in range(start, self.end):
            depth += (self.text[i] == "(") - (self.text[i] == ")")
            if depth == 0:
                if self.text[i - 1] != ")":
                    break
                self.i = i + 1
                return True
        return False


def _text_of(word: Word) -> str:
    return "".join(one.text for one in word.parts if one.kind == "text")
