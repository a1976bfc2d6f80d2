# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Load a checkpoint: torch.distributed.checkpoint's collective load, every byte verified first.

Rules, in order:

1. each rank verifies for itself: statement, everything that is asked of it (`judging`), listing,
   index. Torch's own index is never read and there is nothing to fall back to;
2. all ranks must have opened the same checkpoint (one digest), and each reads by its own plan; when
   the newest one is asked for, each brings what its node has seen, and the one that has seen most
   decides;
3. bytes are read once, into the target's own memory or a private buffer, hashed there, and only
   then used; the bytes that are not needed are not read;
4. values are set after all tensors of this rank have verified;
5. on any failure every target of this rank is set to zero and the error is raised on all ranks.
"""

import warnings
from collections.abc import Collection, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    create_default_local_load_plan,
)
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    Metadata,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

from securetrain.artifacts.catalogue import Catalogue
from securetrain.artifacts.checkpoint import values
from securetrain.artifacts.checkpoint.reader import Reader
from securetrain.artifacts.checkpoint.reports import refusing, unwrap
from securetrain.artifacts.checkpoint.values import BY_NAME, check_host
from securetrain.artifacts.given import (
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
from securetrain.artifacts.statement.expectation import Expectation
from securetrain.artifacts.statement.statements import CheckpointPredicate
from securetrain.artifacts.tree import codec
from securetrain.artifacts.tree.encryption import DecryptionKey
from securetrain.artifacts.tree.foreign import MARK, Parts, part_name
from securetrain.artifacts.tree.storage import Place, storage_of
from securetrain.core.errors import SecureTrainError, UsageError

_FIT: Final = "ST-USAG-012"


@checked
def load(
    state_dict: dict[str, Any],
    path: Place,
    *,
    trust: Trust,
    policy: PolicyName | None = None,
    now: Moment | None = None,
    process_group: dist.ProcessGroup | None = None,
    strict: bool = True,
    whole: Collection[str] | None = None,
    threads: int | None = None,
    freshness: Freshness | None = None,
    keys: Sequence[DecryptionKey] = (),
    expect: Expectation | None = None,
    catalogue: Catalogue | None = None,
) -> CheckpointPredicate:
    """Load a signed checkpoint into `state_dict`, in place. Every rank of the group calls it.

    The mesh may be another one than it was saved on. After an error the targets are zero or hold
    verified bytes, never unverified ones; do not train on them.

    Args:
        state_dict: what to fill, as for torch.distributed.checkpoint.load.
        path: the checkpoint's directory: a path, or a URL of an object store.
        trust: the keys that may sign checkpoints: a trust root, or the path of its file or folder.
        policy: what is asked of it: a policy, a shipped one's name, or a path; None asks for
            nothing but integrity and signature. One that counts steps refuses, unless it comes with
            who counts them (`chain.counted`).
        now: the time of the check, with its zone; by default that of this machine's clock.
        process_group: the ranks that take part (default: all; none needed in a single process).
        strict: whether a name in `state_dict` that the checkpoint lacks is an error.
        whole: names of the tensors of all ranks: one that the checkpoint has besides is an error.
        threads: threads of this process that read and hash; None for what its cores and the disk
            give, divided by the ranks of this node.
        freshness: what this node knows of the run; given, the checkpoint must be the newest one.
        keys: what decrypts an encrypted checkpoint; one of them must be a recipient's.
        expect: which checkpoint is wanted (run, name, digest, step, signer); None takes any that
            the trust root's keys have signed.
        catalogue: with it, `path` is a name in this catalogue, which says where the checkpoint is
            and which one it must be.

    Returns:
        What the verified statement says.

    Raises:
        IntegrityError: ST-CKPT-100 to 200, naming the file, the bytes and the tensors.
        IntegrityError: ST-CTLG-101 to 151 when the catalogue does not say what the name means.
        UsageError: ST-USAG-012 when the state dict does not fit the checkpoint, ST-USAG-001 or 002
            when an argument is not what it may be.

    >>> state = {"weight": torch.zeros(2)}
    >>> load(state, "step-12", trust="trust.json", expect=Expectation(run="toy", step=12)).step
    12
    >>> state["weight"].sum()
    tensor(2.)
    """
    failed = asked = None
    at = moment(now)
    try:
        if catalogue is not None:
            path, expect, _ = catalogue.resolve(str(path), expect)
        root, asks = open_trust(trust, at), demands(policy)
        asked = Asked(
            trust=root,
            policy=asks,
            now=at,
            known=freshness,
            nodes=False,
            expect=expect,
            counts=counts_of(policy),
        )
    except SecureTrainError as error:
        failed = error  # raised where the other ranks hear of it
    reader = Reader(storage_of(path), asked, threads, keys)
    reader.error = failed
    try:
        with warnings.catch_warnings():
            # In a single process torch warns that it assumes a single process.
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            dcp_load(
                state_dict,
                storage_reader=reader,
                planner=_Planner(reader, strict=strict, whole=whole),
                process_group=process_group,
            )
    except CheckpointException as failure:
        raise unwrap(failure) from failure
    assert reader.opened is not None
    if freshness is not None and freshness.floors is not None:
        remember(reader.opened, freshness.floors)
    return reader.opened.checkpoint


class _Planner(DefaultLoadPlanner):
    """torch's planner, with values from the typed codec and plans that stay on their rank."""

    def __init__(self, reader: Reader, *, strict: bool, whole: Collection[str] | None) -> None:
        super().__init__(allow_partial_load=not strict)
        self.whole = whole
        self.reader = reader
        self.parts: dict[str, Parts] = {}
        self.local = LoadPlan([])

    @refusing(_FIT)
    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        metadata: Metadata | None = None,
        is_coordinator: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    ) -> None:
        """Raise what opening the checkpoint found, which torch would have swallowed."""
        check_host()
        if self.reader.error is not None:
            raise self.reader.error
        super().set_up_planner(state_dict, metadata, is_coordinator)
        self._take_parts()

    def _take_parts(self) -> None:
        """Read the tensors that make up values, as large as the signed index says."""
        coded = {entry.fqn: entry.value for entry in self.reader.index.values}
        sizes = {entry.fqn: entry for entry in self.reader.index.tensors}
        for name, target in list(self.state_dict.items()):
            parts = codec.parts_of(coded.get(name))
            if parts is None:
                if isinstance(target, Tensor) and target.layout is not torch.strided:
                    raise UsageError(_FIT, "it is sparse, and was not saved so", name)
                continue
            if isinstance(target, Tensor) and str(target.layout) != f"torch.{parts.form}":
                raise UsageError(_FIT, f"{name} was saved as {parts.form}", name)
            self.parts[name] = parts
            for part in (part_name(name, part) for part in parts.names):
                entry = sizes[part]
                self.state_dict[part] = torch.empty(entry.shape, dtype=BY_NAME[entry.dtype])

    @refusing(_FIT)
    def create_local_plan(self) -> LoadPlan:
        """Plan this rank's reads."""
        metadata = self.metadata
        assert metadata is not None
        if self.whole is not None:
            self._refuse_others(metadata, self.whole)
        for name, value in self.state_dict.items():
            entry = metadata.state_dict_metadata.get(name)
            is_value = isinstance(entry, BytesStorageMetadata)
            if (
                entry is not None
                and is_value is isinstance(value, Tensor)
                and name not in self.parts
            ):
                saved = "a value" if is_value else "a tensor"
                raise UsageError(_FIT, f"{name} was saved as {saved}", name)
        self.local = create_default_local_load_plan(
            self.state_dict, metadata, not self.allow_partial_load
        )
        return LoadPlan([])

    def _refuse_others(self, metadata: Metadata, whole: Collection[str]) -> None:
        """A part of another model may have the names and sizes of this one."""
        saved = metadata.state_dict_metadata.items()
        others = sorted(
            name
            for name, entry in saved
            if isinstance(entry, TensorStorageMetadata)
            and name not in whole
            and name.rpartition(MARK)[0] not in self.parts
        )
        if others:
            more = f" and {len(others) - 1} more" if len(others) > 1 else ""
            raise UsageError(_FIT, f"it holds {others[0]}{more}, which nothing here takes")

    def finish_plan(self, new_plan: LoadPlan) -> LoadPlan:
        """Read by the plan that this rank made, whatever came back."""
        del new_plan
        return self.local

    def load_bytes(self, read_item: ReadItem, value: Any) -> None:
        """Never called: this is where torch would unpickle."""
        del value
        raise UsageError(
            "ST-USAG-010", "a value was about to be unpickled", read_item.dest_index.fqn
        )

    def set_value(self, name: str, value: Any) -> None:
        """Put a decoded value where the state dict has it."""
        if isinstance(value, Parts):
            value = values.join(value, self.state_dict, name)
        set_element(self.original_state_dict, self.mappings[name], value)
