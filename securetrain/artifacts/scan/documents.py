# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""JSON, YAML and INI as plain trees in which nothing is lost: an object keeps all of its pairs.

Two readers may take different ones of two equal keys, so both are kept. YAML is read as events:
nothing is constructed, an alias is what it leads to (the same object), and tags are noted.
"""

import configparser
import json
from collections.abc import Iterator
from typing import Final, NoReturn

import yaml

from securetrain.artifacts.scan.findings import UnjudgedError

JSON_LIMIT: Final = 64 << 20
YAML_LIMIT: Final = 8 << 20
MAX_OBJECTS: Final = 4_000_000
MAX_DEPTH: Final = 200

_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Pairs(list[tuple[object, object]]):
    """The pairs of an object, in their order."""

    def of(self, key: str) -> Iterator[object]:
        """Every value of a key."""
        return (value for name, value in self if name == key)

    def texts(self, key: str) -> list[str]:
        """The values of a key that are texts."""
        return [one for one in self.of(key) if isinstance(one, str)]

    def text(self, key: str) -> str:
        """The last text under a key; empty when there is none."""
        return next(reversed(self.texts(key)), "")


class Tagged(str):
    """A YAML value with a tag of its own, as ``tag value``."""

    __slots__ = ()


def of_json(data: bytes) -> object:
    """The tree of a JSON document.

    Raises:
        UnjudgedError: it is too large or too deep.
        ValueError: it is none.
    """
    if len(data) > JSON_LIMIT or data.count(b"[") + data.count(b"{") > MAX_OBJECTS:
        raise UnjudgedError(f"JSON of {len(data)} bytes: too large, or of too many objects")
    try:
        return json.loads(data, object_pairs_hook=Pairs, parse_int=_number, parse_float=_number)
    except RecursionError:
        _too_deep()


def of_ini(data: bytes) -> object:
    """The tree of an INI file whose values are JSON, or else texts.

    Raises:
        UnjudgedError: it is too deep.
        ValueError: it is none, or says something twice.
    """
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(data.decode())
    except configparser.Error as error:
        raise ValueError(f"not INI: {type(error).__name__}") from error
    return Pairs((name, Pairs(map(_valued, parser.items(name)))) for name in parser.sections())


def _valued(pair: tuple[str, str]) -> tuple[str, object]:
    try:
        return pair[0], of_json(pair[1].encode())
    except ValueError:
        return pair


def of_yaml(data: bytes) -> object:
    """The tree of a YAML stream: a list of its documents.

    Raises:
        UnjudgedError: it is too large or too deep.
        ValueError: it is none.
    """
    if len(data) > YAML_LIMIT:
        raise UnjudgedError(f"YAML of {len(data)} bytes, the limit is {YAML_LIMIT}")
    documents: list[object] = []
    stack: list[list[object]] = [documents]
    kinds: list[str] = []
    names: list[str | None] = []
    anchors: dict[str | None, object] = {}
    try:
        for event in yaml.parse(data, Loader=_Loader):
            match event:
                case yaml.ScalarEvent():
                    tag = event.tag if event.tag and not event.implicit[0] else ""
                    value = event.value
                    stack[-1].append(Tagged(f"{tag} {value}") if tag else value)
                    anchors[event.anchor] = stack[-1][-1]
                case yaml.AliasEvent():
                    stack[-1].append(anchors.get(event.anchor))
                case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                    if len(stack) > MAX_DEPTH:
                        _too_deep()
                    if event.tag and not event.implicit:
                        stack[-1].append(Tagged(f"{event.tag} "))
                        kinds.append("tagged")
                    kinds.append("map" if isinstance(event, yaml.MappingStartEvent) else "list")
                    stack.append([])
                    names.append(event.anchor)
                case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                    _end(stack, kinds)
                    anchors[names.pop()] = stack[-1][-1]
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"not YAML: {type(error).__name__}") from error
    return documents


def _end(stack: list[list[object]], kinds: list[str]) -> None:
    values = stack.pop()
    value: object = values
    if kinds.pop() == "map":
        value = Pairs(zip(values[::2], values[1::2], strict=False))
    if kinds and kinds[-1] == "tagged":
        kinds.pop()
        value = [stack[-1].pop(), value]
    stack[-1].append(value)


def _number(text: str) -> int:
    """Tell zero from others, as 0 and 1: more is not asked, and a million digits are slow."""
    return int(bool(text.strip("-0.eE+")))


def _too_deep() -> NoReturn:
    raise UnjudgedError(f"values in values, more than {MAX_DEPTH} deep or so")
