# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One small quickstart for all tests that need a real, finished run."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

STEPS = 6


@dataclass(frozen=True)
class Finished:
    """A quickstart that has ended: read only, other tests use it too."""

    run_dir: Path
    result: dict[str, Any]
    stderr: str


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The story with few steps and without its drills, which have tests of their own."""
    run_dir = tmp_path_factory.mktemp("quickstart") / "run"
    done = subprocess.run(
        [
            sys.executable, "-m", "securetrain", "quickstart", "--json", "--no-drills",
            "--steps", str(STEPS), "--run-dir", str(run_dir),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    log = run_dir / "logs" / "quickstart.log"
    assert done.returncode == 0, (
        done.stdout + done.stderr + (log.read_text()[-3000:] if log.exists() else "")
    )
    return Finished(run_dir, json.loads(done.stdout), done.stderr)
