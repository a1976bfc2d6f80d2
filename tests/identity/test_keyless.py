# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Signing by identity, against a Sigstore instance of our own, and whom a trust root believes."""

import base64
import copy
import json
import socket
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import msgspec
import pytest

from securetrain.core import canonical
from securetrain.core.errors import IdentityError, UsageError
from securetrain.identity import Change, Identity, amended, dsse, keyless_signer, open_signer
from securetrain.identity.keyless import is_bundle
from securetrain.identity.keyless_signer import KeylessSigner
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import (
    Revoked,
    Signatures,
    TrustDocument,
    TrustRole,
    TrustRoot,
    key_table,
    sign_document,
)
from tests.identity.private_sigstore import Instance
from tests.identity.sigstore_services import ISSUER, PIPELINE, Services, serve, token
from tests.tables import each, items
from tests.vocabulary import refused

pytest.importorskip("sigstore", reason="sigstore is not installed: nothing is signed keyless here")
pytest.importorskip("asn1crypto", reason="asn1crypto is not installed: no timestamp authority")

KIND = "application/vnd.example+json"
PAYLOAD = b'{"a":1}'
ROOT = PrivateKey.generate()


def trusting(services, *, identity=PIPELINE, issuer=ISSUER, role=TrustRole.CHECKPOINT, **changes):
    """A trust root that names one identity of the instance."""
    now = datetime.now(UTC)
    one = Identity(identity=identity, issuer=issuer, instance="ours")
    change = Change(
        created=now - timedelta(days=1),
        expires=now + timedelta(days=1),
        add={TrustRole.ROOT: [ROOT.public]},
        add_identities={role: [one]},
        sigstore={"ours": services.instance.trusted_root()},
        signatures=changes.pop("signatures", {}),
    )
    nothing = TrustDocument(version=1, created=now, expires=now, keys={}, roles={})
    document = msgspec.structs.replace(amended(nothing, change), version=1, **changes)
    return TrustRoot.parse(sign_document(document, [ROOT]), now)


@pytest.fixture(scope="module")
def services():
    with serve() as found:
        yield found


@pytest.fixture(scope="module")
def bundle(services):
    signer = KeylessSigner.open(token(), services.config())
    return dsse.sign(PAYLOAD, KIND, [signer], keyless=True)


@pytest.fixture
def offline(monkeypatch):
    def no(*_):
        pytest.fail("something wanted the network")

    monkeypatch.setattr(socket.socket, "connect", no)


def restamp(bundle, instance):
    """Have a timestamp authority stamp the bundle's signature now."""
    from rfc3161_client import TimestampRequestBuilder
    from rfc3161_client.base import HashAlgorithm

    signature = base64.b64decode(bundle["dsseEnvelope"]["signatures"][0]["sig"])
    request = TimestampRequestBuilder().hash_algorithm(HashAlgorithm.SHA256).data(signature)
    stamp = instance.stamp(request.nonce(nonce=True).build().as_bytes(), datetime.now(UTC))
    bundle["verificationMaterial"]["timestampVerificationData"] = {
        "rfc3161Timestamps": [{"signedTimestamp": base64.b64encode(stamp).decode()}]
    }


def check(trust, data, kind=KIND):
    return trust.verify(data, kind, TrustRole.CHECKPOINT, "x")


def test_an_identity_signs_and_a_trust_root_believes_it_offline(services, bundle, offline):
    trust = trusting(services)
    assert is_bundle(bundle)
    found = check(trust, bundle)
    assert found.data == PAYLOAD
    (name,) = trust.document.roles[TrustRole.CHECKPOINT].keys
    assert found.key_ids == {name}
    material = json.loads(bundle)["verificationMaterial"]
    assert material["timestampVerificationData"]["rfc3161Timestamps"]


def test_a_tag_may_be_left_open_and_an_owner_may_not(services, bundle, offline):
    check(trusting(services, identity=PIPELINE.replace("v1.0", "*")), bundle)
    for wide in (
        "https://ci.example/*",
        "https://*/acme/models/x",
        "*",
        "release@*",
        "spiffe://*/a/b/",
    ):
        refused(ValueError, r"\*", Identity(identity=wide, issuer=ISSUER).check)
    refused(ValueError, "issuer", Identity(identity=PIPELINE, issuer="https://*").check)


