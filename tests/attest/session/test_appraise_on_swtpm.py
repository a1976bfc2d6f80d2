# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Whole exchanges with real software TPMs: join, re-attest, reboot, revoke, and what is refused.

The first test is the control of all others: the same machine, the same verifier, nothing forged.
"""

import dataclasses
import hashlib
import shutil
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from securetrain.attest.fleet.bundle import key_text
from securetrain.attest.node.attester import sign_evidence
from securetrain.attest.node.tpm import endorsement
from securetrain.attest.session.appraisers import appraisers_for
from securetrain.attest.session.reference_file import load_reference_values, write_reference_values
from securetrain.attest.session.state import MemoryState
from securetrain.attest.session.verifier import Verifier
from securetrain.core.errors import AttestationError, PolicyError
from securetrain.core.vocabulary import TEST_ONLY, NodeTier
from securetrain.evidence.binding import Binding
from securetrain.evidence.case import Ask
from securetrain.evidence.node_evidence import NODE_TYPE, parse_node
from securetrain.evidence.tpm.structures import EccKey, RsaKey, parse_public
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.policy import load_policy
from securetrain.policy.load import digest_of
from securetrain.testing.machine import (
    REFERENCE_FILE,
    Machine,
    reference_values,
    runtime_policy,
    write_policy,
)
from tests import vocabulary
from tests.attest.swtpms import without_swtpm
from tests.tables import items
from tests.vocabulary import changed, refused

pytestmark = [pytest.mark.tpm, without_swtpm]
OPERATOR = PrivateKey.generate()
KEYS = {name: PrivateKey.generate(KeyKind.P256) for name in ("node-0", "node-1")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fleet")


@pytest.fixture(scope="module")
def machines(folder):
    """Two machines of one manufacturer, switched on for all tests."""
    with (
        Machine(folder / "node-0", "node-0", ca=folder / "ca") as first,
        Machine(folder / "node-1", "node-1", ca=folder / "ca") as second,
    ):
        yield first, second


@pytest.fixture(scope="module")
def stranger(folder):
    """A machine whose manufacturer has the same names and another key."""
    with Machine(folder / "stranger", "node-0", ca=folder / "other-ca") as machine:
        yield machine


class World:
    """A verifier with a clock that a test moves, and the nodes that ask it."""

    def __init__(self, folder, machines, change=None, **policy):
        self.now = datetime.now(UTC)
        self.seconds = 0.0
        for machine in machines:
            machine.reboot()
        values = reference_values(machines, self.now)  # not before its TPMs were made
        if change is not None:
            values = change(values)
        self.policy = load_policy(str(write_policy(folder, values, OPERATOR, **policy)))
        self.state = None
        self.verifier = self.make_verifier()
        self.attesters = {m.name: m.attester(KEYS[m.name]) for m in machines}

    def make_verifier(self, state=None):
        settings = {} if state is None else {"state": state}
        return Verifier(
            policy=self.policy.policy,
            policy_digest=self.policy.digest,
            clock=lambda: self.now,
            monotonic=lambda: self.seconds,
            appraisers=appraisers_for(self.policy, self.now, MemoryState()),
            **settings,
        )

    def ask(self, node="node-0", keys=None, **binding):
        challenge = self.verifier.challenge(node, keys or self.attesters[node].keys())
        fields = {
            "nonce": challenge.nonce,
            "session": bytes(16),
            "job": "job-1",
            "client_spki": KEYS[node].public.spki,
            "server_spki": b"coordinator",
            "exporter": bytes(32),
            "ak_name": challenge.ak_name,
        }
        return challenge.ask, Binding(**{**fields, **binding})

    def answer(self, evidence, binding, node="node-0"):
        return self.verifier.appraise(evidence, binding, node=node, key=KEYS[node].public)

    def join(self, node="node-0", forge=lambda evidence: evidence):
        """One exchange; `forge` changes the parsed evidence before it is signed."""
        ask, binding = self.ask(node)
        evidence = self.attesters[node].collect(binding, ask)
        parsed = forge(parse_node(evidence.body))
        forged = sign_evidence(NODE_TYPE, parsed.encode(), evidence.binding, KEYS[node])
        return self.answer(forged, binding, node)

    def refused(self, code, **how):
        return vocabulary.refused(AttestationError, code, self.join, **how)


@pytest.fixture
def world(folder, machines):
    return World(folder, machines)


def quoted(evidence):
    """The TPM's part of collected evidence."""
    part = parse_node(evidence.body).tpm
    assert part is not None
    return part


