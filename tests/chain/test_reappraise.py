# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Evidence of a software TPM, judged again from what a coordinator kept; and what is refused."""

import base64
import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from securetrain.artifacts import Expectation
from securetrain.attest.node.tpm import measurements
from securetrain.attest.session import MemoryState, Verifier, appraisers_for
from securetrain.chain import documents
from securetrain.chain.judging import judge
from securetrain.chain.links import Given
from securetrain.chain.store import InMemory
from securetrain.core import canonical
from securetrain.core.vocabulary import ChainLink, LinkState, NodeTier
from securetrain.evidence import AttestationResult, Binding
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRoot
from securetrain.policy import load_policy
from securetrain.policy.load import LoadedPolicy
from securetrain.rendezvous.coordinator import Shown
from securetrain.testing.machine import Machine, reference_values, write_policy
from tests.attest.swtpms import without_swtpm
from tests.chain.worlds import MINUTE, Job, Roles, rebound, subject
from tests.tables import items

pytestmark = [pytest.mark.tpm, without_swtpm]
NODES = ChainLink.NODES


@dataclass
class Attested(Job):
    """A job whose one node has a software TPM, and whose coordinator is a real verifier."""

    nodes: tuple[str, ...] = ("node-0",)
    machine: Any = None
    loaded: LoadedPolicy | None = None
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    verifier: Any = None
    in_parts: bool = False
    parts: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert self.loaded is not None
        self.policy, self.began = self.loaded.digest, self.now
        self.verifier = Verifier(
            policy=self.loaded.policy,
            policy_digest=self.policy,
            clock=lambda: self.now,
            appraisers=appraisers_for(self.loaded, self.now, MemoryState()),
        )
        super().__post_init__()
        self.pieces.put(canonical.encode(self.loaded.policy))

    def attest(
        self, node: str, at: datetime, key: PrivateKey | None = None, **said: Any
    ) -> AttestationResult:
        self.now, mine = at, self.node_keys[node]
        attester = self.machine.attester(mine)
        challenge = self.verifier.challenge(node, attester.keys())
        binding = Binding(
            nonce=challenge.nonce,
            session=b"s" * 16,
            job=self.name,
            client_spki=mine.public.spki,
            server_spki=self.key.public.spki,
            exporter=b"e" * 32,
            ak_name=challenge.ak_name,
        )
        ask = msgspec.structs.replace(challenge.ask, parts=self.in_parts)
        evidence = attester.collect(binding, ask)
        self.parts += evidence.parts
        made: AttestationResult = self.verifier.appraise(
            evidence,
            binding,
            node=node,
            key=mine.public,
            fetch=lambda index, _: evidence.parts[index],
        )
        spent = self.verifier.spent(node)
        shown = Shown(
            evidence=evidence,
            binding=binding,
            keys=attester.keys(),
            secret=spent.secret,
            documents=spent.documents,
        )
        made = msgspec.structs.replace(made, **said)
        self.keeper.result(made.sign(key or self.key), made, shown)
        return made

    def given(self, trust: TrustRoot | None = None, pieces: InMemory | None = None) -> Given:
        """The verifier has the run's own policy, which names who signs reference values."""
        return replace(super().given(trust, pieces), policy=self.verifier.policy)

    def again(self, pieces: InMemory | None = None) -> Given:
        return replace(self.given(pieces=pieces), again=True)

    def kept(self) -> dict[str, documents.Appraised]:
        """The documents of its results, by the results' digests."""
        found = {}
        for data in self.pieces.pieces.values():
            if str(documents.Appraised.__struct_config__.tag).encode() in data[:4000]:
                one = documents.decode(data, documents.Appraised)
                found[one.result] = one
        return found


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("machine")
    with Machine(folder / "node-0", "node-0", ca=folder / "ca") as made:
        made.boot()
        yield made


