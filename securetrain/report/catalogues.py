# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The pages of ``catalogue``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from securetrain.artifacts.catalogue import Editor, Entry
from securetrain.report.document import Document, plural
from securetrain.report.pieces import safe


def begun(folder: Path, root: Path, threshold: int, signers: int) -> Document:
    """A new catalogue."""
    return Document(
        text=[
            f"made an empty catalogue in {folder}; {threshold} of {signers} signers must sign",
            f"root {root}: give it to readers by another way than the catalogue",
        ]
    )


def changes(editor: Editor) -> list[str]:
    """The changes that a draft makes, a line each."""
    before, after = editor.entries, editor.drafted
    if after is None:
        return ["nothing: what is published, for another term"]
    lines = [f"remove {name}" for name in sorted(before.keys() - after.keys())]
    for name, entry in sorted(after.items()):
        if before.get(name) != entry:
            verb = "change" if name in before else "add"
            lines.append(f"{verb} {name}: {entry.kind} {entry.digest} at {safe(entry.location)}")
    return lines or ["nothing: the same entries"]


def drafted(editor: Editor, folder: Path) -> Document:
    """A draft that was changed."""
    lines = changes(editor)
    return Document(
        data={"folder": str(folder), "changes": lines, "signed_by": []},
        text=[*lines, f"a draft: {plural(editor.threshold, 'signature')} needed"],
    )


def signed(editor: Editor, folder: Path, changed: list[str], *, published: bool) -> Document:
    """A draft that was signed, and published if enough have."""
    have = editor.signed_by
    if published:
        state = f"published in {folder}"
    else:
        state = f"signed by {len(have)}, {editor.threshold} must; then a publisher signs"
    data = {
        "folder": str(folder),
        "changes": changed,
        "signed_by": have,
        "published": published,
    }
    return Document(data=data, text=[*changed, state])


def shown(entries: Mapping[str, Entry], folder: Path | str) -> Document:
    """Everything that a catalogue names."""
    data: dict[str, Any] = {
        "catalogue": str(folder),
        "entries": {name: msgspec.to_builtins(entry) for name, entry in sorted(entries.items())},
    }
    text = [
        f"{name}  {entry.kind} {entry.digest[:16]}  {safe(entry.location)}"
        for name, entry in sorted(entries.items())
    ]
    return Document(data=data, text=text or ["it names nothing"])


def exported(layout: Path) -> Document:
    """An OCI layout that was written."""
    return Document(text=[f"wrote {layout}"])
