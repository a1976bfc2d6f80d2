# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from securetrain.core.rundir import RunDir
from securetrain.identity.trust import TrustRole, TrustRoot
from securetrain.ledger import VerifiedLedger, verify_ledger
from tests.launch.worlds import clean_environment, run_command
from tests.vocabulary import outcome

PATIENCE = 240.0
"""Seconds that a launch may take on a busy machine."""


@dataclass(frozen=True)
class Launched:
    """A finished `securetrain run`."""

    code: int
    out: str
    err: str
    run: RunDir

    @property
    def ledger(self) -> VerifiedLedger:
        keys = TrustRoot.load(self.run.trust, datetime.now(UTC)).keys_for(TrustRole.LEDGER)
        return verify_ledger(self.run.ledger.read_bytes(), keys, require_closed=True)

    def events(self, name: str) -> list[Any]:
        return [e.body.event for e in self.ledger.entries if e.body.event.event == name]

    @property
    def codes(self) -> set[str]:
        return {e.body.event.code for e in self.ledger.entries} - {""}

    @property
    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run.summary.read_text())
        return found


@pytest.fixture(scope="session")
def launch() -> Callable[..., Launched]:
    def start(
        run_dir: Path,
        *arguments: str,
        cwd: Path | None = None,
        patience: float = PATIENCE,
        **env: str,
    ) -> Launched:
        done = outcome(
            run_command(run_dir, *arguments),
            env=clean_environment(**env),
            timeout=patience,
            cwd=cwd,
        )
        return Launched(done.returncode, done.stdout, done.stderr, RunDir(run_dir))

    return start