@pytest.fixture(scope="module")
def attested(machine, tmp_path_factory):
    """A job with a join and two renewals."""
    folder = tmp_path_factory.mktemp("fleet")
    values = reference_values([machine], datetime.now(UTC))
    loaded = load_policy(str(write_policy(folder, values, PrivateKey.generate())))
    job = Attested(roles=Roles(), machine=machine, loaded=loaded)
    lease = timedelta(minutes=loaded.policy.node.lease_minutes)
    machine.execute("/usr/bin/true", b"true")
    for number in (1, 2):
        job.attest("node-0", job.began + number * lease / 2)
    return job


def late(job):
    lease = timedelta(minutes=job.loaded.policy.node.lease_minutes)
    return job.checkpoint(created=job.began + 1.4 * lease)


def another(machine, attested, **more):
    """A further job on the machine, which begins anew."""
    machine.reboot()
    made = {"roles": attested.roles, "machine": machine, "loaded": attested.loaded}
    return Attested(**made, now=attested.now + MINUTE, **more)


def test_a_join_and_its_renewals_are_appraised_again(attested):
    verdict = judge(NODES, subject(late(attested)), attested.again())
    assert verdict.state is LinkState.VERIFIED, verdict
    assert "appraised again" in verdict.what
    assert len(attested.kept()) == 3
    plain = judge(NODES, subject(late(attested)), attested.given())
    assert "appraised again" not in plain.what


def test_a_coordinator_that_lies_is_found_by_the_evidence(machine, attested):
    """It signs a tier that its node's TPM does not show; by results alone it is believed."""
    liar = another(machine, attested)
    false = liar.attest("node-0", liar.began + MINUTE, tier=NodeTier.TEE_GPU, label="tee+gpu")
    assert false.tier is NodeTier.TEE_GPU
    liar.results["node-0"] = liar.attest("node-0", liar.began + 2 * MINUTE)
    liar.results["node-0"] = false
    liar.form(issued=liar.began + 3 * MINUTE)
    said = liar.checkpoint(created=liar.began + 4 * MINUTE)
    believed = judge(NODES, subject(said), liar.given())
    assert believed.state is LinkState.VERIFIED, believed
    found = judge(NODES, subject(said), liar.again())
    assert found.state is LinkState.BROKEN
    assert "ST-ATTS-014" in found.what
    problem = found.problem()
    assert problem is not None
    assert problem.code == "ST-CHAN-010"


@pytest.mark.forgery
def test_the_run_does_not_choose_who_signs_its_reference_values(attested):
    """The verifier names the key by a policy of its own, or expects this very policy."""
    said, right = late(attested), Expectation(policy=attested.loaded.digest)
    for expect in (None, Expectation(run=said.run_id), Expectation(policy="ab" * 32), right):
        given = replace(attested.again(), policy=None, expect=expect)
        verdict = judge(NODES, subject(said), given)
        assert (verdict.state is LinkState.VERIFIED) is (expect is right), verdict


def test_evidence_that_is_gone_is_missing_and_damage_is_never_a_pass(attested):
    """Every piece that the appraisal reads: removed, and with a bit turned over."""
    said, dice = late(attested), random.Random(19)
    names = set()
    for one in attested.kept().values():
        shown = one.presented
        names |= {shown.body, shown.keys, *one.documents}
    assert len(names) >= 5
    for name in names:
        left = {k: v for k, v in attested.pieces.pieces.items() if k != name}
        verdict = judge(NODES, subject(said), attested.again(InMemory(left)))
        assert verdict.state is LinkState.MISSING, verdict
        data = bytearray(attested.pieces.pieces[name])
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        verdict = judge(NODES, subject(said), attested.again(InMemory({**left, name: bytes(data)})))
        assert verdict.state is not LinkState.VERIFIED, name


