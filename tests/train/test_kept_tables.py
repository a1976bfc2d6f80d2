# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Tables are kept whole or not at all, under their digests, and within the limit of evidence."""

import errno
import hashlib
import os
from pathlib import Path

import pytest

from securetrain.chain.store import PIECE_LIMIT, EvidenceStore
from securetrain.core.errors import UsageError
from securetrain.train import kept_tables
from tests.vocabulary import refused

DATA = bytes(range(256)) * 40
DIGEST = hashlib.sha256(DATA).hexdigest()


def test_a_table_is_kept_under_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = kept_tables.keeper_of_tables(tmp_path / "tables")
    keep(DIGEST, DATA)
    keep(DIGEST, DATA)  # once more, as after a rollback
    # A kernel may write less than it was given.
    small = b"a few bytes"
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
    keep(hashlib.sha256(small).hexdigest(), small)
    store = EvidenceStore(tmp_path / "tables")
    assert store.get(DIGEST) == DATA
    assert store.get(hashlib.sha256(small).hexdigest()) == small
    assert len(list((tmp_path / "tables").iterdir())) == 2


def test_a_full_disk_leaves_no_half_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, calls = os.write, [0]

    def full(fd: int, data: bytes) -> int:
        calls[0] += 1
        if calls[0] > 1:
            raise OSError(errno.ENOSPC, "no space")
        return write(fd, data[:100])

    monkeypatch.setattr(os, "write", full)
    refused(UsageError, "ST-USAG-006", kept_tables.keeper_of_tables(tmp_path), DIGEST, DATA)
    assert list(tmp_path.iterdir()) == []


def test_a_table_above_the_limit_of_evidence_is_refused_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert PIECE_LIMIT == 64 << 20
    monkeypatch.setattr(kept_tables, "PIECE_LIMIT", len(DATA))
    keep = kept_tables.keeper_of_tables(tmp_path)
    keep(DIGEST, DATA)
    error = refused(UsageError, r"limit is", keep, "0" * 64, DATA + b"x")
    assert error.code == "ST-USAG-001"
    assert "tables: false" in error.fix
    assert [path.name for path in tmp_path.iterdir()] == [DIGEST]
