# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Exports in files of Ansible (variables, tasks, templates in strings), found by their shape.

Roles spell them in many ways; what they share is the syntax of exports(5). Rules:

1. a string that is a line of it, ``/path client(options)``, is an export wherever it stands, in a
   list, behind ``line:`` or in a block of text;
2. a mapping with a path and with options of exports is one too: the options may have the client
   before them, or the clients stand beside them (``clients``, ``hosts``, ``network``);
3. nothing is resolved: what a variable decides is templated;
4. an alias is read where its anchor stands, and not again.
"""

import re
from collections.abc import Iterator
from typing import Final

import yaml

from securetrain.audit.facts import Location
from securetrain.audit.subjects.storage.collect.exports import (
    EVERYBODY,
    MAX_EXPORTS,
    Line,
    export_of,
    lines_of,
    parse_line,
)
from securetrain.audit.subjects.storage.facts import Export

MAX_NODES: Final = 100_000
_NAMES: Final = frozenset(
    {"rw", "ro", "sync", "async", "secure", "insecure", "root_squash", "no_root_squash",
     "all_squash", "no_all_squash", "subtree_check", "no_subtree_check", "fsid", "anonuid",
     "anongid", "crossmnt", "nohide", "wdelay", "no_wdelay", "sec", "xprtsec"}
)  # fmt: skip
_SERVERS: Final = re.compile(r"squash|subtree_check|fsid|anonuid|crossmnt|wdelay|insecure")
"""Options that only a server has."""
_GRANT: Final = re.compile(r"[^()]*\(([^()]*)\)\Z")
_PATHS: Final = re.compile(r"(?:^|_)(?:path|dir|directory|export|share|mountpoint|src|name)$")
_WORDS: Final = re.compile(r"(?:^|_)(?:options|opts|option|exportopts)$")
_CLIENTS: Final = re.compile(
    r"(?:^|_)(?:clients?|hosts?|networks?|allowed|cidr|hostname|subnet|ip|address)$"
)
_MOUNTS: Final = re.compile(r"mount|fstab|fstype|server|remote", re.IGNORECASE)
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse_ansible(text: str, path: str) -> tuple[Export, ...]:
    """The exports in a file of YAML.

    Raises:
        ValueError: when it is no YAML, or too large to be a file of variables.
    """
    found: list[Export] = []
    seen: set[int] = set()
    try:
        for document in yaml.compose_all(text, Loader=_Loader):
            for export in _walk(document, path, seen):
                found.append(export)
                if len(found) > MAX_EXPORTS:
                    raise ValueError(f"more than {MAX_EXPORTS} exports")
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark else ""
        raise ValueError(f"no YAML{line}: {getattr(error, 'problem', error)}") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return tuple(found)


def _walk(top: yaml.Node | None, path: str, seen: set[int]) -> Iterator[Export]:
    """Every export below a node; no recursion, each node once."""
    todo = [top] if top is not None else []
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if len(seen) > MAX_NODES:
            raise ValueError(f"more than {MAX_NODES} nodes")
        match node:
            case yaml.ScalarNode():
                yield from _in_text(node, path)
            case yaml.SequenceNode():
                todo += reversed(node.value)
            case yaml.MappingNode():
                pairs = {k.value: v for k, v in node.value if isinstance(k, yaml.ScalarNode)}
                yield from _in_mapping(pairs, path)
                todo += [value for _, value in reversed(node.value)]
            case _:
                pass


def _in_text(node: yaml.ScalarNode, path: str) -> Iterator[Export]:
    """Rule 1."""
    if "(" not in node.value or len(node.value) > 1 << 16:
        return
    block = node.style in ("|", ">")
    first = node.start_mark.line + 1 + block
    quoted = node.style in ("'", '"')
    column = 1 if block else node.start_mark.column + 1 + quoted
    for line in lines_of(node.value, first, column):
        if _is_export(line):
            yield from parse_line(line, path)


def _is_export(line: Line) -> bool:
    path, *words = line.text.split()
    grants = (_GRANT.match(word) for word in words)
    return path.lstrip('"').startswith(("/", "{{")) and any(
        g and _has_options(g[1]) for g in grants
    )


def _has_options(text: str) -> bool:
    """Return whether a list, without its parentheses, is one of export options."""
    words = [word.strip() for word in text.split(",")]
    return any(word.partition("=")[0] in _NAMES or word.startswith("{{") for word in words)


def _in_mapping(pairs: dict[str, yaml.Node], path: str) -> Iterator[Export]:
    """Rule 2."""
    where = _scalar(pairs, _PATHS)
    options = _scalar(pairs, _WORDS)
    clients = next((node for key, node in pairs.items() if _CLIENTS.search(key)), None)
    if where is None or not where.value.startswith(("/", "{{")):
        return
    text = options.value if options is not None else ""
    if any(_MOUNTS.search(key) for key in pairs) and "(" not in text and not _SERVERS.search(text):
        return  # somebody's mount: the options are the client's
    if isinstance(clients, yaml.SequenceNode):
        for one in clients.value:
            if isinstance(one, yaml.MappingNode):
                inner = {k.value: v for k, v in one.value if isinstance(k, yaml.ScalarNode)}
                client, own = _scalar(inner, _CLIENTS) or _scalar(inner, _PATHS), options
                own = _scalar(inner, _WORDS) or own
            elif isinstance(one, yaml.ScalarNode):
                client, own = one, options
            else:
                continue
            yield from _export(where, client, own, path)
    elif options is not None or (clients is not None and "(" in str(clients.value)):
        client = clients if isinstance(clients, yaml.ScalarNode) else None
        yield from _export(where, client, options, path)


def _export(
    where: yaml.ScalarNode,
    client: yaml.ScalarNode | None,
    options: yaml.ScalarNode | None,
    path: str,
) -> Iterator[Export]:
    if options is not None and "(" in options.value:
        # '*(rw,sync)' beside a path, or several of them
        yield from _beside(where, options, path)
    elif client is not None and "(" in client.value:
        yield from _beside(where, client, path)
    elif options is not None and _has_options(options.value):
        place = Location(path=path, line=options.start_mark.line + 1, column=_column(options))
        name = client.value if client is not None else EVERYBODY
        yield export_of(where.value, f"{name}({options.value})", place)


def _beside(where: yaml.ScalarNode, clients: yaml.ScalarNode, path: str) -> Iterator[Export]:
    """The exports of a path to the clients of another value, whose place counts."""
    begin = len(where.value) + 1
    for line in lines_of(f"{where.value} {clients.value}"):
        starts = ((0, clients.start_mark.line + 1, _column(clients) - begin),)
        yield from parse_line(Line(line.text, starts), path)


def _scalar(pairs: dict[str, yaml.Node], names: re.Pattern[str]) -> yaml.ScalarNode | None:
    found = (node for key, node in pairs.items() if names.search(key))
    return next((node for node in found if isinstance(node, yaml.ScalarNode)), None)


def _column(node: yaml.ScalarNode) -> int:
    return node.start_mark.column + 1 + (node.style in ("'", '"'))
