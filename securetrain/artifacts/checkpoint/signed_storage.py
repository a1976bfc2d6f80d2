# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The signed format as a storage of torch.distributed.checkpoint, for scripts that call `dcp`.

``dcp.save(state, storage_writer=SignedWriter(...))`` and
``dcp.load(state, storage_reader=SignedReader(...))`` keep the rules of `save` and `load` under
torch's own planners. What these planners would do with pickles is done here:

1. values are taken from the planner (`lookup_object`), coded and decoded by the typed codec;
   the planner's `load_bytes`, which unpickles, is never called, and a planner that has one of its
   own is refused;
2. torch swallows what `read_metadata` raises. The reader keeps it and raises it at the next step,
   and so does whoever looks into the metadata;
3. each rank reads by the plan that it made itself, whatever comes back from the coordinator;
4. torch tells a writer nothing about a save that failed on another rank. What such a save has left
   goes with the writer, or at the end of the process;
5. a writer saves once: its context says which step that is.
"""

import os
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    create_default_local_load_plan,
)
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
)
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from securetrain.artifacts.checkpoint import values
from securetrain.artifacts.checkpoint.reader import Reader, Target
from securetrain.artifacts.checkpoint.reports import refusing
from securetrain.artifacts.checkpoint.save import check_plan, encode_values
from securetrain.artifacts.checkpoint.values import BY_NAME
from securetrain.artifacts.checkpoint.writer import Writer
from securetrain.artifacts.given import (
    Key,
    Moment,
    PolicyName,
    Trust,
    checked,
    counts_of,
    demands,
    moment,
    open_trust,
)
from securetrain.artifacts.lineage.judging import Asked, Freshness, remember
from securetrain.artifacts.statement.context import SaveContext
from securetrain.artifacts.statement.expectation import Expectation
from securetrain.artifacts.statement.members import FileSigner
from securetrain.artifacts.tree import codec, lease
from securetrain.artifacts.tree.encryption import DecryptionKey, Recipient
from securetrain.artifacts.tree.foreign import Parts, part_name
from securetrain.artifacts.tree.storage import Place, Staging, storage_of
from securetrain.core.errors import SecureTrainError, UsageError
from securetrain.core.hashtree import TreeParams

_FIT: Final = "ST-USAG-012"
_PLAN: Final = "ST-USAG-013"


class SignedWriter(Writer):
    """Writes one signed checkpoint, for ``dcp.save`` and ``dcp.async_save``.

    The result's `storage_data` is the checkpoint's digest and the save's id.

    Args:
        path: see `save`; a ``checkpoint_id`` that is given to torch takes its place.
        context: see `save`.
        key: signs for the trust role ``checkpoint``, or its file or URI, which is opened when it is
            needed: torch's process mode sends the writer to another process, and a key that is
            open is not sent. Only rank 0 needs one, and none under ``securetrain run``.
        params: see `save`.
        signer: see `save`.
        recipients: see `save`.
    """

    @checked
    def __init__(
        self,
        path: Place,
        *,
        context: SaveContext,
        key: Key | None = None,
        params: TreeParams | None = None,
        signer: FileSigner | None = None,
        recipients: Sequence[Recipient] = (),
    ) -> None:
        super().__init__(
            storage=storage_of(path),
            key=key,
            signer=signer,
            context=context,
            params=params,
            recipients=recipients,
        )
        self.begun = False
        lease.guard()  # here is the main thread, as a rule; dcp.async_save saves in another one

    def __getstate__(self) -> dict[str, Any]:
        """Give what torch's process mode sends to its helper: never a key."""
        if self.key is not None or self.signer is not None:
            raise UsageError(
                "ST-USAG-001",
                "an open key is not sent to another process",
                "key",
                "give the key's file to SignedWriter, or save in a thread",
            )
        return self.__dict__

    def reset(self, checkpoint_id: Any = None) -> None:
        """Take the place that is given to ``dcp.save`` as its ``checkpoint_id``."""
        if checkpoint_id is not None:
            self.storage = storage_of(os.fspath(checkpoint_id))

    @refusing(_PLAN)
    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: FBT001 - torch's signature
        """Learn the role; refuse a second save, and one whose ranks do not speak to each other."""
        if self.begun:
            raise UsageError(
                "ST-USAG-001",
                f"this SignedWriter has saved step {self.context.step} already",
                "storage_writer",
                "make a SignedWriter for every save",
            )
        if not kwargs.get("use_collectives", True):
            raise UsageError(
                "ST-USAG-001",
                "one statement is signed for all ranks, which must speak to each other",
                "use_collectives",
                "leave it out",
            )
        self.begun = True
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)

    @refusing(_PLAN)
    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Refuse what the format cannot hold, before anything is written."""
        check_plan(plan)
        for item in plan.items:
            data = item.tensor_data
            if data is not None and data.properties.layout is not torch.strided:
                raise UsageError(
                    _PLAN,
                    "torch's planner does not take a sparse tensor apart",
                    item.index.fqn,
                    "save with securetrain.artifacts.save or Session.save",
                )
        return super().prepare_local_plan(plan)

    @refusing(_PLAN)
    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Begin, and make sure that what a failed save leaves goes with this writer (rule 4)."""
        if not all(plan.usable for plan in plans):
            raise _cached()
        made = super().prepare_global_plan(plans)
        self._leftover = weakref.finalize(self, _discard, self.staging, os.getpid())
        return made

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's file."""
        try:
            return super().write_data(plan, planner)
        except BaseException:
            self.clean_up()
            raise

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Sign, and give the directory its name."""
        try:
            super().finish(metadata, results)
        except BaseException:
            self.clean_up()
            raise
        self._leftover.detach()

    def coded(self, plan: SavePlan, planner: SavePlanner) -> Mapping[str, codec.Coded]:
        """The values of this rank, coded (rule 1)."""
        if getattr(planner, "_enable_plan_caching", False):
            raise _cached()
        if not isinstance(planner, DefaultSavePlanner):
            raise UsageError(
                "ST-USAG-001",
                f"{type(planner).__name__} hands out its values as pickles only",
                "planner",
                "derive it from torch's DefaultSavePlanner, or leave it out",
            )
        return encode_values(plan, planner)


def _cached() -> UsageError:
    return UsageError(
        "ST-USAG-001",
        "a planner that keeps its plans would write to the save before",
        "planner",
        "leave enable_plan_caching out",
    )


def _discard(staging: Staging, pid: int) -> None:
    """Remove what is left of a save, unless this is a forked child."""
    if os.getpid() == pid:
        staging.discard()


class SignedReader(Reader):
    """Reads signed checkpoints, for ``dcp.load``.

    torch raises a `CheckpointException`, which is no Exception; its ``failures`` hold the refusals.

    Args:
        path: see `load`; a ``checkpoint_id`` that is given to torch takes its place.
        trust: see `load`.
        policy: see `load`.
        now: the time of the check; by default that of this machine.
        expect: see `load`.
        freshness: see `load`; its floors learn of the checkpoint when this rank has verified its
            part.
        keys: see `load`.
        threads: see `load`.
    """

    @checked
    def __init__(
        self,
        path: Place,
        *,
        trust: Trust,
        policy: PolicyName | None = None,
        now: Moment | None = None,
        expect: Expectation | None = None,
        freshness: Freshness | None = None,
        keys: Sequence[DecryptionKey] = (),
        threads: int | None = None,
    ) -> None:
        now = moment(now)
        asked = Asked(
            trust=open_trust(trust, now),
            policy=demands(policy),
            now=now,
            known=freshness,
            nodes=False,
            expect=expect,
            counts=counts_of(policy),
        )
        super().__init__(storage_of(path), asked, threads, keys)
        self.local = LoadPlan([])
        self.metadata = Metadata({})
        self.parts: dict[str, Tensor] = {}

    def reset(self, checkpoint_id: Any = None) -> None:
        """Take the place that is given to ``dcp.load`` as its ``checkpoint_id``."""
        if checkpoint_id is not None:
            self.storage = storage_of(os.fspath(checkpoint_id))

    # No **kwargs: see `Reader.read_metadata`.
    def read_metadata(self) -> Metadata:
        """Verify and read the index, from the beginning for every load (rule 2)."""
        self.error = self.opened = None
        self.chunks.clear()
        found = super().read_metadata()
        refused: SecureTrainError | None = self.error
        self.metadata = found if refused is None else _Refused(refused)
        return self.metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool) -> None:  # noqa: FBT001 - torch's signature
        """Raise what opening the checkpoint found."""
        if self.error is not None:
            raise self.error
        super().set_up_storage_reader(metadata, is_coordinator)

    @refusing(_FIT)
    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Keep the plan (rule 3), with the tensors that make up values."""
        coded = {entry.fqn: entry.value for entry in self.index.values}
        sizes = {entry.fqn: entry for entry in self.index.tensors}
        self.parts = {}
        for item in plan.items:
            name = item.storage_index.fqn
            if item.type is not LoadItemType.BYTE_IO:
                continue
            found = codec.parts_of(coded.get(name))
            for part in () if found is None else found.names:
                entry = sizes[part_name(name, part)]
                self.parts[entry.fqn] = torch.empty(entry.shape, dtype=BY_NAME[entry.dtype])
        inner: dict[str, Any] = dict(self.parts)
        more = create_default_local_load_plan(inner, self.metadata).items
        self.local = LoadPlan([*plan.items, *more])
        return super().prepare_local_plan(LoadPlan([]))

    @refusing("ST-USAG-010")
    def read_data(self, plan: LoadPlan, planner: LoadPlanner | Target) -> Future[None]:
        """Read, verify and place what this rank has planned."""
        del plan
        target = _Foreign(planner, self.parts)
        done = super().read_data(self.local, target)
        target.commit()
        fresh = None if self.asked is None else self.asked.known
        if fresh is not None and fresh.floors is not None:
            assert self.opened is not None
            remember(self.opened, fresh.floors)
        return done


