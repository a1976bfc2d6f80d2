# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The pages of ``securetrain fleet``: tokens, what machines have proven, what was signed."""

import json
import sys
import threading
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

import click
import msgspec

from securetrain.attest.fleet import (
    FleetToken,
    Held,
    Lesson,
    Proven,
    Taken,
)
from securetrain.core import ExitCode, printable
from securetrain.core.errors import SecureTrainError
from securetrain.ledger import Entry, Event
from securetrain.rendezvous.coordinator import Seen
from securetrain.rendezvous.member import Joined
from securetrain.report import evidence
from securetrain.report.document import Document, moment, plural
from securetrain.report.pieces import facts, lines, say, title, warn

_NAMED: Final = 12
"""Nodes that are named in a line of an overview."""
_NOTHING_NEW: Final = "what the group boots already: nothing is added"
FILE_HEAD: Final = "node,token\n"


def tokens_file(tokens: Sequence[FleetToken]) -> bytes:
    """A CSV of tokens, one node a line."""
    return (FILE_HEAD + "".join(f"{one.node},{one.text()}\n" for one in tokens)).encode()


def tokens_page(tokens: Sequence[FleetToken], path: Path | None, ends: datetime) -> Document:
    """New tokens: alone on standard output, or in a file."""

    def text() -> None:
        if path is None:
            for one in tokens:
                click.echo(one.text() if len(tokens) == 1 else f"{one.node},{one.text()}")
        where = f"{path}: " if path is not None else ""
        nodes = plural(len(tokens), "node")
        said = f"{where}a token for each of {nodes}, once, until {ends:%Y-%m-%d %H:%M} UTC"
        if len(tokens) == 1:
            said = f"{where}a token for {tokens[0].node}, once, until {ends:%Y-%m-%d %H:%M} UTC"
        click.echo(printable(said, keep=""), err=True)
        click.echo("on the machine, as root: securetrain fleet join TOKEN", err=True)
        sys.stdout.flush()

    data = {
        "file": str(path) if path is not None else None,
        "ends": moment(ends),
        "tokens": [
            {"node": one.node, "group": one.group, **({} if path else {"token": one.text()})}
            for one in tokens
        ],
    }
    return Document(data=data, text=text)


def joined_page(joined: Joined) -> Document:
    """The end of ``fleet join`` on the machine."""
    member = joined.membership

    def text() -> None:
        title(f"{member.node} has proven itself to {member.desk}")
        facts(
            [
                ("TPM", f"{member.ek} ({joined.worth})"),
                ("image group", member.group or "the one without a name"),
                *(("would be learned", one) for one in joined.learned),
                ("kept in", f"{joined.record} and {joined.attester}"),
                *([("coordinator", member.coordinator)] if member.coordinator else []),
            ]
        )
        for note in joined.notes:
            warn(note)
        say(
            "The token is spent. Nothing is signed yet: the operator looks at what waits (fleet"
            " show) and signs it (fleet sign), unless a rule does."
        )
        say(f"In jobs, let the node speak with --attester {joined.attester}")

    data = {
        **msgspec.to_builtins(member),
        "record": str(joined.record),
        "attester": str(joined.attester),
        "worth": joined.worth,
        "learned": list(joined.learned),
        "notes": list(joined.notes),
    }
    return Document(data=data, text=text)


def waiting_page(
    lessons: Sequence[Lesson],
    open_tokens: Sequence[str],
    *,
    full: bool,
) -> Document:
    """Proofs that wait: by image group and boot, or node by node.

    Args:
        lessons: of the proofs that wait.
        open_tokens: nodes whose token is still to be used.
        full: whether nodes were asked for by name.
    """
    rows = [(one.proven, one) for one in lessons]

    def text() -> None:
        if not rows:
            say("Nothing waits to be signed.")
        alike: dict[tuple[str, bytes], list[Lesson]] = {}
        for one, taught in rows:
            same = msgspec.json.encode([taught.refused, *sorted(taught.adds.items())])
            alike.setdefault((one.group, same), []).append(taught)
        for (group, _), taught_alike in alike.items():
            new, why = taught_alike[0].adds, taught_alike[0].refused
            members = [taught.proven for taught in taught_alike]
            head = f"image group {group}" if group else "no image group"
            title(f"{head}: {plural(len(members), 'node')}")
            names = ", ".join(one.node for one in members[:_NAMED])
            more = f" and {len(members) - _NAMED} more" if len(members) > _NAMED else ""
            facts(
                [
                    ("nodes", names + more),
                    ("worth", ", ".join(sorted({one.worth for one in members}))),
                    *([("cannot be signed", why)] if why else []),
                    *([] if new or why else [("boot", _NOTHING_NEW)]),
                    *((f"adds {name}", entry) for name, found in new.items() for entry in found),
                ]
            )
            if full:
                for one in members:
                    _one(one)
            for note in dict.fromkeys(note for one in members for note in one.notes):
                warn(note)
        if open_tokens:
            names = ", ".join(open_tokens[:_NAMED])
            more = f" and {len(open_tokens) - _NAMED} more" if len(open_tokens) > _NAMED else ""
            say(f"Still to come: {names}{more}.")

    data = {
        "waiting": [
            {
                "node": one.node,
                "group": one.group,
                "ek": one.ek,
                "worth": one.worth,
                "answered": moment(one.answered),
                "remote": one.remote,
                "evidence": one.bundle.evidence.digest.hex(),
                "adds": {name: list(found) for name, found in taught.adds.items()},
                "refused": taught.refused,
                "own": {number: list(found) for number, found in one.own.items()},
                "notes": list(one.notes),
            }
            for one, taught in rows
        ],
        "to_come": list(open_tokens),
    }
    return Document(data=data, text=text)


