# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Google's confidential VMs: rules are set, and a VM joins by what was learned of it."""

import msgspec
import pytest

from securetrain.attest.fleet.google_values import set_google
from securetrain.attest.fleet.learn import CpuRoots
from securetrain.core.errors import AttestationError, UsageError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence.case import Ask
from tests import vocabulary
from tests.attest.fleet.test_enrollment import make, refused
from tests.attest.worlds import Machine, bundle_of
from tests.evidence import test_tee_appraiser as tees
from tests.evidence.tee import forge_google as google
from tests.evidence.tee import forge_intel as intel
from tests.evidence.tee.forge import der
from tests.evidence.test_google_exchange import KINDS
from tests.evidence.tpm import forge
from tests.evidence.worlds import GoogleWorld
from tests.tables import each, forgeries
from tests.vocabulary import changed

MAKERS = CpuRoots(amd=google.AMD.roots, intel=intel.pin())
OTHER = forge.Tpm(ak=google.Vm().tpm.ak.public, key=4)
NAMED = {
    "roots": (google.root().pem,),
    "intermediates": (google.intermediate().pem,),
    "endorsement_roots": (google.tcb_root().pem,),
    "endorsements": (google.good_endorsement(),),
}


def bare(world, **changes):
    """The values before a VM was enrolled: Google's roots, and nothing else of the VM's."""
    values = msgspec.structs.replace(
        world.values, google=google.GoogleReference(), nodes={}, boot=type(world.values.boot)()
    )
    return set_google(values, {**NAMED, **changes}, {})


def speaks(world, machine=None, forge=lambda tee: tee, certificate=b"", report=None, **quoted):
    """The evidence of a VM, as a bundle carries it."""
    machine = machine or world.machine

    def add(said, value):
        vtpm = machine.evidence(value, Ask(), **quoted)
        tee = world.vm.say(value, vtpm, certificate, **(report or {}))
        if world.vm.kind == "sev-snp":
            ders = (der(google.AMD.ask()), der(google.AMD.ark()))
            tee = msgspec.structs.replace(tee, certificates=(*tee.certificates, *ders))
        return msgspec.structs.replace(said, tee=forge(tee))

    return add


def learned(world, values=None, **how):
    bundle = bundle_of(how.get("machine", world.machine), speaks(world, **how), tpm=False)
    return make(values or bare(world), bundle, makers=MAKERS)


@each("kind", *KINDS)
def test_a_vm_that_was_learned_joins(kind):
    world = GoogleWorld(kind)
    edition = learned(world)
    values = edition.values
    assert values.nodes["node-0"].vms == (google.VM,)
    assert values.nodes["node-0"].chips == ()
    assert values.google.projects == (google.PROJECT,)
    assert not values.google.allow_test
    assert values.snp.measurements == values.tdx.mr_tds == (), "no guest is accepted by it"
    assert any(f"/{google.NAME}" in line for line in edition.nodes[0].learned)
    world.values = values
    world.appraiser = world.make_appraiser()
    world.appraiser._tee = tees.appraiser(
        snp=values.snp, tdx=values.tdx, google=world.appraiser._tee.google
    )
    world.restart()
    assert world.say().tier is NodeTier.TEE


def test_an_instance_for_tests_is_learned_and_said():
    world = GoogleWorld()
    public = world.vm.tpm.ak.public
    certificate = google.certify(public, info=google.instance_info(properties=()))
    edition = learned(world, certificate=certificate)
    assert edition.values.google.allow_test
    assert any("production" in note for note in edition.notes)


def test_instances_for_tests_stay_accepted():
    """An honest one teaches nothing about them."""
    world = GoogleWorld()
    values = set_google(bare(world), {}, {"allow_test": True})
    assert learned(world, values).values.google.allow_test


def test_only_the_vm_without_a_good_boot():
    world = GoogleWorld()
    bundle = bundle_of(world.machine, speaks(world), tpm=False)
    values = make(bare(world), bundle, makers=MAKERS, learn_boot=False).values
    assert values.nodes["node-0"].vms == (google.VM,)
    assert values.google == bare(world).google


