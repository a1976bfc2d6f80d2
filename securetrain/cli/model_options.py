# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The options of a model in the format of OpenSSF Model Signing, of ``sign`` and ``verify``."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from securetrain.cli.options import file_option

if TYPE_CHECKING:
    from securetrain.artifacts.model import Form, Scope

_F = TypeVar("_F", bound=Callable[..., int])


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeOptions:
    """The files that count."""

    ignore_paths: tuple[Path, ...]
    ignore_git_paths: bool
    allow_symlinks: bool

    @property
    def given(self) -> bool:
        """Tell whether any was given."""
        return bool(self.ignore_paths) or self.allow_symlinks or not self.ignore_git_paths

    def scope(self, *, ignore_unsigned: bool = False) -> "Scope":
        """As the library calls it."""
        from securetrain.artifacts.model import Scope

        return Scope(
            ignore_paths=self.ignore_paths,
            ignore_git=self.ignore_git_paths,
            allow_symlinks=self.allow_symlinks,
            ignore_unsigned=ignore_unsigned,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FormOptions:
    """The form in which a signer writes a model down."""

    certificate: Path | None
    chain: tuple[Path, ...]
    bundle: Path | None
    hash_name: Any
    shard_size: int | None
    spec_name: bool

    @property
    def given(self) -> bool:
        """Tell whether any was given."""
        files = (self.certificate, self.chain, self.bundle, self.shard_size, self.spec_name)
        return any(files) or self.hash_name != "sha256"

    def form(self) -> "Form":
        """As the library calls it."""
        from securetrain.artifacts.model import Form

        return Form(algorithm=self.hash_name, shard_size=self.shard_size, spec_name=self.spec_name)


def scope_options(flag: str) -> Callable[[_F], Callable[..., int]]:
    """Add the options that say which files count; they reach the command as one `ScopeOptions`.

    `flag` is what they go with.
    """
    options = (
        file_option(
            "--ignore-paths",
            multiple=True,
            help=f"{flag}: leave out this path and all below it; a relative one is seen from here,"
            " or from the model's directory. Files that were signed are verified all the same.",
        ),
        click.option(
            "--ignore-git-paths/--no-ignore-git-paths",
            default=True,
            help=f"{flag}: leave out .git, .gitignore, .gitattributes and .github at the model's"
            " top, as the format has it. Default: they are left out.",
        ),
        click.option(
            "--allow-symlinks",
            is_flag=True,
            help=f"{flag}: follow symbolic links to files, as in a cache of Hugging Face.",
        ),
    )
    return _together("scope", ScopeOptions, options)


def form_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options of signing, which reach the command as one `FormOptions`."""
    options = (
        file_option(
            "--certificate",
            help="--oms: the key's certificate (PEM), which then travels in the bundle.",
        ),
        file_option(
            "--chain",
            multiple=True,
            help="--oms: the certificates between that one and the root (PEM).",
        ),
        file_option(
            "--bundle",
            help="--oms: where the bundle is written. Default: model.sig in the model, or FILE.sig"
            " beside a model that is one file.",
        ),
        click.option(
            "--hash",
            "hash_name",
            type=click.Choice(["sha256", "blake2b", "blake3"]),
            default="sha256",
            show_default=True,
            help="--oms: the hash of the files. The command of the reference implementation"
            " verifies sha256 only.",
        ),
        click.option(
            "--shard-size",
            type=click.IntRange(min=1),
            metavar="BYTES",
            help="--oms: sign pieces of this size (1000000000 is usual), which are hashed beside"
            " each other. The reference implementation verifies whole files only.",
        ),
        click.option(
            "--spec-name",
            is_flag=True,
            help="--oms: call a model that is one file by its name, as the specification says, and"
            " not '.', as the reference implementation writes it and needs it.",
        ),
    )
    return _together("form", FormOptions, options)(command)


def _together(
    name: str, kind: type[Any], options: tuple[Callable[..., Any], ...]
) -> Callable[[_F], Callable[..., int]]:
    names = {field.name for field in fields(kind)}

    def add(command: _F) -> Callable[..., int]:
        @functools.wraps(command)
        def together(**given: Any) -> int:
            own = {key: given.pop(key) for key in names}
            return command(**{name: kind(**own)}, **given)

        wrapped: Callable[..., int] = together
        for option in reversed(options):
            wrapped = option(wrapped)
        return wrapped

    return add
