# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Who is admitted to a fleet, and every lie that a machine with or without a token may tell."""

import copy
import hmac
import random
from datetime import timedelta

import msgspec
import pytest

from securetrain.attest.fleet.bundle import question_to_enroll
from securetrain.attest.fleet.doorkeeper import ANSWER_WITHIN, MAX_TRIES, Doorkeeper
from securetrain.attest.fleet.enrollment import Enrollment, Roots, enroll
from securetrain.attest.fleet.intake import Rule
from securetrain.attest.session.state import Revocation
from securetrain.core.errors import AdmissionError, AttestationError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence.inventory import EnrolledNode
from securetrain.evidence.tpm.constants import Attributes
from securetrain.evidence.tpm.credential import Credential
from securetrain.evidence.tpm.keys import AK_TEMPLATE
from securetrain.testing.bootlog import Boot
from tests import vocabulary
from tests.attest.fleet.worlds import (
    BACK_DOOR,
    EXPORTER,
    ROOTS,
    Office,
    answer,
    impostor,
    judged,
    knock,
)
from tests.attest.worlds import (
    MAKER_CA,
    Collector,
    Machine,
    bundle_of,
    reference_values,
)
from tests.evidence.tpm.forge import NOW, Authority, Tpm, make_key
from tests.vocabulary import changed

TEMPLATES = ("L-1", "L-2", "H-1", "H-2", "H-3", "H-6")


def refused(code, what, *args, **how):
    error = AttestationError if code.startswith("ST-ATTS") else AdmissionError
    return vocabulary.refused(error, code, what, *args, **how)


def no_secret(ask, value):
    return bytes(32)


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_machine_of_any_template_is_proven_signed_and_admitted(office, template):
    machine = Machine("node-4", tpm=Tpm(template))
    office.prove(office.token(group="image"), machine)
    taken = office.intake.sign_by_rule(office.desk, Rule.FIRST)
    assert taken.held == ()
    assert judged(machine, taken.edition.values) is NodeTier.TPM


# Without the check: what the desk prevents.


@pytest.mark.forgery
def test_a_software_key_with_a_real_nodes_public_parts(office):
    machine = Machine("node-4")
    forged = impostor(machine)
    # Where nobody asks, all of it is learned, and every machine may boot it.
    plain = enroll(
        None,
        [Enrollment(bundle=bundle_of(forged), learn_boot=True, unproven=True)],
        roots=ROOTS,
        now=NOW,
    ).values
    machine.boot(BACK_DOOR)
    assert judged(machine, plain) is NodeTier.TPM
    machine.boot()
    token = office.token()
    refused("ST-ATTS-016", office.prove, token, forged)
    assert office.desk.waiting() == []
    office.prove(token, machine)  # a try that failed has not spent the token


@pytest.mark.forgery
@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(n, marks=pytest.mark.many) for n in range(3, 120))]
)
def test_a_forged_machine_drawn_at_random(office, seed):
    """Other templates, groups and lies; each is refused, and the honest machine gets in after."""
    draw = random.Random(seed)
    machine = Machine("node-4", tpm=Tpm(draw.choice(TEMPLATES)))
    token = office.token(group=draw.choice(("", "image-a", "image-b")))
    other = Machine("node-9", tpm=Tpm(draw.choice(TEMPLATES), key=4))
    other.open = no_secret  # type: ignore[method-assign] # it was asked of another TPM
    lies = {
        "software key": ("ST-ATTS-016", lambda: office.prove(token, impostor(machine))),
        "other TPM's answer": (
            "ST-ATTS-016",
            lambda: office.keeper.judge(
                office.ask(token, machine), answer(office.ask(token, machine), token, other), "x"
            ),
        ),
        "invented boot": (
            "ST-ATTS-20",
            lambda: office.prove(token, machine, lying(machine, {"event_log": BACK_DOOR.log()})),
        ),
        "no log": (
            "ST-ATTS-013",
            lambda: office.prove(token, machine, lying(machine, {"event_log": b""})),
        ),
        "no TPM": ("ST-ATTS-013", lambda: office.prove(token, machine, lying(machine, None))),
        "uncertified": ("ST-ATTS-107", lambda: office.prove(token, uncertified())),
    }
    for name in draw.sample(sorted(lies), 3):
        code, lie = lies[name]
        with pytest.raises((AdmissionError, AttestationError)) as caught:
            lie()
        found = caught.value.code
        assert found.startswith(code) or (name == "other TPM's answer" and found == "ST-ATTS-003")
    assert office.desk.waiting() == []
    office.prove(token, machine)


