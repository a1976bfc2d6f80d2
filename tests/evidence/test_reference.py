# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Signed reference values; `test_a_good_file` is the control of every refusal."""

import base64
import hashlib
from datetime import timedelta

import msgspec
import pytest

from securetrain.attest.fleet.bundle import key_text
from securetrain.attest.session.reference_file import (
    load_reference_values,
    read_reference_values,
    write_reference_values,
)
from securetrain.attest.session.state import MemoryState
from securetrain.core import canonical
from securetrain.core.errors import AttestationError
from securetrain.evidence import reference
from securetrain.evidence.inventory import EnrolledNode
from securetrain.evidence.reference import (
    PAYLOAD_TYPE,
    ReferenceValues,
    sign_reference_values,
    trusted_keys,
)
from securetrain.identity import dsse
from securetrain.identity.keys import KeyKind, PrivateKey
from tests import vocabulary
from tests.evidence.tpm.forge import NOW
from tests.tables import items

KEY = PrivateKey.generate()
SIGNED_BY = [key_text(KEY.public)]
VALUES = ReferenceValues(
    version=3,
    issued=NOW,
    expires=NOW + timedelta(days=1),
    nodes={"node-0": EnrolledNode(ek_names=("000b" + "ab" * 32,))},
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "values.json"


def refused(path, now=NOW, signed_by=None, said=""):
    given = (path, signed_by or SIGNED_BY, now, MemoryState())
    how = {"says": said, "names": str(path)}
    return vocabulary.refused(AttestationError, "ST-ATTS-009", load_reference_values, *given, **how)


def test_a_good_file(path):
    write_reference_values(path, VALUES, KEY)
    found = load_reference_values(path, SIGNED_BY, NOW, MemoryState())
    assert found.values == VALUES
    assert found.digest == hashlib.sha256(canonical.encode(VALUES)).hexdigest()
    assert found.where == str(path)
    assert list(found.signed_by) == [KEY.key_id]


@pytest.mark.parametrize("kind", list(KeyKind))
def test_one_of_several_keys(path, kind):
    key = PrivateKey.generate(kind)
    write_reference_values(path, VALUES, key)
    both = [*SIGNED_BY, key_text(key.public)]
    assert load_reference_values(path, both, NOW, MemoryState()).values == VALUES


@items(
    "offset, good",
    (timedelta(0), True),
    (timedelta(hours=23, minutes=59), True),
    (timedelta(days=1), False),
    (timedelta(seconds=-1), False),
)
def test_their_time(path, offset, good):
    write_reference_values(path, VALUES, KEY)
    if good:
        load_reference_values(path, SIGNED_BY, NOW + offset, MemoryState())
    else:
        assert "valid from" in refused(path, NOW + offset).what
    assert read_reference_values(path, SIGNED_BY, MemoryState()).values == VALUES


def test_an_empty_section_accepts_nothing():
    empty = ReferenceValues(version=1, issued=NOW, expires=NOW)
    assert empty.tpm.roots == empty.snp.measurements == empty.gpu.devices == ()
    assert empty.tdx.mr_tds == empty.boot.boot_applications == ()
    assert empty.ima.policy is None


@pytest.mark.forgery
@items(
    "id, data",
    ("another-key", sign_reference_values(VALUES, PrivateKey.generate())),
    ("another-type", dsse.sign(canonical.encode(VALUES), "application/json", [KEY])),
    ("respelt", dsse.sign(b" " + canonical.encode(VALUES), PAYLOAD_TYPE, [KEY])),
    ("no-envelope", canonical.encode(VALUES)),
    ("empty", b""),
    ("signature", sign_reference_values(VALUES, KEY).replace(b'"sig":"', b'"sig":"A', 1)),
    ("unsigned", dsse.sign(canonical.encode(VALUES), PAYLOAD_TYPE, [])),
)
def test_a_file_that_was_not_signed_so(path, data):
    path.write_bytes(data)
    refused(path)


@pytest.mark.forgery
def test_a_payload_that_was_changed_after_it_was_signed(path):
    envelope = msgspec.json.decode(sign_reference_values(VALUES, KEY))
    other = msgspec.structs.replace(VALUES, version=4)
    envelope["payload"] = base64.b64encode(canonical.encode(other)).decode()
    path.write_bytes(canonical.dumps(envelope))
    refused(path, said="does not verify")


@items(
    "id, change, said",
    ("unknown-field", {"accept": "everything"}, "unknown field"),
    ("version-zero", {"version": 0}, "version"),
    ("version-too-high", {"version": (1 << 52) + 1}, "version"),
    ("version-text", {"version": "3"}, "version"),
    ("no-time-zone", {"issued": "2026-06-01T12:00:00"}, "issued"),
    ("no-end", {"expires": None}, "expires"),
    ("node-unknown-field", {"nodes": {"n": {"ek_name": []}}}, "unknown field"),
    ("section-unknown-field", {"tpm": {"any_root": True}}, "unknown field"),
    ("not-a-digest", {"snp": {"measurements": ["zz"]}}, "measurements"),
    ("no-such-register", {"boot": {"unjudged": [24]}}, "unjudged"),
)
def test_a_document_of_another_schema(path, change, said):
    document = msgspec.to_builtins(VALUES) | change
    path.write_bytes(dsse.sign(canonical.dumps(document), PAYLOAD_TYPE, [KEY]))
    refused(path, said=said)


def test_too_many_nodes(path, monkeypatch):
    two = msgspec.structs.replace(VALUES, nodes={name: EnrolledNode() for name in ("a", "b")})
    write_reference_values(path, two, KEY)
    monkeypatch.setattr(reference, "MAX_NODES", 1)
    refused(path, said="2 nodes, the limit is 1")
    write_reference_values(path, VALUES, KEY)
    good = path.read_bytes()
    given = (write_reference_values, path, two, KEY)
    vocabulary.refused(AttestationError, "ST-ATTS-018", *given, says="2 nodes, the limit is 1")
    assert path.read_bytes() == good, "the last good edition stands"
    load_reference_values(path, SIGNED_BY, NOW, MemoryState())


def test_a_giant(path):
    with path.open("wb") as file:
        file.truncate(reference.FILE_LIMIT + 1)
    refused(path, said="larger than the limit")


def test_a_missing_file(path):
    refused(path, said="No such file")


@pytest.mark.parametrize("text", ["", "%%%%", "AAAA", "not base64", "TUlJQg=="])
def test_keys_of_the_policy_that_are_none(path, text):
    write_reference_values(path, VALUES, KEY)
    refused(path, signed_by=[*SIGNED_BY, text], said="no public key")


def test_trusted_keys_by_their_id():
    assert trusted_keys(SIGNED_BY, "w") == {KEY.key_id: KEY.public}
