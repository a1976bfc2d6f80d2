# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Passphrases, PINs and tokens: from a file, or typed. Never secrets on the command line."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from securetrain.identity import Ask, ClusterCA, Unlock

_LIMIT: Final = 4096


def asker(path: Path | None) -> "Ask":
    """Return a function that gives a secret when one is needed."""

    def ask(what: str) -> bytes:
        if path is not None:
            return read_passphrase(path)
        typed: str = click.prompt(what, hide_input=True, err=True)
        return typed.encode()

    return ask


def read_passphrase(path: Path) -> bytes:
    """The first line of a file.

    Raises:
        UsageError: ST-USAG-001 when it is empty, ST-USAG-002 when it cannot be read.
    """
    from securetrain.core.errors import UsageError
    from securetrain.core.files import read_file

    first = read_file(path, _LIMIT).split(b"\n", 1)[0].rstrip(b"\r")
    if not first:
        raise UsageError(
            "ST-USAG-001", "the passphrase is empty", str(path), "write it into the first line"
        )
    return first


def read_token(text: str) -> str:
    """A token of the command line; ``-`` stands for standard input."""
    from securetrain.identity import TEXT_LIMIT

    return sys.stdin.read(TEXT_LIMIT + 1) if text == "-" else text


def new_passphrase(path: Path | None) -> bytes:
    """A passphrase for a new key: from a file, else typed twice."""
    if path is not None:
        return read_passphrase(path)
    typed: str = click.prompt("passphrase", hide_input=True, confirmation_prompt=True, err=True)
    return typed.encode()


def unlocker(cluster: "ClusterCA", path: Path | None) -> "Unlock":
    """Return a function that gives the CA's key, and asks only if it is encrypted."""
    from securetrain.identity.keys import PrivateKey, is_encrypted

    def unlock() -> PrivateKey:
        if path is not None:
            return cluster.key(read_passphrase(path))
        if not (cluster.key_file.exists() and is_encrypted(cluster.key_file)):
            return cluster.key()
        typed: str = click.prompt("passphrase of the cluster CA", hide_input=True, err=True)
        return cluster.key(typed.encode())

    return unlock
