# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Enrollment with one-time tokens, and everything that somebody without one may try."""

import base64
import dataclasses
import json
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
)
from OpenSSL import SSL

from securetrain.core.errors import AdmissionError, IdentityError, SecureTrainError, UsageError
from securetrain.drills.crowd import held_by_a_crowd
from securetrain.drills.enrollment_crowd import SOURCES, from_own_addresses
from securetrain.identity.cluster_ca import ClusterCA
from securetrain.identity.job_ca import JobCA, certificate_pem
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.register import How, Kind
from securetrain.identity.spiffe import Role, SpiffeId
from securetrain.identity.token import Token
from securetrain.rendezvous.coordinator.enrollment_server import (
    EnrollmentServer,
    enrollment_context,
    make_token,
)
from securetrain.rendezvous.coordinator.journal import Journal
from securetrain.rendezvous.member import enrollee as enroll_module
from securetrain.rendezvous.member.enrollee import enroll
from securetrain.rendezvous.member.identity_dir import load_identity
from securetrain.rendezvous.wire.channel import Anonymous, Channel
from securetrain.rendezvous.wire.enrollment import (
    ENROLLMENT,
    EXPORTER_LABEL,
    EXPORTER_SIZE,
    MAX_TRIES,
    REPORT_LIMIT,
    AnyEnrollment,
    Apply,
    Filed,
    Grant,
    Report,
    decode_enrollment,
    encode_enrollment,
    new_key,
    statement,
)
from securetrain.rendezvous.wire.protocol import DOCUMENT_LIMIT, Refuse, encode_frame
from securetrain.rendezvous.wire.protocol import Ready as RendezvousReady
from securetrain.rendezvous.wire.tls import (
    TlsIdentity,
    make_connection,
    plain_context,
    set_protocol,
)
from tests import vocabulary
from tests.rendezvous.worlds import serve_once
from tests.tables import items


class Office:
    """A cluster CA with an enrollment server for one job."""

    def __init__(self, job, tools, root: Path) -> None:
        self.job, self.tools, self.root = job, tools, root
        self.skew = timedelta()
        self.cluster = ClusterCA.create(root / "ca", "securetrain.local", tools.now())
        self.ca = self.cluster.job(job.name, tools.now(), self.cluster.key)
        self.channels: list[Channel] = []
        self.server = EnrollmentServer(
            self.cluster,
            self.ca,
            Journal(job.ledger),
            lifetime=timedelta(hours=1),
            timeout=20,
            clock=self.now,
            inventory=root / "inventory",
        )
        self.address = self.server.start("127.0.0.1", 0)

    def now(self):
        return self.tools.now() + self.skew

    def token(self, node="node-0", minutes=15) -> Token:
        ends = self.now() + timedelta(minutes=minutes)
        return make_token(self.cluster, self.ca, node, self.address, ends)

    def enroll(self, token, name="id", **settings):
        return enroll(token, self.root / name, clock=self.tools.now, **settings)

    def connect(self, protocol: str = ENROLLMENT) -> Channel:
        """A raw connection that checks nothing."""
        context = plain_context(server=False)
        set_protocol(context, protocol.encode(), server=False)
        sock = socket.create_connection(self.address, 30)
        channel = Channel(sock, make_connection(context, Anonymous(), server=False))
        self.channels.append(channel)
        channel.shake_hands(self.tools.soon())
        return channel

    def application(self, channel, token, key=None, **changes) -> Apply:
        """As an honest machine makes it, with `changes`."""
        key = key or PrivateKey.generate(KeyKind.P256)
        exporter = channel.connection.export_keying_material(EXPORTER_LABEL, EXPORTER_SIZE, b"")
        signed = statement(token.spiffe, key.public.spki, exporter)
        fields = {
            "protocol": ENROLLMENT,
            "token": token.key.key_id,
            "key": key.public.spki,
            "proof": token.key.sign(signed),
            "possession": key.sign(signed),
        }
        return Apply(**{**fields, **changes})

    def ask(self, channel, message: AnyEnrollment | bytes) -> AnyEnrollment:
        data = message if isinstance(message, bytes) else encode_enrollment(message)
        channel.send_frame(data, self.tools.soon())
        body = channel.receive_frame(self.tools.soon(), limit=DOCUMENT_LIMIT)
        assert body is not None
        return decode_enrollment(body)

    def refused(self, channel, message, code) -> Refuse:
        answer = self.ask(channel, message)
        assert isinstance(answer, Refuse), answer
        assert answer.code == code
        assert self.cluster.register.issued() == [], "nothing was issued"
        return answer


