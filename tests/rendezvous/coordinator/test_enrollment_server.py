# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""How a visit at the enrollment server ends. What a visitor may try is in `test_enrollment`."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from securetrain.core.errors import AdmissionError, UsageError
from securetrain.rendezvous.coordinator import enrollment_server as server_module
from securetrain.rendezvous.coordinator.enrollment_server import EnrollmentServer, Visit
from securetrain.rendezvous.wire.enrollment import Report, decode_enrollment
from securetrain.rendezvous.wire.protocol import HEADER_SIZE, Refuse

FIRST, SECOND = AdmissionError("ST-ADMN-010", "pushed out"), AdmissionError("ST-ADMN-005", "late")
FULL = UsageError("ST-USAG-006", "the disk is full")


class Log:
    """A journal; it can be full."""

    def __init__(self, problem=None):
        self.rows, self.problem = [], problem

    def write(self, said):
        self._note(said.NAME, said.code, said.subject)

    def refuse_stranger(self, error, subject):
        self._note("stranger", error.code, subject)

    def _note(self, *row):
        if self.problem:
            raise self.problem
        self.rows.append(row)


class Wire:
    """A channel that remembers the codes that were sent."""

    def __init__(self):
        self.done = []

    def send_frame(self, frame, _deadline):
        answer = decode_enrollment(frame[HEADER_SIZE:])
        assert isinstance(answer, Refuse)
        self.done.append(answer.code)

    def abort(self):
        self.done.append("abort")

    def close(self):
        self.done.append("close")


def new_server(journal, tools):
    cluster: Any = SimpleNamespace()
    ca: Any = SimpleNamespace()
    day = timedelta(days=1)
    return EnrollmentServer(cluster, ca, journal, lifetime=day, timeout=10, clock=tools.now)


@pytest.fixture
def visit(tools, monkeypatch):
    """A visit that ends with an error, or well; and its server."""

    def make(error=None, journal=None):
        def serve(_):
            if error is not None:
                raise error

        monkeypatch.setattr(Visit, "_serve", serve)
        wire: Any = Wire()
        return Visit(server=new_server(journal or Log(), tools), channel=wire, remote="192.0.2.1")

    return make


def test_a_visit_that_went_well(visit):
    made = visit()
    made.run()
    assert made.channel.done == ["close"]
    assert made.server.journal.rows == []


def test_a_visit_that_is_refused(visit):
    made = visit(SECOND)
    made.run()
    assert made.channel.done == ["ST-ADMN-005", "close"]
    assert made.server.journal.rows == [("stranger", "ST-ADMN-005", "192.0.2.1")]


def test_a_machine_with_a_token_is_written_down_by_itself(visit):
    made = visit(SECOND)
    made._invitation = SimpleNamespace(id="token")
    made.run()
    assert made.server.journal.rows == [("enrolment-refused", "ST-ADMN-005", "192.0.2.1")]


def test_the_first_verdict_from_outside_is_the_one_that_counts(visit):
    made = visit(AdmissionError("ST-ADMN-007", "the connection is gone"))
    for error in (FIRST, SECOND, None):
        made.evict(error)
    made.run()
    assert made.channel.done == ["abort", "abort", "abort", "ST-ADMN-010", "close"]
    assert made.server.journal.rows == [("stranger", "ST-ADMN-010", "192.0.2.1")]


def test_a_failure_of_the_server_lets_nobody_in(visit):
    made = visit(ZeroDivisionError())
    made.run()
    assert made.channel.done == ["ST-ADMN-012", "close"]


def test_the_first_problem_is_kept(visit):
    made = visit(SECOND, Log(FULL))
    made.run()
    assert made.channel.done == ["ST-ADMN-005", "close"], "the visitor hears its own reason"
    made.server.note_problem(FIRST)
    assert made.server.problem is FULL


def test_where_no_inventory_is_kept_no_report_is_taken(tools):
    invitation: Any = SimpleNamespace(node="node-0")
    with pytest.raises(AdmissionError, match="no inventory is kept here") as caught:
        new_server(Log(), tools).file(Report(body=b"{}"), invitation)
    assert caught.value.code == "ST-ADMN-001"


def test_a_token_for_a_revoked_node_is_not_made(tools):
    def refuse(node):
        raise AdmissionError("ST-ADMN-013", f"{node} was revoked")

    cluster: Any = SimpleNamespace(refuse_revoked=refuse)
    ca: Any = SimpleNamespace()
    with pytest.raises(AdmissionError, match="node-0 was revoked"):
        server_module.make_token(cluster, ca, "node-0", ("192.0.2.1", 1), tools.now())