class _Refused(Metadata):
    """The metadata of a checkpoint that was refused: looking into it raises the refusal."""

    def __init__(self, error: SecureTrainError) -> None:
        self.error = error

    def __getattr__(self, name: str) -> Any:
        if name == "state_dict_metadata":
            raise self.error
        raise AttributeError(name)


class _Foreign:
    """torch's load planner as the target of a load, with tensors of our own for parts of values."""

    def __init__(self, planner: LoadPlanner | Target, parts: dict[str, Tensor]) -> None:
        unpickling = DefaultLoadPlanner.load_bytes
        if not isinstance(planner, DefaultLoadPlanner) or type(planner).load_bytes != unpickling:
            raise UsageError(
                "ST-USAG-001",
                f"{type(planner).__name__} takes its values as pickles",
                "planner",
                "derive it from torch's DefaultLoadPlanner without a load_bytes of its own",
            )
        self.planner = planner
        self.parts = parts
        self.given: list[tuple[ReadItem, Tensor]] = []

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        """The planner's memory, or that of a part."""
        part = self.parts.get(read_item.dest_index.fqn)
        if part is not None:
            return narrow_tensor_by_index(part, read_item.dest_offsets, read_item.lengths)
        tensor: Tensor = self.planner.resolve_tensor(read_item)
        self.given.append((read_item, tensor.detach()))
        return tensor

    def commit(self) -> None:
        """Tell the planner about its tensors, after all have verified."""
        for item, tensor in self.given:
            self.planner.commit_tensor(item, tensor)

    def set_value(self, name: str, value: Any) -> None:
        """Put a decoded value where torch would put what it unpickled."""
        planner = self.planner
        current = planner.state_dict.get(name)
        if isinstance(value, Parts):
            value = values.join(value, self.parts, name)
        if isinstance(current, Tensor) and (
            not isinstance(value, Tensor)
            or (value.layout, value.shape) != (current.layout, current.shape)
        ):
            raise UsageError(_FIT, f"{name} was saved as something else than this tensor", name)
        if planner.flatten_state_dict:
            set_element(planner.original_state_dict, planner.mappings[name], value)
        else:
            # torch sets it in a copy only, where the caller never finds it.
            planner.state_dict[name] = planner.original_state_dict[name] = value
