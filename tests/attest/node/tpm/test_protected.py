# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Who stands between a node and its TPM reads no secret and alters none.

The same attack is tried with plain sessions first, where it works.
"""

import contextlib
import hashlib
import hmac
import logging
import os
import random
import sys

import pytest

from securetrain.attest.node.settings import AttesterSettings, make_attester
from securetrain.attest.node.tpm import endorsement, protected
from securetrain.attest.node.tpm.agent import Sessions, TpmAgent, sessions_for
from securetrain.attest.node.tpm.client import Range, Tpm
from securetrain.attest.node.tpm.commands import Command
from securetrain.core import canonical
from securetrain.core.errors import AttestationError
from securetrain.evidence.tpm.credential import make_credential
from securetrain.evidence.tpm.keys import EK_TEMPLATES
from securetrain.evidence.tpm.structures import number, parse_public, tpm2b
from securetrain.identity.keys import PrivateKey
from securetrain.testing.swtpm import SoftwareTpm
from tests import vocabulary
from tests.attest.node.tpm.interposer import HEADER, Interposer, flipped
from tests.attest.node.tpm.test_agent import sources
from tests.attest.swtpms import needs_swtpm
from tests.evidence.tpm.oracle_environment import use_library
from tests.vocabulary import refused

BINDING = bytes(range(32))
INDICES = {"H-3": 0x1C00016, "L-1": 0x1C00002}

needs_library = pytest.mark.usefixtures("library")


@pytest.fixture(scope="module")
def library():
    """tpm2-pytss, from the extra or from where it was compiled for tests."""
    use_library("NO SESSION WAS PROTECTED")


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("machine")
    with SoftwareTpm(folder / "tpm") as machine:
        yield machine


@pytest.fixture
def between(machine, tmp_path):
    """Somebody between, and the address at which the node finds its TPM."""
    somebody = Interposer(machine.address)
    with somebody.listening(tmp_path / "s") as address:
        yield somebody, address


def agent_at(address, tmp_path, sessions):
    return TpmAgent(
        tmp_path / "agent", address=address, sources=sources(tmp_path), sessions=sessions
    )


def asked(agent):
    """A secret, and the credential in which a verifier sends it to this agent's keys."""
    keys = agent.keys()
    secret = os.urandom(32)
    ak, ek = parse_public(keys.ak_public), parse_public(keys.ek_public)
    made = make_credential(ek, ak.name, secret, os.urandom)
    return secret, (made.id_object, made.encrypted_secret)


def proof(secret):
    return hmac.digest(secret, BINDING, hashlib.sha256)


@needs_swtpm
@needs_library
@pytest.mark.parametrize("template", INDICES)
def test_a_record_of_the_bus_does_not_hold_the_secret(between, tmp_path, template, monkeypatch):
    honest = Tpm.handles

    def one_certificate(self, first):
        index = INDICES[template]
        return tuple(h for h in honest(self, first) if h == index or h >> 24 != index >> 24)

    monkeypatch.setattr(Tpm, "handles", one_certificate)
    somebody, address = between
    plain = agent_at(address, tmp_path, Sessions.PLAIN)
    secret, credential = asked(plain)
    assert plain.evidence(BINDING, credential=credential).activation == proof(secret)
    assert secret in somebody.seen
    somebody.record.clear()

    agent = agent_at(address, tmp_path, Sessions.PROTECTED)
    secret, credential = asked(agent)
    evidence = agent.evidence(BINDING, credential=credential)
    assert evidence.activation == proof(secret)
    assert Command.ActivateCredential in somebody.commands
    assert secret not in somebody.seen
    assert evidence.quote in somebody.seen  # it did cross here
    # The credential is encrypted as well: only its size can be seen, twice in its record.
    assert credential[0][2:] not in somebody.seen


@needs_swtpm
@needs_library
def test_a_response_that_was_altered_is_noticed(between, tmp_path):
    somebody, address = between
    plain = agent_at(address, tmp_path, Sessions.PLAIN)
    secret, credential = asked(plain)
    body = HEADER + 4 + 2  # the size of the parameters, then that of the secret

    def alter(code, response):
        return flipped(response, body) if code == Command.ActivateCredential else response

    somebody.on_response = alter
    other = bytes([secret[0] ^ 1]) + secret[1:]
    assert plain.evidence(BINDING, credential=credential).activation == proof(other)

    agent = agent_at(address, tmp_path, Sessions.PROTECTED)
    secret, credential = asked(agent)
    vocabulary.refused(
        AttestationError, "ST-ATTS-160", agent.evidence, BINDING, credential=credential
    )
    somebody.on_response = lambda _, response: response
    assert agent.evidence(BINDING, credential=credential).activation == proof(secret)


