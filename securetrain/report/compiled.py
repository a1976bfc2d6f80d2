# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The pages of ``securetrain cache``: compiled code that runs share."""

from collections.abc import Sequence
from datetime import UTC, datetime

import click
import msgspec

from securetrain.core import ExitCode, printable
from securetrain.launch import ClearedCaches, StoredCache
from securetrain.report.document import Document


def listed(caches: Sequence[StoredCache]) -> Document:
    """Every cache: its size, its last use, and what it was compiled with."""

    def text() -> None:
        for one in caches:
            used = datetime.fromtimestamp(one.used, UTC)
            state = "in use" if one.in_use else f"used {used:%Y-%m-%d}"
            click.echo(f"{printable(one.name)}  {one.size / 1e6:8.1f} MB  {state}  {_made(one)}")
        if not caches:
            click.echo("no caches of this user on this machine")

    data = {
        "caches": [
            {
                "name": one.name,
                "bytes": one.size,
                "used": datetime.fromtimestamp(one.used, UTC).isoformat(timespec="seconds"),
                "in_use": one.in_use,
                "key": None if one.key is None else msgspec.to_builtins(one.key),
            }
            for one in caches
        ],
        "exit": int(ExitCode.OK),
    }
    return Document(data=data, text=text, exit_code=int(ExitCode.OK))


def cleared(done: ClearedCaches) -> Document:
    """The caches that were removed, and those that runs use."""

    def text() -> None:
        for name in done.removed:
            click.echo(f"removed  {printable(name)}")
        for name in done.in_use:
            click.echo(click.style(f"in use   {printable(name)}", fg="yellow"))
        if not (done.removed or done.in_use):
            click.echo("no caches of this user on this machine")

    code = int(ExitCode.FAILURE if done.in_use else ExitCode.OK)
    data = {"removed": list(done.removed), "in_use": list(done.in_use), "exit": code}
    return Document(data=data, text=text, exit_code=code)


def _made(one: StoredCache) -> str:
    if one.key is None:
        return "not described by a key that can be believed"
    packages = " ".join(f"{name} {version}" for name, version in sorted(one.key.packages.items()))
    return printable(f"{packages}, policy {one.key.policy[:19]}, workers of user {one.key.user}")
