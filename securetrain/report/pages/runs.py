# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The answer of ``report``: what a run did and proved; and those of ``drill`` and ``follow``."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from securetrain.core import CODES, ExitCode, RunDir, holding
from securetrain.core.errors import SecureTrainError
from securetrain.core.vocabulary import State
from securetrain.report.document import (
    Document,
    Row,
    Section,
    Tile,
    columns,
    facts,
    notes,
    pairs,
    picked,
    said,
    table,
    told,
)
from securetrain.report.graph import graphs, plots
from securetrain.report.graph.templating import rendered
from securetrain.report.render import html
from securetrain.report.run import guard
from securetrain.report.run.model import (
    ArtifactView,
    BoundaryState,
    BoundaryView,
    DrillView,
    LedgerLine,
    Proof,
    ProofState,
    RunRecord,
    SaveView,
    VerificationView,
    json_text,
)
from securetrain.report.run.record import exit_code_of, read_run

if TYPE_CHECKING:
    from securetrain.integrations import Followed

MAX_FINDINGS: Final = 10
MAX_SAVES: Final = 20
SAVED: Final = (
    "By the word of the ledger, the newest first. Each lies where the script put it, its statement"
    " beside it; 'securetrain verify' reads every byte."
)
_OPEN: Final = (BoundaryState.PARTIAL, BoundaryState.UNKNOWN)


def write_report(run_dir: Path, now: datetime, out: Path | None = None) -> Path:
    """Write a run's report and return its path (`RunDir.report` when `out` is not given).

    Raises:
        UsageError: ST-USAG-002 not a run directory or not writable, ST-USAG-004 the report extra is
            not installed.
    """
    with holding(run_dir) if run_dir.is_dir() else nullcontext(run_dir) as held:
        return html.write(page(read_run(held, now)), out or RunDir(held).report)


def page(record: RunRecord) -> Document:
    """A run: boundaries, training, lineage, findings, drills, and what was not proven."""
    code = exit_code_of(record)
    ended = "NOT KNOWN" if record.outcome_ok is None else "OK"
    words = {ExitCode.OK: ended, ExitCode.FAILURE: "FAILED"}
    return Document(
        verb="report",
        word=words.get(code, "NOT TO BE RELIED ON"),
        about=record.run_id,
        sentence=f"outcome: {record.outcome}",
        sections=list(_sections(record)),
        data=json_text(_told(record)),
        code=code,
        tiles=tuple(_tiles(record)),
    )


def _told(record: RunRecord) -> RunRecord:
    """The record as programs read it: what a script has saved is among its checkpoints."""
    saves = (
        ArtifactView(
            name=one.name,
            proof=Proof(what=f"signed as it was written, by the ledger's entry {one.seq}"),
            created=one.time.isoformat(),
            metadata={name: str(getattr(one, name)) for name in ("way", "rank", "number", "files")},
            step=one.step,
        )
        for one in record.ledger.saves
    )
    return msgspec.structs.replace(record, checkpoints=(*record.checkpoints, *saves))


def _sections(record: RunRecord) -> Iterator[Section]:
    labels = sorted({label for view in record.boundaries for label in view.labels})
    yield facts(_facts(record), label="; ".join(labels))
    if record.ledger.proof.state is ProofState.REFUSED:
        unused = "Nothing that this ledger says is used in this report."
        yield notes([f"ledger {record.ledger.proof}. {unused}"], state="refused")
    yield graphs.boundary_table(
        record.boundaries,
        ("boundary", "state", "why"),
        [(view.boundary, view.state, _why(view)) for view in record.boundaries],
        ranks=sorted({point.rank for point in record.guard.points}) if record.guard else (),
        lead="States are computed from the verified ledger, the signed statements and the recorded"
        " audit; none is claimed by the run.",
    )
    yield said(
        *record.limits,
        title="what this run did not prove",
        lead="Read this before you rely on the rest.",
    )
    if record.problems:
        yield said(*record.problems, title="files of this run that could not be used")
    yield from _training(record)
    yield from _artifacts(record)
    yield from _audit(record)
    drills = [drill_row(one, about=True) for one in record.drills]
    yield Section(title="drills", rows=drills, empty="No drill is recorded.", page_only=not drills)
    columns = ("#", "time (UTC)", "writer", "boundary", "decision", "event", "details")
    ledger = record.ledger
    for title, lines in (("refusals", ledger.refusals), ("last entries", ledger.last)):
        if lines:
            yield table(columns, map(_line, lines), title=f"ledger: {title}", page_only=True)


