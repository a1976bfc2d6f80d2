# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The pages of ``log``: entries, checkpoints, proofs and witnesses."""

import base64
from collections.abc import Sequence
from pathlib import Path

import click

from securetrain.identity.keys import PrivateKey
from securetrain.identity.log import Logged, SignedCheckpoint
from securetrain.report.document import Document, moment, plural


def begun(folder: Path, origin: str, vkey: str) -> Document:
    """An empty log."""
    data = {"folder": str(folder), "origin": origin, "vkey": vkey}
    return Document(data=data, text=[f"log {origin} in {folder}", vkey])


def appended(envelopes: Sequence[Path], first: int) -> Document:
    """Entries that were added."""
    rows = [{"path": str(path), "index": first + n} for n, path in enumerate(envelopes)]
    return Document(data={"logged": rows}, text=[f"{row['index']}  {row['path']}" for row in rows])


def checkpoint(found: SignedCheckpoint, note: str) -> Document:
    """The state of a log, and the witnesses that saw it."""
    witnesses = {key_id: moment(time) for key_id, time in sorted(found.cosigned.items())}
    state = found.checkpoint
    data = {
        "origin": state.origin,
        "size": state.size,
        "root": state.root.hex(),
        "witnesses": witnesses,
    }
    seen = [f"witness {key_id[:16]} at {time}" for key_id, time in witnesses.items()]
    return Document(data=data, text=[*note.removesuffix("\n").split("\n"), *seen])


def proof(index: int, path: Path) -> Document:
    """A proof that was written."""
    return Document(data={"index": index, "path": str(path)}, text=[f"entry {index}: {path}"])


def logged(found: Logged) -> Document:
    """A proof that holds."""
    seen = "" if found.seen is None else moment(found.seen)
    state, witnesses = found.signed.checkpoint, sorted(found.signed.cosigned)
    data = {
        "origin": state.origin,
        "index": found.index,
        "size": state.size,
        "seen": seen,
        "witnesses": witnesses,
    }
    many = plural(len(witnesses), "witness", "witnesses")
    text = [
        f"LOGGED  entry {found.index} of {state.size} in {state.origin}",
        f"seen by {many}, by enough of them at {seen}",
    ]
    return Document(data=data, text=text)


def cosigned(origin: str, size: int, line: str, *, added: bool, alone: bool) -> Document:
    """The cosignature of a witness; `alone` prints the line and nothing else."""
    data = {"origin": origin, "size": size, "line": line, "added": added}
    if alone:
        return Document(data=data, text=lambda: click.echo(line, nl=False))
    text = [f"cosigned {origin} at size {size}"]
    if not added:
        text.append("the trust root does not name this witness's key: it counts for nobody yet")
    return Document(data=data, text=text)


def witness_key(key: PrivateKey, path: Path) -> Document:
    """The key with which this machine cosigns."""
    spki = base64.b64encode(key.public.spki).decode()
    return Document(data={"key": spki, "key_id": key.key_id, "path": str(path)}, text=[spki])
