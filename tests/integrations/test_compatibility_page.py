# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The page says of readers and trackers what their tests have kept, and nothing else."""

import json

import pytest

from securetrain.integrations import TESTED
from tests.integrations.pages import ROOT

KEPT = json.loads((ROOT / "tests/integrations/compatibility.json").read_text("utf-8"))
ROWS = KEPT["readers and trackers"]
PAGE = (ROOT / "docs/reference/compatibility.md").read_text("utf-8")


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_the_page_is_what_was_kept_at_the_tested_version(name):
    one = ROWS[name]
    assert one["version"] == TESTED[name]
    checks = "; ".join(f"{check}: {result}" for check, result in sorted(one["checks"].items()))
    about = f"{one['torch']}, Python {one['python']}"
    assert f"| {name} | {one['version']} | {about} | {checks} |\n" in PAGE
