# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One rank: scripts of every kind in turn, first as they are and then under the seams.

Started by test_ranks.py with `runpy`. Globals given by the starter: RANK, SIZE, INIT, OUT,
SUITE (which scripts).
"""

# mypy: ignore-errors

import gc
import json
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from securetrain.core.errors import GuardError
from securetrain.guard import attach
from securetrain.guard.guard import GUARDS
from securetrain.launch.seams.gradients import GradientWatch
from securetrain.policy.schema import Gradients

RANK, SIZE, INIT, OUT, SUITE = (
    globals()[name] for name in ("RANK", "SIZE", "INIT", "OUT", "SUITE")
)
CULPRIT = 1
BAD = 3
STEPS = 6
SAID: list[str] = []
EVENTS: list[str] = []


class _Events:
    """Names of events instead of a ledger."""

    def __getattr__(self, name):
        return _Event(name)


class _Event:
    def __init__(self, name):
        self.name = name

    def __call__(self, **_details):
        return self.name

    def of(self, *_error):
        return self.name


WATCH = GradientWatch(
    settings=Gradients(warmup_steps=2),
    sketches=None,
    say=SAID.append,
    record=lambda make: EVENTS.append(make(_Events())),
    changed=lambda: None,
)


def install():
    for name, patch in WATCH.patches().items():
        if name.startswith("torch."):
            __import__(name)
            patch(sys.modules[name])


def fresh(**settings):
    """Forget the script before."""
    gc.collect()
    GUARDS.clear()
    SAID.clear()
    EVENTS.clear()
    WATCH.models.clear()
    WATCH.named.clear()
    WATCH._guard = None
    WATCH.settings = Gradients(warmup_steps=2, **settings)


def fully_shard(module):
    from torch.distributed.fsdp._fully_shard import _fully_shard

    return _fully_shard.fully_shard(module)


def clip(parameters):
    from torch.nn.utils import clip_grad

    clip_grad.clip_grad_norm_(parameters, 1e3)


class Net(nn.Module):
    """Two layers, and one that is used in every second step."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)
        self.sometimes = nn.Linear(16, 16)
        self.conditional = False
        self.step = 0

    def forward(self, x):
        x = torch.tanh(self.first(x))
        if self.conditional and self.step % 2:
            x = x + self.sometimes(x)
        return self.second(x)


def build(kind, *, shard_sometimes=False, **options):
    torch.manual_seed(0)
    model = Net()
    if kind == "ddp":
        return DistributedDataParallel(model, find_unused_parameters=True, **options)
    for layer in (model.first, model.second, *([model.sometimes] if shard_sometimes else [])):
        fully_shard(layer)
    return fully_shard(model)


def batch(step):
    generator = torch.Generator().manual_seed(100 * step + RANK)
    x = torch.randn(16, 8, generator=generator)
    y = (x @ torch.randn(8, 4, generator=torch.Generator().manual_seed(9))).argmax(dim=1)
    return x, y


def loss_of(model, step, bad=(BAD,)):
    x, y = batch(step)
    if step in bad and RANK == CULPRIT:
        x[0, 0] = float("nan")
    return nn.functional.cross_entropy(model(x), y)


def weights(model):
    found = []
    for parameter in model.parameters():
        full = getattr(parameter, "full_tensor", None)
        found.append((full() if full else parameter).detach().clone().flatten())
    return torch.cat(found)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)


def step_of(optimizer):
    optimizer.step()
    optimizer.zero_grad()


def train(model, step_once, bad=(BAD,), steps=STEPS):
    """Steps in which the weights moved, and the weights at the end."""
    moved = []
    for step in range(steps):
        before = weights(model)
        step_once(step, bad)
        if not torch.equal(before, weights(model)):
            moved.append(step)
    return moved, weights(model)


