# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import hashlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from securetrain.chain import documents
from securetrain.chain import store as chain_store
from securetrain.chain.store import (
    PIECE_LIMIT,
    EvidenceStore,
    InMemory,
    Places,
    document,
    documents_at_hand,
)
from securetrain.core.errors import IntegrityError
from tests.tables import each
from tests.vocabulary import refused

CODE = documents.Code(python="3.11")


def test_a_piece_is_private_and_named_by_its_digest(tmp_path):
    store = EvidenceStore(tmp_path / "evidence")
    digest = store.put(b"evidence")
    assert digest == hashlib.sha256(b"evidence").hexdigest()
    assert store.get(digest) == b"evidence"
    assert stat.S_IMODE((store.folder / digest).stat().st_mode) == 0o600
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    assert list(store.names()) == [digest]
    assert store.put(b"evidence") == digest


@pytest.mark.parametrize("harm", [b"", b"evidencE", b"evidence\n", b"x" * 9])
def test_damaged_bytes_are_refused_and_put_right_when_kept_again(tmp_path, harm):
    store = EvidenceStore(tmp_path)
    digest = store.put(b"evidence")
    (tmp_path / digest).write_bytes(harm)
    assert "another digest" not in str(refused(IntegrityError, "ST-CHAN-001", store.get, digest))
    store.put(b"evidence")
    assert store.get(digest) == b"evidence"


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "device"])
def test_only_regular_files_are_evidence(tmp_path, kind):
    store = EvidenceStore(tmp_path / "here")
    digest = store.put(b"evidence")
    path = store.folder / digest
    path.unlink()
    if kind == "link":
        (tmp_path / "there").write_bytes(b"evidence")
        path.symlink_to(tmp_path / "there")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    refused(IntegrityError, "ST-CHAN-001", store.get, digest)


@pytest.mark.parametrize("name", ["", "../trust.json", "A" * 64, "a" * 63, "a" * 64 + "\n"])
def test_a_name_that_is_no_digest_is_refused(tmp_path, name):
    refused(IntegrityError, "ST-CHAN-001", EvidenceStore(tmp_path).get, name)


