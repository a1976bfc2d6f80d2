# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What one of two ranks does in test_dist.py: argv is rank, directory. Writes rank-N.json."""

import json
import os
import pickle
import shutil
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from securetrain.artifacts import SaveContext, load, save
from securetrain.core.errors import SecureTrainError
from securetrain.core.hashtree import TreeParams
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRoot

RANK, ROOT = int(sys.argv[1]), Path(sys.argv[2])
NOW = datetime.fromisoformat((ROOT / "now").read_text())
# Only the coordinator holds the key.
KEY = PrivateKey.load(ROOT / "checkpoint.pem") if RANK == 0 else None
TRUST = TrustRoot.load(ROOT / "trust.json", NOW)
SMALL = TreeParams(leaf_size=1024)

seen: dict[str, set[str]] = {"good": set(), "failed": set()}
phase = ["good"]


class Recording(pickle.Unpickler):
    """Notes every global that a pickle from another rank names."""

    def find_class(self, module: str, name: str) -> Any:
        seen[phase[0]].add(f"{module}.{name}")
        return super().find_class(module, name)


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    # 7 rows over 2 ranks are uneven, and the last layer has one row: rank 1 holds nothing of it.
    return torch.nn.Sequential(
        torch.nn.Linear(40, 7), torch.nn.Linear(7, 300), torch.nn.Linear(300, 1)
    )


def wrapped(mesh: Any) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    made = model()
    for layer in made.children():
        fully_shard(layer, mesh=mesh)
    fully_shard(made, mesh=mesh)
    return made, torch.optim.AdamW(made.parameters(), lr=0.01)


def train(made: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(2):
        made(torch.full((4, 40), 0.1 * (RANK + 1))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def full(value: Any) -> Any:
    if isinstance(value, DTensor):
        return value.full_tensor().detach().clone()
    if isinstance(value, dict):
        return {key: full(item) for key, item in value.items()}
    return value


def state_of(made: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return dict(zip(("model", "optim"), get_state_dict(made, optimizer), strict=True))


def store(state: dict[str, Any], name: str, **more: Any) -> Any:
    context = SaveContext(run_id="dist", step=2, created=NOW)
    return save(state, ROOT / name, key=KEY, context=context, params=SMALL, **more)


def read(state: dict[str, Any], path: Path) -> Any:
    return load(state, path, trust=TRUST, policy=None, now=NOW)


def error_of(function: Any, *args: Any) -> dict[str, Any]:
    try:
        function(*args)
    except SecureTrainError as error:
        return {"type": type(error).__name__, **error.to_dict()}
    return {"type": "none"}


def damaged(name: str, source: str, file: str, offset: int) -> Path:
    """A copy with one flipped bit, made by rank 0."""
    if RANK == 0:
        shutil.copytree(ROOT / source, ROOT / name)
        path = ROOT / name / file
        data = bytearray(path.read_bytes())
        data[offset] ^= 1
        path.write_bytes(data)
    dist.barrier()
    return ROOT / name


def main() -> dict[str, Any]:
    report: dict[str, Any] = {}
    mesh = init_device_mesh("cpu", (2,))
    distributed_c10d._unpickler = Recording

    # FSDP2, model and optimizer, saved by two ranks and loaded by two.
    made, optimizer = wrapped(mesh)
    train(made, optimizer)
    states = state_of(made, optimizer)
    state = {**states, "step": 2, "note": {"tokens": 123, "ids": (1, 2)}}
    result = store(state, "fsdp")
    report["digest"], report["save_id"] = result.digest, result.save_id
    reference = full(states)
    if RANK == 0:
        torch.save(reference, ROOT / "reference.pt")
    fresh, fresh_optimizer = wrapped(mesh)
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.zero_()
    again = state_of(fresh, fresh_optimizer)
    target: dict[str, Any] = {**again, "step": 0, "note": {"tokens": 0, "ids": ()}}
    predicate = read(target, result.path)
    said = {"model_state_dict": target["model"], "optim_state_dict": target["optim"]}
    set_state_dict(fresh, fresh_optimizer, **said)
    loaded = full(state_of(fresh, fresh_optimizer))
    report["fsdp"] = same(loaded, reference)
    report["values"] = [target["step"], target["note"]["tokens"], target["note"]["ids"] == (1, 2)]
    report["world_size"] = predicate.world_size

    # One rank's plain tensors (made by the test) into two ranks' shards.
    plain = torch.load(ROOT / "plain.pt", weights_only=True)
    target = {
        name: distribute_tensor(torch.zeros_like(tensor), mesh, [placement])
        for (name, tensor), placement in zip(
            plain.items(), (Shard(0), Shard(1), Replicate(), Shard(1)), strict=True
        )
    }
    read(target, ROOT / "plain")
    report["one_to_two"] = same(full(target), plain)

    # Rows to columns.
    table = torch.arange(13 * 101, dtype=torch.float32).reshape(13, 101)
    rows = {"t": distribute_tensor(table.clone(), mesh, [Shard(0)])}
    store(rows, "rows")
    columns = {"t": distribute_tensor(torch.zeros_like(table), mesh, [Shard(1)])}
    read(columns, ROOT / "rows")
    report["rows_to_columns"] = torch.equal(columns["t"].full_tensor(), table)

    phase[0] = "failed"
    errors = report["errors"] = {}
    # Only rank 1 reads this file; both must get its error, and rank 1's part must be zero.
    bad = damaged("bad", "rows", "rank-00001.bin", 1500)
    target = {"t": distribute_tensor(torch.ones_like(table), mesh, [Shard(0)])}
    errors["damage"] = error_of(read, target, bad)
    report["zeroed"] = bool((target["t"].to_local() == 0).all()) if RANK else None
    errors["exists"] = error_of(store, rows, "rows")
    odd = {"t": rows["t"], "v": 1 if RANK == 0 else range(1)}
    errors["one_rank_cannot"] = error_of(store, odd, "odd")
    errors["two_checkpoints"] = error_of(
        read, {"t": columns["t"]}, ROOT / ("rows" if RANK == 0 else "shifted")
    )
    errors["does_not_fit"] = error_of(read, {"nothing": torch.zeros(1)}, ROOT / "rows")
    report["left"] = sorted(p.name for p in ROOT.glob("*.tmp-*"))
    report["globals"] = {name: sorted(names) for name, names in seen.items()}
    return report


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return bool(a == b)


if __name__ == "__main__":
    dist.init_process_group("gloo", init_method=f"file://{ROOT}/store", rank=RANK, world_size=2)
    (ROOT / f"rank-{RANK}.json").write_text(json.dumps(main()))
    dist.barrier()
    dist.destroy_process_group()
    # The end of the interpreter may abort while threads of torch are still there.
    os._exit(0)