def plain(model, optimizer=None, *, clipped=False, micro=1, late=0, wrap_closure=False):
    optimizer = optimizer or adamw(model.parameters())

    def backward(step, bad):
        for part in range(micro):
            loss = loss_of(model, step * micro + part, [b * micro + late for b in bad])
            loss.backward()
        return loss

    def once(step, bad):
        if wrap_closure:

            def closure():
                optimizer.zero_grad()
                return backward(step, bad)

            optimizer.step(closure)
        else:
            backward(step, bad)
            if clipped:
                clip(model.parameters())
            step_of(optimizer)

    return once


def outcome(model, once, **options):
    moved, end = train(model, once, **options)
    return {"moved": moved, "finite": bool(end.isfinite().all()), **told()}


def told():
    report = WATCH.report(is_last=True)
    return {
        "judged": report.judged,
        "refused": report.refused,
        "settled": report.settled,
        "named": sorted(report.named),
        "reasons": list(report.reasons),
        "unwatched steps": report.unwatched_steps,
        "models": list(report.models),
        "said": [line for line in SAID if "NOT WATCHED" in line],
        "events": list(EVENTS),
    }


# -- scripts ---------------------------------------------------------------------------------------


def basic(kind, **options):
    model = build(kind)
    return outcome(model, plain(model, **options))


def lbfgs():
    model = build("ddp")
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)
    return outcome(model, plain(model, optimizer, wrap_closure=True))


def scaled(*, fused=False, unscale=False, bad=(BAD,)):
    model = build("ddp")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def once(step, bad):
        scaler.scale(loss_of(model, step, bad)).backward()
        if unscale:
            scaler.unscale_(optimizer)
            clip(model.parameters())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return outcome(model, once, bad=bad)


def no_sync():
    model = build("ddp")
    optimizer = adamw(model.parameters())

    def once(step, bad):
        with model.no_sync():
            loss_of(model, step, bad).backward()
        loss_of(model, step + 50, bad).backward()
        step_of(optimizer)

    return outcome(model, once)


def unreduced():
    model = build("ddp")
    optimizer = adamw(model.parameters())
    loss_of(model, 0).backward()
    step_of(optimizer)
    with model.no_sync():
        loss_of(model, 1).backward()
    optimizer.step()
    return told()


def two_optimizers():
    model = build("ddp")
    one = adamw(model.module.first.parameters())
    two = torch.optim.SGD(model.module.second.parameters(), lr=0.1, momentum=0.9)

    def once(step, bad):
        loss_of(model, step, bad).backward()
        for optimizer in (one, two):
            optimizer.step()
        model.zero_grad()

    return outcome(model, once)


def two_models():
    left, right = build("ddp"), build("fsdp")
    optimizer = adamw([*left.parameters()])
    other = adamw([*right.parameters()])

    def once(step, bad):
        loss_of(left, step, bad).backward()
        loss_of(right, step, ()).backward()
        for one in (optimizer, other):
            one.step()
            one.zero_grad()

    model = nn.ModuleList([left.module])
    return outcome(model, once)


def conditional(kind):
    model = build(kind, shard_sometimes=True)
    inner = model.module if kind == "ddp" else model
    inner.conditional = True
    run = plain(model)

    def once(step, bad):
        inner.step = step
        run(step, bad)

    return outcome(model, once)


def static_graph():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    model = DistributedDataParallel(model, static_graph=True, gradient_as_bucket_view=True)
    return outcome(model, plain(model, clipped=True))


def thawed(kind):
    torch.manual_seed(0)
    model = Net()
    model.first.requires_grad_(requires_grad=False)
    if kind == "ddp":
        model = DistributedDataParallel(model, find_unused_parameters=True)
    else:
        model = fully_shard(model)
    inner = model.module if kind == "ddp" else model
    run = plain(model)

    def once(step, bad):
        if step == 2:
            inner.first.requires_grad_(requires_grad=True)
        run(step, bad)

    return outcome(model, once)


def compressed(hook, state=None):
    model = build("ddp")
    model.register_comm_hook(state, hook)
    run = plain(model)
    moved, end = train(model, run, bad=())
    return {"moved": moved, "end": end.tolist(), **told()}