def _facts(record: RunRecord) -> Iterator[tuple[str, str]]:
    policy, trust, ledger = record.policy, record.trust, record.ledger
    if policy is not None:
        yield "policy", f"{policy.id} {policy.version}  {policy.digest[:16]}"
    yield from ((fact.name, fact.value) for fact in record.facts)
    expires = f", expires {trust.expires:%Y-%m-%d}" if trust.expires is not None else ""
    yield "trust root", f"{trust.proof}  {trust.digest[:16]}{expires}".strip()
    counts = pairs((count, name) for name, count in ledger.counts.items())
    closed = "closed" if ledger.closed else "not closed"
    words = f"  {ledger.num_entries} entries ({counts}), {closed}" if counts else ""
    yield "ledger", f"{ledger.proof}{words}"
    yield "report made", f"{record.made:%Y-%m-%d %H:%M:%S} UTC from {record.run_dir}"


def _why(view: BoundaryView) -> str:
    """The reasons; what is open leads, for it may be the last of many."""
    return "; ".join([*([view.label] if view.state in _OPEN else []), *view.reasons]) or view.label


def _training(record: RunRecord) -> Iterator[Section]:
    seen = record.guard
    yield said(
        *_trained(record),
        title="training",
        lead="Each rank publishes a small sketch of its gradient before the reduction; the guard"
        " compares the ranks with each other, with earlier steps, and with the reduced result.",
        empty="No metrics are recorded.",
        figure=partial(_plots, record) if record.metrics or seen else None,
    )
    if seen is not None and seen.timeline:
        steps = [("" if e.step is None else e.step, e.what, e.why) for e in seen.timeline]
        yield table(("step", "what", "why"), steps, title="what the guard did", page_only=True)
    if seen is not None and seen.reasons:
        yield said(*seen.reasons, title="refused steps", page_only=True)


def _trained(record: RunRecord) -> Iterator[str]:
    seen = record.guard
    for last in record.metrics[-1:]:
        yield f"{last.step} steps, training loss {_number(last.bits_per_byte)} bits/byte"
    for last in record.held_out[-1:]:
        yield (
            f"held-out {_number(last.val_bits_per_byte)} bits/byte; counting bytes gives"
            f" {_number(last.unigram_bits)}, the byte before {_number(last.bigram_bits)}"
        )
    if seen is None:
        return
    yield f"{seen.num_steps} gradient steps judged, {len(seen.refused_steps)} refused"
    for one in seen.exclusions:
        since = "" if one.since is None else f" since step {one.since}"
        words = f"rank {one.rank} excluded{since} ({one.codes}): {one.outcome}"
        yield f"{words}; {one.evidence}; {one.effect}" if one.evidence else words
    yield guard.budget_words(seen)


def _plots(record: RunRecord) -> str:
    drawn = plots.draw(record.metrics, record.guard)
    return rendered("plots.html.j2", plots=drawn) if drawn else ""


def _artifacts(record: RunRecord) -> Iterator[Section]:
    items = [*([record.dataset] if record.dataset else []), *record.checkpoints]
    proven = {result.digest for result in record.verifications if result.ok}
    made: Mapping[str, Callable[[ArtifactView], object]] = {
        "name": attrgetter("name"),
        "statement": attrgetter("proof.state"),
        "content": lambda one: "verified" if one.digest in proven else "not recorded",
        "digest": attrgetter("digest"),
        "made from": lambda one: ", ".join(one.parents) or ("" if one.step is None else _FRESH),
        "gradients": attrgetter("verdict"),
    }
    saves, empty = record.ledger.saves, "Nothing is in the run directory."
    shown = {"checkpoints": record.checkpoints[-MAX_SAVES:], "saves": saves[-MAX_SAVES:]}
    figure = partial(rendered, "saved.html.j2", **shown) if any(shown.values()) else None
    if items or not saves:
        drawn = None if saves else figure
        yield columns(items, made, title="dataset and checkpoints", empty=empty, figure=drawn)
    if saves:
        told = {"title": "saves of the script, signed as they were written", "lead": SAVED}
        yield columns(saves[::-1], _SAVES, most=MAX_SAVES, figure=figure, **told)
    yield columns(items, _STATEMENTS, title="statements", page_only=True)
    empty, found = "No run of securetrain verify is recorded.", record.verifications
    yield columns(found, _VERIFIED, title="content verified", empty=empty, page_only=True)


