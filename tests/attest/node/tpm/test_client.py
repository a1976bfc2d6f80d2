# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import contextlib
import os

import pytest

from securetrain.attest.node.tpm import client
from securetrain.attest.node.tpm.client import NV_LIMIT, Range, Tpm
from securetrain.attest.node.tpm.commands import Command
from securetrain.core.errors import AttestationError
from securetrain.evidence.tpm.constants import Handle, Hash
from securetrain.evidence.tpm.credential import make_credential
from securetrain.evidence.tpm.keys import AK_TEMPLATE, EK_TEMPLATES, check_attestation_key
from securetrain.evidence.tpm.quote import verify_quote
from securetrain.evidence.tpm.structures import (
    PcrSelection,
    encode_selections,
    number,
    parse_public,
    tpm2b,
)
from tests.attest.node.tpm.simulator import SESSION, Simulator
from tests.tables import items

EXTRA = bytes(range(32))
INDEX = 0x1C00002


@pytest.fixture
def simulator():
    return Simulator()


@pytest.fixture
def tpm(simulator):
    return Tpm(simulator)


@contextlib.contextmanager
def attestation_key(tpm):
    """A loaded attestation key below the primary key, and both public areas."""
    with tpm.create_primary(EK_TEMPLATES["L-1"]) as ek:
        with tpm.policy_session(Hash.SHA256) as session:
            tpm.policy_secret(session, Handle.ENDORSEMENT)
            private, public = tpm.create(ek, session, AK_TEMPLATE)
        with contextlib.ExitStack() as held:
            with tpm.policy_session(Hash.SHA256) as session:
                tpm.policy_secret(session, Handle.ENDORSEMENT)
                ak = held.enter_context(tpm.load(ek, session, private, public))
            yield ak, parse_public(public), tpm.read_public(ek), ek


def refused(error, says, code="ST-ATTS-152"):
    assert error.value.code == code
    assert says in error.value.what
    assert error.value.where
    return True


def test_banks_that_are_off_are_left_out(tpm):
    assert tpm.pcr_banks() == {Hash.SHA256: tuple(range(24))}


def test_handles_are_listed_in_batches(tpm, simulator):
    simulator.nv = {0x01C00000 + n: b"" for n in range(150)}
    assert tpm.handles(Range.NV) == tuple(sorted(simulator.nv))
    assert simulator.sent == [Command.GetCapability] * 3
    assert tpm.handles(Range.PERSISTENT) == ()


def test_loaded_sessions_are_listed(tpm, simulator):
    with tpm.policy_session(Hash.SHA256) as session:
        assert session == SESSION
        assert tpm.handles(Range.SESSION) == (SESSION,)
    assert tpm.handles(Range.SESSION) == ()


@pytest.mark.forgery
@items(
    "body, says",
    ("00 00000005 00000000", "capability 5, not 1"),
    ("00 00000001 00000041" + "01c00000" * 65, "65 items, at most 64"),
    ("00 00000001 00000001 81010001", "another kind"),
    ("00 00000001 00000001 03000001", "another kind"),
    ("00 00000001 00000002 01c00000", "4 bytes wanted"),
    ("00 00000001 00000001 01c00000 00", "1 bytes follow"),
)
def test_lists_of_handles_that_are_refused(tpm, simulator, body, says):
    simulator.alter[Command.GetCapability] = lambda _: bytes.fromhex(body)
    with pytest.raises(AttestationError) as error:
        tpm.handles(Range.NV)
    assert refused(error, says)


def test_a_list_of_handles_ends(tpm, simulator):
    simulator.alter[Command.GetCapability] = lambda _: bytes.fromhex(
        "01 00000001 00000001 01c00000"
    )
    with pytest.raises(AttestationError) as error:
        tpm.handles(Range.NV)
    assert refused(error, "more than 16 handles", "ST-ATTS-155")
    assert len(simulator.sent) == 16


def test_more_without_any_is_the_end(tpm, simulator):
    simulator.alter[Command.GetCapability] = lambda _: bytes.fromhex("01 00000001 00000000")
    assert tpm.handles(Range.NV) == ()


