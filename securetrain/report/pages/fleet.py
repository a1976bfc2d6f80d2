# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The answers of ``fleet``: tokens, what machines have proven, what was signed, the state of it."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from securetrain.attest.fleet import FleetStatus, FleetToken, Lesson, Proven, Taken
from securetrain.core import ExitCode
from securetrain.core.vocabulary import tier_label
from securetrain.ledger import Entry, Event
from securetrain.rendezvous.member import Joined
from securetrain.report.document import (
    Document,
    Row,
    Section,
    Tile,
    facts,
    moment,
    notes,
    picked,
    plural,
    said,
    some,
    table,
    told,
)
from securetrain.report.pages import evidence

_NAMED: Final = 12
"""Nodes that are named in a line of an overview."""
_SHOWN: Final = 20
_NOTHING_NEW: Final = "what the group boots already: nothing is added"
FILE_HEAD: Final = "node,token\n"


def tokens_file(tokens: Sequence[FleetToken]) -> bytes:
    """A CSV of tokens, one node a line."""
    return (FILE_HEAD + "".join(f"{one.node},{one.text()}\n" for one in tokens)).encode()


def tokens_page(tokens: Sequence[FleetToken], path: Path | None, ends: datetime) -> Document:
    """New tokens: alone on standard output, or in a file."""
    lines = [one.text() if len(tokens) == 1 else f"{one.node},{one.text()}" for one in tokens]
    where = f"{path}: " if path is not None else ""
    whom = tokens[0].node if len(tokens) == 1 else f"each of {plural(len(tokens), 'node')}"
    words = said(
        f"{where}a token for {whom}, once, until {ends:%Y-%m-%d %H:%M} UTC",
        "on the machine, as root: securetrain fleet join TOKEN",
    )
    those = [picked(one, "node group", **({} if path else {"token": one.text()})) for one in tokens]
    file = str(path) if path is not None else None
    data = {"file": file, "ends": moment(ends), "tokens": those}
    return Document(answer="" if path else "\n".join(lines), sections=[words], data=data)


def joined_page(joined: Joined) -> Document:
    """The end of ``fleet join`` on the machine."""
    member = joined.membership
    head = facts(
        [
            ("TPM", f"{member.ek} ({joined.worth})"),
            ("image group", member.group or "the one without a name"),
            *(("would be learned", one) for one in joined.learned),
            ("kept in", f"{joined.record} and {joined.attester}"),
            ("coordinator", member.coordinator or ""),
        ],
        title=f"{member.node} has proven itself to {member.desk}",
    )
    words = said(
        "The token is spent. Nothing is signed yet: the operator looks at what waits (fleet"
        " show) and signs it (fleet sign), unless a rule does.",
        f"In jobs, let the node speak with --attester {joined.attester}",
    )
    data = msgspec.to_builtins(member) | picked(joined, "record attester worth learned notes")
    return Document(sections=[head, notes(joined.notes), words], data=data)


def waiting_page(lessons: Sequence[Lesson], open_tokens: Sequence[str], *, full: bool) -> Document:
    """Proofs that wait: by image group and boot, or node by node.

    Args:
        lessons: of the proofs that wait.
        open_tokens: nodes whose token is still to be used.
        full: whether nodes were asked for by name.
    """
    alike: dict[tuple[str, bytes], list[Lesson]] = {}
    for one in lessons:
        same = msgspec.json.encode([one.refused, *sorted(one.adds.items())])
        alike.setdefault((one.proven.group, same), []).append(one)
    sections = [said("" if lessons else "Nothing waits to be signed.")]
    for (group, _), those in alike.items():
        sections += _alike(group, those, full=full)
    sections.append(said(f"Still to come: {some(open_tokens, _NAMED)}." if open_tokens else ""))
    data = {"waiting": [*map(_waiting, lessons)], "to_come": list(open_tokens)}
    return Document(sections=sections, data=data)


def _waiting(one: Lesson) -> dict[str, Any]:
    proven = one.proven
    own, adds = ({name: list(them) for name, them in of.items()} for of in (proven.own, one.adds))
    told = {"answered": moment(proven.answered), "own": own, "adds": adds, "refused": one.refused}
    evidence = proven.bundle.evidence.digest.hex()
    return picked(proven, "node group ek worth remote notes", evidence=evidence, **told)


def _alike(group: str, those: Sequence[Lesson], *, full: bool) -> Iterator[Section]:
    """Proofs of one image group that would add the same."""
    new, why = those[0].adds, those[0].refused
    members = [one.proven for one in those]
    head = f"image group {group}" if group else "no image group"
    yield facts(
        [
            ("nodes", some([one.node for one in members], _NAMED)),
            ("worth", ", ".join(sorted({one.worth for one in members}))),
            ("cannot be signed", why),
            ("boot", "" if new or why else _NOTHING_NEW),
            *((f"adds {name}", entry) for name, found in new.items() for entry in found),
        ],
        title=f"{head}: {plural(len(members), 'node')}",
    )
    for one in members if full else ():
        yield facts(_proven(one))
    yield notes(dict.fromkeys(note for one in members for note in one.notes))


def _proven(one: Proven) -> Iterator[tuple[str, str]]:
    yield one.node, f"TPM {one.ek}"
    yield "answered", f"{moment(one.answered)} from {one.remote}"
    yield from (("learned", text) for text in one.learned)
    for number, found in one.own.items():
        yield from ((f"its own PCR {number}", digest) for digest in found)


