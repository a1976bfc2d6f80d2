# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""T26, T27, T28: attested keys as signers, and everything that is not quite one."""

import base64
import string
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from securetrain.core.errors import IdentityError
from securetrain.identity import dsse
from securetrain.identity.cluster_ca import ClusterCA
from securetrain.identity.job_ca import JobCA
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.spiffe import Role
from securetrain.identity.svid import Chain, check_chain, parse_certificate, verify_attested
from securetrain.identity.trust import Authority, TrustRole, TrustRoot, sign_document, sign_root
from tests import vocabulary
from tests.identity import worlds
from tests.rsa_keys import rsa_key
from tests.tables import each, forgeries

NOW = datetime(2026, 6, 1, tzinfo=UTC)
MINUTES = timedelta(minutes=10)
DAY = timedelta(days=1)
DOMAIN, JOB = "cluster.example", "run-7"
KIND = "application/example"
KEY, ROOT = PrivateKey.generate(KeyKind.P256), PrivateKey.generate()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster = ClusterCA.create(tmp_path_factory.mktemp("ca"), DOMAIN, NOW, None)
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def job(cluster):
    return cluster.job(JOB, NOW, cluster.key)


def der(certificate):
    return Chain.of([certificate]).certificates[0]


def trust(certificate, **fields) -> TrustRoot:
    entry = Authority(
        role=fields.pop("role", TrustRole.CHECKPOINT),
        certificate=der(certificate),
        trust_domain=fields.pop("trust_domain", DOMAIN),
        **fields,
    )
    document = TrustRoot.parse(sign_root({}, ROOT, NOW, NOW + timedelta(days=99)), NOW).document
    document = msgspec.structs.replace(document, authorities=[entry])
    return TrustRoot.parse(sign_document(document, [ROOT]), NOW)


def leaf(job, role=Role.MEMBER, node="node-0", key=KEY, lifetime=MINUTES):
    return job.issue(role, key.public, NOW, node=node, lifetime=lifetime)


def refused(code, chain, root, role=TrustRole.CHECKPOINT, at=NOW):
    error = vocabulary.refused(
        IdentityError, code, lambda: check_chain(Chain.of(chain), root, role, at, "w")
    )
    assert error.exit_code == 12


def test_a_member_signs_for_its_job(cluster, job):
    chain = Chain.of([leaf(job), job.certificate])
    envelope = dsse.sign(b"x", KIND, [KEY])
    root = trust(cluster.certificate)
    found = verify_attested(envelope, KIND, chain, root, TrustRole.CHECKPOINT, NOW)
    assert found.payload.data == b"x"
    assert str(found.spiffe) == f"spiffe://{DOMAIN}/job/{JOB}/member/node-0"
    with pytest.raises(IdentityError, match="ST-IDEN-004"):
        verify_attested(envelope, "other", chain, root, TrustRole.CHECKPOINT, NOW)


def test_a_job_ca_of_its_own_can_be_the_authority():
    alone = JobCA.create(DOMAIN, JOB, NOW)
    chain = Chain.of([leaf(alone)])
    key, spiffe = check_chain(chain, trust(alone.certificate), TrustRole.CHECKPOINT, NOW)
    assert (key.key_id, spiffe.job) == (KEY.key_id, JOB)


@pytest.mark.forgery
def test_only_for_the_role_that_the_authority_has(cluster, job):
    chain = [leaf(job), job.certificate]
    refused("ST-IDEN-003", chain, trust(cluster.certificate), TrustRole.DATASET)
    refused("ST-IDEN-003", chain, trust(cluster.certificate, role=TrustRole.DATASET))


@forgeries(
    "id, fields, code",
    ("a prefix", {"trust_domain": "cluster.exampl"}, "ST-IDEN-006"),
    ("a wildcard", {"trust_domain": "*.example"}, "ST-IDEN-006"),
    ("another case", {"trust_domain": "CLUSTER.example"}, "ST-IDEN-006"),
    ("another job", {"job": "run-70"}, "ST-IDEN-006"),
    ("a prefix of the job", {"job": "run"}, "ST-IDEN-006"),
    ("any job by a wildcard", {"job": "*"}, "ST-IDEN-006"),
    ("another role", {"parties": [Role.COORDINATOR]}, "ST-IDEN-005"),
    ("a node that was not admitted", {"parties": [Role.NODE]}, "ST-IDEN-005"),
)
def test_identities_are_compared_whole(fields, code, cluster, job):
    """T28."""
    chain = [leaf(job), job.certificate]
    refused(code, chain, trust(cluster.certificate, **fields))
    check_chain(  # the control
        Chain.of(chain), trust(cluster.certificate, job=JOB), TrustRole.CHECKPOINT, NOW
    )


