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
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch.distributed as dist

from securetrain.artifacts.catalogue import Catalogue
from securetrain.artifacts.checkpoint.async_save import SaveMode, async_save
from securetrain.artifacts.checkpoint.load import load
from securetrain.artifacts.checkpoint.save import SavedCheckpoint, save
from securetrain.artifacts.checkpoint.signed_storage import (
    SignedReader,
    SignedWriter,
    open_key,
    open_trust,
)
from securetrain.artifacts.lineage.freshness import Freshness
from securetrain.artifacts.statement.context import SaveContext
from securetrain.artifacts.statement.expectation import Expectation
from securetrain.artifacts.statement.members import FileSigner
from securetrain.artifacts.statement.statements import CheckpointPredicate, DatasetRef, PolicyRef
from securetrain.artifacts.statement.this_run import this_run
from securetrain.artifacts.tree.encryption import DecryptionKey, Recipient
from securetrain.artifacts.tree.storage import Place, local_path
from securetrain.core.errors import UsageError
from securetrain.identity.keys import Signer
from securetrain.identity.trust import TrustRoot
from securetrain.policy import LoadedPolicy, load_policy


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Key, trust, policy, clock, run and expectation of a program's saves and loads."""

    key: Signer | Path | str | None = field(default=None, repr=False)
    """Signs, or its file or URI; rank 0 alone opens it. None loads only, and under ``securetrain
    run`` the launcher signs."""
    trust: TrustRoot | Path | str | None = None
    """The keys that may sign checkpoints, or the file of a trust root. None saves only."""
    policy: LoadedPolicy | Path | str | None = None
    """The demands on a checkpoint, named in those that are saved; a shipped policy's name or a
    file. None asks for integrity and signature."""
    clock: Callable[[], datetime] = _now
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
            key=self._key(process_group),
            context=context or self.context(_step(state_dict, step)),
            signer=self.signer,
            recipients=self.recipients,
            process_group=process_group,
        )

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
            key=self._key(process_group),
            context=context or self.context(_step(state_dict, step)),
            signer=self.signer,
            recipients=self.recipients,
            process_group=process_group,
            mode=mode,
        )

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
        now = self.clock()
        policy = self._policy()
        return load(
            state_dict,
            path if catalogue is not None else _place(path),
            trust=open_trust(self._trust(), now),
            policy=None if policy is None else policy.policy,
            now=now,
            process_group=process_group,
            strict=strict,
            whole=whole,
            freshness=self.freshness,
            keys=self.keys,
            expect=self._expected(expect),
            catalogue=catalogue,
        )

    def writer(self, path: Place, step: int, *, context: SaveContext | None = None) -> SignedWriter:
        """A writer of one checkpoint for ``dcp.save`` or ``dcp.async_save``."""
        return SignedWriter(
            _place(path),
            context=context or self.context(step),
            key=self.key,
            signer=self.signer,
            recipients=self.recipients,
        )

    def reader(self, path: Place, *, expect: Expectation | None = None) -> SignedReader:
        """A reader for ``dcp.load``."""
        policy = self._policy()
        return SignedReader(
            _place(path),
            trust=self._trust(),
            policy=None if policy is None else policy.policy,
            now=self.clock(),
            expect=self._expected(expect),
            freshness=self.freshness,
            keys=self.keys,
        )

    def context(self, step: int) -> SaveContext:
        """All that this session says of a checkpoint; `dataclasses.replace` adds the rest."""
        policy = self._policy()
        named = PolicyRef()
        if policy is not None:
            named = PolicyRef(id=policy.policy.metadata.id, digest=policy.digest)
        return SaveContext(
            run_id=self._run_id(),
            name=self.name,
            step=step,
            created=self.clock(),
            dataset=self.dataset,
            policy=named,
        )

    def _run_id(self) -> str:
        run = None if self.run else this_run()
        if not self.run and run is None:
            raise UsageError(
                "ST-USAG-001",
                "a checkpoint is signed for a run, and none is named",
                "Session.run",
                "give the session a run, or start the script with securetrain run",
            )
        return self.run if run is None else run.run_id

    def _key(self, group: dist.ProcessGroup | None) -> Signer | None:
        """The key on the rank that signs; the others need not have its file."""
        first = not dist.is_initialized() or dist.get_rank(group) == 0
        return open_key(self.key) if first else None

    def _trust(self) -> TrustRoot | Path | str:
        if self.trust is None:
            raise UsageError(
                "ST-USAG-001",
                "nothing says whose checkpoints may be loaded",
                "Session.trust",
                "give the session a trust root, or its file",
            )
        return self.trust

    def _policy(self) -> LoadedPolicy | None:
        given = self.policy
        return load_policy(str(given)) if isinstance(given, Path | str) else given

    def _expected(self, more: Expectation | None) -> Expectation | None:
        """The expectations of run, name, session and call together (rule 2)."""
        mine = Expectation(run=self.run or None, name=self.name or None)
        for other in (self.expect, more):
            mine = mine if other is None else mine.and_also(other)
        return None if mine == Expectation() else mine


def _place(path: Place) -> Place:
    """A place whose path is a `Path`, so that it comes back as one."""
    return path if not isinstance(path, str) else local_path(path) or path


def _step(state_dict: dict[str, Any], given: int | None) -> int:
    """Rule 3."""
    found = state_dict.get("step") if given is None else given
    if type(found) is not int:
        raise UsageError(
            "ST-USAG-001",
            "nothing says at which step this is saved",
            "step",
            "give step=, or keep it in the state as 'step'",
        )
    return found
