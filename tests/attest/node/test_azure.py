# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""An Azure confidential VM made of swtpm and a metadata service of our own: what it collects."""

import base64
import dataclasses
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from securetrain.attest.node import azure
from securetrain.attest.node.composite import PARAVISOR_REPORT, NodeAttester, Part
from securetrain.attest.node.tpm.agent import TpmAgent
from securetrain.attest.node.tpm.client import Tpm
from securetrain.attest.node.tpm.measurements import Sources
from securetrain.attest.node.tpm.transport import connect
from securetrain.core.errors import AttestationError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence.case import Ask
from securetrain.evidence.node_evidence import TeeKind, TpmEvidence, parse_node
from securetrain.evidence.tee.paravisor import HclReport
from securetrain.evidence.tpm.constants import Algorithm
from securetrain.evidence.tpm.structures import number, tpm2b
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.testing.bootlog import Boot
from securetrain.testing.measurement_lists import encode_ima, measure_files
from securetrain.testing.swtpm import SoftwareTpm
from tests import vocabulary
from tests.attest.swtpms import needs_swtpm
from tests.evidence.tee import forge_azure
from tests.evidence.tee.forge import pem
from tests.evidence.tpm import forge
from tests.evidence.worlds import CloudWorld
from tests.tables import items

OWNER, PASSWORD = 0x40000001, bytes.fromhex("40000009") + bytes(5)
NV_ATTRIBUTES = 1 << 1 | 1 << 17 | 1 << 18 | 1 << 25
QUOTE = bytes(range(256)) * 20


class Imds(ThreadingHTTPServer):
    """The metadata service; a test says what it answers."""

    asked: dict[str, str]
    answers: dict[str, tuple[int, bytes]]


class Answers(BaseHTTPRequestHandler):
    server: Imds

    def do_GET(self):
        self._answer()

    def do_POST(self):
        self.server.asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer()

    def _answer(self):
        status, body = self.server.answers.get(self.path, (404, b""))
        assert self.headers["Metadata"] == "true"
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def service():
    server = Imds(("127.0.0.1", 0), Answers)
    world, above = forge_azure.AMD, pem(forge_azure.AMD.ask(), forge_azure.AMD.ark()).decode()
    leaf = {"vcekCert": pem(world.leaf()).decode(), "certificateChain": above, "tcbm": "x"}
    quote = {"quote": base64.urlsafe_b64encode(QUOTE).decode().rstrip("=")}
    server.answers = {
        "/metadata/THIM/amd/certification": (200, json.dumps(leaf).encode()),
        "/acc/tdquote": (200, json.dumps(quote).encode()),
    }
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def asking(server):
    return azure.Service("127.0.0.1", server.server_address[1], timeout=60.0)


def refused(code, call, *args, **how):
    return vocabulary.refused(AttestationError, code, call, *args, **how)


def command(machine, code, handles, parameters):
    """A command with the owner's empty password, which our client has no use for."""
    body = b"".join(number(one, 4) for one in handles) + number(len(PASSWORD), 4) + PASSWORD
    body += parameters
    channel = connect(machine.address, 60.0)
    try:
        answer = channel.exchange(
            number(0x8002, 2) + number(10 + len(body), 4) + number(code, 4) + body, 60.0
        )
    finally:
        channel.close()
    assert answer[6:10] == bytes(4), answer.hex()


def leave_report(machine, report):
    public = number(PARAVISOR_REPORT, 4) + number(0x0B, 2) + number(NV_ATTRIBUTES, 4)
    public += tpm2b(b"") + number(len(report), 2)
    command(machine, 0x12A, [OWNER], tpm2b(b"") + tpm2b(public))
    for at in range(0, len(report), 512):
        data = tpm2b(report[at : at + 512]) + number(at, 2)
        command(machine, 0x137, [OWNER, PARAVISOR_REPORT], data)


def keep_key(machine):
    """A key of the paravisor's kind, at its handle; gives its public area."""
    template = forge.rsa_attestation_template(Algorithm.RSASSA)
    with Tpm.open(machine.address, 300.0) as tpm, tpm.create_primary(template) as key:
        public = tpm.read_public(key)
        data = number(azure.KEY_HANDLE, 4)
        # EvictControl, on the same channel: swtpm forgets the key when it closes.
        body = number(OWNER, 4) + number(key, 4) + number(9, 4) + PASSWORD + data
        asked = number(0x8002, 2) + number(10 + len(body), 4) + number(0x120, 4) + body
        assert tpm._channel.exchange(asked, 60.0)[6:10] == bytes(4)
    return public


