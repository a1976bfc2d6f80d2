# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""An estimated step time is what others measured, within the error that a plan states."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest

from securetrain.parallel.degrees import Degrees
from securetrain.parallel.plan import Precision, Recompute, Settings
from securetrain.parallel.schedule import Schedule
from securetrain.train.planning.devices import DEVICES, HOPPER, Device
from securetrain.train.planning.step_time import ERROR, SHARES, Shares, StepTime, step_time
from securetrain.train.planning.workload import Workload
from tests.train.planning.published import B8
from tests.train.planning.published_speed import FITTED, HELD_OUT, MISSED, Throughput


def apart(row: Throughput, kept: float | None = None, shares: Shares = SHARES) -> float:
    """The relative error of the estimated step."""
    job, device = row.job, row.device
    assert device.speed is not None
    if kept is not None:
        device = replace(device, speed=replace(device.speed, kept=kept))
    settings = replace(job.settings, compile=row.compile, float8=row.float8, async_tp=row.async_tp)
    work = Workload(
        shape=job.shape, degrees=job.degrees, settings=settings, rows=job.rows, length=job.length
    )
    found = step_time(work, device, 8, shares)
    assert found is not None
    return found.total / row.seconds - 1


@pytest.mark.parametrize("row", FITTED, ids=lambda row: row.job.name)
def test_a_published_throughput_is_met(row):
    assert abs(apart(row)) <= 0.15


@pytest.mark.parametrize("row", HELD_OUT, ids=lambda row: row.job.name)
def test_a_throughput_that_nothing_was_fitted_to_is_within_the_error(row):
    assert ERROR <= 0.25
    assert abs(apart(row)) <= ERROR


def test_the_miss_that_is_known_is_as_large_as_the_page_says():
    assert apart(MISSED) == pytest.approx(-1 / 3, abs=0.05)


def worst(rows: Sequence[Throughput], kept: float, shares: Shares) -> float:
    return max(abs(apart(row, kept, shares)) for row in rows)


@pytest.mark.parametrize("third", range(3))
def test_the_shares_are_those_that_a_fit_to_other_rows_gives(third):
    seen = [row for n, row in enumerate(FITTED) if n % 3 != third]
    held_out = [row for n, row in enumerate(FITTED) if n % 3 == third]
    grid = product((0.50, 0.54, 0.58, 0.62, 0.66), (0.25, 0.30, 0.35, 0.40, 0.45))
    choices = [(kept, replace(SHARES, attention=attention)) for kept, attention in grid]
    kept, shares = min(choices, key=lambda choice: worst(seen, *choice))
    assert abs(kept - HOPPER) < 0.05
    assert abs(shares.attention - SHARES.attention) < 0.06
    assert worst(held_out, kept, shares) < 0.20


def timed(degrees: Degrees, device: Device = DEVICES["h100"], **changed: object) -> StepTime:
    rows = 64 // degrees.dp
    settings = Settings(**{"precision": Precision.BF16, **changed})  # type: ignore[arg-type]
    work = Workload(
        shape=B8,
        degrees=degrees,
        settings=settings,
        rows=rows // settings.microbatches,
        length=8192,
    )
    found = step_time(work, device, 8)
    assert found is not None
    return found


def test_what_is_computed_again_is_paid_for():
    kinds = (Recompute.NONE, Recompute.ALTERNATE, Recompute.FULL)
    none, some, everything = (timed(Degrees(dp_shard=8), recompute=kind).total for kind in kinds)
    assert none < some < everything < none * 4 / 3 + 1e-9


def test_tensor_parallelism_over_nodes_costs_what_the_network_is_slower():
    inside = timed(Degrees(tp=8, dp_shard=2)).tensor
    over = timed(Degrees(tp=16)).tensor
    assert over > inside * 1.05
    slow = timed(Degrees(tp=16), DEVICES["h100"].with_network(10)).tensor
    assert slow > 10 * over


def test_shards_are_gathered_while_the_step_computes_until_the_network_is_too_slow():
    fast = timed(Degrees(dp_shard=16))
    slow = timed(Degrees(dp_shard=16), DEVICES["h100"].with_network(0.5))
    assert fast.data < 0.05 * fast.total
    assert slow.data > 0.5 * slow.total
    # Computing is what it was.
    assert slow.matrices == fast.matrices


def test_a_pipeline_waits_as_long_as_its_schedule_says():
    one = timed(Degrees(pp=4, dp_shard=2), microbatches=4)
    more = timed(Degrees(pp=4, dp_shard=2), microbatches=16)
    turns = timed(Degrees(pp=4, dp_shard=2), microbatches=4, schedule=Schedule.INTERLEAVED_1F1B)
    assert one.waiting / (one.total - one.data - one.optimizer) == pytest.approx(3 / 7)
    assert more.waiting < turns.waiting < one.waiting


def test_nothing_is_said_of_a_device_that_is_not_known_or_of_copies_to_the_host():
    work = Workload(shape=B8, degrees=Degrees(), settings=Settings(), rows=1, length=8192)
    assert step_time(work, Device("a device", 10**11), 8) is None
    offloaded = replace(work, settings=Settings(cpu_offload=True))
    assert step_time(offloaded, DEVICES["h100"], 8) is None
