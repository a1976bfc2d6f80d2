# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The verifier against every kind of bad evidence; `test_honest_evidence` is the control."""

import dataclasses
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from securetrain.attest.node.attester import SoftwareAttester, sign_evidence
from securetrain.attest.session.state import FileState, MemoryState
from securetrain.attest.session.verifier import MAX_NONCES, Verifier
from securetrain.core import canonical
from securetrain.core.codes import CODES
from securetrain.core.errors import AttestationError
from securetrain.core.vocabulary import UNATTESTED, NodeTier
from securetrain.evidence.appraiser import APPRAISERS, Appraisal, SoftwareAppraiser
from securetrain.evidence.binding import Binding
from securetrain.evidence.case import Ask, Lease
from securetrain.evidence.inventory import EnrolledNode
from securetrain.evidence.selfreport import SELF_ASSERTED_TYPE
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.policy import load_policy
from securetrain.policy.schema import SelfAsserted
from tests import vocabulary
from tests.attest.worlds import MANIFEST, Machine, ima, refused, tpm
from tests.attest.worlds import World as Fleet
from tests.evidence.tpm.forge import Tpm
from tests.tables import each, forgeries, items
from tests.vocabulary import changed

KEY = PrivateKey.generate(KeyKind.P256)
ATTESTER = SoftwareAttester(key=KEY, executable=Path(sys.executable))
START = datetime(2026, 6, 1, 12, tzinfo=UTC)
UNSIGNED = bytes.fromhex("0018000b") + 2 * (b"\0\x20" + b"\1" * 32)
"""A TPMT_SIGNATURE of nobody: ECDSA, SHA-256, r and s."""


def signed(media_type, body, binding):
    return sign_evidence(media_type, body, binding.value(body), KEY)


class World:
    """A verifier with clocks that a test moves."""

    def __init__(self, policy="dev", node=None, appraisers=APPRAISERS):
        self.now, self.seconds, self.count = START, 0.0, 0
        loaded = load_policy(policy)
        settings = loaded.policy
        if node:
            settings = changed(settings, node=node)
        self.verifier = Verifier(
            policy=settings,
            policy_digest=loaded.digest,
            clock=lambda: self.now,
            monotonic=lambda: self.seconds,
            random=self.random,
            appraisers=appraisers,
        )

    def random(self, size):
        self.count += 1
        return self.count.to_bytes(size, "big")

    def binding(self, node="node-0", **changes):
        fields = {
            "nonce": changes.get("nonce") or self.verifier.challenge(node).nonce,
            "session": bytes(16),
            "job": "job-1",
            "client_spki": KEY.public.spki,
            "server_spki": b"server",
            "exporter": bytes(32),
        }
        return Binding(**{**fields, **changes})

    def appraise(self, evidence, binding, node="node-0", key=KEY):
        return self.verifier.appraise(evidence, binding, node=node, key=key.public)

    def asked(self, node="node-0", **changes) -> tuple[Any, Any]:
        """Honest evidence, and the binding that it is for."""
        binding = self.binding(node, **changes)
        return ATTESTER.collect(binding, Ask()), binding

    def join(self, node="node-0"):
        return self.appraise(*self.asked(node), node=node)

    def refused(self, code, evidence, binding, **more):
        return vocabulary.refused(AttestationError, code, self.appraise, evidence, binding, **more)


def test_honest_evidence():
    result = World().join()
    assert result.tier is NodeTier.SELF_ASSERTED
    assert result.label == UNATTESTED
    assert result.key_id == KEY.key_id
    assert result.expires == START + timedelta(minutes=10)
    assert set(result.submods["self-report"].trust_vector.values()) == {0}, "it affirms nothing"


# Freshness.


def test_a_nonce_is_good_once():
    world = World()
    said = world.asked()
    world.appraise(*said)
    world.refused("ST-ATTS-002", *said)


def test_a_failed_attempt_spends_the_nonce_too():
    world = World()
    evidence, binding = world.asked()
    world.refused("ST-ATTS-003", dataclasses.replace(evidence, binding=bytes(32)), binding)
    world.refused("ST-ATTS-002", evidence, binding)


