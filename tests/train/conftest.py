# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from securetrain.artifacts.dataset.verified import sign_documents
from securetrain.testing.runs import SmallRun, make_run
from tests.train.jobs import documents


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture(scope="module")
def one_rank() -> Iterator[None]:
    """A process group of this process alone, for the tests of a module."""
    import torch.distributed as dist

    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


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