def test_a_renewal_without_the_join_that_it_goes_on_from_is_missing(machine, attested):
    """The membership names the renewal, and what the node proved before is nowhere."""
    job = another(machine, attested)
    (join,) = job.kept().values()
    job.results["node-0"] = job.attest("node-0", job.began + MINUTE)
    job.form(issued=job.began + 2 * MINUTE)
    said = job.checkpoint(created=job.began + 3 * MINUTE)
    verdict = judge(NODES, subject(said), job.again())
    assert verdict.state is LinkState.VERIFIED, verdict
    renewed = [documents.digest_of(one) for one in job.kept().values() if one != join]
    alone = rebound(job, said, {"appraised": tuple(renewed)})
    assert judge(NODES, subject(alone), job.given()).state is LinkState.VERIFIED
    verdict = judge(NODES, subject(alone), job.again())
    assert verdict.state is LinkState.MISSING, verdict
    assert "what the renewal of" in verdict.what


def test_a_list_that_came_in_parts_is_judged_again_where_somebody_kept_it(
    machine, attested, monkeypatch
):
    """The coordinator keeps no parts: that is a piece that is missing, and no pass."""
    monkeypatch.setattr(measurements, "IMA_SEND_LIMIT", 1)
    job = another(machine, attested, in_parts=True)
    assert job.parts
    said = job.checkpoint(created=job.began + MINUTE)
    verdict = judge(NODES, subject(said), job.again())
    assert verdict.state is LinkState.MISSING, verdict
    assert "a part of the IMA list" in verdict.what
    kept = InMemory(dict(job.pieces.pieces))
    for part in job.parts:
        kept.put(part)
    verdict = judge(NODES, subject(said), job.again(kept))
    assert verdict.state is LinkState.VERIFIED, verdict


def other_bytes(text):
    data = bytearray(base64.b64decode(text))
    data[-1] ^= 1
    return base64.b64encode(bytes(data)).decode()


@items("field_", "nonce", "session", "exporter", "client_spki", "secret", "wireguard")
def test_another_record_of_the_exchange_is_refused(attested, field_):
    """The launcher that binds the documents can write what it likes; the TPM signed one thing."""
    said, pieces = late(attested), dict(attested.pieces.pieces)
    kept = documents.decode(pieces[said.bound.membership], documents.Membership)
    made = []
    job = replace_pieces(attested, pieces)
    for one in attested.kept().values():
        record = one.presented.exchange
        text = getattr(record, field_)
        if text or field_ == "wireguard":
            record = msgspec.structs.replace(
                record, **{field_: other_bytes(text) if text else "AAAA"}
            )
        presented = msgspec.structs.replace(one.presented, exchange=record)
        made.append(job.pieces.keep(msgspec.structs.replace(one, presented=presented)))
    assert len(made) == len(kept.appraised)
    lied = rebound(job, said, {"appraised": tuple(made)})
    assert judge(NODES, subject(lied), job.given()).state is LinkState.VERIFIED
    verdict = judge(NODES, subject(lied), replace(job.given(), again=True))
    assert verdict.state is LinkState.BROKEN, verdict


def replace_pieces(job, pieces):
    """The same job with evidence of its own."""
    other = object.__new__(Attested)
    other.__dict__.update(job.__dict__)
    other.pieces = InMemory(pieces)
    return other


def test_values_that_the_policy_s_key_did_not_sign_are_refused(attested, tmp_path):
    """Reference values under a stranger's key, of the same content."""
    values = reference_values([attested.machine], datetime.now(UTC))
    write_policy(tmp_path, values, PrivateKey.generate())
    envelope = next(
        path.read_bytes() for path in tmp_path.iterdir() if b"payloadType" in path.read_bytes()
    )
    job = replace_pieces(attested, dict(attested.pieces.pieces))
    foreign = job.pieces.put(envelope)
    made = tuple(
        job.pieces.keep(msgspec.structs.replace(one, documents=(foreign, *one.documents[1:])))
        for one in attested.kept().values()
    )
    lied = rebound(job, late(attested), {"appraised": made})
    verdict = judge(NODES, subject(lied), replace(job.given(), again=True))
    assert verdict.state is LinkState.BROKEN, verdict
    assert "ST-ATTS-009" in verdict.what
