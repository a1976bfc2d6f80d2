# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""No test remembers anything on the machine that it runs on."""

import os
from collections.abc import Iterator

import pytest

from securetrain.core.nodestate import STATE_VARIABLE


@pytest.fixture(scope="session", autouse=True)
def _state_of_this_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What runs keep on their machine goes into a folder of this session of tests."""
    before = os.environ.get(STATE_VARIABLE)
    os.environ[STATE_VARIABLE] = str(tmp_path_factory.mktemp("state"))
    yield
    if before is None:
        del os.environ[STATE_VARIABLE]
    else:
        os.environ[STATE_VARIABLE] = before
