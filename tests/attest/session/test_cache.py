# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The collateral cache; `test_what_was_put_in_comes_out` is the control."""

import base64
import fcntl
import hashlib
import os
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from securetrain.attest.session import cache as cache_module
from securetrain.attest.session.cache import (
    CLOCK_SKEW,
    INDEX_LIMIT,
    INDEX_NAME,
    INDEX_TYPE,
    MAX_ENTRIES,
    CollateralCache,
    Item,
    build_cache,
)
from securetrain.core import canonical
from securetrain.core.errors import AttestationError, UsageError
from securetrain.core.files import write_atomic
from securetrain.evidence.collateral import LIMITS, CollateralKind
from securetrain.identity import dsse
from securetrain.identity.keys import KeyKind, PrivateKey
from tests import vocabulary
from tests.tables import items

KEY = PrivateKey.generate()
KEYS = {KEY.key_id: KEY.public}
OTHER = PrivateKey.generate(KeyKind.P256)
NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)
RIM, OCSP = CollateralKind.RIM, CollateralKind.OCSP


def item(kind=RIM, name="NV_GPU_X", data=b"data", expires=None):
    return Item(kind=kind, id=name, data=data, fetched=NOW, expires=expires)


ITEMS = [item(), item(OCSP, "ab", b"answer", NOW + DAY), item(OCSP, "NV_GPU_X", b"data")]


def build(folder, items=ITEMS, *, key=KEY, now=NOW, expires=NOW + 7 * DAY, **changes):
    return build_cache(folder, items, key, now, expires, **changes)


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "cache"
    build(path)
    return path


def open_cache(folder, keys=KEYS, now=NOW, **changes):
    return CollateralCache.open(folder, keys, now, **changes)


def refused(code, act, *arguments, **changes):
    error = vocabulary.refused(AttestationError, code, act, *arguments, **changes)
    assert error.where
    assert error.fix
    return error


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def document(data=b"data"):
    return hashlib.sha256(data).hexdigest()


def test_what_was_put_in_comes_out(folder):
    cache = open_cache(folder)
    assert cache.get("rim", "NV_GPU_X") == b"data"
    assert cache.get(OCSP, "ab") == b"answer"
    assert cache.get(OCSP, "NV_GPU_X") == b"data"
    assert cache.version == cache.index.version == 1
    assert cache.has("rim", "NV_GPU_X")
    assert not cache.has("crl", "NV_GPU_X")
    assert names(folder) == sorted([INDEX_NAME, document(), document(b"answer")])
    assert [entry.expires for entry in cache.index.entries] == [None, NOW + DAY, None]


def test_an_empty_cache(tmp_path):
    build(tmp_path, [])
    assert open_cache(tmp_path).index.entries == ()


# Adding.


def test_adding_keeps_what_was_there(folder):
    index = build(folder, [item(name="another", data=b"more")], now=NOW + DAY)
    assert index.version == 2
    cache = open_cache(folder, now=NOW + DAY)
    assert cache.get("rim", "another") == b"more"
    assert cache.get("rim", "NV_GPU_X") == b"data"
    assert cache.version == 2


def test_an_item_takes_the_place_of_its_namesake(folder):
    before = open_cache(folder)
    build(folder, [item(OCSP, "ab", b"newer")])
    assert open_cache(folder).get("ocsp", "ab") == b"newer"
    assert before.get("ocsp", "ab") == b"answer", "who reads the last index keeps its documents"
    build(folder, [])
    refused("ST-ATTS-738", before.get, "ocsp", "ab")
    assert document(b"answer") not in names(folder)


def test_an_expired_cache_is_renewed_by_adding(folder):
    later = NOW + 30 * DAY
    refused("ST-ATTS-733", open_cache, folder, now=later)
    build(folder, [], now=later, expires=later + DAY)
    cache = open_cache(folder, now=later)
    assert cache.get("rim", "NV_GPU_X") == b"data"
    refused("ST-ATTS-736", cache.get, "ocsp", "ab")


