# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What may go: old checkpoints of the run itself, and nothing else."""

from pathlib import Path

import pytest

from securetrain.artifacts.lineage.retention import Old, removable


def found(*steps: int) -> list[Old]:
    return [
        Old(path=Path(f"step-{step:08d}"), step=step, seq=seq, digest=f"d{step}")
        for seq, step in enumerate(steps)
    ]


@pytest.mark.parametrize(
    ("keep", "every", "protected", "going"),
    [
        (0, 0, [], []),
        (1, 0, [], [10, 20, 30, 40]),
        (2, 0, [], [10, 20, 30]),
        (9, 0, [], []),
        (2, 20, [], [10, 30]),
        (2, 0, ["d20"], [10, 30]),
    ],
)
def test_the_newest_stay_and_every_so_many(keep, every, protected, going):
    old = removable(found(10, 20, 30, 40, 50), keep=keep, every=every, protected=protected)
    assert [one.step for one in old] == going


def test_newest_is_by_number_not_by_step():
    # A run that went back makes its steps again: what it made last is the newest.
    old = removable(found(10, 40, 20), keep=2, every=0, protected=())
    assert [one.step for one in old] == [10]
