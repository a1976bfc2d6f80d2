# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import hashlib
import hmac
import os
import stat
import time

import pytest

from securetrain.attest.node.tpm import client
from securetrain.attest.node.tpm.agent import BOOT_PCRS, KEY_FILE, Sessions, StoredKey, TpmAgent
from securetrain.attest.node.tpm.commands import Command
from securetrain.attest.node.tpm.measurements import Sources
from securetrain.core import canonical
from securetrain.core.errors import AttestationError, UsageError
from securetrain.evidence.tpm.constants import Handle
from securetrain.evidence.tpm.credential import make_credential
from securetrain.evidence.tpm.keys import (
    AK_TEMPLATE,
    EK_TEMPLATES,
    check_attestation_key,
    check_endorsement_key,
)
from securetrain.evidence.tpm.quote import verify_quote
from securetrain.evidence.tpm.structures import parse_public
from securetrain.testing.bootlog import Boot
from securetrain.testing.measurement_lists import encode_ima, measure_files
from tests.attest.node.tpm.simulator import INTEGRITY, LOCKOUT, Simulator
from tests.evidence.tpm import forge
from tests.tables import items
from tests.vocabulary import refused

BINDING = bytes(range(32))
SECRET = b"s" * 32


@pytest.fixture
def simulator(monkeypatch):
    simulator = Simulator("L-1", nv={0x1C00002: b"\x30\x82\x03\xe8" + bytes(1000)})
    monkeypatch.setattr(client, "connect", lambda *_: simulator)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    return simulator


@pytest.fixture
def agent(simulator, tmp_path):
    return TpmAgent(tmp_path / "state", sources=sources(tmp_path), sessions=Sessions.PLAIN)


def sources(folder):
    return Sources(
        event_log=folder / "log", ima_binary=folder / "binary", ima_ascii=folder / "ascii"
    )


def credential_for(keys, name=None):
    ak = parse_public(keys.ak_public)
    made = make_credential(parse_public(keys.ek_public), name or ak.name, SECRET, os.urandom)
    return made.id_object, made.encrypted_secret


def verified(keys, evidence, **options):
    """What the verifier's own functions say of the evidence."""
    ak, ek = parse_public(keys.ak_public), parse_public(keys.ek_public)
    check_endorsement_key(ek)
    check_attestation_key(ak)
    return verify_quote(
        evidence.quote,
        evidence.signature,
        **{
            "ak": ak,
            "ek": ek,
            "extra_data": BINDING,
            "pcrs": evidence.pcrs,
            "required": BOOT_PCRS,
            **options,
        },
    )


# Against the simulator.


def test_keys_are_made_once_and_stored_privately(agent, simulator, tmp_path):
    keys = agent.keys()
    assert keys == agent.keys()
    assert keys.ek_certificate == simulator.nv[0x1C00002]
    assert simulator.sent.count(Command.Create) == 1
    file = tmp_path / "state" / KEY_FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert not simulator.loaded
    assert simulator.closed == 2


def test_the_next_start_only_loads_the_key(agent, simulator, tmp_path):
    keys = agent.keys()
    simulator.sent.clear()
    again = TpmAgent(tmp_path / "state", sources=sources(tmp_path), sessions=Sessions.PLAIN)
    assert again.keys() == keys
    verified(keys, again.evidence(BINDING))
    assert Command.Create not in simulator.sent
    assert Command.Load in simulator.sent


def test_evidence_is_bound_quoted_and_activated(agent, simulator, tmp_path):
    boot = Boot()
    files = measure_files({"/bin/sh": b"sh"}, boot.registers())
    found = sources(tmp_path)
    found.event_log.write_bytes(boot.log())
    found.ima_binary.write_bytes(encode_ima(files))
    keys = agent.keys()
    evidence = agent.evidence(BINDING, credential=credential_for(keys), ima_first=1)
    verified(keys, evidence)
    assert evidence.activation == hmac.digest(SECRET, BINDING, hashlib.sha256)
    assert evidence.event_log == boot.log()
    assert evidence.ima is not None
    assert (evidence.ima.first, evidence.ima.entries) == (1, encode_ima(files[1:]))
    assert agent.notes == ()
    assert not simulator.loaded


def test_a_renewal_leaves_out_what_was_proven(agent, tmp_path):
    sources(tmp_path).event_log.write_bytes(b"log")
    keys = agent.keys()
    evidence = agent.evidence(BINDING, full=False)
    verified(keys, evidence)
    assert (evidence.activation, evidence.event_log, evidence.ima) == (b"", b"", None)
    assert len(agent.notes) == 2