def test_foreign_files_stay(folder):
    (folder / "README").write_text("notes")
    build(folder, [])
    assert "README" in names(folder)


def test_a_new_operator_key(folder):
    build(folder, [], key=OTHER, keys=KEYS)
    refused("ST-ATTS-732", open_cache, folder)
    assert open_cache(folder, {OTHER.key_id: OTHER.public}).version == 2


def test_many_entries(tmp_path, monkeypatch):
    many = [item(name=f"n{number}") for number in range(MAX_ENTRIES)]
    build(tmp_path, many)
    assert len(open_cache(tmp_path).index.entries) == MAX_ENTRIES
    refused("ST-ATTS-739", build, tmp_path, [item(name="one-more")])
    monkeypatch.setattr(cache_module, "INDEX_LIMIT", 1000)
    assert "an index of" in refused("ST-ATTS-739", build, tmp_path / "x", many).what


@items(
    "id, items",
    ("empty", [item(data=b"")]),
    ("too-large", [item(OCSP, data=bytes(LIMITS[OCSP] + 1))]),
    ("one-name-twice", [item(), item(data=b"other")]),
    ("no-name", [item(name="")]),
    ("path", [item(name="../x")]),
    ("long-name", [item(name="x" * 201)]),
    ("line", [item(name="x\n")]),
)
def test_items_that_are_none(folder, items):
    before = {path: path.read_bytes() for path in folder.iterdir()}
    refused("ST-ATTS-739", build, folder, items)
    assert before == {path: path.read_bytes() for path in folder.iterdir()}, "nothing is written"
    build(folder, [item(OCSP, data=bytes(LIMITS[OCSP])), item(name="x" * 200)])


def test_an_index_must_end_after_it_begins(folder):
    refused("ST-ATTS-739", build, folder, expires=NOW)
    build(folder, expires=NOW + SECOND)


def test_one_writer_at_a_time(folder):
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        assert "another process" in refused("ST-ATTS-739", build, folder).what
    finally:
        os.close(fd)
    build(folder)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    refused("ST-ATTS-739", build, tmp_path / "file" / "cache")


def test_a_write_that_fails_leaves_the_old_cache(folder, monkeypatch):

    def failing(path, data):
        if path.name == INDEX_NAME:
            raise UsageError("ST-USAG-006", "no space left on the device", str(path))
        write_atomic(path, data)

    monkeypatch.setattr(cache_module, "write_atomic", failing)
    assert "no space" in refused("ST-ATTS-739", build, folder, [item(OCSP, "ab", b"new")]).what
    cache = open_cache(folder)
    assert (cache.version, cache.get("ocsp", "ab")) == (1, b"answer")
    monkeypatch.undo()
    build(folder, [])
    assert document(b"new") not in names(folder), "what was left over is tidied"


# The index.


def index_of(folder):
    envelope = canonical.loads((folder / INDEX_NAME).read_bytes())
    return canonical.loads(base64.b64decode(envelope["payload"]))


def write_index(folder, payload, key=KEY, kind=INDEX_TYPE):
    """Sign any payload as the operator."""
    data = payload if isinstance(payload, bytes) else canonical.dumps(payload)
    (folder / INDEX_NAME).write_bytes(dsse.sign(data, kind, [key]))


@pytest.mark.forgery
def test_an_index_by_somebody_else(folder):
    write_index(folder, index_of(folder), OTHER)
    refused("ST-ATTS-732", open_cache, folder)
    refused("ST-ATTS-732", open_cache, folder, {})
    refused("ST-ATTS-732", build, folder)


@pytest.mark.forgery
def test_an_index_that_was_edited(folder):
    envelope = canonical.loads((folder / INDEX_NAME).read_bytes())
    payload = index_of(folder)
    payload["expires"] = "2036-01-01T00:00:00Z"
    envelope["payload"] = base64.b64encode(canonical.dumps(payload)).decode()
    (folder / INDEX_NAME).write_bytes(canonical.dumps(envelope))
    refused("ST-ATTS-732", open_cache, folder)