@needs_swtpm
@needs_library
@pytest.mark.parametrize("direction", ["on_command", "on_response"])
def test_no_bit_of_an_activation_can_be_altered(between, tmp_path, direction):
    """Wherever the bit is: in handles, nonces, attributes, sizes, the secret or the HMAC."""
    somebody, address = between
    agent = agent_at(address, tmp_path, Sessions.PROTECTED)
    secret, credential = asked(agent)
    drawn = random.Random(f"20261123 {direction}")
    altered = 0

    def alter(code, message):
        nonlocal altered
        if code != Command.ActivateCredential or altered:
            return message
        altered += 1
        # Not the header, whose size would only make one of the two wait for the rest.
        return flipped(message, drawn.randrange(HEADER, len(message)), drawn.randrange(8))

    setattr(somebody, direction, alter)
    codes = set()
    for _ in range(8):
        altered = 0
        with pytest.raises(AttestationError) as refused:
            agent.evidence(BINDING, credential=credential)
        codes.add(refused.value.code)
        assert altered
    # What makes a command unreadable the TPM tells by a code of its own.
    assert codes <= {"ST-ATTS-160", "ST-ATTS-153", "ST-ATTS-152", "ST-ATTS-158"}
    assert "ST-ATTS-160" in codes
    setattr(somebody, direction, lambda _, message: message)
    assert agent.evidence(BINDING, credential=credential).activation == proof(secret)
    with Tpm.open(address) as tpm:
        assert not tpm.handles(Range.SESSION)
        assert not tpm.handles(Range.TRANSIENT)


@needs_swtpm
@needs_library
@pytest.mark.parametrize("liar", ["endorsement key", "attestation key"])
def test_a_key_of_the_interposer_is_no_salt(between, machine, tmp_path, liar):
    """The interposer plays the TPM: it answers with a key of its own, whose private part it has."""
    somebody, address = between
    agent = agent_at(address, tmp_path, Sessions.PROTECTED)
    _, credential = asked(agent)
    with Tpm.open(machine.address) as tpm, tpm.create_primary(EK_TEMPLATES["H-2"]) as own:
        body = tpm._run(Command.ReadPublic, [own]).rest()
    answer = number(0x8001, 2) + number(HEADER + len(body), 4) + number(0, 4) + body
    asks = 0

    def alter(code, response):
        nonlocal asks
        if code != Command.ReadPublic:
            return response
        asks += 1
        wanted = 1 if liar == "endorsement key" else 2
        return answer if asks == wanted else response

    somebody.on_response = alter
    vocabulary.refused(
        AttestationError, "ST-ATTS-160", agent.evidence, BINDING, credential=credential, says=liar
    )
    assert Command.ActivateCredential not in somebody.commands
    assert Command.StartAuthSession not in somebody.commands[-asks:]


@needs_swtpm
@needs_library
def test_a_name_that_is_not_the_keys_is_noticed(between, tmp_path):
    """The HMAC covers the name, the salt is for the public area: both are looked at."""
    somebody, address = between
    agent = agent_at(address, tmp_path, Sessions.PROTECTED)
    _, credential = asked(agent)

    def alter(code, response):
        if code != Command.ReadPublic:
            return response
        size = int.from_bytes(response[HEADER : HEADER + 2], "big")
        return flipped(response, HEADER + 2 + size + 2 + 5)  # in the name behind the public area

    somebody.on_response = alter
    vocabulary.refused(
        AttestationError, "ST-ATTS-160", agent.evidence, BINDING, credential=credential
    )


@needs_swtpm
@needs_library
def test_a_wrong_credential_and_a_broken_one_keep_their_code(between, tmp_path):
    _, address = between
    agent = agent_at(address, tmp_path, Sessions.PROTECTED)
    _, (id_object, encrypted) = asked(agent)
    for wrong in (
        (flipped(id_object, len(id_object) - 1), encrypted),
        (id_object, flipped(encrypted, len(encrypted) - 1)),
        (tpm2b(b""), encrypted),
        (id_object, tpm2b(b"\0" * 5000)),
        (b"", b""),
    ):
        vocabulary.refused(
            AttestationError, "ST-ATTS-158", agent.evidence, BINDING, credential=wrong
        )


