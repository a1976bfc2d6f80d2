# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The schema documents itself; a field that nobody enforces does not belong there."""

import re
from pathlib import Path

import pytest

from securetrain.core.vocabulary import Boundary
from securetrain.policy.explanation import documented_fields
from securetrain.policy.schema import SECTIONS
from tests.tables import each

ENFORCERS = {"run", "audit", "verify"}
FIELDS = documented_fields()


def test_there_is_a_section_for_each_boundary_and_one_for_the_audit_itself():
    assert sorted(name.replace("_", "-") for name in SECTIONS) == sorted([*Boundary, "audit"])


@each("field", {".".join(field.path): field for field in FIELDS})
def test_every_field_says_what_it_means_and_who_enforces_it(field):
    assert len(field.description) >= 10
    assert field.enforced_by
    assert set(field.enforced_by) <= ENFORCERS


def test_nested_fields_are_documented_too():
    assert ("node", "allow_self_asserted", "max_nodes") in {f.path for f in FIELDS}


ROOMS = {
    "audit": ("audit", "../policies/checks"),
    "verify": ("artifacts", "chain"),
}


@pytest.mark.parametrize(("enforcer", "rooms"), ROOMS.items())
def test_a_field_that_names_an_enforcer_is_read_by_it(enforcer, rooms):
    """Not a proof that it is enforced well, but one that nobody claims what nobody reads."""
    package = Path(__file__).parents[2] / "securetrain"
    text = "\n".join(
        path.read_text()
        for room in rooms
        for path in (package / room).resolve().rglob("*")
        if path.suffix in {".py", ".yaml"}
    )
    claimed = [f for f in FIELDS if enforcer in f.enforced_by]
    names = {f.path[-1] for f in claimed}
    unread = [name for name in sorted(names) if not re.search(rf"\b{name}\b", text)]
    assert unread == []
