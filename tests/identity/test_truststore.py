# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from datetime import timedelta

import pytest

from securetrain.core.errors import IdentityError, UsageError
from securetrain.core.files import write_atomic
from securetrain.identity import truststore
from securetrain.identity.rotation import amended
from securetrain.identity.trust import Revoked, TrustRole, sign_document
from securetrain.identity.truststore import Floor, TrustStore, published_name
from tests.identity.test_rotation import (
    BOTH,
    FIRST,
    NEXT_WORKER,
    NOW,
    OLD,
    SECOND,
    WORKER,
    YEAR,
    change,
    replaced,
)

ONE = sign_document(FIRST, OLD[:2])
TWO = sign_document(SECOND, BOTH)


def refused(code, function, *arguments):
    with pytest.raises(IdentityError) as caught:
        function(*arguments)
    assert caught.value.code == code, caught.value


@pytest.fixture
def store(tmp_path):
    store = TrustStore(tmp_path / "trust")
    store.pin(ONE, NOW)
    return store


def floor(value, digest="a", keys=(WORKER,)):
    return Floor(value=value, digest=digest, key_ids=[key.key_id for key in keys])


def test_nothing_is_trusted_before_a_person_says_so(tmp_path):
    store = TrustStore(tmp_path / "trust")
    refused("ST-IDEN-007", store.current, NOW)
    refused("ST-IDEN-007", store.update, [TWO], NOW)
    refused("ST-IDEN-007", store.raise_floor, "x", floor(1))


def test_a_pin(store):
    assert store.current(NOW).version == 1
    store.raise_floor("run", floor(3))
    store.pin(ONE, NOW)
    assert store.floor("run") == floor(3)  # pinning again forgets nothing
    with pytest.raises(UsageError, match="ST-USAG-005"):
        store.pin(TWO, NOW)
    assert store.folder.stat().st_mode & 0o777 == 0o700
    assert (store.folder / "root.json").stat().st_mode & 0o777 == 0o600


def test_the_chain_is_followed_and_remembered(store, tmp_path):
    assert store.update([TWO], NOW).version == 2
    assert TrustStore(store.folder).current(NOW).version == 2
    for data in (ONE, TWO):
        refused("ST-IDEN-017", store.update, [data], NOW)


def test_a_published_folder(store, tmp_path):
    published = tmp_path / "published"
    published.mkdir()
    assert store.update_from(published, NOW).version == 1
    for version, data in ((1, ONE), (2, TWO)):
        (published / published_name(version)).write_bytes(data)
    assert store.update_from(published, NOW).version == 2
    third = sign_document(replaced(amended(SECOND, change()), version=4), BOTH)
    (published / published_name(3)).write_bytes(third)
    refused("ST-IDEN-016", store.update_from, published, NOW)
    assert store.current(NOW).version == 2  # what was good stays


def test_an_expired_end_is_refused_and_yet_remembered(store):
    short = sign_document(replaced(SECOND, expires=NOW + timedelta(days=1)), BOTH)
    later = NOW + timedelta(days=2)
    refused("ST-IDEN-008", store.update, [short], later)
    refused("ST-IDEN-008", store.current, later)
    refused("ST-IDEN-008", store.current, NOW + YEAR)


@pytest.mark.forgery
def test_nothing_goes_back(store):
    store.raise_floor("run", floor(3))
    store.raise_floor("run", floor(3))
    store.raise_floor("run", floor(5))
    for bad in (floor(4), floor(5, "b"), floor(0)):
        refused("ST-IDEN-017", store.raise_floor, "run", bad)
    assert store.floor("run") == floor(5)
    assert store.floor("other") is None


@pytest.mark.forgery
def test_a_leaked_key_cannot_raise_a_floor_for_ever(store):
    """Fast-forward: the number dies with the key, and other floors stay."""
    store.raise_floor("run", floor(10**9))
    store.raise_floor("shared", floor(7, keys=(WORKER, NEXT_WORKER)))
    refused("ST-IDEN-017", store.raise_floor, "run", floor(4, keys=(NEXT_WORKER,)))
    revoked = amended(
        FIRST,
        change(
            add={TrustRole.CHECKPOINT: [NEXT_WORKER.public]},
            revoke=[Revoked(key_id=WORKER.key_id, since=NOW)],
        ),
    )
    store.update([sign_document(revoked, OLD)], NOW)
    assert store.floor("run") is None
    store.raise_floor("run", floor(4, keys=(NEXT_WORKER,)))
    assert store.floor("shared") is not None  # an honest key signed that one too


@pytest.mark.forgery
@pytest.mark.parametrize("name", ["root.json", "floors.json"])
@pytest.mark.parametrize("data", [b"", b"{}", b"null"])
def test_memory_that_cannot_be_read_is_no_first_time(name, data, store):
    (store.folder / name).write_bytes(data)
    refused("ST-IDEN-018", store.current, NOW)
    refused("ST-IDEN-018", store.raise_floor, "run", floor(1))
    refused("ST-IDEN-018", store.update, [TWO], NOW)


def test_memory_that_is_gone_or_a_link_is_no_first_time(store, tmp_path):
    (store.folder / "floors.json").unlink()
    refused("ST-IDEN-018", store.current, NOW)
    (store.folder / "root.json").unlink()
    (store.folder / "root.json").symlink_to(tmp_path / "elsewhere")
    refused("ST-IDEN-018", store.current, NOW)


@pytest.mark.forgery
def test_an_older_root_beside_newer_memory(store):
    store.update([TWO], NOW)
    (store.folder / "root.json").write_bytes(ONE)
    refused("ST-IDEN-018", store.current, NOW)


class CrashError(Exception):
    """The process ended here."""


def crash_at(patch, name):
    """The next write of a file ends the process."""
    good = write_atomic

    def write(path, data, **more):
        if path.name == name:
            raise CrashError
        good(path, data, **more)

    patch.setattr(truststore, "write_atomic", write)


@pytest.mark.parametrize("name", ["root.json", "floors.json"])
def test_a_crash_while_pinning_leaves_nothing_half(name, tmp_path, monkeypatch):
    store = TrustStore(tmp_path / "trust")
    with monkeypatch.context() as patch:
        crash_at(patch, name)
        with pytest.raises(CrashError):
            store.pin(ONE, NOW)
    refused("ST-IDEN-007", store.current, NOW)
    store.pin(ONE, NOW)
    assert store.current(NOW).version == 1


@pytest.mark.parametrize(("name", "version"), [("root.json", 1), ("floors.json", 2)])
def test_a_crash_while_updating_forgets_nothing(name, version, store, monkeypatch):
    store.raise_floor("run", floor(3))
    lost = Revoked(key_id=WORKER.key_id, since=NOW)
    with monkeypatch.context() as patch:
        crash_at(patch, name)
        with pytest.raises(CrashError):
            store.update([sign_document(amended(FIRST, change(revoke=[lost])), OLD)], NOW)
    assert store.current(NOW).version == version
    # The floor dies with the key, and not before.
    assert (store.floor("run") is None) == (version == 2)
