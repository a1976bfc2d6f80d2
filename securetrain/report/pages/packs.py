# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The answers of ``pack``, ``export`` and ``unpack``."""

from pathlib import Path
from typing import Final

from securetrain.chain import Facts, Packed, Verdict
from securetrain.core.vocabulary import LinkState
from securetrain.report.document import Document, done, facts, picked, plural
from securetrain.report.pages.verification import held_data

MAX_SHOWN: Final = 20


def made(pack: Packed) -> Document:
    """A pack that was written."""
    told = "path manifest num_statements num_documents missing"
    data = picked(pack, told, bytes=pack.size)
    statements = plural(pack.num_statements, "statement")
    counts = f"{statements} in {plural(pack.num_documents, 'document')}, {pack.size:,} bytes"
    head = [("packed", f"{pack.path}: {counts}"), ("manifest", f"sha256:{pack.manifest}")]
    gone = facts((("missing", one) for one in pack.missing), most=MAX_SHOWN)
    return Document(sections=[facts(head), gone], data=data, code=3 if pack.missing else 0)


def exported(facts_: Facts, result: Verdict, kind: str, out: Path) -> Document:
    """A document that was exported."""
    those = {
        state: ", ".join(link for link, one in facts_.links.items() if one is state)
        for state in LinkState
    }
    hashed = sum(one.sha256 is not None for one in facts_.files)
    bare = len(facts_.files) - hashed
    problems = [problem.to_dict() for problem in result.problems]
    told = {"path": out, "format": kind, "links": dict(facts_.links), "problems": problems}
    data = picked(facts_.opened, "digest", num_subjects=hashed, num_unhashed=bare, **told)
    unproven, broken = those[LinkState.MISSING], those[LinkState.BROKEN]
    rows = [
        ("exported", f"{out}: {kind} of {facts_.name}"),
        ("subjects", f"{plural(hashed, 'file')} by SHA-256"),
        ("verified", those[LinkState.VERIFIED] or "nothing"),
        ("unhashed", f"{plural(bare, 'file')}: give --files" if bare else ""),
        ("unproven", f"{unproven}: declared or left out" if unproven else ""),
        ("its word", those[LinkState.CLAIMED]),
        ("left out", f"{broken}: evidence contradicts it" if broken else ""),
    ]
    open_ = 3 if result.missing and not result.required else 0
    return Document(sections=[facts(rows)], data=data, code=result.exit_code or open_)


def unpacked(result: Verdict, out: Path) -> Document:
    """Weights and rows that were written."""
    data = {"path": out, "held": [held_data(one, path=out / one.name) for one in result.pack.held]}
    rows = [("unpacked", f"{out / one.name}: {one.num_bytes:,} bytes") for one in result.pack.held]
    return done(rows, data)