@needs_swtpm
@needs_library
def test_a_tpm_that_goes_away_in_the_middle_is_told_as_that(between, tmp_path):
    somebody, address = between
    agent = agent_at(address, tmp_path, Sessions.PROTECTED)
    secret, credential = asked(agent)

    def gone(code, message):
        if code == Command.ActivateCredential:
            raise EOFError
        return message

    for direction in ("on_command", "on_response"):
        setattr(somebody, direction, gone)
        vocabulary.refused(
            AttestationError, "ST-ATTS-151", agent.evidence, BINDING, credential=credential
        )
        setattr(somebody, direction, lambda _, message: message)
    assert agent.evidence(BINDING, credential=credential).activation == proof(secret)


@pytest.fixture
def without_library(monkeypatch):
    monkeypatch.setattr(protected, "installed", lambda: False)
    monkeypatch.setitem(sys.modules, "tpm2_pytss", None)


def test_a_device_is_protected_unless_its_owner_says_that_no_bus_leads_to_it():
    assert sessions_for("/dev/tpmrm0") is Sessions.PROTECTED
    assert sessions_for("/dev/tpm0") is Sessions.PROTECTED
    assert sessions_for("unix:/run/tpm") is Sessions.IF_INSTALLED
    assert sessions_for("tcp:127.0.0.1:2321") is Sessions.IF_INSTALLED


def test_the_attesters_file_says_which_sessions(tmp_path):
    key = PrivateKey.generate()
    for written, sessions in (
        ({}, Sessions.PROTECTED),
        ({"sessions": "plain"}, Sessions.PLAIN),
        ({"sessions": "if-installed"}, Sessions.IF_INSTALLED),
    ):
        data = canonical.encode({"tpm": {"state": str(tmp_path)} | written})
        settings = canonical.decode(data, AttesterSettings, where="file")
        agent = make_attester(settings, key, environ={}).tpm
        assert agent is not None
        assert agent.sessions is sessions
    refused(ValueError, "weak", Sessions, "weak")


@needs_swtpm
@pytest.mark.usefixtures("without_library")
def test_without_the_extra_nothing_is_opened(machine, tmp_path):
    agent = agent_at(machine.address, tmp_path, Sessions.PROTECTED)
    _, credential = asked(agent)
    error = vocabulary.refused(
        AttestationError, "ST-ATTS-159", agent.evidence, BINDING, credential=credential
    )
    assert "[tpm]" in error.fix
    # A renewal carries no secret.
    assert agent.evidence(BINDING).activation == b""


@needs_swtpm
@pytest.mark.usefixtures("without_library")
def test_a_library_that_does_not_load_is_no_library(machine, tmp_path, monkeypatch):
    monkeypatch.setattr(protected, "installed", lambda: True)
    for sessions in (Sessions.PROTECTED, Sessions.IF_INSTALLED):
        agent = agent_at(machine.address, tmp_path, sessions)
        _, credential = asked(agent)
        vocabulary.refused(
            AttestationError, "ST-ATTS-159", agent.evidence, BINDING, credential=credential
        )


@needs_swtpm
@pytest.mark.usefixtures("without_library")
@pytest.mark.parametrize("sessions", [Sessions.IF_INSTALLED, Sessions.PLAIN])
def test_going_without_is_never_silent(machine, tmp_path, caplog, sessions):
    agent = agent_at(machine.address, tmp_path, sessions)
    secret, credential = asked(agent)
    with caplog.at_level(logging.WARNING):
        assert agent.evidence(BINDING, credential=credential).activation == proof(secret)
    (said,) = caplog.records
    assert "readable" in said.message
    assert "[tpm]" in said.message
    caplog.clear()
    agent.evidence(BINDING)
    assert not caplog.records


@needs_swtpm
@needs_library
def test_plain_is_plain_and_said_also_where_the_extra_is_installed(machine, tmp_path, caplog):
    agent = agent_at(machine.address, tmp_path, Sessions.PLAIN)
    secret, credential = asked(agent)
    with contextlib.ExitStack() as patched:
        patch = patched.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(protected, "activate_credential", None)
        patch.setattr(endorsement, "_PERSISTENT", range(0))
        assert agent.evidence(BINDING, credential=credential).activation == proof(secret)
    assert "readable" in caplog.text