@pytest.mark.forgery
@items(
    "code, changes",
    ("ST-IDEN-022", {"identity": PIPELINE + "0"}),
    ("ST-IDEN-022", {"identity": PIPELINE.replace("acme", "evil")}),
    ("ST-IDEN-022", {"identity": PIPELINE.replace("refs/tags/v1.0", "*")}),
    ("ST-IDEN-022", {"issuer": "https://other.example"}),
    ("ST-IDEN-022", {"role": TrustRole.DATASET}),
    ("ST-IDEN-015", {"revoked": True}),
    ("ST-IDEN-024", {"signatures": True}),
)
def test_somebody_else_or_for_something_else(code, changes, services, bundle, offline):
    """The `*` of a template does not reach across a slash: a branch is no tag."""
    if changes.pop("revoked", False):
        one = Identity(identity=PIPELINE, issuer=ISSUER, instance="ours")
        changes["revoked"] = [Revoked(key_id=one.id, since=datetime.now(UTC))]
    if changes.pop("signatures", False):
        refused(
            IdentityError,
            "ST-IDEN-008",
            trusting,
            services,
            signatures={TrustRole.CHECKPOINT: Signatures.BOTH},
        )
        return
    refused(IdentityError, code, check, trusting(services, **changes), bundle)


@pytest.mark.forgery
def test_another_instance_of_the_same_name(services, bundle, offline):
    refused(IdentityError, "ST-IDEN-021", check, trusting(Services()), bundle)


@pytest.mark.forgery
def test_two_of_two_are_not_one_identity(services, bundle, offline):
    trust = trusting(services)
    roles = dict(trust.document.roles)
    key = PrivateKey.generate()
    role = roles[TrustRole.CHECKPOINT]
    roles[TrustRole.CHECKPOINT] = msgspec.structs.replace(
        role, keys=[*role.keys, key.key_id], threshold=2
    )
    document = msgspec.structs.replace(
        trust.document, roles=roles, keys=trust.document.keys | key_table([key.public])
    )
    trust = TrustRoot.parse(sign_document(document, [ROOT]), datetime.now(UTC))
    refused(IdentityError, "ST-IDEN-009", check, trust, bundle)


@each("role", TrustRole.ROOT, TrustRole.LEDGER, TrustRole.NODE, TrustRole.LOG)
def test_roles_of_keys_alone(role, services):
    refused(IdentityError, "ST-IDEN-008", trusting, services, role=role)


@pytest.mark.forgery
@items(
    "id, code, change",
    (
        "no timestamp",
        "ST-IDEN-020",
        lambda b: b["verificationMaterial"].pop("timestampVerificationData"),
    ),
    ("another authority", "ST-IDEN-021", lambda b: restamp(b, Instance())),
    ("payload", "ST-IDEN-021", lambda b: b["dsseEnvelope"].update(payload="eyJhIjoyfQ==")),
    (
        "type",
        "ST-IDEN-021",
        lambda b: b["dsseEnvelope"].update(payloadType="application/vnd.other+json"),
    ),
    ("unknown field", "ST-IDEN-020", lambda b: b.update(more=1)),
)
def test_what_is_bent(code, change, services, bundle, offline):
    value = copy.deepcopy(json.loads(bundle))
    change(value)
    refused(IdentityError, code, check, trusting(services), canonical.dumps(value))


@pytest.mark.forgery
def test_another_spelling_and_another_type(services, bundle, offline):
    trust = trusting(services)
    refused(IdentityError, "ST-IDEN-020", check, trust, bundle + b"\n")
    refused(IdentityError, "ST-IDEN-004", check, trust, bundle, "application/vnd.other+json")


