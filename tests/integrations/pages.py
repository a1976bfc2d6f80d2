# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The code of the documentation, as it stands on its pages."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def snippet(page: str, title: str) -> str:
    """The one block of a page that has this title."""
    text = (ROOT / page).read_text("utf-8")
    pattern = rf'^```\w+ title="{title}"\n(.*?)^```$'
    found = re.findall(pattern, text, flags=re.MULTILINE | re.DOTALL)
    assert len(found) == 1, f"{page} has {len(found)} blocks of the title {title!r}"
    return str(found[0])
