# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The pages of ``pack``, and of ``verify`` about a pack: one line a link."""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from securetrain.chain import Facts, Judged, Packed, PackResult
from securetrain.core.vocabulary import LinkState
from securetrain.policy.load import LoadedPolicy
from securetrain.report import junit, problems, sarif
from securetrain.report.document import Document, plural
from securetrain.report.outcome import Case, Outcome
from securetrain.report.pieces import safe, wide

MAX_SHOWN: Final = 20
_STYLES: Final = {
    LinkState.VERIFIED: "green",
    LinkState.BROKEN: "bold red",
    LinkState.MISSING: "yellow",
    LinkState.NOT_ASKED: "dim",
}


def made(pack: Packed) -> Document:
    """A pack that was written."""
    data = {
        "path": str(pack.path),
        "bytes": pack.size,
        "manifest": pack.manifest,
        "num_statements": pack.num_statements,
        "num_documents": pack.num_documents,
        "missing": list(pack.missing),
    }
    counts = (
        f"{plural(pack.num_statements, 'statement')} in {plural(pack.num_documents, 'document')}"
    )
    lines = [
        f"packed   {pack.path}: {counts}, {pack.size:,} bytes",
        f"manifest sha256:{pack.manifest}",
        *(f"missing  {safe(one)}" for one in pack.missing[:MAX_SHOWN]),
    ]
    if len(pack.missing) > MAX_SHOWN:
        lines.append(f"missing  and {len(pack.missing) - MAX_SHOWN} more (--json lists them)")
    return Document(data=data, text=lines, exit_code=3 if pack.missing else 0)


def verified(result: PackResult, policy: LoadedPolicy | None, trust_file: Path) -> Document:
    """The outcome of ``verify`` for a pack."""
    outcome = Outcome(
        verb="verify",
        root=str(result.path),
        exit_code=int(result.exit_code),
        problems=tuple(map(problems.located, result.problems)),
        checked=(result.path.name,),
        tests=tuple(_cases(result)),
    )
    return Document(
        data=_to_dict(result, policy),
        text=partial(_show, result, policy, trust_file),
        machine={
            "sarif": lambda: json.dumps(sarif.render(outcome), indent=2) + "\n",
            "junit": lambda: junit.render(outcome),
        },
        exit_code=int(result.exit_code),
    )


def _cases(result: PackResult) -> Iterator[Case]:
    """A test for each link of each checkpoint that was asked, and one for everything else."""
    left = list(result.problems)
    links: list[Case] = []
    for judged in result.judged:
        about = f"run {judged.run}, step {judged.step} ({judged.digest[:16]}): "
        told = [one for one in left if one.what.startswith(about)]
        used = []
        for link, verdict in judged.verdicts.items():
            missing = verdict.problem()
            if verdict.state is LinkState.NOT_ASKED:
                continue
            mine = [one for one in told if one.what.startswith(f"{about}{link} ")]
            used += mine
            found = tuple(map(problems.located, mine))
            if missing is not None and not mine and not result.required:
                # Nothing is required, and the answer is incomplete for this.
                found = (replace(problems.located(missing), undecided=True),)
            links.append(
                Case(
                    name=str(link),
                    group=f"step-{judged.step:08d}.{judged.digest[:16]}",
                    problems=found,
                    not_applicable=missing is not None and not found,
                )
            )
        left = [one for one in left if one not in used] if used else left
    yield Case(name=result.path.name, problems=tuple(map(problems.located, left)))
    yield from links


def exported(facts: Facts, result: PackResult, kind: str, out: Path) -> Document:
    """A document that was exported."""
    by_state = {
        state: [str(link) for link, one in facts.links.items() if one is state]
        for state in (LinkState.VERIFIED, LinkState.MISSING, LinkState.BROKEN)
    }
    hashed = sum(one.sha256 is not None for one in facts.files)
    data = {
        "path": str(out),
        "format": kind,
        "digest": facts.digest,
        "num_subjects": hashed,
        "num_unhashed": len(facts.files) - hashed,
        "links": {str(link): str(state) for link, state in facts.links.items()},
        "problems": [problem.to_dict() for problem in result.problems],
    }
    lines = [
        f"exported {out}: {kind} of {facts.name}",
        f"subjects {plural(hashed, 'file')} by SHA-256",
        f"verified {', '.join(by_state[LinkState.VERIFIED]) or 'nothing'}",
    ]
    if hashed < len(facts.files):
        lines.append(f"unhashed {plural(len(facts.files) - hashed, 'file')}: give --files")
    if missing := by_state[LinkState.MISSING]:
        lines.append(f"unproven {', '.join(missing)}: declared or left out")
    if gone := by_state[LinkState.BROKEN]:
        lines.append(f"left out {', '.join(gone)}: evidence contradicts it")
    return Document(data=data, text=lines, exit_code=int(result.exit_code))


