# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import base64
import hashlib

import pytest

from securetrain.core import canonical
from securetrain.core.errors import IdentityError
from securetrain.identity import dsse
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.log.entry import LIMIT, entry_of
from tests import vocabulary

KEYS = [PrivateKey.generate(), PrivateKey.generate(KeyKind.P256)]
VERIFIERS = {key.key_id: key.public for key in KEYS}
KIND = "application/example"


def refused(code, envelope, verifiers=VERIFIERS):
    vocabulary.refused(IdentityError, code, entry_of, envelope, verifiers)


def test_the_form_of_rekor():
    envelope = dsse.sign(b"payload", KIND, KEYS)
    data = entry_of(envelope, VERIFIERS)
    found = canonical.loads(data)
    assert canonical.dumps(found) == data
    assert (found["kind"], found["apiVersion"], set(found)) == (
        *("dsse", "0.0.1"),
        {"kind", "apiVersion", "spec"},
    )
    spec = found["spec"]
    assert spec["payloadHash"]["value"] == hashlib.sha256(b"payload").hexdigest()
    assert spec["envelopeHash"]["value"] == hashlib.sha256(envelope).hexdigest()
    signatures = [item["signature"] for item in spec["signatures"]]
    assert signatures == sorted(signatures)
    assert {base64.b64decode(item["verifier"]) for item in spec["signatures"]} == {
        key.public.pem for key in KEYS
    }


def test_sigstores_own_schema_takes_it():
    rekor_types = pytest.importorskip(
        "rekor_types", reason="sigstore is not installed: its schema of log entries is not tried"
    )
    envelope = dsse.sign(b"payload", KIND, KEYS)
    found = rekor_types.Dsse.model_validate_json(entry_of(envelope, VERIFIERS))
    assert found.spec.root.payload_hash.value == hashlib.sha256(b"payload").hexdigest()
    assert len(found.spec.root.signatures) == 2


def test_it_does_not_depend_on_keys_that_did_not_sign():
    envelope = dsse.sign(b"payload", KIND, KEYS[:1])
    assert entry_of(envelope, VERIFIERS) == entry_of(envelope, {KEYS[0].key_id: KEYS[0].public})


def test_every_signature_must_verify_under_a_known_key():
    envelope = dsse.sign(b"payload", KIND, KEYS)
    refused("ST-IDEN-003", envelope, {KEYS[0].key_id: KEYS[0].public})
    fields = canonical.loads(envelope)
    fields["payload"] = base64.b64encode(b"other").decode()
    refused("ST-IDEN-002", canonical.dumps(fields))


def test_malformed():
    good = dsse.sign(b"payload", KIND, KEYS)
    for data in (b"", b"{}", good + b"\n"):
        refused("ST-IDEN-004", data)
    fields = canonical.loads(good)
    refused("ST-IDEN-004", canonical.dumps({**fields, "signatures": []}))
    refused("ST-IDEN-004", canonical.dumps({**fields, "payload": "?"}))


def test_the_largest_entry_fits_into_a_bundle():
    keys = [PrivateKey.generate(KeyKind.P256) for _ in range(dsse.MAX_SIGNATURES)]
    envelope = dsse.sign(b"x" * 100_000, KIND, keys)
    assert len(entry_of(envelope, {key.key_id: key.public for key in keys})) < LIMIT
