# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from datetime import timedelta

import pytest

from securetrain.core.errors import IdentityError, UsageError
from securetrain.identity.job_ca import JobCA, certificate_pem
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.spiffe import Role
from securetrain.rendezvous.member.identity_dir import load_identity, write_identity
from tests.vocabulary import refused


@pytest.fixture
def ca(tools):
    return JobCA.create("securetrain.local", "job-1", tools.now())


def test_round_trip_and_modes(ca, tools, tmp_path):
    written = write_identity(tmp_path / "id", ca, "node-0", tools.now())
    loaded = load_identity(tmp_path / "id", tools.now())
    assert str(loaded.spiffe) == "spiffe://securetrain.local/job/job-1/node/node-0"
    assert loaded.certificate == written.certificate
    assert (tmp_path / "id").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "id/node.pem").stat().st_mode & 0o777 == 0o600


def test_an_existing_key_is_kept(ca, tools, tmp_path):
    key = PrivateKey.generate(KeyKind.P256)
    identity = write_identity(tmp_path / "id", ca, "node-0", tools.now(), key=key)
    assert identity.key.key_id == key.key_id


def test_a_key_that_others_may_read(ca, tools, tmp_path):
    write_identity(tmp_path / "id", ca, "node-0", tools.now())
    (tmp_path / "id/node.pem").chmod(0o640)
    refused(IdentityError, "ST-IDEN-010", load_identity, tmp_path / "id", tools.now())


def test_a_certificate_for_another_key(ca, tools, tmp_path):
    write_identity(tmp_path / "id", ca, "node-0", tools.now())
    PrivateKey.generate(KeyKind.P256).save(tmp_path / "id/node.pem")
    with pytest.raises(IdentityError, match="ST-IDEN-005: the certificate is for another key"):
        load_identity(tmp_path / "id", tools.now())


def test_expired(ca, tools, tmp_path):
    write_identity(tmp_path / "id", ca, "node-0", tools.now(), lifetime=timedelta(hours=1))
    with pytest.raises(IdentityError, match="ST-IDEN-005"):
        load_identity(tmp_path / "id", tools.now() + timedelta(hours=2))


def test_a_coordinators_certificate(ca, tools, tmp_path):
    identity = write_identity(tmp_path / "id", ca, "node-0", tools.now())
    leaf = ca.issue(Role.COORDINATOR, identity.key.public, tools.now(), lifetime=timedelta(hours=1))
    (tmp_path / "id/node.crt").write_bytes(certificate_pem(leaf))
    refused(IdentityError, "ST-IDEN-005", load_identity, tmp_path / "id", tools.now())


@pytest.mark.parametrize("name", ["node.pem", "node.crt", "ca.crt"])
def test_a_missing_file_is_named(ca, tools, tmp_path, name):
    write_identity(tmp_path / "id", ca, "node-0", tools.now())
    (tmp_path / "id" / name).unlink()
    refused(UsageError, name, load_identity, tmp_path / "id", tools.now())
