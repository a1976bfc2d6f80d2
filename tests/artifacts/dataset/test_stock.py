# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Controls: what reading a dataset without verifying makes of the tampering that readers refuse."""

from pathlib import Path

import numpy as np
import pytest

TOKENS = np.arange(20_000, dtype=np.uint16)


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.bin"
    path.write_bytes(TOKENS.tobytes())
    return path


def write_at(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def test_a_memory_map_reads_a_flipped_bit(tokens: Path) -> None:
    """T44."""
    write_at(tokens, 10_000, b"\xff")
    rows = np.memmap(tokens, dtype=np.uint16, mode="r")
    assert (rows != TOKENS).sum() == 1


def test_a_memory_map_changes_after_it_was_read(tokens: Path) -> None:
    """T50."""
    rows = np.memmap(tokens, dtype=np.uint16, mode="r")
    row = rows[5000:5010]
    before = row.copy()
    write_at(tokens, 10_000, bytes(20))
    assert not np.array_equal(row, before)


def test_a_memory_map_takes_what_was_appended(tokens: Path) -> None:
    """T47; and T48, of a file that is shorter than it was."""
    with tokens.open("ab") as file:
        file.write(bytes(100))
    assert len(np.memmap(tokens, dtype=np.uint16, mode="r")) == len(TOKENS) + 50
    tokens.write_bytes(TOKENS[:10].tobytes())
    assert len(np.memmap(tokens, dtype=np.uint16, mode="r")) == 10


def test_lines_are_read_in_whatever_order_they_lie(tmp_path: Path) -> None:
    """T46."""
    path = tmp_path / "a.jsonl"
    path.write_text("two\none\none\n")
    assert path.read_text().splitlines() == ["two", "one", "one"]
