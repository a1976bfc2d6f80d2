# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import base64
import hashlib
from datetime import UTC, datetime

import msgspec
import pytest

from securetrain.core import canonical
from securetrain.core.errors import IdentityError
from securetrain.identity.token import PREFIX, Token, parse_token

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
    other = msgspec.structs.replace(TOKEN, node="node-1")
    assert other.key.key_id == TOKEN.key.key_id
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


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param(TOKEN.text()[len(PREFIX) :], id="no prefix"),
        pytest.param(TOKEN.text()[:-5], id="cut"),
        pytest.param(TOKEN.text() + "A", id="longer"),
        pytest.param(TOKEN.text().replace("A", "B", 1), id="mistyped"),
        pytest.param(PREFIX + "!" * 40, id="not base64url"),
        pytest.param(PREFIX + "A" * 5000, id="too long"),
        pytest.param(PREFIX + "\u0430" * 40, id="not ASCII"),
        pytest.param(pack(DOCUMENT, flip=1), id="only the checksum"),
        pytest.param(pack({}), id="no fields"),
        pytest.param(pack([]), id="no object"),
        pytest.param(changed(more=1), id="unknown field"),
        pytest.param(changed(port=0), id="port 0"),
        pytest.param(changed(secret="AAAA"), id="short secret"),
        pytest.param(changed(ca="AB" * 32), id="fingerprint in capitals"),
        pytest.param(changed(node="a/../b"), id="name that no certificate has"),
        pytest.param(changed(job=""), id="no job"),
        pytest.param(changed(ends="2026-05-04T12:00:00"), id="time without zone"),
    ],
)
def test_a_malformed_token(text):
    with pytest.raises(IdentityError) as caught:
        parse_token(text)
    assert caught.value.code == "ST-IDEN-014"
    assert caught.value.__context__ is None or "AAECAwQF" not in str(caught.value.__context__)
    assert "AAECAwQF" not in str(caught.value), "the secret is not repeated"


def test_length_is_judged_first():
    with pytest.raises(IdentityError, match="too long"):
        parse_token(PREFIX + "A" * 5000)
