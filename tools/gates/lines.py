# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Code lines, counted in one way everywhere.

A code line is a line with a token that is code: no blank line, no comment, no docstring or other
string that stands alone, no import.
"""

import ast
import io
import tokenize
from collections.abc import Iterable
from typing import Final

_NO_CODE: Final = frozenset(
    {
        *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
        *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
    }
)


def code_lines(text: str, nodes: Iterable[ast.AST]) -> int:
    """The number of code lines of a file, of which `nodes` gives strings, expressions and imports.

    Tokenizing costs more than parsing, and only a string of several lines needs it: elsewhere a
    line is code when there is something on it that does not begin with `#`.
    """
    left_out: set[int] = set()
    strings = []
    for node in nodes:
        match node:
            case ast.Expr(value=ast.Constant(value=str())) | ast.Import() | ast.ImportFrom():
                left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            case ast.Constant(value=str() | bytes()) | ast.JoinedStr():
                if node.lineno != node.end_lineno:
                    strings.append(node.lineno)
            case _:
                pass
    if not left_out.issuperset(strings):
        return len(_with_tokens(text) - left_out)
    lines = (line.lstrip() for line in text.splitlines())
    return sum(
        bool(line) and not line.startswith("#") and number not in left_out
        for number, line in enumerate(lines, 1)
    )


def _with_tokens(text: str) -> set[int]:
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            found.update(range(token.start[0], token.end[0] + 1))
    return found
