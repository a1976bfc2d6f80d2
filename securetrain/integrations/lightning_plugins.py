# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Lightning: a callback that guards, a CheckpointIO that signs and verifies, an environment.

Rules:

1. a checkpoint file is signed by the process that wrote it, as soon as it is written;
2. a file is verified in a private copy, and only then unpickled;
3. strategies that write and read directories by themselves (FSDP, model parallel, DeepSpeed) use no
   CheckpointIO: the callback, whose ``setup`` comes before anything is restored, puts the signing
   behind their save and the verifying before their load;
4. ranks come from the launcher, which knows its workers by process, not from the environment
   alone: where the two differ, or a variable is missing, the environment is refused.
"""

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from securetrain.core import SIGNER_VARIABLE
from securetrain.core.errors import UsageError
from securetrain.identity.signing import Welcome, shared_socket
from securetrain.integrations.custody import Custody, KeyLike, Place, custody
from securetrain.integrations.versions import framework
from securetrain.integrations.watching import Watch, watch
from securetrain.policy.schema import Policy

_WAY = "lightning.Trainer"


@dataclass(frozen=True, slots=True)
class LightningHooks:
    """The arguments of a ``lightning.Trainer``."""

    callback: Any
    """One of its ``callbacks``."""
    plugins: list[Any]
    """Its ``plugins``: the CheckpointIO, and under ``securetrain run`` the environment."""


def lightning_hooks(
    *,
    key: KeyLike = None,
    trust: Place | None = None,
    run: str = "",
    policy: Policy | Path | str | None = None,
) -> LightningHooks:
    """Make the callback and the plugins of a ``lightning.Trainer``.

    Args:
        key: Signs, outside of ``securetrain run``.
        trust: The file of the trust root that counts, outside of ``securetrain run``.
        run: The name of this run, and of the one whose checkpoints are taken; with `key`.
        policy: Of the guard, outside of ``securetrain run``; ``baseline`` by default.

    Raises:
        UsageError: ST-USAG-001, nobody signs here; 004 and 019, no tested version is installed.
        PolicyError: the policy cannot be read.
    """
    framework("lightning")
    held = custody(_WAY, key=key, trust=trust, run=run)
    plugins = [_checkpoint_io(held)]
    if held.in_run:
        plugins.append(lightning_environment())
    return LightningHooks(_callback(held, watch(policy)), plugins)


def lightning_environment() -> Any:
    """Make the ClusterEnvironment of a worker of ``securetrain run`` (rule 4).

    Raises:
        UsageError: ST-USAG-001 outside of a run, or where the environment contradicts the
            launcher; 004 and 019, no tested version is installed.
        RuntimeRefusal: ST-RUNT-030, this is no worker of the launcher; 035, it does not answer.
    """
    framework("lightning")
    socket = os.environ.get(SIGNER_VARIABLE, "")
    if not socket:
        raise UsageError(
            "ST-USAG-001",
            "no launcher says which rank this is",
            "lightning_environment",
            "start the script with securetrain run; elsewhere Lightning finds its own environment",
        )
    said = shared_socket(Path(socket)).welcome()
    check_environment(said, os.environ)
    from lightning.fabric.plugins.environments import TorchElasticEnvironment

    class SecureEnvironment(TorchElasticEnvironment):
        """The ranks are those that the launcher gave."""

        def world_size(self) -> int:
            return said.world_size

        def global_rank(self) -> int:
            return said.rank

    return SecureEnvironment()


def check_environment(said: Welcome, environ: Any) -> None:
    """Compare an environment with the launcher's word (rule 4).

    Raises:
        UsageError: ST-USAG-001.
    """
    for name in ("MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK"):
        if not environ.get(name):
            raise _contradicts(f"{name} is not set")
    for name, value in (("RANK", said.rank), ("WORLD_SIZE", said.world_size)):
        if environ.get(name) != str(value):
            raise _contradicts(f"{name} is {environ.get(name)!r}, the launcher gave {value}")


def _contradicts(what: str) -> UsageError:
    fix = "leave the variables that the launcher has set as they are"
    return UsageError("ST-USAG-001", what, "the environment of this worker", fix)


def _checkpoint_io(held: Custody) -> Any:
    from lightning.fabric.plugins.io import TorchCheckpointIO

    class SecureCheckpointIO(TorchCheckpointIO):
        """Signs what it has written, and reads what it has verified."""

        def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
            super().save_checkpoint(checkpoint, path, storage_options)
            step = checkpoint.get("global_step") if isinstance(checkpoint, dict) else None
            held.sign_here(_local(path), step)

        def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> Any:
            with held.verified(_local(path)) as copy:
                return super().load_checkpoint(copy, *args, **kwargs)

        def remove_checkpoint(self, path: Any) -> None:
            super().remove_checkpoint(path)
            held.forget(_local(path))

    return SecureCheckpointIO()


def _local(path: Any) -> Path:
    text = os.fspath(path)
    if "://" in text:
        raise UsageError(
            "ST-USAG-001",
            "it is no place on a disk of this machine",
            text,
            "save to a directory, or with securetrain.artifacts, which writes to object stores",
        )
    return Path(text)


def _callback(held: Custody, guard: Watch | None) -> Any:
    from lightning.pytorch import Callback

    class SecureCallback(Callback):
        """Guards the strategy's model, and its directories."""

        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            del pl_module, stage
            secure_strategy(trainer.strategy, held)

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            del pl_module
            if guard is None:
                return
            name = type(trainer.strategy).__name__
            if "DeepSpeed" in name:
                return
            guard.scaler(getattr(trainer.precision_plugin, "scaler", None))
            guard.wrapped(trainer.strategy.model)

        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            del pl_module
            if guard is None:
                return
            if "DeepSpeed" in type(trainer.strategy).__name__:
                guard.otherwise("DeepSpeed")
            else:
                guard.optimizer_parameters(optimizer)  # clipping comes next

    return SecureCallback()


def secure_strategy(strategy: Any, held: Custody) -> None:
    """Sign and verify what a strategy writes and reads without its CheckpointIO (rule 3)."""
    from lightning.pytorch.strategies import Strategy

    if type(strategy).load_checkpoint is Strategy.load_checkpoint:
        return
    if getattr(strategy, "_secured_by", None) is held:
        return
    strategy._secured_by = held  # noqa: SLF001 - setup is called for every stage
    strategy.save_checkpoint = _signed(strategy.save_checkpoint, held)
    strategy.load_checkpoint = _verified(strategy.load_checkpoint, held)


def _signed(save: Callable[..., Any], held: Custody) -> Callable[..., Any]:
    @functools.wraps(save)
    def signed(checkpoint: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
        step = checkpoint.get("global_step")
        save(checkpoint, filepath, *args, **kwargs)
        held.sign(_local(filepath), step)

    return signed


def _verified(load: Callable[..., Any], held: Custody) -> Callable[..., Any]:
    @functools.wraps(load)
    def verified(checkpoint_path: Any, *args: Any, **kwargs: Any) -> Any:
        with held.verified(_local(checkpoint_path)) as copy:
            return load(copy, *args, **kwargs)

    return verified
