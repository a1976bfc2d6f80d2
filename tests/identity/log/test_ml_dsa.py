# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Cosignatures with ML-DSA-44 (C2SP tlog-cosignature), and logs that sign with pairs of keys."""

import base64
import hashlib
import struct
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from securetrain.core.errors import IdentityError
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.log import note
from securetrain.identity.log.checkpoint import Checkpoint, LogPolicy, open_checkpoint, sign
from securetrain.identity.trust import Signatures, TrustRole, TrustRoot, sign_document, sign_root
from tests.tables import forgeries
from tests.vocabulary import refused

NOW = datetime(2026, 11, 1, tzinfo=UTC)
TIME = int(NOW.timestamp()) - 60
ROOT = hashlib.sha256(b"root").digest()
HEAD = Checkpoint("log.example/team", 1207, ROOT)
WITNESS = PrivateKey.generate(KeyKind.ML_DSA_44)
LOG = PrivateKey.generate_pair(KeyKind.ML_DSA_44)


def policy(*, both=False, log=LOG, witness=WITNESS, quorum=1):
    return LogPolicy(
        origin=HEAD.origin,
        keys={log.key_id: log.public},
        both=both,
        witnesses={witness.key_id: witness.public},
        quorum=quorum,
    )


def cosigned(name="w.example/1", key=WITNESS, time=TIME, head=HEAD):
    return sign(head, LOG).with_lines((note.cosign(head.text, name, key, time),))


def test_the_message_is_the_specifications():
    """Written out by hand, from the structure in the text of the specification."""
    line = note.cosign(HEAD.text, "w.example/1", WITNESS, TIME)
    assert struct.unpack(">Q", line.signature[:8]) == (TIME,)
    assert len(line.signature) == 8 + 2420
    message = b"subtree/v1\n\x00"
    message += b"\x0bw.example/1" + struct.pack(">Q", TIME)
    message += b"\x10log.example/team" + struct.pack(">QQ", 0, 1207) + ROOT
    WITNESS.public.verify(line.signature[8:], message)
    raw = WITNESS.public.native.public_bytes_raw()  # type: ignore[union-attr]
    assert len(raw) == 1312
    assert line.id == hashlib.sha256(b"w.example/1\n\x06" + raw).digest()[:4]
    tail = base64.b64encode(b"\x06" + raw).decode()
    assert note.vkey("w.example/1", WITNESS.public, cosigner=True) == (
        f"w.example/1+{line.id.hex()}+{tail}"
    )


def test_a_witness_of_this_kind_makes_a_quorum():
    found = open_checkpoint(cosigned().encode(), policy(), NOW)
    assert found.cosigned == {WITNESS.key_id: datetime.fromtimestamp(TIME, UTC)}
    refused(IdentityError, "ST-IDEN-044", open_checkpoint, sign(HEAD, LOG).encode(), policy(), NOW)


@forgeries("what", "name", "size", "root", "time", "origin", "length")
def test_what_the_cosignature_covers(what):
    """Other than Ed25519's, it covers the witness's own name."""
    line = note.cosign(HEAD.text, "w.example/1", WITNESS, TIME)
    head = HEAD
    match what:
        case "name":
            other = note.cosigner_id("w.example/2", WITNESS.public)
            line = note.Line("w.example/2", other, line.signature)
        case "size":
            head = Checkpoint(HEAD.origin, 1208, ROOT)
        case "root":
            head = Checkpoint(HEAD.origin, HEAD.size, hashlib.sha256(b"another").digest())
        case "time":
            line = note.Line(line.name, line.id, struct.pack(">Q", TIME + 1) + line.signature[8:])
        case "origin":
            head = Checkpoint("log.example/other", HEAD.size, ROOT)
        case "length":
            line = note.Line(line.name, line.id, line.signature + b"\x00")
    signed = note.Note(head.text, (line,))
    refused(IdentityError, "ST-IDEN-040", note.cosigned_by, signed, WITNESS.public)


@pytest.mark.forgery
def test_a_log_of_a_pair_has_two_lines_and_may_be_asked_for_both():
    whole = cosigned()
    assert len(whole.lines) == 3
    open_checkpoint(whole.encode(), policy(both=True), NOW)
    lone = note.Note(whole.text, (whole.lines[0], whole.lines[2]))
    open_checkpoint(lone.encode(), policy(), NOW)
    refused(IdentityError, "ST-IDEN-024", open_checkpoint, lone.encode(), policy(both=True), NOW)
    only = note.Note(whole.text, whole.lines[1:])
    for both in (False, True):
        refused(
            IdentityError, "ST-IDEN-040", open_checkpoint, only.encode(), policy(both=both), NOW
        )
    bad = bytearray(whole.lines[1].signature)
    bad[100] ^= 1
    line = note.Line(whole.lines[1].name, whole.lines[1].id, bytes(bad))
    bent = note.Note(whole.text, (whole.lines[0], line, whole.lines[2]))
    refused(IdentityError, "ST-IDEN-040", open_checkpoint, bent.encode(), policy(), NOW)


@pytest.mark.forgery
def test_the_logs_own_line_is_no_witnesses():
    """Of time 0, it says nothing about other trees; nor does the log witness itself."""
    companion = LOG.companion
    assert companion is not None
    own = policy(witness=companion)
    refused(IdentityError, "ST-IDEN-040", open_checkpoint, sign(HEAD, LOG).encode(), own, NOW)


def test_the_trust_root_says_so():
    assert LOG.companion is not None
    day = timedelta(days=1)
    roles = {TrustRole.LOG: [LOG.public], TrustRole.WITNESS: [WITNESS.public]}
    key = PrivateKey.generate()
    document = TrustRoot.parse(sign_root(roles, key, NOW - day, NOW + day), NOW).document
    entry = msgspec.structs.replace(document.roles[TrustRole.LOG], signatures=Signatures.BOTH)
    document = msgspec.structs.replace(
        document, log_origin=HEAD.origin, roles=document.roles | {TrustRole.LOG: entry}
    )
    found = LogPolicy.from_trust_root(TrustRoot.parse(sign_document(document, [key]), NOW))
    assert found.both
    open_checkpoint(cosigned().encode(), found, NOW)
    own = msgspec.structs.replace(entry, keys=[LOG.companion.key_id], signatures="classical")
    for bad in (
        {TrustRole.CHECKPOINT: document.roles[TrustRole.WITNESS]},
        {TrustRole.WITNESS: own},  # the log would be its own witness
    ):
        changed = msgspec.structs.replace(document, roles=document.roles | bad)
        refused(IdentityError, "ST-IDEN-008", TrustRoot.parse, sign_document(changed, [key]), NOW)


def test_keys_of_other_kinds_sign_no_lines():
    p256 = PrivateKey.generate(KeyKind.P256)
    for key in (p256, PrivateKey.generate(KeyKind.ML_DSA_65)):
        refused(IdentityError, "ST-IDEN-040", note.cosign, HEAD.text, "w.example", key, TIME)
    for key in (p256, WITNESS):
        refused(IdentityError, "ST-IDEN-040", note.sign, HEAD.text, "w.example", key)
    refused(IdentityError, "ST-IDEN-040", note.cosign, "no checkpoint\n", "w", WITNESS, TIME)
