# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Signed checkpoints against torch.distributed.checkpoint: saving and loading, in one process.

On a file system in memory where there is one (/dev/shm), so that hashing and signing is not hidden
behind a disk; and on the disk with fsync on both sides, as a job saves. Ours hashes every byte and
signs; loading verifies every byte before it is used. The stock side does neither. The direct path
reads into the target's own memory; the generic one (here: targets of another dtype) goes through a
buffer.
"""

import gc
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Final

import msgspec
import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from benchmarks.ab import Benchmark, Figure, Goal, Side
from securetrain import artifacts
from securetrain.artifacts.checkpoint.values import memory
from securetrain.artifacts.statement import members, statements
from securetrain.artifacts.tree.layout import Kind
from securetrain.artifacts.tree.storage import LocalStorage
from securetrain.core.hashtree import TreeParams, TreeWriter
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot, sign_root
from tests.artifacts.statement.worlds import node_signature_of

MEGABYTES: Final = 256
_TENSORS: Final = 16
_DISK: Final = Path(tempfile.gettempdir())
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a benchmark's own directory below it


def _state(*, filled: bool) -> dict[str, torch.Tensor]:
    elements = MEGABYTES * (1 << 20) // 4 // _TENSORS
    make = torch.randn if filled else torch.zeros
    return {f"layer.{number}.weight": make(elements) for number in range(_TENSORS)}


@contextmanager
def _folder(*, on_disk: bool = False) -> Iterator[Path]:
    base = _DISK if on_disk else _MEMORY if _MEMORY.is_dir() else None
    with (
        tempfile.TemporaryDirectory(prefix="checkpoint-", dir=base) as name,
        warnings.catch_warnings(),
    ):
        # torch says that a save without a process group assumes one process: that is the case.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield Path(name)


def _save(
    side: Side, state: dict[str, torch.Tensor], path: Path, key: PrivateKey, *, sync: bool
) -> None:
    match side:
        case Side.PLAIN:
            dcp_save(state, storage_writer=FileSystemWriter(path, sync_files=sync), no_dist=True)
        case Side.OURS:
            context = artifacts.SaveContext(run_id="bench", step=1, created=datetime.now(UTC))
            artifacts.save(state, LocalStorage(path, durable=sync), key=key, context=context)
        case _:
            raise ValueError(f"unknown side {side!r}")


@dataclass(frozen=True, slots=True)
class Save:
    """Seconds for saving."""

    sync: bool = False
    """With fsync, and on the disk."""
    pairs: int = 7

    @property
    def name(self) -> str:
        """Short name."""
        return f"checkpoint-save-{MEGABYTES}MB{'-fsync' if self.sync else ''}"

    @property
    def title(self) -> str:
        """What is compared."""
        where = "on the disk, with fsync" if self.sync else "in memory, without fsync"
        return f"signing artifacts.save against dcp.save, {where}"

    @property
    def goal(self) -> Goal:
        """Half of stock's time; three fifths where the disk decides."""
        return Goal(ratio=0.6 if self.sync else 0.48)

    def run(self, order: Sequence[Side]) -> list[float]:
        """Save once for each entry, each time into a new directory."""
        state = _state(filled=True)
        key = PrivateKey.generate()
        seconds = []
        with _folder(on_disk=self.sync) as folder:
            for number, side in enumerate(order):
                path = folder / str(number)
                gc.collect()
                started = time.perf_counter()
                _save(side, state, path, key, sync=self.sync)
                seconds.append(time.perf_counter() - started)
                shutil.rmtree(path)
        return seconds


@dataclass(frozen=True, slots=True)
class Load:
    """Seconds for loading."""

    direct: bool = True
    pairs: int = 7

    @property
    def name(self) -> str:
        """Short name."""
        return f"checkpoint-load-{MEGABYTES}MB{'' if self.direct else '-generic'}"

    @property
    def title(self) -> str:
        """What is compared."""
        how = "straight into the targets" if self.direct else "into targets of another dtype"
        return f"verifying artifacts.load against dcp.load, {how}"

    @property
    def goal(self) -> Goal:
        """Two fifths of stock's time where bytes go straight into the target, else three."""
        return Goal(ratio=0.38 if self.direct else 0.6)

    def run(self, order: Sequence[Side]) -> list[float]:
        """Load once for each entry, from one checkpoint of each kind."""
        state = _state(filled=True)
        root, key = PrivateKey.generate(), PrivateKey.generate()
        now = datetime.now(UTC)
        signed = sign_root({TrustRole.CHECKPOINT: [key.public]}, root, now, now + timedelta(days=1))
        trust = TrustRoot.parse(signed, now)
        dtype = torch.float32 if self.direct else torch.float64
        target = {name: tensor.to(dtype) for name, tensor in _state(filled=False).items()}
        seconds = []
        with _folder() as folder:
            paths = {side: folder / side for side in Side}
            for side, path in paths.items():
                _save(side, state, path, key, sync=False)
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
                if not all(torch.equal(target[name], state[name].to(dtype)) for name in state):
                    raise RuntimeError(f"the {side} side loaded other weights than were saved")
        return seconds