def tpm(**changes):
    """A forger of the TPM's part."""
    return lambda node: changed(node, tpm=changes)


# What must work.


def test_join_and_renew(world, machines):
    result = world.join()
    assert result.tier is NodeTier.TEST_ONLY
    assert result.label == TEST_ONLY
    claims = result.submods["tpm"].claims
    assert claims["secure_boot"] is True
    assert claims["enrolled"] is True
    assert set(result.submods["tpm"].trust_vector.values()) == {0}, "a test TPM affirms nothing"
    machines[0].execute("/usr/bin/new-tool", b"started during the lease")
    for _ in range(2):
        ask, binding = world.ask()
        assert not ask.full
        assert ask.credential is None
        assert ask.ima_first > 0
        evidence = world.attesters["node-0"].collect(binding, ask)
        assert not quoted(evidence).event_log, "a renewal sends no firmware log"
        assert world.answer(evidence, binding).tier is NodeTier.TEST_ONLY


def test_a_vouched_for_manufacturer_makes_a_virtual_tpm(folder, machines):
    def vouch(values):
        tpm = msgspec.structs.replace(
            values.tpm, virtual_roots=values.tpm.test_roots, test_roots=()
        )
        return msgspec.structs.replace(values, tpm=tpm)

    world = World(folder, machines, vouch, tier="vtpm", extends="baseline")
    result = world.join()
    assert result.tier is NodeTier.VTPM
    assert result.submods["tpm"].trust_vector["instance-identity"] == 2


@pytest.mark.forgery
def test_a_software_tpm_is_no_tpm_whatever_its_root_is_listed_as(folder, machines):
    def promote(values):
        tpm = msgspec.structs.replace(values.tpm, roots=values.tpm.test_roots, test_roots=())
        return msgspec.structs.replace(values, tpm=tpm)

    world = World(folder, machines, promote, tier="tpm", extends="hardened")
    assert world.refused("ST-ATTS-004").what.startswith("the tier is vtpm")


def test_a_node_joins_again_after_a_reboot_with_all_its_evidence(world, machines):
    world.join()
    machines[0].reboot()
    world.refused("ST-ATTS-118")
    world.verifier.release("node-0")
    ask, _ = world.ask()
    assert ask.full
    assert world.join().tier is NodeTier.TEST_ONLY


@pytest.mark.parametrize(("template", "kind"), [("H-3", EccKey), ("L-1", RsaKey)])
def test_the_life_of_a_node(tmp_path, monkeypatch, template, kind):
    """Join, re-attest, reboot, join again, be revoked, be restored: for both kinds of keys."""
    only = {template: endorsement.CERTIFICATE_INDICES[template]}
    monkeypatch.setattr(endorsement, "CERTIFICATE_INDICES", only)
    with Machine(tmp_path / "node-0", "node-0") as machine:
        world = World(tmp_path, [machine])
        keys = world.attesters["node-0"].keys()
        assert isinstance(parse_public(keys.ek_public).unique, kind)
        assert world.join().submods["tpm"].claims["manufacturer"]
        assert not world.ask()[0].full
        world.join()
        machine.reboot()
        world.refused("ST-ATTS-118")
        world.verifier.release("node-0")
        assert world.ask()[0].full
        world.join()
        world.verifier.revoke("node:node-0", "under suspicion")
        world.refused("ST-ATTS-010")
        world.verifier.state.restore("node:node-0")
        world.join()


