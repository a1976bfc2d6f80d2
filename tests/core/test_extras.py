# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The hints on extras name extras that are there, and never a package of an index."""

import re
import tomllib
from pathlib import Path

from securetrain.core.codes.columns import install_hint

ROOT = Path(__file__).parents[2]
SOURCES = [path.read_text() for path in sorted((ROOT / "securetrain").rglob("*.py"))]
TEXTS = {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
    for place in ("README.md", "docs", "policies", "threat_models", "examples", "actions")
    for path in sorted((ROOT / place).rglob("*") if (ROOT / place).is_dir() else [ROOT / place])
    if path.suffix in {".md", ".yaml", ".yml", ".py", ".html", ".txt"}
}
"""What people read, beside what the program says."""


def test_the_hint():
    assert install_hint("report") == "run pip install '.[report]' in a checkout of securetrain"


def test_every_hint_names_an_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    named = {name for text in SOURCES for name in re.findall(r"install_hint\([\"'](\w+)", text)}
    assert {"report", "sigstore", "train"} <= named <= set(extras)


def test_every_page_installs_from_a_checkout_and_names_an_extra():
    """Until it is published, the name at an index is nobody's, or somebody else's."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    lines = [
        (name, line)
        for name, text in TEXTS.items()
        for line in re.findall(r"pip3? install ([^`\n]*)", text)
    ]
    assert len(lines) > 20, "they are found"
    by_name = [
        one for one in lines if re.search(r"(?<![\w/.-])securetrain(?=[\[=<>'\"\s]|$)", one[1])
    ]
    assert [one for one in by_name if "in a checkout of securetrain" not in one[1]] == []
    named = {
        extra.strip()
        for _, line in lines
        for several in re.findall(r"(?<![\w\]])\.\[([\w, -]+)\]", line)
        for extra in several.split(",")
    }
    assert {"train", "sigstore", "stores"} <= named <= set(extras)


def test_nothing_installs_this_package_from_an_index():
    found = [line for text in SOURCES for line in re.findall(r"pip install .*securetrain.*", text)]
    assert [line for line in found if "in a checkout of securetrain" not in line] == []
