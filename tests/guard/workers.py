# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One rank of the process tests: runs every scenario in turn.

Started by test_processes.py (tests/scenarios.py), so that all share one set of processes.
"""

# mypy: disable-error-code="attr-defined,union-attr,assignment,method-assign,arg-type"

import warnings
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from securetrain.core.errors import SecureTrainError
from securetrain.guard import GradientGuard, StepRecord
from securetrain.guard import hooks as hooks_module
from securetrain.policy.schema import Gradients, GuardResponse

RANK, SIZE = (globals()[name] for name in ("RANK", "SIZE"))
SETTINGS = Gradients(warmup_steps=6)
CULPRIT = 2
ATTACK = range(8, 10)
CACHE: dict[object, Any] = {}
STEPS = 14


def build(kind, *, reduce_dtype=None):
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Linear(32, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 8)
    )
    if kind == "ddp":
        return DistributedDataParallel(model, bucket_cap_mb=0.02)
    mesh = init_device_mesh("cpu", (SIZE,))
    policy = MixedPrecisionPolicy(reduce_dtype=reduce_dtype)
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def plain_training(kind, **options):
    key = (kind, *sorted(options.items()))
    if key not in CACHE:
        CACHE[key] = train(kind, **options)
    return CACHE[key]


def batch(step, rank):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    teacher = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
    x = torch.randn(64, 32, generator=generator)
    return x, (x @ teacher).argmax(dim=1)


def train(
    kind,
    guard=None,
    *,
    attack=None,
    during=ATTACK,
    skip=(),
    steps=STEPS,
    micro=1,
    reduce_dtype=None,
    model=None,
    attached=False,
):
    """Losses of this rank, verdicts, and the trained parameters."""
    model = model or build(kind, reduce_dtype=reduce_dtype)
    if guard is not None and not attached:
        guard.attach(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses, verdicts = [], []
    for step in range(steps):
        if step in skip:
            continue
        for part in range(micro):
            last = part == micro - 1
            if isinstance(model, FSDPModule):
                model.set_requires_gradient_sync(last)
            x, y = batch(step * micro + part, RANK)
            if attack == "nan" and RANK == CULPRIT and step in during:
                x[3, 5] = float("nan")
            loss = nn.functional.cross_entropy(model(x), y)
            sign = -40.0 if attack == "flip" and RANK == CULPRIT and step in during else 1.0
            if isinstance(model, DistributedDataParallel) and not last:
                with model.no_sync():
                    (sign * loss).backward()
            else:
                (sign * loss).backward()
        if guard is not None:
            verdicts.append(guard.judge(step))
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.step()
        if guard is not None and not verdicts[-1].proceed:
            after = [p.detach() for p in model.parameters()]
            assert all(_same(a, b) for a, b in zip(before, after, strict=True)), "dropped"
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    parameters = [
        p.full_tensor() if hasattr(p, "full_tensor") else p.detach().clone()
        for p in model.parameters()
    ]
    return losses, verdicts, parameters


def _same(one, other):
    local = [t.to_local() if hasattr(t, "to_local") else t for t in (one, other)]
    return torch.equal(*local)


def data(verdicts):
    return [msgspec.to_builtins(v) for v in verdicts]


def equal_training(kind):
    plain = plain_training(kind)
    result = {}
    for name, options, steps in (("one draw", {}, STEPS), ("many draws", {"retain_bytes": 1}, 6)):
        records: list[StepRecord] = []
        guard = GradientGuard(None, SETTINGS, on_record=records.append, **options)
        guarded = train(kind, guard, steps=steps)
        result[name] = {
            "losses": plain[0][:steps] == guarded[0],
            "parameters": steps < STEPS
            or all(torch.equal(a, b) for a, b in zip(plain[2], guarded[2], strict=True)),
            "refused": guard.totals.refused,
            "batches": records[-1].batches,
            "integrity": max(r.verdict.integrity or 0.0 for r in records),
            "lines": [msgspec.json.encode(r).decode() for r in records[-1:]],
        }
    return result


def attacked(kind, attack):
    """A rank attacks in two steps; the control lets it attack to the end, unguarded."""
    plain = plain_training(kind, attack=attack, during=range(4, STEPS))
    guard = GradientGuard(None, SETTINGS)
    guarded = train(kind, guard, attack=attack)
    return {
        "plain": [plain[0][3], plain[0][-1]],
        "plain_finite": all(bool(torch.isfinite(p).all()) for p in plain[2]),
        "finite": all(bool(torch.isfinite(p).all()) for p in guarded[2]),
        "guarded": [guarded[0][3], guarded[0][-1]],
        "verdicts": data(guarded[1]),
        "totals": msgspec.to_builtins(guard.totals),
        "state": guard.state_dict(),
    }


def replace_reduction(model, reduction):
    for module in model.modules():
        if isinstance(module, FSDPModule):
            group = module._get_fsdp_state()._fsdp_param_groups[0]
            group._reduce_scatter_comm._reduction = reduction


def guarded_steps(model, guard, steps=STEPS):
    """Verdicts of backward passes without an optimizer; yields before each."""
    verdicts: list[Any] = []
    for step in range(steps):
        x, y = batch(step, RANK)
        yield step, verdicts
        nn.functional.cross_entropy(model(x), y).backward()
        verdicts.append(guard.judge(step))
        model.zero_grad()
    yield steps, verdicts


def tampered_shard():
    """Rank 3's part of the reduction changes in flight: one element, by 1e-4 of it."""
    now = [0]

    def reduction(output, local, group, op):
        hooks_module.mean_reduction(output, local, group, op)
        if now[0] == 11 and RANK == 3:
            output[7] += 1e-4 * output.norm()

    model, guard = build("fsdp"), GradientGuard(None, SETTINGS)
    guard.attach(model)
    replace_reduction(model, reduction)
    for now[0], verdicts in guarded_steps(model, guard):  # noqa: B007
        pass
    return data(verdicts)