def taken_page(taken: Taken, path: Path, signed_by: str) -> Document:
    """The nodes that were signed, and those that were not."""
    if taken.edition is None:
        code = int(ExitCode.INCOMPLETE if taken.held else ExitCode.OK)
        data: dict[str, object] = {"file": str(path), "nodes": [], "held": _held(taken.held)}

        def nothing() -> None:
            say("Nothing was signed.")
            _warn_held(taken.held)

        return Document(data=data, text=nothing, exit_code=code)
    made = taken.edition
    page = evidence.edition(made, path, signed_by)

    def text() -> None:
        if len(made.nodes) <= _NAMED:
            assert callable(page.text)
            page.text()
        else:
            ends = made.values.expires
            title(f"{path}: version {made.values.version}, good until {ends:%Y-%m-%d}")
            facts([("signed", plural(len(made.nodes), "node")), ("signed_by", signed_by)])
            for note in dict.fromkeys(made.notes):
                warn(note)
        _warn_held(taken.held)

    code = page.exit_code or int(ExitCode.INCOMPLETE if taken.held else ExitCode.OK)
    return Document(data={**page.data, "held": _held(taken.held)}, text=text, exit_code=code)


def decisions_page(entries: Sequence[Entry]) -> Document:
    """The desk's decisions, one a line."""
    rows = [(one.body.time, one.body.event) for one in entries]

    def text() -> None:
        if not rows:
            say("Nothing was decided yet.")
            return
        lines(
            ("time", "decision", "node", "about"),
            [(moment(time) or "", said.event, said.subject, _about(said)) for time, said in rows],
        )

    data = {
        "decisions": [
            {
                "time": moment(time),
                "event": said.event,
                "decision": said.decision.value,
                "node": said.subject,
                "code": said.code,
                **said.details,
            }
            for time, said in rows
        ]
    }
    return Document(data=data, text=text)


def _about(said: Event) -> str:
    found = [f"{name} {value}" for name, value in said.details.items() if value not in {"", None}]
    return ", ".join([said.code, *found] if said.code else found)


class DeskAnnouncer:
    """The voice of a desk that listens: lines on standard error, or JSON lines."""

    def __init__(self, *, as_json: bool) -> None:
        self._json = as_json
        self._lock = threading.Lock()

    def ready(self, address: str, pin: str) -> None:
        """Announce the address."""
        self._tell(
            f"the desk listens at {address}, key {pin[:16]}",
            event="ready",
            address=address,
            pin=pin,
        )

    def seen(self, seen: Seen) -> None:
        """Announce the end of a visit."""
        who = seen.node or "a stranger"
        if seen.proven is not None and seen.error is None:
            one = seen.proven
            self._tell(
                f"{who} has proven itself: {one.worth}, from {seen.remote}",
                event="proven",
                node=one.node,
                group=one.group,
                ek=one.ek,
                remote=seen.remote,
            )
            return
        if seen.error is None:
            return
        error = seen.error
        self._tell(
            f"{who} from {seen.remote} was refused: {error.code}: {error.what} ({error.where})",
            event="refused",
            node=seen.node,
            code=error.code,
            what=error.what,
            remote=seen.remote,
        )

    def taken(self, what: Taken | SecureTrainError) -> None:
        """Announce what a rule signed, or what kept it from signing."""
        if isinstance(what, SecureTrainError):
            self._tell(
                f"nothing was signed: {what.code}: {what.what} ({what.where})",
                event="not-signed",
                code=what.code,
                what=what.what,
            )
            return
        if what.edition is not None:
            made = what.edition
            names = [one.name for one in made.nodes]
            self._tell(
                f"signed as version {made.values.version}: {', '.join(names)}",
                event="signed",
                version=made.values.version,
                nodes=names,
            )
        for one in what.held:
            self._tell(
                f"{one.proven.node} waits for a person: {one.why}",
                event="held",
                node=one.proven.node,
                why=one.why,
            )

    def _tell(self, line: str, **fields: object) -> None:
        with self._lock:
            if self._json:
                click.echo(json.dumps(fields, sort_keys=True))
                sys.stdout.flush()
            else:
                click.echo(f"securetrain: {printable(line, keep='')}", err=True)


def _one(one: Proven) -> None:
    facts(
        [
            (one.node, f"TPM {one.ek}"),
            ("answered", f"{moment(one.answered)} from {one.remote}"),
            *(("learned", text) for text in one.learned),
            *((f"its own PCR {n}", digest) for n, found in one.own.items() for digest in found),
        ]
    )


def _held(held: Sequence[Held]) -> list[dict[str, str]]:
    return [{"node": one.proven.node, "why": one.why} for one in held]


def _warn_held(held: Sequence[Held]) -> None:
    for one in held:
        warn(f"{one.proven.node} was not signed: {one.why}")
