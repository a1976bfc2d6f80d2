# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A node's certificate is renewed while it is in, and only then."""

from datetime import timedelta

import pytest
from cryptography.x509 import Certificate

from securetrain.core.errors import AdmissionError, IdentityError
from securetrain.identity.job_ca import JobCA, certificate_pem
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.spiffe import Role
from securetrain.rendezvous.coordinator.journal import Journal
from securetrain.rendezvous.coordinator.renewal import Renewal
from securetrain.rendezvous.member.identity_dir import (
    load_identity,
    replace_certificate,
    store_identity,
    write_identity,
)
from securetrain.rendezvous.member.renewed import check_renewed
from securetrain.rendezvous.wire.protocol import Admit
from tests.tables import items
from tests.vocabulary import refused

HOUR = timedelta(hours=1)


@pytest.fixture
def ca(tools):
    return JobCA.create("securetrain.local", "job-1", tools.now())


@pytest.fixture
def identity(ca, tools, tmp_path):
    return write_identity(tmp_path / "id", ca, "node-0", tools.now(), lifetime=HOUR)


def renewal_at(ca, when, job):
    def issue(node, key):
        return ca.issue(Role.NODE, key, when, node=node, lifetime=HOUR)

    return Renewal(issue=issue, clock=lambda: when, journal=Journal(job.ledger))


def test_nothing_in_the_first_half_of_its_life(ca, identity, job, tools):
    renewal = renewal_at(ca, tools.now() + timedelta(minutes=20), job)
    assert renewal.renew(identity.spiffe, identity.certificate) is None
    assert job.events() == []


def test_the_next_one_in_the_second_half(ca, identity, job, tools):
    when = tools.now() + timedelta(minutes=40)
    made = renewal_at(ca, when, job).renew(identity.spiffe, identity.certificate)
    assert made is not None
    (event,) = job.events()
    assert event.event == "certificate-renewed"
    assert event.details["serial"] == f"{made.serial_number:x}"
    assert check_renewed(certificate_pem(made).decode(), identity, when) == made
    assert made.not_valid_after_utc > identity.certificate.not_valid_after_utc


def test_one_that_has_ended_is_not_renewed(ca, identity, job, tools):
    renewal = renewal_at(ca, tools.now() + timedelta(minutes=61), job)
    with pytest.raises(AdmissionError, match="was not renewed in time") as caught:
        renewal.renew(identity.spiffe, identity.certificate)
    assert caught.value.code == "ST-ADMN-002"


@items("why, code", ("ST-IDEN-011", "ST-ADMN-013"), ("ST-IDEN-013", "ST-ADMN-012"))
def test_when_nothing_may_or_can_be_issued(identity, job, tools, why, code):
    def issue(node, key):
        raise IdentityError(why, "no", "here")

    later = tools.now() + timedelta(minutes=40)
    renewal = Renewal(issue=issue, clock=lambda: later, journal=Journal(job.ledger))
    refused(AdmissionError, code, renewal.renew, identity.spiffe, identity.certificate)
    assert job.events() == []


def forged(ca, identity, tools, name):
    """What a coordinator could send instead."""
    now, key = tools.now(), identity.key.public
    other = JobCA.create("securetrain.local", "job-1", now)
    stranger = PrivateKey.generate(KeyKind.P256).public

    def leaf(issuer=ca, role=Role.NODE, public=key, node="node-0", lifetime=2 * HOUR):
        made = issuer.issue(role, public, now, node=node, lifetime=lifetime)
        return certificate_pem(made).decode()

    return {
        "honest": leaf(),
        "another CA": leaf(issuer=other),
        "another role": leaf(role=Role.COORDINATOR, node=""),
        "another node": leaf(node="node-1"),
        "another key": leaf(public=stranger),
        "shorter": leaf(lifetime=timedelta(minutes=10)),
        "two certificates": leaf() + leaf(),
        "no certificate": "nothing",
    }[name]


def test_the_forgeries_begin_with_an_honest_one(ca, identity, tools):
    check_renewed(forged(ca, identity, tools, "honest"), identity, tools.now())


@items(
    "name",
    "another CA",
    "another role",
    "another node",
    "another key",
    "shorter",
    "two certificates",
    "no certificate",
)
def test_a_certificate_that_is_not_this_nodes_next_one(ca, identity, tools, name):
    with pytest.raises(AdmissionError) as caught:
        check_renewed(forged(ca, identity, tools, name), identity, tools.now())
    assert caught.value.code == "ST-ADMN-006"
    assert caught.value.where == "Admit.certificate"


# Over the wire.


def old_identity(job, tools):
    """Half of its life is over, and it is good for twenty minutes more."""
    now = tools.now()
    key = PrivateKey.generate(KeyKind.P256)
    leaf = job.ca.issue(
        Role.NODE, key.public, now - timedelta(minutes=40), node="node-0", lifetime=HOUR
    )
    return store_identity(job.folder(), key, leaf, job.ca.certificate, now)


def test_a_node_gets_its_next_certificate_and_can_come_again_with_it(job, tools):
    job.start()
    identity = old_identity(job, tools)
    kept: list[object] = []
    member = job.make_member(identity=identity, on_certificate=kept.append)
    member.connect(job.host, job.port)
    (made,) = kept
    assert isinstance(made, Certificate)
    assert "certificate-renewed" in [e.event for e in job.events()]
    assert member.next_round(lambda _: 20000).membership.members[0].certificate == (
        job.coordinator._nodes["node-0"].certificate
    ), "this connection goes on under the certificate that it began with"
    member.leave()
    tools.wait_until(lambda: not job.coordinator._nodes, "it has left")
    replace_certificate(job.folder(), made)
    again = load_identity(job.folder(), tools.now())
    assert again.certificate == made
    assert job.join(identity=again).connected
    assert [e.event for e in job.events()].count("certificate-renewed") == 1


def test_a_renewed_certificate_is_not_renewed_at_every_lease(job, tools):
    job.start(lease=3.0)
    kept: list[object] = []
    member = job.make_member(identity=old_identity(job, tools), on_certificate=kept.append)
    member.connect(job.host, job.port)
    first = member.result
    tools.wait_until(lambda: member.result is not first, "the lease is renewed")
    assert len(kept) == 1


def test_a_certificate_that_ends_while_the_node_is_in_ends_the_lease(job, tools):
    """The coordinator's clock jumps over the end: nobody can vouch for the node any more."""
    skew = timedelta()
    job.start(lease=0.9, clock=lambda: tools.now() + skew)
    member = job.make_member(
        identity=write_identity(job.folder(), job.ca, "node-0", tools.now(), lifetime=HOUR)
    )
    member.connect(job.host, job.port)
    skew = timedelta(hours=2)
    event = job.expect("ST-ADMN-002", "node-evicted")
    assert "was not renewed in time" in event.details["what"]


def test_an_admission_with_somebody_elses_certificate_is_refused(job, tools, monkeypatch):
    job.start()
    other = job.identity("node-1")

    def renew(self, peer, current):
        return other.certificate

    monkeypatch.setattr(Renewal, "renew", renew)
    refused(AdmissionError, "ST-ADMN-006", job.join)


def test_most_admissions_carry_none(job, tools):
    job.start()
    member = job.join()
    assert isinstance(member.terms, Admit)
    assert member.terms.certificate == ""
