# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Whole exchanges of Google's confidential VMs: report, certified key, quote, boot, endorsement."""

import random

import msgspec
import pytest

from securetrain.core.errors import AttestationError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence.inventory import EnrolledNode
from securetrain.evidence.node_evidence import (
    NodeEvidence,
    ParavisorEvidence,
    parse_node,
    report_data,
)
from tests import vocabulary
from tests.attest.worlds import (
    MANIFEST,
    Machine,
    node_policy,
    refused,
)
from tests.evidence.tee import forge_google as google
from tests.evidence.tee.forge import turned
from tests.evidence.tpm import forge
from tests.evidence.worlds import OTHER_PARTS, OTHER_QUOTES, GoogleWorld
from tests.tables import each, forgeries, items

KINDS = ["sev-snp", "tdx"]


@pytest.fixture
def world():
    return GoogleWorld()


def of_google(**changes):
    def forge(tee):
        return msgspec.structs.replace(tee, google=msgspec.structs.replace(tee.google, **changes))

    return forge


def of_vtpm(**changes):
    def forge(tee):
        return of_google(vtpm=msgspec.structs.replace(tee.google.vtpm, **changes))(tee)

    return forge


@each("kind", *KINDS)
def test_a_confidential_vm(kind):
    world = GoogleWorld(kind)
    result = world.say()
    assert result.tier is NodeTier.TEE
    assert set(result.submods) == {"self-report", kind, "vtpm"}
    claims = result.submods[kind].claims
    assert claims["vm"] == google.VM
    assert claims["instance"] == f"{google.PROJECT}/{google.ZONE}/{google.NAME}"
    assert claims["firmware_svn"] == google.SVN
    assert claims.get("vcpus" if kind == "sev-snp" else "memory_gib")
    assert result.submods["vtpm"].claims["secure_boot"] is True
    world.machine.execute("/opt/another", b"content")
    assert world.say().tier is NodeTier.TEE, "a renewal says all of it again"
    (identities,) = [lease.identities for lease in world.verifier._leases.values()]
    assert identities == (f"vm:{google.VM}",)


def test_evidence_has_one_spelling(world):
    binding = world.binding()
    tee = world.vm.say(binding.value(MANIFEST), world.vtpm(binding))
    body = NodeEvidence(manifest=MANIFEST, tee=tee).encode()
    assert parse_node(body).encode() == body


# Two machines lend each other parts.


def lent(world, **changes):
    """The honest report and the key of a TPM that is another machine's, under Google's root."""
    tpm = forge.Tpm(ak=world.vm.tpm.ak.public, key=4)
    machine = Machine("other", tpm=tpm)
    machine.boot(changes.pop("boot", world.machine.what))
    return machine, google.certify(tpm.ak.public, **changes)


@forgeries("kind", *KINDS)
def test_a_report_that_names_no_key_would_take_any_tpm(kind):
    """The control: with reports as plain guests make them, a lent TPM answers for another VM."""
    world = GoogleWorld(kind)
    machine, certificate = lent(world)
    part = of_google(ak_certificate=certificate)

    def by_lender(binding):
        return world.vtpm(binding, machine)

    # Both parts answer the very exchange; only the key in the report tells them apart.
    code = "ST-ATTS-410" if kind == "sev-snp" else "ST-ATTS-517"
    world.refuses(code, part, vtpm=by_lender)
    binding = world.binding()
    value = binding.value(MANIFEST)
    plain = world.vm.say(value, by_lender(binding), certificate, report_data=report_data(value))
    said = NodeEvidence(manifest=MANIFEST, tee=plain)
    refused(code, lambda: world.answer(world.machine.sign(said, binding), binding))
    # Without Google's part the same report is a good one, of a guest that is accepted.
    accepted = google.MEASUREMENT.hex(), google.MRTD.hex()
    world.set_makers(world.values, snp_measurements=accepted[:1], mr_tds=accepted[1:])
    binding = world.binding()
    value = binding.value(MANIFEST)
    fresh = world.vm.say(value, by_lender(binding), certificate, report_data=report_data(value))
    guest = NodeEvidence(manifest=MANIFEST, tee=msgspec.structs.replace(fresh, google=None))
    assert world.answer(world.machine.sign(guest, binding), binding).tier is NodeTier.TEE


