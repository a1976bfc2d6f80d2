# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What others measured is what a plan says, within the error that it states."""

from collections.abc import Sequence
from unittest import mock

import pytest

from securetrain.train.config import parse_job
from securetrain.train.planning import memory
from securetrain.train.planning.devices import RESERVED, Device
from securetrain.train.planning.job_plan import Verdict, make_plan
from securetrain.train.planning.memory import ERROR, memory_of
from securetrain.train.planning.workload import Workload, held
from tests.tables import items
from tests.train.planning.published import TABLES, Published

GIB = 1 << 30


def planned(row: Published) -> int:
    """The fullest rank's bytes."""
    work = Workload(
        shape=row.shape, degrees=row.degrees, settings=row.settings, rows=row.rows,
        length=row.length,
    )  # fmt: skip
    return max(memory_of(work, held(work, rank)).total for rank in range(row.degrees.pp))


@pytest.mark.parametrize("row", TABLES, ids=lambda row: row.name)
def test_a_published_peak_is_within_the_error(row):
    assert ERROR <= 0.15
    assert planned(row) == pytest.approx(row.gib * GIB, rel=0.15)
    # A device of less than the peak is never said to be enough.
    assert planned(row) * (1 + ERROR) >= row.gib * GIB


def apart(rows: Sequence[Published], share: float) -> list[float]:
    """Relative errors, had the allocator's share been another one."""
    with mock.patch.object(memory, "SLACK", share):
        return [planned(row) / (row.gib * GIB) - 1 for row in rows]


@pytest.mark.parametrize("third", range(3))
def test_what_the_allocator_takes_is_no_more_than_a_fit_to_other_rows_says(third):
    """`SLACK` was chosen with these tables in sight: fitted to two thirds of them, it has to hold
    for the rest.
    """
    seen = [row for n, row in enumerate(TABLES) if n % 3 != third]
    held_out = [row for n, row in enumerate(TABLES) if n % 3 == third]
    shares = [n / 100 for n in range(21)]
    best = min(shares, key=lambda share: max(map(abs, apart(seen, share))))
    assert abs(best - memory.SLACK) <= 0.02
    assert max(map(abs, apart(held_out, best))) < 0.10


JOB = """\
apiVersion: securetrain.dev/job/v1
kind: TrainJob
name: published
steps: 10
precision: bf16
"""
EIGHT = """\
model: {dim: 4096, layers: 32, heads: 32, kv_heads: 8, ffn: 14336, vocab: 128256}
data: {seq_len: 8192, batch_rows: 16}
eval: {rows: 16}
compute: {recompute: alternate}
"""
LARGEST = """\
model: {dim: 16384, layers: 126, heads: 128, kv_heads: 8, ffn: 53248, vocab: 128256}
data: {seq_len: 8192, batch_rows: 256}
eval: {rows: 256}
parallel: {pp: 8, dp_shard: 8, tp: 8, microbatches: 8}
compute: {recompute: full}
"""


@items("id, text, nodes, gib", ("8B", EIGHT, 1, 82.4), ("405B", LARGEST, 64, 82.5))
def test_the_verdict_on_a_published_job(text, nodes, gib):
    """The 405B job was said to fit with 50.6 GB, the 8B one not to fit with 111 GB."""
    job, peak = parse_job(JOB + text, "job.yaml"), int(gib * GIB)

    def verdict(memory: int) -> Verdict | None:
        device = Device("a device", memory + RESERVED)
        return make_plan(job, "job.yaml", per_node=8, nodes=nodes, device=device).verdict

    assert verdict(peak - 1) is not Verdict.FITS
    assert verdict(int(peak * 1.33)) is Verdict.FITS
    assert verdict(int(peak * 0.7)) is Verdict.TOO_MUCH
