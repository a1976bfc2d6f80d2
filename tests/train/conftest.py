# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from securetrain.artifacts.dataset.verified import sign_documents
from securetrain.testing.runs import SmallRun, make_run
from tests.train.jobs import documents


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
def new_run(tmp_path: Path) -> Callable[..., SmallRun]:
    """Makes a signed run directory with a small signed dataset."""

    def make(name: str = "run", policy: str = "dev") -> SmallRun:
        run = make_run(tmp_path / name, clock=now, policy=policy)
        rows = [
            (split, f"{split}-{n}", text)
            for split, texts in documents().items()
            for n, text in enumerate(texts)
        ]
        key = run.keys["dataset"]
        sign_documents(rows, run.run_dir.dataset, name="prose", key=key, now=now())
        return run

    return make
