# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chain.switches import Switches, refusing_checks
from tests.chain.worlds import Job, Roles, Run


@pytest.fixture(scope="session")
def roles() -> Roles:
    return Roles()


@pytest.fixture
def job(roles) -> Job:
    return Job(roles=roles)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Three checkpoints, one after the other."""
    return Run(tmp_path / "run").saved(3)


@pytest.fixture(scope="module")
def checks() -> Iterator[Switches]:
    with refusing_checks() as made:
        yield made