def halving(_state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    future = default_hooks.allreduce_hook(None, bucket)
    return future.then(lambda done: done.value() * 0.5)


def equal(kind, **options):
    model = build(kind)
    moved, end = train(model, plain(model, **options), bad=())
    return {"moved": moved, "end": end.tolist(), **told()}


def sparse():
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Embedding(20, 4, sparse=True), nn.Linear(4, 4))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        ids = torch.randint(0, 20, (16,), generator=torch.Generator().manual_seed(step + RANK))
        model(ids).square().sum().backward()
        step_of(optimizer)
    return told()


def unused():
    build("ddp"), build("fsdp")
    model = build("ddp")
    with torch.no_grad():
        model(batch(0)[0])
    return told()


def unwrapped(**settings):
    fresh(**settings)
    torch.manual_seed(0)
    model = Net()
    run = plain(model, clipped=True)
    try:
        return outcome(model, run, bad=())
    except GuardError as error:
        return {"code": error.code, **told()}


def outside():
    """A parameter beside the model that is watched."""
    model = build("ddp")
    scale = nn.Parameter(torch.ones(()))
    optimizer = adamw([*model.parameters(), scale])
    for step in range(2):
        (loss_of(model, step) * scale).backward()
        step_of(optimizer)
    return told()


def fsdp1(*, wraps=True, **options):
    from torch.distributed.fsdp import fully_sharded_data_parallel as module

    torch.manual_seed(0)
    model = Net()
    settings = {"device_id": torch.device("cpu"), "use_orig_params": True, **options}
    if wraps:
        for name in ("first", "second"):
            layer = getattr(model, name)
            setattr(model, name, module.FullyShardedDataParallel(layer, **settings))
    return module.FullyShardedDataParallel(model, **settings)


def flat_weights(model):
    from torch.distributed.fsdp import FullyShardedDataParallel

    with FullyShardedDataParallel.summon_full_params(model):
        return torch.cat([p.detach().clone().flatten() for p in model.parameters()])


def by_fsdp1(*, bad=(BAD,), clipped=False, micro=1, late=0, clean=False, **options):
    model = fsdp1(**options)
    optimizer = adamw(model.parameters())
    moved = []
    for step in range(STEPS):
        before = flat_weights(model)
        for part in range(micro):
            places = [] if clean else [b * micro + late for b in bad]
            loss_of(model, step * micro + part, places).backward()
        if clipped:
            model.clip_grad_norm_(1e3)
        step_of(optimizer)
        if not torch.equal(before, flat_weights(model)):
            moved.append(step)
    end = flat_weights(model)
    return {"moved": moved, "finite": bool(end.isfinite().all()), "end": end.tolist(), **told()}


def fsdp1_not_sharded():
    from torch.distributed.fsdp import ShardingStrategy

    model = fsdp1(sharding_strategy=ShardingStrategy.NO_SHARD, wraps=False)
    plain(model)(0, ())
    return told()


def fsdp1_hooked():
    from torch.distributed.algorithms._comm_hooks import default_hooks as sharded_hooks

    model = fsdp1()
    state = sharded_hooks.DefaultState(dist.group.WORLD)
    model.register_comm_hook(state, sharded_hooks.reduce_scatter_hook)
    plain(model)(0, ())
    return told()


