# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A window of steps under torch's profiler: one Chrome trace for each rank.

The job's section ``profile: {start: 10, steps: 3}`` traces steps 10 to 12. Each rank writes
``profile/steps-10-12-rank-0.json.gz`` in the run directory, whole or not at all; open it in
ui.perfetto.dev or chrome://tracing. Tracing slows the steps inside the window and no others.

Traces name kernels, shapes and file paths of the training code: they say how a model computes, and
are as confidential as it is.
"""

import os
import tempfile
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from securetrain.core.errors import os_error
from securetrain.train.config import ProfileJob


class Profiler:
    """Traces the window on one rank; `begin` and `end` stand around every step.

    Args:
        job: The window.
        folder: Where traces go.
        rank: This rank.
    """

    def __init__(self, job: ProfileJob, folder: Path, rank: int) -> None:
        self._first, self._last = job.start, job.start + job.steps - 1
        self._folder = folder
        self._rank = rank
        self._profile: profile | None = None

    def begin(self, step: int) -> None:
        """Before step number `step` (from 1)."""
        if self._profile is None and self._first <= step <= self._last:
            self._first = step  # a run may be resumed inside its window
            kinds = [ProfilerActivity.CPU]
            if torch.cuda.is_available():
                kinds.append(ProfilerActivity.CUDA)
            self._profile = profile(activities=kinds, record_shapes=True)
            self._profile.start()

    def end(self, step: int, *, ends: bool) -> Path | None:
        """After it; returns the trace that the window has left, if it is over.

        Raises:
            UsageError: ST-USAG-002 or 006 on I/O errors.
        """
        if self._profile is None or (step < self._last and not ends):
            return None
        running, self._profile = self._profile, None
        running.stop()
        path = self._folder / f"steps-{self._first}-{step}-rank-{self._rank}.json.gz"
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._folder, prefix=".tmp-") as temporary:
                whole = Path(temporary, path.name)
                running.export_chrome_trace(str(whole))
                os.replace(whole, path)  # noqa: PTH105 - atomic
        except OSError as error:
            raise os_error(error, str(path)) from error
        return path