def lying(machine, tpm):
    """Its word with other fields in the TPM's part, or without that part."""
    return Collector(machine, lambda said, _: changed(said, tpm=tpm))


def uncertified():
    return Machine("node-4", maker=Authority("somebody else's root"))


def test_a_part_that_is_left_out(office):
    machine, token = Machine("node-4"), office.token()
    refused("ST-ATTS-016", office.prove, token, machine, lying(machine, {"activation": b""}))
    refused("ST-ATTS-013", office.prove, token, machine, lying(machine, {"event_log": b""}))
    refused("ST-ATTS-013", office.prove, token, machine, lying(machine, None))
    refused("ST-ATTS-107", office.prove, token, uncertified())
    assert office.desk.waiting() == []


@pytest.mark.forgery
def test_a_measurement_list_that_does_not_explain_its_register(office):
    machine, token = Machine("node-4"), office.token()
    machine.execute("/usr/bin/later", b"measured, and left out of the list")
    machine.measured.pop()
    with pytest.raises(AttestationError) as caught:
        office.prove(token, machine)
    assert caught.value.code.startswith("ST-ATTS-3")


# Relays.


@pytest.mark.forgery
def test_the_answer_of_another_connection(office):
    """A machine in between has two connections: the answer on one is worth nothing on the other."""
    machine, token = Machine("node-4"), office.token()
    elsewhere = bytes(reversed(EXPORTER))
    asked = office.ask(token, machine)
    relayed = answer(asked, token, machine, exporter=elsewhere)
    refused("ST-ATTS-003", office.keeper.judge, asked, relayed, "x")
    again = office.ask(token, machine)
    refused("ST-ATTS-003", office.keeper.judge, again, answer(asked, token, machine), "x")


@pytest.mark.forgery
def test_a_knock_that_is_replayed_on_another_connection(office):
    machine, token = Machine("node-4"), office.token()
    elsewhere = bytes(reversed(EXPORTER))

    def replay():
        office.keeper.ask(knock(token, machine, machine.keys(), EXPORTER), elsewhere)

    refused("ST-ADMN-014", replay)


@pytest.mark.forgery
def test_a_machine_that_has_another_one_answer(office):
    """A cuckoo: the token's machine passes the TPM of an enrolled one off as its own."""
    honest, cuckoo = Machine("node-1"), Machine("node-4")
    office.prove(office.token("node-1"), honest)
    borrowed = copy.copy(cuckoo)
    borrowed.tpm, borrowed.certificate = honest.tpm, honest.certificate
    token = office.token("node-4")
    refused("ST-ADMN-021", office.ask, token, borrowed)  # before a question is made for it
    refused("ST-ADMN-021", office.prove, token, borrowed, says="node-1")
    office.intake.sign(office.desk, office.desk.waiting())
    refused("ST-ADMN-021", office.prove, token, borrowed, says="node-1")


@pytest.mark.forgery
def test_the_answer_is_of_keys_that_were_not_announced(office):
    """Root on a real machine opens the credential, for a quote of a program's key."""
    machine, token = Machine("node-4"), office.token()
    forged = impostor(machine)
    asked = office.ask(token, machine)
    inside = machine.tpm.activate(Credential(*asked.question.credential))
    forged.open = lambda ask, value: hmac.new(inside, value, "sha256").digest()
    error = refused("ST-ATTS-016", office.keeper.judge, asked, answer(asked, token, forged), "x")
    assert "of other keys than" in error.what, "before anything of it is read"


