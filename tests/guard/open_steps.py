# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A liar in a sharded model whose unreduced gradients are not kept, or whose shards have copies."""

# mypy: ignore-errors

from contextlib import contextmanager
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

from securetrain.artifacts.statement.members import RankSigner
from securetrain.core import canonical
from securetrain.guard import GradientGuard, hooks, rereduction, watch
from securetrain.guard import flat as flat_hooks
from securetrain.policy.schema import GuardResponse
from tests.guard import lies

LIAR, START = lies.LIAR, 6
STEPS = 14
BUDGETS = {"large": 1, "small": 64 << 20}
"""Bytes that may be kept."""


def build(kind):
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Linear(32, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 8)
    )
    size = dist.get_world_size()
    if kind == "fsdp1":
        for index in (0, 2, 4):
            model[index] = flat(model[index])
        return flat(model)
    mesh = init_device_mesh("cpu", (size,))
    if kind == "hsdp":
        mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def flat(module):
    return FullyShardedDataParallel(module, device_id=torch.device("cpu"))


class Signer:
    """What a launcher does for a worker: the key is certified for the run."""

    world_size = 4

    def __init__(self, folder, run_id):
        self.run_id = run_id
        self.signer = RankSigner.load(Path(folder, "key.pem"), Path(folder, "key.cert"))
        self.certificate = self.signer.certificate
        self.kept = []

    def sign(self, message):
        return self.signer.key.sign(message)

    def keep(self, transcript, step):
        self.kept.append((step, canonical.encode(transcript)))


def train(
    kind,
    *,
    lie=None,
    budget="large",
    response=GuardResponse.SKIP_STEP,
    factor=None,
    signer=None,
):
    """Train; the liar lies in each step from START on."""
    settings = msgspec.structs.replace(lies.SETTINGS, response=response)
    model = build(kind)
    guard = GradientGuard(None, settings, retain_bytes=BUDGETS[budget], signer=signer)
    guard.attach(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rank, verdicts, opened = dist.get_rank(), [], []
    for step in range(STEPS):
        x, y = lies.batch(step, rank)
        loss = nn.functional.cross_entropy(model(x), y)
        if factor is not None and rank == LIAR and step >= START:
            loss = loss * factor
        lying = lie is not None and rank == LIAR and step >= START
        with lie(step, guard._watches[0]) if lying else nothing():
            opened.append(guard._watches[0]._open.active)
            loss.backward()
            verdicts.append(guard.judge(step))
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        x, y = lies.batch(10_000, 0, rows=2048)
        held_out = float(nn.functional.cross_entropy(model(x), y))
    return {
        "verdicts": [msgspec.json.decode(msgspec.json.encode(v)) for v in verdicts],
        "held_out": held_out,
        "opened": opened,
        "words": [] if signer is None else signer.kept,
        "finite": all(bool(torch.isfinite(lies._full(p)).all()) for p in model.parameters()),
        "evidence": [e for v in verdicts[-1:] for e in (s.evidence for s in v.table)],
    }


@contextmanager
def nothing():
    yield


@contextmanager
def sends_other_than_it_says(step, own):
    """Its gradient times -5 goes out; it sketches the honest one."""
    real = hooks._reduce_scatter

    def reduce_scatter(output, local, **options):
        return real(output, local * -5.0, **options)

    with (
        lies.patched(hooks, "_reduce_scatter", reduce_scatter),
        lies.patched(flat_hooks, "_reduce_scatter", reduce_scatter),
    ):
        yield


@contextmanager
def accuses(step, own, victims=(0,)):
    """As an owner it says that it heard something else from others."""
    with lies.scales_its_row(step, own), _with_table(heard=victims):
        yield


@contextmanager
def denies(step, own):
    """As a sender it says that it sent other numbers than it did, to one owner after another."""
    with lies.scales_its_row(step, own), _with_table(sent=(step % dist.get_world_size(),)):
        yield


@contextmanager
def complains(step, own):
    """It says that it got something else than the owners sent."""
    with lies.scales_its_row(step, own), _with_table(got=True):
        yield


@contextmanager
def _with_table(*, sent=(), heard=(), got=False):
    real = rereduction.torch.cat

    def cat(tensors, **options):
        if len(tensors) == 5 and tensors[0].ndim == 2:
            said, listened, received, mean, moment = (t.clone() for t in tensors)
            for part in sent:
                said[part % len(said)] *= 1.01
            for rank in heard:
                listened[rank] *= 1.01
            received *= 1.01 if got else 1.0
            tensors = [said, listened, received, mean, moment]
        return real(tensors, **options)

    rereduction.torch = _Torch(cat)
    try:
        yield
    finally:
        rereduction.torch = torch


@contextmanager
def is_told_another_table(step, own):
    """The rank is told in one step that rank 0 has got something else, so that it alone refuses."""
    channel = own.channel._channel
    real = channel.all_gather

    def all_gather(data):
        rows = real(data)
        if step == START and len(data) > 1024:
            at = len(data) - 4 * 1024  # two groups' received and moments: 256 numbers each
            rows[0] = rows[0][:at] + rows[1][at : at + 512] + rows[0][at + 512 :]
        return rows

    with lies.patched(channel, "all_gather", all_gather):
        yield


class _Torch:
    """Torch with another `cat`, for one module of this rank."""

    def __init__(self, cat):
        self.cat = cat

    def __getattr__(self, name):
        return getattr(torch, name)


LIES = {
    "bends a part": lies.bends_a_part,
    "scales its row": lies.scales_its_row,
    "tells another hash": lies.tells_another_hash,
    "sends other than it says": sends_other_than_it_says,
    "accuses": accuses,
    "denies": denies,
    "complains": complains,
}
FAULTS = {"nan": float("nan"), "flips": -40.0}


def two_tables():
    """What came of it, with what the ranks have read before they agreed."""
    lies.quiet()
    read, real = [], watch.CommonFinding.settle

    def settle(own, findings, *rest):
        read.append(findings.refused)
        return real(own, findings, *rest)

    with lies.patched(watch.CommonFinding, "settle", settle):
        return train("fsdp", lie=is_told_another_table) | {"read": read}


def campaign(kind, budget, names, folder="", run_id=""):
    lies.quiet()
    found = {"clean": train(kind, budget=budget)}
    for name in names:
        if name in LIES:
            signer = Signer(folder, run_id) if folder else None
            found[name] = train(kind, lie=LIES[name], budget=budget, signer=signer)
        else:
            found[name] = train(kind, factor=FAULTS[name], budget=budget)
    return found
