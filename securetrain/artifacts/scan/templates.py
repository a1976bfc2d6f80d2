# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Jinja templates: whether one reaches for what lies behind the values that it is given.

Nothing is rendered. The tags are cut into tokens as Jinja's lexer cuts them. Rules, in order:

1. a name with two underscores in a row, an attribute that begins with one, and the attributes of
   frames, code and generators are an escape, spelled as a name or in a string, escapes undone;
2. so is the filter ``attr``, which takes an attribute's name from a value;
3. a subscript whose key is put together in the template cannot be judged, nor can a template that
   includes another, nor one that is no template;
4. nor one that may cost more than what it is given does (`_cost`): loops count as the numbers that
   the template spells, or else as `DATA_ROUNDS`, and multiply where one stands in another; a text
   is not doubled, and a macro that calls itself gets a part of what it got.

Source: Jinja 3.1, lexer.py and sandbox.py; CVE-2024-34359.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from securetrain.artifacts.scan.findings import ESCAPE, Remark, UnjudgedError

LIMIT: Final = 4 << 20
MAX_ROUNDS: Final = 10**9
MAX_NUMBER: Final = 10**6
MAX_DEPTH: Final = 64
"""Brackets in brackets, and macros in macros."""
MAX_TOKENS: Final = 1000
"""Of one tag: rules compare them with each other."""
DATA_ROUNDS: Final = 100
"""The rounds of a loop over what a template is given."""

_TAG: Final = re.compile(r"\{[{%#]")
_TOKEN: Final = re.compile(
    r"(?P<space>\s+)|(?P<string>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<name>[^\W\d]\w*)|(?P<number>\d[\w.]*)|(?P<op>\*\*|//|[-+]?[}%]\}|.)",
    re.DOTALL,
)
_INTERNALS: Final = frozenset(
    {
        "ag_code", "ag_frame", "co_code", "cr_code", "cr_frame", "f_back", "f_builtins", "f_code",
        "f_globals", "f_locals", "func_closure", "func_code", "func_defaults", "func_globals",
        "gi_code", "gi_frame", "gi_yieldfrom", "im_class", "im_func", "im_self", "mro",
        "tb_frame", "tb_next", "format_map",
    }
)  # fmt: skip
_DUNDER: Final = re.compile(r"(?<!\w)__|__(?!\w)|__[a-z]+__")
_OTHERS: Final = frozenset({"include", "import", "extends", "from"})
_BUILDERS: Final = frozenset(
    {"join", "string", "list", "format", "replace", "lower", "upper", "reverse", "map", "select",
     "first", "last", "batch", "slice", "trim", "urlencode", "tojson", "pprint", "e", "escape"}
)  # fmt: skip
_ARITHMETIC: Final = frozenset({"+", "*", "%"})
_WIDE: Final = re.compile(r"[%:][^%:}]{0,8}\d{5}")
"""A width of more than four digits in a format."""


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


def judge(text: str) -> Iterator[Remark]:
    """The remarks about a template; offsets count characters.

    Raises:
        UnjudgedError: rule 3.
    """
    if len(text) > LIMIT:
        raise UnjudgedError(f"a template of {len(text)} characters, the limit is {LIMIT}")
    built: set[str] = set()
    tags = list(_tags(text))
    doubts = [what] if (what := _cost(tags)) else []
    for tag in tags:
        yield from _escapes(tag)
        built |= _built(tag)
        if tag and tag[0].text in _OTHERS and tag[0].kind == "name":
            doubts.append(f"a template that needs another one ({tag[0].text})")
        if any(_is_built(key, built) for key in _keys(tag)):
            doubts.append("a template that puts together the name of what it reads")
    if doubts:
        raise UnjudgedError(doubts[0])


def _tags(text: str) -> Iterator[list[_Token]]:
    at = 0
    while found := _TAG.search(text, at):
        if found[0] == "{#":
            end = text.find("#}", found.end())
            if end < 0:
                raise UnjudgedError("a template with a comment that does not end")
            at = end + 2
            continue
        at, tokens = _tag(text, found.end(), "}}" if found[0] == "{{" else "%}")
        yield tokens