@forgeries(
    "how, code",
    ({"extra": bytes(32)}, "ST-ATTS-113"),
    ({"digest": bytes(32)}, "ST-ATTS-116"),
    ({"certificate": google.certify(OTHER.ak.public)}, "ST-ATTS-111"),
    ({"report": {"report_data": bytes(64)}}, "ST-ATTS-410"),
    ({"report": {"measurement": b"\x66" * 48}}, "ST-ATTS-443"),
)
def test_a_vm_that_teaches_nothing(how, code):
    """What does not hold together is left out, and then nothing is left to enroll."""
    world = GoogleWorld()
    learned(world)
    bundle = bundle_of(world.machine, speaks(world, **how), tpm=False)
    error = refused("ST-ATTS-013", bare(world), bundle, makers=MAKERS)
    assert code in error.what


@forgeries("booted, code", ("none", "ST-ATTS-446"), ("tdx", "ST-ATTS-446"))
def test_the_tpm_of_another_kind_of_vm_teaches_nothing(booted, code):
    world = GoogleWorld(booted=booted)
    bundle = bundle_of(world.machine, speaks(world), tpm=False)
    assert code in refused("ST-ATTS-013", bare(world), bundle, makers=MAKERS).what


@pytest.mark.forgery
def test_no_log_teaches_nothing():
    world = GoogleWorld()

    def without(tee):
        vtpm = msgspec.structs.replace(tee.google.vtpm, event_log=b"")
        return changed(tee, google={"vtpm": vtpm})

    bundle = bundle_of(world.machine, speaks(world, forge=without), tpm=False)
    assert "ST-ATTS-013" in refused("ST-ATTS-013", bare(world), bundle, makers=MAKERS).what


@pytest.mark.forgery
def test_one_vm_is_one_node():
    world = GoogleWorld()
    values = learned(world).values
    twin = Machine("node-1", tpm=world.vm.tpm)
    twin.boot(google.boot("sev-snp"))
    bundle = bundle_of(twin, speaks(world, twin), tpm=False)
    assert "VM" in refused("ST-USAG-005", values, bundle, makers=MAKERS, error=UsageError).what


# Rules.


def test_rules_are_added_and_replaced():
    world = GoogleWorld()
    values = set_google(
        world.values,
        {"zones": ("europe-west4-a",), "vcpus": (8,), "projects": ("other",)},
        {"min_snp_svn": 3, "min_tdx_svn": None, "any_vm": True},
    ).google
    assert values.projects == (google.PROJECT, "other")
    assert (values.zones, values.vcpus, values.min_snp_svn) == (("europe-west4-a",), (8,), 3)
    assert values.any_vm
    assert values.endorsements == (google.good_endorsement(),)
    changed = set_google(
        msgspec.structs.replace(world.values, google=values), {}, {}, ("vcpus", "endorsements")
    ).google
    assert (changed.vcpus, changed.endorsements) == ((), ())
    assert changed.roots == values.roots
    assert set_google(world.values, NAMED, {}).google == world.values.google, "nothing comes twice"
    assert set_google(world.values, {}, {"any_vm": True}).google.any_vm, "a field alone will do"


@each(
    "added, fields, clear",
    ({}, {}, ()),
    ({}, {"any_vm": None}, ()),
    ({"vcpus": (0,)}, {}, ()),
    ({"memory_gib": (1 << 20,)}, {}, ()),
    ({"projects": ("a b",)}, {}, ()),
    ({"zones": ("",)}, {}, ()),
    ({}, {"min_snp_svn": -1}, ()),
)
def test_rules_that_are_none(added, fields, clear):
    values = GoogleWorld().values
    vocabulary.refused(UsageError, "ST-USAG-001", set_google, values, added, fields, clear)


@forgeries(
    "added, where",
    ({"roots": ("none",)}, "roots[1]"),
    ({"intermediates": ("",)}, "intermediates[1]"),
    ({"endorsement_roots": (google.root().pem[:200],)}, "endorsement_roots[1]"),
    ({"endorsements": (b"none",)}, "endorsements[1]"),
    (
        {"endorsements": (google.endorsement(key=google.short_rsa_key("stranger")),)},
        "endorsements[1]",
    ),
)
def test_rules_that_do_not_hold(added, where):
    values = GoogleWorld().values
    error = vocabulary.refused(AttestationError, "ST-ATTS-009", set_google, values, added, {})
    assert where in error.where