@pytest.fixture
def machine(tmp_path):
    with SoftwareTpm(tmp_path / "tpm") as machine:
        yield machine


def sources(folder):
    names = {field.name: folder / field.name for field in dataclasses.fields(Sources)}
    return Sources(**names)


@needs_swtpm
def test_a_vm_joins(tmp_path, machine, service):
    """What the node collects from its TPM and the service is let in, as tier tee."""
    world = CloudWorld()
    jwk = forge_azure.jwk(forge.Key(keep_key(machine), world.vm.tpm.ak.private))
    runtime = world.vm.runtime([jwk])
    report = forge_azure.AMD.report(report_data=forge_azure.vouched(runtime))
    leave_report(machine, forge_azure.hcl(runtime, report).rstrip(b"\0"))
    boot = Boot()
    measured = list(measure_files({"/usr/bin/a": b"a"}, boot.registers()))
    machine.boot(boot.digests(), measured)
    found = sources(tmp_path)
    found.event_log.write_bytes(boot.log())
    found.ima_binary.write_bytes(encode_ima(measured))
    key = world.machine.key
    attester = NodeAttester(
        key=key,
        executable=Path(sys.executable),
        tpm=TpmAgent(tmp_path / "agent", address=machine.address, sources=found, timeout=300.0),
        tee=Part.REQUIRED,
        gpus=Part.OFF,
        imds=("127.0.0.1", service.server_address[1]),
    )
    assert attester.keys() is None, "the paravisor's key is in the evidence"
    for _ in range(2):
        binding = world.binding()
        said = attester.collect(binding, Ask())
        body = parse_node(said.body)
        assert body.tpm is None
        assert body.tee
        assert len(body.tee.certificates) == 3
        assert world.answer(said, binding).tier is NodeTier.TEE
    off = dataclasses.replace(attester, tee=Part.OFF)
    assert off.keys() is not None, "then the TPM speaks for itself"


@needs_swtpm
def test_a_machine_without_a_paravisor(tmp_path, machine):
    agent = TpmAgent(tmp_path / "agent", address=machine.address, timeout=300.0)
    assert not agent.has_index(PARAVISOR_REPORT)
    key = PrivateKey.generate(KeyKind.P256)
    attester = NodeAttester(key=key, executable=Path(sys.executable), tpm=agent)
    assert attester.keys() is not None


VTPM = TpmEvidence(quote=b"q", signature=b"s", pcrs={})


def hcl(kind):
    return HclReport(kind=kind, report=bytes(range(256)) * 4 + bytes(160), runtime_data=b"{}")


def test_a_guest_with_tdx_asks_for_its_quote(service):
    found = azure.collect(hcl("tdx"), VTPM, [], asking(service))
    assert (found.kind, found.report) == (TeeKind.TDX, QUOTE)
    asked = service.asked["report"]
    assert base64.urlsafe_b64decode(asked + "==") == bytes(range(256)) * 4


@items(
    "answer",
    (500, b"{}"),
    (200, b""),
    (200, b"[]"),
    (200, b"[" * 60_000),
    (200, b"{" + b" " * (65 << 10)),
    (200, b"{}"),
    (200, b'{"quote": 7}'),
    (200, b'{"quote": "?"}'),
    (200, b'{"quote": "\xff"}'),
    (302, b""),
)
def test_a_service_that_gives_no_quote(service, answer):
    service.answers["/acc/tdquote"] = answer
    error = refused("ST-ATTS-961", azure.collect, hcl("tdx"), VTPM, [], asking(service))
    assert "/acc/tdquote" in error.where


@pytest.mark.parametrize("answer", [(404, b""), (200, b"{}"), (200, b'{"vcekCert": 1}')])
def test_a_service_without_certificates(service, answer):
    """The verifier's cache may have them: the evidence is sent without."""
    service.answers["/metadata/THIM/amd/certification"] = answer
    notes: list[str] = []
    found = azure.collect(hcl("sev-snp"), VTPM, notes, asking(service))
    assert found.certificates == ()
    assert "cache" in notes[0]


def test_certificates_that_are_none(service):
    body = json.dumps({"vcekCert": "x", "certificateChain": "y"}).encode()
    service.answers["/metadata/THIM/amd/certification"] = (200, body)
    notes: list[str] = []
    assert azure.collect(hcl("sev-snp"), VTPM, notes, asking(service)).certificates == ()
    assert notes


def test_no_service_at_all():
    refused("ST-ATTS-961", azure.Service("127.0.0.1", 1, timeout=60.0).td_quote, b"report")
