# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain trust init``, ``rotate``, ``revoke`` and ``sign``: the versions of a trust root."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from securetrain.cli.clock import now
from securetrain.cli.command import Option, Output, Printed, verb
from securetrain.cli.identity.trust.roles import Roles, RootKeys, gathered, key_id_of, pairs
from securetrain.cli.options import DAYS
from securetrain.report import Document

if TYPE_CHECKING:
    from securetrain.identity import Change


@verb()
def init(*, folder: Path, keys: RootKeys, roles: Roles) -> Document:
    """Make version 1 in FOLDER, whose root keys are those of --key and of --add root=KEY."""
    import msgspec

    from securetrain.identity import TrustFolder, amended
    from securetrain.identity.trust import TrustDocument, TrustRole
    from securetrain.report import keys as answers

    at, signers = now(), keys.signers()
    change = roles.change(keys, at)
    root = [*(one.public for one in signers), *change.add.get(TrustRole.ROOT, [])]
    unique = {key.key_id: key for key in root}.values()
    change = replace(change, add={**change.add, TrustRole.ROOT: [*unique]})
    # The first version is what a change makes of nothing.
    nothing = TrustDocument(version=1, created=at, expires=at, keys={}, roles={})
    document = msgspec.structs.replace(amended(nothing, change), version=1)
    return answers.change(TrustFolder(folder).begin(document, signers, at))


@verb()
def rotate(
    *,
    folder: Path,
    keys: RootKeys,
    roles: Roles,
    remove: Annotated[
        tuple[str, ...],
        Option(
            "--remove",
            "Take a key (the beginning of its id) from a role: what it signed is no longer"
            " trusted.",
            metavar="ROLE=ID",
        ),
    ],
) -> Document:
    """Make the next version in FOLDER. New root keys sign it too: give them with --key as well."""
    removed = {
        role: [key_id_of(folder, one) for one in beginnings]
        for role, beginnings in gathered(pairs(remove))
    }
    return _propose(folder, roles.change(keys, now(), remove=removed), keys)


@verb()
def revoke(
    *,
    folder: Path,
    key_id: str,
    keys: RootKeys,
    reason: Annotated[str, Option("--reason", "Why; stands in the trust root.")] = "",
    valid_before: Annotated[
        int | None,
        Option(
            "--valid-before",
            "What was logged at an index below this stays valid; without it, nothing does.",
            click.IntRange(0),
        ),
    ],
    days: Annotated[int, DAYS.told("Its lifetime.")] = 365,
) -> Document:
    """Revoke the key whose id begins with KEY_ID, in a new version. It is never taken back."""
    from securetrain.identity import Change
    from securetrain.identity.trust import Revoked

    at, key = now(), key_id_of(folder, key_id)
    lost = Revoked(key_id=key, since=at, reason=reason[:500], valid_before=valid_before)
    return _propose(folder, Change(created=at, expires=at + timedelta(days), revoke=[lost]), keys)


@verb()
def sign(
    *,
    folder: Path,
    keys: RootKeys,
    yes: Annotated[bool, Option("--yes", "Sign without asking.")],
    output: Output,
) -> Printed:
    """Sign the draft in FOLDER with another root key, after it was shown."""
    from securetrain.core.errors import UsageError
    from securetrain.identity import TrustFolder
    from securetrain.report import keys as answers

    draft = (store := TrustFolder(folder)).draft()
    if draft is None:
        raise UsageError(
            "ST-USAG-001", "there is no draft in it", str(folder), "securetrain trust rotate"
        )
    if not yes:
        Output().emit(answers.root(draft))
        click.confirm("sign this?", abort=True, err=True)
    return output.emit(answers.change(store.sign(keys.signers(), now())))


def _propose(folder: Path, change: "Change", keys: RootKeys) -> Document:
    from securetrain.identity import TrustFolder
    from securetrain.report import keys as answers

    return answers.change(TrustFolder(folder).propose(change, keys.signers(), now()))
