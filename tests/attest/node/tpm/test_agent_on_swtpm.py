# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The agent against swtpm; what a simulator can show is in test_agent."""

import contextlib
import hashlib
import hmac
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from securetrain.attest.node.tpm import agent as agent_module
from securetrain.attest.node.tpm import client, endorsement
from securetrain.attest.node.tpm.agent import KEY_FILE, StoredKey, TpmAgent
from securetrain.attest.node.tpm.client import Tpm
from securetrain.core import canonical
from securetrain.core.errors import AttestationError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence.tpm.certificates import TpmReference, check_endorsement
from securetrain.evidence.tpm.constants import Attributes, Hash
from securetrain.evidence.tpm.keys import AK_TEMPLATE, EK_TEMPLATES, check_endorsement_key
from securetrain.evidence.tpm.structures import parse_attest, parse_public
from securetrain.testing.bootlog import Boot
from securetrain.testing.measurement_lists import measure_files
from securetrain.testing.swtpm import SoftwareTpm
from tests.attest.node.tpm.test_agent import (
    BINDING,
    SECRET,
    altered,
    changed,
    credential_for,
    sources,
    verified,
)
from tests.attest.swtpms import needs_swtpm
from tests.evidence.tpm import forge
from tests.vocabulary import refused


@pytest.fixture(scope="module")
def ca(tmp_path_factory):
    return tmp_path_factory.mktemp("ca")


@pytest.fixture
def machine(tmp_path, ca):
    with SoftwareTpm(tmp_path / "tpm", ca=ca) as machine:
        yield machine


@contextlib.contextmanager
def only_certificate(index):
    """The TPM seen as if it had the certificate of one endorsement key alone."""
    with pytest.MonkeyPatch.context() as patch:
        honest = Tpm.handles

        def handles(self, first):
            found = honest(self, first)
            return tuple(h for h in found if h == index or h >> 24 != index >> 24)

        patch.setattr(Tpm, "handles", handles)
        yield


@needs_swtpm
@pytest.mark.parametrize(("template", "index"), [("H-3", 0x1C00016), ("L-1", 0x1C00002)])
def test_both_endorsement_keys_attest(machine, tmp_path, template, index):
    boot = Boot()
    files = measure_files({"/usr/bin/python3": b"python"}, boot.registers())
    machine.boot(boot.digests(), files)
    agent = TpmAgent(tmp_path / "agent", address=machine.address, sources=sources(tmp_path))
    with only_certificate(index):
        keys = agent.keys()
    assert check_endorsement_key(parse_public(keys.ek_public)) == template
    evidence = agent.evidence(BINDING, credential=credential_for(keys))
    quote = verified(keys, evidence)
    assert {pcr: quote.pcrs[pcr] for pcr in range(10)} == boot.registers()
    assert evidence.activation == hmac.digest(SECRET, BINDING, hashlib.sha256)
    reference = TpmReference(
        test_roots=(machine.root_certificate,), intermediates=(machine.issuer_certificate,)
    )
    now = datetime.now(UTC)
    found = check_endorsement(keys.ek_public, keys.ek_certificate, (), reference, now)
    assert found.tier is NodeTier.TEST_ONLY
    with Tpm.open(machine.address) as tpm:
        assert not tpm.handles(client.Range.TRANSIENT)
        assert not tpm.handles(client.Range.SESSION)


@needs_swtpm
@pytest.mark.parametrize(("template", "handle"), [("L-1", 0x81010001), ("H-3", 0x81010016)])
def test_endorsement_keys_are_reproduced(machine, template, handle):
    with Tpm.open(machine.address) as tpm, tpm.create_primary(EK_TEMPLATES[template]) as made:
        assert tpm.read_public(made) == tpm.read_public(handle)


@needs_swtpm
@pytest.mark.parametrize("template", ["L-2", "H-2"])
def test_endorsement_keys_without_certificate_or_handle(machine, tmp_path, template, monkeypatch):
    monkeypatch.setattr(endorsement, "DEFAULT_TEMPLATE", template)
    monkeypatch.setattr(endorsement, "_PERSISTENT", range(0))
    agent = TpmAgent(tmp_path / "agent", address=machine.address)
    with only_certificate(0x01FFFFFF):
        keys = agent.keys()
    assert keys.ek_certificate == b""
    assert check_endorsement_key(parse_public(keys.ek_public)) == template
    for _ in range(2):
        evidence = agent.evidence(BINDING, credential=credential_for(keys))
        verified(keys, evidence)
        assert evidence.activation == hmac.digest(SECRET, BINDING, hashlib.sha256)


