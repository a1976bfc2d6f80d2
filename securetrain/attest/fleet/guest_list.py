# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The list of nodes that tokens are made for: one from a command line, or a CSV for a thousand.

The first line of a CSV names its columns: ``node``, and, where they are wanted, ``group`` (the
image group) and ``ek`` (the name of the one endorsement key that must answer, as ``attest show``
prints it). All of a list is read and checked before a token is made.
"""

import csv
import io
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from securetrain.attest.fleet.desk import Desk
from securetrain.attest.fleet.entrants import Invited
from securetrain.attest.fleet.token import FleetToken
from securetrain.core.errors import AdmissionError
from securetrain.core.files import read_file
from securetrain.evidence import GROUP_PATTERN
from securetrain.identity import SECRET_SIZE, SEGMENT

LIST_LIMIT: Final = 16 << 20
MAX_NODES: Final = 100_000
_COLUMNS: Final = ("node", "group", "ek")
_EK_NAME: Final = re.compile(r"000b[0-9a-f]{64}|000c[0-9a-f]{96}")
_LINE_LIMIT: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """A node that may come."""

    node: str
    group: str = ""
    ek: str = ""
    """Name of the endorsement key that must answer, hex; empty for any that is certified."""


def read_guests(path: Path, group: str = "") -> list[Guest]:
    """Read a CSV.

    Args:
        path: the file.
        group: the image group of nodes whose line names none.

    Raises:
        AdmissionError: ST-ADMN-024, naming the line.
        UsageError: ST-USAG-002 when it cannot be read.
    """
    data, where = read_file(path, LIST_LIMIT), str(path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _bad("it is not UTF-8", where) from error
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    guests: list[Guest] = []
    lines: list[int] = []
    columns: list[str] = []
    try:
        for row in rows:
            here = f"{where}: line {rows.line_num}"
            cells = [cell.strip() for cell in row]
            if not any(cells):
                continue
            if sum(map(len, row)) > _LINE_LIMIT:
                raise _bad("the line is too long", here)
            if not columns:
                columns = _head(cells, here)
                continue
            if len(cells) != len(columns):
                raise _bad(f"{len(cells)} cells, the head has {len(columns)}", here)
            if len(guests) == MAX_NODES:
                raise _bad(f"more than {MAX_NODES} nodes", here)
            given = dict(zip(columns, cells, strict=True))
            guests.append(
                Guest(
                    node=given["node"],
                    group=given.get("group") or group,
                    ek=given.get("ek", "").lower(),
                )
            )
            lines.append(rows.line_num)
    except csv.Error as error:
        raise _bad(str(error), f"{where}: line {rows.line_num}") from error
    if not guests:
        raise _bad("it names no node", where)
    check_guests(guests, lambda number: f"{where}: line {lines[number]}")
    return guests


def check_guests(guests: Sequence[Guest], where: Callable[[int], str]) -> None:
    """Refuse names, groups and keys that are none, and what is there twice.

    Args:
        guests: the nodes.
        where: the place of one, by its number.

    Raises:
        AdmissionError: ST-ADMN-024.
    """
    seen: dict[str, int] = {}
    for number, guest in enumerate(guests):
        here = where(number)
        if not SEGMENT.fullmatch(guest.node):
            raise _bad(f"{guest.node[:100]!r} is no node's name", here)
        if not re.fullmatch(GROUP_PATTERN, guest.group):
            raise _bad(f"{guest.group[:100]!r} is no name of an image group", here)
        if guest.ek and not _EK_NAME.fullmatch(guest.ek):
            raise _bad(f"{guest.ek[:100]!r} is no name of an endorsement key", here)
        for key, what in ((f"node {guest.node}", "the node"), (f"ek {guest.ek}", "the TPM")):
            if key == "ek ":
                continue
            if key in seen:
                raise _bad(f"{what} {key[:40]!r} is there twice, first in {where(seen[key])}", here)
            seen[key] = number


def make_fleet_tokens(
    desk: Desk,
    guests: Sequence[Guest],
    address: tuple[str, int],
    *,
    ends: datetime,
    now: datetime,
    replace: bool = False,
    random: Callable[[int], bytes] = secrets.token_bytes,
) -> list[FleetToken]:
    """Make a token for each node, and keep its public key: all, or none.

    Args:
        desk: keeps them.
        guests: the nodes, checked.
        address: of the listener, as the machines see it.
        ends: when they end.
        now: the time, timezone-aware.
        replace: whether a node may have new hardware, or another image group.
        random: the source of secrets.

    Raises:
        AdmissionError: ST-ADMN-022 and 023.
    """
    tokens = [
        FleetToken(
            host=address[0],
            port=address[1],
            pin=desk.key.key_id,
            node=guest.node,
            group=guest.group,
            ends=ends,
            secret=random(SECRET_SIZE),
        )
        for guest in guests
    ]
    desk.invite(
        [
            Invited(
                key=token.key.public,
                node=guest.node,
                group=guest.group,
                ends=ends,
                ek=guest.ek,
                replace=replace,
            )
            for guest, token in zip(guests, tokens, strict=True)
        ],
        now,
    )
    return tokens


def _head(cells: Sequence[str], where: str) -> list[str]:
    named = [cell.lower() for cell in cells]
    unknown = [name for name in named if name not in _COLUMNS]
    if unknown or "node" not in named or len(set(named)) != len(named):
        raise _bad(f"the head is {', '.join(cells)[:100]!r}, not of {', '.join(_COLUMNS)}", where)
    return named


def _bad(what: str, where: str) -> AdmissionError:
    return AdmissionError("ST-ADMN-024", what, where)
