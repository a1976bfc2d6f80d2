# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A node's side of the lease: whose admission it takes, and how it ends."""

import threading

import msgspec
import pytest

from securetrain.attest.results import issue_passport
from securetrain.core.errors import AdmissionError, AttestationError
from securetrain.core.vocabulary import NodeTier
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.rendezvous import session


@pytest.fixture
def misled(monkeypatch):
    """Have the coordinator send the passport of another result."""

    def mislead(change, **more):
        def issue(result, **fields):
            changed = msgspec.structs.replace(result, **change)
            return issue_passport(changed, **{**fields, **more})

        monkeypatch.setattr(session, "issue_passport", issue)

    return mislead


def test_an_admission_of_this_node(job, misled):
    """The control: the same detour, and nothing changed."""
    misled({})
    job.start()
    assert job.join().connected


@pytest.mark.forgery
@pytest.mark.parametrize(
    ("change", "what"),
    [
        pytest.param({"node": "node-1"}, "node-1", id="another-node"),
        pytest.param({"job": "job-2"}, "the SVID", id="another-job"),
        pytest.param({"key_id": "ab" * 32}, "the SVID", id="another-key"),
        pytest.param({"tier": NodeTier.TPM}, "not this node", id="another-tier"),
        pytest.param({"policy": "ab" * 32}, "not this node", id="another-policy"),
    ],
)
def test_an_admission_that_is_not_about_this_node(job, misled, change, what):
    misled(change)
    job.start()
    with pytest.raises(AdmissionError) as caught:
        job.join()
    assert caught.value.code == "ST-ADMN-006"
    assert what in caught.value.what


@pytest.mark.forgery
def test_an_admission_of_another_nodes_key(job, misled):
    """Result and SVID agree with each other, and with somebody else."""
    other = PrivateKey.generate(KeyKind.P256)
    misled({"key_id": other.key_id}, node_key=other.public)
    job.start()
    with pytest.raises(AdmissionError, match="not this node of this job"):
        job.join()


@pytest.mark.forgery
def test_a_renewal_that_is_about_somebody_else_ends_the_link(job, misled, tools):
    job.start(lease=0.9, heartbeat=0.2)
    member = job.join()
    misled({"node": "node-1"})
    tools.wait_until(lambda: not member.connected, "the node leaves")
    with pytest.raises(AdmissionError, match="ST-ADMN-006"):
        assert member.num_waiting


def test_why_a_renewal_was_refused_is_heard(job, tools):
    """The reason, not only that the connection is gone."""
    coordinator = job.start(lease=0.9, heartbeat=0.2)
    member = job.join()
    original = coordinator._verifier.policy
    node = msgspec.structs.replace(original.node, allow_self_asserted=None)
    coordinator._verifier.policy = msgspec.structs.replace(original, node=node)
    tools.wait_until(lambda: not member.connected, "the node is out")
    with pytest.raises(AttestationError) as caught:
        assert member.num_waiting
    assert caught.value.code == "ST-ATTS-005"
    assert caught.value.where == "the coordinator"
    tools.wait_until(lambda: not member._link.is_open, "its thread ends")


def test_a_renewal_is_asked_for_once(job, tools, monkeypatch):
    """However slowly the verifier answers, and however often the node beats meanwhile."""
    coordinator = job.start(lease=3.0, heartbeat=0.3)
    member = job.join()
    verifier, asked = type(coordinator._verifier), []
    challenge, appraise = verifier.challenge, verifier.appraise
    answer = threading.Event()

    def counted(self, *args):
        asked.append(args)
        return challenge(self, *args)

    def late(self, *args, **more):
        answer.wait(0.7)
        return appraise(self, *args, **more)

    monkeypatch.setattr(verifier, "challenge", counted)
    monkeypatch.setattr(verifier, "appraise", late)
    first = member.result
    tools.wait_until(lambda: member.result is not first, "the lease is renewed")
    assert len(asked) == 1


def test_a_link_is_open_while_it_is(job):
    job.start()
    member = job.make_member()
    link = member._link
    assert not link.is_open, "before it was opened"
    link.leave()  # changes nothing
    member.connect(job.host, job.port)
    assert link.is_open
    member.leave()
    assert not link.is_open


def test_a_link_that_leaves_is_not_open_any_more(job, tools):
    """Also while its thread still has the goodbye to say."""
    job.start(heartbeat=0.1)
    member = job.join()
    link, seen = member._link, []

    def hear(_):
        link.leave()
        seen.append((link._thread.is_alive(), link.is_open))

    link._on_message = hear
    tools.wait_until(lambda: seen, "a status is heard")
    assert seen[0] == (True, False)
