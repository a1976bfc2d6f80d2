# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import pytest

from securetrain.core.errors import UsageError
from securetrain.parallel.degrees import Degrees, RequestedDegrees, nearest_divisor, resolve_degrees
from tests.tables import items
from tests.vocabulary import refused


@items(
    "replicate, shard, world, expected",
    (1, None, 1, (1, 1)),
    (1, None, 8, (1, 8)),
    (2, None, 8, (2, 4)),
    (8, 1, 8, (8, 1)),
    (2, 2, 4, (2, 2)),
)
def test_degrees_that_fit(replicate, shard, world, expected):
    wanted = RequestedDegrees(dp_replicate=replicate, dp_shard=shard)
    degrees = resolve_degrees(wanted, world=world, where="job.yaml")
    assert (degrees.dp_replicate, degrees.dp_shard) == expected
    assert degrees.world == degrees.dp == world


@items(
    "replicate, shard, world, reason, fix",
    (3, None, 8, "dp_replicate 3 is 3, which does not divide 8", "dp_replicate: 2 and dp_shard: 4"),
    (2, 2, 8, "is 4 ranks, but there are 8", "dp_shard: 4"),
    (1, 3, 2, "is 3 ranks, but there are 2", "start 3 processes"),
    (0, 1, 4, "at least 1", "dp_replicate: 1"),
    (1, 0, 4, "at least 1", "dp_shard: 1"),
)
def test_a_refusal_gives_reason_and_nearest_choice(replicate, shard, world, reason, fix):
    with pytest.raises(UsageError) as caught:
        resolve_degrees(
            RequestedDegrees(dp_replicate=replicate, dp_shard=shard), world=world, where="job.yaml"
        )
    assert caught.value.code == "ST-USAG-007"
    assert reason in caught.value.what
    assert caught.value.where == "job.yaml: parallel"
    assert fix in caught.value.fix


def test_degrees_are_positive():
    refused(ValueError, "dp_shard is 0", Degrees, dp_shard=0)


@items("number, wanted, expected", (8, 3, 2), (8, 5, 4), (8, 7, 8), (12, 5, 4), (7, 3, 1))
def test_nearest_divisor(number, wanted, expected):
    assert nearest_divisor(number, wanted) == expected
