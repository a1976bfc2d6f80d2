# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The parsers of trust roots, keys, chains and the transparency log, with valid inputs."""

from datetime import timedelta
from pathlib import Path
from typing import Final

from securetrain.core import canonical
from securetrain.identity import dsse, keyfile, pkcs11, register
from securetrain.identity.job_ca import JobCA
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.log import note, proof, tiles, witness
from securetrain.identity.log.checkpoint import LogPolicy, open_checkpoint, parse_text
from securetrain.identity.log.entry import entry_of
from securetrain.identity.log.store import Log
from securetrain.identity.revocation import sign_list, verify_list
from securetrain.identity.spiffe import Role, SpiffeId
from securetrain.identity.svid import Chain, check_chain
from securetrain.identity.token import Token, parse_token
from securetrain.identity.trust import (
    PAYLOAD_TYPE,
    Authority,
    Revoked,
    RoleKeys,
    TrustDocument,
    TrustRole,
    TrustRoot,
    key_table,
    sign_document,
    sign_root,
)
from securetrain.testing.clock import START
from tools.fuzz.engine import Parser

ROOT, WORKER, LOG, NODE = (PrivateKey.generate() for _ in range(4))
MEMBER: Final = PrivateKey.generate(KeyKind.P256)
_ORIGIN: Final = "log.example"
_KIND: Final = "application/example"


def identity(folder: Path) -> list[Parser]:
    """All of them.

    Args:
        folder: A directory for the log; it is made.
    """
    ca = JobCA.create("cluster.example", "job", START)
    trust = TrustRoot.parse(sign_document(_document(ca), [ROOT]), START)
    policy = LogPolicy.from_trust_root(trust)
    envelope = dsse.sign(b"payload", _KIND, [WORKER])
    log = _log(folder, policy, envelope)
    request, proven = witness.request_for(log, 2), log.prove(1)
    head = log.state()[1].encode()

    def text(data: bytes) -> str:
        return data.decode("utf-8", "replace")

    return [
        *_signed(),
        # Behind the signature, so that mutations reach the document.
        Parser(
            "trust-document",
            lambda: [canonical.encode(trust.document)],
            lambda data: TrustRoot.parse(dsse.sign(data, PAYLOAD_TYPE, [ROOT]), START),
        ),
        Parser("key-container", _containers, keyfile.parse),
        Parser("pkcs11-uri", _uris, lambda data: pkcs11.parse_uri(text(data))),
        Parser("log-note", lambda: [head], note.parse),
        Parser("log-text", lambda: [log.state()[1].text.encode()], lambda d: parse_text(text(d))),
        Parser("log-checkpoint", lambda: [head], lambda data: open_checkpoint(data, policy, START)),
        Parser("log-request", lambda: [request], witness.parse_request),
        Parser(
            "log-proof",
            lambda: [proven],
            lambda data: proof.verify_logged(envelope, data, trust.keys, policy, START),
        ),
        Parser("log-entry", lambda: [envelope], lambda data: entry_of(data, trust.keys)),
        Parser(
            "log-bundle",
            lambda: [tiles.pack_bundle([b"one", b"", b"x" * 300])],
            tiles.unpack_bundle,
        ),
        Parser("svid-chain", lambda: [_chain(ca)], lambda data: _check(data, trust)),
    ]


def _signed() -> list[Parser]:
    root, key, other = (PrivateKey.generate() for _ in range(3))
    trusted = {key.key_id: key.public, other.key_id: other.public}

    def envelopes() -> list[bytes]:
        return [dsse.sign(b'{"x":1}', dsse.IN_TOTO, keys) for keys in ([key], [key, other])]

    def roots() -> list[bytes]:
        roles = {TrustRole.CHECKPOINT: [key.public], TrustRole.LEDGER: [key.public, other.public]}
        return [sign_root(roles, root, START, START + timedelta(days=1))]

    def names() -> list[bytes]:
        node = SpiffeId("securetrain.local", "job-1", Role.NODE, "node-1")
        return [str(node).encode(), str(SpiffeId("a.b", "j", Role.COORDINATOR)).encode()]

    def lists() -> list[bytes]:
        revoked = register.Revoked(
            kind=register.Kind.NODE, name="node-0", reason="sold", since=START
        )
        return [sign_list("a.b", entries, key, START) for entries in ([], [revoked])]

    def tokens() -> list[bytes]:
        token = Token(
            host="10.0.0.1",
            port=1,
            ca="0" * 64,
            trust_domain="a.b",
            job="j",
            node="n",
            ends=START,
            secret=bytes(16),
        )
        return [token.text().encode()]

    return [
        Parser("revocations", lists, lambda data: verify_list(data, key.public, "a.b")),
        Parser(
            "enrolment-token", tokens, lambda data: parse_token(data.decode("utf-8", "replace"))
        ),
        Parser("dsse", envelopes, lambda data: dsse.verify(data, dsse.IN_TOTO, trusted)),
        Parser("trust-root", roots, lambda data: TrustRoot.parse(data, START)),
        Parser("spiffe", names, lambda data: SpiffeId.parse(data.decode("utf-8", "replace"))),
    ]


def _document(ca: JobCA) -> TrustDocument:
    revoked = Revoked(key_id=NODE.key_id, since=START, reason="lost", valid_before=3)
    return TrustDocument(
        version=3,
        created=START,
        expires=START + timedelta(days=9),
        keys=key_table([key.public for key in (ROOT, WORKER, LOG, NODE)]),
        roles={
            TrustRole.ROOT: RoleKeys([ROOT.key_id]),
            TrustRole.CHECKPOINT: RoleKeys([WORKER.key_id, NODE.key_id]),
            TrustRole.LOG: RoleKeys([LOG.key_id]),
            TrustRole.WITNESS: RoleKeys([WORKER.key_id]),
        },
        revoked=[revoked],
        log_origin=_ORIGIN,
        authorities=[
            Authority(
                role=TrustRole.CHECKPOINT,
                certificate=Chain.of([ca.certificate]).certificates[0],
                trust_domain=ca.trust_domain,
            )
        ],
    )


def _log(folder: Path, policy: LogPolicy, envelope: bytes) -> Log:
    """A log of four entries with one cosignature."""
    Log.create(folder, _ORIGIN, LOG)
    log = Log(folder, policy)
    log.append_entries([b"one"], LOG)
    log.append(envelope, {WORKER.key_id: WORKER.public}, LOG)
    log.append_entries([b"three", b"four"], LOG)
    text = log.state()[1].text
    log.add_cosignatures(text, [note.cosign(text, "node.example", WORKER, int(START.timestamp()))])
    return log


def _containers() -> list[bytes]:
    cheap = keyfile.Cost(memory_kib=19 << 10, passes=2, lanes=1)
    return [keyfile.seal(b"x" * size, b"secret", cheap) for size in (48, 138)]


def _uris() -> list[bytes]:
    return [
        b"pkcs11:token=release;object=root?module-path=/usr/lib/softhsm/libsofthsm2.so",
        b"pkcs11:serial=1a2b;id=%01%ff;type=private?module-path=/m.so&pin-source=file:/pin",
    ]


def _chain(ca: JobCA) -> bytes:
    leaf = ca.issue(
        Role.MEMBER, MEMBER.public, START, node="node-0", lifetime=timedelta(minutes=10)
    )
    return canonical.encode(Chain.of([leaf]))


def _check(data: bytes, trust: TrustRoot) -> object:
    chain = canonical.decode(data, Chain, limit=64 << 10)
    return check_chain(chain, trust, TrustRole.CHECKPOINT, START)