def _tag(text: str, at: int, closing: str) -> tuple[int, list[_Token]]:
    """The end of a tag, and its tokens."""
    tokens: list[_Token] = []
    depth = 0
    while found := _TOKEN.match(text, at):
        kind, piece, start, at = found.lastgroup or "", found[0], at, found.end()
        if kind == "op" and len(piece) > 1 and piece.endswith("}"):
            if depth == 0 and piece.endswith(closing):
                return at, tokens
            at, piece = start + 1, piece[0]  # a brace of a dictionary
        if piece in "([{" and kind == "op":
            depth += 1
        elif piece in ")]}" and kind == "op":
            depth -= 1
        if not (kind == "space" or (piece in "-+" and not tokens)):
            tokens.append(_Token(kind, piece, start))
        if depth > MAX_DEPTH or len(tokens) > MAX_TOKENS:
            raise UnjudgedError("a template with a tag that is too long or too deep")
    raise UnjudgedError("a template with a tag that does not end")


def _escapes(tag: list[_Token]) -> Iterator[Remark]:
    """Rules 1 and 2."""
    before = ""
    for token in tag:
        if token.kind == "name":
            if "__" in token.text or (
                before == "." and (token.text.startswith("_") or token.text in _INTERNALS)
            ):
                yield Remark(ESCAPE, f"a template reads {token.text[:80]!r}", token.at)
            elif before == "|" and token.text == "attr":
                yield Remark(ESCAPE, "a template takes an attribute by name (attr)", token.at)
        elif token.kind == "string":
            raw, said = token.text[1:-1], _unescaped(token.text[1:-1])
            hidden = said.count("_") != raw.count("_")
            if hidden or said in _INTERNALS or _DUNDER.search(said) or "%c" in said:
                yield Remark(ESCAPE, f"a template spells {said[:80]!r}", token.at)
        before = token.text


def _unescaped(raw: str) -> str:
    """A string literal's value, as Jinja decodes it."""
    try:
        return raw.encode("ascii", "backslashreplace").decode("unicode-escape")
    except UnicodeDecodeError:
        return raw


def _cost(tags: list[list[_Token]]) -> str:
    """Explain why rendering may cost too much (rule 4); empty when it does not."""
    tokens = [token for tag in tags for token in tag]
    numbers = [_number(one.text) for one in tokens if one.kind == "number"]
    most = max([DATA_ROUNDS, _product(tokens), *numbers])
    if most > MAX_NUMBER or any(one.text in ("**", "lipsum") for one in tokens):
        return "a template with a number, a power or a product that is too large"
    if any(one.kind == "string" and _WIDE.search(one.text) for one in tokens):
        return "a template with a format that is too wide"
    lines = [[token.text for token in tag] for tag in tags]
    kept = any("range" in words and words[0] != "for" for words in lines)
    frames = [_Frame(1.0, "loop", frozenset({".", "["}))]
    for tag, words in zip(tags, lines, strict=True):
        if words[:1] == ["set"] and _doubles(words):
            return f"a template that doubles {words[1][:40]!r}"
        _enter(frames, tag, words, (most if kept else DATA_ROUNDS, most))
        if frames[-1].rounds > MAX_ROUNDS or len(frames) > MAX_DEPTH:
            return f"a template of more than {MAX_ROUNDS} rounds, or {MAX_DEPTH} macros deep"
        if what := _calls_itself(words, frames):
            return what
    return ""


def _enter(
    frames: list["_Frame"], tag: list[_Token], words: list[str], rounds: tuple[float, float]
) -> None:
    """Follow the loops and macros that a tag begins or ends.

    Args:
        frames: Those that it stands in.
        tag: The tag.
        words: Its tokens' texts.
        rounds: Those of a loop over a value, and over a range whose end has a name.
    """
    top = frames[-1]
    match words[:2]:
        case ["for", *_]:
            begin = words.index("in") + 1 if "in" in words else 0
            counted = {"range", "*"} & set(words[begin:])
            times = _range(tag[begin:], rounds[1]) if counted else rounds[0]
            parts = top.parts | set(words[1:begin])
            frames.append(_Frame(top.rounds * times, "", parts))
        case ["macro", name]:
            frames.append(_Frame(top.rounds, name, top.parts))
        case ["endfor" | "endmacro", *_] if len(frames) > 1:
            frames.pop()