@pytest.mark.forgery
def test_the_entry_of_another_artifact(services, bundle, offline):
    trust = trusting(services)
    assert services.last_entry is not None
    value = json.loads(bundle)
    other = copy.deepcopy(value["verificationMaterial"]["tlogEntries"])
    body = json.loads(base64.b64decode(other[0]["canonicalizedBody"]))
    body["spec"]["hashedRekordV002"]["data"]["digest"] = "AAAA" * 10 + "AAA="
    made = services.instance._entry(canonical.dumps(body))
    made["kindVersion"] = {"kind": "hashedrekord", "version": "0.0.2"}
    del made["inclusionPromise"], made["integratedTime"]
    value["verificationMaterial"]["tlogEntries"] = [made]
    refused(IdentityError, "ST-IDEN-021", check, trust, canonical.dumps(value))


# The instance is not believed while signing, either.


@each("fault", "expired", "not yet", "no timestamp", "another entry", "broken", "gone")
def test_an_instance_that_does_wrong_gives_no_bundle(fault):
    services = Services()
    with serve(services) as found:
        match fault:
            case "expired":
                services.issued_at = timedelta(minutes=-30)
            case "not yet":
                services.issued_at = timedelta(minutes=30)
            case "no timestamp":
                services.stamps = False
            case "another entry":
                signer = KeylessSigner.open(token(), found.config())
                dsse.sign(b"{}", KIND, [signer], keyless=True)
                services.other_entry = services.last_entry
            case "broken":
                services.broken = True
            case "gone":
                found.url = "http://127.0.0.1:9"

        def attempt():
            return dsse.sign(
                PAYLOAD, KIND, [KeylessSigner.open(token(), found.config())], keyless=True
            )

        refused(IdentityError, "ST-IDEN-026", attempt)


@each("bad", b"", b"not a token", token(lives=-60))
def test_a_token_that_is_none(bad, services):
    refused(IdentityError, "ST-IDEN-026", KeylessSigner.open, bad, services.config())
    refused(IdentityError, "ST-IDEN-026", KeylessSigner.open, token(), b"{}")


def test_a_key_of_the_instance_signs_nothing_bare(services, tmp_path):
    (tmp_path / "token").write_bytes(token())
    (tmp_path / "config").write_bytes(services.config())

    def ask(what):
        pytest.fail(f"asked for {what}")

    name = f"keyless:?token={tmp_path / 'token'}&config={tmp_path / 'config'}"
    signer = open_signer(name, ask)
    refused(UsageError, "ST-USAG-001", signer.sign, b"x")
    two = [signer, PrivateKey.generate()]
    refused(UsageError, "ST-USAG-001", dsse.sign, b"x", KIND, two, keyless=True)
    # What is read under one key, such as an audit's pins, could not be verified by anybody.
    refused(UsageError, "ST-USAG-001", dsse.sign, b"x", KIND, [signer])
    envelope = dsse.sign(b"x", KIND, [PrivateKey.generate()])
    refused(UsageError, "ST-USAG-001", dsse.add_signatures, envelope, KIND, [signer])
    for bad in ("keyless:x", "keyless:?tokens=a", "keyless:?token=a&token=b", "keyless:?token"):
        refused(UsageError, "ST-USAG-001", open_signer, bad, ask)


@pytest.mark.parametrize(("given", "wanted"), [({}, True), ({"timeout": None}, True), (9, False)])
def test_every_request_to_an_instance_ends(given, wanted, monkeypatch):
    """sigstore-python waits for some answers for ever."""
    requests = pytest.importorskip("requests", reason="sigstore brings it")
    asked: list[object] = []
    monkeypatch.setattr(
        requests.adapters.HTTPAdapter, "send", lambda _, **kept: asked.append(kept["timeout"])
    )
    session = requests.Session()
    nobody = SimpleNamespace(session=requests.Session())
    keyless_signer._bound(SimpleNamespace(_fulcio=SimpleNamespace(session=session), _rekor=nobody))
    said = given if isinstance(given, dict) else {"timeout": given}
    session.get_adapter("https://fulcio.example").send(**said)
    assert asked == [keyless_signer.TIMEOUT_SECONDS if wanted else given]