@pytest.mark.forgery
@items(
    "id, data",
    ("empty", b""),
    ("no-envelope", b"{}"),
    ("pickle", b"\x80\x04."),
    ("size", b" " * (INDEX_LIMIT + 1)),
)
def test_an_index_that_is_none(folder, data):
    (folder / INDEX_NAME).write_bytes(data)
    refused("ST-ATTS-731", open_cache, folder)
    refused("ST-ATTS-731", build, folder)


@pytest.mark.forgery
def test_another_document_of_the_same_key(folder):
    write_index(folder, index_of(folder), kind=dsse.IN_TOTO)
    refused("ST-ATTS-731", open_cache, folder)


@pytest.mark.forgery
def test_an_index_that_is_missing_or_a_link(folder, tmp_path):
    path = folder / INDEX_NAME
    elsewhere = tmp_path / "index"
    path.rename(elsewhere)
    error = refused("ST-ATTS-731", open_cache, folder)
    assert "securetrain attest cache add" in error.fix
    assert INDEX_NAME in error.where
    path.symlink_to(elsewhere)
    refused("ST-ATTS-731", open_cache, folder)
    refused("ST-ATTS-731", build, folder)
    path.unlink()
    path.mkdir()
    refused("ST-ATTS-731", open_cache, folder)


def entry(**changes):
    return {
        "kind": "rim",
        "id": "x",
        "sha256": document(),
        "size": 4,
        "fetched": "2026-06-01T12:00:00Z",
        "expires": None,
        **changes,
    }


def index(**changes):
    return {
        "version": 1,
        "created": "2026-06-01T12:00:00Z",
        "expires": "2026-06-08T12:00:00Z",
        "entries": [entry()],
        **changes,
    }


def test_an_index_by_hand(folder):
    write_index(folder, index())
    assert open_cache(folder).get("rim", "x") == b"data"


@pytest.mark.forgery
@items(
    "id, payload",
    ("unknown-field", index(more=1)),
    ("unknown-field-of-an-entry", index(entries=[entry(more=1)])),
    ("version-0", index(version=0)),
    ("version-text", index(version="1")),
    ("no-time-zone", index(created="2026-06-01T12:00:00")),
    ("path", index(entries=[entry(sha256="../../../etc/passwd")])),
    ("upper-case", index(entries=[entry(sha256=document().upper())])),
    ("line", index(entries=[entry(sha256=document() + "\n")])),
    ("id", index(entries=[entry(id="../x")])),
    ("id-with-a-line", index(entries=[entry(id="x\n")])),
    ("kind", index(entries=[entry(kind="key")])),
    ("size-0", index(entries=[entry(size=0)])),
    ("size", index(entries=[entry(size=1 << 40)])),
    ("twice", index(entries=[entry(), entry(size=5)])),
    ("many", index(entries=[entry()] * (MAX_ENTRIES + 1))),
    ("spelling", b'{"version": 1}'),
    ("array", b"[]"),
)
def test_an_index_of_another_shape(folder, payload):
    write_index(folder, payload)
    refused("ST-ATTS-731", open_cache, folder)


@pytest.mark.forgery
def test_a_size_that_no_document_of_its_kind_has(folder):
    (folder / document()).write_bytes(bytes(LIMITS[OCSP] + 1))
    write_index(folder, index(entries=[entry(kind="ocsp", size=LIMITS[OCSP] + 1)]))
    assert "the limit is" in refused("ST-ATTS-731", open_cache(folder).get, "ocsp", "x").what


# Time.


def test_freshness(folder):
    end = NOW + 7 * DAY
    open_cache(folder, now=end)
    error = refused("ST-ATTS-733", open_cache, folder, now=end + SECOND)
    assert "securetrain attest cache add" in error.fix
    open_cache(folder, now=NOW - CLOCK_SKEW)
    refused("ST-ATTS-733", open_cache, folder, now=NOW - CLOCK_SKEW - SECOND)


