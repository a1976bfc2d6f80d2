# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""torchtitan: its trainer guarded, its checkpoints signed, and verified before they are read.

Rules:

1. a synchronous save is signed when it has returned on all ranks; one in the background when it is
   waited for, which torchtitan does before the next save and at the end. Until then it is not
   signed, and no load takes it;
2. ``.metadata`` is a pickle: the checkpoint manager reads a verified private copy. Weights of
   others (``initial_load_path``, Hugging Face's assets) need a signature of the same trust root;
3. gradients are judged after the last backward pass of a step, before torchtitan clips them.

A checkpoint folder that is a URL is refused: nothing can be verified before torch reads it.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from securetrain.core.errors import UsageError
from securetrain.integrations.custody import Custody, KeyLike, Place, custody
from securetrain.integrations.versions import framework
from securetrain.integrations.watching import Watch, watch
from securetrain.policy.schema import Policy

_WAY = "torchtitan.CheckpointManager"


def secure_titan(
    trainer: Any,
    *,
    key: KeyLike = None,
    trust: Place | None = None,
    run: str = "",
    policy: Policy | Path | str | None = None,
) -> Any:
    """Guard a ``torchtitan.trainer.Trainer``, sign its checkpoints, verify what it loads.

    Args:
        trainer: What ``config.build()`` gave, before ``train``.
        key: Signs, outside of ``securetrain run``.
        trust: The file of the trust root that counts, outside of ``securetrain run``.
        run: The name of this run, and of the one whose checkpoints are taken; with `key`.
        policy: Of the guard, outside of ``securetrain run``; ``baseline`` by default.

    Returns:
        The same trainer.

    Raises:
        UsageError: ST-USAG-001, nobody signs here; 004 and 019, no tested version is installed.
        PolicyError: the policy cannot be read.
    """
    framework("torchtitan")
    held = custody(_WAY, key=key, trust=trust, run=run)
    if trainer.checkpointer.enable:
        _secure_manager(trainer.checkpointer, held)
    guard = watch(policy)
    if guard is not None:
        _guard(trainer, guard)
    return trainer


def _secure_manager(manager: Any, held: Custody) -> None:
    if not hasattr(manager, "dcp_load"):
        raise UsageError(
            "ST-USAG-001",
            f"{type(manager).__name__} is no checkpoint manager that can be verified",
            "checkpoint",
            "use torchtitan's CheckpointManager (distributed checkpoints)",
        )
    pending: list[int] = []
    save, wait, load = manager.save, manager._wait_for_saving, manager.dcp_load  # noqa: SLF001 - its hooks

    @functools.wraps(save)
    def signed(curr_step: int, *args: Any, **kwargs: Any) -> bool:
        saved: bool = save(curr_step, *args, **kwargs)
        if saved and manager.save_future is None:
            held.sign(_place(manager, curr_step), curr_step)
        elif saved:
            pending.append(curr_step)
        return saved

    @functools.wraps(wait)
    def waited() -> None:
        wait()
        while pending:
            step = pending.pop()
            held.sign(_place(manager, step), step)

    @functools.wraps(load)
    def verified(states: Any, checkpoint_id: str, *args: Any, **kwargs: Any) -> None:
        with held.verified(_local(checkpoint_id)) as copy:
            load(states, str(copy), *args, **kwargs)

    @functools.wraps(manager.close)
    def closed(close: Callable[[], None] = manager.close) -> None:
        manager.maybe_wait_for_saving()
        close()

    manager.save, manager.dcp_load, manager.close = signed, verified, closed
    manager._wait_for_saving = waited  # noqa: SLF001 - the one place where a save has ended


def _place(manager: Any, step: int) -> Path:
    return _local(manager._create_checkpoint_id(step))  # noqa: SLF001 - as it names them


def _local(checkpoint_id: str) -> Path:
    if "://" in str(checkpoint_id):
        fix = "set checkpoint.folder to a directory"
        what = "it is no place on a disk of this machine"
        raise UsageError("ST-USAG-001", what, str(checkpoint_id), fix)
    return Path(checkpoint_id)


def _guard(trainer: Any, guard: Watch) -> None:
    """Take the model's parts, and judge after the last backward pass of a step (rule 3)."""
    for part in trainer.model_parts:
        guard.wrapped(part)
    done = 0
    step, backward = trainer.train_step, trainer.forward_backward_step

    @functools.wraps(step)
    def train_step(*args: Any, **kwargs: Any) -> Any:
        nonlocal done
        done = 0
        return step(*args, **kwargs)

    @functools.wraps(backward)
    def forward_backward_step(*args: Any, **kwargs: Any) -> Any:
        nonlocal done
        loss = backward(*args, **kwargs)
        done += 1
        if done == trainer.gradient_accumulation_steps:
            guard.before_use(p for part in trainer.model_parts for p in part.parameters())
        return loss

    trainer.train_step, trainer.forward_backward_step = train_step, forward_backward_step
