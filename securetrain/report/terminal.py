# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A run's summary on the terminal. What comes from the run is printed as text, never as markup."""

from collections.abc import Mapping, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from securetrain.core import printable
from securetrain.core.vocabulary import State
from securetrain.report import guard_record
from securetrain.report.document import Document
from securetrain.report.model import (
    BoundaryState,
    BoundaryView,
    Proof,
    ProofState,
    RunRecord,
    json_text,
)

_STYLES: Final[Mapping[str, str]] = {
    BoundaryState.CHECKED: "green",
    BoundaryState.PARTIAL: "yellow",
    BoundaryState.UNKNOWN: "yellow",
    BoundaryState.REFUSED: "bold red",
    BoundaryState.NOT_CROSSED: "dim",
    ProofState.VERIFIED: "green",
    ProofState.NOT_RECORDED: "dim",
    State.FAIL: "red",
    State.PASS: "green",
    State.WAIVED: "yellow",
    State.NOT_APPLICABLE: "dim",
}
_BAD_FINDINGS: Final = (State.FAIL, State.UNKNOWN, State.WAIVED)


def page(record: RunRecord) -> Document:
    """The summary, or everything as JSON."""
    data = json_text(record)
    return Document(data=data, text=lambda: show(record, Console()))


def show(record: RunRecord, console: Console) -> None:
    """Print the summary."""
    _header(record, console)
    _boundaries(record, console)
    _training(record, console)
    _artifacts(record, console)
    _findings(record, console)
    _drills(record, console)
    _section(console, "Not proven")
    for limit in record.limits:
        console.print(_join(("  - ", "yellow"), limit))
    if record.problems:
        _section(console, "Files that could not be used")
        for problem in record.problems:
            console.print(_text(f"  - {problem}", style="red"))


def _header(record: RunRecord, console: Console) -> None:
    style = {True: "green", False: "bold red", None: "dim"}[record.outcome_ok]
    console.print(_join((record.run_id, "bold"), "  ", (record.outcome, style)))
    rows = [(fact.name, _text(fact.value)) for fact in record.facts]
    if record.policy:
        policy = record.policy
        rows.insert(0, ("policy", _text(f"{policy.id} {policy.version}  {policy.digest[:16]}")))
    rows.append(("trust root", _proof(record.trust.proof, record.trust.digest[:16])))
    counts = ", ".join(f"{count} {name}" for name, count in record.ledger.counts.items())
    closed = "closed" if record.ledger.closed else "not closed"
    words = f"{record.ledger.num_entries} entries ({counts}), {closed}" if counts else ""
    rows.append(("ledger", _proof(record.ledger.proof, words)))
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(_text(f"  {name}", style="dim"), value)
    console.print(table)


def _boundaries(record: RunRecord, console: Console) -> None:
    _section(console, "Trust boundaries")
    _table(
        console,
        ("boundary", "state", "why"),
        [
            (_text(view.boundary), _word(view.state), _text(_why(view)))
            for view in record.boundaries
        ],
    )


def _why(view: BoundaryView) -> str:
    """The first reasons; what is open leads, for it may be the last of many."""
    is_open = view.state in {BoundaryState.PARTIAL, BoundaryState.UNKNOWN}
    return "; ".join([*([view.label] if is_open else []), *view.reasons[:3]]) or view.label


def _training(record: RunRecord, console: Console) -> None:
    if not record.metrics:
        return
    _section(console, "Training")
    last = record.metrics[-1]
    held_out = [p for p in record.metrics if p.val_bits_per_byte is not None]
    console.print(f"  {last.step} steps, training loss {_number(last.bits_per_byte)} bits/byte")
    if held_out:
        point = held_out[-1]
        console.print(
            f"  held-out {_number(point.val_bits_per_byte)} bits/byte; counting bytes gives"
            f" {_number(point.unigram_bits)}, the byte before {_number(point.bigram_bits)}"
        )
    if record.guard:
        refused = len(record.guard.refused_steps)
        console.print(f"  {record.guard.num_steps} gradient steps judged, {refused} refused")
        for one in record.guard.exclusions:
            since = "" if one.since is None else f" since step {one.since}"
            console.print(_text(f"  rank {one.rank} excluded{since} ({one.codes}): {one.outcome}"))
        if words := guard_record.budget_words(record.guard):
            console.print(_text(f"  {words}"))


def _artifacts(record: RunRecord, console: Console) -> None:
    _section(console, "Dataset and checkpoints")
    items = [*([record.dataset] if record.dataset else []), *record.checkpoints]
    proven = {result.digest for result in record.verifications if result.ok}
    _table(
        console,
        ("name", "statement", "content", "digest", "made from", "gradients"),
        [
            (
                _text(item.name),
                _proof(item.proof, ""),
                _text("verified", "green")
                if item.digest in proven
                else _text("not recorded", "dim"),
                _text(item.digest[:16]),
                _text(", ".join(parent[:16] for parent in item.parents)),
                _text(item.verdict),
            )
            for item in items
        ],
    )


def _findings(record: RunRecord, console: Console) -> None:
    if record.audit is None:
        return
    _section(console, "Preflight audit")
    counts = ", ".join(f"{count} {name}" for name, count in sorted(record.audit.counts.items()))
    console.print(f"  {counts}")
    bad = [finding for finding in record.audit.findings if finding.state in _BAD_FINDINGS]
    _table(
        console,
        ("check", "state", "severity", "finding"),
        [(_text(f.check), _word(f.state), _text(f.severity), _text(f.title)) for f in bad],
    )


def _drills(record: RunRecord, console: Console) -> None:
    if not record.drills:
        return
    _section(console, "Drills")
    _table(
        console,
        ("drill", "plain stack", "securetrain", "held"),
        [
            (
                _text(drill.id),
                _text("attack succeeded" if drill.plain.succeeded else "attack did not succeed"),
                _text(
                    f"refused {drill.hardened.code}" if drill.hardened.refused else "not refused"
                ),
                _text("yes", "green") if drill.ok else _text("no", "bold red"),
            )
            for drill in record.drills
        ],
    )


def _section(console: Console, title: str) -> None:
    console.print()
    console.print(_text(title, style="bold"))


def _table(console: Console, headings: Sequence[str], rows: Sequence[Sequence[Text]]) -> None:
    if not rows:
        console.print(_text("  not recorded", style="dim"))
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    for number, heading in enumerate(headings):
        first = number == 0
        table.add_column(f"  {heading}" if first else heading, overflow="fold", no_wrap=first)
    for row in rows:
        table.add_row(_join("  ", row[0]), *row[1:])
    console.print(table)


def _word(state: str) -> Text:
    return _text(state, style=_STYLES.get(state, ""))


def _proof(proof: Proof, words: str) -> Text:
    if proof.state is ProofState.REFUSED:
        return _text(f"refused {proof.code}: {proof.what}", style="bold red")
    return _join(_word(proof.state), f"  {words}" if words else "")


def _number(value: float | None) -> str:
    return "not recorded" if value is None else f"{value:.2f}"


def _text(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style)


def _join(*parts: str | Text | tuple[str, str]) -> Text:
    """Pieces one after the other: plain, already styled, or (text, style)."""
    joined = Text()
    for part in parts:
        match part:
            case Text():
                joined.append_text(part)
            case str():
                joined.append(printable(part))
            case (words, style):
                joined.append(printable(words), style)
    return joined
