# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The pages of ``verify`` and ``scan``: for people, scripts, code scanning and test reports."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from securetrain.artifacts import (
    NOTHING,
    Examined,
    Expectation,
    Finding,
    Problem,
    SavedResult,
    ScanResult,
    VerifyResult,
)
from securetrain.artifacts.lineage import Link
from securetrain.artifacts.model import ModelResult
from securetrain.artifacts.statement import CheckpointPredicate, DatasetPredicate
from securetrain.policy.load import LoadedPolicy
from securetrain.report import junit, problems, sarif
from securetrain.report.document import Document, aligned, plural
from securetrain.report.outcome import Outcome
from securetrain.report.pieces import safe, wide

MAX_SHOWN: Final = 50
SHOWN_DEPTH: Final = 64
"""Levels of a chain that are shown as a tree."""
Found: TypeAlias = Problem | Finding


def verified(found: Examined, trust_file: Path) -> Document:
    """The outcome of ``verify`` for a checkpoint or dataset."""
    data = to_dict(found.result, found.policy)
    data["expected"] = [_given(one) for one in found.asked]
    data["not_asked"] = list(found.not_asked)
    if found.chain is not None:
        data["chain"] = found.chain.to_dict()
    text = partial(_verified, found, trust_file)
    return _with_scan(problems.of_verify(found.result), data, text, found.scanned)


def saved(result: SavedResult, trust_file: Path) -> Document:
    """The outcome of ``verify`` for what a script saved in another format."""
    return _document(
        problems.of_saved(result), result.to_dict(), partial(_saved, result, trust_file)
    )


def model(result: ModelResult, scanned: ScanResult | None) -> Document:
    """The outcome of ``verify --bundle`` for a model."""
    data = {
        "kind": "model",
        "path": str(result.path),
        "bundle": str(result.bundle),
        "ok": result.ok,
        "exit": int(result.exit_code),
        "signer": result.signer,
        "num_files": result.num_files,
        "num_bytes": result.num_bytes,
        "left_out": list(result.left_out),
        "unsigned": list(result.unsigned),
        "notes": list(result.notes),
        "problems": [problem.to_dict() for problem in result.problems],
    }
    return _with_scan(problems.of_model(result), data, partial(_model, result), scanned)


def scan(result: ScanResult, *, opcodes: bool) -> Document:
    """The findings of ``scan``; with `opcodes`, also all that every pickle does."""
    text = partial(_scan, result, opcodes=opcodes)
    return _document(problems.of_scan(result), result.to_dict(), text)


def to_dict(result: VerifyResult, policy: LoadedPolicy | None) -> dict[str, Any]:
    """A result as plain data."""
    return {
        "kind": str(result.kind),
        "path": str(result.path),
        "ok": result.ok,
        "exit": int(result.exit_code),
        "digest": result.digest,
        "key_ids": sorted(result.key_ids),
        "log_index": None if result.logged is None else result.logged.index,
        "num_files": result.num_files,
        "num_bytes": result.num_bytes,
        "policy": None
        if policy is None
        else {"id": policy.policy.metadata.id, "digest": policy.digest},
        "statement": msgspec.to_builtins(result.statement),
        "problems": [problem.to_dict() for problem in result.problems],
        "truncated": result.truncated,
    }


def _with_scan(
    outcome: Outcome, data: dict[str, Any], text: Callable[[], None], scanned: ScanResult | None
) -> Document:
    """An outcome, with that of a scan of the same directory."""
    if scanned is None:
        return _document(outcome, data, text)
    outcome = problems.with_scan(outcome, scanned)
    more = {"scan": scanned.to_dict(), "exit": outcome.exit_code, "ok": outcome.exit_code == 0}

    def both() -> None:
        text()
        _scan_briefly(scanned)

    return _document(outcome, data | more, both)


def _document(outcome: Outcome, data: dict[str, Any], text: Callable[[], None]) -> Document:
    machine = {
        "sarif": lambda: json.dumps(sarif.render(outcome), indent=2) + "\n",
        "junit": lambda: junit.render(outcome),
    }
    return Document(data=data, text=text, machine=machine, exit_code=outcome.exit_code)


# --- checkpoints and datasets --------------------------------------------------------------------


def _verified(found: Examined, trust_file: Path) -> None:
    result, console = found.result, wide()
    _verdict(console, "VERIFIED", "REFUSED", f"{result.kind} {result.path}", ok=result.ok)
    grid = Table.grid(padding=(0, 2))
    for name, value in (*_facts(result, found.policy, trust_file), *_expected(found)):
        grid.add_row(Text(safe(name)), Text(safe(value)))
    console.print(grid)
    if result.problems:
        count = len(result.problems)
        _problems(console, result.problems, "problem", count)
        if result.truncated:
            console.print(f"There are more; the first {count} are listed.")
        _fixes(console, result.problems)
    if found.chain is not None:
        Console(highlight=False).print(_tree(found.chain))


