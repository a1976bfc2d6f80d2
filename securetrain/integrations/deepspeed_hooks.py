# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed: its checkpoints signed and verified. Its gradients are not watched, which is said.

Rules:

1. ``save_checkpoint`` writes a directory, named by its tag, on all ranks: it is signed when all
   have returned;
2. ``load_checkpoint`` unpickles everything (``weights_only=False``), so it reads a verified private
   copy. The file ``latest`` only chooses a tag: one that is no plain name is refused, and what it
   chooses must be signed;
3. the engine reduces gradients by itself, inside of its ZeRO optimizers: no hook sees what a rank
   delivered before it is summed. The first step says NOT WATCHED, and a policy that requires the
   guard refuses it (ST-GRAD-020).
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from securetrain.core.errors import UsageError
from securetrain.core.files import read_file, unsafe_name
from securetrain.integrations.custody import Custody, KeyLike, Place, custody
from securetrain.integrations.versions import framework
from securetrain.integrations.watching import Watch, watch
from securetrain.policy.schema import Policy

_WAY = "deepspeed.save_checkpoint"
_TAG_LIMIT: Final = 255


def secure_engine(
    engine: Any,
    *,
    key: KeyLike = None,
    trust: Place | None = None,
    run: str = "",
    policy: Policy | Path | str | None = None,
) -> Any:
    """Sign the checkpoints of a ``DeepSpeedEngine``, and verify what it loads.

    Args:
        engine: What ``deepspeed.initialize`` gave.
        key: Signs, outside of ``securetrain run``.
        trust: The file of the trust root that counts, outside of ``securetrain run``.
        run: The name of this run, and of the one whose checkpoints are taken; with `key`.
        policy: Says whether unwatched steps are refused, outside of ``securetrain run``.

    Returns:
        The same engine.

    Raises:
        UsageError: ST-USAG-001, nobody signs here; 004 and 019, no tested version is installed.
        PolicyError: the policy cannot be read.
    """
    framework("deepspeed")
    held = custody(_WAY, key=key, trust=trust, run=run)
    engine.save_checkpoint = _signed(engine, engine.save_checkpoint, held)
    engine.load_checkpoint = _verified(engine, engine.load_checkpoint, held)
    guard = watch(policy)
    if guard is not None:
        engine.step = _saying_so(engine.step, guard)
    return engine


def _signed(engine: Any, save: Callable[..., Any], held: Custody) -> Callable[..., Any]:
    @functools.wraps(save)
    def signed(save_dir: Any, tag: Any = None, *args: Any, **kwargs: Any) -> Any:
        chosen = _plain(str(tag) if tag is not None else f"global_step{engine.global_steps}")
        result = save(save_dir, chosen, *args, **kwargs)
        held.sign(Path(save_dir, chosen), engine.global_steps)
        return result

    return signed


def _verified(engine: Any, load: Callable[..., Any], held: Custody) -> Callable[..., Any]:
    @functools.wraps(load)
    def verified(load_dir: Any, tag: Any = None, *args: Any, **kwargs: Any) -> Any:
        chosen = str(tag) if tag is not None else newest(engine, Path(load_dir))
        if chosen is None:
            return load(load_dir, tag, *args, **kwargs)  # which says that there is none
        with held.verified(Path(load_dir, _plain(chosen))) as copy:
            return load(str(copy.parent), copy.name, *args, **kwargs)

    return verified


def newest(engine: Any, folder: Path) -> str | None:
    """The tag that DeepSpeed would take; None where it names none (rule 2).

    Raises:
        UsageError: ST-USAG-001, 002.
    """
    name = "latest_universal" if engine.load_universal_checkpoint() else "latest"
    path = folder / name
    if not path.exists():
        return None
    return _plain(read_file(path, _TAG_LIMIT).decode("utf-8", "replace").strip())


def _plain(tag: str) -> str:
    if reason := unsafe_name(tag):
        raise UsageError("ST-USAG-001", f"the tag of a checkpoint: {reason}", repr(tag[:80]))
    return tag


def _saying_so(step: Callable[..., Any], guard: Watch) -> Callable[..., Any]:
    @functools.wraps(step)
    def said(*args: Any, **kwargs: Any) -> Any:
        guard.otherwise("DeepSpeed")
        return step(*args, **kwargs)

    return said