def tampered_copy():
    """Rank 3's copy of the all-reduced gradient changes: replicas would drift apart."""
    real = dist.all_reduce
    count = iter(range(10**6))

    def all_reduce(tensor, **options):
        work = real(tensor, **options)
        if options.get("async_op") and next(count) == 2 * 11 and RANK == 3:
            work.wait()
            tensor[11] += 1e-4 * tensor.norm()
        return work

    dist.all_reduce = all_reduce
    try:
        _, verdicts, _ = train("ddp", GradientGuard(None, SETTINGS))
    finally:
        dist.all_reduce = real
    return data(verdicts)


def lying_sketch(keys=1):
    """Rank 2 sends a gradient times -5 and sketches the honest one."""
    settings = msgspec.structs.replace(SETTINGS, sketch_keys=keys)
    now = [0]

    def reduction(output, local, group, op):
        lies = RANK == CULPRIT and now[0] in ATTACK
        hooks_module.mean_reduction(output, local * -5.0 if lies else local, group, op)

    model, guard = build("fsdp"), GradientGuard(None, settings)
    guard.attach(model)
    replace_reduction(model, reduction)
    for now[0], verdicts in guarded_steps(model, guard):  # noqa: B007
        pass
    return data(verdicts)


def told_another_table():
    """Rank 1 is told another table than the rest in step 11."""
    guard = GradientGuard(None, SETTINGS)
    model = build("ddp")
    guard.attach(model)
    channel, calls = guard._watches[0].channel._channel, [0]
    real = channel.all_gather

    def all_gather(row):
        rows = real(row)
        calls[0] += len(row) > 1024
        if RANK == 1 and len(row) > 1024 and calls[0] == 12:
            rows[0] = rows[0][:32] + bytes([0, 0, 192, 127]) + rows[0][36:]
        return rows

    channel.all_gather = all_gather
    model, verdicts, _ = train("ddp", guard, model=model, attached=True)
    return data(verdicts)


def broken_commitment():
    """Rank 2 reveals something that it was not committed to."""
    model, guard = build("fsdp"), GradientGuard(None, SETTINGS)
    guard.attach(model)
    chain = guard._watches[0].collector._beacon._chain
    honest = chain.next
    for step, verdicts in guarded_steps(model, guard, 9):  # noqa: B007
        lies = RANK == CULPRIT and step == 7
        chain.next = (lambda: b"\7" * 32) if lies else honest
    return data(verdicts)


