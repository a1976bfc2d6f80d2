# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The readers of packs: the container, its list of contents, documents of evidence, step records,
and results that a membership names.
"""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import rfc8785

from securetrain.artifacts.statement import context
from securetrain.chain import documents, records
from securetrain.chain.container import Document, Pack, write_pack
from securetrain.chain.packed import claimed_time, contents
from securetrain.chain.packing import CONTENTS_TYPE, PIECE_TYPE, STATEMENT_TYPE, Contents, Entry
from securetrain.chain.rows import RowOrder
from securetrain.chain.store import InMemory
from securetrain.core import canonical
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence import AttestationResult, Submodule, read_named
from securetrain.identity.keys import KeyKind, PrivateKey
from tools.fuzz.engine import Parser

_LIMIT = 1 << 20
_KEY = PrivateKey.generate(KeyKind.P256)


def packs(folder: Path) -> list[Parser]:
    """All of them.

    Args:
        folder: A directory for the file that is read; it is made.
    """
    folder.mkdir(parents=True)
    code = documents.Code(
        files=(documents.CodeFile(module="m", path="m.py", sha256="ab" * 32, size=3),),
        distributions=(documents.Distribution(name="torch", version="2.13.0"),),
    )
    return [
        Parser("pack", lambda: [_seed(folder)], lambda data: _whole(folder / "read", data)),
        Parser(
            "pack-document",
            lambda: [documents.encode(code)],
            lambda data: documents.decode(data, documents.Code),
        ),
        Parser("step-page", _pages, records.read_page),
        Parser("step-records", lambda: [_steps().document], _all_records),
        Parser("named-result", lambda: [_result().sign(_KEY).encode()], _named, share=0.5),
        Parser("canonical-twice", lambda: [documents.encode(code), _steps().document], _same_twice),
    ]


def _steps() -> context.StepPieces:
    order = RowOrder(kind="random", seed=7, split="train", starts=968, seq_len=32, batch_rows=4)
    taken = records.Recorder(run="job-1", order=order)
    for step in range(1, 9):
        taken.add(step=step, loss=5.5 / step, norm=1.25, lr=0.1, verdict="clean", watched=True)
    return taken.taken()


def _pages() -> list[bytes]:
    return list(_steps().pages)


def _all_records(data: bytes) -> object:
    """Read a document of records, and whatever records it names."""
    pieces = InMemory()
    for page in _pages():
        pieces.put(page)
    return records.records_of(pieces, pieces.put(data))


def _result() -> AttestationResult:
    now = datetime(2026, 6, 1, 12, tzinfo=UTC)
    return AttestationResult(
        job="job-1",
        node="node-0",
        key_id="1" * 64,
        tier=NodeTier.TPM,
        label="tpm",
        media_type="a/b",
        evidence="1" * 64,
        policy="2" * 64,
        issued=now,
        expires=now + timedelta(minutes=10),
        submods={"tpm": Submodule(trust_vector={"hardware": 2}, claims={"entries": 5})},
    )


def _named(data: bytes) -> None:
    """Read a token by the digest of the one that was signed: nothing else may come out."""
    try:
        found = read_named(data.decode("ascii"), _result().digest)
    except UnicodeDecodeError:
        return
    if found != _result():
        raise AssertionError("another result of the same name")


def _number(text: str) -> float:
    return int(text) if abs(int(text)) < 1 << 53 else float(text)


def _same_twice(data: bytes) -> None:
    """Read JSON as canonical; what is taken is what RFC 8785 makes of its value."""
    canonical.decode(data, object, canonical=True)
    # To RFC 8785 all numbers are doubles; its library writes large ones as floats only.
    if rfc8785.dumps(json.loads(data, parse_int=_number)) != data:
        raise AssertionError("another spelling")


def _seed(folder: Path) -> bytes:
    subject = Document.of(STATEMENT_TYPE, b'{"payload":"e30="}')
    listed = canonical.encode(Contents(statements=(Entry(statement=subject.digest),)))
    path = folder / "seed"
    path.unlink(missing_ok=True)
    others = [Document.of(CONTENTS_TYPE, listed), Document.of(PIECE_TYPE, b"x" * 700)]
    write_pack(path, subject, others)
    return path.read_bytes()


def _whole(path: Path, data: bytes) -> None:
    """Open a pack and read everything in it."""
    path.write_bytes(data)
    with Pack.open(path) as opened:
        contents(opened)
        claimed_time(opened)
        for digest in opened.layers:
            opened.read(digest, _LIMIT)
