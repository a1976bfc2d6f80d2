# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The kinds of values that options take, besides those that click has."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from securetrain.core.files import local_file


class LocalFile(click.Path):
    """A path of this machine. A URL is refused, since a path would be made of it."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:
        """Refuse a URL; else as click does."""
        return super().convert(local_file(value) if isinstance(value, str) else value, param, ctx)


FILE: Final = LocalFile(path_type=Path)


class SpreadingCommand(click.Command):
    """A command whose `SPREAD` options take all words up to the next option: ``-f a.yaml b.yaml``.

    That is what a shell makes of ``-f jobs/*.yaml``.
    """

    SPREAD: frozenset[str] = frozenset()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the option before each of its words."""
        return super().parse_args(ctx, list(_spread(args, self.SPREAD)))


def _spread(args: list[str], options: frozenset[str]) -> Iterator[str]:
    option, given = "", 0
    for number, word in enumerate(args):
        if word == "--":
            yield from args[number:]
            return
        if word in options:
            option, given = word, 0
        elif len(word) > 1 and word.startswith("-"):
            option = ""
        elif option:
            given += 1
            if given > 1:
                yield option
        yield word


class StepRange(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """Steps from the first to the last, such as 9-16; one number is one step."""

    name = "steps"

    def convert(
        self,
        value: str | tuple[int, int],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[int, int]:
        """Read the range."""
        if isinstance(value, tuple):
            return value
        first, _, last = value.partition("-")
        words = (first, last or first)
        if not all(word.isascii() and word.isdigit() and len(word) < 16 for word in words):
            self.fail(f"{value!r} is no range of steps such as 9-16", param, ctx)
        found = int(words[0]), int(words[1])
        if not 1 <= found[0] <= found[1]:
            self.fail(f"{value!r}: steps begin with 1 and go up", param, ctx)
        return found


class Place(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """A directory of this machine, or the URL of one in an object store."""

    name = "path"

    def convert(
        self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path | str:
        """A URL as it stands; anything else, and what is local in any case, is a path."""
        del param, ctx
        if isinstance(value, Path):
            return value
        from securetrain.artifacts import storage

        if value.startswith("./") and "@" in value:
            return Path(value).absolute()  # not to be taken for NAME@FOLDER, once it is a Path
        return storage.local_path(value) or value
