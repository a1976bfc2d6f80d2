# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Several NCCL ranks on one GPU: a small parity matrix, and what only a GPU can do.

A GPU is not meant for several ranks. With another ``NCCL_HOSTID`` each, NCCL takes them for several
hosts and uses its sockets (NCCL's environment variables; nccl issue 418). The same functions are
walked with Gloo on a machine without a GPU, so that what is skipped there is the GPU alone.
"""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from benchmarks import h200
from securetrain.testing.processes import run_ranks
from securetrain.train.config import shape_of
from securetrain.train.models.shape import num_parameters
from tests.parallel.curves import DENSE, Case, Curve, curves, differences, passes
from tests.parallel.matrix import SPARSE
from tests.vocabulary import refused

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: NCCL was not run")
MATRIX = (
    Case("ddp", 2, "{dp_replicate: 2}"),
    Case("ddp, bfloat16 messages", 2, "{dp_replicate: 2, compression: bf16}"),
    Case("fsdp, recompute", 2, "{dp_shard: 2}", extra="compute: {recompute: selective}"),
    Case("fsdp, offloaded", 2, "{dp_shard: 2, cpu_offload: true}"),
    Case("fsdp, guarded", 2, "{dp_shard: 2}", guard=True),
    Case("tp", 2, "{tp: 2}"),
    Case("tp, compiled", 2, "{tp: 2}", extra="compute: {compile: true}"),
    Case("pp", 2, "{pp: 2}"),
    Case("pp, ZBV", 2, "{pp: 2, schedule: ZBVZeroBubble}"),
    Case("cp, ring", 2, "{cp: 2, context: ring}"),
    Case("cp, ulysses", 2, "{cp: 2, context: ulysses}"),
    Case("hsdp", 4, "{dp_replicate: 2, dp_shard: 2}"),
    Case("fsdp x tp", 4, "{dp_shard: 2, tp: 2}"),
    Case("pp x tp", 4, "{pp: 2, tp: 2}"),
    *(
        Case(name, ranks, parallel, model, guard=True)
        for name, ranks, parallel, model in (
            ("ddp, guarded", 2, "{dp_replicate: 2}", DENSE),
            ("moe, guarded", 2, "{dp_shard: 2}", SPARSE),
            ("ep, guarded", 2, "{dp_shard: 2, ep: 2}", SPARSE),
            ("hsdp, guarded", 4, "{dp_replicate: 2, dp_shard: 2}", DENSE),
            ("pp x fsdp, guarded", 4, "{pp: 2, dp_shard: 2}", DENSE),
            ("ep x hsdp, guarded", 4, "{dp_replicate: 2, dp_shard: 2, ep: 2}", SPARSE),
            ("ep over fsdp, x tp, guarded", 4, "{dp_shard: 2, tp: 2, ep: 2}", SPARSE),
        )
    ),
)


def on_device(cases: list[Case], store: str, device: str) -> dict[str, Curve | str]:
    """The curves over a group with `device`'s backend; runs on every rank of `run_ranks`."""
    if device == "cuda":
        return curves(cases, str(h200.join_on_gpu(store, 1)))
    return curves(cases)


def compare(cases: list[Case], folder: Path, device: str, patience: float) -> None:
    models = dict.fromkeys(case.model for case in cases)
    alone = [Case(model, 1, "{}", model) for model in models]
    wanted = run_ranks(on_device, 1, alone, str(folder / "1"), device, timeout=patience)[0]
    for ranks in sorted({case.ranks for case in cases}):
        mine = [case for case in cases if case.ranks == ranks]
        store = str(folder / str(ranks))
        for found in run_ranks(on_device, ranks, mine, store, device, timeout=patience):
            for case in mine:
                got, want = found.get(case.name, "not reached"), wanted[case.model]
                assert not isinstance(got, str), (case, got)
                assert not isinstance(want, str), want
                assert passes(got, want), (case, differences(got, want))


@pytest.mark.gpu
@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.timeout(900)
@needs_gpu
@pytest.mark.skipif(not dist.is_nccl_available(), reason="this torch has no NCCL: it was not run")
def test_meshes_on_nccl_equal_one_process(tmp_path):
    compare(list(MATRIX), tmp_path, "cuda", 400)


@pytest.mark.dist
def test_the_same_path_with_gloo(tmp_path):
    compare([MATRIX[5]], tmp_path, "cpu", 90)


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.many
def test_guarded_meshes_with_gloo(tmp_path):
    compare([case for case in MATRIX if case.guard], tmp_path, "cpu", 300)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(300)
@needs_gpu
@pytest.mark.skipif(find_spec("torchao") is None, reason="no torchao: float8 was not run")
def test_float8_learns(tmp_path):
    model = "{dim: 128, layers: 2, heads: 4, ffn: 256}"
    cases = [
        Case("bf16", 1, "{}", model, "precision: bf16"),
        Case("float8", 1, "{}", model, "precision: bf16\ncompute: {float8: true, compile: true}"),
    ]
    found = run_ranks(on_device, 1, cases, str(tmp_path / "store"), "cuda", timeout=240)[0]
    exact, eighth = found["bf16"], found["float8"]
    assert not isinstance(exact, str), exact
    assert not isinstance(eighth, str), eighth
    assert differences(eighth, exact)[0] < 0.1
    assert eighth[-2][0] < eighth[0][0]


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(900)
@needs_gpu
def test_one_gpu_reaches_its_goals(tmp_path, capsys):
    """Figures are printed and written; a goal that is missed is said, and is no failed test."""
    out = tmp_path / "h200.json"
    assert h200.main(["--pairs", "5", "--json", str(out)]) == 0
    with capsys.disabled():
        sys.stdout.write(f"\n{out.read_text()}")


def test_the_harness_says_when_there_is_no_gpu(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert h200.main([]) == 2
    assert "nothing was measured" in capsys.readouterr().err


@pytest.mark.dist
def test_the_harness_runs_without_a_gpu(tmp_path):
    out = tmp_path / "figures.json"
    options = ["--device", "cpu", "--tiny", "--pairs", "1", "--steps", "1", "--json", str(out)]
    assert h200.main(options) == 0
    found = json.loads(out.read_text())["figures"]
    assert {"tokens_per_second", "mfu", "hardened_over_plain", "parameters"} <= found.keys()
    assert found["ranks"] == 2


def test_the_harness_does_not_measure_a_rank_that_sends_nothing():
    with pytest.raises(SystemExit):
        h200.main(["--device", "cpu", "--tiny", "--ranks", "1"])


@pytest.mark.parametrize(
    ("gib", "ranks", "sharing", "parameters"),
    [(139, 8, 1, 3e9), (79, 8, 1, 2e9), (79, 2, 1, 0.8e9), (139, 2, 2, 0.8e9), (79, 2, 2, 0.3e9),
     (22, 2, 1, 0.1e9)],
)  # fmt: skip
def test_the_model_is_the_largest_that_fits(gib, ranks, sharing, parameters):
    size = h200.size_for(gib << 30, ranks=ranks, sharing=sharing)
    assert size.memory(ranks) * sharing < gib << 30
    assert num_parameters(shape_of(size.job(ranks))) >= parameters
    larger = h200.SIZES[: h200.SIZES.index(size)]
    assert all(one.memory(ranks) * sharing > 0.9 * (gib << 30) for one in larger)


def test_what_fits_nowhere_is_said():
    refused(ValueError, "no size fits into 2 GiB", h200.size_for, 4 << 30, ranks=2, sharing=2)
