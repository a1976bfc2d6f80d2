# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The pages of ``sign``, ``convert`` and ``waive``: what was signed just now."""

from collections.abc import Sequence
from pathlib import Path

from securetrain.artifacts.lineage import Waiver
from securetrain.artifacts.statement import DatasetPredicate
from securetrain.report.document import Document, aligned


def dataset(said: DatasetPredicate, digest: str, path: Path) -> Document:
    """A signed dataset."""
    size = sum(file.size for file in said.files)
    rows = [
        ("signed", f"{path}, version {said.seq} of {said.name}"),
        ("digest", digest),
        ("data", f"{len(said.files)} files, {size:,} bytes, {said.format}"),
    ]
    if said.samples is not None:
        rows.append(("samples", f"{said.samples.count:,}, tree {said.samples.root[:16]}"))
    if said.removed:
        rows.append(("removed", f"{len(said.removed)} stretches, which are not served any more"))
    rows += [
        ("grown", f"{file.name}, by {file.size - file.before[-1].size:,} bytes")
        for file in said.files
        if file.before and file.added == said.seq
    ]
    rows += [("split", f"{split.name}: {len(split.files)} files") for split in said.splits]
    return Document(text=aligned(rows, len("samples")))


def safetensors(path: Path, digest: str) -> Document:
    """A signed directory of safetensors."""
    return Document(text=[f"signed {path}", f"digest {digest}"])


def model(path: Path, bundle: Path, resources: int, notes: Sequence[str]) -> Document:
    """A model with a bundle of OpenSSF Model Signing, and what is not in it."""
    text = [f"signed {resources} files or shards of {path}", f"bundle {bundle}"]
    return Document(text=[*text, *(f"note: {note}" for note in notes)])


def converted(old: Path, new: Path, digest: str, key_id: str) -> Document:
    """A checkpoint that was made from another one."""
    data = {"path": str(new), "digest": digest, "key_id": key_id}
    return Document(data=data, text=[f"converted {old} into {new}", f"digest {digest}"])


def waiver(signed: Waiver, path: Path) -> Document:
    """A waiver."""
    rows = [
        ("waiver", str(path)),
        ("checkpoint", f"{signed.digest} of run {signed.run_id}"),
        ("reason", signed.reason),
        ("counts", f"until {signed.expires.isoformat()}, once enough operators have signed"),
    ]
    return Document(text=aligned(rows))
