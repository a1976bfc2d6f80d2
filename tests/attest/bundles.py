# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Bundles of the forger's machines: honest ones, and such as lie in any part."""

from collections.abc import Callable
from datetime import datetime

import msgspec

from securetrain.attest.fleet.bundle import Bundle, Question, Secret, collect_bundle, own_question
from securetrain.attest.node.attester import SoftwareAttester, sign_evidence
from securetrain.core import canonical
from securetrain.evidence.binding import Binding
from securetrain.evidence.case import Ask
from securetrain.evidence.node_evidence import (
    NODE_TYPE,
    AttestationKeys,
    Evidence,
    NodeEvidence,
    TeeEvidence,
    TeeKind,
    device_nonce,
    report_data,
)
from tests.attest.small_fleet import MANIFEST, Machine
from tests.evidence.gpu import forge as gpu
from tests.evidence.tee import forge_intel as intel
from tests.evidence.tee.forge_amd import AmdWorld, good_chain, good_leaf
from tests.evidence.tpm.forge import NOW

Forger = Callable[[NodeEvidence, bytes], NodeEvidence]
"""Changes what is said, given the binding that it is said for."""


def honest(said: NodeEvidence, value: bytes) -> NodeEvidence:
    return said


class Collector:
    """An attester of one machine."""

    def __init__(self, machine: Machine, forge: Forger = honest, *, tpm: bool = True) -> None:
        self.machine = machine
        self.forge = forge
        self.tpm = tpm

    def keys(self) -> AttestationKeys | None:
        return self.machine.keys() if self.tpm else None

    def collect(self, binding: Binding, ask: Ask) -> Evidence:
        value = binding.value(MANIFEST)
        said = NodeEvidence(manifest=MANIFEST)
        if self.tpm:
            said = self.machine.collect(binding, ask)
        body = self.forge(said, value).encode()
        return sign_evidence(NODE_TYPE, body, value, self.machine.key)


def bundle_of(
    machine: Machine,
    forge: Forger = honest,
    *,
    answer_to: Secret | None = None,
    tpm: bool = True,
    now: datetime = NOW,
) -> Bundle:
    """What a machine says, to itself or to a verifier."""
    question = answer_to.question if answer_to else own_question(machine.name)
    collector = Collector(machine, forge, tpm=tpm)
    return collect_bundle(
        collector, machine.key.public, now, question, asked_itself=answer_to is None
    )


def self_report(machine: Machine, tmp_path, question: Question | None = None) -> Bundle:
    """The node's own word."""
    collector = SoftwareAttester(key=machine.key, executable=tmp_path / "python", root=tmp_path)
    return collect_bundle(
        collector,
        machine.key.public,
        NOW,
        question or own_question(machine.name),
        asked_itself=question is None,
    )


def replaced(bundle: Bundle, **changes: object) -> Bundle:
    """The bundle as a file could hold it."""
    return msgspec.structs.replace(bundle, **changes)


def with_keys(bundle: Bundle, **changes: object) -> Bundle:
    """The bundle with other keys of a TPM; each may be changed."""
    assert bundle.keys is not None
    return replaced(bundle, keys=msgspec.structs.replace(bundle.keys, **changes))


def resigned(bundle: Bundle, machine: Machine, body: bytes) -> Bundle:
    """Another body under the same binding, signed by the node's own key."""
    evidence = sign_evidence(bundle.media_type, body, bundle.binding, machine.key)
    return replaced(bundle, body=body, signature=evidence.signature)


def document(bundle: object) -> bytes:
    """The file."""
    return canonical.encode(bundle)


# Parts that speak beside the TPM.

AMD = AmdWorld()


def with_snp(world: AmdWorld = AMD, *, certificates: bool = True, **guest: object) -> Forger:
    def add(said: NodeEvidence, value: bytes) -> NodeEvidence:
        report = world.report(**{"report_data": report_data(value), **guest})
        chain = (good_leaf(world), *good_chain(world)) if certificates else ()
        tee = TeeEvidence(kind=TeeKind.SEV_SNP, report=report, certificates=chain)
        return msgspec.structs.replace(said, tee=tee)

    return add


def with_tdx(log: bytes = b"", **td: object) -> Forger:
    def add(said: NodeEvidence, value: bytes) -> NodeEvidence:
        quote = intel.quote(td={"report_data": report_data(value), **td})
        tee = TeeEvidence(kind=TeeKind.TDX, report=quote, event_log=log)
        return msgspec.structs.replace(said, tee=tee)

    return add


def with_devices(*devices: gpu.Device, nonce: bytes = b"") -> Forger:
    def add(said: NodeEvidence, value: bytes) -> NodeEvidence:
        asked = nonce or device_nonce(value)
        found = tuple(device.evidence(nonce=asked) for device in devices)
        return msgspec.structs.replace(said, devices=found)

    return add


def with_tokens(*tokens: str) -> Forger:
    def add(said: NodeEvidence, value: bytes) -> NodeEvidence:
        return msgspec.structs.replace(said, tokens=tokens)

    return add


def together(*forgers: Forger) -> Forger:
    def add(said: NodeEvidence, value: bytes) -> NodeEvidence:
        for forge in forgers:
            said = forge(said, value)
        return said

    return add