def test_what_cannot_be_kept_is_said(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    store = EvidenceStore(tmp_path / "file")
    refused(IntegrityError, "ST-CHAN-002", store.put, b"evidence")
    big = EvidenceStore(tmp_path / "big")
    refused(IntegrityError, "ST-CHAN-002", big.put, bytes(PIECE_LIMIT + 1))
    assert not big.folder.exists()


def test_places_are_asked_in_order_and_a_damaged_one_gives_way(tmp_path):
    first, second = EvidenceStore(tmp_path / "a/evidence"), EvidenceStore(tmp_path / "b")
    for store in (first, second):
        store.folder.mkdir(parents=True)
    digest = first.put(b"one")
    second.put(b"one")
    other = second.put(b"two")
    places = Places.of([tmp_path / "a", tmp_path / "b"])
    (first.folder / digest).write_bytes(b"harm")
    assert places.get(digest) == b"one"
    assert places.get(other) == b"two"
    assert sorted(places.names()) == sorted([digest, other])
    assert places.get("0" * 64) is None
    (second.folder / digest).unlink()
    refused(IntegrityError, "ST-CHAN-001", places.get, digest)


def test_a_document_is_of_its_own_kind_alone(tmp_path):
    store = EvidenceStore(tmp_path)
    digest = store.keep(CODE)
    assert document(store, digest, documents.Code) == CODE
    refused(IntegrityError, "ST-CHAN-001", document, store, digest, documents.Job)
    assert document(store, "0" * 64, documents.Code) is None
    assert list(documents_at_hand(store, documents.Code)) == [CODE]
    assert list(documents_at_hand(store, documents.Job)) == []


GOOD = documents.encode(CODE)


@each(
    "name, data",
    ("empty", b""),
    ("nothing said", b"{}"),
    ("trailing byte", GOOD + b"\n"),
    ("unknown field", GOOD.replace(b'"python"', b'"Python"')),
    ("field left out", GOOD.replace(b'"dirty":null,', b"")),
    ("later version", GOOD.replace(b"code.v1", b"code.v2")),
    ("not canonical", GOOD.replace(b'{"commit"', b'{ "commit"')),
    ("twin", GOOD.replace(b'"commit":""', b'"commit":"","commit":""')),
    ("no commit", GOOD.replace(b'"commit":""', b'"commit":"HEAD"')),
    ("deep", b"[" * 100_000),
)
def test_malformed_documents_are_refused(name, data):
    refused(IntegrityError, "ST-CHAN-001", documents.decode, data, documents.Code)


@each("path", "/etc/passwd", "../up.py", "a/../b.py", "a/..", "a\\b", "", ".")
def test_no_path_of_a_machine_is_in_a_manifest(path):
    entry = documents.CodeFile(module="m", path=path, sha256="0" * 64, size=1)
    refused(IntegrityError, "ST-CHAN-001", documents.encode, documents.Code(files=(entry,)))


def test_a_piece_in_memory_is_of_its_digest():
    pieces = InMemory()
    digest = pieces.keep(CODE)
    pieces.pieces[digest] = b"harm"
    refused(IntegrityError, "ST-CHAN-001", pieces.get, digest)


KILLED = """
import sys
from pathlib import Path
from securetrain.chain.store import EvidenceStore
store = EvidenceStore(Path(sys.argv[1]))
print("begun", flush=True)
for number in range(100_000):
    store.put(b"%d " % number * 5_000)
"""


def test_a_kill_leaves_pieces_whole_or_absent(tmp_path):
    folder = tmp_path / "evidence"
    writer = subprocess.Popen([sys.executable, "-c", KILLED, str(folder)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"begun\n"
    while not (folder.is_dir() and len(list(folder.iterdir())) > 5):
        assert writer.poll() is None
    writer.kill()
    writer.wait()
    writer.stdout.close()
    store = EvidenceStore(Path(folder))
    names = list(store.names())
    assert names
    assert all(store.get(name) for name in names)


def test_a_folder_has_a_limit_and_is_one(tmp_path, monkeypatch):
    store = EvidenceStore(tmp_path / "evidence")
    assert list(store.names()) == []
    for data in (b"a", b"b"):
        store.put(data)
    monkeypatch.setattr(chain_store, "MAX_PIECES", 1)
    refused(IntegrityError, "ST-CHAN-001", lambda: list(store.names()))
    (tmp_path / "file").write_bytes(b"")
    refused(IntegrityError, "ST-CHAN-001", lambda: list(EvidenceStore(tmp_path / "file").names()))


def test_what_is_looked_for_by_its_kind_is_small_and_there(tmp_path, monkeypatch):
    """A piece may go while others are read; a large one is none of those that are looked for."""
    kept = InMemory()
    digest = kept.keep(CODE)
    monkeypatch.setattr(InMemory, "names", lambda _: iter(["ab" * 32, digest]))
    assert list(documents_at_hand(kept, documents.Code)) == [CODE]
    monkeypatch.setattr(chain_store, "SMALL", len(documents.encode(CODE)) - 1)
    assert list(documents_at_hand(kept, documents.Code)) == []


def test_a_piece_lies_in_a_file_of_its_own(tmp_path):
    places = Places.of([tmp_path])
    digest = EvidenceStore(tmp_path).put(b"evidence")
    assert places.path_of(digest) == tmp_path / digest
    assert places.path_of("ab" * 32) is None
    (tmp_path / ("ab" * 32)).mkdir()
    assert places.path_of("ab" * 32) is None
    (tmp_path / ("cd" * 32)).symlink_to(tmp_path / digest)
    assert places.path_of("cd" * 32) is None