@pytest.mark.forgery
@items(
    "body, says",
    ("00 00000001 00000000", "capability 1, not 5"),
    ("00 00000005 00000011" + "000b03ffffff" * 17, "17 items, at most 16"),
    ("00 00000005 00000001 000b05ffffffffff", "a length of 5"),
    ("00 00000005 00000001 000b03ffffff00", "1 bytes follow"),
)
def test_banks_that_are_refused(tpm, simulator, body, says):
    simulator.alter[Command.GetCapability] = lambda _: bytes.fromhex(body)
    with pytest.raises(AttestationError) as error:
        tpm.pcr_banks()
    assert refused(error, says)


def test_a_bank_of_an_unknown_hash_is_told(tpm, simulator):
    body = "00 00000005 00000001 0012 03 010000"
    simulator.alter[Command.GetCapability] = lambda _: bytes.fromhex(body)
    assert tpm.pcr_banks() == {0x12: (0,)}


def test_nv_is_read_in_pieces(tpm, simulator):
    simulator.nv[INDEX] = os.urandom(1300)
    assert tpm.nv_read(INDEX) == simulator.nv[INDEX]
    assert simulator.sent.count(Command.NV_Read) == 3


def test_nv_is_read_by_the_owner_where_the_index_does_not_let_itself(tpm, simulator):
    simulator.nv[INDEX] = b"certificate"
    simulator.nv_attributes = 1 << 29
    public = tpm.nv_read_public(INDEX)
    assert (public.written, public.reader, public.size) == (True, Handle.OWNER, 11)
    assert tpm.nv_read(INDEX) == b"certificate"


def test_an_index_that_was_never_written_says_so(tpm, simulator):
    simulator.nv[INDEX] = b"x"
    simulator.nv_attributes = 1 << 18
    assert not tpm.nv_read_public(INDEX).written


def test_nv_over_the_limit_is_not_read(tpm, simulator):
    simulator.nv[INDEX] = bytes(NV_LIMIT)
    assert len(tpm.nv_read(INDEX)) == NV_LIMIT
    simulator.nv[INDEX] = bytes(NV_LIMIT + 1)
    simulator.sent.clear()
    with pytest.raises(AttestationError) as error:
        tpm.nv_read(INDEX)
    assert refused(error, f"{NV_LIMIT + 1} bytes", "ST-ATTS-155")
    assert Command.NV_Read not in simulator.sent


@pytest.mark.forgery
@items(
    "id, command, alter, says",
    (
        "another-index",
        Command.NV_ReadPublic,
        lambda b: b[:2] + b"\x01\xc0\x00\x03" + b[6:],
        "NV index 0x1c00003",
    ),
    ("public-trailing", Command.NV_ReadPublic, lambda b: b + b"\0", "1 bytes follow"),
    ("public-truncated", Command.NV_ReadPublic, lambda b: b[:-1], "bytes wanted"),
    (
        "area-trailing",
        Command.NV_ReadPublic,
        lambda b: b"\0\x0f" + b[2:16] + b"\0" + b[16:],
        "1 bytes follow",
    ),
    ("more-than-asked", Command.NV_Read, lambda b: tpm2b(b[2:] + b"x"), "a length of 6"),
    (
        "less-than-asked",
        Command.NV_Read,
        lambda b: tpm2b(b[2:-1]),
        "4 bytes of NV index 0x1c00002, not 5",
    ),
    ("nothing", Command.NV_Read, lambda b: tpm2b(b""), "0 bytes of NV index 0x1c00002, not 5"),
    ("trailing", Command.NV_Read, lambda b: b + b"\0", "1 bytes follow"),
)
def test_nv_that_is_refused(tpm, simulator, command, alter, says):
    simulator.nv[INDEX] = b"12345"
    simulator.alter[command] = alter
    with pytest.raises(AttestationError) as error:
        tpm.nv_read(INDEX)
    assert refused(error, says)


def test_keys_are_made_loaded_and_flushed(tpm, simulator):
    with attestation_key(tpm) as (_, ak, ek, handle):
        assert ek == simulator.tpm.ek.public
        check_attestation_key(ak)
        assert set(simulator.loaded) == {handle, 0x80000001}
    assert not simulator.loaded