@pytest.mark.forgery
@pytest.mark.parametrize(
    ("role", "code"),
    [
        (Role.NODE, "ST-IDEN-005"),
        (Role.COORDINATOR, "ST-IDEN-005"),
        (Role.UNATTESTED, "ST-IDEN-006"),  # it has the uses of a member, and not the name
    ],
)
def test_somebody_of_another_standing(role, code, cluster, job):
    node = "" if role is Role.COORDINATOR else "node-0"
    refused(code, [leaf(job, role, node), job.certificate], trust(cluster.certificate))


@pytest.mark.forgery
def test_the_time_of_signing(cluster, job):
    """T27."""
    chain, root = [leaf(job), job.certificate], trust(cluster.certificate)
    check_chain(Chain.of(chain), root, TrustRole.CHECKPOINT, NOW + MINUTES)
    refused("ST-IDEN-005", chain, root, at=NOW + MINUTES + timedelta(seconds=1))
    refused("ST-IDEN-005", chain, root, at=NOW - timedelta(minutes=6))
    long = [leaf(job, lifetime=timedelta(hours=24)), job.certificate]
    refused("ST-IDEN-005", long, root, at=NOW + timedelta(days=8))  # the job CA's end


@pytest.mark.forgery
def test_an_authority_that_has_expired():
    alone = JobCA.create(DOMAIN, JOB, NOW)
    root = trust(alone.certificate)
    late = NOW + timedelta(days=7, hours=1)
    refused("ST-IDEN-005", [leaf(alone)], root, at=late)


@pytest.mark.forgery
def test_somebody_elses_ca(cluster, job):
    """T27: self-signed, a stranger's, and one that calls itself the same."""
    root = trust(cluster.certificate)
    stranger = JobCA.create(DOMAIN, JOB, NOW)
    refused("ST-IDEN-005", [leaf(stranger), stranger.certificate], root)
    refused("ST-IDEN-005", [leaf(stranger), job.certificate], root)
    refused("ST-IDEN-005", [leaf(stranger)], root)
    refused("ST-IDEN-005", [leaf(job)], root)  # without the CA in between


@pytest.mark.forgery
def test_a_ca_is_no_signer(cluster, job):
    """T27: CA as leaf; and a leaf that plays the CA."""
    root = trust(cluster.certificate)
    refused("ST-IDEN-005", [job.certificate], root)
    refused("ST-IDEN-005", [job.certificate, cluster.certificate], root)
    pretender = JobCA(KEY, leaf(job), DOMAIN, JOB)
    mine = PrivateKey.generate(KeyKind.P256)
    below = pretender.issue(Role.MEMBER, mine.public, NOW, node="node-9", lifetime=MINUTES)
    refused("ST-IDEN-005", [below, leaf(job)], root)


def built(
    job,
    *,
    usage=True,
    extended=(ExtendedKeyUsageOID.CLIENT_AUTH,),
    names=None,
    begins=NOW,
    lifetime=MINUTES,
):
    """A leaf that the job's CA signed, with something missing or more than it should have."""
    name = x509.UniformResourceIdentifier(f"spiffe://{DOMAIN}/job/{JOB}/member/node-0")
    good = leaf(job).extensions.get_extension_for_class(x509.KeyUsage).value
    return certified(
        job,
        KEY.public.native,
        worlds.limits(ca=False),
        (x509.SubjectAlternativeName(names or [name]), True),
        (good, True) if usage else None,
        (x509.ExtendedKeyUsage(extended), True) if extended else None,
        valid=(begins, begins + lifetime),
    )


def certified(job, public, *more, valid=(NOW, NOW + MINUTES)):
    """What the job's CA signed."""
    above = job.certificate.subject
    return worlds.certificate("", above, public, job.key.native, valid, *more, serial=7)


BOTH = (ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH)


@pytest.mark.forgery
def test_a_leaf_that_outlives_its_authority():
    alone = JobCA.create(DOMAIN, JOB, NOW)
    chain, root = [built(alone, extended=BOTH, lifetime=30 * DAY)], trust(alone.certificate)
    check_chain(Chain.of(chain), root, TrustRole.CHECKPOINT, NOW + 6 * DAY)
    refused("ST-IDEN-005", chain, root, at=NOW + 8 * DAY)


