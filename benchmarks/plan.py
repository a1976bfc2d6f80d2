# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""How long `securetrain plan` takes for a job of 512 ranks, from a shell's point of view."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.ab import Figure

JOB: Final = """\
apiVersion: securetrain.dev/job/v1
kind: TrainJob
name: five-hundred-and-twelve
steps: 1
precision: bf16
model: {dim: 4096, layers: 32, heads: 32, kv_heads: 8, ffn: 14336, vocab: 128256}
data: {seq_len: 8192, batch_rows: 256}
parallel: {pp: 4, dp_replicate: 2, dp_shard: 8, tp: 8, microbatches: 16}
eval: {rows: 256}
launch: {nproc_per_node: 8, nnodes: 64, device: h100}
"""
RUNS: Final = 5
LIMIT: Final = 2.0


def command() -> Figure:
    """The whole command: Python, torch's import and all."""
    with TemporaryDirectory() as folder:
        job = Path(folder) / "job.yaml"
        job.write_text(JOB)
        whole, imports = [], []
        for _ in range(RUNS):
            imports.append(_seconds([sys.executable, "-c", "import torch.distributed.tensor"]))
            whole.append(_seconds([sys.executable, "-m", "securetrain", "plan", str(job)]))
    return Figure(
        name="plan-512",
        title="the command `securetrain plan` for 512 ranks, and importing torch alone",
        values={"s": median(whole), "s to import torch": median(imports)},
        goal="at most 2 s besides the import",
        goal_met=median(whole) - median(imports) <= LIMIT,
    )


def _seconds(arguments: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


FIGURES: Final[dict[str, Callable[[], Figure | None]]] = {"plan-512": command}
