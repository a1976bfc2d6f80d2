# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A report's labels come from typed fields of events whose writers may write them.

Names of nodes, subjects, paths, commands and messages may hold any word: the report stays the same.
"""

import shutil
import tempfile
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from securetrain.core.codes import ExitCode
from securetrain.core.errors import AdmissionError
from securetrain.core.vocabulary import (
    DEGRADED,
    TEST_ONLY,
    UNATTESTED,
    UNCONFINED,
    Boundary,
    Decision,
    NetworkProfile,
    NodeTier,
    degraded_label,
)
from securetrain.identity.trust import TrustRole, sign_root
from securetrain.ledger import Event, events
from securetrain.report.run.model import BoundaryState
from securetrain.report.run.record import exit_code_of, read_run
from securetrain.testing.clock import SettableClock
from securetrain.testing.runs import SmallRun, make_run

WORDS = ["UNATTESTED", "TEST-ONLY", "DEGRADED", "UNWATCHED"]
WHOLE = [
    UNATTESTED,
    TEST_ONLY,
    DEGRADED,
    UNCONFINED,
    *map(degraded_label, NetworkProfile),
    *NodeTier,
]
SPELLINGS = sorted({spelling(word) for word in WORDS for spelling in (str, str.lower, str.title)})
texts = st.builds(
    lambda before, word, after: before + word + after,
    st.sampled_from(["", "rack-", "/data/", "node "]),
    st.sampled_from([*SPELLINGS, *WHOLE]),
    st.sampled_from(["", "-7", "/x.bin", " (all)"]),
)


def write(run: SmallRun, text: str) -> None:
    """An honest history with `text` in everything that a name, a path or a message may be."""
    agent, rank = run.ledger(), run.ledger("rank-0")
    agent.write(events.RunStarted(subject=text, command=text, policy_id=text))
    agent.write(events.EnvironmentPassed(names=text))
    agent.write(events.PreflightSkipped(subject=text, mode=text))
    agent.write(events.TorchAccepted(subject=text))
    agent.write(events.SchedulerVariablesRemoved(subject=text, names=text))
    agent.write(events.ProfileAchieved(subject=text, label=text, network=NetworkProfile.OVERLAY))
    agent.write(
        events.JobNetworkUp(
            subject=text, engine=text, rdma=text, profile=text, network=NetworkProfile.OVERLAY
        )
    )
    agent.write(events.RdmaGuarded(subject=text, isolation=text, network=NetworkProfile.OVERLAY))
    agent.write(events.NodeAdmitted(subject=text, tier=NodeTier.TPM, label=text, evidence=text))
    agent.write(events.RoundFormed(subject=text, round=1, nodes=1, evicted=text))
    agent.write(events.SandboxAchieved(label=text, user=7))
    agent.write(events.EpochApplied(subject=text, address=text, nodes=text))
    agent.write(events.WorkerFailed(subject=text, kind=text, what=text))
    rank.write(events.DatasetOpened(subject=text, format=text, tokenizer=text))
    rank.write(events.PickleLetThrough(subject=text, rank=0))
    rank.write(events.CheckpointSigned(subject=text, step=1, digest="ab", verdict="clean"))
    rank.write(events.TrainingFinished(subject=text, tokens=1, refused=0, observed=0, loss=1.0))


def shown(run: SmallRun) -> dict[str, object]:
    """The report without the lines themselves, which hold the text."""
    record = read_run(run.run_dir.root, run.clock() + timedelta(hours=1))
    assert record.problems == ()
    return {
        "boundaries": record.boundaries,
        "limits": record.limits,
        "counts": record.ledger.counts,
        "exit": exit_code_of(record),
    }


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    run = make_run(tmp_path_factory.mktemp("plain") / "run")
    write(run, "name")
    return shown(run)


@settings(max_examples=20, deadline=None)
@given(text=texts)
@example(text="degraded-rack-7")
@example(text="unattested")
@example(text="TEST-ONLY")
@example(text="/data/unwatched/x.bin")
def test_no_word_in_a_name_changes_a_report(plain: dict[str, object], text: str) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        run = make_run(folder / "run")
        write(run, text)
        assert shown(run) == plain
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("text", SPELLINGS)
def test_no_word_in_a_refusal_is_a_label(bare: SmallRun, text: str) -> None:
    error = AdmissionError("ST-ADMN-004", f"{text} is not a node of this job")
    bare.ledger().write(events.NodeRefused.of(error, text))
    record = read_run(bare.run_dir.root, bare.clock() + timedelta(hours=1))
    assert [view.labels for view in record.boundaries] == [()] * len(Boundary)
    assert not any(word in limit for limit in record.limits for word in WORDS)


def test_labels_that_are_true_are_shown(bare: SmallRun) -> None:
    """Control: the same history with fields that say so."""
    write(bare, "name")
    agent, network = bare.ledger(), NetworkProfile.RDMA_TRUSTED
    agent.write(events.NodeAdmitted(subject="node-1", tier=NodeTier.TEST_ONLY))
    agent.write(events.LeaseRenewed(subject="node-1", tier=NodeTier.SELF_ASSERTED))
    agent.write(events.ProfileAchieved(subject="x", network=network))
    agent.write(events.RdmaGuarded(subject="x", network=network))
    agent.write(events.SandboxDegraded(label="x", user=0, missing="Landlock"))
    bare.ledger("rank-0").write(
        events.CheckpointSigned(subject="x", step=2, digest="cd", verdict="unwatched")
    )
    record = read_run(bare.run_dir.root, bare.clock() + timedelta(hours=1))
    labels = {view.boundary: view.labels for view in record.boundaries if view.labels}
    assert labels == {
        Boundary.HOST: (UNCONFINED,),
        Boundary.NODE: (TEST_ONLY, UNATTESTED),
        Boundary.NETWORK: (degraded_label(network),),
        Boundary.FABRIC: (degraded_label(network),),
        Boundary.CHECKPOINT: ("unwatched",),
    }
    states = {view.boundary: (view.state, view.label) for view in record.boundaries}
    assert states[Boundary.NODE] == (BoundaryState.PARTIAL, "TEST-ONLY")
    assert states[Boundary.NETWORK] == (BoundaryState.PARTIAL, "rdma-trusted degraded")
    assert sum(word in limit for limit in record.limits for word in WORDS) == 3
    assert any("sandbox was DEGRADED" in limit for limit in record.limits)


# What a key may not write.


def test_a_workers_key_cannot_admit_a_node(bare: SmallRun) -> None:
    forged = events.NodeAdmitted(subject="node-9", tier=NodeTier.TEE_GPU, label="tee+gpu")
    bare.ledger("rank-0").write(forged)
    record = read_run(bare.run_dir.root, bare.clock() + timedelta(hours=1))
    node = next(view for view in record.boundaries if view.boundary is Boundary.NODE)
    assert (node.state, node.label, node.num_allowed) == (BoundaryState.UNKNOWN, "1 ignored", 0)
    said = "entry 2 (node-admitted) is ignored: written under a key of rank and worker"
    assert any(reason.startswith(said) for reason in node.reasons)
    assert any(said in problem for problem in record.problems)
    assert any("1 entry of the ledger counts for nothing" in limit for limit in record.limits)
    assert [line.event for line in record.ledger.last] == ["run-started"]
    assert record.ledger.counts[Decision.ALLOW] == 0
    assert exit_code_of(record) == ExitCode.INTEGRITY


def test_what_a_coordinator_admits_is_not_checked_beside_a_forgery(bare: SmallRun) -> None:
    admitted = events.NodeAdmitted(subject="node-0", tier=NodeTier.TPM)
    bare.ledger().write(admitted)
    bare.ledger("rank-0").write(admitted)
    record = read_run(bare.run_dir.root, bare.clock() + timedelta(hours=1))
    node = next(view for view in record.boundaries if view.boundary is Boundary.NODE)
    assert (node.state, node.label, node.num_allowed) == (BoundaryState.PARTIAL, "1 ignored", 1)


def test_an_event_that_is_not_known_is_named_and_counts_for_nothing(bare: SmallRun) -> None:
    bare.ledger().append(
        Event(boundary=Boundary.DEBUG, decision=Decision.ALLOW, event="debugger-blessed")
    )
    record = read_run(bare.run_dir.root, bare.clock() + timedelta(hours=1))
    debug = next(view for view in record.boundaries if view.boundary is Boundary.DEBUG)
    assert debug.state is BoundaryState.UNKNOWN
    assert "debugger-blessed" in record.ledger.ignored[0]
    assert exit_code_of(record) == ExitCode.INTEGRITY


def test_a_worker_cannot_end_the_ledger(bare: SmallRun) -> None:
    bare.ledger("rank-0").close()
    record = read_run(bare.run_dir.root, bare.clock() + timedelta(hours=1))
    assert not record.ledger.closed
    assert any("no closing entry" in limit for limit in record.limits)


def test_a_trust_root_without_writers_is_a_limit_and_no_failure(bare: SmallRun) -> None:
    now = SettableClock()()
    roles = {TrustRole.LEDGER: [bare.keys["agent"].public, bare.keys["worker"].public]}
    root = sign_root(roles, bare.keys["root"], now, now + timedelta(days=7))
    bare.run_dir.trust.write_bytes(root)
    bare.ledger("rank-0").write(events.NodeAdmitted(subject="node-0", tier=NodeTier.TPM))
    record = read_run(bare.run_dir.root, bare.clock() + timedelta(hours=1))
    assert record.problems == ()
    assert not record.ledger.names_writers
    assert any("does not name the roles of the ledger's writers" in x for x in record.limits)
    assert msgspec.json.decode(msgspec.json.encode(record.ledger))["names_writers"] is False
    assert exit_code_of(record) == ExitCode.OK
