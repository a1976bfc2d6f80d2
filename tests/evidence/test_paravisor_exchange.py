# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Whole exchanges of confidential VMs with a paravisor: report, runtime data, key, quote, boot."""

import random
from dataclasses import replace

import msgspec
import pytest

from securetrain.core.errors import AttestationError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence.node_evidence import ParavisorEvidence
from securetrain.evidence.tee.paravisor import ParavisorReference
from securetrain.testing.bootlog import Boot
from tests import vocabulary
from tests.attest.worlds import MANIFEST
from tests.evidence import test_tee_appraiser as tees
from tests.evidence.tee import forge_azure as azure
from tests.evidence.tee.forge import turned
from tests.evidence.worlds import OTHER_PARTS, OTHER_QUOTES, PARAVISORS, CloudWorld
from tests.tables import forgeries, items

KINDS = [azure.snp, azure.tdx]


@pytest.fixture
def world():
    return CloudWorld()


def of_vtpm(**changes):
    def forge(tee):
        vtpm = msgspec.structs.replace(tee.paravisor.vtpm, **changes)
        changed = msgspec.structs.replace(tee.paravisor, vtpm=vtpm)
        return msgspec.structs.replace(tee, paravisor=changed)

    return forge


def of_tee(**changes):
    return lambda tee: msgspec.structs.replace(tee, **changes)


@pytest.mark.parametrize("make", KINDS)
def test_a_confidential_vm(world, make):
    result = world.say(make)
    assert result.tier is NodeTier.TEE
    assert set(result.submods) == {"self-report", make.__name__.replace("snp", "sev-snp"), "vtpm"}
    part = result.submods["sev-snp" if make is azure.snp else "tdx"]
    assert part.claims["vm"] == azure.VM
    assert result.submods["vtpm"].claims["secure_boot"] is True
    assert world.say(make).tier is NodeTier.TEE, "a renewal says all of it again"
    world.machine.execute("/opt/another", b"content")
    world.say(make)


def test_many_vms_on_one_chip(world):
    """Chips are shared: the VM is what nobody else may present."""
    world.say()
    (identities,) = [lease.identities for lease in world.verifier._leases.values()]
    assert identities == (f"vm:{azure.VM}",)


@forgeries("make", *KINDS)
def test_a_plain_guest_claims_a_paravisor(make):
    """A guest that is accepted writes REPORT_DATA itself: it could vouch for a key of its own."""
    world = CloudWorld(ParavisorReference(measurements=("ab" * 48,)))
    world.appraiser._tee = tees.appraiser(paravisor=world.values.paravisor)
    world.refuses("ST-ATTS-411" if make is azure.snp else "ST-ATTS-518", make)


@forgeries("make", *KINDS)
def test_no_paravisor_is_accepted_unless_one_is_listed(make):
    code = "ST-ATTS-411" if make is azure.snp else "ST-ATTS-518"
    CloudWorld(ParavisorReference()).refuses(code, make)


@pytest.mark.forgery
def test_a_guest_below_the_paravisor_asks_for_the_report(world):
    world.refuses("ST-ATTS-411", lambda r, v: azure.snp(r, v, vmpl=1))
    world.appraiser._tee = replace(
        world.appraiser._tee, snp=tees.AMD.reference(require_crl=True, vmpls=(0, 1, 2, 3))
    )
    assert "VMPL" in world.refuses("ST-ATTS-411", lambda r, v: azure.snp(r, v, vmpl=2)).where


@pytest.mark.forgery
@pytest.mark.parametrize("make", KINDS)
def test_runtime_data_that_the_report_does_not_cover(world, make):
    code = "ST-ATTS-410" if make is azure.snp else "ST-ATTS-517"
    attacker = azure.Vm(tpm=world.vm.tpm.__class__(ak=world.vm.tpm.ak.public, key=4))

    def forge(tee):
        changed = ParavisorEvidence(runtime_data=attacker.runtime(), vtpm=tee.paravisor.vtpm)
        return msgspec.structs.replace(tee, paravisor=changed)

    world.refuses(code, make, forge)
    assert "REPORT" in world.refuses(code, make, of_tee(paravisor=None)).where


