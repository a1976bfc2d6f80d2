# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The hints on extras name extras that are there, and never a package of an index."""

import re
import tomllib
from pathlib import Path

from securetrain.core.extras import install_hint

ROOT = Path(__file__).parents[2]
SOURCES = [path.read_text() for path in sorted((ROOT / "securetrain").rglob("*.py"))]


def test_the_hint():
    assert install_hint("report") == "run pip install '.[report]' in a checkout of securetrain"


def test_every_hint_names_an_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    named = {name for text in SOURCES for name in re.findall(r"install_hint\([\"'](\w+)", text)}
    assert {"report", "sigstore", "train"} <= named <= set(extras)


def test_nothing_installs_this_package_from_an_index():
    found = [line for text in SOURCES for line in re.findall(r"pip install .*securetrain.*", text)]
    assert [line for line in found if "in a checkout of securetrain" not in line] == []