def refusals():
    """What attach and judge refuse."""
    result: dict[str, str | None] = {}

    def attempt(name, call):
        try:
            call()
            result[name] = None
        except SecureTrainError as error:
            result[name] = error.code

    attempt("plain module", lambda: GradientGuard(None, SETTINGS).attach(nn.Linear(4, 4)))
    guard = GradientGuard(None, SETTINGS)
    attempt("not attached", lambda: guard.judge(0))
    model = build("fsdp")
    guard.attach(model)
    attempt("no backward", lambda: guard.judge(0))
    attempt("twice", lambda: guard.attach(model))
    ddp = build("ddp")
    GradientGuard(None, SETTINGS).attach(ddp)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        attempt("second hook", lambda: GradientGuard(None, SETTINGS).attach(ddp))
    hybrid: Any = nn.Linear(8, 8)
    mesh = init_device_mesh("cpu", (2, SIZE // 2), mesh_dim_names=("replicate", "shard"))
    fully_shard(hybrid, mesh=mesh)
    shards = mesh.get_group("shard")
    pair = dist.new_group([0, 1])
    attempt(
        "groups that differ",
        lambda: GradientGuard(
            pair if RANK < 2 else None, SETTINGS, job_group=dist.group.WORLD
        ).attach(nn.Linear(4, 4)),
    )
    attempt("other ranks", lambda: GradientGuard(shards, SETTINGS).attach(hybrid))
    guard = GradientGuard(None, SETTINGS)
    guard.attach(hybrid)
    for reduce in (False, True):
        hybrid.set_requires_all_reduce(reduce)
        hybrid(torch.ones(1, 8)).sum().backward()
    attempt("replicas left out", lambda: guard.judge(0))
    half = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    fully_shard(half[0], mesh=init_device_mesh("cpu", (SIZE,)))
    attempt("half sharded", lambda: GradientGuard(None, SETTINGS).attach(half))
    return result


def others():
    """Accumulated gradients, bf16 reduction, observe, peers."""
    result = {}
    for kind in ("fsdp", "ddp"):
        plain = train(kind, micro=2, steps=5)
        guard = GradientGuard(None, SETTINGS)
        guarded = train(kind, guard, micro=2, steps=5)
        result[f"micro {kind}"] = [plain[0] == guarded[0], guard.totals.refused]
    views = [
        DistributedDataParallel(build("ddp").module, gradient_as_bucket_view=True) for _ in range(2)
    ]
    guard = GradientGuard(None, SETTINGS)
    guarded = train("ddp", guard, model=views[0], steps=8)
    plain = train("ddp", model=views[1], steps=8)
    result["bucket view"] = [guarded[0] == plain[0], guard.totals.refused]
    plain = train("fsdp", reduce_dtype=torch.bfloat16, steps=8)
    guard = GradientGuard(None, SETTINGS)
    guarded = train("fsdp", guard, reduce_dtype=torch.bfloat16, steps=8)
    result["bf16"] = [plain[0] == guarded[0], guard.totals.refused]
    observe = msgspec.structs.replace(SETTINGS, response=GuardResponse.OBSERVE)
    guard = GradientGuard(None, observe)
    ruined = train("ddp", guard, attack="flip")
    result["observe"] = [
        ruined[0] == plain_training("ddp", attack="flip")[0],
        guard.totals.refused,
    ]
    halt = msgspec.structs.replace(SETTINGS, response=GuardResponse.HALT)
    guard = GradientGuard(None, halt)
    _, verdicts, _ = train("fsdp", guard, attack="flip", steps=11)
    result["halt"] = data(verdicts[8:11])
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    guard = GradientGuard(columns[RANK % 2], SETTINGS, job_group=pairs[RANK // 2])
    torch.manual_seed(RANK % 2)
    model = DistributedDataParallel(nn.Linear(32, 8), process_group=columns[RANK % 2])
    _, verdicts, _ = train("ddp", guard, attack="nan", model=model, steps=11)
    result["peers"] = data(verdicts)
    return result


SCENARIOS = {
    "equal fsdp": lambda: equal_training("fsdp"),
    "equal ddp": lambda: equal_training("ddp"),
    "flip fsdp": lambda: attacked("fsdp", "flip"),
    "flip ddp": lambda: attacked("ddp", "flip"),
    "nan fsdp": lambda: attacked("fsdp", "nan"),
    "nan ddp": lambda: attacked("ddp", "nan"),
    "tampered shard": tampered_shard,
    "tampered copy": tampered_copy,
    "lying sketch": lying_sketch,
    "lying sketch, two keys": lambda: lying_sketch(keys=2),
    "told another table": told_another_table,
    "broken commitment": broken_commitment,
    "refusals": refusals,
    "others": others,
}


def main():
    warnings.simplefilter("error")
    return {name: scenario() for name, scenario in SCENARIOS.items()}
