# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Weights & Biases: a launch is a run, steps are its history, labels and refusals its summary.

What W&B collects by itself is switched off: the machine's name and figures, the program, its
arguments, git, the console. It finds its server, mode and key by its own variables (``WANDB_*``).
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import wandb

from securetrain.integrations.trackers.items import Began, Ended, Item, Measured, Span

STEP: Final = "step"


class Wandb:
    """The tracker."""

    def __init__(self, library: Any = wandb) -> None:
        """Take the library."""
        self._library = library
        self._run: Any = None
        self._began: Began | None = None
        self._refusals = 0
        self._saves = 0

    def give(self, items: Sequence[Item]) -> None:
        """Log items."""
        for item in items:
            match item:
                case Began():
                    self._begin(item)
                case Measured():
                    self._run.log({STEP: item.step, "verdict": item.verdict, **item.values})
                case Span(name="step"):
                    pass
                case Span():
                    self._refusals += bool(item.code)
                    self._saves += item.name == "save"
                    said = {f"event/{name}": value for name, value in item.said.items()}
                    self._run.log({"event": item.name, "event/time": item.begin, **said})
                    self._run.summary.update(
                        {"securetrain/refusals": self._refusals, "securetrain/saves": self._saves}
                    )
                case Ended():
                    self._run.summary.update(
                        {
                            "securetrain/labels": ", ".join(item.labels),
                            "securetrain/outcome": item.outcome,
                        }
                    )
                    if item.outcome:
                        self._run.finish(exit_code=int(item.outcome != "succeeded"))
                        self._run = self._began = None

    def close(self) -> None:
        """Finish a run that did not end."""
        if self._run is not None:
            self._run.finish()
            self._run = None

    def _begin(self, item: Began) -> None:
        if self._began == item:
            return
        self.close()
        settings = self._library.Settings(
            console="off",
            disable_code=True,
            disable_git=True,
            disable_job_creation=True,
            host="",
            program="",
            quiet=True,
            silent=True,
            x_disable_machine_info=True,
            x_disable_meta=True,
            x_disable_stats=True,
        )
        key = hashlib.sha256(f"{item.run}\0{item.number}".encode()).hexdigest()[:16]
        self._run = self._library.init(
            id=key,
            name=item.run[:128],
            resume="allow",
            config=dict(item.said),
            settings=settings,
        )
        self._run.define_metric("*", step_metric=STEP)
        self._began, self._refusals, self._saves = item, 0, 0
