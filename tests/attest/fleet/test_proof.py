# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What is learned as good is proven, and is good for one image group: attacks on both."""

import hmac
from datetime import timedelta

import msgspec
import pytest

from securetrain.attest.fleet.bundle import (
    ANSWER_WITHIN,
    make_question,
    question_to_enroll,
    verify_bundle,
)
from securetrain.attest.fleet.enrollment import Enrollment, Roots, enroll
from securetrain.attest.fleet.values import retire
from securetrain.core.errors import AttestationError, UsageError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence.reference import (
    open_reference_values,
    sign_reference_values,
    trusted_keys,
)
from securetrain.evidence.tpm.constants import Hash
from securetrain.evidence.tpm.credential import Credential
from securetrain.identity.keys import PrivateKey
from securetrain.testing.bootlog import Boot
from tests import vocabulary
from tests.attest.fleet.worlds import BACK_DOOR, appraiser, impostor, judged, verdict
from tests.attest.worlds import MAKER_CA, Machine, bundle_of, replaced
from tests.evidence.tpm.forge import NOW, Authority, Tpm

ROOTS = Roots(hardware=(MAKER_CA.pem,))
OPERATOR = PrivateKey.generate()


@pytest.fixture
def machine():
    return Machine("node-4")


def enrolled(*enrollments, values=None, roots=ROOTS, now=NOW):
    return enroll(values, enrollments, roots=roots, now=now)


def answered(machine, asked=None, **how):
    """An enrollment by the answer to a question."""
    asked = asked or question_to_enroll(bundle_of(machine), NOW)
    return Enrollment(
        bundle=bundle_of(machine, answer_to=asked), secret=asked, learn_boot=True, **how
    )


def refused(code, *enrollments, error=AttestationError, **how):
    return vocabulary.refused(error, code, enrolled, *enrollments, **how)


def opened_by(machine, asked):
    """The secret, as the TPM gives it to whoever is root on the machine."""
    credential = asked.question.credential
    assert credential is not None
    return machine.tpm.activate(Credential(*credential))


def test_a_boot_is_learned_from_an_answer(machine):
    edition = enrolled(answered(machine))
    assert edition.notes == ()
    assert edition.values.unproven == {}
    assert judged(machine, edition.values) is NodeTier.TPM


@pytest.mark.forgery
def test_a_boot_that_nobody_asked_for(machine):
    error = refused("ST-ATTS-019", Enrollment(bundle=bundle_of(machine), learn_boot=True))
    assert "node-4" in error.where
    assert "--to-enroll" in error.fix
    dressed = replaced(bundle_of(machine), asked_itself=False)
    refused("ST-ATTS-019", Enrollment(bundle=dressed, learn_boot=True))
    enrolled(Enrollment(bundle=bundle_of(machine)))  # its hardware alone needs no proof


@pytest.mark.forgery
def test_a_software_key_with_a_real_nodes_public_parts(machine):
    """Nothing but a certificate and a program: the quote verifies, and the log explains it."""
    forged = impostor(machine)
    control = enrolled(Enrollment(bundle=bundle_of(forged), learn_boot=True, unproven=True))
    assert control.nodes[0].learned, "the bundle holds together"
    refused("ST-ATTS-019", Enrollment(bundle=bundle_of(forged), learn_boot=True))
    assert "was not opened" in refused("ST-ATTS-016", answered(forged)).what


@pytest.mark.forgery
def test_root_on_the_node_opens_the_credential_for_a_software_key(machine):
    """The TPM opens what was made for its own key: it says nothing of another key."""
    asked = question_to_enroll(bundle_of(machine), NOW)
    forged = impostor(machine)
    opened = opened_by(machine, asked)
    forged.open = lambda ask, value: hmac.new(opened, value, "sha256").digest()
    assert "other keys" in refused("ST-ATTS-016", answered(forged, asked)).what
    values = enrolled(answered(machine), answered(forged_boot(Machine("n", tpm=Tpm(key=4))))).values
    judge = appraiser(values)
    again = make_question(bundle_of(machine), judge, NOW)
    opened = opened_by(machine, again)
    vocabulary.refused(
        AttestationError,
        "ST-ATTS-016",
        lambda: verify_bundle(
            bundle_of(forged, answer_to=again),
            judge,
            secret=again,
            policy="",
            lease=timedelta(minutes=1),
            now=NOW,
        ),
    )


def forged_boot(machine):
    machine.boot(BACK_DOOR)
    return machine


@pytest.mark.forgery
def test_another_machine_answers(machine, monkeypatch):
    asked = question_to_enroll(bundle_of(machine), NOW)
    other = Machine("node-4", tpm=Tpm(key=4))
    monkeypatch.setattr(other, "open", lambda ask, value: bytes(32))
    refused("ST-ATTS-016", answered(other, asked))


@pytest.mark.forgery
def test_a_late_answer_and_one_to_another_question(machine):
    first = answered(machine)
    refused("ST-ATTS-002", first, now=NOW + ANSWER_WITHIN)
    refused("ST-ATTS-002", first, now=NOW - timedelta(seconds=1))
    other = question_to_enroll(bundle_of(machine), NOW)
    refused("ST-ATTS-002", changed(first, secret=other))


