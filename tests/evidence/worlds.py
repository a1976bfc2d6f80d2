# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Confidential VMs and their verifiers, without a process; every maker is the forger's."""

from typing import Any

from securetrain.core.errors import AttestationError
from securetrain.evidence.binding import Binding
from securetrain.evidence.case import Ask
from securetrain.evidence.inventory import EnrolledNode
from securetrain.evidence.node_evidence import NodeEvidence, TeeEvidence, TpmEvidence
from securetrain.evidence.result import AttestationResult
from securetrain.evidence.tee.google import GoogleAppraiser
from securetrain.evidence.tee.paravisor import ParavisorReference
from securetrain.evidence.tpm.constants import Hash
from securetrain.evidence.tpm.structures import PcrSelection
from tests.attest.worlds import MANIFEST, Machine, World, reference_values, refused
from tests.evidence import test_tee_appraiser as tees
from tests.evidence.tee import forge_azure as azure
from tests.evidence.tee import forge_google as google
from tests.evidence.tee import forge_intel as intel
from tests.evidence.tee.forge_amd import MEASUREMENT

PARAVISORS = ParavisorReference(measurements=(MEASUREMENT.hex(), bytes(intel.Td().mr_td).hex()))


OTHER_QUOTES: tuple[tuple[dict[str, Any], str], ...] = (
    ({"extra": bytes(32)}, "ST-ATTS-113"),
    ({"extra": b""}, "ST-ATTS-113"),
    ({"magic": 0x41414141}, "ST-ATTS-112"),
    ({"digest": bytes(32)}, "ST-ATTS-116"),
    ({"selections": (PcrSelection(Hash.SHA256, tuple(range(10))),)}, "ST-ATTS-115"),
)
"""How a quote of a VM's TPM differs from the one asked for, and the code of its refusal."""
OTHER_PARTS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"event_log": b""}, "ST-ATTS-013"),
    ({"event_log": b"?"}, "ST-ATTS-201"),
    ({"ima": None}, "ST-ATTS-013"),
    ({"pcrs": {}}, "ST-ATTS-116"),
    ({"activation": bytes(32)}, "ST-ATTS-016"),
    ({"signature": b""}, "ST-ATTS-101"),
)
"""What else its evidence leaves out or changes."""


class VmWorld(World):
    """One confidential VM, whose keys are in its evidence: it announces none."""

    def binding(self) -> Binding:
        """A question to it."""
        return Binding(
            nonce=self.verifier.challenge(self.machine.name).nonce,
            session=bytes(16),
            job=self.job,
            client_spki=self.machine.key.public.spki,
            server_spki=b"coordinator",
            exporter=bytes(32),
            ak_name=b"",
        )

    def vtpm(self, binding: Binding, machine: Machine | None = None, **changes: Any) -> TpmEvidence:
        value = binding.value(MANIFEST)
        return (machine or self.machine).evidence(value, Ask(), **changes)

    def hear(self, tee: TeeEvidence, binding: Binding) -> AttestationResult:
        said = NodeEvidence(manifest=MANIFEST, tee=tee)
        return self.answer(self.machine.sign(said, binding), binding)

    def say(self, *args: Any, **how: Any) -> AttestationResult:
        """One exchange."""
        raise NotImplementedError

    def refuses(self, code: str, *args: Any, **how: Any) -> AttestationError:
        return refused(code, lambda: self.say(*args, **how))


class GoogleWorld(VmWorld):
    """One VM and its verifier; the makers of CPUs and the cloud are the forger's."""

    def __init__(self, kind="sev-snp", policy=None, **changes):
        self.vm = google.Vm(kind)
        machine = Machine("node-0", tpm=self.vm.tpm)
        machine.boot(google.boot(changes.pop("booted", kind)))
        node = {"vms": (google.VM,), **changes.pop("node", {})}
        values = reference_values(
            machine, google=google.reference(**changes), nodes={"node-0": EnrolledNode(**node)}
        )
        super().__init__(machine, values=values, policy=policy)
        self.set_makers(self.values)

    def set_makers(self, values, *, snp_measurements=(), mr_tds=()):
        """Judge by forged makers; nothing is accepted of plain guests."""
        snp = tees.AMD.reference(require_crl=True, measurements=snp_measurements)
        tdx = intel.reference(rtmrs=tees.intel_rtmrs(), mr_tds=mr_tds)
        appraiser = GoogleAppraiser(values.google)
        self.appraiser._tee = tees.appraiser(snp=snp, tdx=tdx, google=appraiser)

    def say(self, forge=lambda tee: tee, vtpm=None, certificate=b"", report=None, **changes):
        binding = self.binding()
        spoken = vtpm(binding) if vtpm else self.vtpm(binding, **changes)
        value = binding.value(MANIFEST)
        tee = forge(self.vm.say(value, spoken, certificate, **(report or {})))
        return self.hear(tee, binding)


class CloudWorld(VmWorld):
    """One VM and its verifier; the CPUs' makers are the forger's."""

    def __init__(self, paravisor=PARAVISORS, **node):
        self.vm = azure.Vm()
        machine = Machine("node-0", tpm=self.vm.tpm)
        values = reference_values(
            machine,
            paravisor=paravisor,
            nodes={"node-0": EnrolledNode(**{"vms": (azure.VM,), **node})},
        )
        super().__init__(machine, values=values)
        # What is accepted of plain guests is nothing: paravisors are judged by their own list.
        nobody = tees.AMD.reference(require_crl=True, measurements=())
        no_td = intel.reference(rtmrs=tees.intel_rtmrs(), mr_tds=())
        self.appraiser._tee = tees.appraiser(snp=nobody, tdx=no_td, paravisor=paravisor)

    def say(self, make=azure.snp, forge=lambda tee: tee, runtime=None, vtpm=None, **changes):
        binding = self.binding()
        spoken = vtpm(binding) if vtpm else self.vtpm(binding, **changes)
        tee = forge(make(runtime or self.vm.runtime(), spoken))
        return self.hear(tee, binding)