def test_every_file_is_in_the_runtime_policy(folder, machines):
    def with_policy(values):
        ima = msgspec.structs.replace(values.ima, policy=runtime_policy(machines[0].files))
        return msgspec.structs.replace(values, ima=ima)

    world = World(folder, machines, with_policy, ima="enforce")
    world.join()
    machines[0].execute("/tmp/implant.so", b"not in the policy")
    assert "/tmp/implant.so" in world.refused("ST-ATTS-309").where
    assert world.refused("ST-ATTS-010").where == "node:node-0", "it contradicted its lease"


# Restarts and revocation.


def test_a_restarted_verifier_asks_for_everything_again(world):
    world.join()
    assert not world.ask()[0].full
    world.verifier = world.make_verifier()
    ask, _ = world.ask()
    assert ask.full
    assert ask.credential is not None
    assert ask.ima_first == 0


@pytest.mark.forgery
def test_a_renewal_is_no_answer_to_a_restarted_verifier(world):
    world.join()
    ask, _ = world.ask()
    world.verifier = world.make_verifier()
    _, binding = world.ask()
    evidence = world.attesters["node-0"].collect(binding, ask)
    refused(AttestationError, "ST-ATTS-016", world.answer, evidence, binding)


def test_a_revoked_node_and_a_revoked_tpm_are_not_asked(world):
    world.join()
    identity = world.verifier._leases["node-0"].identities[0]
    world.verifier.revoke(identity, "stolen")
    assert "stolen" in world.refused("ST-ATTS-010").what
    world.verifier.state.restore(identity)
    world.verifier.revoke("node:node-0", "retired")
    assert "retired" in world.refused("ST-ATTS-010").what
    world.verifier.state.restore("node:node-0")
    world.join()


def test_what_is_late_revokes_nobody(world):
    world.join()
    ask, binding = world.ask()
    evidence = world.attesters["node-0"].collect(binding, ask)
    world.seconds = 31.0
    refused(AttestationError, "ST-ATTS-002", world.answer, evidence, binding)
    world.join()


def test_a_lease_that_is_over_begins_anew(world):
    world.join()
    world.now += timedelta(minutes=11)
    assert world.ask()[0].full


# Whose machine.


@pytest.mark.forgery
def test_a_genuine_tpm_that_is_not_enrolled(folder, machines, world):
    def forget(values):
        return msgspec.structs.replace(
            values, nodes={name: entry for name, entry in values.nodes.items() if name != "node-0"}
        )

    World(folder, machines, forget).refused("ST-ATTS-012", says="not enrolled")


@pytest.mark.forgery
def test_the_tpm_of_another_enrolled_node(world):
    """The cuckoo: node-0's connection, node-1's TPM."""
    keys = world.attesters["node-1"].keys()
    refused(AttestationError, "ST-ATTS-012", world.ask, "node-0", keys, says="the node has another")


@pytest.mark.forgery
def test_a_tpm_of_another_manufacturer_with_the_same_names(world, stranger):
    keys = stranger.attester(KEYS["node-0"]).keys()
    refused(AttestationError, "ST-ATTS-107", world.ask, "node-0", keys)


@pytest.mark.forgery
def test_the_certificate_of_another_tpm(world):
    mine, other = (world.attesters[name].keys() for name in ("node-0", "node-1"))
    mixed = msgspec.structs.replace(mine, ek_certificate=other.ek_certificate)
    refused(AttestationError, "ST-ATTS-106", world.ask, "node-0", mixed)