def changed(enrollment, **changes):
    fields = {name: getattr(enrollment, name) for name in Enrollment.__slots__}
    return Enrollment(**{**fields, **changes})


@pytest.mark.forgery
def test_a_question_without_a_credential(machine):
    asked = question_to_enroll(bundle_of(machine), NOW)
    question = msgspec.structs.replace(asked.question, credential=None)
    bare = msgspec.structs.replace(asked, question=question)
    refused("ST-ATTS-019", answered(machine, bare))


@pytest.mark.forgery
def test_a_tpm_of_an_unknown_maker_teaches_no_boot():
    """A software TPM opens every credential that is made for it."""
    machine = Machine("node-4", maker=Authority("somebody's root"))
    refused("ST-ATTS-107", answered(machine))
    machine.certificate = b""
    refused("ST-ATTS-110", answered(machine))
    listed = enrolled(answered(machine, uncertified=True), roots=Roots())
    assert listed.values.tpm.allow_uncertified == (machine.ek_name,)


def test_a_proof_that_was_waived_stays_in_the_values(machine):
    edition = enrolled(Enrollment(bundle=bundle_of(machine), learn_boot=True, unproven=True))
    assert edition.values.unproven == {"": ("node-4",)}
    assert "UNPROVEN" in edition.notes[0]
    assert enrolled(answered(machine), values=edition.values).values.unproven == {"": ("node-4",)}
    assert verdict(machine, edition.values).result.submods["tpm"].claims["boot_unproven"] is True
    proven = verdict(machine, enrolled(answered(machine)).values).result
    assert "boot_unproven" not in proven.submods["tpm"].claims


# Image groups.


@pytest.fixture
def two_groups(machine):
    other = Machine("node-5", tpm=Tpm(key=4))
    other.boot(Boot(kernel=b"another image"))
    return enrolled(answered(machine, group="a-1"), answered(other, group="b-2")).values, other


def test_a_node_boots_what_its_group_boots(machine, two_groups):
    values, other = two_groups
    assert {name: node.group for name, node in values.nodes.items()} == {
        "node-4": "a-1",
        "node-5": "b-2",
    }
    assert judged(machine, values) is judged(other, values) is NodeTier.TPM
    assert verdict(machine, values).result.submods["tpm"].claims["group"] == "a-1"
    assert values.boot.boot_applications == ()


@pytest.mark.forgery
def test_a_node_does_not_boot_what_another_group_boots(machine, two_groups):
    values, other = two_groups
    machine.boot(other.what)
    vocabulary.refused(AttestationError, "ST-ATTS-213", judged, machine, values)
    stranger = Machine("node-6", tpm=Tpm(key=6))
    values = enrolled(Enrollment(bundle=bundle_of(stranger)), values=values).values
    vocabulary.refused(AttestationError, "ST-ATTS-211", judged, stranger, values)


def test_a_node_has_one_group(machine, two_groups):
    values, _ = two_groups
    moved = Enrollment(bundle=bundle_of(machine), group="b-2")
    refused("ST-USAG-005", moved, values=values, error=UsageError)
    kept = enrolled(Enrollment(bundle=bundle_of(machine)), values=values).values
    assert kept.nodes["node-4"].group == "a-1"
    moved = Enrollment(bundle=bundle_of(machine), group="b-2", replace=True)
    values = enrolled(moved, values=values).values
    assert values.nodes["node-4"].group == "b-2"
    vocabulary.refused(AttestationError, "ST-ATTS-213", judged, machine, values)


@pytest.mark.parametrize("name", ["Big", "-a", "a b", "x" * 65, "a\n"])
def test_a_name_that_is_none(machine, name):
    refused("ST-USAG-001", answered(machine, group=name), error=UsageError)


def test_a_group_without_boots(machine, two_groups):
    values, _ = two_groups
    typed = Enrollment(bundle=bundle_of(Machine("node-7", tpm=Tpm(key=6))), group="a-11")
    refused("ST-USAG-001", typed, values=values, error=UsageError)
    lost = msgspec.structs.replace(values, groups={"b-2": values.groups["b-2"]})
    keys = trusted_keys((), "v") | {OPERATOR.key_id: OPERATOR.public}
    error = vocabulary.refused(
        AttestationError,
        "ST-ATTS-009",
        lambda: open_reference_values(sign_reference_values(lost, OPERATOR), keys, "v"),
    )
    assert "node-4.group" in error.where
    assert (
        open_reference_values(sign_reference_values(values, OPERATOR), keys, "v").values == values
    )


def test_what_is_retired_goes_from_every_group(machine, two_groups):
    values, _ = two_groups
    (shared,) = set(values.groups["a-1"].boot.authorities)
    gone = retire(values, [shared])
    assert all(group.boot.authorities == () for group in gone.groups.values())
    assert Hash.SHA256.size * 2 == len(shared)
    vocabulary.refused(AttestationError, "ST-ATTS-212", judged, machine, gone)
