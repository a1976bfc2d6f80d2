# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The readers of packs: the container, its list of contents, and documents of evidence."""

from pathlib import Path

from securetrain.chain import documents
from securetrain.chain.container import Document, Pack, write_pack
from securetrain.chain.packed import claimed_time, contents
from securetrain.chain.packing import CONTENTS_TYPE, PIECE_TYPE, STATEMENT_TYPE, Contents, Entry
from securetrain.core import canonical
from tools.fuzz.engine import Parser

_LIMIT = 1 << 20


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
    ]


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
