# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The generated reference pages are up to date with the code."""

import sys
from pathlib import Path

from securetrain.core.codes import CODES, RETIRED
from tests.vocabulary import ran
from tools import reference

ROOT = Path(__file__).parents[2]


def test_reference_pages_are_up_to_date():
    ran([sys.executable, "tools/reference.py", "--check"], cwd=ROOT)


def test_a_published_code_that_is_neither_kept_nor_retired_is_named():
    page = reference.codes_page()
    assert page.count("\n| `ST-") == len(CODES)
    assert reference.vanished(page) == []
    row = "\n| `{}` | meaning |\n"
    retired = min(RETIRED)
    assert reference.vanished(page + row.format("ST-ATTS-998") + row.format(retired)) == [
        "ST-ATTS-998"
    ]
