# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The commands that the pages tell a reader to type."""

import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from securetrain.cli.main import LazyGroup

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")],
    key=lambda page: page.relative_to(ROOT).as_posix(),
)
_FENCE: Final = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_OF_A_SHELL: Final = frozenset({"", "sh", "bash"})
"""The languages of blocks in which a shell's commands stand; help texts with examples have none."""
HELP: Final = ROOT / "docs/reference/commands.md"
_PROGRAMS: Final = frozenset(
    {"securetrain", "torchrun", "make", "pip", "python", "podman"}
    | {"mkdir", "cp", "mv", "export", "git"}
)
_SAID: Final = re.compile(r"securetrain rank \d+:")
"""An output, and no command."""
_DESCRIPTION: Final = re.compile(r"\s{2,}\S.*$")
"""Beside a command, in a column of its own."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command line of a page; lines that a backslash continues are one."""

    page: str
    text: str

    @property
    def words(self) -> list[list[str]]:
        """The words of each simple command in it, without variables, redirections and comments."""
        lexer = shlex.shlex(self.text, posix=True, punctuation_chars="&|;<>")
        lexer.whitespace_split = True
        simple: list[list[str]] = [[]]
        cut = False
        for word in lexer:
            if set(word) <= set("&|;"):
                simple.append([])
                cut = False
            elif set(word) <= set("<>"):
                cut = True
            elif not cut:
                simple[-1].append(word)
        return [one for one in simple if one]


def commands_of(page: Path) -> Iterator[Command]:
    """The commands in a page's blocks, in their order."""
    name = page.relative_to(ROOT).as_posix()
    for indent, title, text in _FENCE.findall(page.read_text("utf-8")):
        if title.split(" ")[0] not in (_OF_A_SHELL if page != HELP else {"text"}):
            continue
        whole = re.sub(r"\s*\\\n\s*", " ", text)
        for line in whole.splitlines():
            typed = _DESCRIPTION.sub("", line.removeprefix(indent).strip().removeprefix("$ "))
            first = re.sub(r"^(\w+=\S+ )+", "", typed).split(" ")[0]
            if first in _PROGRAMS and not _SAID.match(typed):
                yield Command(name, typed)


def refusal(words: list[str]) -> str:
    """Return why the command line would refuse these words for their form; nothing if it would not.

    Files need not be there. ``...`` stands for what a reader fills in.
    """
    context, rest = _command_of(words)
    command = context.command
    if isinstance(command, click.Group):
        return f"no such command: {' '.join(words[: len(words) - len(rest) + 1])}"
    if context.command.context_settings.get("ignore_unknown_options"):
        return ""  # the launcher's own line: tests/launch
    try:
        given, left, _ = command.make_parser(context).parse_args(list(rest))
    except click.UsageError as error:
        return error.format_message()
    if "..." in rest or "--help" in rest:
        return ""
    for parameter in command.params:
        value = given.get(parameter.name or "")
        if parameter.required and value in (None, (), []):
            return f"lacks {parameter.get_error_hint(context)}"
        for one in value if isinstance(value, list) else [value]:
            if isinstance(parameter.type, click.Choice) and isinstance(one, str):
                try:
                    parameter.type.convert(one, parameter, context)
                except click.UsageError as error:
                    return error.format_message()
    return f"has too many words: {left}" if left else ""


def verb(words: list[str]) -> str:
    """The last word of the command's name: ``waive``, ``ima-list``."""
    return (_command_of(words)[0].info_name if words[0] == "securetrain" else None) or words[0]


def _command_of(words: list[str]) -> tuple[click.Context, list[str]]:
    """The command as far as there is one, and the words after its name."""
    context = click.Context(LazyGroup("securetrain"), info_name="securetrain")
    rest = words[1:]
    while isinstance(context.command, click.Group) and rest:
        found = context.command.get_command(context, rest[0])
        if found is None:
            break
        context = click.Context(found, parent=context, info_name=rest[0])
        rest = rest[1:]
    return context, rest


def other_blocks(page: Path) -> list[str]:
    """The blocks of a page in which no shell's commands stand: files, for the most part."""
    return [
        "".join(line.removeprefix(indent) for line in text.splitlines(keepends=True))
        for indent, title, text in _FENCE.findall(page.read_text("utf-8"))
        if title.split(" ")[0] not in _OF_A_SHELL
    ]


if __name__ == "__main__":
    sys.stdout.write(other_blocks(Path(sys.argv[1]))[int(sys.argv[2]) - 1])
