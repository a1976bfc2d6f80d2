# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import dataclasses
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from securetrain.core.errors import IdentityError, UsageError
from securetrain.identity.cluster_ca import JOB_LIFETIME, ClusterCA, check_job_ca
from securetrain.identity.job_ca import JobCA, ca_builder, ca_name, certificate_pem, check_leaf
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.register import How, Kind
from securetrain.identity.spiffe import Role
from tests.identity.worlds import certificate
from tests.tables import items
from tests.vocabulary import refused

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def cluster(tmp_path):
    made = ClusterCA.create(tmp_path / "ca", "cluster.example", NOW)
    yield made
    made.close()


def job_of(cluster, job="job-1", now=NOW):
    return cluster.job(job, now, cluster.key)


def leaf(cluster, ca, node="node-0", now=NOW):
    key = PrivateKey.generate(KeyKind.P256)
    return cluster.issue(ca, Role.NODE, key.public, now, node=node, lifetime=HOUR, how=How.COMMAND)


def test_a_leaf_under_a_jobs_ca_is_what_check_leaf_wants(cluster):
    ca = job_of(cluster)
    spiffe = check_leaf(leaf(cluster, ca), ca.certificate, Role.NODE, NOW)
    assert str(spiffe) == "spiffe://cluster.example/job/job-1/node/node-0"


def test_a_job_ca_is_made_once_and_limited(cluster):
    ca = job_of(cluster)
    again = cluster.job("job-1", NOW, lambda: pytest.fail("the cluster's key is not needed"))
    assert again.certificate == ca.certificate
    assert again.key.key_id == ca.key.key_id
    check_job_ca(ca.certificate, cluster.certificate, NOW)
    basic = ca.certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (basic.critical, basic.value.path_length) == (True, 0)
    names = ca.certificate.extensions.get_extension_for_class(x509.NameConstraints)
    assert names.critical
    assert [n.value for n in names.value.permitted_subtrees] == ["cluster.example"]


def test_one_jobs_ca_issues_nothing_for_another_job(cluster):
    first, second = job_of(cluster), job_of(cluster, "job-2")
    with pytest.raises(IdentityError, match="ST-IDEN-005"):
        check_leaf(leaf(cluster, first), second.certificate, Role.NODE, NOW)


def test_the_cluster_ca_itself_is_no_issuer_of_leaves(cluster):
    """A leaf directly below the cluster CA is accepted by nobody who pins the job's."""
    ca = job_of(cluster)
    over = JobCA(cluster.key(), cluster.certificate, "cluster.example", "job-1")
    key = PrivateKey.generate(KeyKind.P256)
    direct = over.issue(Role.NODE, key.public, NOW, node="node-0", lifetime=HOUR)
    refused(IdentityError, "ST-IDEN-005", check_leaf, direct, ca.certificate, Role.NODE, NOW)


def test_files_and_modes(cluster):
    job_of(cluster)
    for name in ("ca.pem", "register.sqlite", "jobs/job-1/ca.pem"):
        assert (cluster.folder / name).stat().st_mode & 0o777 == 0o600, name
    assert cluster.folder.stat().st_mode & 0o777 == 0o700
    assert (cluster.folder / "jobs/job-1").stat().st_mode & 0o777 == 0o700


def test_an_encrypted_key_needs_its_passphrase(tmp_path):
    cluster = ClusterCA.create(tmp_path / "ca", "cluster.example", NOW, b"correct horse")
    assert b"ENCRYPTED" in cluster.key_file.read_bytes()
    for wrong in (None, b"wrong"):
        refused(IdentityError, "ST-IDEN-001", cluster.key, wrong)
    ca = cluster.job("job-1", NOW, lambda: cluster.key(b"correct horse"))
    leaf(cluster, ca)  # the job's own key is enough from here on
    cluster.close()


def test_a_ca_is_never_overwritten(cluster):
    before = cluster.key_file.read_bytes()
    refused(UsageError, "ST-USAG-005", ClusterCA.create, cluster.folder, "cluster.example", NOW)
    assert cluster.key_file.read_bytes() == before


@pytest.mark.parametrize("domain", ["", "Upper.example", "a/b", "a b"])
def test_a_bad_trust_domain(tmp_path, domain):
    refused(IdentityError, "ST-IDEN-006", ClusterCA.create, tmp_path / "ca", domain, NOW)
    assert not (tmp_path / "ca/ca.pem").exists()


@pytest.mark.parametrize("job", ["", ".", "..", ".hidden", "a/b", "../ca", "x" * 65])
def test_a_bad_job_name_makes_no_folder(cluster, job):
    refused(IdentityError, "ST-IDEN-006", job_of, cluster, job)
    assert not (cluster.folder / "jobs").exists()


