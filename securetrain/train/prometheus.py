# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""metrics.prom: the last step in Prometheus' text format, for node-exporter's textfile collector.

A file and not an HTTP endpoint: nothing listens, so there is nothing to reach, and the collector
that machines have anyway reads it (``--collector.textfile.directory``). It is replaced whole, so
that nobody reads half of it. Format: prometheus.io/docs/instrumenting/exposition_formats.
"""

import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Final

from securetrain.core import exposition
from securetrain.core.files import write_whole
from securetrain.train.metrics import StepMetrics

EVERY: Final = 5.0
PREFIX: Final = "securetrain"
HELP: Final = {
    "step": "Steps done.",
    "loss": "Nats a token, the mean over the step's tokens.",
    "grad_norm": "L2 norm of the gradient before clipping.",
    "tokens_per_second": "Over all ranks.",
    "mfu": "Model FLOPs as a part of the GPUs' dense bf16 peak.",
    "lr": "Learning rate.",
    "seconds": "Wall time of the step.",
    "tokens": "Tokens of all steps so far.",
    "data_seconds": "How long rank 0 waited for rows in the step.",
    "memory_bytes": "Most memory that rank 0 has used.",
    "val_loss": "Nats a token on the held-out split.",
    "expert_load": "Tokens of the busiest expert over the mean.",
    "refused": "Whether the step was refused.",
}
COUNTERS: Final = {"step": "steps_total", "tokens": "tokens_total"}


class PrometheusFile:
    """Writes the file of one run.

    Args:
        path: The file.
        run: The run's id: a label of every number.
        job: The job's name, likewise.
        every: Seconds between writes: collectors read no oftener, and a step may be short.
        clock: Seconds.
    """

    def __init__(
        self,
        path: Path,
        *,
        run: str,
        job: str,
        every: float = EVERY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._every, self._clock = every, clock
        self._next = -math.inf
        self._waiting = False
        self._labels = exposition.labels({"run": run, "job": job})
        self._last: dict[str, float] = {}

    def write(self, metrics: StepMetrics) -> None:
        """Take a step, and replace the file when it is time. What is not measured at every step
        stays as it was.

        Raises:
            UsageError: ST-USAG-002 or 006 on I/O errors.
        """
        values = {**asdict(metrics), "refused": float(metrics.verdict == "refused")}
        self._last |= {
            name: float(value)
            for name, value in values.items()
            if name in HELP and isinstance(value, int | float)
        }
        self._waiting = True
        if self._clock() >= self._next:
            self.close()

    def close(self) -> None:
        """Write what was held back.

        Raises:
            UsageError: ST-USAG-002 or 006 on I/O errors.
        """
        if not self._waiting:
            return
        self._waiting, self._next = False, self._clock() + self._every
        lines: list[str] = []
        for name, value in self._last.items():
            metric = f"{PREFIX}_{COUNTERS.get(name, name)}"
            kind = "counter" if name in COUNTERS else "gauge"
            lines += exposition.metric(metric, kind, HELP[name], [(self._labels, value)])
        write_whole(self._path, ("\n".join(lines) + "\n").encode(), mode=0o644)
