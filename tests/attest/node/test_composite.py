# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import dataclasses
import os
import sys
from pathlib import Path

import pytest

from securetrain.attest.node import configfs, nvml
from securetrain.attest.node.attester import Attester  # noqa: TC001 - see above
from securetrain.attest.node.composite import NodeAttester, Part
from securetrain.attest.node.tpm import client
from securetrain.attest.node.tpm.agent import Sessions, TpmAgent
from securetrain.attest.node.tpm.measurements import Sources
from securetrain.core.errors import AttestationError
from securetrain.evidence import node_evidence as evidence_module
from securetrain.evidence.binding import Binding
from securetrain.evidence.case import Ask
from securetrain.evidence.node_evidence import (
    NODE_TYPE,
    DeviceEvidence,
    DeviceKind,
    TeeEvidence,
    TeeKind,
    device_nonce,
    parse_node,
    report_data,
)
from securetrain.evidence.selfreport import SELF_ASSERTED_TYPE, parse_software
from securetrain.evidence.tpm.structures import parse_attest, parse_public
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.testing.bootlog import Boot
from securetrain.testing.measurement_lists import encode_ima, measure_files
from securetrain.testing.swtpm import SoftwareTpm
from tests.attest.node.tpm.simulator import Simulator
from tests.attest.node.tpm.test_agent import credential_for, verified
from tests.attest.swtpms import needs_swtpm
from tests.tables import items
from tests.vocabulary import refused

KEY = PrivateKey.generate(KeyKind.P256)
BINDING = Binding(
    nonce=bytes(32),
    session=bytes(16),
    job="job",
    client_spki=KEY.public.spki,
    server_spki=b"server",
    exporter=bytes(32),
)


def attester(**options) -> NodeAttester:
    options = {"tee": Part.OFF, "gpus": Part.OFF, **options}
    return NodeAttester(key=KEY, executable=Path(sys.executable), **options)


def collected(node: NodeAttester, ask: Ask | None = None):
    """The evidence, the body that it carries, and the value that it is bound to."""
    found = node.collect(BINDING, ask or Ask())
    assert found.media_type == NODE_TYPE
    KEY.public.verify(found.signature, found.signed_message())
    body = parse_node(found.body)
    assert found.binding == BINDING.value(body.manifest)
    return body, found.binding


@pytest.fixture
def agent(monkeypatch, tmp_path):
    simulator = Simulator()
    monkeypatch.setattr(client, "connect", lambda *_: simulator)
    paths = {field.name: tmp_path / field.name for field in dataclasses.fields(Sources)}
    return TpmAgent(tmp_path / "state", sources=Sources(**paths), sessions=Sessions.PLAIN)


@pytest.fixture
def tee(monkeypatch):
    def collect(data):
        return TeeEvidence(kind=TeeKind.SEV_SNP, report=data)

    monkeypatch.setattr(configfs, "collect", collect)


@pytest.fixture
def gpus(monkeypatch):
    def collect(nonce):
        return (DeviceEvidence(kind=DeviceKind.GPU, report=nonce, certificates=()),)

    monkeypatch.setattr(nvml, "collect", collect)


@pytest.fixture
def nothing(monkeypatch):
    def absent(_):
        raise AttestationError("ST-ATTS-150", "it is not there", "this machine")

    monkeypatch.setattr(configfs, "collect", absent)
    monkeypatch.setattr(nvml, "collect", absent)


def test_it_is_an_attester():
    node: Attester = attester()
    assert node.keys() is None


@pytest.mark.parametrize("part", [Part.OFF, Part.IF_PRESENT])
def test_a_node_that_has_nothing_speaks_about_itself_alone(nothing, part):
    node = attester(tee=part, gpus=part)
    found = node.collect(BINDING, Ask())
    assert found.media_type == SELF_ASSERTED_TYPE
    assert parse_software(found.body).software.securetrain
    assert found.binding == BINDING.value(found.body)
    KEY.public.verify(found.signature, found.signed_message())
    expected = () if part is Part.OFF else ("this machine: it is not there",) * 2
    assert node.notes == expected


@pytest.mark.parametrize("name", ["tee", "gpus"])
def test_what_is_required_must_be_there(nothing, name):
    node = attester(**{name: Part.REQUIRED})
    with pytest.raises(AttestationError) as error:
        node.collect(BINDING, Ask())
    assert error.value.what == "it is not there"


@pytest.mark.parametrize("part", [Part.IF_PRESENT, Part.REQUIRED])
def test_everything_carries_the_binding(agent, tee, gpus, tmp_path, part):
    (tmp_path / "token").write_text("e30.e30.e30\n")
    node = attester(tpm=agent, tee=part, gpus=part, tokens=(tmp_path / "token",))
    body, value = collected(node)
    assert parse_software(body.manifest).kernel.release
    assert body.tpm is not None
    assert parse_attest(body.tpm.quote).extra_data == value
    assert body.tee is not None
    assert body.tee.report == report_data(value)
    assert [device.report for device in body.devices] == [device_nonce(value)]
    assert body.tokens == ("e30.e30.e30",)
    assert len(node.notes) == 3