@dataclass(frozen=True, slots=True)
class _Ranks:
    """A statement for which the nodes of many ranks have signed, eight ranks to a node."""

    num: int

    def make(self) -> tuple[bytes, TrustRoot]:
        """Its bytes, and who may have signed it."""
        now = datetime.now(UTC)
        key, admitter = PrivateKey.generate(), PrivateKey.generate()
        nodes = [f"spiffe://t/job/r/node/{number}" for number in range(-(-self.num // 8))]
        term = (now - timedelta(hours=1), now + timedelta(hours=1))
        signers = [members.issue("r", node, term, admitter) for node in nodes]
        said = statements.CheckpointPredicate(
            run_id="r",
            step=1,
            seq=0,
            save_id="0" * 32,
            created=now,
            world_size=self.num,
            tree=statements.TreeInfo.of(TreeParams()),
            files=[
                statements.RankFile(
                    name=f"rank-{rank:05d}.bin", size=1 << 30, root="0" * 64, rank=rank
                )
                for rank in range(self.num)
            ],
            index=statements.IndexFile(name="index.json", size=1, sha256="0" * 64),
        )
        messages = members.messages_of(said)
        said = msgspec.structs.replace(
            said,
            members=sorted(signer.certificate for signer in signers),
            node_signatures=[
                node_signature_of(said, list(range(self.num))[8 * n : 8 * n + 8], signer, messages)
                for n, signer in enumerate(signers)
            ],
        )
        roles = {TrustRole.CHECKPOINT: [key.public], TrustRole.NODE: [admitter.public]}
        root = sign_root(roles, PrivateKey.generate(), now, now + timedelta(days=1))
        return statements.sign(said, "bench", key), TrustRoot.parse(root, now)


def statement(ranks: int = 1024, times: int = 9) -> Figure:
    """Milliseconds for a statement of many ranks: its own signature, and all the ranks'."""
    data, trust = _Ranks(ranks).make()
    own, every = [], []
    for _ in range(times):
        started = time.perf_counter()
        opened = statements.open_statement(data, Kind.CHECKPOINT, trust)
        middle = time.perf_counter()
        assert isinstance(opened.predicate, statements.CheckpointPredicate)
        if members.check(opened.predicate, trust, required=True):
            raise RuntimeError("the ranks' signatures do not verify")
        every.append(1000 * (time.perf_counter() - middle))
        own.append(1000 * (middle - started))
    return Figure(
        name="checkpoint-statement",
        title=f"checking the statement of {ranks} ranks, its signature and then the ranks' own",
        values={
            "ms statement": median(own),
            "ms signatures of the ranks": median(every),
            "MB": len(data) / 1e6,
        },
        goal="<= 50 ms for the statement",
        goal_met=median(own) <= 50,
    )


def parts(times: int = 7) -> Figure:
    """Milliseconds of processor for a save in memory, and for what it cannot do without: writing
    the bytes and hashing them. The reference's save beside it: no save is faster than the writing.
    """
    state, key = _state(filled=True), PrivateKey.generate()
    data = [memory(tensor) for tensor in state.values()]

    def write(path: Path) -> None:
        path.mkdir()
        with (path / "data").open("wb", buffering=0) as file:
            for one in data:
                for start in range(0, len(one), 8 << 20):
                    file.write(one[start : start + (8 << 20)])

    def hash_all(_: Path) -> None:
        tree = TreeWriter(TreeParams())
        for one in data:
            tree.update(one)
        tree.finish()

    work: dict[str, Callable[[Path], None]] = {
        "ms": lambda path: _save(Side.OURS, state, path, key, sync=False),
        "ms of write(2) alone": write,
        "ms of hashing alone": hash_all,
        "ms of dcp.save": lambda path: _save(Side.PLAIN, state, path, key, sync=False),
    }
    used: dict[str, list[float]] = {name: [] for name in work}
    with _folder() as folder:
        for _ in range(times):
            for name, do in work.items():
                started = time.process_time()
                do(folder / "x")
                used[name].append(1000 * (time.process_time() - started))
                shutil.rmtree(folder / "x", ignore_errors=True)
    least = {name: min(one) for name, one in used.items()}
    own = least["ms"] - least["ms of write(2) alone"] - least["ms of hashing alone"]
    return Figure(
        name="checkpoint-save-parts",
        title=f"processor time of saving {MEGABYTES} MB in memory, and of its parts",
        values=least,
        goal="<= 25 ms besides writing and hashing",
        goal_met=own <= 25,
    )


BENCHMARKS: Final[tuple[Benchmark, ...]] = (
    Save(),
    Save(sync=True),
    Load(),
    Load(direct=False),
)
FIGURES: Final = {"checkpoint-statement": statement, "checkpoint-save-parts": parts}
