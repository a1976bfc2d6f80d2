# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Params that a policy sets, within bounds that the check declares."""

import json

import msgspec
import pytest

from securetrain.audit.engine.audit import audit
from securetrain.audit.engine.schema import Bounds, Param, ParamType, check_bounds, set_by_policy
from securetrain.core.errors import PolicyError
from securetrain.core.vocabulary import State
from tests.vocabulary import refused


def with_params(policy, params):
    return msgspec.structs.replace(
        policy, audit=msgspec.structs.replace(policy.audit, params=params)
    )


@pytest.fixture
def states(fixtures, catalogue, now):
    def go(params):
        plain = json.loads(fixtures.case("reference").document.body.to_json())
        plain["node"]["listeners"]["value"].append(
            {"address": "0.0.0.0", "port": 9100, "scope": "any", "uid": 0, "process": None}
        )
        policy = with_params(fixtures.policy, params)
        result = audit(fixtures.facts_of(plain), catalogue, policy, now)
        return {finding.check: finding.state for finding in result.findings}, result

    return go


def test_a_site_allows_a_port_without_a_waiver(states):
    assert states({})[0]["ST-NET-011"] is State.FAIL
    assert states({"ST-NET-011": {"allowed_ports": [22, 9100]}})[0]["ST-NET-011"] is State.PASS
    assert states({"ST-NET-011": {"allowed_ports": [22]}})[0]["ST-NET-011"] is State.FAIL


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"allowed_ports": [0]}, "less than 1"),
        ({"allowed_ports": [70000]}, "more than 65535"),
        ({"allowed_ports": list(range(1, 100))}, "at most"),
        ({"allowed_ports": ["22"]}, "Expected `int`"),
        ({"allowed_ports": 22}, "Expected `array`"),
        ({"allowed_port": [22]}, "no param allowed_port"),
    ],
)
def test_what_does_not_fit_is_a_mistake_of_the_policy(states, given, message):
    with pytest.raises(PolicyError) as error:
        states({"ST-NET-011": given})
    assert error.value.code == "ST-PLCY-002"
    assert message in error.value.what
    assert "ST-NET-011" in error.value.where


def test_a_param_without_bounds_is_nobodys_to_set(states):
    refused(PolicyError, "no policy set", states, {"ST-HST-004": {"weak": ["nokaslr"]}})


def test_a_check_that_is_not_there_is_said(states):
    _, result = states({"ST-NET-999": {"a": 1}})
    assert any("ST-NET-999" in note for note in result.notes)


@pytest.mark.parametrize(
    ("kind", "bounds", "inside", "outside"),
    [
        ("int", {"min": 1, "max": 5}, [1, 5], [0, 6, "1", True]),
        ("ints", {"min": 1, "most": 2}, [[1], [], [4, 5]], [[0], [1, 2, 3], 1]),
        ("str", {"only": ["a", "b"]}, ["a"], ["c", 1]),
        ("strs", {"only": ["a"]}, [["a"], []], [["a", "b"]]),
        ("strs", {}, [["x"]], ["x"]),
        ("mode", {"max": "0640"}, ["0600", "0640", "0000"], ["0644", "0700", "640"]),
        ("version", {"min": "2.9"}, ["2.10.0"], ["2.8", "new"]),
    ],
)
def test_bounds(kind, bounds, inside, outside):
    param = Param(type=ParamType(kind), default=inside[0], bounds=Bounds(**bounds))
    check_bounds(param)
    for one in inside:
        assert set_by_policy(param, one) == one
    for one in outside:
        refused(ValueError, r".+", set_by_policy, param, one)


@pytest.mark.parametrize(
    ("kind", "default", "bounds"),
    [
        ("int", 9, {"max": 5}),
        ("int", 1, {"max": "5"}),
        ("str", "a", {"min": "a"}),
        ("mode", "0600", {"min": "0600"}),
        ("strs", ["a"], {"only": ["b"]}),
        ("version", "1", {"min": "x"}),
    ],
)
def test_bounds_that_do_not_fit_their_param_are_refused(kind, default, bounds):
    with pytest.raises(ValueError, match=r".+"):
        check_bounds(Param(type=ParamType(kind), default=default, bounds=Bounds(**bounds)))
