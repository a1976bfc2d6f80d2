# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Save in the background: the trainer goes on as soon as its state has been copied.

Rules:

1. when `async_save` returns, the state is in memory of its own: what the trainer changes then is
   not saved;
2. the save itself is `save`, in one thread and over a process group of its own (Gloo), so that its
   collectives never meet the trainer's. One runs at a time: the next waits for it before it copies;
3. in mode ``process`` the bytes are written and hashed by a helper process, which has no key.
   torch's own process mode opens an unauthenticated store on every interface and pickles the
   writer; this one opens nothing and pickles nothing;
4. a process that is killed leaves the last committed checkpoint and a temporary directory.
"""

import base64
import os
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.stateful import Stateful

from securetrain.artifacts.checkpoint.containers import FileWriter
from securetrain.artifacts.checkpoint.helper import ANSWER_LIMIT, Answer, Request
from securetrain.artifacts.checkpoint.save import SavedCheckpoint, run_save
from securetrain.artifacts.checkpoint.writer import Writer
from securetrain.artifacts.given import Key, checked
from securetrain.artifacts.statement.context import SaveContext
from securetrain.artifacts.statement.members import FileSigner
from securetrain.artifacts.tree import lease
from securetrain.artifacts.tree.encryption import Recipient
from securetrain.artifacts.tree.storage import LocalStaging, Place, Staging, shown, storage_of
from securetrain.core import canonical
from securetrain.core.errors import SecureTrainError, UsageError
from securetrain.core.hashtree import Tree, TreeParams, root_of

HELPER: Final = "securetrain.artifacts.checkpoint.helper"


class SaveMode(StrEnum):
    """The place where a background save writes and hashes."""

    THREAD = "thread"
    PROCESS = "process"


@checked
def async_save(
    state_dict: dict[str, Any],
    path: Place,
    *,
    key: Key | None = None,
    context: SaveContext | None = None,
    params: TreeParams | None = None,
    process_group: dist.ProcessGroup | None = None,
    signer: FileSigner | None = None,
    mode: SaveMode = SaveMode.THREAD,
    recipients: Sequence[Recipient] = (),
) -> Future[SavedCheckpoint]:
    """Copy the state and save it in the background. Every rank of the group calls it.

    Args:
        state_dict: see `save`.
        path: see `save`.
        key: see `save`.
        context: see `save`.
        params: see `save`.
        process_group: see `save`; a group of the same ranks is made for the background.
        signer: see `save`.
        mode: whether a thread of this process writes, or a helper process (local directories only).
        recipients: see `save`.

    Returns:
        A future; its result, or its error, is that of `save`.

    >>> about = SaveContext(run_id="toy", step=15, created=now)
    >>> saving = async_save({"weight": torch.ones(2)}, "step-15", key="key.pem", context=about)
    >>> saving.result().path
    PosixPath('step-15')
    """
    storage = storage_of(path)
    mode = SaveMode(mode)
    _background.wait()
    group = _background.group(process_group)
    output = None
    if mode is SaveMode.PROCESS:
        if not isinstance(storage.staging("0"), LocalStaging):
            raise UsageError(
                "ST-USAG-001",
                "a helper process writes to local directories only",
                storage.name,
                "use SaveMode.THREAD",
            )
        output = InHelper()
    writer = Writer(
        storage=storage,
        key=key,
        signer=signer,
        context=context or SaveContext.of(state_dict),
        params=params,
        output=output,
        recipients=recipients,
    )
    staged = _copy(state_dict)
    lease.guard()  # here is the main thread, as a rule; the save is in another one
    return _background.submit(staged, writer, group, shown(path))


def _copy(state_dict: dict[str, Any]) -> dict[str, Any]:
    """The state in CPU memory of its own."""
    plain = {
        name: value.state_dict() if isinstance(value, Stateful) else value
        for name, value in state_dict.items()
    }
    options = StagingOptions(
        use_pinned_memory=False,
        use_shared_memory=False,
        use_async_staging=False,
        use_non_blocking_copy=False,
    )
    stager = DefaultStager(options)
    try:
        staged = stager.stage(_replaced(plain, _hold))
        assert isinstance(staged, dict)
        held: dict[str, Any] = _replaced(staged, _release)
        return held
    finally:
        stager.close()


@dataclass(slots=True)
class _Held:
    """A sparse tensor, which torch's stager cannot copy: it is copied already."""

    tensor: torch.Tensor

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Held":
        return self


