# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The options and arguments that several verbs have, each defined once."""

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from securetrain.core.files import local_file

_F = TypeVar("_F", bound=Callable[..., Any])


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
TRUST_VARIABLE: Final = "SECURETRAIN_TRUST"
CATALOGUE_VARIABLE: Final = "SECURETRAIN_CATALOGUE"
CATALOGUE_ROOT_VARIABLE: Final = "SECURETRAIN_CATALOGUE_ROOT"
KEY_FORMS: Final = "a file, a pkcs11: URI, or one of awskms:, gcpkms: and azurekms:"
"""Every way in which a private key is named (`identity.open_signer`)."""
_EXPECTED: Final = ("digest", "run", "name", "min_step", "min_version", "signer")

file_argument = functools.partial(click.argument, type=FILE)
file_option = functools.partial(click.option, type=FILE)

passphrase_option = file_option(
    "--passphrase-file",
    help="File with the passphrase of the cluster CA's key; without it, it is asked for.",
)
secret_option = file_option(
    "--passphrase-file",
    help="File with the keys' passphrase (or a token's PIN); without it, it is asked for.",
)


class StoryGroup(click.Group):
    """A group that lists its commands in the order in which they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """In the order of their definition."""
        return list(self.commands)


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
        from securetrain.artifacts import local_path

        if value.startswith("./") and "@" in value:
            return Path(value).absolute()  # not to be taken for NAME@FOLDER, once it is a Path
        return local_path(value) or value


def json_as(text: str) -> Callable[[_F], _F]:
    """``--json``, which reaches the command as `output`."""
    return click.option(
        "--json",
        "output",
        is_flag=True,
        help=text,
        callback=lambda _ctx, _param, given: "json" if given else "text",
    )


json_option = json_as("Print JSON.")


def days_option(default: int, text: str, most: int = 3650) -> Callable[[_F], _F]:
    """``--days``."""
    days = click.IntRange(1, most)
    return click.option("--days", type=days, default=default, show_default=True, help=text)


def format_options(*formats: str, text: str | None = None) -> Callable[[_F], _F]:
    """``--format`` and ``--json``, which reach the command as one `output`."""

    def add(command: _F) -> _F:
        @functools.wraps(command)
        def together(*, output: str, as_json: bool, **given: Any) -> Any:
            return command(output="json" if as_json else output, **given)

        wrapped: Any = click.option(
            "--json", "as_json", is_flag=True, help="The same as --format json."
        )(together)
        kinds = click.Choice(["text", "json", *formats])
        added: _F = click.option(
            "--format", "output", type=kinds, default="text", show_default=True, help=text
        )(wrapped)
        return added

    return add


def expect_options(command: _F) -> _F:
    """``--expect-...``, which reach the command as one `expect`; None without any."""
    at_least = click.IntRange(min=0)
    options = (
        click.option("--expect-digest", help="The digest that it must have (verify prints it)."),
        click.option("--expect-run", help="The run that must have saved it."),
        click.option("--expect-name", help="The name that it must bear."),
        click.option("--expect-min-step", type=at_least, help="The lowest step that will do."),
        click.option(
            "--expect-min-version",
            type=at_least,
            help="The lowest version of a dataset, or number of a checkpoint in its run.",
        ),
        click.option(
            "--expect-signer", help="The id of a key, or the identity, that must have signed it."
        ),
    )

    @functools.wraps(command)
    def together(**given: Any) -> Any:
        named = {name: given.pop(f"expect_{name}") for name in _EXPECTED}
        expect = None
        if any(value is not None for value in named.values()):
            from securetrain.artifacts.statement import Expectation

            expect = Expectation(**named)
        return command(expect=expect, **given)

    wrapped: Any = together
    for option in reversed(options):
        wrapped = option(wrapped)
    added: _F = wrapped
    return added
