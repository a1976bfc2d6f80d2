# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""TLS in memory: two connections, no sockets. The attacks over sockets are in test_attacks."""

from datetime import UTC, datetime, timedelta

from OpenSSL import SSL

from securetrain.core.errors import AdmissionError, IdentityError
from securetrain.identity.job_ca import JobCA
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.spiffe import Role
from securetrain.rendezvous.wire.tls import (
    PeerCheck,
    TlsIdentity,
    exporter,
    failed,
    finish,
    make_connection,
    make_context,
    reason_of,
)
from tests.tables import each
from tests.vocabulary import refused

NOW = datetime.now(UTC)
CA = JobCA.create("securetrain.local", "job-1", NOW)


def identity(role, ca=CA, node="node-0", now=NOW):
    key = PrivateKey.generate(KeyKind.P256)
    name = node if role is Role.NODE else ""
    leaf = ca.issue(role, key.public, now, node=name, lifetime=timedelta(hours=1))
    return TlsIdentity(key=key, certificate=leaf, ca=CA.certificate)


NODE, COORDINATOR = identity(Role.NODE), identity(Role.COORDINATOR)


def check(role, now=NOW, **changes):
    fields = {"trust_domain": "securetrain.local", "job": "job-1", **changes}
    return PeerCheck(ca=CA.certificate, role=role, clock=lambda: now, **fields)


def sides(client=NODE, server=COORDINATOR, *, client_check=None, server_check=None, contexts=()):
    contexts = contexts or (make_context(client, server=False), make_context(server, server=True))
    return (
        make_connection(contexts[0], client_check or check(Role.COORDINATOR), server=False),
        make_connection(contexts[1], server_check or check(Role.NODE), server=True),
    )


def shake(client, server):
    """Pump a handshake; returns what each side raised, None for a side that finished."""
    outcome: dict[SSL.Connection, SSL.Error | None] = {}
    for _ in range(10):
        for one, other in ((client, server), (server, client)):
            if one not in outcome:
                try:
                    one.do_handshake()
                    outcome[one] = None
                except SSL.WantReadError:
                    pass
                except SSL.Error as error:
                    outcome[one] = error
            try:
                while True:
                    other.bio_write(one.bio_read(65536))
            except SSL.WantReadError:
                pass
    return outcome.get(client), outcome.get(server)


def refused_by_server(code, client, server):
    _, error = shake(client, server)
    assert error is not None, "TLS itself fails, so that the peer hears an alert"
    refusal = failed(server, error)
    assert refusal.code == code, refusal
    refused(AdmissionError, code, finish, server)
    return refusal


def test_both_sides_know_each_other_and_share_an_exporter():
    client, server = sides()
    assert shake(client, server) == (None, None)
    assert str(finish(client)).endswith("/coordinator")
    assert str(finish(server)).endswith("/node/node-0")
    assert exporter(client, b"s" * 16) == exporter(server, b"s" * 16)
    assert exporter(client, b"s" * 16) != exporter(client, b"t" * 16)


def test_the_exporter_is_of_one_connection():
    one, two = sides(), sides()
    shake(*one)
    shake(*two)
    assert exporter(one[0], b"s" * 16) != exporter(two[0], b"s" * 16)


@each(
    "name, client, code",
    ("coordinator as node", identity(Role.COORDINATOR), "ST-ADMN-003"),
    (
        "other CA",
        identity(Role.NODE, JobCA.create("securetrain.local", "job-1", NOW)),
        "ST-ADMN-002",
    ),
    (
        "other job",
        identity(Role.NODE, JobCA(CA.key, CA.certificate, "securetrain.local", "job-2")),
        "ST-ADMN-004",
    ),
    (
        "other trust domain",
        identity(Role.NODE, JobCA(CA.key, CA.certificate, "other.local", "job-1")),
        "ST-ADMN-004",
    ),
    ("expired", identity(Role.NODE, now=NOW - timedelta(days=2)), "ST-ADMN-002"),
)
def test_certificates_that_the_server_refuses(name, client, code):
    refused_by_server(code, *sides(client=client))


def test_the_server_does_not_ask_what_openssl_thinks_of_the_time_only():
    """The clock that is handed in counts too: here it says that everything has expired."""
    later = NOW + timedelta(days=30)
    refusal = refused_by_server("ST-ADMN-002", *sides(server_check=check(Role.NODE, later)))
    assert "job CA's certificate is not valid now" in refusal.what
    refused_by_server(
        "ST-ADMN-002", *sides(server_check=check(Role.NODE, NOW + timedelta(hours=2)))
    )
    early = check(Role.NODE, NOW - timedelta(days=9))
    refusal = refused_by_server("ST-ADMN-002", *sides(server_check=early))
    assert "job CA's certificate is not valid now" in refusal.what


