# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from datetime import timedelta

import pytest

from securetrain.core.errors import IdentityError, UsageError
from securetrain.identity.rotation import amended
from securetrain.identity.trust import sign_document
from securetrain.identity.truststore import TrustStore, load_trust, published_name
from tests import vocabulary
from tests.identity.test_rotation import BOTH, FIRST, NEW, NOW, OLD, SECOND, YEAR, change, replaced
from tests.tables import each

ONE = sign_document(FIRST, OLD[:2])
TWO = sign_document(SECOND, BOTH)
THREE = sign_document(amended(SECOND, change()), NEW)


def refused(code, function, *arguments):
    vocabulary.refused(IdentityError, code, function, *arguments)


@pytest.fixture
def store(tmp_path):
    store = TrustStore(tmp_path / "trust")
    store.pin(ONE, NOW)
    return store


def test_nothing_is_trusted_before_a_person_says_so(tmp_path):
    store = TrustStore(tmp_path / "trust")
    refused("ST-IDEN-007", store.current, NOW)
    refused("ST-IDEN-007", store.update, [TWO], NOW)


def test_a_pin(store):
    assert store.current(NOW).version == 1
    store.pin(ONE, NOW)
    vocabulary.refused(UsageError, "ST-USAG-005", store.pin, TWO, NOW)
    assert store.current(NOW).version == 1
    assert store.folder.stat().st_mode & 0o777 == 0o700
    assert (store.folder / "trusted.json").stat().st_mode & 0o777 == 0o600


def test_an_expired_root_is_not_pinned(tmp_path):
    store = TrustStore(tmp_path / "trust")
    refused("ST-IDEN-008", store.pin, ONE, NOW + YEAR)
    refused("ST-IDEN-007", store.current, NOW)


def test_a_person_names_a_file_or_a_folder(store, tmp_path):
    (tmp_path / "root.json").write_bytes(TWO)
    assert load_trust(tmp_path / "root.json", NOW).version == 2
    assert load_trust(store.folder, NOW).version == 1
    # A folder in which roots are published remembers nothing, and is not taken for one that does.
    refused("ST-IDEN-007", load_trust, tmp_path, NOW)


@pytest.mark.forgery
def test_nothing_goes_back(store):
    assert store.update([TWO], NOW).version == 2
    assert TrustStore(store.folder).current(NOW).version == 2
    other = sign_document(replaced(SECOND, expires=NOW + 2 * YEAR), BOTH)
    for data in (ONE, TWO, other):
        refused("ST-IDEN-017", store.update, [data], NOW)
    assert store.current(NOW).version == 2


@pytest.mark.forgery
def test_a_chain_is_followed_as_far_as_it_is_good(store):
    leap = sign_document(replaced(amended(SECOND, change()), version=4), BOTH)
    refused("ST-IDEN-016", store.update, [TWO, leap, THREE], NOW)
    assert store.current(NOW).version == 2
    assert store.update([THREE], NOW).version == 3


def test_a_published_folder(store, tmp_path):
    published = tmp_path / "published"
    published.mkdir()
    assert store.update_from(published, NOW).version == 1
    for version, data in ((1, ONE), (2, TWO)):
        (published / published_name(version)).write_bytes(data)
    assert store.update_from(published, NOW).version == 2
    (published / published_name(3)).write_bytes(TWO)
    refused("ST-IDEN-017", store.update_from, published, NOW)
    (published / published_name(3)).write_bytes(THREE)
    assert store.update_from(published, NOW).version == 3


@each(
    "id, files, reached",
    ("3 without 2", {"1": ONE, "3": THREE}, 1),
    ("the newest without 2", {"1": ONE, "": THREE}, 1),
    ("4 without 3", {"1": ONE, "2": TWO, "4": THREE}, 2),
    ("the newest without 3", {"2": TWO, "": THREE}, 2),
)
def test_a_gap_in_published_roots_is_no_end_of_them(tmp_path, files, reached):
    """Whoever withholds a version would keep this machine at a root whose keys were revoked."""
    folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
    store, published = TrustStore(folder / "trust"), folder / "published"
    store.pin(ONE, NOW)
    published.mkdir()
    for name, data in files.items():
        (published / f"{name}{'.' if name else ''}root.json").write_bytes(data)
    refused("ST-IDEN-016", store.update_from, published, NOW)
    assert store.current(NOW).version == reached
    (published / "2.root.json").write_bytes(TWO)
    (published / "3.root.json").write_bytes(THREE)
    (published / "4.root.json").unlink(missing_ok=True)
    assert store.update_from(published, NOW).version == 3, "the control"


def test_an_expired_end_is_refused_and_yet_remembered(store):
    short = sign_document(replaced(SECOND, expires=NOW + timedelta(days=1)), BOTH)
    later = NOW + timedelta(days=2)
    refused("ST-IDEN-008", store.update, [short], later)
    refused("ST-IDEN-008", store.current, later)
    assert store.current(NOW).version == 2


@pytest.mark.forgery
@pytest.mark.parametrize("data", [b"", b"{}", b"null", ONE[:-1], sign_document(FIRST, OLD[:1])])
def test_memory_that_cannot_be_read_is_no_first_time(data, store):
    (store.folder / "trusted.json").write_bytes(data)
    refused("ST-IDEN-018", store.current, NOW)
    refused("ST-IDEN-018", store.update, [TWO], NOW)
    vocabulary.refused(UsageError, "ST-USAG-005", store.pin, ONE, NOW)


def test_memory_that_is_a_link_is_no_first_time(store, tmp_path):
    (store.folder / "trusted.json").unlink()
    (store.folder / "trusted.json").symlink_to(tmp_path / "elsewhere")
    refused("ST-IDEN-018", store.current, NOW)
