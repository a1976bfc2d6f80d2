# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What one of four ranks does in test_meshes.py (tests/scenarios.py), with a directory, ROOT."""

from datetime import datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from securetrain.artifacts import SaveContext, async_save, load
from securetrain.artifacts.checkpoint.async_save import SaveMode
from securetrain.artifacts.lineage.judging import Floors, Freshness
from securetrain.artifacts.lineage.machine import Floor
from securetrain.artifacts.statement.members import RankSigner
from securetrain.core.errors import SecureTrainError
from securetrain.core.hashtree import TreeParams
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRoot

RANK, ROOT = int(globals()["RANK"]), Path(globals()["ROOT"])
NOW = datetime.fromisoformat((ROOT / "now").read_text())
KEY = PrivateKey.load(ROOT / "checkpoint.pem") if RANK == 0 else None
TRUST = TrustRoot.load(ROOT / "trust.json", NOW)
NODE = RANK // 2
SIGNER = RankSigner.load(ROOT / f"node-{NODE}.pem", ROOT / f"node-{NODE}.json")
SMALL = TreeParams(leaf_size=1024)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = torch.nn.Linear(24, 36)
        self.down = torch.nn.Linear(36, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down(torch.relu(self.up(x)))
        return result


def ddp() -> tuple[Any, Any]:
    model = DistributedDataParallel(Net())
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def two_dimensional(mesh: Any) -> tuple[Any, Any]:
    model = Net()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def step(model: Any, optimizer: Any, seed: int) -> None:
    torch.manual_seed(seed)
    model(torch.randn(8, 24)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def state_of(model: Any, optimizer: Any) -> dict[str, Any]:
    return dict(zip(("model", "optim"), get_state_dict(model, optimizer), strict=True))


def full(value: Any) -> Any:
    if isinstance(value, DTensor):
        return value.full_tensor().detach().clone()
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: full(item) for key, item in value.items()}
    return value


def flat(value: Any, name: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {k: v for key, item in value.items() for k, v in flat(item, f"{name}.{key}").items()}
    return {name: value}


def equal(left: Any, right: Any) -> bool:
    first, second = flat(left), flat(right)
    return first.keys() == second.keys() and all(
        torch.equal(v, second[k]) if isinstance(v, torch.Tensor) else v == second[k]
        for k, v in first.items()
        if not k.endswith(("param_groups", "betas"))
    )


def store(state: dict[str, Any], name: str, mode: SaveMode, seq: int) -> Any:
    context = SaveContext(run_id="run-1", step=seq, seq=seq, created=NOW)
    future = async_save(
        state, ROOT / name, key=KEY, context=context, params=SMALL, signer=SIGNER, mode=mode
    )
    # Collectives of the trainer go on meanwhile, on the default group.
    for _ in range(20):
        dist.all_reduce(torch.ones(1))
    return future.result()


def read(state: dict[str, Any], name: str, known: Freshness | None = None) -> None:
    load(state, ROOT / name, trust=TRUST, policy=None, now=NOW, freshness=known)


def refusal(function: Any, *args: Any) -> str:
    try:
        function(*args)
    except SecureTrainError as error:
        return f"{error.code} {error.what}"
    return "none"


def main() -> dict[str, Any]:
    report: dict[str, Any] = {}
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model, optimizer = ddp()
    step(model, optimizer, 1)
    before = state_of(model, optimizer)
    store(before, "ddp", SaveMode.THREAD, 0)

    other, other_optimizer = two_dimensional(mesh)
    step(other, other_optimizer, 9)  # so that the optimizer has a state to load into
    target = state_of(other, other_optimizer)
    report["differs_first"] = not equal(full(target["model"]), full(before["model"]))
    read(target, "ddp")
    report["ddp_to_2d"] = equal(full(target), full(before))
    said = {"model_state_dict": target["model"], "optim_state_dict": target["optim"]}
    set_state_dict(other, other_optimizer, **said)
    step(other, other_optimizer, 2)
    trained = state_of(other, other_optimizer)
    store(trained, "2d", SaveMode.PROCESS, 1)
    again = state_of(model, optimizer)
    read(again, "2d")
    report["2d_to_ddp"] = equal(full(again), full(trained))

    # One node of two has seen number 5 of this run: nobody loads number 1.
    floors = Floors(ROOT / f"floors-{NODE}.json")
    if RANK == 3:
        floors.raise_to("run-1", Floor(seq=5, digest="5" * 64), list(_checkpoint_keys()))
    dist.barrier()
    known = Freshness(floors=floors if NODE == 1 else Floors(ROOT / "floors-0.json"))
    report["rollback"] = refusal(read, state_of(model, optimizer), "2d", known)
    report["fresh"] = refusal(
        read, state_of(model, optimizer), "2d", Freshness(floors=Floors(ROOT / f"own-{RANK}"))
    )
    report["remembered"] = (ROOT / f"own-{RANK}").exists()

    # A rank without a signer among ranks that have one.
    context = SaveContext(run_id="run-1", step=1, seq=2, created=NOW)
    lone = SIGNER if RANK else None
    report["lone"] = refusal(
        lambda: async_save(
            {"w": torch.ones(3)}, ROOT / "lone", key=KEY, context=context, signer=lone
        ).result()
    )
    # A rank that is at another step than the coordinator says.
    odd = SaveContext(run_id="run-1", step=1 if RANK != 2 else 7, seq=2, created=NOW)
    report["odd"] = refusal(
        lambda: async_save(
            {"w": torch.ones(3)}, ROOT / "odd", key=KEY, context=odd, signer=SIGNER
        ).result()
    )
    return report


def _checkpoint_keys() -> set[str]:
    from securetrain.identity.trust import TrustRole

    return set(TRUST.keys_for(TrustRole.CHECKPOINT))
