# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A desk for each test that asks for one."""

import pytest

from tests.attest.fleet.worlds import Office


@pytest.fixture
def office(tmp_path):
    made = Office(tmp_path)
    yield made
    made.desk.close()