@pytest.fixture
def office(job, tools, tmp_path) -> Iterator[Office]:
    made = Office(job, tools, tmp_path)
    yield made
    for channel in made.channels:
        channel._socket.close()
    made.server.stop()
    assert made.server.problem is None
    made.cluster.close()


def test_a_token_becomes_an_identity(office, job, tools):
    identity = office.enroll(office.token())
    assert str(identity.spiffe) == "spiffe://securetrain.local/job/job-1/node/node-0"
    assert load_identity(office.root / "id", tools.now()).key.key_id == identity.key.key_id
    assert identity.ca == office.ca.certificate
    (issued,) = office.cluster.register.issued()
    assert (issued.how, issued.key_id) == (How.ENROLLMENT, identity.key.key_id)
    assert job.events()[0].event == "enrolment-opened"
    assert job.events()[-1].event == "node-enrolled"
    assert job.events()[-1].details["serial"] == issued.serial


def test_the_identity_joins_the_job(office, job):
    """The certificate of a job CA that a cluster CA certified, over the whole join."""
    job.ca = office.ca
    job.start()
    member = job.make_member(identity=office.enroll(office.token()))
    member.connect(job.host, job.port)
    assert member.connected


def test_an_honest_raw_application_is_granted(office):
    """The positive control of the forgeries below."""
    channel, token = office.connect(), office.token()
    assert isinstance(office.ask(channel, office.application(channel, token)), Grant)


def test_neither_the_secret_nor_the_private_key_travels(office, monkeypatch):
    sent = []
    send = Channel.send_frame

    def listen(self, frame, deadline):
        sent.append(frame)
        send(self, frame, deadline)

    monkeypatch.setattr(Channel, "send_frame", listen)
    token = office.token()
    identity = office.enroll(token)
    traffic = b"".join(sent)
    scalar = identity.key.native.private_numbers().private_value.to_bytes(32, "big")
    for secret in (token.secret, scalar):
        for spelling in (secret, base64.b64encode(secret), secret.hex().encode()):
            assert spelling not in traffic


# Who holds no token, or not any more.


def test_a_token_is_good_once(office, job):
    token = office.token()
    office.enroll(token)
    vocabulary.refused(AdmissionError, "ST-ADMN-016", office.enroll, token, "second")
    assert not (office.root / "second/node.pem").exists()
    job.expect("ST-ADMN-016")
    assert len(office.cluster.register.issued()) == 1