def _hold(value: Any) -> Any:
    sparse = isinstance(value, torch.Tensor) and value.layout is not torch.strided
    return _Held(value.detach().clone().cpu()) if sparse else value


def _release(value: Any) -> Any:
    return value.tensor if isinstance(value, _Held) else value


def _replaced(value: Any, one: Callable[[Any], Any]) -> Any:
    """The same nested dicts and lists, with what `one` puts in the place of each leaf."""
    if type(value) in {dict, OrderedDict}:
        return type(value)((name, _replaced(inner, one)) for name, inner in value.items())
    if type(value) is list:
        return [_replaced(inner, one) for inner in value]
    return one(value)


class _Background:
    """The one thread and the groups of this process."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._pending: Future[SavedCheckpoint] | None = None
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
        self._world: Any = None

    def wait(self) -> None:
        """Wait for the save before; how it ended is told by its own future."""
        if self._pending is not None:
            self._pending.exception()
            self._pending = None

    def group(self, given: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
        """A group of the same ranks for this thread alone; made at the first save (collective)."""
        if not dist.is_initialized():
            return None
        if self._world is not dist.group.WORLD:
            self._world, self._groups = dist.group.WORLD, {}
        ranks = tuple(dist.get_process_group_ranks(given or dist.group.WORLD))
        if ranks not in self._groups:
            made = dist.new_group(list(ranks), backend="gloo", use_local_synchronization=True)
            self._groups[ranks] = made
        return self._groups[ranks]

    def submit(
        self,
        staged: dict[str, Any],
        writer: Writer,
        group: dist.ProcessGroup | None,
        path: Path | str,
    ) -> Future[SavedCheckpoint]:
        """Begin to save."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending = self._pool.submit(run_save, staged, writer, group, path)
        return self._pending


_background: Final = _Background()


class InHelper:
    """Gathers a file in memory and has a helper process write and hash it."""

    @contextmanager
    def open(
        self, staging: Staging, name: str, params: TreeParams, alignment: int
    ) -> Iterator[FileWriter]:
        """See `containers.Output`."""
        assert isinstance(staging, LocalStaging)
        fd = os.memfd_create(f"checkpoint-{name}", os.MFD_CLOEXEC)
        try:
            gathered = _Gathered(fd, params, alignment)
            yield gathered
            gathered.leaves = _ask(staging, name, gathered)
        finally:
            os.close(fd)


@dataclass(slots=True)
class _Gathered:
    """A file in memory."""

    fd: int
    params: TreeParams
    alignment: int
    size: int = 0
    leaves: bytes = b""

    def write(self, data: memoryview) -> int:
        """See `containers.FileWriter`."""
        start = self.size + -self.size % self.alignment
        done = 0
        while done < len(data):
            done += os.pwrite(self.fd, data[done:], start + done)
        self.size = start + len(data)
        os.ftruncate(self.fd, self.size)
        return start

    def finish(self) -> Tree:
        """See `containers.FileWriter`."""
        root = root_of(self.params, self.size, self.leaves)
        return Tree(self.params, self.size, self.leaves, root)


def _ask(staging: LocalStaging, name: str, gathered: _Gathered) -> bytes:
    """Have the file written; returns its leaf table."""
    if gathered.size == 0:
        staging.put(name, b"")
        return b""
    request = Request(
        fd=gathered.fd,
        size=gathered.size,
        folder=str(staging.folder),
        name=name,
        durable=staging.durable,
        algorithm=gathered.params.algorithm,
        leaf_size=gathered.params.leaf_size,
    )
    done = subprocess.run(
        [sys.executable, "-P", "-m", HELPER],
        input=canonical.encode(request),
        stdout=subprocess.PIPE,
        pass_fds=[gathered.fd],
        check=False,
    )
    try:
        answer = canonical.decode(done.stdout, Answer, limit=ANSWER_LIMIT)
    except SecureTrainError as error:
        ended = f"was killed by signal {-done.returncode}" if done.returncode < 0 else "failed"
        raise OSError(f"the helper process {ended} and said nothing of the file") from error
    if answer.errno:
        raise OSError(answer.errno, os.strerror(answer.errno), str(staging.folder / name))
    if answer.error:
        raise OSError(f"the helper process: {answer.error}")
    return base64.b64decode(answer.leaves, validate=True)