def unpacked(result: PackResult, out: Path) -> Document:
    """Weights and rows that were written."""
    data = {
        "path": str(out),
        "held": [
            {
                "path": str(out / one.name),
                "digest": one.opened.digest,
                "steps": one.steps,
                "bytes": one.num_bytes,
            }
            for one in result.held
        ],
    }
    lines = [f"unpacked {out / one.name}: {one.num_bytes:,} bytes" for one in result.held]
    return Document(data=data, text=lines, exit_code=0)


def _to_dict(result: PackResult, policy: LoadedPolicy | None) -> dict[str, Any]:
    return {
        "kind": "pack",
        "path": str(result.path),
        "ok": result.ok,
        "exit": int(result.exit_code),
        "digest": None if result.subject is None else result.subject.digest,
        "policy": None
        if policy is None
        else {"id": policy.policy.metadata.id, "digest": policy.digest},
        "at": result.at,
        "seen": result.seen,
        "num_ancestors": result.num_ancestors,
        "num_documents": result.num_documents,
        "required": sorted(result.required),
        "checkpoints": [_links(one) for one in result.judged],
        "held": [
            {
                "kind": one.opened.kind.value,
                "digest": one.opened.digest,
                "steps": one.steps,
                "bytes": one.num_bytes,
            }
            for one in result.held
        ],
        "problems": [problem.to_dict() for problem in result.problems],
    }


def _links(judged: Judged) -> dict[str, Any]:
    return {
        "run": judged.run,
        "step": judged.step,
        "digest": judged.digest,
        "links": {
            str(link): {
                "state": str(one.state),
                "what": one.what,
                "expected": one.expected,
                "found": one.found,
                "where": one.where,
            }
            for link, one in judged.verdicts.items()
        },
    }


def _show(result: PackResult, policy: LoadedPolicy | None, trust_file: Path) -> None:
    console = wide()
    word, style = ("VERIFIED", "bold green") if result.ok else ("REFUSED", "bold red")
    if not result.ok and not result.problems:
        word, style = "INCOMPLETE", "bold yellow"
    console.print(Text.assemble((word, style), f"  pack {safe(str(result.path))}"))
    grid = Table.grid(padding=(0, 2))
    for name, value in _facts(result, policy, trust_file):
        grid.add_row(Text(name), Text(safe(value)))
    console.print(grid)
    for one in result.judged[:1]:
        table = Table.grid(padding=(0, 2))
        for link, verdict in one.verdicts.items():
            said = verdict.what
            if verdict.expected or verdict.found:
                said += f" (expected {verdict.expected}, found {verdict.found})"
            asked = "*" if link in result.required else " "
            state = Text(str(verdict.state), _STYLES[verdict.state])
            table.add_row(Text(f"{asked} {link}"), state, Text(safe(said)))
        console.print(table)
    for problem in result.problems[:MAX_SHOWN]:
        console.print(Text.assemble((problem.code, "bold red"), f"  {safe(problem.what)}"))
    if len(result.problems) > MAX_SHOWN:
        console.print(f"and {len(result.problems) - MAX_SHOWN} more (--format json lists them)")


def _facts(
    result: PackResult, policy: LoadedPolicy | None, trust_file: Path
) -> Iterator[tuple[str, str]]:
    if result.subject is not None:
        said = result.subject.checkpoint
        keys = ", ".join(key[:16] for key in sorted(result.subject.key_ids))
        yield "signed by", f"key {keys}, trusted by {trust_file}"
        yield "checkpoint", f"run {said.run_id}, step {said.step}, digest {result.subject.digest}"
    else:
        yield "signed by", "nobody that this trust root names"
    yield "chain", f"{plural(result.num_ancestors, 'ancestor')}, {result.num_documents} documents"
    for one in result.held:
        name = f"{one.opened.kind.value} {one.opened.digest[:16]}"
        rows = "" if one.steps is None else f", rows of the steps {one.steps[0]} to {one.steps[1]}"
        yield "holds", f"{name}{rows}: {one.num_bytes:,} bytes, as signed"
    asked = len(result.judged)
    yield "asked", f"the links of {plural(asked, 'checkpoint')}; * is required by the policy"
    if policy is None:
        yield "policy", "none given: nothing is required, and what is missing stays open"
    else:
        yield "policy", f"{policy.policy.metadata.id} ({policy.digest[:16]})"
    yield "judged at", f"{result.at.isoformat()}"
    if result.seen is not None:
        yield "witnessed", f"{result.seen.isoformat()}"