def taken_page(taken: Taken, path: Path, signed_by: str) -> Document:
    """The nodes that were signed, and those that were not."""
    held = notes(f"{one.proven.node} was not signed: {one.why}" for one in taken.held)
    more = {"held": [{"node": one.proven.node, "why": one.why} for one in taken.held]}
    nothing, code = {"file": str(path), "nodes": []}, evidence.incomplete(taken.held)
    page = Document(sections=[said("Nothing was signed.")], data=nothing, code=code)
    if (made := taken.edition) is not None:
        page = evidence.edition(made, path, signed_by)
    sections = page.sections
    if made is not None and len(made.nodes) > _NAMED:
        rows = [("signed", plural(len(made.nodes), "node")), ("signed_by", signed_by)]
        head = facts(rows, title=evidence.headline(path, made.values).title)
        sections = [head, notes(dict.fromkeys(made.notes))]
    code = max(code, ExitCode(page.exit_code))
    return Document(sections=[*sections, held], data={**page.data, **more}, code=code)


def decisions_page(entries: Sequence[Entry]) -> Document:
    """The decisions about machines, one a line."""
    told_ = [(moment(one.body.time), one.body.event) for one in entries]
    rows = [(time, event.event, event.subject, _about(event)) for time, event in told_]
    decisions = [
        picked(event, "event decision code", time=time, node=event.subject) | event.details
        for time, event in told_
    ]
    columns = ("time", "decision", "node", "about")
    shown = table(columns, rows, empty="Nothing was decided yet.")
    return Document(sections=[shown], data={"decisions": decisions})


def _about(event: Event) -> str:
    found = [f"{name} {value}" for name, value in event.details.items() if value not in {"", None}]
    return ", ".join([event.code, *found] if event.code else found)


# --- the state of a fleet ------------------------------------------------------------------------


def status_page(status: FleetStatus, written: Path | None = None) -> Document:
    """The state of a fleet. Exit code 3 when a part is not known, or something ends soon."""
    endings = [one for one in status.endings if one.kind != "lease"]
    later = [one for one in endings if one not in status.soon]
    soon = (f"{one.kind} {one.name}: {left(one.ends, status.at)}" for one in status.soon)
    barred = [
        Row(state="BARRED", name=one.subject, text=f"since {one.since}: {one.reason}")
        for one in status.revoked
    ]
    heads = ("node", "group", "tier", "lease", "last evidence", "job")
    nobody = "No node is enrolled, and none was seen."
    sections = [
        facts([("version", str(status.version)), ("at", moment(status.at))]),
        notes(status.problems, state="unknown"),
        notes(soon, state="soon"),
        table(heads, _nodes(status), title="nodes", empty=nobody),
        Section(title="let in no more" if barred else "", rows=barred),
        facts(
            ((one.kind, f"{one.name}: {left(one.ends, status.at)}") for one in later),
            title="next to end" if later else "",
            most=_SHOWN,
        ),
        said(f"{written}: the page" if written is not None else ""),
    ]
    return Document(
        verb="fleet",
        word="COMPLETE" if status.complete else "INCOMPLETE",
        about=status.place,
        tally={tile.name: int(tile.value) for tile in _tiles(status)},
        sections=sections,
        data={**asdict(status), "soon": [asdict(one) for one in status.soon]},
        code=evidence.incomplete(not status.complete),
        tiles=_tiles(status),
    )


def _nodes(status: FleetStatus) -> Iterator[tuple[str, ...]]:
    """The columns of each node; those that are barred or hold no lease come first."""
    for node in sorted(status.nodes, key=lambda one: (not one.barred, one.lease is not None)):
        lease = left(node.lease, status.at) if node.lease is not None else "none"
        yield (
            node.name,
            node.group or "-",
            tier_label(node.tier) if node.tier is not None else "not seen",
            "BARRED" if node.barred else lease,
            moment(node.evidence) if node.evidence is not None else "never",
            node.job or ("-" if node.enrolled else "not enrolled"),
        )


def _tiles(status: FleetStatus) -> tuple[Tile, ...]:
    """The few numbers at the top."""
    enrolled = sum(node.enrolled for node in status.nodes)
    groups = len({node.group for node in status.nodes if node.group})
    return (
        Tile.of("nodes", len(status.nodes), f"{enrolled} enrolled", "plain", "plain"),
        Tile.of("image groups", groups, "", "plain", "plain"),
        Tile.of("leases", status.leases, "", "good", "plain"),
        Tile.of("barred", len(status.revoked), "", "bad", "good"),
        Tile.of("ends soon", len(status.soon), "", "warn", "good"),
        Tile.of("not known", len(status.problems), "", "bad", "good"),
    )


def left(ends: datetime, now: datetime) -> str:
    """The time until a moment, for people."""
    away = abs(ends - now)
    if away < timedelta(hours=2):
        span = plural(int(away.total_seconds()) // 60, "minute")
    elif away < timedelta(days=2):
        span = plural(int(away.total_seconds()) // 3600, "hour")
    else:
        span = plural(away.days, "day")
    return f"ended {span} ago" if ends <= now else f"{span} left"


def moved(place: str) -> Document:
    """The database that a machine's coordinators share their state in from now on."""
    words = (f"{place}: the fleet's state is kept there from now on", "start coordinators again")
    return told(*words, data={"place": place})