@needs_swtpm
def test_a_credential_for_another_key_is_not_opened_by_swtpm(machine, tmp_path):
    agent = TpmAgent(tmp_path / "agent", address=machine.address)
    keys = agent.keys()
    name = forge.make_key(AK_TEMPLATE).public.name
    for forged in (
        credential_for(keys, name),
        altered(credential_for(keys), 0, -1),
        altered(credential_for(keys), 1, 10),
        (b"\0\0", b"\0\0"),
        (b"\0\x20" + bytes(32), b"\0\x20" + bytes(32)),
    ):
        refused(AttestationError, "ST-ATTS-158", agent.evidence, BINDING, credential=forged)
    verified(keys, agent.evidence(BINDING, credential=credential_for(keys)))


@needs_swtpm
def test_the_key_survives_reboots_and_counts_tell_of_them(machine, tmp_path):
    agent = TpmAgent(tmp_path / "agent", address=machine.address)
    keys = agent.keys()
    first = verified(keys, agent.evidence(BINDING)).clock
    second = verified(keys, agent.evidence(BINDING), previous=first).clock
    machine.reboot()
    evidence = agent.evidence(BINDING, credential=credential_for(keys))
    third = verified(keys, evidence, previous=second, running=False).clock
    assert third.reset_count == first.reset_count + 1
    refused(AttestationError, "ST-ATTS-118", verified, keys, evidence, previous=second)
    again = TpmAgent(tmp_path / "agent", address=machine.address)
    assert again.keys() == keys


@needs_swtpm
def test_power_cuts_do_not_lock_the_node_out(machine, tmp_path):
    agent = TpmAgent(tmp_path / "agent", address=machine.address)
    keys = agent.keys()
    for _ in range(5):
        verified(keys, agent.evidence(BINDING, credential=credential_for(keys)))
        machine.reboot(orderly=False)
    evidence = agent.evidence(BINDING, credential=credential_for(keys))
    assert not verified(keys, evidence).safe
    assert evidence.activation


@needs_swtpm
def test_without_no_da_power_cuts_lock_a_key_out(machine, tmp_path, monkeypatch):
    """The control: what the attribute is for."""
    protected = replace(AK_TEMPLATE, attributes=AK_TEMPLATE.attributes & ~Attributes.NO_DA)
    monkeypatch.setattr(agent_module, "AK_TEMPLATE", protected)
    monkeypatch.setattr(agent_module, "check_attestation_key", lambda _: None)
    agent = TpmAgent(tmp_path / "agent", address=machine.address)

    def work():
        for _ in range(5):
            agent.evidence(BINDING)
            machine.reboot(orderly=False)

    assert "TPM_RC_LOCKOUT" in refused(AttestationError, "ST-ATTS-154", work).what


@needs_swtpm
def test_a_killed_client_leaves_room_for_the_next(machine, tmp_path):
    agent = TpmAgent(tmp_path / "agent", address=machine.address)
    keys = agent.keys()
    tpm = Tpm.open(machine.address)
    kept = [tpm.create_primary(EK_TEMPLATES["H-2"]), tpm.create_primary(EK_TEMPLATES["L-2"])]
    kept += [tpm.policy_session(Hash.SHA256) for _ in range(3)]
    for one in kept:
        one.__enter__()
    tpm.close()
    verified(keys, agent.evidence(BINDING, credential=credential_for(keys)))


@needs_swtpm
def test_a_key_of_another_tpm_is_refused(machine, tmp_path, ca):
    TpmAgent(tmp_path / "agent", address=machine.address).keys()
    with SoftwareTpm(tmp_path / "other", ca=ca) as other:
        agent = TpmAgent(tmp_path / "agent", address=other.address)
        refused(AttestationError, "ST-ATTS-157", agent.keys, says="another TPM")
        # The name is only the first hurdle: the TPM would not load it either.
        file = tmp_path / "agent" / KEY_FILE
        key = canonical.decode(file.read_bytes(), StoredKey)
        own = TpmAgent(tmp_path / "own", address=other.address).keys()
        moved = changed(key, ek_name=parse_public(own.ek_public).name)
        file.write_bytes(canonical.encode(moved))
        refused(AttestationError, "ST-ATTS-157", agent.evidence, BINDING, says="did not wrap it")


@needs_swtpm
def test_a_tpm_that_is_switched_off_is_named(machine, tmp_path):
    agent = TpmAgent(tmp_path / "agent", address=machine.address)
    agent.keys()
    machine.stop()
    refused(AttestationError, "ST-ATTS-150", agent.evidence, BINDING, names=machine.address)
    machine.start()
    assert parse_attest(agent.evidence(BINDING).quote).extra_data == BINDING