def test_what_openssl_refuses_is_never_overruled():
    """By the clock that is handed in all is well; by the machine's, the leaf has expired."""
    then = NOW - timedelta(days=2)
    old = JobCA.create("securetrain.local", "job-1", NOW - timedelta(days=3))
    key = PrivateKey.generate(KeyKind.P256)
    leaf = old.issue(Role.NODE, key.public, then, node="node-0", lifetime=timedelta(hours=1))
    client = TlsIdentity(key=key, certificate=leaf, ca=old.certificate)
    server = TlsIdentity(
        key=COORDINATOR.key, certificate=COORDINATOR.certificate, ca=old.certificate
    )
    verdict = PeerCheck(
        ca=old.certificate,
        role=Role.NODE,
        trust_domain="securetrain.local",
        job="job-1",
        clock=lambda: then,
    )
    contexts = (careless(False), make_context(server, server=True))
    contexts[0].use_certificate(client.certificate)
    contexts[0].use_privatekey(client.key.native)
    refusal = refused_by_server("ST-ADMN-002", *sides(contexts=contexts, server_check=verdict))
    assert "OpenSSL refused the chain" in refusal.what


def test_a_node_that_plays_the_server():
    client, server = sides(server=identity(Role.NODE, node="node-9"))
    error, _ = shake(client, server)
    assert error is not None
    assert failed(client, error).code == "ST-ADMN-003"


def careless(server, *, certificate: bool = True, alpn: bool = True, version: int = 0):
    """A context that asks its peer for nothing."""
    context = SSL.Context(SSL.TLS_SERVER_METHOD if server else SSL.TLS_CLIENT_METHOD)
    identity = COORDINATOR if server else NODE
    if certificate:
        context.use_certificate(identity.certificate)
        context.use_privatekey(identity.key.native)
    if alpn and not server:
        context.set_alpn_protos([b"securetrain-rdzv/6"])
    if alpn and server:
        context.set_alpn_select_callback(lambda conn, offered: offered[0])
    if version:
        context.set_min_proto_version(version)
        context.set_max_proto_version(version)
    return context


def test_a_client_without_a_certificate():
    contexts = (careless(False, certificate=False), make_context(COORDINATOR, server=True))
    client, server = sides(contexts=contexts)
    _, error = shake(client, server)
    assert error is not None
    assert "peer did not return a certificate" in reason_of(error)
    refused(AdmissionError, "no certificate", finish, server)


def test_a_handshake_in_which_nobody_was_judged_is_not_finished():
    """Were the context ever to stop asking, this would still refuse."""
    client, server = sides(contexts=(careless(False), careless(True)))
    assert shake(client, server) == (None, None)
    for side in (client, server):
        refused(AdmissionError, "no certificate", finish, side)


def test_an_older_tls():
    contexts = (careless(False, version=SSL.TLS1_2_VERSION), make_context(COORDINATOR, server=True))
    client, server = sides(contexts=contexts)
    _, error = shake(client, server)
    assert error is not None
    assert failed(server, error).code == "ST-ADMN-002"


def test_an_older_tls_by_a_server_that_would_take_it():
    contexts = tuple(careless(s, version=SSL.TLS1_2_VERSION) for s in (False, True))
    client, server = sides(contexts=contexts)
    assert shake(client, server) == (None, None)
    client.get_app_data().judge(client.get_peer_certificate())
    refused(AdmissionError, r"TLSv1\.2 was negotiated", finish, client)


def test_another_protocol():
    contexts = (careless(False, alpn=False), make_context(COORDINATOR, server=True))
    client, server = sides(contexts=contexts)
    assert shake(client, server) == (None, None)
    refused(AdmissionError, "does not speak securetrain-rdzv/6", finish, server)


def test_a_key_that_is_not_the_certificates():
    mixed = TlsIdentity(key=COORDINATOR.key, certificate=NODE.certificate, ca=CA.certificate)
    refused(IdentityError, "ST-IDEN-005", make_context, mixed, server=True)


@each(
    "error, text",
    (SSL.Error(), "Error"),
    (SSL.Error("plain"), "plain"),
    (
        SSL.Error([("SSL", "f", "wrong version"), ("SSL", "g", "wrong version")]),
        "wrong version",
    ),
    (SSL.SysCallError(-1, "Unexpected EOF"), "(-1, 'Unexpected EOF')"),
)
def test_every_tls_error_has_a_text(error, text):
    assert reason_of(error) == text


def test_a_certificate_that_cannot_be_read_is_refused_and_raises_nothing():
    class Unreadable:
        def to_cryptography(self):
            raise ValueError("bad DER")

    verdict = check(Role.NODE)
    assert verdict.judge(Unreadable()) is False
    assert verdict.error is not None
    assert verdict.error.code == "ST-ADMN-002"
