# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Saving and loading with what a program says once: key, trust, policy, clock, run, expectation.

A `Session` adds nothing to `save`, `async_save` and `load` but their arguments. Rules:

1. files are opened when they are needed, and again each time: a trust root that was replaced or
   has expired counts from then on;
2. a session of a run or name loads checkpoints of that run or name and of no other, whatever else
   is expected;
3. the step is the caller's, or the state's own ``step``; it is never guessed.
"""

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import torch.distributed as dist

from securetrain.artifacts.catalogue import Catalogue
from securetrain.artifacts.checkpoint.async_save import SaveMode, async_save
from securetrain.artifacts.checkpoint.load import load
from securetrain.artifacts.checkpoint.save import SavedCheckpoint, save
from securetrain.artifacts.checkpoint.signed_storage import SignedReader, SignedWriter
from securetrain.artifacts.given import (
    Key,
    PolicyName,
    Trust,
    check_fields,
    checked,
    moment,
    open_policy,
)
from securetrain.artifacts.lineage.judging import Freshness
from securetrain.artifacts.statement.context import SaveContext
from securetrain.artifacts.statement.expectation import Expectation
from securetrain.artifacts.statement.members import FileSigner
from securetrain.artifacts.statement.statements import CheckpointPredicate, DatasetRef, PolicyRef
from securetrain.artifacts.tree.encryption import DecryptionKey, Recipient
from securetrain.artifacts.tree.storage import Place, local_path
from securetrain.core.errors import UsageError
from securetrain.identity.trust import TrustRoot


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Key, trust, policy, clock, run and expectation of a program's saves and loads.

    Raises:
        UsageError: ST-USAG-001 for a field that is not what it may be. Files are opened later.

    >>> session = Session(key="key.pem", trust="trust.json", run="toy")
    >>> session.save({"weight": torch.ones(2), "step": 13}, "step-13").path
    PosixPath('step-13')
    >>> session.load({"weight": torch.zeros(2)}, "step-13").step
    13
    """

    key: Key | None = field(default=None, repr=False)
    """Signs, or its file or URI; rank 0 alone opens it. None loads only, and under ``securetrain
    run`` the launcher signs."""
    trust: Trust | None = None
    """The keys that may sign checkpoints, or the file or folder of a trust root. None saves only.
    """
    policy: PolicyName | None = None
    """The demands on a checkpoint, named in those that are saved; a shipped policy's name or a
    file. None asks for integrity and signature."""
    clock: Callable[[], datetime] = lambda: moment(None)
    """The time, with its zone."""
    run: str = ""
    """The run that saves; that of ``securetrain run`` when empty. Given, no other run's checkpoint
    is loaded."""
    name: str = ""
    """The name that is signed; the run's when empty. Given, nothing of another name is loaded."""
    expect: Expectation | None = None
    """More that is expected of whatever is loaded."""
    dataset: DatasetRef = field(default_factory=DatasetRef)
    signer: FileSigner | None = field(default=None, repr=False)
    """This rank's own key; see `save`."""
    recipients: Sequence[Recipient] = ()
    """The keys that open what is saved; see `save`."""
    keys: Sequence[DecryptionKey] = field(default=(), repr=False)
    """The keys that open what is loaded; see `load`."""
    freshness: Freshness | None = None
    """This node's knowledge of the run; see `load`."""

    def __post_init__(self) -> None:
        check_fields(self)

    @checked
    def save(
        self,
        state_dict: dict[str, Any],
        path: Place,
        *,
        step: int | None = None,
        context: SaveContext | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> SavedCheckpoint:
        """Save and sign a checkpoint; see `save`. Every rank of the group calls it.

        Args:
            state_dict: see `save`.
            path: see `save`.
            step: optimizer steps that led to this state; by default what it has as ``step``.
            context: instead of `step`, all that is signed about it (`Session.context`).
            process_group: see `save`.
        """
        return save(
            state_dict,
            _place(path),
            key=self.key,
            context=context or self._context(SaveContext.of(state_dict, self.run, step)),
            signer=self.signer,
            recipients=self.recipients,
            process_group=process_group,
        )

    @checked
    def async_save(
        self,
        state_dict: dict[str, Any],
        path: Place,
        *,
        step: int | None = None,
        context: SaveContext | None = None,
        process_group: dist.ProcessGroup | None = None,
        mode: SaveMode = SaveMode.THREAD,
    ) -> Future[SavedCheckpoint]:
        """Copy the state and save it in the background; see `async_save` and `Session.save`."""
        return async_save(
            state_dict,
            _place(path),
            key=self.key,
            context=context or self._context(SaveContext.of(state_dict, self.run, step)),
            signer=self.signer,
            recipients=self.recipients,
            process_group=process_group,
            mode=mode,
        )

    @checked
    def load(
        self,
        state_dict: dict[str, Any],
        path: Place,
        *,
        expect: Expectation | None = None,
        strict: bool = True,
        whole: Collection[str] | None = None,
        catalogue: Catalogue | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> CheckpointPredicate:
        """Load a signed checkpoint in place; see `load`. Every rank of the group calls it.

        Args:
            state_dict: see `load`.
            path: see `load`.
            expect: what is expected besides what the session expects.
            strict: see `load`.
            whole: see `load`.
            catalogue: see `load`.
            process_group: see `load`.
        """
        return load(
            state_dict,
            path if catalogue is not None else _place(path),
            trust=self._trust(),
            policy=self.policy,
            now=self.clock(),
            process_group=process_group,
            strict=strict,
            whole=whole,
            freshness=self.freshness,
            keys=self.keys,
            expect=self._expected(expect),
            catalogue=catalogue,
        )

    @checked
    def writer(self, path: Place, step: int, *, context: SaveContext | None = None) -> SignedWriter:
        """A writer of one checkpoint for ``dcp.save`` or ``dcp.async_save``."""
        return SignedWriter(
            _place(path),
            context=context or self.context(step),
            key=self.key,
            signer=self.signer,
            recipients=self.recipients,
        )

    @checked
    def reader(self, path: Place, *, expect: Expectation | None = None) -> SignedReader:
        """A reader for ``dcp.load``."""
        return SignedReader(
            _place(path),
            trust=self._trust(),
            policy=self.policy,
            now=self.clock(),
            expect=self._expected(expect),
            freshness=self.freshness,
            keys=self.keys,
        )

    @checked
    def context(self, step: int) -> SaveContext:
        """All that this session says of a checkpoint; `dataclasses.replace` adds the rest."""
        return self._context(SaveContext.of({}, self.run, step))

    def _context(self, known: SaveContext) -> SaveContext:
        policy = open_policy(self.policy)
        named = PolicyRef()
        if policy is not None:
            named = PolicyRef(id=policy.policy.metadata.id, digest=policy.digest)
        return replace(
            known, name=self.name, created=self.clock(), dataset=self.dataset, policy=named
        )

    def _trust(self) -> TrustRoot | Path | str:
        if self.trust is None:
            raise UsageError(
                "ST-USAG-001",
                "nothing says whose checkpoints may be loaded",
                "Session.trust",
                "give the session a trust root, or its file",
            )
        return self.trust

    def _expected(self, more: Expectation | None) -> Expectation | None:
        """The expectations of run, name, session and call together (rule 2)."""
        mine = Expectation(run=self.run or None, name=self.name or None)
        for other in (self.expect, more):
            mine = mine if other is None else mine.and_also(other)
        return None if mine == Expectation() else mine


def _place(path: Place) -> Place:
    """A place whose path is a `Path`, so that it comes back as one."""
    return path if not isinstance(path, str) else local_path(path) or path