@each("age, good", (0.0, True), (29.9, True), (30.0, False), (1e6, False))
def test_a_nonce_lives_half_a_minute(age, good):
    world = World()
    said = world.asked()
    world.seconds = age
    if good:
        world.appraise(*said)
    else:
        world.refused("ST-ATTS-002", *said, says="expired")


def test_open_challenges_are_bounded_and_expire():
    world = World()
    for _ in range(MAX_NONCES):
        world.verifier.challenge("node-0")
    refused("ST-ATTS-002", world.verifier.challenge, "node-0")
    world.seconds = 30.0
    world.join()
    assert len(world.verifier._asked) == 0


# Binding, kinds and bodies. A lie makes other evidence, or another binding, of honest ones.

OTHER = dataclasses.replace(ATTESTER, key=PrivateKey.generate(KeyKind.P256))


def with_manifest(evidence, binding):
    body = evidence.body.replace(b'"tainted":"', b'"tainted":"9', 1)
    assert body != evidence.body
    return dataclasses.replace(evidence, body=body), binding


def made_for(**change):
    """Evidence for another binding than the one that it is presented with."""
    return lambda _, b: (ATTESTER.collect(dataclasses.replace(b, **change), Ask()), b)


def of_a_kind(kind, body):
    return lambda _, b: (signed(kind, body, b), b)


@each(
    "id, code, lie",
    ("another session", "ST-ATTS-003", made_for(session=b"\x01" * 16)),
    ("another job", "ST-ATTS-003", made_for(job="job-2")),
    ("another server", "ST-ATTS-003", made_for(server_spki=b"impostor")),
    ("another client", "ST-ATTS-003", made_for(client_spki=b"other")),
    ("another connection", "ST-ATTS-003", made_for(exporter=b"\x01" * 32)),
    ("another WireGuard key", "ST-ATTS-003", made_for(wireguard=b"other")),
    ("another attestation key", "ST-ATTS-003", made_for(ak_name=b"other")),
    ("another manifest under the same binding", "ST-ATTS-003", with_manifest),
    ("no signature", "ST-ATTS-003", lambda e, b: (dataclasses.replace(e, signature=b""), b)),
    ("another key", "ST-ATTS-003", lambda _, b: (OTHER.collect(b, Ask()), b)),
    ("a signed kind", "ST-ATTS-003", lambda e, b: (dataclasses.replace(e, media_type="b"), b)),
    ("an unknown kind", "ST-ATTS-006", of_a_kind("application/tpm-quote", b"{}")),
    ("an empty body", "ST-ATTS-001", of_a_kind(SELF_ASSERTED_TYPE, b"")),
    ("a body without fields", "ST-ATTS-001", of_a_kind(SELF_ASSERTED_TYPE, b"{}")),
    ("a pickle", "ST-ATTS-001", of_a_kind(SELF_ASSERTED_TYPE, b"\x80\x04.")),
    ("a tier alone", "ST-ATTS-001", of_a_kind(SELF_ASSERTED_TYPE, b'{"tier":"tpm"}')),
    ("a malformed binding", "ST-ATTS-001", lambda e, b: (e, dataclasses.replace(b, exporter=b""))),
)
def test_evidence_made_for_something_else(code, lie):
    world = World(appraisers={**APPRAISERS, "b": APPRAISERS[SELF_ASSERTED_TYPE]})
    world.refused(code, *lie(*world.asked()))


def test_a_tier_in_the_body_is_refused_not_believed():
    world = World()
    evidence, binding = world.asked()
    body = canonical.dumps({**canonical.loads(evidence.body), "tier": "tpm"})
    world.refused("ST-ATTS-001", signed(SELF_ASSERTED_TYPE, body, binding), binding)


def test_a_nonce_of_our_own_making():
    world = World()
    world.refused("ST-ATTS-002", *world.asked(nonce=b"\xff" * 32))


def test_an_unexpected_error_is_a_refusal():
    class Broken(SoftwareAppraiser):
        def appraise(self, claims, case):
            raise ZeroDivisionError

    world = World(appraisers={SELF_ASSERTED_TYPE: Broken()})
    world.refused("ST-ATTS-001", *world.asked(), says="ZeroDivisionError")


# Policy.


@each("policy", "baseline", "hardened")
def test_policies_that_want_hardware(policy):
    world = World(policy)
    world.refused("ST-ATTS-005", *world.asked())