def overflowing(who):
    """Some ranks overflow fp16 in some steps, as they do while a scaler finds its scale."""
    model = build("ddp")
    optimizer = adamw(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    scales = []

    def once(step, _bad):
        loss = loss_of(model, step, ())
        if step in who.get(RANK, ()):
            loss = loss * 1e38
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip(model.parameters())
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        optimizer.zero_grad()

    return {**outcome(model, once, steps=14), "scales": scales}


class Nested(torch.optim.AdamW):
    """A step around the one of its base."""

    def step(self, closure=None):
        return super().step(closure)


class Unknown:
    """An optimizer that torch does not know: no hook of torch's is called in its step."""

    def __init__(self, parameters):
        self.param_groups = [{"params": list(parameters)}]

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                parameter.data.add_(parameter.grad, alpha=-0.1)


class Detached(torch.optim.Optimizer):
    """A subclass that does not call what it inherits."""

    def __init__(self, parameters):
        self.param_groups = [{"params": list(parameters)}]

    step = Unknown.step


def nested(kind):
    model = build(kind)
    adamw(model.parameters())  # torch has put its hook around the base's step too
    return outcome(model, plain(model, Nested(model.parameters(), lr=0.01)))


def unknown(optimizer, kind, steps=3, **settings):
    fresh(**settings)
    model = build(kind)
    optimizer = optimizer(model.parameters())
    try:
        for step in range(steps):
            loss_of(model, step, ()).backward()
            optimizer.step()
            model.zero_grad()
    except GuardError as error:
        return {"code": error.code, "step": step, **told()}
    return told()


def several_reductions():
    """Reductions that nobody uses yet are no step."""
    model = build("fsdp")
    optimizer = adamw(model.parameters())

    def once(step, bad):
        for part in range(3):
            loss_of(model, 3 * step + part, [3 * b + 2 for b in bad]).backward()
        step_of(optimizer)

    return outcome(model, once)


def foreach():
    model = build("ddp")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1, foreach=True)
    return outcome(model, plain(model, optimizer))


def gan():
    """Two models that train each other: gradients of one pass through the other."""
    torch.manual_seed(0)
    maker = DistributedDataParallel(nn.Linear(4, 8))
    critic = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)))
    makes, judges = adamw(maker.parameters()), adamw(critic.parameters())

    def once(step, bad):
        generator = torch.Generator().manual_seed(100 * step + RANK)
        noise = torch.randn(16, 4, generator=generator)
        real = batch(step)[0]
        if step in bad and RANK == CULPRIT:
            real[0, 0] = float("nan")
        judges.zero_grad()
        loss = critic(maker(noise).detach()).square().mean() + (critic(real) - 1).square().mean()
        loss.backward()
        judges.step()
        makes.zero_grad()
        critic.requires_grad_(requires_grad=False)
        (critic(maker(noise)) - 1).square().mean().backward()
        critic.requires_grad_(requires_grad=True)
        makes.step()

    return outcome(nn.ModuleList([maker.module, critic.module]), once, bad=(BAD,))


def early_optimizer():
    torch.manual_seed(0)
    inner = Net()
    optimizer = adamw(inner.parameters())
    model = DistributedDataParallel(inner, find_unused_parameters=True)
    return outcome(model, plain(model, optimizer))


def wrapped_again():
    """A checkpoint is loaded, and the model is wrapped anew."""
    model = build("ddp")
    optimizer = adamw(model.parameters())
    plain(model, optimizer)(0, ())
    saved = model.state_dict()
    again = DistributedDataParallel(model.module, find_unused_parameters=True)
    again.load_state_dict(saved)
    del model
    return outcome(again, plain(again, optimizer))


def subgroup():
    """A model of two of the three ranks; the third trains nothing."""
    group = dist.new_group([0, 1])
    found = told()
    if RANK < 2:
        model = build("ddp", process_group=group)
        found = outcome(model, plain(model))
    dist.barrier()
    return found


def alone():
    """A group of one: nothing is averaged, and nothing is said."""
    groups = [dist.new_group([rank]) for rank in range(SIZE)]
    model = build("ddp", process_group=groups[RANK])
    return outcome(model, plain(model), bad=())


def catching():
    """A script that goes on whatever a step raises."""
    fresh(require_watched=True)
    torch.manual_seed(0)
    model = Net()
    optimizer = adamw(model.parameters())
    codes = []

    def once(step, bad):
        loss_of(model, step, ()).backward()
        try:
            optimizer.step()
        except Exception as error:  # noqa: BLE001 - such a script
            codes.append(getattr(error, "code", repr(error)))

    return {**outcome(model, once), "codes": codes}


