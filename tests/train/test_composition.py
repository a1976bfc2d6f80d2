# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What does not fit together is refused before a process group exists: with the field, the reason
and a choice that works.
"""

from typing import Any

import pytest
import yaml

from securetrain.core.errors import UsageError
from securetrain.parallel.schedule import Schedule
from securetrain.policy.schema import GuardMode
from securetrain.train.composition import check_guard, check_world
from securetrain.train.config import JobConfig, parse_job
from tests.parallel.matrix import MANY, MATRIX
from tests.tables import each

BASE: dict[str, Any] = {
    "apiVersion": "securetrain.dev/job/v1",
    "kind": "TrainJob",
    "name": "composed",
    "steps": 2,
    "model": {"dim": 64, "layers": 4, "heads": 8, "kv_heads": 4, "ffn": 64},
    "data": {"seq_len": 64, "batch_rows": 16},
    "eval": {"rows": 16},
}
EXPERTS = {"experts": 8, "dim": 64, "layers": 4, "heads": 8, "kv_heads": 4, "ffn": 64}


def job(changes: dict[str, Any]) -> JobConfig:
    """The base job with some sections or fields of sections changed (``section.field``)."""
    document = {name: dict(v) if isinstance(v, dict) else v for name, v in BASE.items()}
    for path, value in changes.items():
        section, _, field = path.partition(".")
        if field:
            document.setdefault(section, {})[field] = value
        else:
            document[section] = value
    return parse_job(yaml.safe_dump(document), "job.yaml")


REFUSED = [
    # What the world decides.
    ({"parallel.tp": 3}, 8, "parallel", "tp 3 is 3, which does not divide 8", "tp: 2"),
    ({"parallel.dp_shard": 4}, 8, "parallel", "is 4 ranks, but there are 8", "dp_shard: 8"),
    ({"parallel.ep": 3, "model": EXPERTS}, 4, "parallel", "ep 3 does not divide", "ep: 2"),
    ({"parallel.ep": 2, "parallel.dp_replicate": 2}, 2, "parallel", "ep 2 does not", "ep: 1"),
    # Rows.
    ({"data.batch_rows": 6}, 4, "data.batch_rows", "6 rows do not divide among 4", "batch_rows: 8"),
    (
        {"data.batch_rows": 12, "parallel.microbatches": 2},
        8,
        "data.batch_rows",
        "8 data-parallel ranks and 2 microbatches",
        "batch_rows: 16",
    ),
    (
        {"data.batch_rows": 2, "parallel.pp": 2},
        2,
        "data.batch_rows",
        "1 data-parallel ranks and 4 microbatches",
        "batch_rows: 4",
    ),
    ({"eval.rows": 6}, 4, "eval.rows", "6 rows do not divide among 4", "rows: 8"),
    # Positions.
    (
        {"data.seq_len": 36, "parallel.cp": 4},
        4,
        "data.seq_len",
        "36 positions do not divide among cp 4 and tp 1",
        "seq_len: 40",
    ),
    (
        {"data.seq_len": 66, "parallel.tp": 4},
        4,
        "data.seq_len",
        "among cp 1 and tp 4",
        "seq_len: 68",
    ),
    (
        {"data.seq_len": 20, "parallel.tp": 2, "parallel.cp": 2},
        4,
        "data.seq_len",
        "among cp 2 and tp 2",
        "seq_len: 24",
    ),
    # Tensor parallelism: what is offered fits all that is cut, not only what was looked at first.
    ({"parallel.tp": 8}, 8, "parallel.tp", "tp 8 does not divide kv_heads 4", "tp: 4"),
    (
        {"parallel.tp": 4, "model.heads": 6, "model.kv_heads": 2, "model.dim": 96},
        4,
        "parallel.tp",
        "tp 4 does not divide heads 6",
        "tp: 2",
    ),
    ({"parallel.tp": 4, "model.vocab": 258}, 4, "parallel.tp", "vocab 258", "tp: 2"),
    ({"parallel.tp": 4, "model.ffn": 66}, 4, "parallel.tp", "ffn 66", "tp: 2"),
    ({"parallel.tp": 2, "model.tied": True}, 2, "model.tied", "one matrix", "tied: false"),
    ({"parallel.pp": 2, "model.tied": True}, 2, "model.tied", "one matrix", "tied: false"),
    # Context parallelism.
    (
        {"parallel.cp": 8, "parallel.context": "ulysses"},
        8,
        "parallel.context",
        "cp 8 does not divide the 4 kv_heads",
        "context: ring",
    ),
    (
        {"parallel.cp": 4, "parallel.tp": 2, "parallel.context": "ulysses"},
        8,
        "parallel.context",
        "cp 4 does not divide the 2 kv_heads",
        "context: ring",
    ),
    # Pipelines.
    (
        {"parallel.pp": 1, "parallel.reduce_each_microbatch": True},
        2,
        "parallel.reduce_each_microbatch",
        "pipelines whose ranks share parameters",
        "reduce_each_microbatch: false",
    ),
    (
        {
            "parallel.pp": 2,
            "parallel.schedule": "ZBVZeroBubble",
            "parallel.microbatches": 4,
            "parallel.reduce_each_microbatch": True,
        },
        4,
        "parallel.reduce_each_microbatch",
        "where no reduction follows",
        "schedule: Interleaved1F1B",
    ),
    ({"parallel.pp": 8}, 8, "parallel.pp", "has 8 stages, the model 4 layers", "pp: 4"),
    (
        {"parallel.pp": 4, "parallel.schedule": "ZBVZeroBubble", "parallel.microbatches": 8},
        4,
        "parallel.pp",
        "has 8 stages, the model 4 layers",
        "pp: 2",
    ),
    (
        {"parallel.pp": 2, "parallel.schedule": "DualPipeV", "parallel.microbatches": 2},
        2,
        "parallel.microbatches",
        "at least 4; these are 2",
        "microbatches: 4",
    ),
    (
        {"parallel.pp": 4, "parallel.microbatches": 2},
        4,
        "parallel.microbatches",
        "at least 4; these are 2",
        "microbatches: 4",
    ),
    (
        {
            "parallel.pp": 2,
            "parallel.schedule": "Interleaved1F1B",
            "parallel.microbatches": 3,
            "data.batch_rows": 12,
        },
        2,
        "parallel.microbatches",
        "a multiple of 2 microbatches",
        "microbatches: 4",
    ),
    # Experts.
    ({"parallel.ep": 2}, 2, "parallel.ep", "the model has no experts", "ep: 1"),
    (
        {"parallel.ep": 8, "model": {**EXPERTS, "experts": 12}},
        8,
        "parallel.ep",
        "ep 8 does not divide 12 experts",
        "ep: 4",
    ),
    (
        {"model": {**EXPERTS, "ffn": 68}},
        8,
        "model.ffn",
        "each expert is cut among 8 ranks, which do not divide ffn 68",
        "ffn: 72",
    ),
    (
        {"model": {**EXPERTS, "dim": 72, "heads": 4, "head_size": 16}, "parallel.dp_shard": 16},
        16,
        "model.dim",
        "each expert is cut among 16 ranks",
        "dim: 80",
    ),
    # What one of them does and the others do not.
    (
        {"parallel.compression": "fp16"},
        2,
        "parallel.compression",
        "by DDP only, and this mesh is fsdp",
        "dp_replicate alone",
    ),
    (
        {"parallel.compression": "powersgd", "parallel.dp_replicate": 2},
        2,
        "checkpoint.resume",
        "no checkpoint holds that",
        "resume: never",
    ),
    ({"parallel.async_tp": True}, 1, "parallel.async_tp", "without tp", "async_tp: false"),
    (
        {"parallel.async_tp": True, "parallel.tp": 2},
        2,
        "parallel.async_tp",
        "the compiler does it",
        "compute.compile: true",
    ),
    (
        {"compute.float8": True, "model.ffn": 72},
        1,
        "compute.float8",
        "pieces of 16, and ffn is 72",
        "ffn: 80",
    ),
]


@pytest.mark.parametrize(("changes", "world", "field", "reason", "fix"), REFUSED)
def test_what_does_not_fit_is_refused_with_a_choice_that_does(changes, world, field, reason, fix):
    with pytest.raises(UsageError) as refused:
        check_world(job(changes), world, "job.yaml")
    error = refused.value
    assert error.code == "ST-USAG-007"
    assert error.where == f"job.yaml: {field}"
    assert reason in error.what
    assert fix in error.fix


PLAIN = [case for case in REFUSED if case[2] != "parallel" and case[4].count(": ") == 1]


@pytest.mark.parametrize(("changes", "world", "field", "reason", "fix"), PLAIN)
def test_the_choice_that_is_offered_works(changes, world, field, reason, fix):
    del reason
    name, _, value = fix.partition(": ")
    section = field.split(".")[0] if name != "ffn" else "model"
    section = "compute" if name.startswith("compute.") else section
    changed = {**changes, f"{section}.{name.removeprefix('compute.')}": yaml.safe_load(value)}
    # Fewer ranks along one axis are more along dp_shard, unless that was fixed.
    check_world(job(changed), world, "job.yaml")


@each("case", {case.name: case for case in (*MATRIX, *MANY)})
def test_every_row_of_the_parity_matrix_is_allowed(case):
    model, parallel = yaml.safe_load(case.model), yaml.safe_load(case.parallel)
    changes = {"model": model, "parallel": parallel}
    degrees = check_world(job(changes), case.ranks, "job.yaml")
    assert degrees.world == case.ranks


def test_the_matrix_has_every_schedule_and_twenty_compositions():
    composed = [c for c in MATRIX if len(axes(c.parallel)) > 1]
    assert len({c.name for c in MATRIX}) == len(MATRIX)
    assert len(composed) >= 20
    for schedule in Schedule:
        assert any(f"schedule: {schedule}" in c.parallel for c in MATRIX)


def axes(parallel: str) -> set[str]:
    found: dict[str, Any] = yaml.safe_load(parallel)
    degrees = {"pp", "dp_replicate", "dp_shard", "cp", "tp", "ep"}
    return {name for name, value in found.items() if name in degrees and value > 1}


def test_compressed_gradients_cannot_be_watched():
    compressed = job({"parallel.compression": "fp16", "parallel.dp_replicate": 2})
    check_guard(compressed, GuardMode.OFF, "job.yaml")
    check_guard(job({}), GuardMode.DETECT, "job.yaml")
    with pytest.raises(UsageError) as refused:
        check_guard(compressed, GuardMode.DETECT, "job.yaml")
    assert refused.value.where == "job.yaml: parallel.compression"
    assert "gradients.mode: off" in refused.value.fix


@pytest.mark.parametrize("recompute", ["selective", "alternate"])
def test_selective_recomputing_fits_no_schedule_that_goes_back_twice(recompute):
    changes = {
        "compute": {"recompute": recompute},
        "parallel": {"pp": 2, "schedule": "ZBVZeroBubble", "microbatches": 4},
    }
    with pytest.raises(UsageError, match="ZBVZeroBubble goes back twice") as caught:
        check_world(job(changes), 2, "job.yaml")
    assert caught.value.code == "ST-USAG-007"
    assert "compute.recompute" in str(caught.value)
    check_world(job(changes | {"compute": {"recompute": "full"}}), 2, "job.yaml")
