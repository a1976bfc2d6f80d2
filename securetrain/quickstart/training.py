# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The steps of the story that start processes: the job itself, and resuming it for one step.

Both are ``securetrain run`` in a child of their own, as a person would type it. The bar follows the
files that the run writes; nothing is taken from them but what is shown.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from securetrain.core.errors import RuntimeRefusal
from securetrain.core.files import write_atomic
from securetrain.quickstart.children import Child, child
from securetrain.quickstart.screen import Bar
from securetrain.quickstart.story_state import Story

LOG: Final = "quickstart.log"
_READ_BYTES: Final = 1 << 20

JOB: Final = """\
# The quickstart trains a byte-level Llama-like model of about two million parameters.
apiVersion: securetrain.dev/job/v1
kind: TrainJob
name: quickstart
seed: 1
steps: {steps}
model: {{dim: 192, layers: 4, heads: 6, ffn: 512}}
data: {{seq_len: 128, batch_rows: 16}}
optimizer: {{lr: 0.003, warmup_steps: {warmup}}}
checkpoint: {{every: {every}}}
eval: {{every: {every}, rows: 64}}
"""


def write_job(story: Story) -> None:
    """Write the job file into the run directory."""
    steps = story.options.steps
    text = JOB.format(steps=steps, warmup=min(40, steps // 4), every=min(100, -(-steps // 3)))
    write_atomic(story.job_file, text.encode())


def command(story: Story, *extra: str) -> list[str]:
    """``securetrain run`` for this story, as arguments after ``securetrain``."""
    options = story.options
    attester = ["--attester", str(story.attester)] if story.attester is not None else []
    return [
        "run", "--standalone", "--nproc-per-node", str(options.nproc_per_node),
        "--policy", story.policy_name, "--run-dir", str(options.run_dir), *attester,
        "-m", "securetrain.train", str(story.job_file), *extra,
    ]  # fmt: skip


@dataclass(slots=True)
class Follower:
    """Reads the lines that were added to a JSONL file since the last look."""

    path: Path
    offset: int = 0
    rest: bytes = b""
    last: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def at_end(cls, path: Path) -> "Follower":
        """Start after what is there already."""
        return cls(path, path.stat().st_size if path.exists() else 0)

    def look(self) -> list[Mapping[str, Any]]:
        """New whole lines, oldest first."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
                if size < self.offset:  # it was written anew, as a resumed run does
                    self.offset, self.rest = 0, b""
                file.seek(self.offset)
                data = file.read(_READ_BYTES)
        except FileNotFoundError:
            return []
        self.offset += len(data)
        *lines, self.rest = (self.rest + data).split(b"\n")
        found: list[Mapping[str, Any]] = []
        for line in lines:
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                found.append(value)
        self.last = found[-1] if found else self.last
        return found


@dataclass(slots=True)
class Job:
    """The job while it runs."""

    story: Story
    running: Child
    ledger: Follower
    metrics: Follower
    num_events: int = 0
    sandbox_lacks: str = ""
    """The parts of the workers' sandbox that this machine does not give."""

    def start(self, bar: Bar) -> None:
        """Wait for the first step.

        Raises:
            SecureTrainError: what the child refused.
        """
        bar.update(0, None, "starting the launcher")

        def poll() -> None:
            for line in self.ledger.look():
                self.num_events += 1
                event = line.get("body", {}).get("event", {})
                bar.update(0, None, f"{event.get('boundary', '')}: {event.get('event', '')}")
                if event.get("event") == "node-admitted":
                    self.story.node = str(event.get("details", {}).get("label", ""))
                if event.get("event") == "sandbox-degraded":
                    self.sandbox_lacks = str(event.get("details", {}).get("missing", ""))
            if self.metrics.look():
                raise _Started

        try:
            self.running.wait(poll)
        except _Started:
            return

    def finish(self, bar: Bar) -> None:
        """Wait for the end.

        Raises:
            SecureTrainError: what the child refused.
        """
        steps = self.story.options.steps

        def poll() -> None:
            for line in self.metrics.look():
                self._note(line)
            last = self.metrics.last
            if "step" in last:
                bar.update(
                    float(last["step"]),
                    steps,
                    f"step {last['step']}/{steps}  {last.get('bits_per_byte') or 0:.2f} bits/byte"
                    f"  {last.get('tokens_per_second') or 0:,.0f} bytes/s",
                )

        self._note(self.metrics.last)
        self.running.wait(poll)

    def _note(self, line: Mapping[str, Any]) -> None:
        if line.get("val_bits_per_byte") is not None:
            self.story.validation_bits = line["val_bits_per_byte"]
            self.story.bigram_bits = line.get("bigram_bits")


class _Started(Exception):  # noqa: N818 - not an error
    """The first step is done."""


@contextmanager
def job(story: Story, *extra: str) -> Iterator[Job]:
    """Start the job; when the block ends, so has every process of it."""
    log = story.run.logs / LOG
    arguments = [sys.executable, "-m", "securetrain", *command(story, *extra)]
    with child(arguments, log, dict(story.environ)) as running:
        yield Job(
            story=story,
            running=running,
            ledger=Follower.at_end(story.run.ledger),
            metrics=Follower.at_end(story.run.metrics),
        )


def last_checkpoint(story: Story, step: int) -> Path:
    """The checkpoint after `step`, which must be there.

    Raises:
        RuntimeRefusal: ST-RUNT-004.
    """
    path = story.run.checkpoint(step)
    if not path.is_dir():
        raise RuntimeRefusal(
            "ST-RUNT-004",
            f"the run ended without the checkpoint of step {step}",
            str(path),
            f"see {story.run.logs / LOG}",
        )
    return path
