# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What one of two ranks does in test_signed_storage.py (tests/scenarios.py), in a directory, ROOT.

A script as people have it: torch's own calls and planners; securetrain's is the storage alone.
"""

import gc
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import checkpoint
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from securetrain.artifacts import Expectation, SaveContext
from securetrain.artifacts.checkpoint.session import Session
from securetrain.artifacts.checkpoint.signed_storage import SignedReader, SignedWriter

dcp: Any = checkpoint
RANK, ROOT = int(globals()["RANK"]), Path(globals()["ROOT"])
NOW = datetime.fromisoformat((ROOT / "now").read_text())
TRUST = ROOT / "trust.json"
# Only rank 0 has the key's file.
KEY = ROOT / ("checkpoint.pem" if RANK == 0 else "nothing.pem")
TABLE = torch.arange(13 * 101, dtype=torch.float32).reshape(13, 101)


def writer(name: str, step: int = 1) -> SignedWriter:
    return SignedWriter(
        ROOT / name, key=KEY, context=SaveContext(run_id="two", step=step, created=NOW)
    )


def codes(function: Any, *args: Any, **kwargs: Any) -> list[str]:
    """The codes that the ranks refused with, as this rank hears of them."""
    try:
        function(*args, **kwargs)
    except CheckpointException as failure:
        return [
            getattr(error, "code", type(error).__name__) for error, _ in failure.failures.values()
        ]
    return []


class Failing(DefaultSavePlanner):
    """Breaks on one rank when it hands out its tensor."""

    def resolve_data(self, write_item: Any) -> Any:
        if RANK == 1:
            raise ValueError("no tensor today")
        return super().resolve_data(write_item)


def main() -> dict[str, Any]:
    report: dict[str, Any] = {}
    mesh = init_device_mesh("cpu", (2,))

    def sharded(dim: int, *, blank: bool = False) -> DTensor:
        return distribute_tensor(torch.zeros_like(TABLE) if blank else TABLE, mesh, [Shard(dim)])

    dcp.save({"t": sharded(0), "step": 3, "pair": (1, "a")}, storage_writer=writer("rows"))
    target: dict[str, Any] = {"t": sharded(1, blank=True), "step": 0, "pair": ()}
    dcp.load(target, storage_reader=SignedReader(ROOT / "rows", trust=TRUST, now=NOW))
    report["rows_to_columns"] = torch.equal(target["t"].full_tensor(), TABLE)
    report["values"] = [target["step"], list(target["pair"])]

    background: Any = dcp.async_save({"t": sharded(0)}, storage_writer=writer("thread", 2))
    background.result()
    session = Session(key=KEY, trust=TRUST, run="two", clock=lambda: NOW)
    session.save({"t": sharded(1), "step": 4}, ROOT / "session")
    for name in ("thread", "session"):
        target = {"t": sharded(0, blank=True)}
        session.load(target, ROOT / name)
        report[name] = torch.equal(target["t"].full_tensor(), TABLE)

    if RANK == 0:
        path = ROOT / "thread" / "rank-00001.bin"
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        path.write_bytes(data)
    dist.barrier()
    target = {"t": sharded(0)}
    report["tampered"] = codes(
        dcp.load, target, storage_reader=SignedReader(ROOT / "thread", trust=TRUST, now=NOW)
    )
    report["zeroed"] = bool((target["t"].to_local() == 0).all())
    report["wrong_run"] = codes(
        dcp.load,
        {"t": sharded(0)},
        storage_reader=SignedReader(
            ROOT / "rows", trust=TRUST, now=NOW, expect=Expectation(run="prod")
        ),
    )
    failing = writer("failing")
    report["failing"] = codes(
        dcp.save, {"t": sharded(0)}, storage_writer=failing, planner=Failing()
    )
    del failing
    gc.collect()
    dist.barrier()
    report["left"] = sorted(path.name for path in ROOT.glob("failing*"))
    return report
