# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Accelerate: what is prepared is guarded, states are signed when saved and verified when loaded.

Accelerate's own hooks come too early for a signature (before the files are written) and cannot
name another folder to load from, so ``save_state`` and ``load_state`` of the one accelerator are
wrapped. Rules:

1. a state is signed when all ranks have saved;
2. a state is loaded from a verified private copy, before anything of it is parsed: some of its
   files are pickles. Without ``input_dir`` that is the one with the highest number, as Accelerate
   chooses it; one that is not signed is refused;
3. objects that were registered for checkpointing lie in the folder and are covered.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from securetrain.core.errors import UsageError
from securetrain.integrations.custody import Custody, KeyLike, Place, custody
from securetrain.integrations.transformers_hooks import judged_first
from securetrain.integrations.versions import framework
from securetrain.integrations.watching import Watch, watch
from securetrain.policy.schema import Policy

_WAY = "accelerate.save_state"


def secure_accelerator(
    accelerator: Any,
    *,
    key: KeyLike = None,
    trust: Place | None = None,
    run: str = "",
    policy: Policy | Path | str | None = None,
) -> Any:
    """Guard what an ``accelerate.Accelerator`` prepares, sign and verify its states.

    Args:
        accelerator: The accelerator, before it prepares anything.
        key: Signs, outside of ``securetrain run``.
        trust: The file of the trust root that counts, outside of ``securetrain run``.
        run: The name of this run, and of the one whose states are taken; with `key`.
        policy: Of the guard, outside of ``securetrain run``; ``baseline`` by default.

    Returns:
        The same accelerator.

    Raises:
        UsageError: ST-USAG-001, nobody signs here, or it comes too late; 004 and 019, no tested
            version is installed.
        PolicyError: the policy cannot be read.
    """
    framework("accelerate")
    if accelerator._models:  # noqa: SLF001 - there is no public list
        raise UsageError(
            "ST-USAG-001",
            "it has prepared a model already, of which the guard would not know",
            "secure_accelerator",
            "call it before accelerator.prepare",
        )
    held = custody(_WAY, key=key, trust=trust, run=run)
    accelerator.save_state = _signed(accelerator.save_state, held)
    accelerator.load_state = _verified(accelerator, accelerator.load_state, held)
    guard = watch(policy)
    if guard is not None:
        accelerator.clip_grad_norm_ = judged_first(guard, accelerator)
        accelerator.prepare_model = _taking(accelerator, accelerator.prepare_model, guard)
        accelerator.prepare = _taking(accelerator, accelerator.prepare, guard)
    return accelerator


def _taking(accelerator: Any, prepare: Callable[..., Any], guard: Watch) -> Callable[..., Any]:
    """Take what comes back: DDP's wrapper stands in no list of the accelerator."""

    @functools.wraps(prepare)
    def taken(*args: Any, **kwargs: Any) -> Any:
        from torch.nn import Module

        prepared = prepare(*args, **kwargs)
        guard.scaler(accelerator.scaler)
        for one in prepared if isinstance(prepared, tuple) else (prepared,):
            if isinstance(one, Module):
                guard.wrapped(one)
        return prepared

    return taken


def _signed(save: Callable[..., Any], held: Custody) -> Callable[..., Any]:
    @functools.wraps(save)
    def signed(*args: Any, **kwargs: Any) -> Any:
        folder = save(*args, **kwargs)
        held.sign(folder, None)
        return folder

    return signed


def _verified(accelerator: Any, load: Callable[..., Any], held: Custody) -> Callable[..., Any]:
    @functools.wraps(load)
    def verified(input_dir: Any = None, *args: Any, **kwargs: Any) -> Any:
        found = Path(input_dir).expanduser() if input_dir is not None else _newest(accelerator)
        if found is None or not found.is_dir():
            return load(input_dir, *args, **kwargs)  # which says what is missing
        with held.verified(found) as copy:
            return load(str(copy), *args, **kwargs)

    return verified


def _newest(accelerator: Any) -> Path | None:
    """The folder that Accelerate would choose."""
    settings = accelerator.project_configuration
    folder = Path(accelerator.project_dir or "", "checkpoints")
    if not settings.automatic_checkpoint_naming or not folder.is_dir():
        return None
    numbered = []
    for path in folder.iterdir():
        _, _, number = path.name.rpartition("_")
        if number.isdecimal() and path.is_dir():
            numbered.append((int(number), path))
    return max(numbered)[1] if numbered else None
