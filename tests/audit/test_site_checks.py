# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Checks of a site's own: two files, no code."""

import pytest

from securetrain.audit.documents import BODIES, ROOTS
from securetrain.audit.engine.audit import audit
from securetrain.audit.sources.catalogue import load_checks
from securetrain.audit.sources.site_checks import _document, scaffold
from securetrain.core.errors import AuditError, UsageError
from securetrain.core.vocabulary import State
from tests.vocabulary import refused


@pytest.fixture
def files(tmp_path):
    return scaffold("ST-ABC-001", tmp_path)


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_what_is_begun_loads_and_judges(files, fixtures, now):
    checks = load_checks(beside=files[0].parent)
    (own,) = [check for check in checks if check.id == "ST-ABC-001"]
    facts = fixtures.facts_of(fixtures.reference)
    (finding,) = audit(facts, [own], fixtures.policy, now).findings
    assert finding.state is State.PASS
    assert len(checks) == len(load_checks()) + 1


def test_nothing_is_overwritten(files):
    refused(UsageError, "there already", scaffold, "ST-ABC-001", files[0].parent)


@pytest.mark.parametrize(
    ("which", "old", "new", "message"),
    [
        (0, "value: 1}", "value: 2}", "says fail of a fixture for pass"),
        (0, "op: ge, value: 1}", "op: ge, value: 0}", "says pass of a fixture for fail"),
        (0, "unknown: [not-read]", "unknown: [well]", "says pass of a fixture for unknown"),
        (0, "fail: [wrong", "fail: [worse", "names no such fixture"),
        (1, "node.sysctls: null", "node.sysctl: null", "no evidence"),
        (1, "node.sysctls: null", "job.uid: 1", "no evidence"),
        (1, "value: 1", "value: one", "Expected `int"),
        (1, "fixtures:", "fixture:", "unknown field"),
        (0, "ST-ABC-001\n  title", "ST-NET-011\n  title", "also defined"),
        (0, "assert:", "call: {fn: os.system}\n  assert:", "either assert or call"),
    ],
)
def test_a_check_that_does_not_say_what_its_fixtures_are_for_is_not_used(
    files, which, old, new, message
):
    edit(files[which], old, new)
    refused(AuditError, "ST-AUDT-001", load_checks, beside=files[0].parent, says=message)


def test_a_check_without_fixtures_is_not_used(files):
    files[1].unlink()
    refused(UsageError, "No such file", load_checks, beside=files[0].parent)


@pytest.mark.parametrize("kind", list(BODIES))
def test_there_is_a_fixture_with_nothing_in_it_for_every_kind(kind):
    document = _document(kind, {}, "x")
    assert document.kind == kind
    assert set(ROOTS[kind]) <= set(type(document.body).__struct_fields__)
