# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Files that a statement of ours names: numbers and hashes, in no format that others know.

Nothing is verified here. Whoever lists a file as data gains nothing by it: only "bytes of no known
format" is forgiven, and what is a pickle, a program or an archive is judged as one.
"""

import base64
import binascii
from collections.abc import Iterator
from typing import Final

from securetrain.artifacts.scan import documents
from securetrain.artifacts.scan.remarks import DATA, Remark
from securetrain.artifacts.statement.statements import claimed_kind
from securetrain.artifacts.tree.layout import bad_name

MAX_FILES: Final = 1 << 20


def judge(tree: object, data: bytes) -> Iterator[Remark]:
    """The data files and hash tables that a statement names."""
    kind = claimed_kind(data)
    if kind is None or not isinstance(tree, documents.Pairs):
        return
    try:
        payload = documents.of_json(base64.b64decode(tree.text("payload"), validate=True))
    except (ValueError, binascii.Error):
        return
    files = _items(_pairs(payload, "predicate"), "files")
    for one in files[:MAX_FILES]:
        name = one.text("name") if isinstance(one, documents.Pairs) else ""
        if name and not bad_name(kind, name):
            yield Remark(DATA, name)
            yield Remark(DATA, kind.table_of(name))


def _pairs(tree: object, key: str) -> object:
    return next(tree.of(key), None) if isinstance(tree, documents.Pairs) else None


def _items(tree: object, key: str) -> list[object]:
    found = _pairs(tree, key)
    return found if isinstance(found, list) else []
