# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import pytest

from securetrain.core.errors import UsageError
from securetrain.policy import load_policy
from securetrain.policy.explanation import documented_fields, explain
from securetrain.policy.schema import SECTIONS

OPTIONAL = ("reference_values.", "isolation.", "log.", "expect.")


def rows(name, section=None):
    return {(r.section, r.field): r for r in explain(load_policy(name), section)}


def test_every_field_of_the_schema_has_a_row_where_it_has_a_value():
    found = set(rows("dev"))
    unset = {(s, f) for s, f in _documented() if f.startswith(OPTIONAL)}
    assert unset
    assert found == _documented() - unset


def _documented():
    return {(f.path[0], ".".join(f.path[1:])) for f in documented_fields()}


def test_values_and_where_they_come_from(write):
    found = rows(write("host: {fail_on: low}\n"))
    assert found["host", "fail_on"].value == "low"
    assert found["host", "fail_on"].source.endswith("mine.yaml")
    assert found["host", "max_unknown"].source.endswith("baseline.yaml")
    assert found["host", "skip_checks"].source == "default"
    assert found["host", "fail_on"].enforced_by == ("run", "audit")
    assert found["supply_chain", "torch_min"].boundary == "supply-chain"


def test_below_an_optional_part_that_is_not_set_there_is_nothing():
    found = rows("baseline")
    assert found["node", "allow_self_asserted"].value is None
    assert ("node", "allow_self_asserted.reason") not in found
    nested = rows("dev")["node", "allow_self_asserted.max_nodes"]
    assert nested.value == 1
    assert nested.source.endswith("dev.yaml")


@pytest.mark.parametrize("name", SECTIONS)
def test_one_section_in_either_spelling(name):
    found = rows("baseline", name.replace("_", "-"))
    assert found
    assert {section for section, _ in found} == {name}
    assert rows("baseline", name) == found


def test_a_section_that_does_not_exist():
    with pytest.raises(UsageError, match="no section") as refused:
        rows("baseline", "weather")
    assert "supply-chain" in refused.value.fix