def test_logs_are_read_after_the_quote(agent, simulator, tmp_path):
    # What the kernel measures meanwhile must be in the list that follows.
    binary = sources(tmp_path).ima_binary
    simulator.after[Command.Quote] = lambda: binary.write_bytes(b"")
    assert agent.evidence(BINDING).ima is not None


def test_registers_are_chosen_by_the_caller(simulator, tmp_path):
    agent = TpmAgent(tmp_path, pcrs=(17, *BOOT_PCRS, 0))
    evidence = agent.evidence(BINDING)
    verified(agent.keys(), evidence, required=[*BOOT_PCRS, 17])
    assert sorted(evidence.pcrs) == [*BOOT_PCRS, 17]


def test_renewals_use_what_the_tpm_saved(agent, simulator):
    agent.evidence(BINDING)
    simulator.sent.clear()
    verified(agent.keys(), agent.evidence(BINDING))
    assert simulator.sent.count(Command.ContextLoad) == 1
    assert not {Command.CreatePrimary, Command.Load, Command.StartAuthSession} & {*simulator.sent}


def test_a_persistent_endorsement_key_is_not_made_again(simulator, tmp_path):
    simulator.persistent[Handle.EK_RSA] = simulator.tpm.ek.public
    agent = TpmAgent(tmp_path, sessions=Sessions.PLAIN)
    keys = agent.keys()
    verified(keys, agent.evidence(BINDING, credential=credential_for(keys)))
    assert Command.CreatePrimary not in simulator.sent


def test_saved_contexts_are_forgotten_after_a_reset(agent, simulator):
    keys = agent.keys()
    agent.evidence(BINDING, credential=credential_for(keys))
    for _ in range(2):
        simulator.reset()
        simulator.sent.clear()
        evidence = agent.evidence(BINDING, credential=credential_for(keys))
        verified(keys, evidence)
        assert evidence.activation
        assert Command.Load in simulator.sent
    assert not simulator.loaded


def test_a_quote_is_of_one_moment(agent, simulator):
    left = [3]

    def disturb():
        if left[0]:
            left[0] -= 1
            simulator.extend(10, bytes(32))

    simulator.after[Command.Quote] = disturb
    keys = agent.keys()
    evidence = agent.evidence(BINDING)
    verified(keys, evidence)
    assert evidence.pcrs[10] == simulator.pcrs[10]
    assert simulator.sent.count(Command.Quote) == 4


def test_a_change_between_two_reads_is_seen(agent, simulator):
    left = [1]

    def disturb():
        if left[0]:
            left[0] -= 1
            simulator.extend(0, bytes(32))

    simulator.after[Command.PCR_Read] = disturb
    verified(agent.keys(), agent.evidence(BINDING))
    assert simulator.sent.count(Command.Quote) == 2


def test_registers_that_never_stand_still(agent, simulator):
    simulator.after[Command.Quote] = lambda: simulator.extend(10, bytes(32))
    error = refused(AttestationError, "ST-ATTS-156", agent.evidence, BINDING)
    assert "5 quotes" in error.what
    assert error.where == "simulator"
    assert simulator.sent.count(Command.Quote) == 5
    assert not simulator.loaded


def altered(credential, part, at):
    data = list(credential)
    data[part] = forge.flip(data[part], at)
    return tuple(data)


@pytest.mark.forgery
@pytest.mark.parametrize("forged", ["other-ak", "other-ek", "id-object", "secret"])
def test_a_credential_for_other_keys_is_not_opened(agent, simulator, forged):
    keys = agent.keys()
    credential = credential_for(keys)
    if forged == "other-ak":
        credential = credential_for(keys, forge.make_key(AK_TEMPLATE).public.name)
    elif forged == "other-ek":
        other = forge.make_key(EK_TEMPLATES["L-1"], 7).public
        made = make_credential(other, parse_public(keys.ak_public).name, SECRET, os.urandom)
        credential = made.id_object, made.encrypted_secret
    elif forged == "id-object":
        credential = altered(credential, 0, -1)
    else:
        credential = altered(credential, 1, -1)
    error = refused(AttestationError, "ST-ATTS-158", agent.evidence, BINDING, credential=credential)
    assert "TPM2_ActivateCredential" in error.what
    assert not simulator.loaded