_FRESH: Final = "a fresh start"
_SAVES: Final[Mapping[str, Callable[[SaveView], object]]] = {
    "#": attrgetter("seq"),
    "what": attrgetter("name"),
    "way": attrgetter("way"),
    "by": attrgetter("rank"),
    "step": lambda one: "" if one.step is None else one.step,
    "files": attrgetter("files"),
}
_STATEMENTS: Final[Mapping[str, Callable[[ArtifactView], object]]] = {
    "name": attrgetter("name"),
    "signed": attrgetter("created"),
    "bytes": lambda one: "" if one.num_bytes is None else f"{one.num_bytes:,}",
    "judged": attrgetter("num_judged"),
    "refused": attrgetter("num_refused"),
    "dataset": lambda one: one.dataset or one.proof.why or pairs(sorted(one.metadata.items())),
    "policy": attrgetter("policy"),
    "signer": lambda one: ", ".join(one.proof.key_ids),
}
_VERIFIED: Final[Mapping[str, Callable[[VerificationView], object]]] = {
    "what": lambda one: f"{one.path} ({one.purpose or one.kind})",
    "result": lambda one: "verified" if one.ok else "refused",
    "digest": attrgetter("digest"),
    "files": attrgetter("num_files"),
    "bytes": lambda one: f"{one.num_bytes:,}",
    "problems": lambda one: "; ".join(one.problems) or "none",
}


def _audit(record: RunRecord) -> Iterator[Section]:
    audit = record.audit
    if audit is None:
        yield Section(title="preflight audit", empty="No audit is recorded.", page_only=True)
        return
    counts = pairs((count, name) for name, count in sorted(audit.counts.items()))
    yield said(counts, title="preflight audit")
    rows = [
        Row(
            state=one.state,
            name=one.check,
            label=one.severity,
            text=one.title,
            source=one.reason,
            fix=one.remediation if one.state in {State.FAIL, State.UNKNOWN} else "",
            about=": ".join(filter(None, (one.subject, one.evidence))),
        )
        for one in audit.findings
    ]
    yield Section(title="findings of the audit", rows=rows, most=MAX_FINDINGS)


def _line(one: LedgerLine) -> tuple[object, ...]:
    event = " ".join(filter(None, (one.event, one.code, one.subject)))
    time = f"{one.time:%H:%M:%S}"
    return one.seq, time, one.writer, one.boundary, one.decision, event, one.details


def _tiles(record: RunRecord) -> Iterator[Tile]:
    """The few numbers at the top."""
    crossed = [v for v in record.boundaries if v.state is not BoundaryState.NOT_CROSSED]
    refused = sum(view.state is BoundaryState.REFUSED for view in crossed)
    open_ones = sum(view.state in _OPEN for view in crossed)
    tone = "bad" if refused else "warn" if open_ones else "good"
    note = f"{refused} refused, {open_ones} with open points"
    yield Tile("Boundaries crossed", f"{len(crossed)} of {len(record.boundaries)}", note, tone)
    bits, note = "not recorded", ""
    for last in record.held_out[-1:]:
        bits = f"{_number(last.val_bits_per_byte)} bits/byte"
        note = f"bigram {last.bigram_bits:.2f}" if last.bigram_bits else ""
    yield Tile("Held-out loss", bits, note)
    signed = [one.proof.state is ProofState.VERIFIED for one in record.checkpoints]
    yield _part("Signed checkpoints", signed, "0 of 0", "signatures verified for this report")
    if saves := record.ledger.saves:
        yield Tile("Signed saves", str(len(saves)), "by the word of the ledger", "good")
    steps, note, tone = "none", "", "warn"
    if (judged := record.guard) is not None:
        note = f"{len(judged.refused_steps)} refused, {len(judged.exclusions)} exclusions"
        steps, tone = str(judged.num_steps), "warn" if judged.refused_steps else "good"
    yield Tile("Gradient steps judged", steps, note, tone)
    held = [drill.ok for drill in record.drills]
    yield _part("Drills held", held, "not run", "attack works on the plain stack, refused by ours")


