# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Rank 0's records of training: metrics.jsonl, TensorBoard events, lines for people.

metrics.jsonl has one JSON object a line, written whole and flushed, so that a reader can follow it
while it grows. Numbers that are not finite are null. A resumed run drops the lines of steps that it
does again.
"""

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TextIO

from securetrain.core.errors import os_error
from securetrain.core.files import drop_lines_after

if TYPE_CHECKING:
    from securetrain.guard import Verdict

PEAK_FLOPS: Final[Mapping[str, float]] = {
    # dense bf16, from the vendor's data sheets; the longest name that occurs in the device's wins
    "A100": 312e12,
    "H100": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H200": 989e12,
    "B200": 2250e12,
}


def peak_flops(device_name: str | None) -> float | None:
    """Dense bf16 FLOP/s of a GPU, or None for a CPU or a device that is not in the table."""
    known = [name for name in PEAK_FLOPS if device_name is not None and name in device_name]
    return PEAK_FLOPS[max(known, key=len)] if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """One line of metrics.jsonl."""

    step: int
    loss: float
    """Nats a token, the mean over the step's tokens."""
    bits_per_byte: float | None
    """Null where tokens are more than bytes."""
    grad_norm: float
    """Before clipping."""
    tokens_per_second: float
    """Over all ranks."""
    mfu: float | None
    """Model FLOPs as a part of the GPUs' dense bf16 peak; null where the peak is not known."""
    lr: float
    seconds: float
    """Wall time of the step."""
    tokens: int
    """Tokens of all steps so far."""
    verdict: str
    """clean, refused, observed or unwatched."""
    data_seconds: float = 0.0
    """How much of it rank 0 waited for rows."""
    memory_bytes: int = 0
    """The most that rank 0 has used so far: of its GPU's memory, or else of the machine's."""
    val_loss: float | None = None
    """Nats a token on the held-out split; null between evaluations."""
    val_bits_per_byte: float | None = None
    """On the held-out split; null between evaluations."""
    unigram_bits: float | None = None
    """The score of byte frequencies alone there; only beside val_bits_per_byte."""
    bigram_bits: float | None = None
    """The score of the byte before alone there; only beside val_bits_per_byte."""
    expert_load: float | None = None
    """Tokens of the busiest expert over the mean, in the layer where that is largest; null for a
    dense model.
    """
    ended: float | None = None
    """Unix seconds at its end, by rank 0's clock."""

    def line(self) -> str:
        """The JSON text, with a newline."""
        values = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in asdict(self).items()
        }
        return json.dumps(values, allow_nan=False) + "\n"


class Exporter(Protocol):
    """A further destination of metrics."""

    def write(self, metrics: StepMetrics) -> None:
        """Take a step."""
        ...

    def close(self) -> None:
        """Write what was held back."""
        ...


class MetricsWriter:
    """Writes for one run; a context manager."""

    def __init__(
        self,
        *,
        path: Path,
        tensorboard: Path | None,
        console: TextIO | None,
        console_every: int,
        steps: int,
        resumed_at: int,
        prometheus: Exporter | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the files.

        Args:
            path: metrics.jsonl.
            tensorboard: The folder of the event files, or None.
            console: Where lines for people go, or None.
            console_every: Steps between those lines.
            steps: The run's last step.
            resumed_at: The step that the run starts after; lines of later steps are dropped.
            prometheus: Takes every step as well, or None.
            clock: Unix seconds, for people and trackers.
        """
        self._clock = clock
        self._prometheus = prometheus
        self._console = console if console_every else None
        self._console_every = console_every
        self._steps = steps
        self._board: Any = None
        drop_lines_after(path, resumed_at)
        try:
            self._file = path.open("a", encoding="ascii", buffering=1)
        except OSError as error:
            raise os_error(error, str(path)) from error
        if tensorboard is not None:
            from tensorboardX import SummaryWriter  # noqa: PLC0415 - only where it is asked for

            self._board = SummaryWriter(
                str(tensorboard), purge_step=resumed_at + 1 if resumed_at else None
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if self._prometheus is not None:
            self._prometheus.close()
        if self._board is not None:
            self._board.close()

    def write(self, metrics: StepMetrics) -> None:
        """Record one step."""
        try:
            self._file.write(replace(metrics, ended=self._clock()).line())
        except OSError as error:
            raise os_error(error, self._file.name) from error
        if self._board is not None:
            for key, value in asdict(metrics).items():
                if key != "step" and isinstance(value, int | float) and math.isfinite(value):
                    self._board.add_scalar(f"train/{key}", value, metrics.step)
        if self._prometheus is not None:
            self._prometheus.write(metrics)
        evaluated = metrics.val_loss is not None
        if self._console is not None and (evaluated or metrics.step % self._console_every == 0):
            self.say(describe(metrics, self._steps))

    def sync(self) -> None:
        """Have the steps so far on the disk: a checkpoint is not to outlive its curve."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise os_error(error, self._file.name) from error

    def write_verdict(self, verdict: "Verdict") -> None:
        """Add what the guard says of a step to TensorBoard's events, where there are any."""
        if self._board is None:
            return
        from securetrain.guard import add_verdict  # noqa: PLC0415 - only with a guard

        add_verdict(self._board, verdict)

    def rewind(self, step: int) -> None:
        """The run goes back: drop the lines of later steps, which it does again."""
        path = Path(self._file.name)
        self._file.close()
        drop_lines_after(path, step)
        try:
            self._file = path.open("a", encoding="ascii", buffering=1)
        except OSError as error:
            raise os_error(error, str(path)) from error

    def say(self, text: str) -> None:
        """One line for people."""
        if self._console is not None:
            self._console.write(text + "\n")
            self._console.flush()


def describe(metrics: StepMetrics, steps: int) -> str:
    """A step in one line."""

    def shown(nats: float, bits: float | None) -> str:
        return f"{nats:.3f} nats/token" if bits is None else f"{bits:.3f} bits/byte"

    text = (
        f"step {metrics.step:>{len(str(steps))}}/{steps}"
        f"  {shown(metrics.loss, metrics.bits_per_byte)}"
        f"  grad norm {metrics.grad_norm:.3f}"
        f"  {metrics.tokens_per_second:,.0f} tokens/s"
    )
    if metrics.mfu is not None:
        text += f"  MFU {metrics.mfu:.1%}"
    if metrics.val_loss is not None:
        text += f"  validation {metrics.val_bits_per_byte or metrics.val_loss:.3f}"
        if metrics.bigram_bits is not None:
            text += f" (bigram {metrics.bigram_bits:.3f})"
    return text if metrics.verdict in {"clean", "unwatched"} else f"{text}  {metrics.verdict}"