def test_a_folder_without_a_ca(tmp_path):
    refused(IdentityError, "ST-IDEN-013", ClusterCA.load, tmp_path, NOW)


def test_another_cas_key_in_the_folder(cluster):
    PrivateKey.generate(KeyKind.P256).save(cluster.key_file)
    refused(IdentityError, "ST-IDEN-013", cluster.key)


def test_a_certificate_that_names_no_trust_domain(cluster, tmp_path):
    job = JobCA.create("cluster.example", "job-1", NOW)
    (cluster.folder / "ca.crt").write_bytes(certificate_pem(job.certificate))
    refused(IdentityError, "names no trust domain", ClusterCA.load, cluster.folder, NOW)


def test_an_expired_cluster_ca(cluster):
    with pytest.raises(IdentityError, match="ST-IDEN-005"):
        ClusterCA.load(cluster.folder, NOW + timedelta(days=6 * 365))


def test_an_expired_job_ca(cluster):
    job_of(cluster)
    refused(IdentityError, "ST-IDEN-005", job_of, cluster, now=NOW + JOB_LIFETIME + HOUR)


def forged(cluster, *, signer=None, path_length=0, domain="cluster.example", critical=True):
    key = signer or cluster.key()
    builder = ca_builder(
        ca_name("securetrain job CA job-1"),
        PrivateKey.generate(KeyKind.P256).public,
        NOW,
        path_length=path_length,
        ends=NOW + HOUR,
        issuer=cluster.certificate.subject,
    )
    if domain:
        limit = x509.NameConstraints([x509.UniformResourceIdentifier(domain)], None)
        builder = builder.add_extension(limit, critical=critical)
    return builder.sign(key.native, hashes.SHA256())


def test_the_forgeries_below_begin_with_a_good_one(cluster):
    check_job_ca(forged(cluster), cluster.certificate, NOW)


@items(
    "id, change, says",
    ("another signer", {"signer": PrivateKey.generate(KeyKind.P256)}, "not issued by the clust"),
    ("may certify CAs", {"path_length": 1}, "not limited"),
    ("another domain", {"domain": "other.example"}, "not limited"),
    ("no limit", {"domain": ""}, "not issued by the cluster CA, or incomplete"),
    ("limit not critical", {"critical": False}, "not limited"),
)
def test_a_job_ca_without_its_limits(cluster, change, says):
    with pytest.raises(IdentityError, match=says) as caught:
        check_job_ca(forged(cluster, **change), cluster.certificate, NOW)
    assert caught.value.code == "ST-IDEN-005"


def test_a_job_ca_that_may_not_sign_certificates(cluster):
    """All its limits, but the key usage of a leaf."""
    good, own = forged(cluster), leaf(cluster, job_of(cluster))
    usage = own.extensions.get_extension_for_class(x509.KeyUsage)
    more = (
        (usage.value if one.oid == usage.oid else one.value, one.critical)
        for one in good.extensions
    )
    key, valid = cluster.key().native, (NOW, NOW + HOUR)
    bad = certificate(good.subject, good.issuer, good.public_key(), key, valid, *more, serial=1)
    refused(IdentityError, "not limited", check_job_ca, bad, cluster.certificate, NOW)


def test_a_lock_that_is_a_link(cluster):
    (cluster.folder / ".lock").symlink_to(cluster.folder / "elsewhere")
    refused(UsageError, "ST-USAG-002", job_of, cluster)
    assert not (cluster.folder / "elsewhere").exists()


def test_a_leaf_is_no_job_ca(cluster):
    ca = job_of(cluster)
    refused(IdentityError, "ST-IDEN-005", check_job_ca, leaf(cluster, ca), ca.certificate, NOW)


def test_a_job_folder_with_another_key(cluster):
    job_of(cluster)
    PrivateKey.generate(KeyKind.P256).save(cluster.folder / "jobs/job-1/ca.pem")
    refused(IdentityError, "for another key", job_of, cluster)


def test_what_is_issued_stands_in_the_register_first(cluster):
    made = leaf(cluster, job_of(cluster))
    (entry,) = cluster.register.issued()
    assert entry.serial == f"{made.serial_number:x}"
    assert (entry.node, entry.job, entry.how) == ("node-0", "job-1", How.COMMAND)
    assert entry.ends == made.not_valid_after_utc


def test_nothing_is_issued_when_the_register_is_gone(cluster):
    ca = job_of(cluster)
    cluster.register.close()
    refused(IdentityError, "ST-IDEN-013", leaf, cluster, ca)


# Revocation.


def test_a_revoked_node_gets_nothing_any_more_in_any_job(cluster):
    ca = job_of(cluster)
    leaf(cluster, ca)
    found = cluster.revoke(Kind.NODE, "node-0", "stolen", NOW, cluster.key())
    assert found.number == 1
    for job in (ca, job_of(cluster, "job-2")):
        caught = refused(IdentityError, "stolen", leaf, cluster, job)
        assert caught.code == "ST-IDEN-011"
    leaf(cluster, ca, "node-1")