def tier_appraiser(tier):
    class Fixed(SoftwareAppraiser):
        def appraise(self, claims, case):
            return Appraisal(tier=tier, submods={})

    return {SELF_ASSERTED_TYPE: Fixed()}


@each("tier", *list(NodeTier))
@each("policy", "baseline", "hardened")
def test_every_tier_against_the_policy(tier, policy):
    world = World(policy, appraisers=tier_appraiser(tier))
    if tier >= world.verifier.policy.node.min_tier:
        assert world.appraise(*world.asked()).label == tier.value
    else:
        code = "ST-ATTS-005" if tier is NodeTier.SELF_ASSERTED else "ST-ATTS-004"
        world.refused(code, *world.asked())


def test_a_software_tpm_is_below_an_unattested_node():
    world = World("dev", appraisers=tier_appraiser(NodeTier.TEST_ONLY))
    world.refused("ST-ATTS-004", *world.asked())


def exception(**changes):
    return {"allow_self_asserted": SelfAsserted(**{"max_nodes": 2, "reason": "r", **changes})}


def test_an_exception_lets_unattested_nodes_in_below_the_minimum():
    assert World("hardened", exception()).join().label == UNATTESTED


def test_no_more_unattested_nodes_than_allowed():
    world = World("baseline", exception())
    world.join("a")
    world.join("b")
    vocabulary.refused(
        AttestationError, "2 unattested nodes are in, 2 are allowed", world.join, "c"
    )
    world.join("a")  # its own renewal takes no second place
    world.verifier.release("b")
    world.join("c")


def test_an_expired_lease_makes_room():
    world = World("baseline", exception(max_nodes=1))
    world.join("a")
    world.now = START + timedelta(minutes=10, seconds=1)
    world.join("b")


def test_a_refused_node_takes_no_place():
    world = World("baseline", exception(max_nodes=1))
    evidence, binding = world.asked("a")
    unsigned = dataclasses.replace(evidence, signature=b"")
    world.refused("ST-ATTS-003", unsigned, binding, node="a")
    world.join("b")


@each("day, good", (1, True), (2, True), (3, False))
def test_the_last_day_of_an_exception(day, good):
    world = World("baseline", exception(until=date(2026, 6, 2)))
    world.now = datetime(2026, 6, day, 23, 59, tzinfo=UTC)
    if good:
        world.join()
    else:
        vocabulary.refused(AttestationError, "ended on 2026-06-02", world.join)


# Leases of nodes with a TPM.


@pytest.fixture
def world():
    return Fleet(Machine("node-0"), Machine("node-1"))


@pytest.fixture
def doubled():
    """One TPM that is enrolled under two names."""
    machine = Machine("node-0")
    return Fleet(machine, Machine("node-1", tpm=machine.tpm))


def test_a_restarted_verifier_asks_for_everything_again(world):
    world.join()
    world.restart()
    ask, _ = world.ask()
    assert ask.full
    assert ask.credential is not None
    assert ask.ima_first == 0
    world.join()


@pytest.mark.forgery
def test_a_renewal_is_no_answer_to_a_restarted_verifier(world):
    world.join()
    ask, _ = world.ask()
    world.restart()
    _, binding = world.ask()
    said = world.machine.collect(binding, ask)
    refused("ST-ATTS-016", lambda: world.answer(world.machine.sign(said, binding), binding))


@pytest.mark.forgery
def test_an_answer_to_the_verifier_before_the_restart(world):
    ask, binding = world.ask()
    said = world.machine.collect(binding, ask)
    world.restart()
    refused("ST-ATTS-002", lambda: world.answer(world.machine.sign(said, binding), binding))