def _part(name: str, good: Sequence[bool], nothing: str, note: str) -> Tile:
    """A number of things that should all be good."""
    value = f"{sum(good)} of {len(good)}" if good else nothing
    tone = "plain" if not good else "good" if all(good) else "bad"
    return Tile(name, value, note, tone)


def _number(value: float | None) -> str:
    return "not recorded" if value is None else f"{value:.2f}"


# --- drill ---------------------------------------------------------------------------------------


def catalogue(drills: Sequence[Any]) -> Document:
    """All drills, without a run."""
    rows = [
        Row(name=one.id, label=one.boundary, text=one.title, detail=(one.summary,))
        for one in drills
    ]
    return Document(sections=[Section(rows=rows)], data=json_text(drills))


def drill(result: object, error: SecureTrainError | None) -> Document:
    """One drill, as it ended."""
    row = drill_row(msgspec.convert(result, DrillView, from_attributes=True))
    if error is not None:
        row = replace(row, source=str(error))
    if error is not None and error.code == "ST-DRIL-004":
        row = replace(row, state="not run", detail=())
    return Document(sections=[Section(rows=[row])], code=ExitCode.OK)


def drill_row(found: DrillView, *, about: bool = False) -> Row:
    """A drill: the attack on the plain stack, and on ours; `about` keeps the evidence apart."""
    plain, hardened = found.plain, found.hardened
    attack = "attack succeeded" if plain.succeeded else "attack did not succeed: proves nothing"
    held = hardened.refused and not hardened.succeeded
    outcome = f"refused {hardened.code}" if held else "NOT refused"
    lines = (
        f"plain stack: {attack}{_seconds(plain.seconds)}",
        *(() if about else (plain.evidence,)),
        f"securetrain: {outcome}{_seconds(hardened.seconds)}",
        *(() if about else (hardened.evidence,)),
    )
    return Row(
        state="held" if found.ok else "failed",
        name=found.id,
        text=found.title,
        detail=lines,
        about=f"plain stack: {plain.evidence}; securetrain: {hardened.evidence}" if about else "",
    )


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f" ({seconds:.1f} s)"


def results(found: Sequence[object], problems: Collection[str]) -> Document:
    """The results of a run; each one has been shown as it came.

    Args:
        found: The drills' results.
        problems: Their codes, without those that hold.
    """
    worst = min((CODES[problem].exit for problem in problems), default=ExitCode.OK)
    return Document(data=json_text({"ok": not problems, "drills": found}), code=worst)


# --- follow --------------------------------------------------------------------------------------


def followed(end: "Followed", run_dir: Path) -> Document:
    """The end of telling a run to trackers, and what they were not told."""
    data = {
        "trackers": [picked(one, "tracker delivered undelivered problem") for one in end.told],
        "badLines": end.bad_lines,
        "ignored": end.ignored,
        "refused": None if end.problem is None else end.problem.to_dict(),
    }
    again = f"they are in {run_dir}, and following it again tells all of it"
    lines = []
    for one in end.told:
        why = one.problem or ("the queue was full" if one.undelivered else "")
        rest = f", {one.undelivered} not ({why}); {again}" if why else ""
        lines.append(f"{one.tracker}: {one.delivered} items delivered{rest}")
    if end.bad_lines:
        lines.append(f"metrics.jsonl: {end.bad_lines} lines are none, and were left out")
    if end.ignored:
        lines.append(f"ledger: {end.ignored} entries count for nothing, and were left out")
    return told(*lines, data=json.dumps(data))