@pytest.mark.forgery
def test_one_tpm_under_two_names_at_once(folder, machines):
    def both(values):
        entry = values.nodes["node-0"]
        return msgspec.structs.replace(values, nodes={"node-0": entry, "node-1": entry})

    world = World(folder, machines, both)
    world.join()
    refused(AttestationError, "ST-ATTS-011", world.ask, "node-1", world.attesters["node-0"].keys())
    world.now += timedelta(minutes=11)
    world.ask("node-1", world.attesters["node-0"].keys())


@pytest.mark.forgery
def test_an_attestation_key_of_another_tpm(world):
    """Its name is in the credential: the TPM with the endorsement key does not open it."""
    mine, other = (world.attesters[name].keys() for name in ("node-0", "node-1"))
    mixed = msgspec.structs.replace(mine, ak_public=other.ak_public)
    ask, binding = world.ask("node-0", mixed)
    with pytest.raises(AttestationError) as caught:
        world.attesters["node-0"].collect(binding, ask)
    assert caught.value.code == "ST-ATTS-158", "the TPM itself refuses"
    evidence = world.attesters["node-1"].collect(binding, Ask())
    resigned = sign_evidence(NODE_TYPE, evidence.body, evidence.binding, KEYS["node-0"])
    refused(AttestationError, "ST-ATTS-016", world.answer, resigned, binding)


# Relay: right machine, wrong connection.


@pytest.mark.forgery
@items(
    "id, elsewhere",
    ("another-tls-connection", {"exporter": b"\x01" * 32}),
    ("another-session", {"session": b"\x01" * 16}),
    ("another-job", {"job": "job-2"}),
    ("another-coordinator", {"server_spki": b"impostor"}),
    ("another-node-key", {"client_spki": b"other"}),
    ("another-wireguard-key", {"wireguard": b"other"}),
    ("another-attestation-key", {"ak_name": b"other"}),
    ("another-nonce", {"nonce": b"\x01" * 32}),
)
def test_evidence_made_for_another_connection(world, elsewhere):
    ask, binding = world.ask()
    other = dataclasses.replace(binding, **elsewhere)
    evidence = world.attesters["node-0"].collect(other, ask)
    with pytest.raises(AttestationError) as caught:
        world.answer(evidence, binding)
    assert caught.value.code == "ST-ATTS-003"
    # The relay writes the right binding over it: now the hardware's word is for another one.
    relayed = sign_evidence(
        NODE_TYPE, evidence.body, binding.value(parse_node(evidence.body).manifest), KEYS["node-0"]
    )
    _, fresh = world.ask()
    with pytest.raises(AttestationError) as caught:
        world.answer(relayed, dataclasses.replace(binding, nonce=fresh.nonce))
    assert caught.value.code in {"ST-ATTS-003", "ST-ATTS-016", "ST-ATTS-113"}


@pytest.mark.forgery
def test_an_old_quote_with_a_fresh_activation(world):
    ask, binding = world.ask()
    old = quoted(world.attesters["node-0"].collect(binding, ask))
    error = world.refused("ST-ATTS-113", forge=tpm(quote=old.quote, signature=old.signature))
    assert error.where


@pytest.mark.forgery
def test_the_proof_of_an_earlier_challenge(world):
    ask, binding = world.ask()
    old = quoted(world.attesters["node-0"].collect(binding, ask))
    world.refused("ST-ATTS-016", forge=tpm(activation=old.activation))


@pytest.mark.forgery
def test_evidence_twice(world):
    ask, binding = world.ask()
    evidence = world.attesters["node-0"].collect(binding, ask)
    world.answer(evidence, binding)
    refused(AttestationError, "ST-ATTS-002", world.answer, evidence, binding)


@pytest.mark.forgery
def test_the_nonce_of_another_node(world):
    _, binding = world.ask("node-1")
    ask, mine = world.ask("node-0")
    mixed = dataclasses.replace(mine, nonce=binding.nonce)
    evidence = world.attesters["node-0"].collect(mixed, ask)
    refused(AttestationError, "ST-ATTS-002", world.answer, evidence, mixed, says="another node")


