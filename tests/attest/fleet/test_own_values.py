# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What one machine alone measures is good for it, and for nobody else."""

import msgspec
import pytest

from securetrain.attest.fleet.bundle import question_to_enroll
from securetrain.attest.fleet.enrollment import Enrollment, Roots, enroll
from securetrain.attest.fleet.values import retire
from securetrain.core.errors import AttestationError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence.tpm.boot import BootAppraiser
from securetrain.testing.bootlog import Boot
from tests import vocabulary
from tests.attest.fleet.worlds import judged
from tests.attest.worlds import MAKER_CA, Machine, bundle_of
from tests.evidence.tpm.forge import NOW
from tests.tables import forgeries

ROOTS = Roots(hardware=(MAKER_CA.pem,))


def machine(number, **changes):
    made = Machine(f"node-{number}")
    made.boot(Boot(machine=b"serial %d" % number, **changes))
    return made


def answer(of, **how):
    asked = question_to_enroll(bundle_of(of), NOW)
    return Enrollment(bundle=bundle_of(of, answer_to=asked), secret=asked, **how)


def enrolled(*enrollments, values=None):
    return enroll(values, enrollments, roots=ROOTS, now=NOW)


@pytest.fixture(scope="module")
def machines():
    return [machine(number) for number in range(3)]


@pytest.fixture(scope="module")
def values(machines):
    first, second, _ = machines
    return enrolled(answer(first, learn_boot=True), answer(second)).values


def test_each_is_admitted_with_its_own(machines, values):
    first, second, third = machines
    assert judged(first, values) is judged(second, values) is NodeTier.TPM
    assert set(values.nodes["node-0"].own) == {"1", "5"}
    assert values.nodes["node-0"].own != values.nodes["node-1"].own
    alone = {
        digest for node in values.nodes.values() for held in node.own.values() for digest in held
    }
    assert not alone & {*values.boot.firmware}
    more = enrolled(answer(third), values=values).values
    assert more.boot == values.boot, "the fleet's lists do not grow with its machines"
    assert judged(third, more) is NodeTier.TPM


@pytest.mark.forgery
def test_the_settings_of_another_machine_are_refused(machines, values):
    """The control: with one list for the fleet, as it was, the same boot passes."""
    first, second, _ = machines
    usual = first.what
    try:
        first.boot(second.what)
        everything = tuple(
            digest
            for node in values.nodes.values()
            for held in node.own.values()
            for digest in held
        )
        boot = msgspec.structs.replace(values.boot, firmware=everything)
        assert judged(first, msgspec.structs.replace(values, boot=boot)) is NodeTier.TPM
        error = vocabulary.refused(AttestationError, "ST-ATTS-217", judged, first, values)
        assert error.where.startswith("PCR 1")
    finally:
        first.boot(usual)


@forgeries("wrong", ("5", "1"), ("1", "5"))
def test_what_is_good_in_one_register_is_not_in_another(machines, values, wrong):
    first, (there, here) = machines[0], wrong
    node = values.nodes["node-0"]
    own = {**node.own, here: node.own[there], there: (*node.own["1"], *node.own["5"])}
    swapped = {**values.nodes, "node-0": msgspec.structs.replace(node, own=own)}
    bad = msgspec.structs.replace(values, nodes=swapped)
    error = vocabulary.refused(AttestationError, "ST-ATTS-217", judged, first, bad)
    assert error.where.startswith(f"PCR {here}")


@pytest.mark.forgery
def test_a_machine_that_proves_nothing_teaches_nothing(machines, values):
    third = machines[2]
    made = enrolled(Enrollment(bundle=bundle_of(third)), values=values)
    assert made.values.nodes["node-2"].own == {}
    assert "will refuse it" in made.notes[0]
    vocabulary.refused(AttestationError, "ST-ATTS-217", judged, third, made.values)


def test_a_machine_keeps_what_it_measured_before(values):
    first = machine(0)
    started = enrolled(answer(first, learn_boot=True)).values
    usual = first.what
    first.boot(Boot(machine=b"serial 0, another disk"))
    both = enrolled(answer(first), values=started).values
    assert judged(first, both) is NodeTier.TPM
    first.boot(usual)
    assert judged(first, both) is NodeTier.TPM


def test_what_is_a_machines_own_is_retired_too(machines, values):
    first = machines[0]
    without = retire(values, values.nodes["node-0"].own["5"])
    assert without.nodes["node-0"].own == {"1": values.nodes["node-0"].own["1"]}
    assert without.nodes["node-1"] == values.nodes["node-1"]
    error = vocabulary.refused(AttestationError, "ST-ATTS-217", judged, first, without)
    assert error.where.startswith("PCR 5")


@pytest.mark.forgery
def test_a_boot_that_was_accepted_with_own_values_says_nothing_without_them(machines, values):
    """An appraiser remembers what it has accepted, by everything that the verdict depends on."""
    first, own = machines[0], values.nodes["node-0"].own
    appraiser = BootAppraiser(values.boot)
    log, pcrs = first.what.log(), first.what.registers()
    accepted = appraiser.appraise(log, pcrs, secure_boot=True, own=own)
    assert appraiser.appraise(log, pcrs, secure_boot=True, own=dict(own)) is accepted
    for others in ({}, values.nodes["node-1"].own, {"1": own["5"], "5": own["1"]}):
        with pytest.raises(AttestationError) as refused:
            appraiser.appraise(log, pcrs, secure_boot=True, own=others)
        assert refused.value.code == "ST-ATTS-217"
