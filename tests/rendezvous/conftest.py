# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The job of the drills: on loopback, with a CA, a coordinator, members and raw connections."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from securetrain.drills import loopback_job
from securetrain.drills.loopback_job import Job, running_job


class Tools:
    """Its helpers, for tests (which cannot import this file by name)."""

    PATIENCE = loopback_job.PATIENCE
    now = staticmethod(loopback_job.now)
    soon = staticmethod(loopback_job.soon)
    wait_until = staticmethod(loopback_job.wait_until)
    in_settings = staticmethod(loopback_job.in_settings)
    make_policy = staticmethod(loopback_job.make_policy)
    make_hello = staticmethod(loopback_job.make_hello)
    binding_of = staticmethod(loopback_job.binding_of)
    prove = staticmethod(loopback_job.prove)
    answer = staticmethod(loopback_job.answer)
    day = timedelta(days=1)


@pytest.fixture
def tools() -> type[Tools]:
    return Tools


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with running_job(tmp_path) as made:
        yield made
