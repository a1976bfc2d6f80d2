# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import sqlite3
import threading
from datetime import UTC, datetime, timedelta

import pytest

from securetrain.core.errors import IdentityError
from securetrain.identity.job_ca import JobCA
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.register import How, Invitation, Kind, Register, Revoked
from securetrain.identity.spiffe import Role
from tests.vocabulary import refused

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
KEY = PrivateKey.generate()
INVITATION = Invitation(id=KEY.key_id, key=KEY.public, job="job-1", node="node-0", ends=NOW)


@pytest.fixture
def register(tmp_path):
    made = Register(tmp_path / "register.sqlite")
    yield made
    made.close()


def test_it_is_this_users_alone_and_remembers(register, tmp_path):
    path = tmp_path / "register.sqlite"
    assert path.stat().st_mode & 0o777 == 0o600
    register.revoke(Revoked(kind=Kind.NODE, name="n", reason="first", since=NOW))
    register.revoke(Revoked(kind=Kind.NODE, name="n", reason="second", since=NOW))
    register.invite(INVITATION)
    again = Register(path)
    assert [e.reason for e in again.revoked()] == ["first"]
    found = again.invitation(KEY.key_id)
    assert found is not None
    assert (found.node, found.ends, found.tries) == ("node-0", NOW, 0)
    assert found.key.key_id == KEY.key_id
    again.close()


def test_certificates(register):
    ca = JobCA.create("a.example", "job-1", NOW)
    key = PrivateKey.generate(KeyKind.P256)
    leaf = ca.issue(Role.NODE, key.public, NOW, node="node-0", lifetime=timedelta(hours=1))
    entry = register.record(leaf, How.ENROLLMENT)
    assert register.issued() == [entry]
    assert entry.key_id == key.key_id
    with pytest.raises(IdentityError, match="ST-IDEN-013"):
        register.record(leaf, How.ENROLLMENT)  # a serial exists once


def test_a_token_is_used_by_one(register, tmp_path):
    """Two processes at once: each opens the file itself."""
    register.invite(INVITATION)
    others = [Register(tmp_path / "register.sqlite") for _ in range(8)]
    won = []

    def use(one):
        won.append(one.use(KEY.key_id, NOW))

    threads = [threading.Thread(target=use, args=(one,)) for one in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 7 + [True]
    assert register._run("SELECT used FROM tokens") == [(NOW.isoformat(),)]
    for one in others:
        one.close()


def test_unknown_tokens_and_tries(register):
    assert register.invitation("00") is None
    assert not register.use("00", NOW)
    register.tried("00")
    register.invite(INVITATION)
    register.tried(KEY.key_id)
    assert register.invitation(KEY.key_id).tries == 1


def test_the_endpoint(register):
    assert register.endpoint("job-1") == ""
    register.set_endpoint("job-1", "10.0.0.1:1")
    register.set_endpoint("job-1", "10.0.0.1:2")
    assert register.endpoint("job-1") == "10.0.0.1:2"


def test_a_file_that_is_none(tmp_path):
    path = tmp_path / "register.sqlite"
    path.write_bytes(b"this is no database" * 100)
    refused(IdentityError, "ST-IDEN-013", Register, path)


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "register.sqlite").symlink_to(tmp_path / "elsewhere")
    refused(IdentityError, "ST-IDEN-013", Register, tmp_path / "register.sqlite")
    assert not (tmp_path / "elsewhere").exists()


def test_a_later_version(tmp_path):
    path = tmp_path / "register.sqlite"
    Register(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version=2")
    db.close()
    refused(IdentityError, "version 2", Register, path)