def test_a_revoked_serial_says_nothing_about_the_node(cluster):
    ca = job_of(cluster)
    first = leaf(cluster, ca)
    cluster.revoke(Kind.SERIAL, f"{first.serial_number:x}", "", NOW, cluster.key())
    second = leaf(cluster, ca)
    cluster.revocations().check("node-0", second, "run-7")
    refused(IdentityError, "ST-IDEN-011", cluster.revocations().check, "node-0", first, "run-7")


@items(
    "kind, name",
    (Kind.NODE, ""),
    (Kind.NODE, "a/b"),
    (Kind.SERIAL, ""),
    (Kind.SERIAL, "0X1"),
    (Kind.SERIAL, "a" * 41),
)
def test_a_revocation_of_something_that_has_no_such_name(cluster, kind, name):
    refused(IdentityError, "ST-IDEN-006", cluster.revoke, kind, name, "", NOW, cluster.key())
    assert cluster.revocations().number == 0


def test_an_older_list_is_refused(cluster):
    """The file is put back; the register beside it knows better."""
    job = job_of(cluster)
    old = cluster.revocations_file.read_bytes()
    cluster.revoke(Kind.NODE, "node-0", "", NOW, cluster.key())
    cluster.revocations_file.write_bytes(old)
    caught = refused(IdentityError, "an old list", cluster.revocations)
    assert caught.code == "ST-IDEN-012"
    refused(IdentityError, "ST-IDEN-011", leaf, cluster, job)
    refused(IdentityError, "ST-IDEN-012", job_of, cluster)


def test_a_revoked_job_gets_no_certificate_and_no_coordinator(cluster):
    job = job_of(cluster)
    cluster.revoke(Kind.JOB, job.job, "its coordinator was broken into", NOW, cluster.key())
    refused(IdentityError, r"ST-IDEN-011: job .* broken into", leaf, cluster, job)
    refused(IdentityError, "ST-IDEN-011", job_of, cluster)
    found = cluster.revocations()
    assert found.find("node-0", "1f", job.job) is not None
    assert found.find(job.job, "1f", "another") is None, "a node of that name is not meant"


def test_a_missing_list_revokes_nobody_back(cluster):
    cluster.revocations_file.unlink()
    refused(IdentityError, "ST-IDEN-012", lambda: leaf(cluster, job_of(cluster)))


def test_an_empty_register_signs_no_shorter_list(cluster):
    cluster.revoke(Kind.NODE, "node-0", "", NOW, cluster.key())
    (cluster.folder / "register.sqlite").unlink()
    again = ClusterCA.load(cluster.folder, NOW)
    refused(IdentityError, "ST-IDEN-013", again.revoke, Kind.NODE, "node-1", "", NOW, again.key())
    assert again.revocations().find("node-0", "", "run-7")
    refused(IdentityError, "ST-IDEN-011", leaf, again, job_of(again))
    again.close()


# A coordinator elsewhere.


def test_an_export_has_one_job_and_no_key_of_the_cluster(cluster, tmp_path):
    job_of(cluster, "job-2")
    cluster.revoke(Kind.NODE, "node-9", "", NOW, cluster.key())
    cluster.export("job-1", tmp_path / "out", NOW, cluster.key)
    names = {p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*.*")}
    assert names == {"ca.crt", "revoked.json", "jobs/job-1/ca.pem", "jobs/job-1/ca.crt"}
    there = ClusterCA.load(tmp_path / "out", NOW)
    ca = there.job("job-1", NOW, lambda: pytest.fail("nothing is to be signed"))
    leaf(there, ca)
    refused(IdentityError, "ST-IDEN-011", leaf, there, ca, "node-9")
    refused(IdentityError, "not in this folder", there.job, "job-2", NOW, there.key)
    there.close()
    refused(UsageError, "ST-USAG-005", cluster.export, "job-1", tmp_path / "out", NOW, cluster.key)


def test_the_job_ca_of_another_cluster(cluster, tmp_path):
    other = ClusterCA.create(tmp_path / "other", "cluster.example", NOW)
    job_of(other)
    job_of(cluster)
    for name in ("ca.pem", "ca.crt"):
        data = (other.folder / "jobs/job-1" / name).read_bytes()
        (cluster.folder / "jobs/job-1" / name).write_bytes(data)
    refused(IdentityError, "not issued by the cluster CA", job_of, cluster)
    other.close()


def test_a_job_ca_is_made_by_its_creators_name(cluster):
    """Two at once make one: the second finds the first's."""
    assert dataclasses.astuple(job_of(cluster))[2:] == ("cluster.example", "job-1")