@pytest.mark.forgery
def test_a_key_that_signs_anything_is_asked_nothing(office):
    """What such a key says of registers may be a program's word."""
    machine, token = Machine("node-4"), office.token()
    free = AK_TEMPLATE.attributes & ~Attributes.RESTRICTED
    keys = machine.keys(ak_public=make_key(AK_TEMPLATE, attributes=free).public.tpm2b)
    refused("ST-ATTS-104", office.ask, token, machine, keys=keys)


@pytest.mark.forgery
def test_the_answer_is_signed_by_another_node_key(office):
    machine, token = Machine("node-4"), office.token()
    asked = office.ask(token, machine)
    said = answer(asked, token, machine)
    other = msgspec.structs.replace(said, key=Machine("x").key.public.spki)
    assert "another node key" in refused("ST-ATTS-003", office.keeper.judge, asked, other, "x").what
    question = msgspec.structs.replace(said.question, nonce=bytes(32))
    other = msgspec.structs.replace(said, question=question)
    assert "another question" in refused("ST-ATTS-003", office.keeper.judge, asked, other, "x").what
    assert office.keeper.judge(asked, said, "x").node == "node-4"


def test_an_answer_that_comes_late(office):
    machine, token = Machine("node-4"), office.token()
    asked = office.ask(token, machine)
    said = answer(asked, token, machine)
    office.now += ANSWER_WITHIN
    late = refused("ST-ATTS-002", office.keeper.judge, asked, said, "x")
    office.now = NOW - timedelta(seconds=1)  # by a clock that goes back, before it was asked
    early = refused("ST-ATTS-002", office.keeper.judge, asked, said, "x")
    assert late.what == early.what == "the answer comes late"


# Tokens.


@pytest.mark.forgery
def test_a_token_for_one_tpm_on_another_machine(office):
    expected, other = Machine("node-4"), Machine("node-4")
    token = office.token(ek=expected.ek_name)
    assert other.ek_name[:20] in refused("ST-ADMN-020", office.prove, token, other).what
    office.prove(token, expected)


def test_a_token_that_ended(office):
    token = office.token(hours=1)
    machine = Machine("node-4")
    asked = office.ask(token, machine)
    office.now += timedelta(hours=1)
    refused("ST-ADMN-015", office.ask, token, machine)
    assert asked.invited.ends == office.now


def test_a_token_that_ends_while_its_machine_answers(office):
    token, machine = office.token(hours=1), Machine("node-4")
    office.now += timedelta(minutes=59, seconds=59)
    asked = office.ask(token, machine)
    said = answer(asked, token, machine)
    office.now += timedelta(seconds=1)
    refused("ST-ADMN-015", office.keeper.judge, asked, said, "x")
    assert office.desk.waiting() == []


@pytest.mark.forgery
def test_one_token_on_two_connections_at_once(office):
    """Both were asked before either had answered: the first answer spends the token."""
    token, machine = office.token(), Machine("node-4")
    asked = [office.ask(token, machine) for _ in range(2)]
    said = [answer(one, token, machine) for one in asked]
    office.keeper.judge(asked[1], said[1], "x")
    refused("ST-ADMN-016", office.keeper.judge, asked[0], said[0], "x", says="meanwhile")
    (waits,) = office.desk.waiting()
    assert waits.bundle == said[1]


def test_a_token_that_was_used_is_asked_nothing(office):
    token, machine = office.token(), Machine("node-4")
    office.prove(token, machine)
    assert "this machine" in refused("ST-ADMN-016", office.ask, token, machine).what
    refused("ST-ADMN-016", office.ask, token, Machine("node-4"), says="another machine")


