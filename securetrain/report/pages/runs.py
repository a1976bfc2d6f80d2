# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The answer of ``report``: what a run did and proved; and those of ``drill`` and ``follow``."""

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from securetrain.core import CODES, ExitCode, RunDir
from securetrain.core.errors import SecureTrainError
from securetrain.core.vocabulary import Boundary, State
from securetrain.report.document import (
    Document,
    Row,
    Section,
    Tile,
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
    BoundaryState,
    BoundaryView,
    DrillView,
    LedgerLine,
    Proof,
    ProofState,
    RunRecord,
    json_text,
)
from securetrain.report.run.record import exit_code_of, read_run

if TYPE_CHECKING:
    from securetrain.integrations import Followed

MAX_FINDINGS: Final = 10
_OPEN: Final = (BoundaryState.PARTIAL, BoundaryState.UNKNOWN)


def write_report(run_dir: Path, now: datetime, out: Path | None = None) -> Path:
    """Write a run's report and return its path (`RunDir.report` when `out` is not given).

    Raises:
        UsageError: ST-USAG-002 not a run directory or not writable, ST-USAG-004 the report extra is
            not installed.
    """
    return html.write(page(read_run(run_dir, now)), out or RunDir(run_dir).report)


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
        data=json_text(record),
        code=code,
        tiles=tuple(_tiles(record)),
    )


def _sections(record: RunRecord) -> Iterator[Section]:
    labels = sorted({label for view in record.boundaries for label in view.labels})
    yield facts(_facts(record), label="; ".join(labels))
    if record.ledger.proof.state is ProofState.REFUSED:
        unused = "Nothing that this ledger says is used in this report."
        yield notes([f"ledger {_proof(record.ledger.proof)}. {unused}"], state="refused")
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
    yield "trust root", f"{_proof(trust.proof)}  {trust.digest[:16]}{expires}".strip()
    counts = pairs((count, name) for name, count in ledger.counts.items())
    closed = "closed" if ledger.closed else "not closed"
    words = f"  {ledger.num_entries} entries ({counts}), {closed}" if counts else ""
    yield "ledger", f"{_proof(ledger.proof)}{words}"
    yield "report made", f"{record.made:%Y-%m-%d %H:%M:%S} UTC from {record.run_dir}"


def _proof(proof: Proof) -> str:
    if proof.state is ProofState.REFUSED:
        return f"refused {proof.code}: {proof.what}"
    return proof.state.value


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
    held_out = [point for point in record.metrics if point.val_bits_per_byte is not None]
    for last in held_out[-1:]:
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
    rows = [
        (
            item.name,
            item.proof.state,
            "verified" if item.digest in proven else "not recorded",
            item.digest,
            ", ".join(item.parents) or ("a fresh start" if item.step is not None else ""),
            item.verdict,
        )
        for item in items
    ]
    yield table(
        ("name", "statement", "content", "digest", "made from", "gradients"),
        rows,
        title="dataset and checkpoints",
        empty="Nothing is in the run directory.",
    )
    statements = [
        (
            item.name,
            item.created,
            "" if item.num_bytes is None else f"{item.num_bytes:,}",
            item.num_judged,
            item.num_refused,
            item.dataset or _refused(item.proof) or pairs(sorted(item.metadata.items())),
            item.policy,
            ", ".join(item.proof.key_ids),
        )
        for item in items
    ]
    columns = ("name", "signed", "bytes", "judged", "refused", "dataset", "policy", "signer")
    yield table(columns, statements, title="statements", page_only=True)
    verified = [
        (
            f"{one.path} ({one.purpose or one.kind})",
            "verified" if one.ok else "refused",
            one.digest,
            one.num_files,
            f"{one.num_bytes:,}",
            "; ".join(one.problems) or "none",
        )
        for one in record.verifications
    ]
    yield table(
        ("what", "result", "digest", "files", "bytes", "problems"),
        verified,
        title="content verified",
        empty="No run of securetrain verify is recorded.",
        page_only=True,
    )


def _refused(proof: Proof) -> str:
    return f"{proof.code}: {proof.what}" if proof.state is ProofState.REFUSED else ""


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
    yield Tile(
        name="Boundaries crossed",
        value=f"{len(crossed)} of {len(record.boundaries)}",
        note=f"{refused} refused, {open_ones} with open points",
        tone="bad" if refused else "warn" if open_ones else "good",
    )
    bits, note = "not recorded", ""
    for last in [p for p in record.metrics if p.val_bits_per_byte is not None][-1:]:
        bits = f"{_number(last.val_bits_per_byte)} bits/byte"
        note = f"bigram {last.bigram_bits:.2f}" if last.bigram_bits else ""
    yield Tile(name="Held-out loss", value=bits, note=note)
    signed = [one.proof.state is ProofState.VERIFIED for one in record.checkpoints]
    note = "signatures verified for this report"
    yield _part("Signed checkpoints", signed, "0 of 0", note)
    judged, note = record.guard, ""
    if judged is not None:
        note = f"{len(judged.refused_steps)} refused, {len(judged.exclusions)} exclusions"
    tone = "warn" if judged is None or judged.refused_steps else "good"
    steps = str(judged.num_steps) if judged else "none"
    yield Tile(name="Gradient steps judged", value=steps, note=note, tone=tone)
    held = [drill.ok for drill in record.drills]
    yield _part("Drills held", held, "not run", "attack works on the plain stack, refused by ours")


def _part(name: str, good: Sequence[bool], nothing: str, note: str) -> Tile:
    """A number of things that should all be good."""
    value = f"{sum(good)} of {len(good)}" if good else nothing
    tone = "plain" if not good else "good" if all(good) else "bad"
    return Tile(name=name, value=value, note=note, tone=tone)


def _number(value: float | None) -> str:
    return "not recorded" if value is None else f"{value:.2f}"


# --- drill ---------------------------------------------------------------------------------------


class Attack(msgspec.Struct):
    """An attack of the catalogue, as far as it is listed."""

    id: str
    title: str
    boundary: Boundary
    summary: str


def catalogue(drills: Sequence[object]) -> Document:
    """All drills, without a run."""
    rows = [
        Row(name=one.id, label=one.boundary, text=one.title, detail=(one.summary,))
        for one in msgspec.convert(drills, list[Attack], from_attributes=True)
    ]
    return Document(sections=[Section(rows=rows)], data=json_text(drills))


def drill(result: object, error: SecureTrainError | None) -> Document:
    """One drill, as it ended."""
    found = msgspec.convert(result, DrillView, from_attributes=True)
    row = drill_row(found)
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
    names = "tracker delivered undelivered problem"
    data = {
        "trackers": [picked(one, names) for one in end.told],
        "badLines": end.bad_lines,
        "ignored": end.ignored,
        "refused": None if end.problem is None else end.problem.to_dict(),
    }
    lines = []
    for one in end.told:
        text = f"{one.tracker}: {one.delivered} items delivered"
        if one.undelivered or one.problem:
            text += (
                f", {one.undelivered} not ({one.problem or 'the queue was full'}); they are in"
                f" {run_dir}, and following it again tells all of it"
            )
        lines.append(text)
    if end.bad_lines:
        lines.append(f"metrics.jsonl: {end.bad_lines} lines are none, and were left out")
    if end.ignored:
        lines.append(f"ledger: {end.ignored} entries count for nothing, and were left out")
    return told(*lines, data=json.dumps(data))