def test_everything_is_flushed_when_the_block_fails(tpm, simulator):
    with pytest.raises(ValueError, match="mine"), attestation_key(tpm):
        raise ValueError("mine")
    assert not simulator.loaded


def test_the_first_error_is_the_one_that_is_told(tpm, simulator):
    simulator.refuse[Command.FlushContext] = [0x101]
    with pytest.raises(ValueError, match="mine"), tpm.policy_session(Hash.SHA256):
        raise ValueError("mine")


def test_a_flush_that_fails_is_an_error(tpm, simulator):
    simulator.refuse[Command.FlushContext] = [0x101]
    with pytest.raises(AttestationError) as error, tpm.policy_session(Hash.SHA256):
        pass
    assert refused(error, "TPM2_FlushContext", "ST-ATTS-153")


def test_a_key_whose_load_is_answered_badly_is_flushed(tpm, simulator):
    simulator.alter[Command.Load] = lambda body: body + b"\0"
    with pytest.raises(AttestationError) as error, attestation_key(tpm):
        pass
    assert refused(error, "1 bytes follow")
    assert not simulator.loaded


def test_a_context_is_loaded_again_until_a_reset(tpm, simulator):
    with attestation_key(tpm) as (ak, public, *_):
        context = tpm.context_save(ak)
    with tpm.context_load(context) as ak:
        assert tpm.read_public(ak) == public
    assert not simulator.loaded
    simulator.reset()
    with pytest.raises(AttestationError) as error, tpm.context_load(context):
        pass
    assert refused(error, "TPM_RC_INTEGRITY", "ST-ATTS-153")


def test_a_context_that_is_answered_badly_is_flushed(tpm, simulator):
    with attestation_key(tpm) as (ak, *_):
        context = tpm.context_save(ak)
    simulator.alter[Command.ContextLoad] = lambda body: body + b"\0"
    with pytest.raises(AttestationError) as error, tpm.context_load(context):
        pass
    assert refused(error, "1 bytes follow")
    assert not simulator.loaded


def test_a_credential_is_activated(tpm):
    with attestation_key(tpm) as (ak, public, ek, parent):
        made = make_credential(ek, public.name, b"s" * 32, os.urandom)
        with tpm.policy_session(Hash.SHA256) as session:
            tpm.policy_secret(session, Handle.ENDORSEMENT)
            found = tpm.activate_credential(
                ak, parent, session, made.id_object, made.encrypted_secret
            )
    assert found == b"s" * 32


def test_a_quote_verifies(tpm, simulator):
    pcrs = tuple(range(11))
    with attestation_key(tpm) as (ak, public, ek, _):
        counter, values = tpm.pcr_read(Hash.SHA256, pcrs)
        quote, signature = tpm.quote(ak, EXTRA, (PcrSelection(Hash.SHA256, pcrs),))
        assert tpm.pcr_update_counter() == counter == simulator.counter
    verify_quote(
        *(quote, signature), ak=public, ek=ek, extra_data=EXTRA, pcrs=values, required=pcrs
    )


def test_registers_are_read_until_all_are_there(tpm, simulator):
    for pcr in range(24):
        tpm.pcr_extend(pcr, [(Hash.SHA256, bytes([pcr]) * 32)])
    counter, values = tpm.pcr_read(Hash.SHA256, range(24))
    assert values == simulator.pcrs
    assert counter == 7 + 24
    assert simulator.sent.count(Command.PCR_Read) == 3


def test_the_counter_is_that_of_the_first_read(tpm, simulator):
    simulator.after[Command.PCR_Read] = lambda: simulator.extend(16, bytes(32))
    counter, _ = tpm.pcr_read(Hash.SHA256, range(24))
    assert counter == 7
    assert simulator.counter == 10


def test_no_registers_are_none(tpm):
    assert tpm.pcr_read(Hash.SHA256, ()) == (0, {})


def test_a_bank_that_is_off(tpm):
    with pytest.raises(AttestationError) as error:
        tpm.pcr_read(Hash.SHA384, [3, 0])
    assert refused(error, "PCR 0 of the SHA384 bank is not there", "ST-ATTS-155")
    assert "SHA-256 bank" in error.value.fix