@pytest.mark.forgery
@items(
    "id, code, how",
    ("other-registers", "ST-ATTS-116", {"digest": bytes(32)}),
    ("other-question", "ST-ATTS-113", {"extra": bytes(32)}),
    ("other-signer", "ST-ATTS-114", {"signer": b"\0\x0b" + bytes(32)}),
    ("not-made-by-a-tpm", "ST-ATTS-112", {"magic": 0}),
    ("clock-back", "ST-ATTS-121", {"clock": 1}),
    ("bad-signature", "ST-ATTS-111", {"forge": tpm(signature=UNSIGNED)}),
    ("proof-nobody-asked-for", "ST-ATTS-016", {"forge": tpm(activation=b"x")}),
    ("list-emptied", "ST-ATTS-306", {"forge": ima(entries=b"")}),
)
def test_a_contradiction_during_the_lease_bars_node_and_tpm(world, code, how):
    world.join()
    world.machine.execute("/bin/x", b"x")
    world.refused(code, **how)
    assert world.refused("ST-ATTS-010").where == "node:node-0"
    world.state.restore("node:node-0")
    assert world.refused("ST-ATTS-010").where == f"ek:{world.machine.ek_name}"
    world.state.restore(f"ek:{world.machine.ek_name}")
    assert world.ask()[0].full, "its lease is over"
    world.join()


@pytest.mark.forgery
def test_the_same_at_the_door_bars_nobody(world):
    """Who has no lease cannot break it: otherwise a stranger could have a node barred."""
    world.refused("ST-ATTS-113", extra=bytes(32))
    world.refused("ST-ATTS-116", digest=bytes(32))
    world.join()


def test_what_is_late_revokes_nobody(world):
    world.join()
    ask, binding = world.ask()
    said = world.machine.collect(binding, ask)
    world.seconds = 31.0
    refused("ST-ATTS-002", lambda: world.answer(world.machine.sign(said, binding), binding))
    world.join()


@pytest.mark.forgery
def test_a_revoked_node_and_a_revoked_tpm_are_not_asked(world):
    for subject in (f"ek:{world.machine.ek_name}", "node:node-0"):
        world.verifier.revoke(subject, "stolen")
        assert "stolen" in refused("ST-ATTS-010", world.ask).what
        world.state.restore(subject)
    world.join()


def test_a_lease_that_is_over_begins_anew(world):
    world.join()
    world.now += timedelta(minutes=world.policy.node.lease_minutes)
    assert world.ask()[0].full


# One TPM, one lease.


@pytest.mark.forgery
def test_one_tpm_under_two_names_at_once(doubled):
    doubled.join()
    twin = doubled.machines[1]
    refused("ST-ATTS-011", lambda: doubled.ask(twin), says="node-0 holds a lease")
    doubled.now += timedelta(minutes=doubled.policy.node.lease_minutes)
    twin.resets = doubled.machine.resets
    doubled.join(twin, clock=9_000_000)


@pytest.mark.forgery
def test_one_tpm_under_two_names_challenged_before_either_answers(doubled):
    asked = [doubled.ask(machine) for machine in doubled.machines]
    answers: list[tuple[Any, ...]] = []
    for machine, (ask, binding) in zip(doubled.machines, asked, strict=True):
        said = machine.collect(binding, ask, clock=2_000_000 + len(answers), reset=7)
        answers.append((machine.sign(said, binding), binding, machine))
    doubled.answer(*answers[0])
    refused("ST-ATTS-011", lambda: doubled.answer(*answers[1]))


def test_a_node_that_was_released_leaves_its_tpm_free(doubled):
    doubled.join()
    doubled.verifier.release("node-0")
    doubled.join(doubled.machines[1], clock=9_000_000, reset=7)


def test_a_second_attestation_key_of_the_same_tpm_is_asked_for_everything(world):
    world.join()
    ask, _ = world.ask()
    assert not ask.full
    other = Tpm()
    other.ek, other.pcrs = world.machine.tpm.ek, world.machine.tpm.pcrs
    world.machine.tpm = other
    assert world.ask()[0].full
    world.join()


@pytest.mark.forgery
def test_another_tpm_of_the_same_node_goes_on_from_no_lease(world):
    """Two TPMs enrolled for one node, one attestation key name: the lease is the first TPM's."""
    second = Machine("node-0")
    entry = EnrolledNode(ek_names=(world.machine.ek_name, second.ek_name))
    world.values = msgspec.structs.replace(world.values, nodes={"node-0": entry})
    world.appraiser = world.make_appraiser()
    world.restart()
    world.join()
    assert not world.ask()[0].full
    mixed = second.keys(ak_public=world.machine.keys().ak_public)
    assert world.ask(keys=mixed)[0].full