# Parts left out, swapped or changed.


def no_tpm(node):
    return msgspec.structs.replace(node, tpm=None, tokens=("x",))


@pytest.mark.forgery
@items(
    "id, code, forge",
    ("announced-tpm-stays-silent", "ST-ATTS-013", no_tpm),
    ("no-firmware-log", "ST-ATTS-013", tpm(event_log=b"")),
    ("no-measurement-list", "ST-ATTS-013", tpm(ima=None)),
    ("no-activation", "ST-ATTS-016", tpm(activation=b"")),
    ("activation-guessed", "ST-ATTS-016", tpm(activation=bytes(32))),
    ("signature-cut", "ST-ATTS-111", tpm(signature=b"\x00\x18\x00\x0b")),
    ("log-is-noise", "ST-ATTS-201", tpm(event_log=b"\xff" * 200)),
)
def test_a_part_is_missing_or_broken(world, code, forge):
    with pytest.raises(AttestationError) as caught:
        world.join(forge=forge)
    assert caught.value.code in {code, "ST-ATTS-101"}, caught.value


@pytest.mark.forgery
def test_the_log_of_another_boot(world, machines):
    from securetrain.testing.bootlog import Boot

    world.refused("ST-ATTS-204", forge=tpm(event_log=Boot(kernel=b"another").log()))


@pytest.mark.forgery
def test_a_register_is_told_otherwise(world):
    def lie(node):
        pcrs = {**node.tpm.pcrs, 7: hashlib.sha256(b"secure boot was on, honest").digest()}
        return tpm(pcrs=pcrs)(node)

    world.refused("ST-ATTS-116", forge=lie)


@pytest.mark.forgery
def test_another_kernel_was_booted(folder, machines):
    from securetrain.testing.bootlog import Boot

    world = World(folder, machines)
    good = machines[0].what
    try:
        machines[0].what = Boot(kernel=b"kernel with a back door")
        machines[0].reboot()
        assert world.refused("ST-ATTS-213").where.startswith("PCR 4")
    finally:
        machines[0].what = good


@pytest.mark.forgery
def test_secure_boot_was_off(folder, machines):
    from securetrain.testing.bootlog import Boot

    world = World(folder, machines)
    good = machines[0].what
    try:
        machines[0].what = Boot(secure_boot=False)
        machines[0].reboot()
        world.refused("ST-ATTS-208")
    finally:
        machines[0].what = good


@pytest.mark.forgery
def test_a_boot_register_is_extended_during_the_lease(world, machines):
    world.join()
    machines[0].tpm.boot([(4, hashlib.sha256(b"kexec").digest())])
    assert world.refused("ST-ATTS-008").where == "PCR 4"
    world.refused("ST-ATTS-010")


