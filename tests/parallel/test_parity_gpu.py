# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Several NCCL ranks on one GPU: a small parity matrix, and what only a GPU can do.

A GPU is not meant for several ranks. With another ``NCCL_HOSTID`` each, NCCL takes them for several
hosts and uses its sockets (NCCL's environment variables; nccl issue 418). The same functions are
walked with Gloo on a machine without a GPU, so that what is skipped there is the GPU alone.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from benchmarks import h200
from securetrain.testing.processes import run_ranks
from tests.parallel.curves import Case, Curve, curves, differences, passes

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: NCCL was not run")
NCCL = {
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",  # NCCL 2.30 and later ask for it
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_SOCKET_IFNAME": "=lo",
    "NCCL_NET": "Socket",
}
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
)


def on_device(cases: list[Case], store: str, device: str) -> dict[str, Curve | str]:
    """The curves over a group with `device`'s backend; runs on every rank of `run_ranks`."""
    rank, world = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    backend = "gloo"
    if device == "cuda":
        os.environ.update(NCCL, NCCL_HOSTID=f"host-{rank}")
        torch.cuda.set_device(0)
        backend = "cpu:gloo,cuda:nccl"
    file_store = dist.FileStore(store, world)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=file_store, rank=rank, world_size=world)
    return curves(cases, "cuda:0" if device == "cuda" else "cpu")


def compare(cases: list[Case], folder: Path, device: str, patience: float) -> None:
    alone = [Case("alone", 1, "{}")]
    want = run_ranks(on_device, 1, alone, str(folder / "1"), device, timeout=patience)[0]["alone"]
    assert not isinstance(want, str), want
    for ranks in sorted({case.ranks for case in cases}):
        mine = [case for case in cases if case.ranks == ranks]
        store = str(folder / str(ranks))
        for found in run_ranks(on_device, ranks, mine, store, device, timeout=patience):
            for case in mine:
                got = found.get(case.name, "not reached")
                assert not isinstance(got, str), (case, got)
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


def walk(folder: str) -> str:
    out = Path(folder) / "figures.json"
    options = ["--device", "cpu", "--tiny", "--pairs", "1", "--steps", "1", "--json", str(out)]
    assert h200.main(options) == 0
    return out.read_text()


@pytest.mark.dist
def test_the_harness_runs_without_a_gpu(tmp_path):
    text = run_ranks(walk, 1, str(tmp_path))[0]
    for name in ("tokens_per_second", "mfu", "hardened_over_plain", "parameters"):
        assert f'"{name}"' in text
