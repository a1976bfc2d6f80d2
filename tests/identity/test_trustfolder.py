# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from datetime import timedelta

import pytest

from securetrain.core.errors import IdentityError, UsageError
from securetrain.identity import dsse
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot, sign_document
from securetrain.identity.trustfolder import TrustFolder
from tests.identity.test_rotation import FIRST, NEW, NOW, OLD, YEAR, change, replaced
from tests.vocabulary import refused


@pytest.fixture
def folder(tmp_path):
    return TrustFolder(tmp_path / "trust")


@pytest.fixture
def made(folder):
    folder.begin(FIRST, OLD[:2], NOW)
    return folder


def test_a_version_at_a_time(made):
    add = {TrustRole.ROOT: [key.public for key in NEW]}
    outcome = made.propose(change(add=add), OLD[:1], NOW)
    assert outcome.missing == {"its own root keys": 1, "the root keys of version 1": 1}
    assert made.newest().version == 1
    assert made.draft().version == 2
    outcome = made.sign([NEW[0]], NOW)  # enough of the new ones, not of the old ones
    assert outcome.missing == {"the root keys of version 1": 1}
    outcome = made.sign([OLD[1]], NOW)
    assert (outcome.missing, outcome.path.name) == ({}, "2.root.json")
    assert made.draft() is None
    assert made.newest().version == 2
    assert TrustRoot.load(made.newest_path, NOW).version == 2


def test_no_chain_that_a_client_would_refuse(made):
    late = NOW + YEAR + timedelta(days=1)
    refused(IdentityError, "ST-IDEN-008", made.propose, change(), OLD[:2], late)
    (made.folder / "draft.json").write_bytes(sign_document(replaced(FIRST, version=3), OLD))
    refused(IdentityError, "ST-IDEN-016", made.sign, OLD[:1], NOW)
    (made.folder / "draft.json").write_bytes(sign_document(FIRST, OLD))
    refused(IdentityError, "ST-IDEN-017", made.sign, OLD[:1], NOW)
    made.discard_draft()
    (made.folder / "draft.json").write_bytes(dsse.sign(b"{}", "application/other", OLD))
    refused(IdentityError, "ST-IDEN-004", made.sign, OLD[:1], NOW)
    assert made.newest().version == 1


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    folder = TrustFolder(tmp_path / "file" / "trust")
    with pytest.raises(UsageError) as caught:
        folder.begin(FIRST, OLD, NOW)
    assert (caught.value.code, caught.value.where) == ("ST-USAG-002", str(folder.folder))


def test_the_first_version_is_the_first(folder):
    refused(UsageError, "ST-USAG-001", folder.propose, change(), OLD, NOW)
    folder.folder.mkdir()
    refused(IdentityError, "ST-IDEN-016", folder.begin, replaced(FIRST, version=2), OLD, NOW)


def test_nothing_is_published_twice(made):
    refused(UsageError, "ST-USAG-005", made.begin, FIRST, OLD, NOW)
    made.propose(change(), [PrivateKey.generate()], NOW)
    refused(UsageError, "ST-USAG-005", made.propose, change(), OLD, NOW)