def test_freshness_of_an_entry(folder):
    cache = open_cache(folder, now=NOW + DAY)
    assert cache.get("ocsp", "ab") == b"answer"
    cache = open_cache(folder, now=NOW + DAY + SECOND)
    error = refused("ST-ATTS-736", cache.get, "ocsp", "ab")
    assert document(b"answer") in error.where
    assert cache.has("ocsp", "ab")
    assert cache.get("rim", "NV_GPU_X") == b"data", "it lives as long as the index"


def test_a_cache_that_is_kept_open(folder):
    cache = open_cache(folder)
    later = cache.at(NOW + DAY + SECOND)
    refused("ST-ATTS-736", later.get, "ocsp", "ab")
    assert later.get("rim", "NV_GPU_X") == cache.get("rim", "NV_GPU_X")
    refused("ST-ATTS-733", cache.at, NOW + 8 * DAY)


@pytest.mark.forgery
def test_an_older_copy_put_back(folder):
    old = (folder / INDEX_NAME).read_bytes()
    build(folder, [])
    seen = open_cache(folder).version
    open_cache(folder, floor=seen)
    (folder / INDEX_NAME).write_bytes(old)
    open_cache(folder)
    refused("ST-ATTS-734", open_cache, folder, floor=seen, says="version 1, but 2")


# Documents.


@pytest.mark.forgery
@items(
    "id, data",
    ("shorter", b"dat"),
    ("longer", b"data and more"),
    ("same-size", b"DATA"),
    ("empty", b""),
)
def test_a_document_that_was_changed(folder, data):
    cache = open_cache(folder)
    path = folder / document()
    path.write_bytes(data)
    assert refused("ST-ATTS-737", cache.get, "rim", "NV_GPU_X").where == str(path)
    assert cache.get("ocsp", "ab") == b"answer"
    refused("ST-ATTS-737", build, folder, [])
    build(folder, [item(), item(OCSP, "NV_GPU_X")])
    assert cache.get("rim", "NV_GPU_X") == b"data", "given anew, it is whole again"


@pytest.mark.forgery
def test_documents_are_verified_at_every_use(folder):
    cache = open_cache(folder)
    cache.get("rim", "NV_GPU_X")
    (folder / document()).write_bytes(b"DATA")
    refused("ST-ATTS-737", cache.get, "rim", "NV_GPU_X")


@pytest.mark.forgery
@pytest.mark.parametrize("replacement", ["nothing", "link", "folder", "pipe"])
def test_a_document_that_is_no_file(folder, tmp_path, replacement):
    path = folder / document()
    elsewhere = tmp_path / "data"
    path.rename(elsewhere)
    match replacement:
        case "link":
            path.symlink_to(elsewhere)
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
    error = refused("ST-ATTS-738", open_cache(folder).get, "rim", "NV_GPU_X", names=str(path))
    assert "securetrain attest cache add" in error.fix
    refused("ST-ATTS-738", build, folder, [])


@pytest.mark.forgery
def test_documents_that_changed_places(folder):
    one, two = folder / document(), folder / document(b"answer")
    one.write_bytes(b"answer")
    two.write_bytes(b"data")
    cache = open_cache(folder)
    refused("ST-ATTS-737", cache.get, "rim", "NV_GPU_X")
    refused("ST-ATTS-737", cache.get, "ocsp", "ab")


def test_what_is_not_there(folder):
    cache = open_cache(folder)
    for kind, name in (("rim", "NV_GPU_Y"), ("crl", "ab"), ("other", "ab"), ("rim", "../x")):
        error = refused("ST-ATTS-735", cache.get, kind, name)
        assert str(folder) in error.where
        assert "securetrain attest cache add" in error.fix


@given(st.binary(max_size=300))
def test_any_index_is_refused_with_a_code(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("cache")
    (folder / INDEX_NAME).write_bytes(data)
    vocabulary.refused(AttestationError, "ST-ATTS-73", open_cache, folder)
    write_index(folder, data)
    vocabulary.refused(AttestationError, "ST-ATTS-73", open_cache, folder)