def _facts(
    result: VerifyResult, policy: LoadedPolicy | None, trust_file: Path
) -> Iterator[tuple[str, str]]:
    if result.key_ids:
        keys = ", ".join(key[:16] for key in sorted(result.key_ids))
        yield "signed by", f"key {keys}, trusted by {trust_file}"
    else:
        yield "signed by", "nobody that this trust root names"
    if result.digest:
        yield "digest", result.digest
    if result.logged is not None:
        seen = "" if result.logged.seen is None else f", seen by {result.logged.seen.isoformat()}"
        origin = result.logged.signed.checkpoint.origin
        yield "logged", f"entry {result.logged.index} of {origin}{seen}"
    match result.statement:
        case CheckpointPredicate() as checkpoint:
            yield from _checkpoint_facts(checkpoint, policy)
        case DatasetPredicate() as dataset:
            yield from _dataset_facts(dataset)
        case None:
            yield "lineage", "unknown: there is no statement that verifies"
    every = ", every one of them" if result.ok else ""
    yield "checked", f"{result.num_files} files, {result.num_bytes:,} bytes{every}"
    if policy is None:
        yield "policy", "none given: integrity and signature only (--policy NAME asks for more)"
    else:
        yield "policy", f"{policy.policy.metadata.id} ({policy.digest[:16]})"


def _expected(found: Examined) -> Iterator[tuple[str, str]]:
    for one in found.asked:
        yield "expected", ", ".join(f"{name} {value}" for name, value in _given(one).items())
    if found.not_asked:
        yield "not asked", f"{', '.join(found.not_asked)} (--expect-... asks)"


def _given(expected: Expectation) -> dict[str, Any]:
    """The fields that were given."""
    fields = msgspec.to_builtins(expected).items()
    return {name: value for name, value in fields if value is not None}


def _checkpoint_facts(
    said: CheckpointPredicate, policy: LoadedPolicy | None
) -> Iterator[tuple[str, str]]:
    yield "name", said.name or "none was signed"
    yield "run", f"{said.run_id or 'not named'}, step {said.step}, checkpoint {said.seq} of the run"
    yield "saved", f"{said.created.isoformat()} by {said.world_size} ranks"
    data = said.dataset
    if data.digest:
        cursor = ", ".join(f"{name} {count}" for name, count in sorted(data.cursor.items()))
        yield "dataset", f"{data.name} ({data.digest[:16]}){', ' if cursor else ''}{cursor}"
    else:
        yield "dataset", "not named"
    under = f"{said.policy.id} ({said.policy.digest[:16]})" if said.policy.digest else "not named"
    if policy is not None and said.policy.digest:
        same = policy.digest == said.policy.digest
        under += ", the one given here" if same else ", another than the one given here"
    yield "made under", under
    judged = said.gradients
    yield "gradients", f"{judged.verdict}: {judged.judged} steps judged, {judged.refused} refused"
    for node in said.nodes:
        yield "node", f"{node.node}: {node.tier}{f' - {node.label}' if node.label else ''}"
    for parent in said.parents:
        yield "parent", f"{parent.role} {parent.digest[:16]}"


def _dataset_facts(said: DatasetPredicate) -> Iterator[tuple[str, str]]:
    yield "dataset", f"{said.name}, version {said.seq}, {len(said.files)} files"
    yield "signed", said.created.isoformat()
    yield "splits", ", ".join(f"{s.name} ({len(s.files)} files)" for s in said.splits)
    if said.licenses:
        yield "licence", ", ".join(said.licenses)
    if said.removed:
        yield "removed", f"{sum(one.length for one in said.removed):,} bytes are not to be read"
    yield from sorted(said.metadata.items())


def _tree(chain: Link) -> Tree:
    """The chain of a checkpoint: a tree as deep as a screen shows one, then a list."""
    branches: dict[int, Tree] = {}
    for depth, link, above in chain.levels():
        where = safe(str(link.path)) if link.path is not None else ""
        head = Text.assemble((link.role, "bold"), f" {link.digest[:16]} ", (where, "dim"))
        if link.problem:
            head.append(f"  BROKEN: {safe(link.problem)}", "red")
        if above is None:
            tree = Tree(head)
        elif depth <= SHOWN_DEPTH:
            tree = branches[id(above)].add(head)
        else:
            tree = branches[id(chain)].add(head)  # a run saves thousands in a row
        for fact in link.facts:
            tree.add(Text(safe(fact)))
        branches[id(link)] = tree
    return branches[id(chain)]


# --- what scripts save ---------------------------------------------------------------------------


