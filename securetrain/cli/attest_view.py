# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What ``securetrain attest`` prints for people.

Facts stand under their names; words are wrapped, digests never, so that they can be copied. A table
is fitted to the terminal with its digests shortened; asked for by name (``--section``) it comes in
full, one row a line.
"""

import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from securetrain.core.text import printable

if TYPE_CHECKING:
    from securetrain.attest.fleet.cache_files import Listing
    from securetrain.attest.fleet.enroll import Edition
    from securetrain.attest.fleet.local import Collected
    from securetrain.attest.fleet.offline import Judgement
    from securetrain.attest.fleet.sections import Fact, Section, Table
    from securetrain.attest.session.state import Revocation

LONG: Final = frozenset({"boot", "ima", "tee-boot"})
"""Sections whose rows are only counted in the overview."""
SHORT: Final = 16
_DIGEST: Final = re.compile(r"(?:[a-z0-9-]+:)?([0-9a-f]{40,})")
_DEVICES: Final = re.compile(r"[0-9a-f]{16}(, [0-9a-f]{16})+")
"""Ids of more than one device: only their number fits into a table."""
_MIN_TEXT: Final = 30


def show_bundle(sections: Sequence["Section"], *, full: bool) -> None:
    """What a bundle says.

    Args:
        sections: of `attest.fleet.describe`.
        full: whether these sections were asked for by name.
    """
    for number, section in enumerate(sections):
        if number:
            click.echo()
        _show(section, full=full)
    if not full:
        click.echo()
        _say("One section in full: --section NAME. Everything: --json.")


def show_collected(collected: "Collected", path: Path) -> None:
    """What was collected, and what is missing."""
    bundle = collected.bundle
    _title(f"{path}: evidence of {bundle.node}", _label(unattested=collected.unattested))
    new = ", made just now" if collected.key_is_new else ""
    asked = "nobody: it asked itself" if bundle.asked_itself else "a verifier"
    rows = [
        ("speaks", collected.speakers),
        ("node key", f"{collected.key_file}{new}"),
        ("asked by", asked),
        ("size", f"{len(bundle.body):,} bytes"),
        *(("missing", note) for note in collected.notes),
    ]
    _rows(rows)
    if collected.unattested:
        _say("No hardware speaks for this node. Whoever is root there can make it say anything.")


def show_question(node: str, question: Path, secret: Path, until: str) -> None:
    """What to do with a question."""
    _title(f"{question}: a question to {node}")
    _rows([("secret", f"{secret}, which stays here"), ("answer by", until)])
    _say("On the node, and then bring the answer back:")
    click.echo(f"  securetrain attest collect --node {printable(node, keep='')} \\")
    click.echo(f"      --question {question.name} --out answer.json")


def show_judgement(judgement: "Judgement", sections: Sequence["Section"], ear: str) -> None:
    """A verdict or a refusal.

    Args:
        judgement: it.
        sections: of `attest.describe_verdict`; none for a refusal.
        ear: what became of the signed result.
    """
    node = printable(judgement.bundle.node, keep="")
    error = judgement.refusal
    if error is not None:
        head = click.style("REFUSED", fg="red", bold=True)
        click.echo(f"{head}  {node}: {error.code}, {error.definition.title}")
        _rows([("where", error.where), ("found", error.what), ("fix", error.fix)])
        return
    assert judgement.verdict is not None, "a judgement is a verdict or a refusal"
    word, colour = ("PROVEN", "green") if judgement.proven else ("OPEN", "yellow")
    result = judgement.verdict.result
    click.echo(f"{click.style(word, fg=colour, bold=True)}  {node}: {result.label}")
    if judgement.exception:
        _rows([("let in by", f"the policy's exception: {judgement.exception}")])
    for section in sections:
        click.echo()
        _show_proven(section)
    if ear:
        click.echo()
        _say(ear)


def show_edition(edition: "Edition", path: Path, signed_by: str) -> None:
    """What was enrolled, and what goes into the policy."""
    values = edition.values
    _title(f"{path}: version {values.version}, good until {values.expires:%Y-%m-%d}")
    for one in edition.nodes:
        click.echo()
        _title(one.name)
        rows = [("TPM", name) for name in one.entry.ek_names]
        rows += [("worth", one.endorsement)] if one.endorsement else []
        rows += [("chip", chip) for chip in one.entry.chips]
        rows += [("device", pdi) for pdi in one.entry.devices]
        rows += [("learned", text) for text in one.learned]
        _rows(rows)
        for note in one.notes:
            _warn(note)
    click.echo()
    _say("In the policy, which lies beside that file:")
    click.echo(
        f"  node:\n    reference_values:\n      file: {path.name}\n      signed_by: [{signed_by}]"
    )


def show_key(path: Path, key_id: str, signed_by: str) -> None:
    """A new key."""
    _title(f"{path}: a new private key; keep it private")
    _rows([("key id", key_id), ("signed_by", signed_by)])


def show_cache(listing: "Listing", folder: Path, problems: Sequence[str]) -> None:
    """What a cache holds, and what could not be had."""
    index = listing.index
    over = "EXPIRED" if listing.expired else ""
    _title(f"{folder}: version {index.version}, good until {index.expires:%Y-%m-%d %H:%M}", over)
    rows = []
    ended = listing.ended()
    for entry in index.entries:
        until = "as long as the cache"
        if entry.expires is not None:
            until = f"{entry.expires:%Y-%m-%d}"
        if f"{entry.kind} {entry.id}" in ended:
            until += " EXPIRED"
        rows.append((entry.kind.value, entry.id, f"{entry.size:,}", until))
    _lines(("kind", "id", "bytes", "good until"), rows)
    for problem in problems:
        _warn(problem)


def show_revocations(entries: Sequence["Revocation"], place: Path) -> None:
    """Who is not let in."""
    if not entries:
        _say(f"Nobody is revoked in {place}.")
        return
    for entry in entries:
        _title(entry.subject)
        _rows([("since", entry.since), ("reason", entry.reason)])


def _show(section: "Section", *, full: bool) -> None:
    _title(section.title, section.label)
    if not (full and section.name in LONG):
        _facts(section.facts)
    if section.table is None or not section.table.rows:
        return
    if full:
        _lines(section.table.columns, section.table.rows)
    elif section.name in LONG:
        _say(f"  --section {section.name} lists all {len(section.table.rows)} entries.")
    else:
        _table(section.table)


def _show_proven(section: "Section") -> None:
    """A section of a verdict: its vector in a line."""
    _title(section.title, section.label)
    rows = [(fact.name, fact.value) for fact in section.facts]
    if section.table is not None:
        affirmed = [claim for claim, what in section.table.rows if what == "affirmed"]
        rows.insert(0, ("affirmed", ", ".join(affirmed) or "nothing"))
    _rows(rows)


def _facts(facts: Iterable["Fact"]) -> None:
    found = list(facts)
    width = max((len(fact.name) for fact in found), default=0)
    for fact in found:
        value = f"{fact.code}: {fact.value}" if fact.code else fact.value
        _row(fact.name, value, width, "red" if fact.code else "")


def _rows(rows: Sequence[tuple[str, str]]) -> None:
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        _row(name, value, width, "")


def _row(name: str, value: str, width: int, colour: str) -> None:
    """``name  value``, its words wrapped below themselves."""
    lines = _wrapped(value, width + 4) or [""]
    head = click.style(printable(name, keep="").ljust(width), dim=True)
    shown = [click.style(line, fg=colour) if colour else line for line in lines]
    click.echo(f"  {head}  " + ("\n" + " " * (width + 4)).join(shown))


def _wrapped(text: str, indent: int) -> list[str]:
    width = max(_width() - indent, _MIN_TEXT)
    return textwrap.wrap(
        printable(text, keep=""), width, break_long_words=False, break_on_hyphens=False
    )


def _width() -> int:
    import shutil

    return shutil.get_terminal_size().columns


def _table(table: "Table") -> None:
    """A table that fits, with its digests shortened."""
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console(markup=False, highlight=False)
    shown = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in table.columns:
        shown.add_column(column, overflow="fold", header_style="dim")
    for row in table.rows:
        cells = (printable(_shortened(cell), keep="") for cell in row)
        shown.add_row(*(Text(cell, "red bold" if _is_bad(cell) else "") for cell in cells))
    from rich.padding import Padding

    console.print(Padding(shown, (0, 0, 0, 2)))


def _lines(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table in full, one row a line."""
    every = [tuple(columns), *(tuple(printable(cell, keep="") for cell in row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]
    for number, row in enumerate(every):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        line = f"  {'  '.join(cells)}".rstrip()
        click.echo(click.style(line, dim=True) if number == 0 else line)


def _shortened(cell: str) -> str:
    if _DEVICES.fullmatch(cell):
        return str(cell.count(",") + 1)
    return _DIGEST.sub(lambda match: match[1][:SHORT] + "...", cell)


def _is_bad(cell: str) -> bool:
    return cell in {"DIFFERS", "VIOLATION"} or cell.startswith("ST-")


def _title(text: str, label: str = "") -> None:
    tail = f"  {click.style(printable(label, keep=''), fg='yellow', bold=True)}" if label else ""
    click.echo(click.style(printable(text, keep=""), bold=True) + tail)


def _label(*, unattested: bool) -> str:
    from securetrain.core.vocabulary import UNATTESTED

    return UNATTESTED if unattested else ""


def _say(text: str) -> None:
    click.echo("\n".join(_wrapped(text, 0)))


def _warn(text: str) -> None:
    lines = _wrapped(text, 4)
    click.echo("  " + click.style("! " + "\n    ".join(lines), fg="yellow"))