def loading():
    """Workers of a loader are forks of a process whose model is watched."""
    model = build("ddp")
    run = plain(model)
    run(0, ())
    rows = torch.utils.data.TensorDataset(torch.arange(8.0))
    context = {"num_workers": 2, "multiprocessing_context": "fork"}
    total = sum(float(x.sum()) for [x] in torch.utils.data.DataLoader(rows, 4, **context))
    return {**outcome(model, run), "total": total}


def compiled_before():
    torch._dynamo.reset()
    torch.manual_seed(0)
    fast = torch.compile(Net(), backend="eager")
    model = DistributedDataParallel(fast, find_unused_parameters=True)
    return outcome(model, plain(model))


def power():
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    # Its first iterations reduce as torch does; the later ones need an accelerator.
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=100)
    return compressed(powerSGD_hook.powerSGD_hook, state)


def tiny(hook, size):
    """Gradients that are subnormal in fp16, from honest ranks."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 4))
    model.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def once(step, _bad):
        (loss_of(model, step, ()) * size).backward()
        step_of(optimizer)

    return outcome(model, once)


def initialized_again():
    """The group is destroyed and made again; a new model is watched there."""
    model = build("ddp")
    plain(model)(0, ())
    del model
    gc.collect()
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{INIT}-2", rank=RANK, world_size=SIZE)
    model = build("ddp")
    return outcome(model, plain(model))


def by_hand(*, judges):
    model = build("ddp")
    guard = attach(model, None, WATCH.settings)
    optimizer = adamw(model.parameters())
    for step in range(4):
        loss_of(model, step).backward()
        if judges:
            guard.judge(step)
        step_of(optimizer)
    return told()


def compiled(kind):
    torch._dynamo.reset()
    model = build(kind)
    fast = torch.compile(model, backend="eager")
    optimizer = adamw(model.parameters())
    step_once = torch.compile(optimizer.step, backend="eager") if kind == "ddp" else optimizer.step

    def once(step, bad):
        loss_of(fast, step, bad).backward()
        step_once()
        optimizer.zero_grad()

    return outcome(model, once)


def joined():
    model = DistributedDataParallel(nn.Linear(8, 4))
    optimizer = adamw(model.parameters())
    with model.join():
        for step in range(2 + RANK):
            loss_of(model, step, ()).backward()
            step_of(optimizer)
    return told()


def in_backward():
    model = build("fsdp")
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: optimizers[p].step())
    loss_of(model, 0).backward()
    return told()


def own_reduction():
    """A reduce-scatter of the script, set after the guard has moved in."""
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter

    model = build("fsdp")
    run = plain(model)
    run(0, ())
    model.second.set_custom_reduce_scatter(DefaultReduceScatter())
    run(1, ())
    return told()


def other_buffers():
    model = build("fsdp")
    model.set_allocate_memory_from_process_group_for_comm(enable=False)
    plain(model)(0, ())
    return told()


BEFORE = {
    "plain ddp": lambda: equal("ddp"),
    "plain fsdp": lambda: equal("fsdp"),
    "plain fp16": lambda: compressed(default_hooks.fp16_compress_hook),
    "plain fsdp1": lambda: by_fsdp1(clean=True),
    "ruined fsdp1": by_fsdp1,
    "plain halving": lambda: compressed(halving),
    "ruined ddp": lambda: basic("ddp"),
    "ruined fsdp": lambda: basic("fsdp"),
}
SCENARIOS = {
    "equal ddp": lambda: equal("ddp"),
    "equal fsdp": lambda: equal("fsdp"),
    "fp16": lambda: compressed(default_hooks.fp16_compress_hook),
    "halving": lambda: compressed(halving),
    "ddp": lambda: basic("ddp"),
    "fsdp": lambda: basic("fsdp"),
    "fsdp clipped": lambda: basic("fsdp", clipped=True),
    "lbfgs": lbfgs,
    "scaler": scaled,
    "accumulated early ddp": lambda: basic("ddp", micro=2),
    "no_sync": no_sync,
    "thawed ddp": lambda: thawed("ddp"),
    "unreduced": unreduced,
    "sparse": sparse,
    "unused": unused,
    "unwrapped": unwrapped,
    "unwrapped, required": lambda: unwrapped(require_watched=True),
    "outside": outside,
    "by hand": lambda: by_hand(judges=True),
    "by hand, forgotten": lambda: by_hand(judges=False),
    "in backward": in_backward,
    "own reduction": own_reduction,
    "equal fsdp1": lambda: by_fsdp1(clean=True),
    "fsdp1": by_fsdp1,
    "fsdp1 not sharded": fsdp1_not_sharded,
    "overflow": lambda: overflowing({1: (2, 9), 2: (5,)}),
    "overflow for ever": lambda: overflowing({1: range(2, 14)}),
    "alone": alone,
    "tiny fp16": lambda: tiny(default_hooks.fp16_compress_hook, 1e-6),
    "unknown ddp": lambda: unknown(Unknown, "ddp"),
    "unknown, required": lambda: unknown(Unknown, "ddp", require_watched=True),
}

MORE = {
    "fsdp1 clipped": lambda: by_fsdp1(clipped=True),
    "fsdp1 accumulated": lambda: by_fsdp1(micro=2, late=1),
    "fsdp1 flat": lambda: by_fsdp1(use_orig_params=False, wraps=False),
    "fsdp1 hooked": fsdp1_hooked,
    "overflow of all": lambda: overflowing(dict.fromkeys(range(SIZE), range(9))),
    "nested fsdp": lambda: nested("fsdp"),
    "several reductions": several_reductions,
    "gan": gan,
    "early optimizer": early_optimizer,
    "subgroup": subgroup,
    "catching": catching,
    "loading": loading,
    "foreach": foreach,
    "power": power,
    "tinier fp16": lambda: tiny(default_hooks.fp16_compress_hook, 1e-9),
    "unknown fsdp": lambda: unknown(Unknown, "fsdp"),
    "detached": lambda: unknown(Detached, "ddp"),
    "unknown, once": lambda: unknown(Unknown, "ddp", steps=1),
    "initialized again": initialized_again,
    "fsdp closure": lambda: basic("fsdp", wrap_closure=True),
    "scaler fused": lambda: scaled(fused=True),
    "accumulated ddp": lambda: basic("ddp", micro=2, late=1),
    "conditional ddp": lambda: conditional("ddp"),
    "two models": two_models,
    "thawed fsdp": lambda: thawed("fsdp"),
    "ddp closure": lambda: basic("ddp", wrap_closure=True),
    "accumulated fsdp": lambda: basic("fsdp", micro=2, late=1),
    "two optimizers": two_optimizers,
    "conditional fsdp": lambda: conditional("fsdp"),
    "static graph": static_graph,
    "nested ddp": lambda: nested("ddp"),
    "scaler unscaled": lambda: scaled(unscale=True),
    "wrapped again": wrapped_again,
    "ddp clipped": lambda: basic("ddp", clipped=True),
    "join": joined,
    "other buffers": other_buffers,
}
COMPILED = {
    "compiled before": compiled_before,
    "compiled ddp": lambda: compiled("ddp"),
    "compiled fsdp": lambda: compiled("fsdp"),
}
SUITES = {"first": (BEFORE, SCENARIOS), "more": ({}, MORE), "compiled": ({}, COMPILED)}


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{INIT}", rank=RANK, world_size=SIZE)
    seen = {}
    try:
        before, scenarios = SUITES[SUITE]
        for name, scenario in [*before.items(), ("", install), *scenarios.items()]:
            fresh()
            seen[name] = scenario()
    except BaseException:
        seen["error"] = f"{name}: {traceback.format_exc()}"
        raise
    finally:
        Path(OUT, f"rank-{RANK}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


if __name__ == "worker":
    main()