def _calls_itself(words: list[str], frames: list["_Frame"]) -> str:
    """Name the macro that a tag of it calls with nothing that is a part of what it got."""
    for place in range(len(words) - 1):
        is_call = words[place + 1] == "(" and words[max(place - 1, 0) : place] not in (
            ["."],
            ["macro"],
        )
        inside = any(words[place] == frame.name for frame in frames)
        if is_call and inside and not frames[-1].parts & set(words[place + 2 :]):
            return f"a template with {words[place][:40]!r} that calls itself with all that it got"
    return ""


class _Frame(NamedTuple):
    """A loop or macro whose end has not come yet."""

    rounds: float
    name: str
    parts: frozenset[str]
    """The words that stand for a part of what it is given."""


def _number(text: str) -> float:
    try:
        return float(int(text.replace("_", ""), 0))
    except ValueError:
        pass
    try:
        return float(text.replace("_", ""))
    except ValueError:
        return float("inf")


def _product(tokens: list[_Token]) -> float:
    """The product of all numbers that something is multiplied by."""
    made = 1.0
    for place, token in enumerate(tokens):
        if token.text == "*" and token.kind == "op":
            near = tokens[max(place - 1, 0)], tokens[min(place + 1, len(tokens) - 1)]
            made *= max([1.0, *(_number(one.text) for one in near if one.kind == "number")])
    return made


def _range(tag: list[_Token], most: float) -> float:
    """The rounds of a loop over ``range(...)``: the largest number in it, when it has no name."""
    if any(token.kind == "name" and token.text != "range" for token in tag):
        return most
    return max([1.0, *(_number(token.text) for token in tag if token.kind == "number")])


def _doubles(words: list[str]) -> bool:
    """Tell whether a tag makes of a text one that has it twice."""
    end = words.index("=") if "=" in words else 0
    target, value = words[1:end], words[end + 1 :]
    width = len(target)
    joined = sum(
        value[at : at + width] == target
        and value[at + width : at + width + 1] in ([], ["~"], ["+"], [")"], [","], ["|"], ["]"])
        for at in range(len(value) if width else 0)
    )
    return joined > 1 or (joined > 0 and bool({"*", "replace"} & set(value)))


def _keys(tag: list[_Token]) -> Iterator[list[_Token]]:
    """The tokens of every subscript."""
    for place, token in enumerate(tag):
        if token.text != "[" or token.kind != "op" or place == 0:
            continue
        above = tag[place - 1]
        if above.kind not in ("name", "string") and above.text not in (")", "]", "}"):
            continue
        if above.text in ("in", "not", "and", "or", "if", "else", "is", "return"):
            continue
        depth, end = 0, place
        for end in range(place, len(tag)):
            depth += (tag[end].text in ("[", "(")) - (tag[end].text in ("]", ")"))
            if depth == 0:
                break
        yield tag[place + 1 : end]


def _puts_together(tokens: list[_Token]) -> bool:
    for place, token in enumerate(tokens):
        before = tokens[place - 1] if place else None
        if token.text == "~" and token.kind == "op":
            return True
        if token.text in _BUILDERS and before is not None and before.text == "|":
            return True
        near = (before, tokens[place + 1] if place + 1 < len(tokens) else None)
        texts = any(one is not None and one.kind == "string" for one in near)
        if texts and token.kind == "op" and token.text in _ARITHMETIC:
            return True
    return False


def _is_built(key: list[_Token], built: set[str]) -> bool:
    if _puts_together(key):
        return True
    names = [token.text for token in key if token.kind == "name"]
    return bool(names) and names[-1] in built and ":" not in {token.text for token in key}


def _built(tag: list[_Token]) -> set[str]:
    """The variables that a tag gives a string that it puts together."""
    if len(tag) < 4 or tag[0].text not in ("set", "for"):
        return set()
    middle = next((n for n, one in enumerate(tag) if one.text in ("=", "in")), None)
    if middle is None or not _puts_together(tag[middle + 1 :]):
        return set()
    return {token.text for token in tag[1:middle] if token.kind == "name"}