# One question, one answer.


@pytest.mark.forgery
def test_evidence_twice(world):
    ask, binding = world.ask()
    evidence = world.machine.sign(world.machine.collect(binding, ask), binding)
    world.answer(evidence, binding)
    refused("ST-ATTS-002", lambda: world.answer(evidence, binding))


@pytest.mark.forgery
def test_the_nonce_of_another_node(world):
    _, theirs = world.ask(world.machines[1])
    ask, mine = world.ask()
    mixed = dataclasses.replace(mine, nonce=theirs.nonce)
    signed = world.machine.sign(world.machine.collect(mixed, ask), mixed)
    assert "another node" in refused("ST-ATTS-002", lambda: world.answer(signed, mixed)).what


def test_one_node_in_two_jobs():
    """Two verifiers of one fleet may hold a lease with the same TPM, one for each job."""
    machine, state = Machine(), MemoryState()
    worlds = [Fleet(machine, job=job, state=state) for job in ("job-1", "job-2")]
    for world in (*worlds, *worlds):
        assert world.join().job == world.job


@pytest.mark.forgery
def test_one_answer_for_two_jobs():
    """The same node, the same moment, the same question but for the job's name."""
    machine = Machine()
    first, second = (Fleet(machine, job=job) for job in ("job-1", "job-2"))
    first.verifier.random = second.verifier.random = lambda size: b"\x07" * size
    ask, binding = first.ask()
    _, other = second.ask()
    assert binding.nonce == other.nonce
    said = machine.collect(binding, ask)
    signed = machine.sign(said, binding)
    refused("ST-ATTS-003", lambda: second.answer(signed, other))
    _, other = second.ask()
    rebound = machine.sign(tpm(activation=machine.open(ask, other.value(MANIFEST)))(said), other)
    refused("ST-ATTS-113", lambda: second.answer(rebound, other))
    first.answer(signed, binding)


# What bars a node, and what does not.

CONTRADICTIONS = {
    "the node itself": (8, 16),
    "its TPM": (109, 111, 112, 113, 114, 116, 117, 119),
    "what it has run": (303, 304, 306, 308, 309, 310, 311, 312, 313),
    "its CPU, of AMD": (403, 406, 408, 409, 410, 411),
    "its CPU, of Intel": (503, 506, 516, 517, 518, 519),
    "its confidential VM": (441, 446),
    "its GPUs": (603, 604, 610, 613, 615, 619, 622, 626, 631, 633, 634, 637),
}
"""By what the evidence is about; everything else is late, old, missing or cannot be read."""
BARRING = {f"ST-ATTS-{number:03}" for group in CONTRADICTIONS.values() for number in group}
TWO = "ST-ATTS-121"  # bars a machine that holds no lease, too: its TPM has shown two


def scripted(fleet, error):
    """Have the appraiser refuse whatever comes next."""

    def appraise(claims, case):
        raise error

    fleet.appraiser.appraise = appraise


@each("code", *[code for code in CODES if code.startswith("ST-ATTS-")])
def test_what_bars_a_node(code):
    world = Fleet()
    world.join()
    scripted(world, AttestationError(code, "w" * 2000))
    world.refused(code)
    held = {entry.subject: entry.reason for entry in world.state.revocations()}
    assert bool(held) == (code in {*BARRING, TWO})
    if held:
        assert set(held) == {"node:node-0", f"ek:{world.machine.ek_name}"}
        when = "" if code == TWO else " during its lease"
        assert all(reason.startswith(f"{code}{when}: w") for reason in held.values())
        assert max(map(len, held.values())) == 1000
        assert world.verifier._leases == {}


def test_contradictions_have_codes():
    assert set(CODES) >= BARRING


@each("code", TWO, *sorted(BARRING))
def test_without_a_lease_nothing_else_bars(code):
    world = Fleet()
    scripted(world, AttestationError(code, "w"))
    world.refused(code)
    assert bool(world.state.revocations()) == (code == TWO)


# The verifier itself.


def test_an_unexpected_error_about_keys_is_a_refusal(monkeypatch):
    def broken(*_):
        raise ZeroDivisionError

    world = Fleet()
    monkeypatch.setattr(world.appraiser, "open", broken)
    refused("ST-ATTS-001", world.ask, says="ZeroDivisionError", names="node node-0")