def pcr_response(selections, digests, *, tail=b""):
    body = number(7, 4) + encode_selections(selections) + number(len(digests), 4)
    return lambda _: body + b"".join(map(tpm2b, digests)) + tail


ONE, OTHER = PcrSelection(Hash.SHA256, (0, 1)), PcrSelection(Hash.SHA256, (0, 2))
DIGESTS = [bytes(32), bytes(32)]


@pytest.mark.forgery
@items(
    "id, alter, says",
    ("another-register", pcr_response([OTHER], DIGESTS), "not asked for"),
    ("another-bank", pcr_response([PcrSelection(Hash.SHA1, (0, 1))], DIGESTS), "not asked for"),
    ("a-value-too-few", pcr_response([ONE], DIGESTS[:1]), "not 2 digests"),
    ("a-value-too-many", pcr_response([ONE], [*DIGESTS, bytes(32)]), "not 2 digests"),
    ("a-value-too-long", pcr_response([ONE], [bytes(65), bytes(32)]), "a length of 65"),
    ("trailing", pcr_response([ONE], DIGESTS, tail=b"\0"), "1 bytes follow"),
    (
        "two-empty-selections",
        pcr_response([PcrSelection(Hash.SHA256, (), 0), PcrSelection(Hash.SHA256, (), 0)], []),
        "not asked for",
    ),
)
def test_registers_that_are_refused(tpm, simulator, alter, says):
    simulator.alter[Command.PCR_Read] = alter
    with pytest.raises(AttestationError) as error:
        tpm.pcr_read(Hash.SHA256, [0, 1])
    assert refused(error, says)


ENDLESS = {Command.Quote, Command.ContextSave, Command.CreatePrimary}
"""The last thing in their responses has no length of its own, or is not read."""


@pytest.mark.forgery
@pytest.mark.parametrize("command", sorted(set(Command) - ENDLESS), ids=lambda one: one.name)
def test_bytes_that_follow_a_response_are_refused(tpm, simulator, command):
    simulator.nv[INDEX] = b"12345"
    every_command(tpm)
    assert set(simulator.sent) == set(Command)
    simulator.alter[command] = lambda body: body + b"\0"
    with pytest.raises(AttestationError) as error:
        every_command(tpm)
    assert refused(error, "1 bytes follow")


def every_command(tpm):
    tpm.nv_read(INDEX)
    tpm.pcr_banks()
    tpm.pcr_extend(0, [(Hash.SHA256, bytes(32))])
    tpm.pcr_update_counter()
    with attestation_key(tpm) as (ak, public, ek, parent):
        made = make_credential(ek, public.name, b"s" * 32, os.urandom)
        with tpm.policy_session(Hash.SHA256) as session:
            tpm.policy_or(session, [b"a" * 32, b"b" * 32])
            tpm.activate_credential(ak, parent, session, made.id_object, made.encrypted_secret)
        tpm.quote(ak, EXTRA, ())
        context = tpm.context_save(ak)
    with tpm.context_load(context):
        pass
    tpm.shutdown()


def test_what_a_killed_client_left_is_flushed(monkeypatch, simulator):
    simulator.managed = False
    simulator.loaded = {SESSION: "session", 0x80000000: "key", 0x80000002: "key"}
    monkeypatch.setattr(client, "connect", lambda *_: simulator)
    with Tpm.open("unix:/x") as tpm:
        assert tpm.where == "simulator"
        assert not simulator.loaded
    assert simulator.closed == 1


def test_a_resource_manager_keeps_its_own_house(monkeypatch, simulator):
    monkeypatch.setattr(client, "connect", lambda *_: simulator)
    with Tpm.open("/dev/tpmrm0"):
        assert simulator.sent == []
    assert simulator.closed == 1


def test_a_tpm_that_fails_at_once_is_closed(monkeypatch, simulator):
    simulator.managed = False
    simulator.refuse[Command.GetCapability] = [0x101]
    monkeypatch.setattr(client, "connect", lambda *_: simulator)
    with pytest.raises(AttestationError) as error:
        Tpm.open("unix:/x")
    assert refused(error, "TPM_RC_FAILURE", "ST-ATTS-153")
    assert simulator.closed == 1