@pytest.mark.forgery
def test_the_quote_of_another_key(world):
    stranger = azure.Vm(tpm=world.vm.tpm.__class__(ak=world.vm.tpm.ak.public, key=4))
    stranger.tpm.pcrs = world.vm.tpm.pcrs

    def by_another(binding):
        quote, signature = stranger.tpm.quote(extra=binding.value(MANIFEST))
        return msgspec.structs.replace(world.vtpm(binding), quote=quote, signature=signature)

    world.refuses("ST-ATTS-111", vtpm=by_another)


@pytest.mark.forgery
@items(
    "changes, code",
    *OTHER_QUOTES,
    ({"tag": 0x8017}, "ST-ATTS-101"),
    ({"tail": b"\0"}, "ST-ATTS-101"),
)
def test_a_quote_that_says_something_else(world, changes, code):
    world.refuses(code, **changes)


@pytest.mark.forgery
@items("changes, code", *OTHER_PARTS, ({"event_log": Boot(kernel=b"other").log()}, "ST-ATTS-204"))
def test_a_virtual_tpm_that_leaves_out_or_changes(world, changes, code):
    world.refuses(code, forge=of_vtpm(**changes))


@pytest.mark.forgery
@items("boot, code", (Boot(kernel=b"other"), "213"), (Boot(secure_boot=False), "208"))
def test_another_boot_in_a_genuine_vm(world, boot, code):
    world.machine.boot(boot)
    vocabulary.refused(AttestationError, f"^ST-ATTS-({code}|211|215):", world.say)


@pytest.mark.forgery
def test_the_vm_of_another_node(world):
    other = azure.VM.replace("7d", "8d")
    runtime = world.vm.runtime(vmUniqueId=other)
    assert world.refuses("ST-ATTS-012", runtime=runtime).where.endswith("vms")
    CloudWorld(vms=()).refuses("ST-ATTS-012")
    any_vm = msgspec.structs.replace(PARAVISORS, any_vm=True)
    CloudWorld(any_vm, vms=()).say()
    CloudWorld(any_vm, vms=(other,)).refuses("ST-ATTS-012")


@pytest.mark.forgery
def test_a_node_that_was_revoked_by_its_vm(world):
    world.say()
    world.verifier.revoke(f"vm:{azure.VM}", "a test")
    world.refuses("ST-ATTS-010")


@pytest.mark.forgery
@pytest.mark.parametrize("name", ["secure-boot", "console-enabled"])
def test_a_vm_that_is_open(world, name):
    runtime = world.vm.runtime(**{name: name == "console-enabled"})
    assert name in world.refuses("ST-ATTS-441", runtime=runtime).where


@pytest.mark.forgery
@pytest.mark.parametrize("make", KINDS)
def test_an_answer_to_the_last_question(world, make):
    """Report and runtime data are old by nature; the quote must not be."""
    kept = []

    def keep(tee):
        kept.append(tee.paravisor.vtpm)
        return tee

    world.say(make, keep)
    world.refuses("ST-ATTS-113", make, vtpm=lambda _: kept[0])


CODES = {
    "report": "ST-ATTS-4",
    "runtime": "ST-ATTS-4",
    "quote": "ST-ATTS-111",
    "signature": "ST-ATTS-1",
    "log": "ST-ATTS-116",
    "pcr": "ST-ATTS-116",
}


@pytest.mark.forgery
@pytest.mark.parametrize("seed", range(50))
def test_evidence_that_was_changed_at_random(world, seed):
    """One bit, anywhere in what travels; nothing but a refusal may come out."""
    source, place = random.Random(seed), [*CODES][seed % 6]

    def forge(tee):
        paravisor, vtpm = tee.paravisor, tee.paravisor.vtpm
        match place:
            case "report":
                return msgspec.structs.replace(tee, report=turned(tee.report, source, 0x2A0))
            case "runtime":
                data = turned(paravisor.runtime_data, source)
                changed = msgspec.structs.replace(paravisor, runtime_data=data)
                return msgspec.structs.replace(tee, paravisor=changed)
            case "quote" | "signature":
                return of_vtpm(**{place: turned(getattr(vtpm, place), source)})(tee)
            case _:
                # Types and texts of events are nobody's word; digests are.
                index = 4 if place == "log" else source.choice(sorted(vtpm.pcrs))
                return of_vtpm(pcrs={**vtpm.pcrs, index: turned(vtpm.pcrs[index], source)})(tee)

    vocabulary.refused(AttestationError, f"^{CODES[place]}", world.say, forge=forge)
