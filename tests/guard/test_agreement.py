# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One decision for all: whom the rows of all ranks name."""

import pytest

from securetrain.guard.agreement import accused_by_majority

STAGES = [(0, 1, 2), (0, 1, 2), (0, 1, 2), (3, 4, 5), (3, 4, 5), (3, 4, 5)]
"""Two pipeline stages of three ranks."""


@pytest.mark.parametrize(
    ("says", "who"),
    [
        ({}, []),
        ({0: [2], 1: [2], 2: [2]}, [2]),
        ({0: [2], 1: [2]}, [2]),  # the culprit itself is silent
        ({0: [2]}, []),  # a lone liar accuses nobody
        ({0: [4], 1: [4], 2: [4]}, []),  # nor does another group
        ({0: [2], 1: [2], 3: [5], 4: [5]}, [2, 5]),
        ({0: [2, 2, 2]}, []),  # saying it often is saying it once
    ],
)
def test_a_rank_is_named_by_most_of_its_own_group(says, who):
    rows = [tuple(says.get(rank, ())) for rank in range(6)]
    assert accused_by_majority(STAGES, rows) == who


def test_a_rank_alone_with_its_piece_names_itself():
    assert accused_by_majority([(0,), (1,)], [(), (1,)]) == [1]
    assert accused_by_majority([(0,), (1,)], [(1,), ()]) == []