@pytest.mark.forgery
def test_a_clock_that_is_moved_back(office):
    """The attack: a token has ended, and the desk's machine is told that it has not."""
    token, machine = office.token(hours=1), Machine("node-4")
    office.now += timedelta(hours=2)
    office.token("node-5")  # the desk writes, and so knows the time
    refused("ST-ADMN-015", office.prove, token, machine)
    office.now -= timedelta(hours=2)
    refused("ST-ADMN-022", office.prove, token, machine)
    office.reopen()
    refused("ST-ADMN-022", office.prove, token, machine)
    refused("ST-ADMN-022", office.ask, token, machine)  # before anything of it is looked at
    refused("ST-ADMN-022", office.token, "node-6")
    refused("ST-ADMN-022", office.intake.sign, office.desk, [])


@pytest.mark.forgery
def test_a_token_is_guessed_at(office):
    machine, token = Machine("node-4"), office.token()
    for _ in range(MAX_TRIES):
        refused("ST-ADMN-014", office.ask, token, machine, proof=bytes(64))
    assert "fleet admit" in refused("ST-ADMN-017", office.prove, token, machine).fix
    unknown = msgspec.structs.replace(token, secret=bytes(16))
    refused("ST-ADMN-014", office.prove, unknown, machine)


@pytest.mark.forgery
def test_a_node_key_that_the_machine_does_not_hold(office):
    machine, token = Machine("node-4"), office.token()
    refused("ST-ADMN-014", office.ask, token, machine, possession=bytes(64))
    refused("ST-ADMN-014", office.ask, token, machine, key=Machine("x").key.public)


def test_a_new_token_ends_the_old_one(office):
    old, new = office.token(), office.token()
    refused("ST-ADMN-014", office.prove, old, Machine("node-4"))
    office.prove(new, Machine("node-4"))


# Names.


def test_a_revoked_machine_or_name(office):
    machine = Machine("node-4")
    for subject in (f"ek:{machine.ek_name}", "node:example.org/node-4"):
        office.state.revoke(Revocation(subject=subject, reason="stolen", since=""))
        refused("ST-ATTS-010", office.prove, office.token(), machine, says="stolen")
        office.state.restore(subject)
    office.prove(office.token(), machine)


def test_the_revocation_of_another_is_nobody_elses(office):
    for subject in (
        "node:example.org/node-40",
        "node:example.org/other",
        "ek:000b" + "ab" * 32,
        "device:a/node-4",
    ):
        office.state.revoke(Revocation(subject=subject, reason="stolen", since=""))
    office.prove(office.token(), Machine("node-4"))


def test_a_node_that_was_enrolled_without_a_tpm(office):
    """A list names it; the first TPM that proves itself under its name is its own."""
    values = reference_values(Machine("node-0"))
    nodes = {"node-4": EnrolledNode(chips=("ab" * 64,))}
    values = msgspec.structs.replace(values, nodes=nodes)
    office.keeper = Doorkeeper(
        office.desk, clock=lambda: office.now, values=lambda: values, state=office.state
    )
    office.prove(office.token(), Machine("node-4"))


@pytest.mark.forgery
def test_a_cuckoo_after_a_newer_edition(office):
    """Who owns which TPM is read anew with each edition."""
    office.prove(office.token("node-0"), Machine("node-0"))
    office.intake.sign(office.desk, office.desk.waiting())
    late = Machine("node-1")
    office.prove(office.token("node-1"), late)
    office.intake.sign(office.desk, office.desk.waiting())
    cuckoo = copy.copy(Machine("node-4"))
    cuckoo.tpm, cuckoo.certificate = late.tpm, late.certificate
    assert "node-1" in refused("ST-ADMN-021", office.prove, office.token("node-4"), cuckoo).what


