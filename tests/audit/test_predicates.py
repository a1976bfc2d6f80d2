# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import pytest

from securetrain.audit.engine.fields import View
from securetrain.audit.engine.predicates import Compiler
from securetrain.core.errors import AuditError

PTRACE = ["node", "sysctls", "kernel.yama.ptrace_scope"]
TORCH = ["node", "packages", "torch", "version"]
LSM = ["node", "kernel", "lsm"]


@pytest.fixture
def evaluate(case, now):
    def run(predicate, fixture="reference", **params):
        there = case(fixture)
        compiler = Compiler(where="test", params=params)
        view = View(document=there.document, policy=there.policy, now=now)
        return compiler.compile(predicate, "assert")(view).value

    return run


@pytest.mark.parametrize(
    ("field", "op", "value", "wanted"),
    [
        (PTRACE, "eq", 1, True),
        (PTRACE, "ne", 1, False),
        (PTRACE, "in", [1, 2], True),
        (PTRACE, "not_in", [1, 2], False),
        (PTRACE, "lt", 2, True),
        (PTRACE, "le", 0, False),
        (PTRACE, "gt", 0, True),
        (PTRACE, "ge", 2, False),
        (["job", "user"], "starts", "train", True),
        (["job", "user"], "ends", "x", False),
        (["job", "user"], "glob", "t*r", True),
        (["job", "user"], "glob_any", ["a*", "t*"], True),
        (TORCH, "version_ge", "2.10.0", True),
        (TORCH, "version_lt", "2.9", False),
        (LSM, "superset", ["yama", "apparmor"], True),
        (LSM, "superset", ["selinux"], False),
        (LSM, "subset", ["yama"], False),
        (LSM, "disjoint", ["selinux"], True),
        (["policy", "host", "fail_on"], "eq", "high", True),
    ],
)
def test_operators(evaluate, field, op, value, wanted):
    assert evaluate({"field": field, "op": op, "value": value}) is wanted


def test_versions_are_compared_as_versions_and_not_as_text(evaluate):
    # the control: as text 2.9.0 is larger than 2.13.0
    assert max(["2.9.0", "2.13.0+cu130"]) == "2.9.0"
    assert evaluate({"field": TORCH, "op": "version_ge", "value": "2.9.0"}) is True


def test_a_version_that_is_none_is_unknown(evaluate):
    predicate = {"field": TORCH, "op": "version_ge", "value": "2.9.0"}
    assert evaluate(predicate, "torch-version-unreadable") is None


@pytest.mark.parametrize(
    ("fixture", "exists"),
    [("reference", True), ("ptrace-no-yama", False), ("ptrace-denied", None), ("no-sysctls", None)],
)
def test_exists_answers_only_when_something_looked(evaluate, fixture, exists):
    assert evaluate({"field": PTRACE, "op": "exists"}, fixture) is exists
    missing = evaluate({"field": PTRACE, "op": "missing"}, fixture)
    assert missing is (None if exists is None else not exists)


def test_a_setting_that_was_not_collected_is_unknown_for_both(evaluate):
    for op in ("exists", "missing"):
        assert evaluate({"field": PTRACE, "op": op}, "ptrace-not-collected") is None


def test_a_package_that_is_not_listed_is_not_installed(evaluate):
    path = ["node", "packages", "deepspeed", "version"]
    assert evaluate({"field": path, "op": "exists"}) is False
    assert evaluate({"field": path, "op": "eq", "value": "1"}) is None


def test_quantifiers(evaluate):
    port = {"field": ["port"], "op": "eq", "value": 22}
    listeners = ["node", "listeners"]
    assert evaluate({"some": listeners, "where": port}) is True
    assert evaluate({"none": listeners, "where": port}) is False
    assert evaluate({"every": listeners, "where": port}) is False
    assert evaluate({"every": listeners, "where": {"not": port}}, "no-listeners") is None


def test_options_of_a_file_that_does_not_exist_are_none_and_of_a_denied_one_unknown(evaluate):
    option = {"some": ["options"], "where": {"field": ["name"], "op": "eq", "value": "x"}}
    predicate = {"none": ["node", "ssh"], "where": option}
    assert evaluate(predicate, "ssh-config-absent") is True
    assert evaluate(predicate, "ssh-config-denied") is None


def test_params_and_refs(evaluate):
    param = {"field": PTRACE, "op": "in", "param": "accept"}
    assert evaluate(param, accept=[1]) is True
    ref = {"every": ["node", "shm"], "where": {"field": ["uid"], "op": "eq", "ref": ["job", "uid"]}}
    assert evaluate(ref) is True


@pytest.mark.parametrize(
    "predicate",
    [
        {},
        [],
        "true",
        {"all": []},
        {"all": {}},
        {"any": [1]},
        {"all": [], "any": []},
        {"not": None},
        {"none": ["node", "listeners"]},
        {"none": ["node", "sysctls"], "where": {"field": ["port"], "op": "eq", "value": 1}},
        {"some": LSM, "where": {"field": ["port"], "op": "eq", "value": 1}},
        {"field": ["port"], "op": "eq", "value": 1},
        {"field": [], "op": "exists"},
        {"field": [1], "op": "exists"},
        {"field": LSM, "op": "eq", "value": "yama"},
        {"field": PTRACE, "op": "superset", "value": [1]},
        {"field": PTRACE, "op": ["eq"], "value": 1},
        {"field": ["node", "kernel"], "op": "eq", "value": 1},
        {"field": ["node", "kernel", "lsm", "value"], "op": "superset", "value": ["x"]},
        {"field": TORCH, "op": "version_ge", "value": "new"},
        {"field": ["job", "user"], "op": "glob", "value": 1},
        {"every": ["node", "shm"], "where": {"field": ["mode"], "op": "mode_max", "value": "rwx"}},
    ],
)
def test_anything_else_is_refused(predicate):
    with pytest.raises(AuditError) as refused:
        Compiler(where="test", params={}).compile(predicate, "assert")
    assert refused.value.code == "ST-AUDT-001"


def test_nesting_is_bounded():
    predicate: dict[str, object] = {"field": PTRACE, "op": "exists"}
    for _ in range(30):
        predicate = {"not": predicate}
    with pytest.raises(AuditError, match="nested deeper"):
        Compiler(where="test", params={}).compile(predicate, "assert")
