# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Learn from a node's evidence: its hardware, and the measurements of its good state.

Rules:

1. nothing is taken from evidence that does not verify. A TPM's must: without it there is no node.
   A CPU's or a device's that does not is left out, with a note that says why;
2. hardware (`Learned.node`) is always taken, what it measures only when a person vouches for it.
   What this machine alone measures (PCR 1 and 5) is kept with the node, never with its image group,
   and is taken from a TPM that has proven itself too;
3. what is learned is added to what was known: no value is ever taken away.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import msgspec

from securetrain.attest.fleet.bundle import Bundle
from securetrain.attest.fleet.learn_google import learn_instance
from securetrain.attest.fleet.learn_gpu import learn_devices, merge_devices
from securetrain.attest.fleet.learn_paravisor import learn_vm
from securetrain.attest.fleet.learn_tee import learn_snp, learn_tdx, merge_snp, merge_tdx
from securetrain.core.errors import AttestationError
from securetrain.evidence import (
    BOOT_PCRS,
    QUOTED,
    AttestationKeys,
    Collateral,
    CollateralKind,
    EnrolledNode,
    ImageGroup,
    NodeEvidence,
    ReferenceValues,
    TeeEvidence,
    TeeKind,
    TpmEvidence,
    device_nonce,
    report_data,
)
from securetrain.evidence.tee import ROOT, ROOTS, Product, claimed_key
from securetrain.evidence.tpm import (
    LATE_PCRS,
    BootReference,
    LateReference,
    check_attestation_key,
    check_endorsement_key,
    eventlog,
    learn_boot,
    learn_late,
    merge,
    merge_late,
    parse_public,
    split_own,
    verify_quote,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuRoots:
    """SHA-256 of the SubjectPublicKeyInfo of the CPU makers' roots."""

    amd: Mapping[Product, str] = field(default_factory=lambda: dict(ROOTS))
    intel: str = ROOT


MAKERS: Final = CpuRoots()


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """The collateral and roots that a bundle is read with."""

    now: datetime
    good: bool
    """Whether somebody vouches for the node's state."""
    collateral: Collateral | None = None
    """Where AMD's certificates are looked up that a node does not send."""
    roots: CpuRoots = MAKERS
    group: str = ""
    """The image group that the node's boot is learned for."""
    proven: bool = False
    """Whether a certified TPM has answered a question: what is the node's own is learned too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """The reference values that one bundle teaches."""

    node: EnrolledNode
    values: ReferenceValues
    """The values that were there, and what was learned."""
    good: tuple[str, ...]
    """What was taken as good, for people."""
    notes: tuple[str, ...]
    """What was left out and why, and what became weaker."""


@dataclass(slots=True, kw_only=True)
class _Lesson:
    """One bundle while it is being read."""

    bundle: Bundle
    teacher: Teacher
    values: ReferenceValues
    node: EnrolledNode = field(default_factory=EnrolledNode)
    good: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def read_tpm(self, keys: AttestationKeys, evidence: TpmEvidence) -> None:
        """The TPM behind the quote, and the boot that it quotes."""
        ek = parse_public(keys.ek_public, "endorsement key")
        ak = parse_public(keys.ak_public, "attestation key")
        check_endorsement_key(ek)
        check_attestation_key(ak)
        quote = verify_quote(
            evidence.quote,
            evidence.signature,
            ak=ak,
            ek=ek,
            extra_data=self.bundle.binding,
            pcrs=evidence.pcrs,
            required=QUOTED,
        )
        self.node = msgspec.structs.replace(self.node, ek_names=(ek.name.hex(),))
        if not self.teacher.good and not (self.teacher.proven and evidence.event_log):
            self._note_own(evidence, quote.pcrs)
            return
        self._learn_boot(evidence, quote.pcrs)

    def _learn_boot(self, evidence: TpmEvidence, pcrs: Mapping[int, bytes]) -> None:
        """The boot that a quote is of."""
        if not evidence.event_log:
            raise AttestationError(
                "ST-ATTS-013",
                "there is no firmware log to learn from",
                f"node {self.bundle.node}",
                "collect the evidence as root, or enroll without --learn-boot",
            )
        learned = learn_boot(evidence.event_log, {n: pcrs[n] for n in BOOT_PCRS})
        shared, own = split_own(evidence.event_log, learned)
        self.node = msgspec.structs.replace(self.node, own=own)
        count = sum(map(len, own.values()))
        alone = f"{count} firmware measurement{'s' if count > 1 else ''} of its own"
        if not self.teacher.good:
            self.good.append(alone)
            return
        known = self._group()
        late, told = known.late, ""
        if late is None and known.boot != BootReference():
            self.notes.append("PCR 11 to 15 are judged from now on, for every node of the group")
        if all(index in pcrs for index in LATE_PCRS):
            log = eventlog.parse(evidence.event_log)
            found = learn_late(log, evidence.userspace_log, pcrs)
            late, told = merge_late(late, found), _told_late(found)
        else:
            self.notes.append("PCR 11 to 15 are not judged: the node's securetrain is too old")
        boot = merge([known.boot, shared])
        self._set_group(msgspec.structs.replace(known, boot=boot, late=late))
        self.good.append(f"boot: {_told(shared)}{told}" + (f", {alone}" if own else ""))

    def _note_own(self, evidence: TpmEvidence, pcrs: Mapping[int, bytes]) -> None:
        """Say that a verifier would refuse what only this machine measures."""
        group = self._group()
        if not evidence.event_log or group.boot == BootReference():
            return
        try:
            learned = learn_boot(evidence.event_log, {n: pcrs[n] for n in BOOT_PCRS})
        except AttestationError:
            return
        known = self.values.nodes.get(self.bundle.node, EnrolledNode()).own
        for register, digests in split_own(evidence.event_log, learned)[1].items():
            if not {*digests} <= {*group.boot.firmware, *known.get(register, ())}:
                self.notes.append(
                    f"what this machine alone measures (PCR {register}) was not learned, and a"
                    " verifier will refuse it: enroll its answer to a question (attest challenge"
                    " --to-enroll)"
                )

    def read_cpu(self, evidence: TeeEvidence) -> None:
        """The CPU's chip, and the guest on it."""
        if evidence.paravisor is not None:
            self._read_vm(evidence)
        elif evidence.google is not None:
            self._read_instance(evidence)
        elif evidence.kind is TeeKind.SEV_SNP:
            self._read_snp(evidence)
        else:
            self._read_tdx(evidence)

    def read_devices(self, evidence: NodeEvidence) -> None:
        """The inventory of GPUs and switches."""
        learned = learn_devices(
            evidence.devices,
            nonce=device_nonce(self.bundle.binding),
            now=self.teacher.now,
            roots=self.values.gpu.all_roots(),
        )
        self._set(gpu=merge_devices(self.values.gpu, learned))
        self.node = msgspec.structs.replace(self.node, devices=tuple(sorted(learned.pdis)))

    def left_out(self, what: str, read: Callable[[], None]) -> None:
        """Read a part, or note why it teaches nothing."""
        try:
            read()
        except AttestationError as error:
            place = f" ({error.where})" if error.where else ""
            self.notes.append(f"{what} left out: {error.code}: {error.what}{place}")

    def _read_snp(self, evidence: TeeEvidence) -> None:
        learned = learn_snp(
            evidence,
            report_data=report_data(self.bundle.binding),
            now=self.teacher.now,
            vendor_chain=self._vendor_chain(evidence),
            roots=self.teacher.roots.amd,
        )
        self._own_chip(learned.chip)
        old, found = self.values.snp, learned.reference
        if not self.teacher.good:
            chips = tuple(dict.fromkeys((*old.chip_ids, *found.chip_ids)))
            self._set(snp=msgspec.structs.replace(old, chip_ids=chips))
            return
        new = merge_snp(old, found)
        self._set(snp=new)
        if new.min_version < old.min_version:
            self.notes.append(
                f"reports of version {new.min_version} are accepted from now on: their firmware"
                " knows no alias check"
            )
        for product, tcb in found.min_tcb.items():
            numbers = ", ".join(f"{k} {v}" for k, v in msgspec.structs.asdict(tcb).items())
            self.good.append(f"SEV-SNP guest {found.measurements[0][:16]}..., firmware {numbers}")
            if product in old.min_tcb and new.min_tcb[product] != old.min_tcb[product]:
                self.notes.append(f"the oldest firmware that is accepted of {product} went down")

    def _read_tdx(self, evidence: TeeEvidence) -> None:
        learned = learn_tdx(
            evidence,
            report_data=report_data(self.bundle.binding),
            now=self.teacher.now,
            root=self.teacher.roots.intel,
        )
        old = self.values.tdx
        if not self.teacher.good:
            ppids = tuple(dict.fromkeys((*old.ppids, learned.chip)))
            self._own_chip(learned.chip)
            self._set(tdx=msgspec.structs.replace(old, ppids=ppids))
            return
        self._set(tdx=merge_tdx(old, learned))
        self._own_chip(learned.chip)
        self.good.append(f"TDX guest {learned.reference.mr_tds[0][:16]}...")
        if learned.boot is not None:
            self._merge_tdx_boot(learned.boot)
            self.good.append(f"the guest's boot: {_told(learned.boot)}")

    def _merge_tdx_boot(self, boot: BootReference) -> None:
        known = self._group()
        merged = merge([known.tdx_boot, boot])
        self._set_group(msgspec.structs.replace(known, tdx_boot=merged))

    def _read_vm(self, evidence: TeeEvidence) -> None:
        """A paravisor's VM: which it is, and what it booted."""
        amd = evidence.kind is TeeKind.SEV_SNP
        learned = learn_vm(
            evidence,
            binding=self.bundle.binding,
            now=self.teacher.now,
            vendor_chain=self._vendor_chain(evidence) if amd else (),
            amd=self.teacher.roots.amd,
            intel=self.teacher.roots.intel,
        )
        self.node = msgspec.structs.replace(self.node, vms=(learned.vm,))
        if not self.teacher.good:
            return
        self._set(**learned.merged(self.values))
        self._learn_boot(learned.vtpm, learned.pcrs)
        self.good.append(f"paravisor {learned.measurement[:16]}... of the VM {learned.vm}")
        if learned.console:
            self.notes.append("VMs with a serial console are accepted from now on")

    def _read_instance(self, evidence: TeeEvidence) -> None:
        """A VM of Google's: which it is, and what it booted."""
        amd = evidence.kind is TeeKind.SEV_SNP
        learned = learn_instance(
            evidence,
            self.values,
            binding=self.bundle.binding,
            now=self.teacher.now,
            vendor_chain=self._vendor_chain(evidence) if amd else (),
            amd=self.teacher.roots.amd,
            intel=self.teacher.roots.intel,
        )
        self.node = msgspec.structs.replace(self.node, vms=(learned.vm,))
        if not self.teacher.good:
            return
        self._set(**learned.merged(self.values))
        self._learn_boot(learned.vtpm, learned.pcrs)
        if learned.tdx_boot is not None:
            self._merge_tdx_boot(learned.tdx_boot)
        self.good.append(f"instance {learned.instance} ({learned.vm}): {learned.size}")
        if not learned.production:
            self.notes.append("instances that are not of production are accepted from now on")

    def _own_chip(self, chip: str) -> None:
        if chip:
            self.node = msgspec.structs.replace(self.node, chips=(chip,))

    def _vendor_chain(self, evidence: TeeEvidence) -> list[bytes]:
        """AMD's certificates, where there is a cache that has them."""
        product, key = claimed_key(evidence.report, evidence.certificates)
        name = f"{product}-{key.name if key is not None else '?'}"
        collateral = self.teacher.collateral
        if collateral is None or not collateral.has(CollateralKind.AMD_CHAIN, name):
            return []
        return [collateral.get(CollateralKind.AMD_CHAIN, name, self.teacher.now)]

    def _group(self) -> ImageGroup:
        """The boots of the node's image group; none of a new group."""
        name = self.teacher.group
        return self.values.group(name) if not name or name in self.values.groups else ImageGroup()

    def _set_group(self, group: ImageGroup) -> None:
        if name := self.teacher.group:
            self._set(groups={**self.values.groups, name: group})
        else:
            self._set(**msgspec.structs.asdict(group))

    def _set(self, **sections: object) -> None:
        self.values = msgspec.structs.replace(self.values, **sections)


def learn(
    bundle: Bundle, evidence: NodeEvidence, values: ReferenceValues, teacher: Teacher
) -> Learned:
    """Read a bundle that holds together.

    Args:
        bundle: it.
        evidence: its body, parsed.
        values: what is known.
        teacher: what to read it with.

    Raises:
        AttestationError: ST-ATTS-013 when a part is missing; 1xx and 2xx about the TPM.
    """
    lesson = _Lesson(bundle=bundle, teacher=teacher, values=values)
    if evidence.tpm is not None and bundle.keys is not None:
        lesson.read_tpm(bundle.keys, evidence.tpm)
    elif evidence.tpm is not None or bundle.keys is not None:
        raise AttestationError(
            "ST-ATTS-013",
            "a TPM's keys without its evidence, or evidence without the keys",
            f"node {bundle.node}: tpm",
            "collect the evidence again",
        )
    cpu = evidence.tee
    if cpu is not None:
        lesson.left_out("the CPU's evidence is", lambda: lesson.read_cpu(cpu))
    if evidence.devices:
        lesson.left_out("the devices are", lambda: lesson.read_devices(evidence))
    return Learned(
        node=lesson.node,
        values=lesson.values,
        good=tuple(lesson.good),
        notes=tuple(lesson.notes),
    )


def _told_late(late: LateReference) -> str:
    """The reference values of PCR 11 to 15 in a line."""
    counts = (
        (sum(map(len, late.sections.values())), "image section"),
        (sum(map(len, late.words.values())), "word"),
        (sum(map(len, late.digests.values())), "other measurement"),
        (late.volume_keys, "volume key"),
    )
    told = [f"{count} {what}{'s' if count > 1 else ''}" for count, what in counts if count]
    return f"; in PCR 11 to 15: {', '.join(told)}" if told else ""


def _told(boot: BootReference) -> str:
    """A boot's reference values in a line."""
    counts = (
        (len(boot.registers), "whole register"),
        (len(boot.variables), "Secure Boot variable"),
        (len(boot.authorities), "signer"),
        (len(boot.firmware), "firmware measurement"),
        (len(boot.boot_applications), "boot application"),
        (len(boot.boot_commands) + len(boot.kernel_command_lines), "command line"),
        (len(boot.loaded_files), "loaded file"),
        (len(boot.owner_keys), "owner key list"),
    )
    return ", ".join(f"{count} {what}{'s' if count > 1 else ''}" for count, what in counts if count)
