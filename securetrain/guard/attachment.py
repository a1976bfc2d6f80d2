# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A guard for a model as it is: which ranks can be compared is read from how it was wrapped.

Ranks that hold equal pieces and see other tokens are those over which DDP replicates or fully_shard
shards (and replicates) a module. No group is made here, because making one is collective over all
ranks of the job: a layout for whose ranks there is no group yet is refused.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from securetrain.core.errors import GuardError
from securetrain.guard.flat import flat_modules, has_flat, ids_of
from securetrain.guard.guard import GradientGuard
from securetrain.guard.hooks import Sharded, sharded_modules
from securetrain.guard.slots import bucket_slot
from securetrain.guard.suspicions import OnSuspicion
from securetrain.guard.verdict import StepRecord
from securetrain.guard.witness import WordSigner
from securetrain.policy.schema import Gradients, Policy


def attach(
    model: nn.Module,
    mesh: DeviceMesh | None,
    policy: Policy | Gradients,
    *,
    on_record: Callable[[StepRecord], None] | None = None,
    nodes: Sequence[int] | None = None,
    on_suspicion: OnSuspicion | None = None,
    signer: WordSigner | None = None,
) -> GradientGuard:
    """Attach a new guard to a wrapped model; the caller judges (collective).

    Args:
        model: Wrapped by DDP, fully_shard or FSDP1.
        mesh: All ranks that hold a part of it, where some hold other pieces (tensor or pipeline
            parallel); None takes the mesh that the model was sharded over.
        policy: The policy, or its section; its mode is not ``off``.
        on_record: Called once a step with the record, on every rank.
        nodes: The node of each rank of the job; see `GradientGuard`.
        on_suspicion: Told whom to report to the rendezvous; see `GradientGuard`.
        signer: Signs this rank's words in disputes; see `GradientGuard`.

    Raises:
        GuardError: ST-GRAD-006, a gradient of the model would not be seen.
    """
    settings = policy.gradients if isinstance(policy, Policy) else policy
    groups = groups_of(model)
    if len(groups) > 2:
        raise _unseen(f"it lies over {len(groups)} groups of ranks")
    pieces = _holders(model, mesh) > max((group.size() for group in groups), default=1)
    guard = GradientGuard(
        groups[0] if groups else None,
        settings,
        experts=groups[1] if len(groups) > 1 else None,
        on_record=on_record,
        job_group=dist.group.WORLD if pieces else None,
        nodes=nodes,
        on_suspicion=on_suspicion,
        signer=signer,
    )
    guard.attach(model)
    return guard


def groups_of(model: nn.Module) -> list[ProcessGroup]:
    """The groups of ranks over which a wrapped model is reduced, the largest first.

    Raises:
        GuardError: ST-GRAD-006.
    """
    if isinstance(model, DistributedDataParallel):
        return [model.process_group]
    if has_flat(model):
        return [one.group for one in flat_modules(model)[:1]]
    if not any(isinstance(module, FSDPModule) for module in model.modules()):
        raise _unseen("it is wrapped neither by DistributedDataParallel nor by fully_shard")
    found: dict[tuple[int, ...], ProcessGroup] = {}
    for one in sharded_modules([model]):
        if len(one.ranks) > 1 and one.ranks not in found:
            found[one.ranks] = _group_of(one)
    return sorted(found.values(), key=lambda group: -group.size())


def seen_parameters(model: nn.Module) -> frozenset[int]:
    """The parameters whose gradients pass the guard's hooks, by id; some may be frozen now."""
    if isinstance(model, DistributedDataParallel):
        slot = bucket_slot(model)
        return frozenset(map(id, model.parameters())) if slot is None else slot.parameters
    if has_flat(model):
        return frozenset().union(*map(ids_of, flat_modules(model)))
    return frozenset(
        id(parameter.sharded_param)
        for module in model.modules()
        if isinstance(module, FSDPModule)
        for group in module._get_fsdp_state()._fsdp_param_groups  # noqa: SLF001
        for parameter in group.fsdp_params
    )


def _group_of(one: Sharded) -> ProcessGroup:
    """The group of exactly these ranks, which somebody has made."""
    if len(one.ranks) == dist.get_world_size():
        assert dist.group.WORLD is not None
        return dist.group.WORLD
    mesh: DeviceMesh = one.group.mesh_info.mesh
    if mesh.ndim == 1:
        return mesh.get_group()
    raise _unseen(
        f"{one.chunk} is sharded and replicated over ranks {list(one.ranks)}, which are not all"
        " ranks of the job"
    )


def _holders(model: nn.Module, mesh: DeviceMesh | None) -> int:
    """The number of ranks that hold a part of the model."""
    if mesh is not None:
        return mesh.size()
    meshes: list[Any] = [
        group.mesh_info.mesh
        for module in model.modules()
        if isinstance(module, FSDPModule)
        for group in module._get_fsdp_state()._fsdp_param_groups  # noqa: SLF001
    ]
    return max((one._get_root_mesh().size() for one in meshes), default=1)  # noqa: SLF001


def _unseen(what: str) -> GuardError:
    return GuardError("ST-GRAD-006", what, "the model given to the guard")