@forgeries("booted", "none", "sev", "tdx")
def test_the_tpm_of_a_vm_that_is_not_confidential(booted):
    """A confidential VM's report names the TPM of a plain VM, whose host says that it is plain.

    The control is everything else: with the kind that the report is of, all of it is let in.
    """
    assert GoogleWorld(booted=booted).refuses("ST-ATTS-446").where.endswith("NonHostInfo")
    assert GoogleWorld(booted="sev-snp").say().tier is NodeTier.TEE


@pytest.mark.forgery
@items(
    "id, info, code",
    # Its key is Google's, its report names it, and its instance is not the node's.
    ("the TPM of another instance", {"vm": 77, "name": "node-1"}, "ST-ATTS-012"),
    # Anybody can rent a confidential VM.
    ("the instance of another project", {"project": "attacker-project"}, "ST-ATTS-445"),
)
def test_the_tpm_of_another_vm(world, info, code):
    machine, certificate = lent(world, info=google.instance_info(**info))
    other = {"vtpm": lambda binding: world.vtpm(binding, machine), "certificate": certificate}
    world.refuses(code, **other)


@pytest.mark.forgery
def test_a_node_without_an_enrolled_vm():
    GoogleWorld(node={"vms": ()}).refuses("ST-ATTS-012")
    assert GoogleWorld(node={"vms": ()}, any_vm=True).say().tier is NodeTier.TEE
    GoogleWorld(node={"vms": ("77",)}, any_vm=True).refuses("ST-ATTS-012")


@forgeries("kind", *KINDS)
def test_firmware_that_google_has_not_endorsed(kind):
    """A genuine CPU, a genuine TPM, and firmware of the attacker's."""
    world = GoogleWorld(kind)
    field = "measurement" if kind == "sev-snp" else "mr_td"
    error = world.refuses("ST-ATTS-443", report={field: b"\x66" * 48})
    assert "do not name it" in error.what
    other = b"\x66" * 48
    world.set_makers(world.values, snp_measurements=(other.hex(),), mr_tds=(other.hex(),))
    world.refuses("ST-ATTS-443", report={field: other})


@forgeries(
    "kind, changes",
    ("sev-snp", {"endorsements": ()}),
    ("sev-snp", {"vcpus": (2, 16)}),
    ("sev-snp", {"min_snp_svn": google.SVN + 1}),
    ("tdx", {"endorsements": ()}),
    ("tdx", {"memory_gib": (64,)}),
    ("tdx", {"min_tdx_svn": google.SVN + 1}),
    ("tdx", {"endorsements": (google.endorsement(tdx=b""),)}),
)
def test_an_endorsement_that_does_not_fit(kind, changes):
    GoogleWorld(kind, **changes).refuses("ST-ATTS-443")


def test_sizes_that_are_accepted():
    assert GoogleWorld(vcpus=(google.VCPUS,), min_snp_svn=google.SVN).say()
    assert GoogleWorld("tdx", memory_gib=(google.MEMORY,), min_tdx_svn=google.SVN).say()


@pytest.mark.forgery
def test_a_guest_below_another_asks_for_the_report(world):
    world.refuses("ST-ATTS-411", report={"vmpl": 1})


@forgeries("kind", *KINDS)
def test_the_quote_of_another_key(kind):
    world = GoogleWorld(kind)
    machine, _ = lent(world)
    world.refuses("ST-ATTS-111", vtpm=lambda binding: world.vtpm(binding, machine))


@pytest.mark.forgery
@items("changes, code", *OTHER_QUOTES)
def test_a_quote_that_says_something_else(world, changes, code):
    world.refuses(code, **changes)


@pytest.mark.forgery
@items(
    "forge, code",
    *((of_vtpm(**changes), code) for changes, code in OTHER_PARTS),
    (of_vtpm(event_log=google.boot("none").log()), "ST-ATTS-204"),
    (of_google(ak_certificate=b""), "ST-ATTS-444"),
    (of_google(ak_certificate=google.root().der), "ST-ATTS-444"),
    (of_google(ak_chain=(b"x",)), "ST-ATTS-444"),
    (lambda tee: msgspec.structs.replace(tee, google=None), "ST-ATTS-410"),
    (lambda tee: msgspec.structs.replace(tee, certificates=()), "ST-ATTS-402"),
)
def test_parts_that_are_left_out_or_changed(world, forge, code):
    world.refuses(code, forge)


