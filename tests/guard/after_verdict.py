# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Ranks that change numbers after the verdict, in a script that clips and knows of no guard.

Everything runs in the ranks of `securetrain.testing.processes.run_ranks`, with the seams of
`securetrain run` in place or without.
"""

# mypy: ignore-errors

import gc
import math
from importlib import import_module
from importlib.util import find_spec

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from securetrain.guard.guard import GUARDS, GradientGuard
from securetrain.guard.tensor_norms import local_of
from securetrain.launch.seams.gradients import GradientWatch
from securetrain.parallel import clip_grads, grad_norm
from securetrain.policy.schema import Gradients, GuardResponse
from tests.guard import lies

LIAR, START, STEPS = 2, 5, 9
RECORDS = []


class Watch(GradientWatch):
    def _judged(self, step):
        RECORDS.append(step.verdict)
        super()._judged(step)


WATCH = Watch(
    settings=Gradients(warmup_steps=4),
    sketches=None,
    say=lambda _line: None,
    record=lambda _make: None,
    changed=lambda: None,
)


def install(*only):
    for name, patch in WATCH.patches().items():
        if (not only or name in only) and find_spec(name.partition(".")[0]) is not None:
            patch(import_module(name))


def fresh(response):
    gc.collect()
    GUARDS.clear()
    RECORDS.clear()
    WATCH.excluded.clear()
    WATCH.named.clear()
    WATCH._guard = None
    WATCH.settings = Gradients(warmup_steps=4, response=response)


def build(kind):
    from torch.distributed.fsdp._fully_shard import _fully_shard

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 96), nn.Tanh(), nn.Linear(96, 8))
    if kind.startswith("fsdp1"):
        for index in (0, 2):
            model[index] = flat(model[index], kind)
        return flat(model, kind)
    if kind == "hsdp":
        size = dist.get_world_size()
        mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model[0], model[2]):
        _fully_shard.fully_shard(layer, mesh=mesh)
    return _fully_shard.fully_shard(model, mesh=mesh)


def flat(module, kind):
    from torch.distributed.fsdp import fully_sharded_data_parallel as fsdp1

    original = kind == "fsdp1, original parameters"
    cpu = torch.device("cpu")
    return fsdp1.FullyShardedDataParallel(module, device_id=cpu, use_orig_params=original)


def poison(value):
    """Change a number of the liar's own shards."""

    def change(grads):
        for grad in grads:
            local = local_of(grad)
            if local.numel():
                local.view(-1)[0] = value

    return change


def whole(parameter):
    """All of a parameter; of FSDP1's this rank's shard."""
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter.detach()


def times(factor):
    def change(grads):
        for grad in grads:
            local_of(grad).mul_(factor)

    return change


def train(
    kind,
    *,
    change=None,
    lie=None,
    liars=(LIAR,),
    response=GuardResponse.SKIP_STEP,
    scaler=None,
    order=2.0,
    every=lambda _grads: None,
    clips=0.05,
):
    """Train with the script's own clipping.

    Args:
        kind: fsdp or hsdp.
        change: of the liar's gradients after the verdict.
        lie: another norm, given the honest one, that it says of its shard.
        scaler: of the loss, with its flags.
        order: of the norm.
        every: what every rank does to its gradients.
    """
    from torch.nn.utils import clip_grad

    fresh(response)
    model = build(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rank, losses, norms = dist.get_rank(), [], []
    for step in range(STEPS):
        x, y = lies.batch(step, rank)
        loss = nn.functional.cross_entropy(model(x), y)
        (loss if scaler is None else scaler.scale(loss)).backward()
        lying = rank in liars and step >= START
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        if WATCH._guard is not None:
            WATCH._guard.before_use(model.parameters())
        if lying and change is not None:
            change(grads)
        if scaler is not None:
            scaler.unscale_(optimizer)
        every(grads)
        with says(lie if lying else None):
            if kind.startswith("fsdp1"):
                norm = model.clip_grad_norm_(clips, order)
            else:
                norm = clip_grad.clip_grad_norm_(model.parameters(), clips, order).full_tensor()
        norms.append(float(norm))
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    with torch.no_grad():
        x, y = lies.batch(10_000, 0, rows=2048)
        held_out = float(nn.functional.cross_entropy(model(x), y))
    return {
        "losses": losses,
        "norms": norms,
        "held_out": held_out,
        "finite": all(bool(torch.isfinite(whole(p)).all()) for p in model.parameters()),
        "scale": None if scaler is None else scaler.get_scale(),
        "verdicts": [msgspec.json.decode(msgspec.json.encode(v)) for v in RECORDS],
    }


class says:  # noqa: N801 - it reads as a word
    """A rank tells the guard another norm of its shard than it has."""

    def __init__(self, lie):
        self.lie = lie

    def __enter__(self):
        from securetrain.guard import after

        self.module, self.real = after, after.AfterVerdict.norm
        if self.lie is not None:
            real, lie = self.real, self.lie
            after.AfterVerdict.norm = lambda own, partial, **options: real(
                own, lie(partial), **options
            )

    def __exit__(self, *_error):
        self.module.AfterVerdict.norm = self.real


def flat_scaler():
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    return ShardedGradScaler("cpu", init_scale=1024.0, growth_interval=1000)


def scaler():
    return torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)


