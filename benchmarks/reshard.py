# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""How many bytes a rank hashes for each byte that it uses, when 4 ranks' checkpoint is loaded by 2,
saved again and loaded by 8.

``python benchmarks/reshard.py RANK WORLD ROOT LEAF [SOURCE] TARGET`` is one rank; LEAF 0 leaves the
choice to the save.
"""

import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.ab import Figure

ROOT: Final = Path(__file__).resolve().parent.parent
ROWS: Final = (1000, 11008, 4096, 11008, 777, 4096)
"""Of 1024 float32 columns: odd sizes beside round ones, 126 MB in all."""
COLUMNS: Final = 1024
MOST: Final = 1.05
_TIMEOUT: Final = 280.0


def ratio() -> Figure:
    """The figure, for the leaves that a save chooses, and for leaves of 1 MiB beside them."""
    chosen = _ratios(0)
    return Figure(
        name="checkpoint-reshard",
        title="bytes hashed for each byte used when other numbers of ranks load a checkpoint",
        values={
            **chosen,
            **{f"{step}, leaves of 1 MiB": value for step, value in _ratios(1 << 20).items()},
        },
        goal=f"<= {MOST} each, with the leaves that a save chooses",
        goal_met=all(value <= MOST for value in chosen.values()),
    )


def _ratios(leaf: int) -> dict[str, float]:
    return {step: hashed / used for step, (hashed, used) in _chain(leaf).items()}


def _chain(leaf: int) -> dict[str, tuple[int, int]]:
    from securetrain.identity.keys import PrivateKey
    from securetrain.identity.trust import TrustRole, sign_root

    found = {}
    with tempfile.TemporaryDirectory(prefix="reshard-") as name:
        root = Path(name)
        key, now = PrivateKey.create(root / "key.pem"), datetime.now(UTC)
        roles = {TrustRole.CHECKPOINT: [key.public]}
        trust = sign_root(roles, PrivateKey.generate(), now, now + timedelta(days=1))
        (root / "trust.json").write_bytes(trust)
        before = ""
        for world in (4, 2, 8):
            ranks = _run(root, world, leaf, before)
            if before:
                hashed = sum(rank["hashed"] for rank in ranks)
                used = sum(rank["used"] for rank in ranks)
                found[f"{before} to {world} ranks"] = hashed, used
            before = str(world)
    return found


def _run(root: Path, world: int, leaf: int, source: str) -> list[dict[str, int]]:
    workers = [
        subprocess.Popen(
            [
                sys.executable,
                __file__,
                str(rank),
                str(world),
                str(root),
                str(leaf),
                *([source] if source else []),
                str(world),
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(world)
    ]
    try:
        if any(worker.wait(timeout=_TIMEOUT) for worker in workers):
            raise RuntimeError("a rank failed")
    finally:
        for worker in workers:
            worker.kill()
    return [json.loads((root / f"{world}-{rank}.json").read_text()) for rank in range(world)]


def main(argv: list[str]) -> None:
    """One rank: load what another number of ranks saved, if anything, and save."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    from securetrain import artifacts
    from securetrain.artifacts.statement.reading import SignedFile
    from securetrain.core.hashtree import TreeParams
    from securetrain.identity.keys import PrivateKey
    from securetrain.identity.trust import TrustRoot

    rank, world, root, leaf = int(argv[0]), int(argv[1]), Path(argv[2]), int(argv[3])
    now = datetime.now(UTC)
    dist.init_process_group(
        "gloo", init_method=f"file://{root}/rdzv-{world}", rank=rank, world_size=world
    )
    mesh = init_device_mesh("cpu", (world,))

    def whole(number: int) -> torch.Tensor:
        size = ROWS[number] * COLUMNS
        return torch.arange(size, dtype=torch.float32).reshape(ROWS[number], COLUMNS) + number

    state: dict[str, DTensor] = {
        f"w{number}": distribute_tensor(whole(number), mesh, [Shard(0)])
        for number in range(len(ROWS))
    }
    hashed = 0
    if len(argv) == 6:
        real = SignedFile.check_leaf

        def count(self: SignedFile, index: int, expected: bytes, view: memoryview) -> None:
            nonlocal hashed
            hashed += len(view)
            real(self, index, expected, view)

        good = {name: tensor.to_local().clone() for name, tensor in state.items()}
        for tensor in state.values():
            tensor.to_local().zero_()
        SignedFile.check_leaf = count  # type: ignore[method-assign]
        trust = TrustRoot.load(root / "trust.json", now)
        target: dict[str, Any] = dict(state)
        artifacts.load(target, root / f"c{argv[4]}", trust=trust, policy=None, now=now, threads=1)
        if not all(torch.equal(state[name].to_local(), good[name]) for name in good):
            raise RuntimeError("other weights were loaded than were saved")
    used = sum(tensor.to_local().nbytes for tensor in state.values())
    artifacts.save(
        dict(state),
        root / f"c{world}",
        key=PrivateKey.load(root / "key.pem") if rank == 0 else None,
        context=artifacts.SaveContext(run_id="bench", step=1, created=now),
        params=TreeParams(leaf_size=leaf) if leaf else None,
    )
    said = {"hashed": hashed, "used": used}
    (root / f"{world}-{rank}.json").write_text(json.dumps(said))
    dist.destroy_process_group()


FIGURES: Final = {"checkpoint-reshard": ratio}

if __name__ == "__main__":
    main(sys.argv[1:])
