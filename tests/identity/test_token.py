# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import base64
import hashlib
from datetime import UTC, datetime

import msgspec

from securetrain.core import canonical
from securetrain.core.errors import IdentityError
from securetrain.identity.token import PREFIX, Token, parse_token
from tests.tables import each
from tests.vocabulary import refused

TOKEN = Token(
    host="10.0.0.1",
    port=29401,
    ca="ab" * 32,
    trust_domain="cluster.example",
    job="job-1",
    node="node-0",
    ends=datetime(2026, 5, 4, 12, tzinfo=UTC),
    secret=bytes(range(16)),
)


DOCUMENT = msgspec.to_builtins(TOKEN)


def pack(document, flip=0):
    body = canonical.dumps(document)
    checksum = hashlib.sha256(body).digest()[:4]
    data = body + bytes([checksum[0] ^ flip]) + checksum[1:]
    return PREFIX + base64.urlsafe_b64encode(data).decode().rstrip("=")


def changed(**changes):
    return pack({**DOCUMENT, **changes})


def test_round_trip():
    assert parse_token(TOKEN.text()) == TOKEN
    assert parse_token(f"  {TOKEN.text()}\n") == TOKEN
    assert changed() == TOKEN.text()


def test_it_is_one_word_for_any_shell():
    text = TOKEN.text()
    assert len(text) < 600
    assert all(ch.isalnum() or ch in "_-" for ch in text)


def test_the_key_depends_on_the_secret_alone_and_is_not_it():
    assert msgspec.structs.replace(TOKEN, node="node-1").key.key_id == TOKEN.key.key_id
    assert msgspec.structs.replace(TOKEN, secret=bytes(16)).key.key_id != TOKEN.key.key_id
    assert TOKEN.secret not in TOKEN.invitation.key.spki


def test_what_is_kept_holds_no_secret():
    kept = repr(TOKEN.invitation)
    assert repr(TOKEN.secret) not in kept
    assert TOKEN.secret.hex() not in kept


def test_a_token_in_a_log_is_no_token():
    for text in (repr(TOKEN), str(TOKEN), f"{TOKEN}"):
        assert TOKEN.secret.hex() not in text
        assert base64.b64encode(TOKEN.secret).decode() not in text
        assert "node-0" in text


@each(
    "id, text",
    ("empty", ""),
    ("no prefix", TOKEN.text()[len(PREFIX) :]),
    ("cut", TOKEN.text()[:-5]),
    ("longer", TOKEN.text() + "A"),
    ("mistyped", TOKEN.text().replace("A", "B", 1)),
    ("not base64url", PREFIX + "!" * 40),
    ("too long", PREFIX + "A" * 5000),
    ("not ASCII", PREFIX + "\u0430" * 40),
    ("only the checksum", pack(DOCUMENT, flip=1)),
    ("no fields", pack({})),
    ("no object", pack([])),
    ("unknown field", changed(more=1)),
    ("port 0", changed(port=0)),
    ("short secret", changed(secret="AAAA")),
    ("fingerprint in capitals", changed(ca="AB" * 32)),
    ("name that no certificate has", changed(node="a/../b")),
    ("no job", changed(job="")),
    ("time without zone", changed(ends="2026-05-04T12:00:00")),
)
def test_a_malformed_token(text):
    error = refused(IdentityError, "ST-IDEN-014", parse_token, text)
    assert error.__context__ is None or "AAECAwQF" not in str(error.__context__)
    assert "AAECAwQF" not in str(error), "the secret is not repeated"


def test_length_is_judged_first():
    refused(IdentityError, "too long", parse_token, PREFIX + "A" * 5000)
