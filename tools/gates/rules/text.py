# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The form of a file: its header, its letters, and the first line of each docstring."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from tools.gates.tree import Source, Tree
from tools.gates.violations import Fault

SPDX: Final = (
    "# SPDX-FileCopyrightText: 2026 The securetrain developers\n"
    "# SPDX-License-Identifier: Apache-2.0\n"
)
_QUESTION: Final = re.compile(
    r"(?:(?:As|At|By|For|From|In|Of|On|Over|To|Under|With) )?"
    r"(?:How|What|When|Where|Whether|Which|Who|Whom|Whose|Why)\b",
    re.IGNORECASE,
)
_CODE: Final = re.compile(r"\bST-[A-Z]{4}-\d{3}\b")


def headers(tree: Tree) -> Iterator[Fault]:
    """Files without the two lines of the licence, and letters that are not ASCII."""
    for source in tree.sources:
        if not source.text.startswith(SPDX):
            yield Fault(source.path, "does not begin with the two SPDX lines")
        if not source.text.isascii():
            yield Fault(source.path, "is not ASCII")


def docstrings(tree: Tree) -> Iterator[Fault]:
    """Modules of the package without a docstring, and docstrings that open as questions do."""
    for source in tree.package:
        if source.name != "__init__.py" and not ast.get_docstring(source.tree):
            yield Fault(source.path, "has no docstring")
        for line in questions(source):
            yield Fault(source.path, f"opens a docstring with a question word: {line}")


def questions(source: Source) -> Iterator[str]:
    """The first lines of docstrings that ask."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in source.nodes(*kinds):
        text = ast.get_docstring(node)
        if text and _QUESTION.match(text):
            yield text.splitlines()[0]


def codes(tree: Tree) -> Iterator[Fault]:
    """Refusal codes that are named and that the one table does not have."""
    from securetrain.core.codes import CODES, RETIRED  # noqa: PLC0415 - only this gate asks

    known = CODES.keys() | RETIRED
    for source in tree.package:
        for code in sorted(set(_CODE.findall(source.text)) - known):
            yield Fault(source.path, f"names {code}, which core/codes does not have")
