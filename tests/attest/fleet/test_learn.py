# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What each part of a node's evidence teaches, through `enroll`; its controls are in `test_enroll`.

Every forged part is either a refusal (the TPM's) or left out and said (everything else's).
"""

import dataclasses

import msgspec
import pytest

from securetrain.evidence.gpu.reference import GpuReference
from securetrain.evidence.inventory import EnrolledNode
from securetrain.evidence.node_evidence import parse_node
from securetrain.evidence.reference import ReferenceValues
from securetrain.evidence.tee.tdx import TdxReference
from securetrain.evidence.tpm.constants import Attributes
from securetrain.evidence.tpm.keys import AK_TEMPLATE
from tests.attest.collateral import Shelf
from tests.attest.fleet.test_enrollment import make, refused
from tests.attest.worlds import (
    AMD,
    Machine,
    bundle_of,
    resigned,
    together,
    with_devices,
    with_snp,
    with_tdx,
)
from tests.evidence.gpu.forge import Device
from tests.evidence.gpu.forge import roots as gpu_roots
from tests.evidence.tee import forge_intel as intel
from tests.evidence.tee.forge import pem
from tests.evidence.tpm import bootlogs
from tests.evidence.tpm.forge import NOW, Tpm
from tests.tables import each

GUEST_LOG = bootlogs.encode(bootlogs.good_guest(), (bootlogs.SHA384,))
GUEST_RTMRS = tuple(bootlogs.rtmrs(bootlogs.good_guest()))


@pytest.fixture(scope="module")
def machine():
    return Machine("node-0")


@pytest.fixture(scope="module")
def other():
    return Machine("node-1")


# The TPM.


@pytest.mark.forgery
def test_an_attestation_key_that_signs_anything():
    """Not restricted: whoever may use it can make it sign a quote of their own."""
    loose = dataclasses.replace(
        AK_TEMPLATE, attributes=AK_TEMPLATE.attributes & ~Attributes.RESTRICTED
    )
    refused("ST-ATTS-104", None, bundle_of(Machine("node-0", tpm=Tpm(ak=loose))))


@pytest.mark.forgery
def test_half_of_a_tpm(machine):
    said = parse_node(bundle_of(machine, with_snp()).body)
    alone = bundle_of(machine, with_snp(), tpm=False)
    for forged in (
        resigned(bundle_of(machine), machine, msgspec.structs.replace(said, tpm=None).encode()),
        resigned(alone, machine, msgspec.structs.replace(said, tee=None).encode()),
    ):
        assert refused("ST-ATTS-013", None, forged).where == "node node-0: tpm"
    assert make(None, alone).nodes[0].entry.ek_names == ()


# CPUs and devices.


def test_a_guest_is_taken_over(machine):
    edition = make(None, bundle_of(machine, with_snp()))
    assert edition.notes == ()
    assert edition.nodes[0].entry.chips == (AMD.chip.hex(),)
    assert edition.values.snp.chip_ids == (AMD.chip.hex(),)
    assert edition.values.snp.measurements
    assert edition.nodes[0].learned[1].startswith("SEV-SNP guest 4d4d")


def test_a_chip_without_its_guest(machine):
    edition = make(None, bundle_of(machine, with_snp()), learn_boot=False)
    assert edition.values.snp.chip_ids == (AMD.chip.hex(),)
    assert edition.values.snp.measurements == ()
    assert edition.values.snp.min_tcb == {}
    assert edition.nodes[0].learned == ()


def test_older_firmware_is_said(machine):
    first = make(None, bundle_of(machine, with_snp())).values
    launch = bytes([AMD.tcb[0] - 1]) + AMD.tcb[1:]
    edition = make(first, bundle_of(machine, with_snp(launch_tcb=launch)))
    assert edition.notes == ("the oldest firmware that is accepted of Milan went down",)
    assert make(edition.values, bundle_of(machine, with_snp())).notes == ()


def test_amds_certificates_from_the_cache(machine):
    def leaf_only(said, value):
        said = with_snp()(said, value)
        tee = msgspec.structs.replace(said.tee, certificates=said.tee.certificates[:1])
        return msgspec.structs.replace(said, tee=tee)

    bundle = bundle_of(machine, leaf_only)
    (note,) = make(None, bundle).notes
    assert note.startswith("the CPU's evidence is left out: ST-ATTS-404: ")
    shelf = Shelf({("amd-chain", "Milan-VCEK"): pem(AMD.ask(), AMD.ark())})
    edition = make(None, bundle, collateral=shelf)
    assert edition.notes == ()
    assert edition.nodes[0].entry.chips
    assert make(None, bundle, collateral=Shelf()).notes == (note,)


@pytest.mark.forgery
def test_a_cpu_that_does_not_verify_is_left_out_and_said(machine):
    edition = make(None, bundle_of(machine, with_snp(report_data=bytes(64))))
    (entry,) = (one.entry for one in edition.nodes)
    assert entry == EnrolledNode(ek_names=(machine.ek_name,), own=entry.own)
    assert edition.values.snp.chip_ids == ()
    assert "ST-ATTS-410" in edition.notes[0]


@each("id, log", ("registers", b""), ("log", GUEST_LOG))
def test_a_td_is_taken_over(machine, log):
    edition = make(None, bundle_of(machine, with_tdx(log, rtmrs=GUEST_RTMRS)))
    assert edition.notes == ()
    assert edition.nodes[0].entry.chips == (intel.PPID.hex(),)
    assert edition.values.tdx.ppids == (intel.PPID.hex(),)
    assert bool(edition.values.tdx.rtmrs) is not bool(log)
    assert bool(edition.values.tdx_boot.loaded_files) is bool(log)
    only = make(None, bundle_of(machine, with_tdx(log, rtmrs=GUEST_RTMRS)), learn_boot=False)
    assert only.values.tdx == TdxReference(ppids=(intel.PPID.hex(),))
    assert only.nodes[0].entry.chips == (intel.PPID.hex(),)


@pytest.mark.forgery
def test_a_td_without_a_log_in_a_fleet_of_logs(machine, other):
    first = make(None, bundle_of(machine, with_tdx(GUEST_LOG, rtmrs=GUEST_RTMRS))).values
    edition = make(first, bundle_of(other, with_tdx(rtmrs=GUEST_RTMRS)))
    assert "ST-ATTS-013" in edition.notes[0]
    assert edition.values.tdx == first.tdx
    assert edition.nodes[0].entry.chips == ()


def test_devices_are_taken_over(machine):
    values = ReferenceValues(
        version=1, issued=NOW, expires=NOW, gpu=GpuReference(roots=tuple(gpu_roots()))
    )
    edition = make(values, bundle_of(machine, together(with_snp(), with_devices(Device()))))
    assert edition.notes == ()
    assert edition.nodes[0].entry.devices == (Device().pdi,)
    assert (edition.values.gpu.devices, edition.values.gpu.gpus) == ((Device().pdi,), 1)
    unknown = make(None, bundle_of(machine, with_devices(Device())))
    assert unknown.notes[0].startswith("the devices are left out: ST-ATTS-609: ")
    stale = make(values, bundle_of(machine, with_devices(Device(), nonce=bytes(32))))
    assert "ST-ATTS-604" in stale.notes[0]
    assert stale.values.gpu == values.gpu
