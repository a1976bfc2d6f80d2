# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A confidential VM of Google's made of swtpm and a kernel of our own: what it collects."""

import dataclasses
import sys
from pathlib import Path

import pytest

from securetrain.attest.node import google as node
from securetrain.attest.node.composite import NodeAttester, Part
from securetrain.attest.node.tpm.agent import TpmAgent
from securetrain.attest.node.tpm.client import Tpm
from securetrain.core.errors import AttestationError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence.case import Ask
from securetrain.evidence.node_evidence import parse_node
from securetrain.evidence.tpm.constants import Algorithm
from securetrain.evidence.tpm.keys import AK_TEMPLATE
from securetrain.evidence.tpm.structures import number, tpm2b
from securetrain.testing.measurement_lists import encode_ima, measure_files
from securetrain.testing.swtpm import SoftwareTpm
from tests import vocabulary
from tests.attest.node.test_azure import NV_ATTRIBUTES, OWNER, command, sources
from tests.attest.node.test_configfs import VCEK, Kernel, table
from tests.attest.swtpms import needs_swtpm
from tests.evidence.tee import forge_google as google
from tests.evidence.tee.forge import der
from tests.evidence.tpm import forge
from tests.evidence.worlds import GoogleWorld

# Google's template does without noDA, as its key is made again whenever it is wanted.
TEMPLATE = forge.rsa_attestation_template(Algorithm.RSASSA)


def keep(machine, index, data):
    public = number(index, 4) + number(0x0B, 2) + number(NV_ATTRIBUTES, 4)
    public += tpm2b(b"") + number(len(data), 2)
    command(machine, 0x12A, [OWNER], tpm2b(b"") + tpm2b(public))
    for at in range(0, len(data), 512):
        command(machine, 0x137, [OWNER, index], tpm2b(data[at : at + 512]) + number(at, 2))


def provision(machine, index=node.RSA_KEY, template=TEMPLATE, public=None):
    """Google's part of a VM's life: a key's certificate and template in the TPM."""
    with Tpm.open(machine.address, 300.0) as tpm, tpm.create_primary(template) as key:
        found = tpm.read_public(key)
    keep(machine, index, google.certify(public or found).ljust(2000, b"\0"))
    keep(machine, index + 1, template.encoded)


@pytest.fixture
def machine(tmp_path):
    with SoftwareTpm(tmp_path / "tpm") as machine:
        yield machine


def attester(tmp_path, machine, key, **how):
    agent = TpmAgent(
        tmp_path / "agent", address=machine.address, sources=sources(tmp_path), timeout=300.0
    )
    return NodeAttester(
        key=key,
        executable=Path(sys.executable),
        tpm=agent,
        gpus=Part.OFF,
        **{"tee": Part.REQUIRED, "reports": (tmp_path / "report", tmp_path / "CCEL"), **how},
    )


@needs_swtpm
@pytest.mark.parametrize("index", [node.RSA_KEY, node.ECC_KEY])
def test_a_vm_joins(tmp_path, machine, monkeypatch, index):
    """What the node collects from its TPM and its kernel is let in, as tier tee."""
    world = GoogleWorld()
    template = TEMPLATE if index == node.RSA_KEY else AK_TEMPLATE
    provision(machine, index, template)
    if index == node.ECC_KEY:
        keep(machine, node.RSA_KEY, b"not read: P-256 is there")
    boot = google.boot("sev-snp")
    measured = list(measure_files({"/usr/bin/a": b"a"}, boot.registers()))
    machine.boot(boot.digests(), measured)
    found = sources(tmp_path)
    found.event_log.write_bytes(boot.log())
    found.ima_binary.write_bytes(encode_ima(measured))
    (tmp_path / "report").mkdir()
    leaf = table((VCEK, der(google.AMD.leaf())))
    Kernel(tmp_path / "report", monkeypatch, aux=leaf)
    lead = attester(tmp_path, machine, world.machine.key)
    assert lead.keys() is None, "the key is in the evidence"
    for _ in range(2):
        binding = world.binding()
        said = lead.collect(binding, Ask())
        body = parse_node(said.body)
        assert body.tpm is None
        assert body.tee
        assert body.tee.google
        assert world.answer(said, binding).tier is NodeTier.TEE
    off = dataclasses.replace(lead, tee=Part.OFF)
    assert off.keys() is not None, "then the TPM speaks for itself"


@needs_swtpm
def test_a_certificate_for_another_key(tmp_path, machine):
    provision(machine, public=google.Vm().tpm.ak.public)
    agent = TpmAgent(tmp_path / "agent", address=machine.address, timeout=300.0)
    places = node.Places(tmp_path)
    index = node.key_index(agent, places)
    assert index == node.RSA_KEY
    vocabulary.refused(
        AttestationError, "ST-ATTS-444", node.collect, agent, index, bytes(32), places
    )


@needs_swtpm
def test_machines_that_are_no_such_vm(tmp_path, machine):
    """Without the indices, without both of them, or without a way to ask the CPU."""
    agent = TpmAgent(tmp_path / "agent", address=machine.address, timeout=300.0)
    assert node.key_index(agent, node.Places(tmp_path)) is None
    assert node.key_index(agent, node.Places(tmp_path / "none")) is None
    keep(machine, node.ECC_KEY + 1, b"a template alone")
    bare = TpmAgent(tmp_path / "agent", address=machine.address, timeout=300.0)
    assert node.key_index(bare, node.Places(tmp_path)) is None
    keep(machine, node.RSA_KEY, google.Vm().certificate)
    again = TpmAgent(tmp_path / "agent", address=machine.address, timeout=300.0)
    assert node.key_index(again, node.Places(tmp_path)) is None
    keep(machine, node.RSA_KEY + 1, b"no template")
    third = TpmAgent(tmp_path / "agent", address=machine.address, timeout=300.0)
    assert node.key_index(third, node.Places(tmp_path / "none")) is None
    places = node.Places(tmp_path)
    index = node.key_index(third, places)
    vocabulary.refused(
        AttestationError, "ST-ATTS-102", node.collect, third, index, bytes(32), places
    )


@needs_swtpm
def test_an_index_that_holds_no_certificate(tmp_path, machine):
    keep(machine, node.RSA_KEY, b"no certificate")
    keep(machine, node.RSA_KEY + 1, TEMPLATE.encoded)
    agent = TpmAgent(tmp_path / "agent", address=machine.address, timeout=300.0)
    places = node.Places(tmp_path)
    call = (agent, node.RSA_KEY, bytes(32), places)
    vocabulary.refused(AttestationError, "ST-ATTS-155", node.collect, *call)
