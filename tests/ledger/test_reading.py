# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What counts of a ledger whose signatures are good: known events of those who may."""

import itertools
from datetime import UTC, datetime, timedelta

import pytest

from securetrain.core.errors import IntegrityError
from securetrain.core.vocabulary import Boundary, Decision, NodeTier
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot, sign_root
from securetrain.ledger import (
    Event,
    Ledger,
    WriterRole,
    Writers,
    events,
    read_events,
    read_ledger,
    verify_ledger,
)
from securetrain.ledger.log import root_keys
from securetrain.testing.runs import make_run
from tests.tables import each

NOW = datetime(2026, 6, 1, tzinfo=UTC)
ROOT, AGENT, WORKER, THIRD = (PrivateKey.generate() for _ in range(4))
OLD = {TrustRole.LEDGER: [AGENT.public, WORKER.public, THIRD.public]}
ROLES = {
    **OLD,
    TrustRole.LEDGER_COORDINATOR: [AGENT.public],
    TrustRole.LEDGER_LAUNCHER: [AGENT.public],
    TrustRole.LEDGER_WORKER: [WORKER.public],
}
ADMITTED = events.NodeAdmitted(subject="node-9", tier=NodeTier.TEE_GPU, label="tee+gpu")


def root(roles):
    return TrustRoot.parse(sign_root(roles, ROOT, NOW, NOW + timedelta(days=1)), NOW)


@pytest.fixture
def read(tmp_path):
    """Write events by (key, event) and read them by a trust root's roles."""

    def write_and_read(*written, roles=ROLES):
        path = tmp_path / "ledger.jsonl"
        for key, said in written:
            ledger = Ledger(path, key, "agent", lambda: NOW).begin()
            if isinstance(said, Event):
                ledger.append(said)
            else:
                ledger.write(said)
        return read_ledger(path.read_bytes(), root(roles), where="ledger.jsonl")

    return write_and_read


def test_what_is_written_by_its_writer_counts(read):
    found = read((AGENT, ADMITTED), (WORKER, events.PickleLetThrough(subject="x", rank=3)))
    assert found.events == (ADMITTED, events.PickleLetThrough(subject="x", rank=3))
    assert (found.ignored, found.names_writers) == ((), True)
    assert [line.time for line in found.recorded] == [NOW, NOW]


def test_a_workers_key_cannot_admit_a_node(read):
    found = read((AGENT, events.RunStarted()), (WORKER, ADMITTED))
    assert found.events == (events.RunStarted(),)
    (ignored,) = found.ignored
    assert ignored.boundary is Boundary.NODE
    assert str(ignored) == (
        "entry 2 (node-admitted) is ignored: written under a key of worker, which may not write it"
    )


@each("kind, key", *itertools.product(events.KINDS.values(), (AGENT, WORKER, THIRD)))
def test_every_role_writes_what_is_its_own_and_nothing_else(kind, key):
    writers = Writers.of(root(ROLES))
    held = {
        AGENT: {WriterRole.COORDINATOR, WriterRole.LAUNCHER},
        WORKER: {WriterRole.WORKER},
        THIRD: set(),
    }[key]
    assert writers.may(key.key_id, kind) is bool(held & kind.WRITERS)
    assert Writers.of(root(OLD)).may(key.key_id, kind)


def test_a_key_without_a_role_writes_nothing(read):
    found = read((THIRD, events.NodeLeft()))
    assert found.events == ()
    assert "a key without a role" in str(found.ignored[0])


def test_a_revoked_key_has_no_role():
    assert not Writers.of(root(OLD)).named
    assert Writers.of(root(ROLES)).roles == {
        AGENT.key_id: {WriterRole.COORDINATOR, WriterRole.LAUNCHER},
        WORKER.key_id: {WriterRole.WORKER},
    }


def test_an_old_trust_root_is_read_as_before_and_says_so(read):
    found = read((WORKER, ADMITTED), roles=OLD)
    assert (found.events, found.ignored, found.names_writers) == ((ADMITTED,), (), False)


def test_a_role_alone_does_not_let_a_key_sign(read):
    """The keys of the ledger are those of the role `ledger`; the others only say what for."""
    roles = {**ROLES, TrustRole.LEDGER: [AGENT.public]}
    with pytest.raises(IntegrityError, match="ST-LEDG-003"):
        read((WORKER, events.PickleLetThrough(rank=0)), roles=roles)


@pytest.mark.parametrize(
    "line",
    [
        Event(boundary=Boundary.NODE, decision=Decision.ALLOW, event="node-admired"),
        Event(
            boundary=Boundary.NODE,
            decision=Decision.ALLOW,
            event="node-admitted",
            details={"tier": "best"},
        ),
        Event(boundary=Boundary.HOST, decision=Decision.ALLOW, event="node-admitted"),
    ],
    ids=["name", "tier", "boundary"],
)
def test_what_is_no_event_is_ignored_and_named(read, line):
    found = read((AGENT, line))
    assert found.events == ()
    assert "not an event that is known here" in str(found.ignored[0])
    assert len(found.verified.entries) == 2


@pytest.mark.parametrize(("key", "closed"), [(AGENT, True), (WORKER, False)])
def test_only_who_may_end_a_ledger_ends_it(read, key, closed):
    found = read((AGENT, events.RunStarted()), (key, events.Closed()))
    assert found.verified.closed
    assert found.closed is closed


def test_a_ledger_that_goes_on_after_its_end_is_not_closed(read):
    assert not read((AGENT, events.Closed()), (AGENT, events.RunStarted())).closed
    assert not read((AGENT, events.Closed()), (WORKER, ADMITTED)).closed


def test_an_empty_ledger():
    found = read_ledger(b"", root(ROLES))
    assert (found.events, found.closed) == ((), False)


def test_a_small_run_names_its_writers(tmp_path):
    run = make_run(tmp_path / "run")
    run.ledger("rank-0").write(ADMITTED)
    found = read_ledger(run.run_dir.ledger.read_bytes(), run.trust)
    assert len(found.events) == len(found.ignored) == 1


def test_a_ledger_without_its_beginning_or_of_another_trust_root_says_so(tmp_path):
    run, other = (make_run(tmp_path / name) for name in ("one", "other"))
    data = run.run_dir.ledger.read_bytes()
    keys = run.trust.keys_for(TrustRole.LEDGER)
    assert read_ledger(data, run.trust).begun
    assert not read_events(verify_ledger(data, keys), Writers({}), root_keys(other.trust)).begun
    assert not read_events(verify_ledger(b"", keys), Writers({})).begun
