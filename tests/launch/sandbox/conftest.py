# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from securetrain.launch.sandbox import landlock
from securetrain.launch.sandbox.sandbox import Sandbox
from securetrain.launch.sandbox.user import reserve
from securetrain.launch.sandbox.view import Scene
from tests.vocabulary import outcome


@pytest.fixture
def scene(tmp_path) -> Callable[..., Scene]:
    """Makes the scene of a job in a folder of this test's."""

    def make(**changed: Any) -> Scene:
        run, work = tmp_path / "run", tmp_path / "work"
        for folder in (run / "keys", run / "checkpoints", run / "cache", work):
            folder.mkdir(parents=True, exist_ok=True)
        for name in ("root.pem", "worker.pem"):
            (run / "keys" / name).write_text("secret")
        settings: dict[str, Any] = {
            "run": run,
            "keys": run / "keys",
            "writable": (run / "checkpoints",),
            "cwd": work,
            "search_path": tuple(sys.path),
            "code": (Path(sys.prefix), Path(sys.base_prefix)),
            "homes": (Path("/root"), Path("/home")),
            "home": Path("/root"),
            "landlock_version": landlock.version(),
            "own_user_namespace": os.geteuid() != 0,
        }
        return Scene(**{**settings, **changed})

    return make


@pytest.fixture
def sandbox(scene) -> Iterator[Callable[..., Sandbox]]:
    """Starts sandboxes, which end with the test."""
    made: list[Sandbox] = []

    def start(**changed: Any) -> Sandbox:
        if os.geteuid() == 0 and "user" not in changed:
            changed["user"] = reserve()
        made.append(Sandbox.start(scene(**changed)))
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.fixture
def inside(sandbox, tmp_path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs Python code in a new sandbox."""

    def run(text: str, *arguments: str, **changed: Any) -> subprocess.CompletedProcess[str]:
        started = sandbox(**changed)
        return outcome(
            started.command([sys.executable, "-c", text, *arguments]), cwd=tmp_path / "work"
        )

    return run