def test_a_name_that_is_enrolled_with_another_machine(office):
    first, second = Machine("node-4"), Machine("node-4")
    office.prove(office.token(), first)
    waits = refused("ST-ADMN-021", office.prove, office.token(), second)
    assert "reject" in waits.fix
    office.intake.sign(office.desk, office.desk.waiting())
    refused("ST-ADMN-021", office.prove, office.token(), second)
    office.prove(office.token(replace=True), second)
    taken = office.intake.sign(office.desk, office.desk.waiting())
    assert taken.edition.values.nodes["node-4"].ek_names == (second.ek_name,)


def test_a_node_has_one_group(office):
    machine = Machine("node-4")
    office.prove(office.token(group="image-a"), machine)
    office.intake.sign(office.desk, office.desk.waiting())
    refused("ST-ADMN-021", office.prove, office.token(group="image-b"), machine, says="'image-a'")
    office.prove(office.token(group="image-b", replace=True), machine)
    taken = office.intake.sign(office.desk, office.desk.waiting())
    assert taken.edition.values.nodes["node-4"].group == "image-b"


def test_a_machine_that_comes_again_after_an_update(office):
    machine = Machine("node-4")
    office.prove(office.token(group="image-a"), machine)
    office.intake.sign(office.desk, office.desk.waiting())
    machine.boot(Boot(kernel=b"the next kernel"))
    office.prove(office.token(group="image-a"), machine)
    (held,) = office.intake.sign_by_rule(office.desk, Rule.FIRST).held
    assert held.proven.node == "node-4"
    taken = office.intake.sign(office.desk, office.desk.waiting())
    assert judged(machine, taken.edition.values) is NodeTier.TPM


def test_machines_of_one_new_group_that_do_not_agree(office):
    one, two = Machine("node-1"), Machine("node-2")
    two.boot(BACK_DOOR)
    for machine in (one, two):
        office.prove(office.token(machine.name, group="new"), machine)
    taken = office.intake.sign_by_rule(office.desk, Rule.FIRST)
    assert taken.edition is None
    assert {held.proven.node for held in taken.held} == {"node-1", "node-2"}
    assert "do not boot the same" in taken.held[0].why


def test_one_that_cannot_be_signed_keeps_nobody_out(office):
    good, bad = Machine("node-1"), Machine("node-2")
    for machine in (good, bad):
        office.prove(office.token(machine.name, group="g"), machine)
    proven = office.desk.waiting()
    broken = changed(proven[1], secret={"secret": bytes(32)})
    taken = office.intake.sign(office.desk, [proven[0], broken])
    assert list(taken.edition.values.nodes) == ["node-1"]
    assert [held.why[:11] for held in taken.held] == ["ST-ATTS-016"]
    assert office.desk.waiting_nodes() == ["node-2"]


def test_what_waits_too_long_must_be_proven_anew(office):
    office.prove(office.token(), Machine("node-4"))
    office.now += timedelta(days=29)
    assert office.intake.sign(office.desk, []).edition is None
    late = office.desk.waiting()
    office.now += timedelta(days=1)
    (held,) = office.intake.sign(office.desk, late).held
    assert "30 days" in held.why
    assert office.intake.current() is None


def test_a_wrong_root_lets_nobody_in(tmp_path):
    office = Office(tmp_path, roots=Roots(hardware=(Authority("other").pem,)))
    refused("ST-ATTS-107", office.prove, office.token(), Machine("node-4"))
    office.desk.configure(NOW, roots=Roots(hardware=(MAKER_CA.pem,)))
    office.prove(office.token(), Machine("node-4"))
    office.desk.close()


def test_the_older_way_still_asks(office):
    """``attest enroll`` without an answered question learns nothing, as before."""
    vocabulary.refused(
        AttestationError,
        "ST-ATTS-019",
        enroll,
        None,
        [Enrollment(bundle=bundle_of(Machine("node-4")), learn_boot=True)],
        roots=ROOTS,
        now=NOW,
    )
    assert question_to_enroll(bundle_of(Machine("node-4")), NOW).question.credential is not None
