# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Text for people: from elsewhere, made safe for a terminal, and from our own source.

A file name, a peer's message or a log line may hold escape sequences that repaint the screen, so
that a refusal looks like a success. Unprintable characters are shown as escapes instead.
"""

import ast
import inspect
import textwrap
from itertools import pairwise


def printable(text: str, *, keep: str = "\n") -> str:
    r"""`text` with every unprintable character but those in `keep` spelled out (``\\x1b``)."""
    if text.isprintable():
        return text
    return "".join(
        ch if ch.isprintable() or ch in keep else ch.encode("unicode_escape").decode("ascii")
        for ch in text
    )


def field_notes(cls: type[object]) -> dict[str, str]:
    """The string below each field of a class, or below each member of an enumeration."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    for field, below in pairwise(definition.body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = " ".join(text.split())
            case _:
                pass
    return found
