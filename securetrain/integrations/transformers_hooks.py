# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer: guarded, its checkpoint folders signed, and verified before a resume.

Rules:

1. a checkpoint folder is signed when all ranks have saved (``on_save``), by rank 0;
2. ``train(resume_from_checkpoint=...)`` and the best model at the end read a verified private copy,
   before Trainer parses anything of it: its state, weights, optimizer and random states;
3. ``resume_from_checkpoint=True`` takes the newest folder, as Trainer does. One that is not signed,
   such as a save that was killed, is refused: going back further is a decision.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from securetrain.integrations.custody import Custody, KeyLike, Place, custody
from securetrain.integrations.versions import framework
from securetrain.integrations.watching import Watch, watch
from securetrain.policy.schema import Policy

_WAY = "transformers.Trainer"


def secure_trainer(
    trainer: Any,
    *,
    key: KeyLike = None,
    trust: Place | None = None,
    run: str = "",
    policy: Policy | Path | str | None = None,
) -> Any:
    """Guard a ``transformers.Trainer``, sign its checkpoints, verify what it resumes from.

    Args:
        trainer: The trainer, before ``train``.
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
    framework("transformers")
    held = custody(_WAY, key=key, trust=trust, run=run)
    trainer.train = _verified_resume(trainer, trainer.train, held)
    trainer._load_best_model = _verified_best(trainer, trainer._load_best_model, held)  # noqa: SLF001 - its only seam
    guard = watch(policy)
    if guard is not None:
        trainer.accelerator.clip_grad_norm_ = judged_first(guard, trainer.accelerator)
    trainer.add_callback(_callback(trainer, held, guard))
    return trainer


def judged_first(guard: Watch, accelerator: Any) -> Callable[..., Any]:
    """Put the judging before an accelerator's clipping, which is where a norm is asked for, too."""
    clip = accelerator.clip_grad_norm_

    @functools.wraps(clip)
    def judged(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        given = [parameters] if hasattr(parameters, "grad") else list(parameters)
        guard.scaler(accelerator.scaler)
        guard.before_use(given, scaled=accelerator.scaler is not None)
        return clip(given, *args, **kwargs)

    return judged


def _callback(trainer: Any, held: Custody, guard: Watch | None) -> Any:
    from transformers import TrainerCallback

    class SecureCallback(TrainerCallback):
        """Takes the wrapped model, and signs every save."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            del args, state, control, kwargs
            if guard is not None:
                guard.wrapped(trainer.model_wrapped)

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            del args, control, kwargs
            folder = Path(trainer._get_output_dir(trial=None))  # noqa: SLF001 - as it saves
            held.sign(folder / f"checkpoint-{state.global_step}", state.global_step)

    return SecureCallback()


def _verified_resume(trainer: Any, train: Callable[..., Any], held: Custody) -> Callable[..., Any]:
    @functools.wraps(train)
    def verified(resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        from transformers.trainer_utils import get_last_checkpoint

        found = resume_from_checkpoint
        if found is True:
            found = get_last_checkpoint(trainer.args.output_dir)
        if not found:  # nothing to load, or Trainer says that there is nothing
            return train(resume_from_checkpoint, *args, **kwargs)
        with held.verified(found) as copy:
            return train(str(copy), *args, **kwargs)

    return verified


def _verified_best(trainer: Any, load: Callable[..., Any], held: Custody) -> Callable[..., Any]:
    @functools.wraps(load)
    def verified() -> Any:
        place = trainer.state.best_model_checkpoint
        with held.verified(place) as copy:
            trainer.state.best_model_checkpoint = str(copy)
            try:
                return load()
            finally:
                trainer.state.best_model_checkpoint = place

    return verified