@items(
    "command, response, code",
    (Command.ActivateCredential, LOCKOUT, "ST-ATTS-154"),
    (Command.ActivateCredential, 0x98E, "ST-ATTS-153"),
    (Command.Load, LOCKOUT, "ST-ATTS-154"),
    (Command.Load, 0x902, "ST-ATTS-153"),
    (Command.Quote, LOCKOUT, "ST-ATTS-154"),
    (Command.PolicySecret, 0x9A2, "ST-ATTS-153"),
    (Command.CreatePrimary, 0x185, "ST-ATTS-153"),
)
def test_a_tpm_that_refuses_is_told_as_that(agent, simulator, command, response, code):
    keys = agent.keys()
    simulator.reset()
    simulator.refuse[command] = [response]
    error = refused(
        AttestationError, code, agent.evidence, BINDING, credential=credential_for(keys)
    )
    assert f"TPM2_{command.name}" in error.what
    assert not simulator.loaded
    verified(keys, agent.evidence(BINDING, credential=credential_for(keys)))


@pytest.mark.forgery
@items("command", Command.Quote, Command.PCR_Read, Command.Load, Command.ReadPublic)
def test_malformed_responses_are_refused_and_leave_nothing_loaded(agent, simulator, command):
    simulator.alter[command] = lambda body: body[:1]
    error = refused(AttestationError, "ST-ATTS-152", agent.evidence, BINDING)
    assert command.name in error.where
    assert not simulator.loaded


def stored(path):
    return canonical.decode((path / "state" / KEY_FILE).read_bytes(), StoredKey)


def store(path, key):
    (path / "state" / KEY_FILE).write_bytes(canonical.encode(key))


def changed(key, **changes):
    fields = {name: getattr(key, name) for name in ("ek_name", "private", "public")}
    return StoredKey(**{**fields, **changes})


@pytest.mark.forgery
@items(
    "id, change, says",
    (
        "another-tpm",
        lambda key: changed(key, ek_name=forge.make_key(EK_TEMPLATES["L-1"], 9).public.name),
        "another TPM",
    ),
    ("no-name", lambda key: changed(key, ek_name=b""), "another TPM"),
    ("another-private", lambda key: changed(key, private=b"\0\3abc"), "did not wrap it"),
    (
        "another-public",
        lambda key: changed(key, public=forge.make_key(AK_TEMPLATE).public.tpm2b),
        "did not wrap",
    ),
    ("truncated", lambda key: changed(key, public=key.public[:-1]), "bytes wanted"),
    (
        "weak-key",
        lambda key: changed(key, public=forge.make_key(EK_TEMPLATES["H-2"]).public.tpm2b),
        "a key without NO_DA, SIGN",
    ),
)
def test_a_stored_key_that_was_altered_is_refused(agent, tmp_path, change, says):
    agent.keys()
    store(tmp_path, change(stored(tmp_path)))
    again = TpmAgent(tmp_path / "state", sources=sources(tmp_path), sessions=Sessions.PLAIN)
    error = refused(AttestationError, "ST-ATTS-157", again.evidence, BINDING)
    assert says in error.what
    assert error.where == str(tmp_path / "state" / KEY_FILE)
    assert "remove it" in error.fix


@pytest.mark.forgery
@items(
    "content",
    b"",
    b"{}",
    b'{"ek_name":"","private":"","public":""} ',
    b"[]",
    b"\xff",
    bytes(1 << 15),
)
def test_a_file_that_holds_no_key_is_refused_and_kept(agent, tmp_path, content):
    agent.keys()
    file = tmp_path / "state" / KEY_FILE
    file.write_bytes(content)
    refused(AttestationError, "ST-ATTS-157", TpmAgent(tmp_path / "state").keys)
    assert file.read_bytes() == content


def test_a_link_in_place_of_the_key_is_refused(agent, tmp_path):
    agent.keys()
    file = tmp_path / "state" / KEY_FILE
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    refused(AttestationError, "ST-ATTS-157", TpmAgent(tmp_path / "state").keys)


def test_a_folder_that_cannot_be_made(simulator, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    refused(UsageError, "ST-USAG-002", TpmAgent(tmp_path / "file" / "state").keys)


def test_no_tpm(tmp_path):
    with pytest.raises(AttestationError) as error:
        TpmAgent(tmp_path, address=str(tmp_path / "tpmrm0")).keys()
    assert error.value.code == "ST-ATTS-150"
    assert "there is no TPM" in error.value.what


def test_a_wrong_integrity_is_not_hidden_by_the_saved_context(agent, simulator):
    agent.evidence(BINDING)
    simulator.refuse[Command.ContextLoad] = [INTEGRITY]
    verified(agent.keys(), agent.evidence(BINDING))
    assert simulator.sent.count(Command.Load) == 2
