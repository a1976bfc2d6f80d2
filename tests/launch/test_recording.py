# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What a launcher's ledger says of the environment, the workers' reports and its own refusals."""

from dataclasses import replace

import pytest

from securetrain.core.errors import NetworkError
from securetrain.core.vocabulary import Boundary, NetworkProfile
from securetrain.launch.node import recording
from securetrain.launch.node.compile_cache import Cache
from securetrain.launch.process import workerlog
from securetrain.launch.process.sockets import SocketCheck
from securetrain.ledger import events, read_ledger
from securetrain.network.environment import Reason, Removed, WorkerEnvironment
from securetrain.testing.runs import make_run
from tests.tables import items


@pytest.fixture
def made(tmp_path):
    return make_run(tmp_path / "run")


def recorded(made):
    found = read_ledger(made.run_dir.ledger.read_bytes(), made.trust)
    assert found.ignored == ()
    return list(found.events[1:])


def test_every_reason_has_its_event(made):
    removed = tuple(
        Removed(name=f"{reason.name}_{n}", reason=reason) for reason in Reason for n in "ba"
    )
    environment = WorkerEnvironment(env={}, pinned={"B": "1", "A": "2"}, removed=removed)
    recording.record_environment(environment, ["HF_TOKEN", "X"], made.ledger())
    assert recorded(made) == [
        events.EnvironmentPinned(names="A B"),
        events.PinnedVariablesRemoved(subject="pinned to another value", names="PINNED_a PINNED_b"),
        events.FabricVariablesRemoved(subject="configures the fabric", names="FABRIC_a FABRIC_b"),
        events.SchedulerVariablesRemoved(
            subject="set by the scheduler", names="SCHEDULER_a SCHEDULER_b"
        ),
        events.DebugVariablesRemoved(subject="opens a debug endpoint", names="DEBUG_a DEBUG_b"),
        events.LoaderVariablesRemoved(
            subject="loads code into processes", names="LOADER_a LOADER_b"
        ),
        events.PathVariablesRemoved(subject="unsafe entry of a search path", names="PATH_a PATH_b"),
        events.SecretVariablesRemoved(subject="looks like a secret", names="SECRET_a SECRET_b"),
        events.EnvironmentPassed(names="HF_TOKEN X"),
    ]
    boundaries = {event.boundary for event in recorded(made)}
    assert boundaries == {
        Boundary.FABRIC,
        Boundary.SCHEDULER,
        Boundary.DEBUG,
        Boundary.SUPPLY_CHAIN,
        Boundary.IDENTITY,
    }


def test_what_nothing_was_removed_from_is_not_spoken_of(made):
    recording.record_environment(
        WorkerEnvironment(env={}, pinned={}, removed=()), (), made.ledger()
    )
    assert recorded(made) == [events.EnvironmentPinned(names="")]


def test_what_the_workers_reported(made):
    error = workerlog.WorkerError(kind="K" * 300, message="m" * 600, code="ST-NETW-002")
    workerlog.write_report(made.run_dir, workerlog.WorkerReport(rank=0, attempt=0, error=error))
    check = SocketCheck(profile=NetworkProfile.LOOPBACK, listeners=(), outside=())
    report = workerlog.WorkerReport(
        rank=1, attempt=0, sockets=check, num_checks=4, nccl_tls=("a", "b")
    )
    workerlog.write_report(made.run_dir, report)
    workerlog.report_path(made.run_dir, 2, 0).write_text("{")
    recording.record_reports(made.run_dir, made.ledger())
    subject = "rank 1 attempt 0"
    assert recorded(made) == [
        events.SocketsNotChecked(subject="rank 0 attempt 0"),
        events.WorkerFailed(
            subject="rank 0 attempt 0", kind="K" * 200, code="ST-NETW-002", what="m" * 500
        ),
        events.SocketsInsideNetwork(
            subject=subject, profile=NetworkProfile.LOOPBACK, listeners=0, checks=4
        ),
        events.NcclEncrypted(subject=subject, libraries="a b"),
        events.WorkerReportUnreadable(subject="rank-00002-attempt-0.json"),
    ]


@items(
    "kind",
    events.EnvironmentRefused,
    events.JobNetworkRefused,
    events.LogRefused,
    events.ProfileRefused,
    events.ProgramRefused,
    events.ReferenceValuesRefused,
)
def test_a_refusal_that_leaves_the_block_is_recorded(made, kind):
    error = NetworkError("ST-NETW-010", "no")
    with pytest.raises(NetworkError), recording.Recorder(made.ledger(), kind):
        raise error
    assert recorded(made) == [kind.of(error)]


def test_what_is_no_refusal_is_not_recorded(made):
    with pytest.raises(KeyError), recording.Recorder(made.ledger(), events.ProfileRefused):
        raise KeyError
    with recording.Recorder(made.ledger(), events.ProfileRefused):
        pass
    assert recorded(made) == []


def test_where_compiled_code_comes_from(made, tmp_path):
    shared = Cache(folder=tmp_path / "3f2a")
    recording.record_cache(shared, made.ledger())
    recording.record_cache(replace(shared, problem="open to all"), made.ledger())
    assert recorded(made) == [
        events.CompileCacheUsed(subject="3f2a"),
        events.CompileCacheUsed(problem="open to all"),
    ]