@pytest.mark.forgery
def test_a_leaf_that_is_older_than_its_authority():
    alone = JobCA.create(DOMAIN, JOB, NOW)
    leaf = built(alone, extended=BOTH, begins=NOW - 30 * DAY, lifetime=31 * DAY)
    chain, root = [leaf], trust(alone.certificate)
    check_chain(Chain.of(chain), root, TrustRole.CHECKPOINT, NOW)
    refused("ST-IDEN-005", chain, root, at=NOW - DAY)


@forgeries(
    "id, fields, code",
    ("no KU", {"usage": False, "extended": BOTH}, "ST-IDEN-005"),
    ("no EKU", {"extended": ()}, "ST-IDEN-005"),
    ("half the EKU", {}, "ST-IDEN-005"),
    ("more EKU", {"extended": (*BOTH, ExtendedKeyUsageOID.CODE_SIGNING)}, "ST-IDEN-005"),
    (
        "a second name",
        {
            "extended": BOTH,
            "names": [
                x509.UniformResourceIdentifier(f"spiffe://{DOMAIN}/job/{JOB}/member/node-0"),
                x509.DNSName("node-0.example"),
            ],
        },
        "ST-IDEN-006",
    ),
    ("no SPIFFE id", {"extended": BOTH, "names": [x509.DNSName("node-0.example")]}, "ST-IDEN-006"),
)
def test_a_leaf_that_is_not_as_it_must_be(fields, code, cluster, job):
    """T27."""
    root = trust(cluster.certificate)
    refused(code, [built(job, **fields), job.certificate], root)
    check_chain(  # the control
        Chain.of([built(job, extended=BOTH), job.certificate]), root, TrustRole.CHECKPOINT, NOW
    )


@pytest.mark.forgery
def test_the_signature_must_be_the_leafs(cluster, job):
    chain = Chain.of([leaf(job), job.certificate])
    root, role = trust(cluster.certificate), TrustRole.CHECKPOINT
    with pytest.raises(IdentityError, match="ST-IDEN-003"):
        verify_attested(dsse.sign(b"x", KIND, [ROOT]), KIND, chain, root, role, NOW)
    # T26: a certificate is no entry in a list of keys, nor a listed key a certificate.
    with pytest.raises(IdentityError, match="ST-IDEN-003"):
        root.verify(dsse.sign(b"x", KIND, [KEY]), KIND, role)


@pytest.mark.forgery
def test_other_keys(cluster, job):
    """A certificate for a key of another kind cannot be one of ours."""
    certificate = certified(job, rsa_key(2048).public_key())
    refused("ST-IDEN-005", [certificate, job.certificate], trust(cluster.certificate))


@each("text", "", "?", "AAAA", base64.b64encode(b"x" * 9000).decode())
def test_what_is_no_certificate(text, cluster, job):
    root = trust(cluster.certificate)
    for chain in (Chain([text]), Chain([der(leaf(job)), text]), Chain([der(leaf(job)) + "\n"])):
        with pytest.raises(IdentityError, match="ST-IDEN-005"):
            check_chain(chain, root, TrustRole.CHECKPOINT, NOW)


@each("text", "", "?", "AAAA", "Zm9v")
def test_each_certificate_is_read_by_itself(text):
    with pytest.raises(IdentityError, match="ST-IDEN-005: not a certificate"):
        parse_certificate(text, "here")


def test_a_certificate_of_more_than_eight_kilobytes_is_none(job):
    def padded(size):
        blob = worlds.custom("1.3.6.1.4.1.99999.1", bytes(size))
        return certified(job, KEY.native.public_key(), (blob, False))

    assert parse_certificate(der(padded(7000))).serial_number == 7
    with pytest.raises(IdentityError, match="too long, or not canonical"):
        parse_certificate(der(padded(8192)))


def test_a_certificate_is_written_in_one_way_only(job):
    """The bits that base64 leaves unused at its end are zero."""
    text = next(t for t in iter(lambda: der(leaf(job)), "") if t.endswith("="))
    last = len(text.rstrip("=")) - 1
    alphabet = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
    other = text[:last] + alphabet[alphabet.index(text[last]) + 1] + text[last + 1 :]
    assert base64.b64decode(other, validate=True) == base64.b64decode(text, validate=True)
    parse_certificate(text)
    vocabulary.refused(IdentityError, "too long, or not canonical", parse_certificate, other)


def test_a_chain_of_another_length():
    for number in (0, 3):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({"certificates": ["AAAA"] * number}, Chain)
