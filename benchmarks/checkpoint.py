# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Signed checkpoints against torch.distributed.checkpoint: saving and loading, in one process.

On a file system in memory where there is one (/dev/shm), so that hashing and signing is not hidden
behind a disk. Ours hashes every byte and signs; loading verifies every byte before it is used. The
stock side does neither.
"""

import gc
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import torch
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from benchmarks.ab import Benchmark, Goal, Side
from securetrain import artifacts
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot, sign_root

MEGABYTES: Final = 256
_TENSORS: Final = 16
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a benchmark's own directory below it


def _state(*, filled: bool) -> dict[str, torch.Tensor]:
    elements = MEGABYTES * (1 << 20) // 4 // _TENSORS
    make = torch.randn if filled else torch.zeros
    return {f"layer.{number}.weight": make(elements) for number in range(_TENSORS)}


@contextmanager
def _folder() -> Iterator[Path]:
    base = _MEMORY if _MEMORY.is_dir() else None
    with (
        tempfile.TemporaryDirectory(prefix="checkpoint-", dir=base) as name,
        warnings.catch_warnings(),
    ):
        # torch says that a save without a process group assumes one process: that is the case.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield Path(name)


def _save(side: Side, state: dict[str, torch.Tensor], path: Path, key: PrivateKey) -> None:
    match side:
        case Side.PLAIN:
            dcp_save(state, checkpoint_id=path, no_dist=True)
        case Side.OURS:
            context = artifacts.SaveContext(run_id="bench", step=1, created=datetime.now(UTC))
            artifacts.save(state, path, key=key, context=context)
        case _:
            raise ValueError(f"unknown side {side!r}")


@dataclass(frozen=True, slots=True)
class Save:
    """Seconds for saving."""

    name: str = f"checkpoint-save-{MEGABYTES}MB"
    title: str = "signing artifacts.save against dcp.save"
    pairs: int = 7

    @property
    def goal(self) -> Goal:
        """No slower than stock."""
        return Goal(ratio=1.0)

    def run(self, order: Sequence[Side]) -> list[float]:
        """Save once for each entry, each time into a new directory."""
        state = _state(filled=True)
        key = PrivateKey.generate()
        seconds = []
        with _folder() as folder:
            for number, side in enumerate(order):
                path = folder / str(number)
                gc.collect()
                started = time.perf_counter()
                _save(side, state, path, key)
                seconds.append(time.perf_counter() - started)
                shutil.rmtree(path)
        return seconds


@dataclass(frozen=True, slots=True)
class Load:
    """Seconds for loading."""

    name: str = f"checkpoint-load-{MEGABYTES}MB"
    title: str = "verifying artifacts.load against dcp.load"
    pairs: int = 7

    @property
    def goal(self) -> Goal:
        """No slower than stock."""
        return Goal(ratio=1.0)

    def run(self, order: Sequence[Side]) -> list[float]:
        """Load once for each entry, from one checkpoint of each kind."""
        state = _state(filled=True)
        root, key = PrivateKey.generate(), PrivateKey.generate()
        now = datetime.now(UTC)
        signed = sign_root({TrustRole.CHECKPOINT: [key.public]}, root, now, now + timedelta(days=1))
        trust = TrustRoot.parse(signed, now)
        target = _state(filled=False)
        seconds = []
        with _folder() as folder:
            paths = {side: folder / side for side in Side}
            for side, path in paths.items():
                _save(side, state, path, key)
            for side in order:
                for tensor in target.values():
                    tensor.zero_()
                gc.collect()
                started = time.perf_counter()
                match side:
                    case Side.PLAIN:
                        dcp_load(target, checkpoint_id=paths[side], no_dist=True)
                    case Side.OURS:
                        artifacts.load(target, paths[side], trust=trust, policy=None, now=now)
                    case _:
                        raise ValueError(f"unknown side {side!r}")
                seconds.append(time.perf_counter() - started)
                if not all(torch.equal(target[name], state[name]) for name in state):
                    raise RuntimeError(f"the {side} side loaded other weights than were saved")
        return seconds


BENCHMARKS: Final[tuple[Benchmark, ...]] = (Save(), Load())
