# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What does not go together is refused before torch is asked, with the nearest choice."""

import pytest

from securetrain.core.errors import UsageError
from securetrain.policy.schema import GuardMode
from securetrain.train.composition import check_guard, check_world
from securetrain.train.config import parse_job
from tests.train.jobs import JOB

MODEL = "model: {dim: 32, layers: 2, heads: 4, kv_heads: 2, ffn: 48}"


def job(parallel: str, *more: str):
    lines = [line for line in JOB.splitlines() if not line.startswith("model:")]
    text = "\n".join([*lines, f"parallel: {parallel}", *more])
    if not any(line.startswith("model:") for line in more):
        text += f"\n{MODEL}"
    for line in more:
        if line.startswith("checkpoint:"):
            text = text.replace("checkpoint: {every: 3}\n", "", 1)
    return parse_job(text + "\n", "job.yaml")


@pytest.mark.parametrize(
    ("ranks", "parallel", "more", "field", "reason", "fix"),
    [
        # Fewer heads of keys than ranks: they would have to be copied.
        (4, "{tp: 4}", (), "parallel.tp", "tp 4 does not divide kv_heads 2", "tp: 2"),
        # A microbatch of less than one row.
        (4, "{pp: 2, microbatches: 4}", (), "data.batch_rows", "4 microbatches", "batch_rows: 8"),
        (
            2,
            "{dp_replicate: 2, compression: powersgd}",
            (),
            "checkpoint.resume",
            "no checkpoint holds that",
            "resume: never, or compression: fp16",
        ),
        (2, "{compression: fp16}", (), "parallel.compression", "DDP only", "compression: none"),
        (2, "{tp: 2, async_tp: true}", (), "parallel.async_tp", "the compiler", "compile: true"),
        (
            1,
            "{}",
            ("compute: {float8: true}", "model: {dim: 24, layers: 2, heads: 2, ffn: 48}"),
            "compute.float8",
            "dim is 24",
            "dim: 32",
        ),
        (2, "{tp: 2}", ("compute: {float8: true}",), "compute.float8", "over tp 2", "ffn: 64"),
    ],
)
def test_refused_with_the_nearest_choice(ranks, parallel, more, field, reason, fix):  # noqa: PLR0917
    with pytest.raises(UsageError) as caught:
        check_world(job(parallel, *more), ranks, "job.yaml")
    assert caught.value.code == "ST-USAG-007"
    assert caught.value.where == f"job.yaml: {field}"
    assert reason in caught.value.what
    assert fix in caught.value.fix


def test_powersgd_trains_where_nothing_is_resumed():
    asked = job("{dp_replicate: 2, compression: powersgd}", "checkpoint: {resume: never}")
    assert check_world(asked, 2, "job.yaml").dp == 2


@pytest.mark.parametrize("mode", list(GuardMode))
def test_what_is_watched_is_not_compressed(mode):
    check_guard(job("{dp_replicate: 2}"), mode, "job.yaml")
    compressed = job("{dp_replicate: 2, compression: fp16}")
    if mode is GuardMode.OFF:
        check_guard(compressed, mode, "job.yaml")
        return
    with pytest.raises(UsageError) as caught:
        check_guard(compressed, mode, "job.yaml")
    assert caught.value.where == "job.yaml: parallel.compression"
    assert "gradients.mode: off" in caught.value.fix