def test_many_at_once_get_one_certificate(office):
    token = office.token()
    found: list[str] = []

    def try_it(n):
        try:
            office.enroll(token, f"id-{n}")
            found.append("enrolled")
        except AdmissionError as error:
            found.append(error.code)

    threads = [threading.Thread(target=try_it, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == ["ST-ADMN-016"] * 7 + ["enrolled"]
    assert len(office.cluster.register.issued()) == 1


@pytest.mark.parametrize("name", ["id", "some/where/id", "there/id"])
def test_who_is_refused_is_left_nothing(office, tmp_path, name):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine").touch()
    token = office.token()
    office.enroll(token, "first")
    before = sorted(office.root.rglob("*"))
    with pytest.raises(AdmissionError):
        office.enroll(token, name)
    assert sorted(office.root.rglob("*")) == before


def test_what_could_not_be_written_whole_is_not_left(office, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("securetrain.rendezvous.member.identity_dir.write_atomic", full)
    vocabulary.refused(OSError, "No space", office.enroll, office.token())
    assert not (office.root / "id").exists()


def test_a_folder_with_something_else_in_it_stays(office):
    token, folder = office.token(), office.root / "id"
    office.enroll(token, "first")
    folder.mkdir()
    (folder / "mine").touch()
    with pytest.raises(AdmissionError):
        office.enroll(token)
    assert [path.name for path in folder.iterdir()] == ["mine"]


def test_a_token_that_has_ended(office, job):
    token = office.token(minutes=2)
    office.skew = timedelta(minutes=3)  # the server's clock; the machine's is behind
    vocabulary.refused(AdmissionError, "ST-ADMN-015", office.enroll, token)
    job.expect("ST-ADMN-015")


def test_a_machine_does_not_even_try_a_token_that_has_ended(office):
    vocabulary.refused(AdmissionError, "ST-ADMN-015", office.enroll, office.token(minutes=-1))


def test_a_token_of_a_node_that_was_revoked_meanwhile(office, tools):
    token = office.token()
    office.cluster.revoke(Kind.NODE, "node-0", "lost", tools.now(), office.cluster.key())
    vocabulary.refused(IdentityError, "ST-IDEN-011", office.enroll, token)
    vocabulary.refused(IdentityError, "ST-IDEN-011", office.token)


def test_a_token_that_nobody_made(office):
    channel = office.connect()
    invented = msgspec.structs.replace(office.token(), secret=bytes(16))
    office.refused(channel, office.application(channel, invented), "ST-ADMN-014")


def test_a_token_of_another_job_in_the_same_register(office, tools):
    other = office.cluster.job("job-2", tools.now(), office.cluster.key)
    ends = tools.now() + timedelta(minutes=5)
    token = make_token(office.cluster, other, "node-0", office.address, ends)
    mine = msgspec.structs.replace(token, job="job-1")
    for said in (token, mine):
        channel = office.connect()
        office.refused(channel, office.application(channel, said), "ST-ADMN-014")


def forgeries(office, channel, token):
    """Applications with one thing wrong."""
    key, other = PrivateKey.generate(KeyKind.P256), PrivateKey.generate(KeyKind.P256)
    good = office.application(channel, token, key)
    exporter = channel.connection.export_keying_material(EXPORTER_LABEL, EXPORTER_SIZE, b"")
    signed = statement(token.spiffe, key.public.spki, exporter)
    elsewhere = statement(token.spiffe, key.public.spki, bytes(EXPORTER_SIZE))
    node = msgspec.structs.replace(token, node="node-1")
    renamed = statement(node.spiffe, key.public.spki, exporter)
    replace = msgspec.structs.replace
    return {
        "proof by another key": replace(good, proof=PrivateKey.generate().sign(signed)),
        "proof of another connection": replace(
            good, proof=token.key.sign(elsewhere), possession=key.sign(elsewhere)
        ),
        "proof for another node": replace(
            good, proof=token.key.sign(renamed), possession=key.sign(renamed)
        ),
        "proof with a flipped bit": replace(
            good, proof=bytes([good.proof[0] ^ 1]) + good.proof[1:]
        ),
        "another key than the signed one": replace(good, key=other.public.spki),
        "possession by another key": replace(good, possession=other.sign(signed)),
        "no possession": replace(good, possession=bytes(70)),
        "an Ed25519 key": replace(good, key=PrivateKey.generate().public.spki),
        "no key": replace(good, key=bytes(91)),
        "a key with trailing bytes": replace(good, key=good.key + b"\x00"),
    }


@items(
    "name",
    "proof by another key",
    "proof of another connection",
    "proof for another node",
    "proof with a flipped bit",
    "another key than the signed one",
    "possession by another key",
    "no possession",
    "an Ed25519 key",
    "no key",
    "a key with trailing bytes",
)
def test_a_forged_application(office, job, name):
    channel, token = office.connect(), office.token()
    answer = office.refused(channel, forgeries(office, channel, token)[name], "ST-ADMN-014")
    assert answer.what == "the token is not accepted", "a stranger learns nothing"
    assert office.cluster.register.invitation(token.key.key_id).tries == 1
    job.expect("ST-ADMN-014", "connection-refused")


def test_a_token_is_burned_by_wrong_proofs(office):
    token = office.token()
    for _ in range(MAX_TRIES):
        channel = office.connect()
        bad = office.application(channel, token, proof=bytes(64))
        office.refused(channel, bad, "ST-ADMN-014")
    channel = office.connect()
    office.refused(channel, office.application(channel, token), "ST-ADMN-017")


def test_a_recorded_application_is_good_for_its_connection_only(office):
    token = office.token()
    first, second = office.connect(), office.connect()
    recorded = office.application(first, token)
    office.refused(second, recorded, "ST-ADMN-014")


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


@items(
    "id, data",
    ("not json", frame(b"not json")),
    ("pickle", frame(b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00.")),
    ("oversize", (65537).to_bytes(4, "big")),
    ("empty", bytes(4)),
    ("a message of the rendezvous", encode_frame(RendezvousReady(floors=()))),
    ("a report before a grant", encode_enrollment(Report(body=b"{}"))),
    ("the server's own message", encode_enrollment(Filed(digest="0" * 64))),
)
def test_bad_frames(office, job, data):
    office.refused(office.connect(), data, "ST-ADMN-001")
    job.expect("ST-ADMN-001", "connection-refused")


def test_another_version_of_the_protocol(office):
    channel, token = office.connect(), office.token()
    bad = office.application(channel, token, protocol="securetrain-enrol/0")
    office.refused(channel, bad, "ST-ADMN-001")


def test_the_rendezvous_protocol_is_not_spoken_here(office, job, tools):
    channel = office.connect("securetrain-rdzv/6")
    with pytest.raises(SecureTrainError):
        channel.receive_frame(tools.soon(), limit=100)
    assert ENROLLMENT in job.expect("ST-ADMN-002").details["what"]


def test_tls_1_2(office, job):
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_max_proto_version(SSL.TLS1_2_VERSION)
    connection = make_connection(context, Anonymous(), server=False)
    channel = Channel(socket.create_connection(office.address, 30), connection)
    office.channels.append(channel)
    vocabulary.refused(AdmissionError, "ST-ADMN-002", channel.shake_hands, office.tools.soon())
    job.expect("ST-ADMN-002")


def test_a_machine_that_says_nothing_times_out(office, job):
    office.server.timeout = 0.2
    with socket.create_connection(office.address, 30) as sock:
        assert sock.recv(1) == b""
    job.expect("ST-ADMN-005", "connection-refused")


def test_the_ledger_knows_before_the_machine(office, job):
    """The ledger cannot be written: there is no certificate."""
    job.ledger.path.unlink()
    job.ledger.path.mkdir()
    vocabulary.refused(AdmissionError, "ST-ADMN-012: ST-USAG-002", office.enroll, office.token())
    office.tools.wait_until(lambda: office.server.problem, "the problem is kept")
    office.server.problem = None
    job.ledger.path.rmdir()


# A server that is none.


def impostor(office, certificate, key, ca):
    """Answers as a server with this certificate; returns its address."""
    heard: list[bytes | None] = []

    def answer(sock):
        context = enrollment_context(TlsIdentity(key=key, certificate=certificate, ca=ca))
        return Channel(sock, make_connection(context, Anonymous(), server=True))

    def hear(channel):
        channel.shake_hands(office.tools.soon())
        heard.append(channel.receive_frame(office.tools.soon(), limit=1 << 16))

    return *serve_once(answer, hear), heard


def leaf_of(ca, role, now, node=""):
    key = PrivateKey.generate(KeyKind.P256)
    return ca.issue(role, key.public, now, node=node, lifetime=timedelta(hours=1)), key


def impostors(office):
    now = office.tools.now()
    other = JobCA.create("securetrain.local", "job-1", now)
    second = office.cluster.job("job-2", now, office.cluster.key)
    mine = office.ca.certificate
    late = now - timedelta(hours=3)
    return {
        "another CA": (*leaf_of(other, Role.COORDINATOR, now), other.certificate),
        "another CA that shows ours": (*leaf_of(other, Role.COORDINATOR, now), mine),
        "another job of the cluster": (
            *leaf_of(second, Role.COORDINATOR, now),
            second.certificate,
        ),
        "another job by the same CA": (
            *leaf_of(dataclasses.replace(office.ca, job="job-2"), Role.COORDINATOR, now),
            mine,
        ),
        "a node of the job": (*leaf_of(office.ca, Role.NODE, now, "node-7"), mine),
        "a member of the job": (*leaf_of(office.ca, Role.MEMBER, now, "node-7"), mine),
        "an expired server": (*leaf_of(office.ca, Role.COORDINATOR, late), mine),
    }


def test_an_impostor_with_a_good_certificate_would_be_heard(office):
    """The positive control of the next test: only the certificate makes the difference."""
    leaf, key = leaf_of(office.ca, Role.COORDINATOR, office.tools.now())
    address, thread, heard = impostor(office, leaf, key, office.ca.certificate)
    token = msgspec.structs.replace(office.token(), host=address[0], port=address[1])
    with pytest.raises(SecureTrainError):
        office.enroll(token)
    thread.join()
    assert isinstance(decode_enrollment(heard[0] or b""), Apply)


@items(
    "who, why",
    ("another CA", "does not show the job CA whose fingerprint"),
    ("another CA that shows ours", "not issued by the job CA"),
    ("another job of the cluster", "does not show the job CA whose fingerprint"),
    ("another job by the same CA", "not of the token's job"),
    ("a node of the job", "not a certificate for the role"),
    ("a member of the job", "not a certificate for the role"),
    ("an expired server", "valid from"),
)
def test_a_server_that_is_not_the_tokens(office, who, why):
    address, thread, heard = impostor(office, *impostors(office)[who])
    token = msgspec.structs.replace(office.token(), host=address[0], port=address[1])
    with pytest.raises(AdmissionError) as caught:
        office.enroll(token)
    thread.join()
    assert caught.value.code == "ST-ADMN-002"
    assert why in caught.value.what
    assert heard == [], "the machine said nothing"
    assert not (office.root / "id/node.pem").exists()
    office.enroll(msgspec.structs.replace(token, host=office.address[0], port=office.address[1]))


def test_openssl_judges_the_chain_as_well(office, monkeypatch):
    """Were there a hole in our own check, there would not be one in both."""
    monkeypatch.setattr(enroll_module, "check_leaf", lambda leaf, *_: SpiffeId.of_certificate(leaf))
    address, thread, heard = impostor(office, *impostors(office)["another CA that shows ours"])
    token = msgspec.structs.replace(office.token(), host=address[0], port=address[1])
    error = vocabulary.refused(AdmissionError, "OpenSSL refused the chain", office.enroll, token)
    thread.join()
    assert (error.code, heard) == ("ST-ADMN-002", [])


def grants(office):
    """Certificates that are not what was asked for."""
    now = office.tools.now()
    other = JobCA.create("securetrain.local", "job-1", now)
    return {
        "another key": lambda key: leaf_of(office.ca, Role.NODE, now, "node-0")[0],
        "another node": lambda key: office.ca.issue(
            Role.NODE, key, now, node="node-1", lifetime=timedelta(hours=1)
        ),
        "another role": lambda key: office.ca.issue(
            Role.COORDINATOR, key, now, lifetime=timedelta(hours=1)
        ),
        "another CA": lambda key: other.issue(
            Role.NODE, key, now, node="node-0", lifetime=timedelta(hours=1)
        ),
    }


@pytest.mark.parametrize("what", ["another key", "another node", "another role", "another CA"])
def test_a_certificate_that_was_not_asked_for(office, what, monkeypatch):
    make = grants(office)[what]

    def grant(self, invitation, key, remote):
        return Grant(certificate=certificate_pem(make(key)).decode())

    monkeypatch.setattr(EnrollmentServer, "grant", grant)
    vocabulary.refused(IdentityError, "ST-IDEN-005", office.enroll, office.token())
    assert not (office.root / "id/node.pem").exists()


@pytest.mark.parametrize(("asked", "wanted"), [("grant", "Grant"), ("file", "Filed")])
def test_a_server_that_answers_something_else(office, monkeypatch, asked, wanted):
    other = {"grant": Filed(digest="d" * 64), "file": Grant(certificate="")}[asked]
    monkeypatch.setattr(EnrollmentServer, asked, lambda *_: other)
    with pytest.raises(AdmissionError, match=f"where {wanted} was expected") as caught:
        office.enroll(office.token(), report=b"{}")
    assert caught.value.code == "ST-ADMN-001"


def test_nobody_answers(office):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    token = msgspec.structs.replace(office.token(), port=port)
    vocabulary.refused(AdmissionError, "ST-ADMN-007", office.enroll, token)


def test_an_identity_is_never_overwritten(office):
    office.enroll(office.token())
    token = office.token("node-1")
    vocabulary.refused(UsageError, "ST-USAG-005", office.enroll, token)
    office.enroll(token, "other")  # and the token was not used up


# Reports for the inventory.


def test_a_report_is_filed_as_it_came(office, job):
    report = json.dumps({"schema": "anything"}).encode()
    office.enroll(office.token(), report=report)
    path = office.root / "inventory/node-node-0.json"
    assert path.read_bytes() == report
    assert path.stat().st_mode & 0o777 == 0o600
    assert job.events()[-1].event == "report-filed"


@pytest.mark.parametrize("report", [b"no json", b'{"a":1,"a":2}', b"NaN"])
def test_a_report_that_is_no_json(office, report):
    with pytest.raises(SecureTrainError):
        office.enroll(office.token(), report=report)
    assert not (office.root / "inventory").exists()


def test_after_a_grant_nothing_but_a_report_is_heard(office, job):
    channel, token = office.connect(), office.token()
    application = office.application(channel, token)
    assert isinstance(office.ask(channel, application), Grant)
    answer = office.ask(channel, application)
    assert isinstance(answer, Refuse)
    assert (answer.code, answer.what) == ("ST-ADMN-001", "a Apply where Report was expected")
    job.expect("ST-ADMN-001", "enrolment-refused")


def test_a_report_that_is_too_large(office):
    channel, token = office.connect(), office.token()
    assert isinstance(office.ask(channel, office.application(channel, token)), Grant)
    answer = office.ask(channel, Report(body=b"1" * (REPORT_LIMIT + 1)))
    assert isinstance(answer, Refuse)
    assert answer.code == "ST-ADMN-001"
    assert not (office.root / "inventory").exists()


def test_what_is_no_message_is_refused_where_it_is_read():
    for body in (b"", b"{}", b"not JSON", b'{"type":"apply"}'):
        vocabulary.refused(AdmissionError, "ST-ADMN-001", decode_enrollment, body)


def test_only_one_form_of_one_kind_of_key_is_certified():
    key = PrivateKey.generate(KeyKind.P256).public
    assert new_key(key.spki) == key
    point = key.native.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
    # The same key with its point compressed (RFC 5480, 2.2), as OpenSSL would read it too.
    curve = bytes.fromhex("301306072a8648ce3d020106082a8648ce3d030107")
    body = curve + b"\x03" + bytes([len(point) + 1, 0]) + point
    compressed = b"\x30" + bytes([len(body)]) + body
    assert load_der_public_key(compressed) == key.native
    for spki in (compressed, PrivateKey.generate().public.spki):
        vocabulary.refused(AdmissionError, "ST-ADMN-001", new_key, spki)


@pytest.mark.parametrize("nodes", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_200_addresses_do_not_keep_machines_from_enrolling(office, tools, nodes):
    """Each holds a connection and comes back as soon as it is pushed out; so do real machines wait.

    With 16 places and no time in them of one's own, none or two of twenty machines got in.
    """

    def enrolls(node):
        identity = office.enroll(office.token(node), node, timeout=tools.PATIENCE)
        return bool(identity.spiffe.node == node)

    with held_by_a_crowd(office.address, SOURCES):
        assert from_own_addresses(nodes, enrolls) == [True] * nodes
