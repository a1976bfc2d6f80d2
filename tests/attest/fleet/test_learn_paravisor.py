# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A confidential VM is enrolled, and then joins by what was learned of it."""

import msgspec
import pytest

from securetrain.attest.fleet.learn import CpuRoots
from securetrain.core.errors import UsageError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence.case import Ask
from securetrain.evidence.tpm.late import LateReference
from tests.attest.fleet.test_enrollment import make, refused
from tests.attest.worlds import Machine, bundle_of
from tests.evidence import test_tee_appraiser as tees
from tests.evidence.tee import forge_azure as azure
from tests.evidence.tee import forge_intel as intel
from tests.evidence.tee.forge import der
from tests.evidence.tee.forge_amd import MEASUREMENT
from tests.evidence.test_paravisor_exchange import KINDS
from tests.evidence.worlds import CloudWorld
from tests.tables import items

MAKERS = CpuRoots(amd=azure.AMD.roots, intel=intel.pin())


def speaks(machine, make_tee=azure.snp, runtime=None, forge=lambda tee: tee, **quoted):
    """The evidence of a VM, as a bundle carries it."""

    def add(said, value):
        vtpm = machine.evidence(value, Ask(), **quoted)
        tee = make_tee(runtime or azure.Vm(tpm=machine.tpm).runtime(), vtpm)
        if make_tee is azure.snp:
            ders = (der(azure.AMD.ask()), der(azure.AMD.ark()))
            tee = msgspec.structs.replace(tee, certificates=(*tee.certificates, *ders))
        return msgspec.structs.replace(said, tee=forge(tee))

    return add


@pytest.fixture
def world():
    return CloudWorld()


def learned(world, kind=azure.snp, **how):
    bundle = bundle_of(world.machine, speaks(world.machine, kind, **how), tpm=False)
    return make(None, bundle, makers=MAKERS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_vm_that_was_learned_joins(world, kind):
    edition = learned(world, kind)
    values = edition.values
    assert values.nodes["node-0"].vms == (azure.VM,)
    assert values.nodes["node-0"].chips == ()
    assert len(values.paravisor.measurements) == 1
    assert values.snp.measurements == values.tdx.mr_tds == (), "no guest is accepted by it"
    assert values.late == LateReference()
    assert any("paravisor" in line for line in edition.nodes[0].learned)
    world.values = msgspec.structs.replace(
        world.values,
        **{name: getattr(values, name) for name in ("paravisor", "nodes", "boot", "late")},
    )
    world.appraiser = world.make_appraiser()
    world.appraiser._tee = tees.appraiser(
        snp=values.snp, tdx=values.tdx, paravisor=values.paravisor
    )
    world.restart()
    assert world.say(kind).tier is NodeTier.TEE


def test_a_console_is_learned_and_said(world):
    edition = learned(world, runtime=world.vm.runtime(None, **{"console-enabled": True}))
    assert edition.values.paravisor.allow_console
    assert any("console" in note for note in edition.notes)


def test_only_the_vm_without_a_good_boot(world):
    bundle = bundle_of(world.machine, speaks(world.machine), tpm=False)
    values = make(None, bundle, makers=MAKERS, learn_boot=False).values
    assert values.nodes["node-0"].vms == (azure.VM,)
    assert values.paravisor.measurements == ()


@pytest.mark.forgery
@items(
    "how, code",
    ({"extra": bytes(32)}, "ST-ATTS-113"),
    ({"digest": bytes(32)}, "ST-ATTS-116"),
    ({"runtime": b"{}"}, "ST-ATTS-440"),
    ({"make_tee": lambda r, v: azure.snp(r, v, report_data=bytes(64))}, "ST-ATTS-404"),
)
def test_a_vm_that_teaches_nothing(world, how, code):
    """What does not hold together is left out, and then nothing is left to enroll."""
    bundle = bundle_of(world.machine, speaks(world.machine, **how), tpm=False)
    assert code in refused("ST-ATTS-013", None, bundle, makers=MAKERS).what


@pytest.mark.forgery
def test_one_vm_is_one_node(world):
    values = learned(world).values
    twin = Machine("node-1", tpm=world.vm.tpm)
    bundle = bundle_of(twin, speaks(twin), tpm=False)
    assert "VM" in refused("ST-USAG-005", values, bundle, makers=MAKERS, error=UsageError).what
    other = bundle_of(
        world.machine,
        speaks(world.machine, runtime=world.vm.runtime(vmUniqueId=azure.VM.replace("7d", "8d"))),
        tpm=False,
    )
    refused("ST-USAG-005", values, other, makers=MAKERS, error=UsageError)
    assert MEASUREMENT.hex() in values.paravisor.measurements
