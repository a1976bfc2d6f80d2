# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import base64
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securetrain.core import canonical
from securetrain.core.errors import IdentityError
from securetrain.identity.dsse import MAX_SIGNATURES, pae, sign, verify
from securetrain.identity.keys import KeyKind, PrivateKey
from tests import vocabulary
from tests.tables import forgeries, items

KIND = "application/example"
KEYS = [PrivateKey.generate(), PrivateKey.generate(KeyKind.P256), PrivateKey.generate()]
TRUSTED = {key.key_id: key.public for key in KEYS[:2]}


def refused(code, data, *, kind=KIND, keys=TRUSTED, threshold=1):
    vocabulary.refused(
        IdentityError, code, verify, data, kind, keys, threshold=threshold, where="w"
    )


def envelope(**changes):
    fields = canonical.loads(sign(b"payload", KIND, KEYS[:1]))
    return canonical.dumps({**fields, **changes})


def test_the_example_of_the_specification():
    """https://github.com/secure-systems-lab/dsse/blob/v1.0.2/protocol.md, test vectors."""
    expected = b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    assert pae("http://example.com/HelloWorld", b"hello world") == expected


def test_one_and_two_signatures():
    found = verify(sign(b"payload", KIND, KEYS[:2]), KIND, TRUSTED, threshold=2)
    assert found.data == b"payload"
    assert found.key_ids == set(TRUSTED)


@given(st.binary(max_size=200), st.text(min_size=1, max_size=30))
def test_any_payload_of_any_type_round_trips(payload, kind):
    assert verify(sign(payload, kind, KEYS[:1]), kind, TRUSTED).data == payload


_ENVELOPE = sign(b'{"step":100}', KIND, KEYS[:2])


@settings(max_examples=300)
@given(st.integers(0, len(_ENVELOPE) - 1), st.integers(1, 255))
def test_no_byte_of_an_envelope_can_change(position, flip):
    data = bytearray(_ENVELOPE)
    data[position] ^= flip
    try:
        found = verify(bytes(data), KIND, TRUSTED, threshold=2)
    except IdentityError:
        return
    pytest.fail(f"accepted {found}")


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_with_a_code(data):
    with pytest.raises(IdentityError):
        verify(data, KIND, TRUSTED)


@given(st.binary(min_size=1, max_size=40), st.integers(0, len(_ENVELOPE)))
def test_nothing_can_be_put_in(extra, position):
    data = _ENVELOPE[:position] + extra + _ENVELOPE[position:]
    if data != _ENVELOPE:
        with pytest.raises(IdentityError):
            verify(data, KIND, TRUSTED, threshold=2)


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_the_signed_bytes_say_where_the_type_ends(one, two):
    assert (pae("a", one) == pae("a", two)) == (one == two)
    assert pae("a b", one) != pae("a", b"b " + one)


@pytest.mark.forgery
def test_signed_by_a_stranger():
    """T18."""
    refused("ST-IDEN-003", sign(b"payload", KIND, KEYS[2:]))
    refused("ST-IDEN-003", sign(b"payload", KIND, KEYS[:1]), keys={})


@pytest.mark.forgery
def test_fewer_than_the_threshold():
    """T38."""
    refused("ST-IDEN-009", sign(b"payload", KIND, [KEYS[0], KEYS[2]]), threshold=2)


def test_a_strangers_signature_beside_a_good_one_does_no_harm():
    assert verify(sign(b"p", KIND, [KEYS[0], KEYS[2]]), KIND, TRUSTED).key_ids == {KEYS[0].key_id}


@pytest.mark.forgery
def test_a_bad_signature_by_a_known_key_is_not_passed_over():
    fields = canonical.loads(sign(b"payload", KIND, KEYS[:2]))
    fields["signatures"][1]["sig"] = base64.b64encode(KEYS[1].sign(b"other")).decode()
    refused("ST-IDEN-002", canonical.dumps(fields))


@pytest.mark.forgery
def test_one_key_cannot_count_twice():
    """T20, T38."""
    fields = canonical.loads(sign(b"payload", KIND, KEYS[:1]))
    fields["signatures"] *= 2
    refused("ST-IDEN-004", canonical.dumps(fields), threshold=2)


@pytest.mark.forgery
def test_a_signature_under_another_keys_id():
    """T19."""
    fields = canonical.loads(sign(b"payload", KIND, KEYS[2:]))
    fields["signatures"][0]["keyid"] = KEYS[0].key_id
    refused("ST-IDEN-002", canonical.dumps(fields))


@forgeries(
    "id, message",
    ("the payload alone", b"payload"),
    ("type and payload, as before DSSE 1.0", KIND.encode() + b"payload"),
    ("without lengths", b"DSSEv1 payload"),
    ("the payload as it is stored", base64.b64encode(b"payload")),
    ("the stored payload, encoded", pae(KIND, base64.b64encode(b"payload"))),
)
def test_a_signature_over_another_encoding(message):
    """T29."""
    fields = canonical.loads(sign(b"payload", KIND, KEYS[:1]))
    fields["signatures"][0]["sig"] = base64.b64encode(KEYS[0].sign(message)).decode()
    refused("ST-IDEN-002", canonical.dumps(fields))


@pytest.mark.forgery
def test_a_document_of_another_type():
    """T21."""
    refused("ST-IDEN-004", sign(b"payload", "application/other", KEYS[:1]))
    # Renaming the type does not help: it is signed.
    refused("ST-IDEN-002", envelope(payloadType="application/other"), kind="application/other")


@pytest.mark.forgery
@items(
    "changes",
    {"payload": "cGF5bG9hZA"},  # without padding
    {"payload": "cGF5bG9hZB=="},  # bits that no encoder sets
    {"payload": "cGF5 bG9hZA=="},
    {"payload": "????"},
    {"signatures": []},
    {"more": 1},
    {"signatures": [{"keyid": str(n), "sig": ""} for n in range(MAX_SIGNATURES + 1)]},
)
def test_malformed(changes):
    """T20, T22: no signature at all, too many, and what is not strict base64."""
    refused("ST-IDEN-004", envelope(**changes))


@forgeries(
    "data",
    b"",
    b"{}",
    envelope() + b"\n",
    b" " + envelope(),
    envelope().replace(b'"payload"', b'"payload":"","payload"', 1),
)
def test_another_spelling(data):
    """T22: stock parsers take all but the empty one."""
    verify(envelope(), KIND, TRUSTED)  # the control
    if data:
        json.loads(data)
    refused("ST-IDEN-004", data)