def test_an_unexpected_error_about_the_nonce_is_a_refusal():
    world = World()
    binding = dataclasses.replace(world.binding(), nonce=bytearray(32))
    world.refused("ST-ATTS-001", ATTESTER.collect(binding, Ask()), binding, says="TypeError")


def test_keys_that_no_appraiser_can_open():
    world = World()
    error = refused("ST-ATTS-009", lambda: world.verifier.challenge("node-0", Machine().keys()))
    assert error.where == "node node-0: node.reference_values"


def test_who_only_speaks_for_itself_has_no_lease_to_break():
    world = World()
    world.join()
    evidence, binding = world.asked()
    world.refused("ST-ATTS-003", dataclasses.replace(evidence, binding=bytes(32)), binding)
    world.join()


class Presents(SoftwareAppraiser):
    """Says that a node presents some hardware."""

    def __init__(self, *identities):
        self.identities = identities

    def appraise(self, claims, case):
        lease = Lease(identities=self.identities, expires=case.expires)
        return Appraisal(tier=NodeTier.TEE, submods={}, lease=lease)


def presenting(*identities):
    return World("hardened", appraisers={SELF_ASSERTED_TYPE: Presents(*identities)})


@forgeries("identity", "chip:ab", "device:cd")
def test_one_piece_of_hardware_is_in_one_node(identity):
    world = presenting("chip:ab", "device:cd")
    world.join("a")
    world.verifier.appraisers[SELF_ASSERTED_TYPE].identities = (identity, "chip:other")
    error = refused("ST-ATTS-011", lambda: world.join("b"))
    assert error.where == f"node b: {identity}"
    assert "a holds a lease" in error.what
    world.now += timedelta(minutes=5)
    world.join("b")
    refused("ST-ATTS-011", lambda: world.join("a"))
    world.verifier.release("a")
    refused("ST-ATTS-011", lambda: world.join("c"))


def test_hardware_that_a_node_no_longer_presents_is_free():
    world = presenting("chip:ab", "device:cd")
    world.join("a")
    appraiser = world.verifier.appraisers[SELF_ASSERTED_TYPE]
    appraiser.identities = ("chip:ab",)
    world.join("a")
    appraiser.identities = ("device:cd",)
    world.join("b")
    world.verifier.release("a")
    appraiser.identities = ("chip:ab",)
    world.join("c")


@forgeries("subject", "node:a", "chip:ab", "device:cd")
def test_a_revocation_between_question_and_answer(subject):
    world = presenting("chip:ab", "device:cd")
    said = world.asked("a")
    world.verifier.revoke(subject, "stolen")
    world.refused("ST-ATTS-010", *said, node="a", names=subject)
    world.verifier.state.restore(subject)
    world.join("a")


@pytest.mark.forgery
@pytest.mark.parametrize("name", ["past", "remember", "revocation"])
def test_a_state_that_cannot_be_used_lets_nobody_in(name, monkeypatch):
    def broken(*_):
        raise AttestationError("ST-ATTS-015", "disk full", "state")

    world = Fleet()
    monkeypatch.setattr(world.state, name, broken)
    world.refused("ST-ATTS-015")
    monkeypatch.undo()
    assert world.verifier._leases == {}
    world.join()


@pytest.mark.forgery
def test_a_clock_is_kept_before_anybody_hears_of_the_lease(tmp_path):
    """A verifier that falls over right after an admission knows the TPM's clock all the same."""
    first, second = (FileState(tmp_path / "state.sqlite") for _ in range(2))
    world = Fleet(state=first)
    old = world.machine.clock
    world.join()
    first.close()
    world.state = second
    world.restart()
    world.refused("ST-ATTS-121", clock=old)
    second.close()


@pytest.mark.forgery
def test_a_revocation_outlives_the_verifier(tmp_path):
    first, second = (FileState(tmp_path / "state.sqlite") for _ in range(2))
    world = Fleet(state=first)
    world.join()
    world.machine.extend(4, bytes(32))
    world.refused("ST-ATTS-008")
    first.close()
    world.state = second
    world.restart()
    world.machine.boot()
    world.refused("ST-ATTS-010")
    second.close()
