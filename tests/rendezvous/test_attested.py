# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The gate with real software TPMs behind it: over TLS, with leases that are renewed."""

from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from securetrain.attest.node.attester import sign_evidence
from securetrain.core.errors import AttestationError
from securetrain.core.vocabulary import TEST_ONLY, NodeTier
from securetrain.evidence.node_evidence import parse_node
from securetrain.identity.spiffe import Role, SpiffeId
from securetrain.rendezvous.wire.protocol import Proof
from tests.attest.swtpms import without_swtpm
from tests.rendezvous.worlds import attested, policy_of, two_machines
from tests.vocabulary import refused

pytestmark = [pytest.mark.tpm, without_swtpm]


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    with two_machines(tmp_path_factory.mktemp("machines")) as made:
        yield made


@pytest.fixture
def pool():
    with ThreadPoolExecutor(4) as made:
        yield made


@pytest.fixture
def policy(machines, tmp_path):
    return policy_of(machines, tmp_path)


def test_two_attested_nodes_form_a_round_and_renew(job, machines, policy, pool, tools):
    job.start(2, 2, policy=policy, lease=2.0, heartbeat=0.5)
    members = [attested(job, machine) for machine in machines]
    rounds = [pool.submit(member.next_round, lambda _: 29500, 20.0) for member in members]
    for found in rounds:
        assert [m.tier for m in found.result(30).membership.members] == [NodeTier.TEST_ONLY] * 2
    first = members[0].result
    assert first.label == TEST_ONLY
    assert first.submods["tpm"].claims["secure_boot"] is True
    svid = members[0]._link.admitted.passport.svid
    assert SpiffeId.of_certificate(svid).role is Role.UNATTESTED
    tools.wait_until(lambda: members[0].result is not first, "the lease is renewed")
    (admitted, _) = [e for e in job.events() if e.event == "node-admitted"]
    assert admitted.details["reference_values"] == first.reference_values


def test_a_reboot_during_the_lease_ends_it(job, machines, policy, tools):
    job.start(1, 1, policy=policy, lease=1.5, heartbeat=0.5)
    member = attested(job, machines[0])
    machines[0].reboot()
    event = job.expect("ST-ATTS-118", "node-evicted")
    assert event.subject.endswith("/node/node-0")
    tools.wait_until(lambda: not member.connected, "the node is out")


@pytest.mark.forgery
def test_implanted_boot_code_during_the_lease_bars_the_node(job, machines, policy, tools):
    job.start(1, 1, policy=policy, lease=1.5, heartbeat=0.5)
    attested(job, machines[0])
    machines[0].tpm.boot([(4, bytes(range(32)))])
    job.expect("ST-ATTS-008", "node-evicted")
    tools.wait_until(lambda: not job.coordinator._nodes, "the coordinator dropped it")
    refused(AttestationError, "ST-ATTS-010", attested, job, machines[0])


@pytest.mark.forgery
def test_the_tpm_of_another_node_is_not_even_challenged(job, machines, policy):
    job.start(1, 2, policy=policy)
    identity = job.identity("node-0")
    with pytest.raises(AttestationError) as caught:
        job.join(identity=identity, attester=machines[1].attester(identity.key))
    assert caught.value.code == "ST-ATTS-012"
    job.expect("ST-ATTS-012", "node-refused")


@pytest.mark.forgery
def test_evidence_of_one_connection_on_another(job, machines, policy, tools):
    """A node that relays: it is challenged on two connections and swaps the answers."""
    job.start(1, 2, policy=policy)
    identity, other = job.identity("node-0"), job.identity("node-1")
    attesters = [m.attester(i.key) for m, i in zip(machines, (identity, other), strict=True)]
    channel, challenge = job.challenged(identity, tpm=attesters[0].keys())
    elsewhere, question = job.challenged(other, tpm=attesters[1].keys())
    binding = tools.binding_of(elsewhere, question, other)
    proof = tools.prove(attesters[1], binding, question, attesters[1].keys())
    channel.send(proof, tools.soon())
    refusal = tools.answer(channel)
    assert refusal.code == "ST-ATTS-003"
    assert challenge.credential is not None


@pytest.mark.forgery
def test_a_node_that_hides_its_tpm(job, machines, policy, tools):
    """Announced in Hello, then left out, with the node's own signature over the rest."""
    job.start(1, 1, policy=policy)
    identity = job.identity("node-0")
    attester = machines[0].attester(identity.key)
    channel, challenge = job.challenged(identity, tpm=attester.keys())
    binding = tools.binding_of(channel, challenge, identity)
    honest = tools.prove(attester, binding, challenge, attester.keys())
    parsed = parse_node(honest.body)
    body = msgspec.structs.replace(parsed, tpm=None, tokens=("a.b.c",)).encode()
    evidence = sign_evidence(honest.media_type, body, honest.binding, identity.key)
    proof = Proof(
        media_type=evidence.media_type,
        body=evidence.body,
        binding=evidence.binding,
        signature=evidence.signature,
    )
    channel.send(proof, tools.soon())
    assert tools.answer(channel).code == "ST-ATTS-013"