@pytest.mark.parametrize("name", ["tpm", "tee", "gpus", "tokens"])
def test_each_part_alone_makes_node_evidence(agent, tee, gpus, tmp_path, name):
    (tmp_path / "token").write_text("token")
    parts = {
        "tpm": agent,
        "tee": Part.REQUIRED,
        "gpus": Part.REQUIRED,
        "tokens": (tmp_path / "token",),
    }
    body, _ = collected(attester(**{name: parts[name]}))
    found = {"tpm": body.tpm, "tee": body.tee, "gpus": body.devices, "tokens": body.tokens}
    assert [part for part, value in found.items() if value] == [name]


def test_what_the_verifier_asks_reaches_the_tpm(agent, tmp_path):
    files = measure_files({"/bin/sh": b"sh"}, Boot().registers())
    (tmp_path / "event_log").write_bytes(Boot().log())
    (tmp_path / "ima_binary").write_bytes(encode_ima(files))
    node = attester(tpm=agent)
    keys = node.keys()
    assert keys is not None
    body, _ = collected(node, Ask(credential=credential_for(keys), ima_first=1))
    assert body.tpm is not None
    assert body.tpm.ima is not None
    assert len(body.tpm.activation) == 32
    assert body.tpm.event_log == Boot().log()
    assert body.tpm.ima.entries == encode_ima(files[1:])
    body, _ = collected(node, Ask(full=False))
    assert body.tpm is not None
    assert (body.tpm.activation, body.tpm.event_log) == (b"", b"")


def test_notes_are_those_of_the_latest_evidence(nothing, tmp_path):
    (tmp_path / "token").write_text("token")
    node = attester(tee=Part.IF_PRESENT, tokens=(tmp_path / "token",))
    for _ in range(2):
        collected(node)
        assert len(node.notes) == 1


@items(
    "id, content, says",
    ("missing", None, "No such file"),
    ("empty", b"", "empty"),
    ("blank", b" \n", "empty"),
    ("binary", b"\xff", "not text"),
)
def test_tokens_that_cannot_be_used(tmp_path, content, says):
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    error = refused(
        AttestationError, "ST-ATTS-902", attester(tokens=(path,)).collect, BINDING, Ask()
    )
    assert says in error.what
    assert error.where == str(path)


def test_a_token_has_a_limit(tmp_path):
    path = tmp_path / "token"
    path.write_bytes(b"x" * (64 << 10))
    body, _ = collected(attester(tokens=(path,)))
    assert len(body.tokens[0]) == 64 << 10
    path.write_bytes(b"x" * ((64 << 10) + 1))
    refused(AttestationError, "ST-ATTS-902", attester(tokens=(path,)).collect, BINDING, Ask())


def test_there_are_at_most_four_tokens(tmp_path):
    paths = tuple(tmp_path / str(number) for number in range(5))
    for path in paths:
        path.write_text(path.name)
    body, _ = collected(attester(tokens=paths[:4]))
    assert body.tokens == ("0", "1", "2", "3")
    error = refused(AttestationError, "ST-ATTS-902", attester(tokens=paths).collect, BINDING, Ask())
    assert "5 files" in error.what


def test_evidence_over_its_limit_is_not_sent(monkeypatch, agent):
    from securetrain.attest.node import composite as node_module

    node = attester(tpm=agent)
    size = len(node.collect(BINDING, Ask()).body)
    monkeypatch.setattr(node_module, "BODY_LIMIT", size // 2)
    refused(AttestationError, "ST-ATTS-901", node.collect, BINDING, Ask(), says=str(size // 2))


def test_the_largest_logs_fit_into_a_body():
    from securetrain.attest.node.tpm.measurements import EVENT_LOG_LIMIT, IMA_SEND_LIMIT

    logs = (EVENT_LOG_LIMIT + IMA_SEND_LIMIT) * 4 // 3
    assert evidence_module.BODY_LIMIT - logs > 512 << 10


@needs_swtpm
def test_a_node_on_swtpm(tmp_path):
    boot = Boot()
    files = measure_files({"/usr/bin/python3": os.urandom(8)}, boot.registers())
    paths = {field.name: tmp_path / field.name for field in dataclasses.fields(Sources)}
    paths["event_log"].write_bytes(boot.log())
    paths["ima_binary"].write_bytes(encode_ima(files))
    with SoftwareTpm(tmp_path / "tpm") as machine:
        machine.boot(boot.digests(), files)
        agent = TpmAgent(tmp_path / "state", address=machine.address, sources=Sources(**paths))
        node = attester(tpm=agent)
        keys = node.keys()
        assert keys is not None
        body, value = collected(node, Ask(credential=credential_for(keys)))
    assert body.tpm is not None
    quote = verified(keys, body.tpm, extra_data=value)
    assert {pcr: quote.pcrs[pcr] for pcr in range(10)} == boot.registers()
    assert parse_public(keys.ak_public).name
    assert node.notes == ()