@pytest.mark.forgery
def test_a_paravisor_and_google_at_once(world):
    """What one of the two says must not go unjudged."""

    def both(tee):
        paravisor = ParavisorEvidence(runtime_data=b"{}", vtpm=tee.google.vtpm)
        return msgspec.structs.replace(tee, paravisor=paravisor)

    world.refuses("ST-ATTS-001", both)


@forgeries("kind", *KINDS)
def test_an_answer_to_the_last_question(kind):
    world = GoogleWorld(kind)
    kept = []

    def keep(tee):
        kept.append(tee)
        return tee

    world.say(keep)
    world.refuses("ST-ATTS-410" if kind == "sev-snp" else "ST-ATTS-517", lambda _: kept[0])
    world.refuses("ST-ATTS-113", vtpm=lambda _: kept[0].google.vtpm)


@pytest.mark.forgery
def test_another_boot(world):
    world.machine.boot(google.boot("sev-snp", kernel=b"other"))
    vocabulary.refused(AttestationError, "^ST-ATTS-(211|213|215):", world.say)


@pytest.mark.forgery
def test_a_boot_whose_log_no_policy_asks_for():
    """The kind of VM is asked for even where the policy compares whole registers."""
    world = GoogleWorld(policy=node_policy(tpm={"event_log": False, "secure_boot": False}))
    world.refuses("ST-ATTS-013", of_vtpm(event_log=b""))
    world.refuses("ST-ATTS-204", of_vtpm(event_log=google.boot("tdx").log()))
    assert world.say().tier is NodeTier.TEE


@pytest.mark.forgery
def test_a_vm_that_was_revoked(world):
    world.say()
    world.verifier.revoke(f"vm:{google.VM}", "a test")
    world.refuses("ST-ATTS-010")


@pytest.mark.forgery
def test_one_vm_for_two_nodes(world):
    world.say()
    twin = EnrolledNode(vms=(google.VM,))
    world.values.nodes["node-1"] = twin
    other = Machine("node-1", tpm=world.vm.tpm)
    other.boot(google.boot("sev-snp"))
    world.machines = (other,)
    world.refuses("ST-ATTS-011")


PLACES = ("report", "certificate", "quote", "signature", "log", "pcr")
CODES = {
    "report": "ST-ATTS-4",
    "certificate": "ST-ATTS-4",
    "quote": "ST-ATTS-1",
    "signature": "ST-ATTS-1",
    "log": "ST-ATTS-",
    "pcr": "ST-ATTS-116",
}


def check_changed(world, seed):
    """One bit, anywhere in what travels; nothing but a refusal may come out."""
    source = random.Random(seed)
    place = PLACES[seed % len(PLACES)]

    def flip(data, size=0):
        return turned(data, source, size)

    def forge(tee):
        said = tee.google
        match place:
            case "report":
                return msgspec.structs.replace(tee, report=flip(tee.report, 0x2A0))
            case "certificate":
                return of_google(ak_certificate=flip(said.ak_certificate))(tee)
            case "quote" | "signature":
                return of_vtpm(**{place: flip(getattr(said.vtpm, place))})(tee)
            case "log":
                # Types and texts of events are nobody's word; digests are.
                at = said.vtpm.event_log.index(google.host_info("sev-snp")) + source.randrange(17)
                log = bytearray(said.vtpm.event_log)
                log[at] ^= 1 << source.randrange(8)
                return of_vtpm(event_log=bytes(log))(tee)
            case _:
                index = source.choice(sorted(said.vtpm.pcrs))
                changed = {**said.vtpm.pcrs, index: flip(said.vtpm.pcrs[index])}
                return of_vtpm(pcrs=changed)(tee)

    vocabulary.refused(AttestationError, f"^{CODES[place]}", world.say, forge)


@pytest.mark.forgery
@pytest.mark.parametrize("seed", range(6))
def test_evidence_that_was_changed_at_random(world, seed):
    check_changed(world, seed)


@pytest.mark.many
@pytest.mark.forgery
def test_much_evidence_that_was_changed_at_random():
    world = GoogleWorld()
    for seed in range(1000):
        check_changed(world, seed)
    assert world.say().tier is NodeTier.TEE
