# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import json
from types import SimpleNamespace
from typing import Any

from securetrain.quickstart.story import _start
from securetrain.quickstart.training import Follower, Job


class Screen:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.warned: list[str] = []
        self.result, self.warn = self.said.append, self.warned.append

    def bar(self) -> Any:
        return self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, *_: object) -> None:
        pass


def test_a_sandbox_that_lacks_something_is_told_before_training(tmp_path):
    event = {
        "event": "sandbox-degraded",
        "boundary": "host",
        "details": {"missing": "mounts and processes (not permitted)"},
    }
    ledger, metrics = tmp_path / "ledger.jsonl", tmp_path / "metrics.jsonl"
    ledger.write_text(json.dumps({"body": {"event": event}}) + "\n")
    metrics.write_text('{"step": 1}\n')
    screen = Screen()
    story: Any = SimpleNamespace(node="n UNATTESTED", screen=screen)
    running: Any = SimpleNamespace(wait=lambda poll: poll())
    job = Job(story=story, running=running, ledger=Follower(ledger), metrics=Follower(metrics))
    _start(story, job)
    assert screen.warned == [
        "the workers' sandbox is DEGRADED here: without mounts and processes (not permitted)"
    ]
