# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""docs/explanation/limits.md names things that exist, and every boundary in its order."""

import re

import pytest

from securetrain.core import CODES
from securetrain.core.vocabulary import (
    DATA_NOT_KNOWN,
    LOADS_NOT_HELD,
    NOT_WATCHED,
    PROGRAMS_NOT_PROTECTED,
    Boundary,
)
from securetrain.evidence import MAX_PARTS, PART_SIZE
from securetrain.policy.enforcement import NEEDS, Needs
from securetrain.policy.explanation import documented_fields
from tests.pages.commands import ROOT, refusal

PAGE = (ROOT / "docs/explanation/limits.md").read_text("utf-8")
QUOTED = sorted(set(re.findall(r"`([^`\n]+)`", PAGE)))
SECTIONS = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)


def section(name):
    return PAGE.split(f"\n## {name}\n", 1)[1].split("\n## ", 1)[0]


def test_the_boundaries_are_the_order():
    assert SECTIONS[: len(Boundary)] == [boundary.value for boundary in Boundary]
    for name in SECTIONS:
        assert "- **" in section(name), f"{name} has no entry"


def test_every_code_is_one_of_ours():
    named = {one for one in QUOTED if re.fullmatch(r"ST-[A-Z]{4}-\d{3}", one)}
    assert named
    assert sorted(named - set(CODES)) == []


def test_every_field_is_one_of_the_policys():
    known = {".".join(field.path) for field in documented_fields()}
    tops = {name.split(".")[0] for name in known}
    named = {one.split(":")[0] for one in QUOTED if re.match(r"[a-z_]+\.[a-z_]+(:|$)", one)}
    assert sorted(one for one in named if one.split(".")[0] in tops and one not in known) == []


@pytest.mark.parametrize("text", [one for one in QUOTED if one.startswith("securetrain ")])
def test_every_command_is_one(text):
    assert "no such" not in refusal([*text.split(" "), "..."]), text


def test_what_is_refused_nowhere_is_said():
    """What a run cannot know of a script stands in the table of the schema, and here."""
    for name in (name for name, needs in NEEDS.items() if needs is Needs.OUR_READERS):
        assert f"`{name}`" in section("dataset")
    for name in ("checkpoint.expect", "checkpoint.max_age_days"):
        assert NEEDS[name] is Needs.OUR_LOADS
        assert f"`{name}`" in section("checkpoint")
    for label in (NOT_WATCHED, LOADS_NOT_HELD, PROGRAMS_NOT_PROTECTED, DATA_NOT_KNOWN):
        assert f"`{label}`" in PAGE


def test_sizes_of_measurement_lists_are_the_programs():
    (text,) = re.findall(r"^- \*\*Measurement lists.*?(?=^- )", PAGE, re.MULTILINE | re.DOTALL)
    assert f"up to {MAX_PARTS * PART_SIZE >> 20} MiB" in text