def _saved(result: SavedResult, trust_file: Path) -> None:
    console = wide()
    _verdict(console, "VERIFIED", "REFUSED", f"saved files {result.path}", ok=result.ok)
    keys = sorted({key[:16] for one in result.statements for key in one.key_ids})
    by = f"key {', '.join(keys)}, trusted by {trust_file}"
    rows = [("signed by", by if keys else "nobody that this trust root names")]
    for one in result.statements[:MAX_SHOWN]:
        said = one.said
        step = f"step {said.step}" if said.step is not None else "no step named"
        what = said.place if len(said.files) > 1 else f"{said.place}/{said.files[0].name}"
        text = f"{what}: {said.way}, rank {said.rank}, save {said.number}, {step}"
        rows.append(("saved", f"{text}, run {said.run_id}, {said.created.isoformat()}"))
    more = len(result.statements) - MAX_SHOWN
    rows += [("saved", f"and {more} more")] if more > 0 else []
    every = ", every one of them" if result.ok else ""
    rows.append(("checked", f"{result.num_files} files, {result.num_bytes:,} bytes{every}"))
    rows.append(("not shown", "that training made these bytes: a script has them signed"))
    console.print(Text("\n".join(aligned([(name, safe(value)) for name, value in rows]))))
    if result.problems:
        _problems(console, result.problems, "problem", len(result.problems))
        _fixes(console, result.problems)


# --- models and scans ----------------------------------------------------------------------------


def _model(result: ModelResult) -> None:
    console = wide()
    _verdict(console, "VERIFIED", "REFUSED", f"model {result.path}", ok=result.ok)
    rows = [
        ("signed by", safe(result.signer) or "no named signer"),
        ("checked", f"{result.num_files} files, {result.num_bytes:,} bytes"),
    ]
    console.print(Text("\n".join(aligned(rows))))
    for names, why in (
        (result.unsigned, "nobody signed them, and unsigned files are ignored"),
        (result.left_out, "the format, the bundle or you leave them out"),
    ):
        if names:
            shown = ", ".join(names[:MAX_SHOWN])
            more = f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
            head = (f"NOT VERIFIED ({len(names)})", "bold yellow")
            console.print(Text.assemble(head, safe(f"  {shown}{more}: {why}")))
    for note in result.notes[:MAX_SHOWN]:
        console.print(Text.assemble(("note", "yellow"), safe(f"  {note}")))
    for problem in result.problems[:MAX_SHOWN]:
        line = safe(f"{problem.file}: {problem.what}")
        console.print(Text.assemble((problem.code, "red"), f"  {line}"))
    if len(result.problems) > MAX_SHOWN:
        console.print(f"and {len(result.problems) - MAX_SHOWN} more")
    _fixes(console, result.problems)


def _scan(result: ScanResult, *, opcodes: bool) -> None:
    console = wide()
    _verdict(console, "CLEAN", "NOT CLEAN", str(result.path), ok=result.ok)
    pickles = [one for one in result.judged if one.format == "pickle"]
    names = {name for one in pickles for name in one.globals}
    judged = f"{len(result.judged)} files and members, {len(pickles)} of them pickles"
    rows = [
        ("scanned", f"{judged}, {result.num_bytes:,} bytes"),
        ("globals", f"{len(names)} different ones"),
    ]
    if result.passed_over:
        rows.append(("passed by", f"{len(result.passed_over)} files without weights or objects"))
    console.print(Text("\n".join(aligned(rows, len("passed by")))))
    if opcodes:
        for one in pickles:
            console.print(Text(f"\n{safe(one.name)}", "bold"))
            for name in sorted(one.globals):
                console.print(Text(f"  {safe(name)}"))
            counted = "  ".join(f"{name} {count}" for name, count in one.opcodes.most_common())
            console.print(Text(f"  opcodes: {counted}", "dim"))
    if not result.findings:
        return
    count = len(result.findings)
    _problems(console, result.findings, "finding", MAX_SHOWN)
    if count > MAX_SHOWN or result.truncated:
        console.print(f"There are more; the first {min(count, MAX_SHOWN)} are listed.")
    _fixes(console, result.findings)


def _scan_briefly(scanned: ScanResult) -> None:
    """The words that a scan adds to a verdict; nothing when there was nothing to scan."""
    console = wide()
    found = [one for one in scanned.findings if one.code != NOTHING]
    lines = [f"scan     {len(scanned.judged)} files and members hold objects or weights"]
    lines += [safe(f"{one.code}  {one.place}: {one.what}") for one in found]
    if not found:
        lines.append("scan     nothing that a loader would run")
    console.print(Text("\n".join(lines)))


def _verdict(console: Console, good: str, bad: str, subject: str, *, ok: bool) -> None:
    """The first line of a verdict: one word, and about what."""
    word = Text(good, "bold green") if ok else Text(bad, "bold red")
    console.print(Text.assemble(word, safe(f"  {subject}")))


def _problems(console: Console, found: Sequence[Found], noun: str, most: int) -> None:
    """Codes, places and what was found, in a table of at most `most` rows."""
    table = Table(title=plural(len(found), noun), title_justify="left")
    for heading in ("code", "where", "what"):
        table.add_column(heading, overflow="fold")
    for one in found[:most]:
        table.add_row(Text(one.code, "red"), Text(safe(one.place)), Text(safe(one.what)))
    console.print(table)


def _fixes(console: Console, found: Sequence[Found]) -> None:
    """The fix of every code, once."""
    for fix in dict.fromkeys(f"{one.code}: {one.fix}" for one in found):
        console.print(Text(f"fix: {fix}"))