ATTACKS = {
    "nan": {"change": poison(math.nan)},
    "inf": {"change": poison(math.inf)},
    "huge": {"change": poison(1e18)},
    "times 100": {"change": times(100.0)},
    "says nan": {"lie": lambda _norm: math.nan},
    "says 1e18": {"lie": lambda _norm: 1e18},
    "says times 5": {"lie": lambda norm: 5.0 * norm},
    "says nothing": {"lie": lambda _norm: 0.0},
}


def by_hand(guarded):
    """A loop that computes its norm as `securetrain train` does; the liar writes NaN once."""
    lies.quiet()
    model = build("fsdp")
    guard = GradientGuard(None, Gradients(warmup_steps=3))
    if guarded:
        guard.attach(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses, seconds = [], []
    for step in range(STEPS):
        x, y = lies.batch(step, dist.get_rank())
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        if guarded:
            guard.judge(step)
            if step == STEPS - 2 and dist.get_rank() == LIAR:
                poison(math.nan)([p.grad for p in model.parameters()])
        norm = grad_norm(model.parameters())
        if guarded:
            grads = [p.grad for p in model.parameters()]
            after = guard.bind_norm(norm, grads)
            norm = after.value
            seconds.append(None if after.verdict is None else list(after.verdict.outliers))
            if after.drop:
                for parameter in model.parameters():
                    parameter.grad = None
        clip_grads(model.parameters(), norm, 0.1)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    finite = all(bool(torch.isfinite(p.full_tensor()).all()) for p in model.parameters())
    return {"losses": losses, "seconds": seconds, "finite": finite}


SAMPLE = ("nan", "says times 5")


def few():
    """A control, clean runs with and without, and a sample of the attacks."""
    lies.quiet()
    found = {
        "nan, plain": train("fsdp", **ATTACKS["nan"]),
        "scaled, plain": train("fsdp", scaler=scaler()),
    }
    install()
    found["scaled"] = train("fsdp", scaler=scaler())
    for name in SAMPLE:
        found[name] = train("fsdp", **ATTACKS[name])
    found["exclude"] = train("fsdp", **ATTACKS["nan"], response=GuardResponse.EXCLUDE_RANK)
    found["inf, scaled"] = train("fsdp", **ATTACKS["inf"], scaler=scaler())
    return found


def many(kind):
    """All of them."""
    lies.quiet()
    found = {"huge, plain": train(kind, **ATTACKS["huge"]), "clean, plain": train(kind)}
    orders = (1.0, 3.0, math.inf)
    found |= {f"order {order}, plain": train(kind, order=order) for order in orders}
    install()
    found["clean"] = train(kind)
    found |= {name: train(kind, **attack) for name, attack in ATTACKS.items()}
    found["observe"] = train(kind, **ATTACKS["nan"], response=GuardResponse.OBSERVE)
    found["all"] = train(kind, change=poison(math.nan), liars=range(4))
    for order in orders:
        found[f"order {order}"] = train(kind, order=order)
        found[f"order {order}, nan"] = train(kind, order=order, **ATTACKS["nan"])
    found["tokens"] = train(kind, every=times(1 / 64))
    found["tokens, huge"] = train(kind, every=times(1 / 64), **ATTACKS["huge"])
    return found


def few_flat(kind, names):
    """The same of FSDP1."""
    lies.quiet()
    orders = (2.0, 1.0, math.inf)
    found = {"nan, plain": train(kind, **ATTACKS["nan"])}
    found |= {f"order {order}, plain": train(kind, order=order) for order in orders}
    found["scaled, plain"] = train(kind, scaler=flat_scaler())
    install()
    found |= {f"order {order}": train(kind, order=order) for order in orders}
    found["scaled"] = train(kind, scaler=flat_scaler())
    found |= {name: train(kind, **ATTACKS[name]) for name in names}
    found["inf, scaled"] = train(kind, **ATTACKS["inf"], scaler=flat_scaler())
    return found
