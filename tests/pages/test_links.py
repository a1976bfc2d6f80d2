# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Every link of a page to another page, and to a heading in it, leads somewhere."""

import re
from functools import cache
from pathlib import Path
from typing import Final

from tests.pages.commands import PAGES, ROOT

LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
FENCE: Final = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)


@cache
def anchors(page: Path) -> frozenset[str]:
    """The names of a page's headings, as Python-Markdown makes them."""
    made: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text("utf-8")), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        plain = re.sub(r"[^\w\s-]", "", text.encode("ascii", "ignore").decode()).strip().lower()
        slug = name = re.sub(r"[-\s]+", "-", plain)
        number = 0
        while name in made:
            number += 1
            name = f"{slug}_{number}"
        made.add(name)
    return frozenset(made)


def broken(page: Path) -> list[str]:
    """The links of a page that lead nowhere."""
    found = []
    for target in LINK.findall(FENCE.sub("", page.read_text("utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        if not there.exists() or (
            anchor and there.suffix == ".md" and anchor not in anchors(there)
        ):
            found.append(f"{page.relative_to(ROOT)}: {target}")
    return found


def test_links_lead_somewhere():
    assert [one for page in PAGES for one in broken(page)] == []


def test_a_broken_link_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.pages.test_links.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("# One `x`\n[a](#one-x) [b](#two) [c](none.md) [d](page.md#one-x)\n")
    assert broken(page) == ["page.md: #two", "page.md: none.md"]
