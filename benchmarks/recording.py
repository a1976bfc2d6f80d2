# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What recording a step costs, with the ranks' tables and without."""

import hashlib
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec

from benchmarks.ab import Benchmark, Figure, Goal, Side
from securetrain.chain.records import Recorder
from securetrain.chain.rows import RowOrder
from securetrain.guard import Judged, Layout, StepTable
from securetrain.guard.openings import opening_of
from securetrain.train.kept_tables import keeper_of_tables

STEPS: Final = 8
"""Between two checkpoints."""
_SEQ: Final = 32
_WIDTH: Final = 128
ORDER: Final = RowOrder(kind="random", seed=7, split="train", starts=968, seq_len=32, batch_rows=16)


@dataclass(frozen=True, slots=True)
class Recording:
    """Processor seconds of `STEPS` steps that are recorded, and of the same without; the records'
    document is made at the end, as a save does. The model is small: of a larger one it is less.
    """

    rows: int = 16
    pairs: int = 9
    kept: bool = False
    """Whether the tables of the ranks' sketches are kept, too; their digests are in any case."""

    @property
    def name(self) -> str:
        """Short name."""
        return f"record-{self.rows}-rows" + ("-kept" if self.kept else "")

    @property
    def title(self) -> str:
        """What is compared."""
        what = "recorded, and their tables kept" if self.kept else "recorded"
        return f"steps of {self.rows} rows of {_SEQ} tokens that are {what}, against plain ones"

    @property
    def goal(self) -> Goal:
        """A hundredth."""
        return Goal(ratio=1.01)

    def run(self, order: Sequence[Side]) -> list[float]:
        """Take the steps once for each entry."""
        with tempfile.TemporaryDirectory() as folder:
            return self._run(order, Path(folder))

    def _trained(self) -> Callable[[], dict[str, Any]]:
        """Something that takes one step, and says its loss and norm."""
        import torch

        torch.manual_seed(0)
        torch.set_num_threads(1)
        layer = torch.nn.TransformerEncoderLayer(_WIDTH, 4, 4 * _WIDTH, 0.0, batch_first=True)
        model = torch.nn.TransformerEncoder(layer, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        batch = torch.randn(self.rows, _SEQ, _WIDTH)

        def step() -> dict[str, Any]:
            loss = model(batch).square().mean()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            return {"loss": loss.item(), "norm": norm.item()}

        return step

    def _recorder(self, folder: Path) -> Recorder:
        rows = msgspec.structs.replace(ORDER, batch_rows=self.rows)
        keep = keeper_of_tables(folder / "tables") if self.kept else None
        return Recorder(run="job-1", order=rows, keep=keep)

    def _run(self, order: Sequence[Side], folder: Path) -> list[float]:
        train, seconds = self._trained(), []
        tables = [said_in(step) for step in range(1, STEPS + 1)]
        for side in order:
            taken = self._recorder(folder)
            started = time.process_time()
            for step, table in enumerate(tables, 1):
                values = train()
                if side is Side.OURS:
                    taken.add(step=step, table=table, **_PLAIN, **values)
            if side is Side.OURS:
                taken.taken()
            seconds.append(time.process_time() - started)
        return seconds

    def share(self, steps: int) -> float:
        """The median over some steps of what recording one took of its own processor seconds."""
        shares, train = [], self._trained()
        with tempfile.TemporaryDirectory() as folder:
            taken = self._recorder(Path(folder))
            for step in range(1, steps + 1):
                table = said_in(step)
                started = time.process_time()
                values = train()
                trained = time.process_time()
                taken.add(step=step, table=table, **_PLAIN, **values)
                shares.append((time.process_time() - trained) / (trained - started))
        return median(shares[1:])


_PLAIN: Final[dict[str, Any]] = {"lr": 1e-4, "verdict": "clean", "watched": True}


def recording() -> Figure:
    """The share of a step that recording it takes: both parts of the same step are compared, so
    that a busy machine widens it little. The pairs tell what it does to the steps around it.
    """
    shares = {
        f"% at {rows} rows{', tables kept' if kept else ''}": 100
        * Recording(rows=rows, kept=kept).share(steps)
        for rows, kept, steps in ((16, False, 60), (16, True, 60), (256, False, 8))
    }
    return Figure(
        name="record-share",
        title="processor time of recording a step, of the step's own",
        values=shares,
        goal="<= 1 %",
        goal_met=max(shares.values()) <= 1,
    )


def said_in(step: int) -> Judged:
    """What a guard of four ranks leaves of a step of a model in three groups."""
    ranks, groups, size = 4, 3, 256
    layout = Layout(
        ranks=ranks,
        groups=tuple(f"group-{n}" for n in range(groups)),
        parts=ranks,
        size=size,
        keys=1,
        owners=tuple(range(ranks)),
        roundoff=(2.0**-24).hex(),
        near_zero=(0.0).hex(),
        batches=(tuple(f"{n}|group-{n}|4096|4|torch.float32|()|;" for n in range(groups)),),
    )
    opening = opening_of(f"batch|0|{groups}", [step.to_bytes(32, "big")] * ranks)
    return Judged(
        table=StepTable(layout=layout, unopened=((),), scaled=False, rows=_WORDS),
        seeds=(hashlib.sha256(opening).digest(),),
        openings=(opening,),
        anchors=b"",
        learned=step,
    )


_WORDS: Final = [bytes(32 + 4 * 256 * (4 + 3 * 3))] * 4
BENCHMARKS: Final[tuple[Benchmark, ...]] = (
    Recording(),
    Recording(rows=256, pairs=5),
    Recording(kept=True),
)
FIGURES: Final[dict[str, Callable[[], Figure | None]]] = {"record-share": recording}
