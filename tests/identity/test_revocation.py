# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import json
from datetime import UTC, datetime, timedelta

import pytest

from securetrain.core import canonical
from securetrain.core.errors import IdentityError
from securetrain.identity import dsse
from securetrain.identity.job_ca import JobCA
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.register import Kind, Revoked
from securetrain.identity.revocation import PAYLOAD_TYPE, RevocationList, sign_list, verify_list
from securetrain.identity.spiffe import Role
from tests.tables import each

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
KEY = PrivateKey.generate(KeyKind.P256)
ENTRIES = [
    Revoked(kind=Kind.NODE, name="node-0", reason="sold", since=NOW),
    Revoked(kind=Kind.SERIAL, name="1f", reason="", since=NOW),
]


def good(entries=ENTRIES, domain="a.example", key=KEY):
    return sign_list(domain, entries, key, NOW)


def verify(data, least=0):
    return verify_list(data, KEY.public, "a.example", least=least, where="revoked.json")


def test_round_trip():
    found = verify(good(), least=2)
    assert found.number == 2
    assert found.find("node-0", "ffff", "run-7").reason == "sold"
    assert found.find("node-7", "1f", "run-7").kind is Kind.SERIAL
    assert found.find("node-7", "1e", "run-7") is None


def test_a_nodes_name_is_no_serial_and_a_serial_is_no_node():
    found = verify(good())
    assert found.find("1f", "0", "run-7") is None
    assert found.find("x", "node-0", "run-7") is None


def test_what_a_certificate_is_refused_with():
    ca = JobCA.create("a.example", "job-1", NOW)
    key = PrivateKey.generate(KeyKind.P256)
    leaf = ca.issue(Role.NODE, key.public, NOW, node="node-0", lifetime=timedelta(hours=1))
    with pytest.raises(IdentityError, match=r"node node-0 was revoked at 2026-05-04.*sold") as e:
        verify(good()).check("node-0", leaf, "run-7")
    assert e.value.code == "ST-IDEN-011"
    verify(good()).check("node-1", leaf, "run-7")


def lie(**changes):
    payload = dsse.verify(good(), PAYLOAD_TYPE, {KEY.key_id: KEY.public}).data
    document = {**json.loads(payload), **changes}
    return dsse.sign(canonical.encode(document), PAYLOAD_TYPE, [KEY])


def test_the_lies_below_begin_with_the_truth():
    assert verify(lie()) == verify(good())


@each(
    "id, data, says",
    ("another signer", good(key=PrivateKey.generate()), "ST-IDEN-003"),
    ("empty", b"", "ST-IDEN-004"),
    ("no envelope", b"{}", "ST-IDEN-004"),
    ("signature", good().replace(b'"sig":"M', b'"sig":"N'), "ST-IDEN-00"),
    ("other type", dsse.sign(b"{}", "application/vnd.in-toto+json", [KEY]), "ST-IDEN-004"),
    ("another domain", good(domain="b.example"), "of b.example"),
    ("number", lie(number=9), "number 9 with 2 entries"),
    ("negative", lie(number=-1), "ST-USAG-008"),
    ("unknown field", lie(more=1), "ST-USAG-008"),
    ("unknown kind", lie(entries=[{"kind": "planet"}]), "ST-USAG-008"),
    ("no time", lie(issued="yesterday"), "ST-USAG-008"),
)
def test_a_list_that_is_not_good(data, says):
    with pytest.raises(IdentityError, match=says) as caught:
        verify(data)
    assert caught.value.code == "ST-IDEN-012"
    assert caught.value.where == "revoked.json"


def test_an_old_list():
    with pytest.raises(IdentityError, match="number 1 after number 2: an old list"):
        verify(good(ENTRIES[:1]), least=2)


def test_it_is_a_document_of_the_schema():
    assert RevocationList.__struct_fields__ == ("trust_domain", "number", "issued", "entries")