@pytest.mark.forgery
def test_an_entry_is_left_out_of_a_renewal(world, machines):
    world.join()
    machines[0].execute("/tmp/one", b"1")
    machines[0].execute("/tmp/two", b"2")

    def hide(node):
        ima = node.tpm.ima
        return tpm(ima=msgspec.structs.replace(ima, entries=ima.entries[len(ima.entries) // 2 :]))(
            node
        )

    world.refused("ST-ATTS-306", forge=hide)


@pytest.mark.forgery
def test_a_list_that_begins_elsewhere(world):
    def skip(node):
        return tpm(ima=msgspec.structs.replace(node.tpm.ima, first=2))(node)

    world.refused("ST-ATTS-311", forge=skip)


@pytest.mark.forgery
def test_gpus_are_asked_for_and_none_speaks(folder, machines):
    world = World(folder, machines)
    node = changed(world.policy.policy.node, gpu={"confidential": True})
    policy = msgspec.structs.replace(world.policy.policy, node=node)
    world.policy = dataclasses.replace(world.policy, policy=policy, digest=digest_of(policy))
    world.verifier = world.make_verifier()
    assert world.refused("ST-ATTS-013").where.endswith("node.gpu.confidential")


@pytest.mark.forgery
def test_a_self_report_dressed_as_node_evidence(world):
    """No field of the body says what it proves."""
    _, binding = world.ask()
    body = b'{"manifest":"e30=","tier":"tpm"}'
    evidence = sign_evidence(NODE_TYPE, body, binding.value(b"{}"), KEYS["node-0"])
    refused(AttestationError, "ST-ATTS-001", world.answer, evidence, binding)


# Reference values.


@pytest.mark.forgery
def test_reference_values_that_are_over(world):
    world.join()
    world.now += timedelta(days=2)
    world.refused("ST-ATTS-009")
    refused(AttestationError, "ST-ATTS-009", world.make_verifier)


@pytest.mark.forgery
def test_reference_values_signed_by_somebody_else(folder, machines):
    world = World(folder, machines)
    values = reference_values(machines, world.now)
    other = PrivateKey.generate()
    policy = (folder / "policy.yaml").read_bytes()
    write_policy(folder, values, other)
    (folder / "policy.yaml").write_bytes(policy)  # still names the operator's key
    refused(AttestationError, "ST-ATTS-009", world.make_verifier)


@pytest.mark.forgery
def test_reference_values_that_go_back(folder, machines):
    """An old edition is genuine, and may know a machine that was struck off since."""
    world = World(folder, machines)
    state = MemoryState()
    appraisers_for(world.policy, world.now, state)
    signed_by = [key_text(OPERATOR.public)]
    values = load_reference_values(
        folder / REFERENCE_FILE, signed_by, world.now, MemoryState()
    ).values
    old = (folder / REFERENCE_FILE).read_bytes()
    newer = msgspec.structs.replace(values, version=values.version + 1)
    write_reference_values(folder / REFERENCE_FILE, newer, OPERATOR)
    appraisers_for(world.policy, world.now, state)
    (folder / REFERENCE_FILE).write_bytes(old)
    appraisers_for(world.policy, world.now, MemoryState())  # the control: by itself it is good
    error = refused(AttestationError, "ST-ATTS-009", appraisers_for, world.policy, world.now, state)
    assert "was accepted before" in error.what


def test_a_resolved_policy_does_not_know_where_its_files_are(world):
    lost = dataclasses.replace(world.policy, sources={})
    refused(PolicyError, "ST-PLCY-004", appraisers_for, lost, world.now, MemoryState())


def test_a_node_with_a_tpm_needs_reference_values(world, machines):
    dev = load_policy("dev")
    verifier = Verifier(policy=dev.policy, policy_digest=dev.digest, clock=lambda: world.now)
    with pytest.raises(AttestationError) as caught:
        verifier.challenge("node-0", world.attesters["node-0"].keys())
    assert caught.value.code == "ST-ATTS-009"


@pytest.mark.many
def test_a_copied_swtpm_is_named_and_reboots_are_not(tmp_path):
    with Machine(tmp_path / "node-0", "node-0", ca=tmp_path / "ca") as machine:
        world = World(tmp_path, [machine])
        for hours in (6, -3, -2):  # the wall is set in between
            world.now += timedelta(hours=hours)
            world.verifier = world.make_verifier(world.verifier.state)
            world.join()
            machine.reboot()
        machine.tpm.stop()
        shutil.copytree(tmp_path / "node-0", tmp_path / "copy")
        machine.reboot()
        with Machine(tmp_path / "copy", "node-0", ca=tmp_path / "ca") as other:
            other.reboot()
            ours, theirs = (one.attester(KEYS["node-0"]) for one in (machine, other))
            for attester in (ours, theirs, ours):
                world.verifier.release("node-0")
                world.attesters["node-0"], last = attester, world.attesters["node-0"]
                if last is not theirs:
                    world.join()
        world.refused("ST-ATTS-121")
