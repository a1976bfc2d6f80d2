# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Runtime policies: Keylime's own document is read, everything doubtful is refused."""

import base64
import hashlib
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, x25519

from securetrain.core import canonical
from securetrain.core.errors import AttestationError
from securetrain.evidence.tpm import runtime_policy
from securetrain.evidence.tpm.runtime_policy import (
    FormerPolicy,
    ImaReference,
    RuntimePolicies,
    Verdict,
    parse_runtime_policy,
)
from securetrain.identity import dsse
from tests import vocabulary
from tests.evidence.tpm.lateboots import pem
from tests.evidence.vectors import needs_vectors, vector
from tests.tables import each, forgeries

SHA256 = hashlib.sha256(b"x").hexdigest()
SHA1 = hashlib.sha1(b"x").hexdigest()
FIELD = b"sha256:\0" + bytes.fromhex(SHA256)
KEYLIME = "keylime__keylime/test/data/runtime-policy-test.json"


def document(**changes: Any) -> dict[str, Any]:
    return {
        "meta": {"version": 1, "generator": 3, "timestamp": "2024-10-09 18:47:35"},
        "release": 0,
        "digests": {"/usr/bin/x": [SHA256]},
        "excludes": ["/tmp/.*"],
        "keyrings": {".ima": [SHA256]},
        "ima": {"ignored_keyrings": ["_evm"], "log_hash_alg": "sha1", "dm_policy": None},
        "ima-buf": {"kexec-cmdline": [SHA256]},
        "verification-keys": "",
        **changes,
    }


def dumped(**changes: Any) -> bytes:
    return json.dumps(document(**changes)).encode()


def refused(data: bytes, code: str = "ST-ATTS-320") -> AttestationError:
    return vocabulary.refused(AttestationError, code, parse_runtime_policy, data)


@each(
    "name, digest, is_buffer, verdict",
    (b"/usr/bin/x", FIELD, False, Verdict.ACCEPTED),
    (b"/usr/bin/x", b"sha256:\0" + bytes(32), False, Verdict.WRONG),
    (b"/usr/bin/y", FIELD, False, Verdict.UNKNOWN),
    (b"/tmp/y", FIELD, False, Verdict.EXCLUDED),
    (b"/tmp", FIELD, False, Verdict.UNKNOWN),
    (b"/usr/tmp/y", FIELD, False, Verdict.UNKNOWN),
    (b".ima", FIELD, True, Verdict.ACCEPTED),
    (b".ima", b"sha256:\0" + bytes(32), True, Verdict.WRONG),
    (b".ima", FIELD, False, Verdict.UNKNOWN),
    (b"kexec-cmdline", FIELD, True, Verdict.ACCEPTED),
    (b"/usr/bin/x", FIELD, True, Verdict.UNKNOWN),
    (b"_evm", FIELD, True, Verdict.EXCLUDED),
    (b"_evm", FIELD, False, Verdict.UNKNOWN),
    (b"/usr/bin/x", b"sm3:\0" + bytes.fromhex(SHA256), False, Verdict.WRONG),
    (b"/usr/bin/x", b"verity:sha256:\0" + bytes.fromhex(SHA256), False, Verdict.WRONG),
)
def test_what_a_policy_says(name, digest, is_buffer, verdict):
    assert parse_runtime_policy(dumped()).judge(name, digest, is_buffer=is_buffer) is verdict


def test_the_policy_knows_which_document_it_is():
    data = dumped()
    assert parse_runtime_policy(data).digest == hashlib.sha256(data).hexdigest()


@each("size", 20, 32, 48, 64)
@each("prefixed", False, True)
def test_digests_of_each_size(size, prefixed):
    name = {20: "sha1", 32: "sha256", 48: "sha384", 64: "sha512"}[size]
    text = "ab" * size
    data = dumped(digests={"/x": [f"{name}:{text}" if prefixed else text]})
    policy = parse_runtime_policy(data, allow_sha1=True)
    field = name.encode() + b":\0" + b"\xab" * size
    assert policy.judge(b"/x", field, is_buffer=False) is Verdict.ACCEPTED


def test_sha1_accepts_nothing_unless_allowed():
    data = dumped(digests={"/x": [SHA1, SHA256]}, keyrings={".ima": [SHA1]})
    field = b"sha1:\0" + bytes.fromhex(SHA1)
    strict = parse_runtime_policy(data)
    assert strict.judge(b"/x", field, is_buffer=False) is Verdict.WRONG
    assert strict.judge(b"/x", FIELD, is_buffer=False) is Verdict.ACCEPTED
    assert strict.judge(b".ima", field, is_buffer=True) is Verdict.WRONG
    assert strict.left_out == 2
    lax = parse_runtime_policy(data, allow_sha1=True)
    assert lax.judge(b"/x", field, is_buffer=False) is Verdict.ACCEPTED
    assert lax.left_out == 0


def test_spaces_are_what_the_kernel_writes():
    other = hashlib.sha256(b"y").hexdigest()
    policy = parse_runtime_policy(dumped(digests={"/a b": [SHA256], "/a_b": [other]}))
    for digest in (FIELD, b"sha256:\0" + bytes.fromhex(other)):
        assert policy.judge(b"/a_b", digest, is_buffer=False) is Verdict.ACCEPTED
    assert policy.judge(b"/a b", FIELD, is_buffer=False) is Verdict.UNKNOWN


def test_one_name_as_keyring_and_buffer():
    other = hashlib.sha256(b"y").hexdigest()
    policy = parse_runtime_policy(dumped(**{"ima-buf": {".ima": [other]}}))
    for digest in (FIELD, b"sha256:\0" + bytes.fromhex(other)):
        assert policy.judge(b".ima", digest, is_buffer=True) is Verdict.ACCEPTED


@needs_vectors
def test_keylimes_own_document():
    data = vector(KEYLIME)
    policy = parse_runtime_policy(data)
    assert len(policy.files) == 21
    assert policy.left_out == 20
    assert list(policy.buffers) == [b".ima"]
    name, digests = next(iter(json.loads(data)["digests"].items()))
    assert name == "boot_aggregate"
    field = b"sha256:\0" + bytes.fromhex(digests[0].removeprefix("sha256:"))
    assert policy.judge(name.encode(), field, is_buffer=False) is Verdict.ACCEPTED
    lax = parse_runtime_policy(data, allow_sha1=True)
    path, digests = list(json.loads(data)["digests"].items())[-1]
    field = b"sha1:\0" + bytes.fromhex(digests[0])
    assert lax.judge(path.encode(), field, is_buffer=False) is Verdict.ACCEPTED
    assert policy.judge(path.encode(), field, is_buffer=False) is Verdict.WRONG


MALFORMED: dict[str, tuple[bytes, str]] = {
    "not JSON": (b"{", ""),
    "a list": (b"[]", "object"),
    "an unknown key": (dumped(surprise=1), "surprise"),
    "an unknown key in meta": (dumped(meta={"version": 1, "trust": True}), "trust"),
    "an unknown key in ima": (dumped(ima={"skip": True}), "skip"),
    "a version to come": (dumped(meta={"version": 2}), "1"),
    "no version": (dumped(meta={}), "version"),
    "a path twice": (
        dumped().replace(b'"digests": {', b'"digests": {"/usr/bin/x": ["' + b"0" * 64 + b'"], '),
        "duplicate key",
    ),
    "no digests": (dumped(digests={"/x": []}), "1"),
    "an empty path": (dumped(digests={"": [SHA256]}), "1"),
    "not hex": (dumped(digests={"/x": ["zz" * 32]}), "not a digest"),
    "upper case": (dumped(digests={"/x": [SHA256.upper()]}), "lower-case"),
    "white space": (dumped(digests={"/x": [SHA256[:32] + " " + SHA256[32:]]}), "lower-case"),
    "a short digest": (dumped(digests={"/x": [SHA256[2:]]}), "not a digest"),
    "another size than its algorithm": (dumped(digests={"/x": ["sha384:" + SHA256]}), "not a dig"),
    "an unknown algorithm": (dumped(digests={"/x": ["sm3:" + SHA256]}), "not a digest"),
    "no keyrings": (
        json.dumps({k: v for k, v in document().items() if k != "keyrings"}).encode(),
        "keyrings",
    ),
}


@forgeries("id, data, what", MALFORMED)
def test_malformed_policies(data, what):
    assert what in refused(data).what


@forgeries(
    "id, changes, what",
    ("device mapper", {"dm_policy": {"version": 1}}, "dm_policy"),
    ("another log digest", {"log_hash_alg": "sha256"}, "log_hash_alg"),
    ("all keyrings ignored", {"ignored_keyrings": ["*"]}, "ignored_keyrings"),
)
def test_what_is_not_enforced_is_refused(changes, what):
    assert what in refused(dumped(ima=changes), "ST-ATTS-322").what


@pytest.mark.forgery
def test_errors_name_the_path_or_the_pattern():
    assert "/usr/bin/wrong" in refused(dumped(digests={"/usr/bin/wrong": ["zz"]})).where
    unsafe = refused(dumped(excludes=["/fine", "/.*"]), "ST-ATTS-323")
    assert unsafe.where.startswith("excludes[1]")


@pytest.mark.forgery
def test_an_excluded_prefix_excludes_nothing_more():
    """Keylime matches the beginning only: there, both of these files would go unseen."""
    policy = parse_runtime_policy(dumped(excludes=["/tmp", "^/var/cache/app"]))
    assert policy.judge(b"/tmp-evil/x", FIELD, is_buffer=False) is Verdict.UNKNOWN
    assert policy.judge(b"/var/cache/app.d/x", FIELD, is_buffer=False) is Verdict.UNKNOWN
    assert policy.judge(b"/tmp", FIELD, is_buffer=False) is Verdict.EXCLUDED


def test_too_large(monkeypatch):
    data = dumped()
    monkeypatch.setattr(runtime_policy, "POLICY_LIMIT", len(data))
    parse_runtime_policy(data)
    monkeypatch.setattr(runtime_policy, "POLICY_LIMIT", len(data) - 1)
    assert "the limit is" in refused(data).what
    name = hashlib.sha256(data).hexdigest()
    with pytest.raises(AttestationError, match="the limit is"):
        RuntimePolicies().get(ImaReference(policy_sha256=name), {name: data})


# Which policy the reference values name.


def get(reference: ImaReference, documents: dict[str, bytes] | None = None):
    return RuntimePolicies().get(reference, documents or {})


def refused_reference(
    reference: ImaReference, code: int, documents: dict[str, bytes] | None = None, says: str = ""
) -> None:
    wrong = (AttestationError, f"ST-ATTS-{code}")
    vocabulary.refused(*wrong, get, reference, documents, says=says)


def test_a_policy_inside_the_reference_values():
    policy = get(ImaReference(policy=document()))
    assert policy.judge(b"/usr/bin/x", FIELD, is_buffer=False) is Verdict.ACCEPTED
    assert policy.digest == hashlib.sha256(canonical.dumps(document())).hexdigest()


def test_a_policy_in_a_file_of_its_own():
    data = dumped()
    name = hashlib.sha256(data).hexdigest()
    assert get(ImaReference(policy_sha256=name), {name: data}).digest == name


def test_one_content_is_compiled_once():
    policies = RuntimePolicies()
    data = dumped()
    name = hashlib.sha256(data).hexdigest()
    by_name = ImaReference(policy_sha256=name)
    first = policies.get(by_name, {name: data})
    assert policies.get(by_name, {name: bytes(bytearray(data))}) is first
    lax = ImaReference(policy_sha256=name, allow_sha1=True)
    assert policies.get(lax, {name: data}) is not first
    assert policies.get(ImaReference(policy=document()), {}) is not first


def test_few_policies_are_kept(monkeypatch):
    monkeypatch.setattr(runtime_policy, "MAX_POLICIES", 2)
    policies = RuntimePolicies()
    references = [ImaReference(policy=document(release=number)) for number in range(3)]
    first, second, third = (policies.get(reference, {}) for reference in references)
    assert policies.get(references[2], {}) is third
    assert policies.get(references[1], {}) is second
    assert policies.get(references[0], {}) is not first


BY_NAME = ImaReference(policy_sha256=SHA256)


@forgeries(
    "id, reference, documents, says",
    ("no policy", ImaReference(), None, ""),
    ("two at once", ImaReference(policy=document(), policy_sha256=SHA256), None, ""),
    ("a file that is missing", BY_NAME, {}, SHA256),
    ("another file under the name", BY_NAME, {SHA256: dumped()}, "another SHA-256"),
)
def test_reference_values_that_name_no_policy(reference, documents, says):
    refused_reference(reference, 321, documents, says)


@each("inline", {"release": 1 << 60}, {"release": float("nan")}, {"\ud800": 1})
def test_an_inline_document_that_is_no_json(inline):
    refused_reference(ImaReference(policy=inline), 320)


# DSSE envelopes as Keylime writes them.

KEY = ec.generate_private_key(ec.SECP256R1())
OTHER = ec.generate_private_key(ec.SECP256R1())


def envelope(
    payload: bytes, *keys: ec.EllipticCurvePrivateKey, kind: str = "application/vnd.keylime+json"
) -> dict[str, Any]:
    message = dsse.pae(kind, payload)
    signed = [(pem(key), key.sign(message, ec.ECDSA(hashes.SHA256()))) for key in keys]
    return {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": kind,
        "signatures": [
            {
                "keyid": hashlib.sha256(by.encode()).hexdigest(),
                "sig": base64.b64encode(sig).decode(),
            }
            for by, sig in signed
        ],
    }


def signed(wrapped: dict[str, Any], *signers: Any) -> tuple[ImaReference, dict[str, bytes]]:
    data = json.dumps(wrapped).encode()
    name = hashlib.sha256(data).hexdigest()
    by = tuple(pem(key) for key in signers)
    return ImaReference(policy_sha256=name, signed_by=by), {name: data}


def test_a_signed_policy():
    policy = get(*signed(envelope(dumped(), KEY), KEY))
    assert policy.digest == hashlib.sha256(dumped()).hexdigest()
    assert get(*signed(envelope(dumped(), OTHER, KEY), KEY)).digest == policy.digest
    assert get(*signed(envelope(dumped(), KEY), OTHER, KEY)).digest == policy.digest


def test_a_signed_policy_inside_the_reference_values():
    reference = ImaReference(policy=envelope(dumped(), KEY), signed_by=(pem(KEY),))
    assert get(reference).digest == hashlib.sha256(dumped()).hexdigest()


def swapped(wrapped: dict[str, Any]) -> dict[str, Any]:
    other = base64.b64encode(dumped(excludes=["/usr/.*"])).decode()
    return {**wrapped, "payload": other}


def no_base64(wrapped: dict[str, Any], field: str) -> dict[str, Any]:
    if field == "payload":
        return {**wrapped, "payload": wrapped["payload"] + "*"}
    return {**wrapped, "signatures": [{**one, "sig": "*"} for one in wrapped["signatures"]]}


GARBAGE = [{"keyid": "x", "sig": "AAAA"}]
UNSIGNED = {
    "by another key": (envelope(dumped(), OTHER), "none of 1"),
    "by nobody": (envelope(dumped()), "none of 0"),
    "another payload": (swapped(envelope(dumped(), KEY)), "none of 1"),
    "another payload type": (envelope(dumped(), KEY, kind="application/json"), "payload type"),
    "not an envelope": (document(), "not a DSSE envelope"),
    "payload not in base64": (no_base64(envelope(dumped(), KEY), "payload"), "not a DSSE"),
    "signature not in base64": (no_base64(envelope(dumped(), KEY), "sig"), "not a DSSE"),
    "a garbage signature": ({**envelope(dumped()), "signatures": GARBAGE}, "none of 1"),
    "too many": (
        {**envelope(dumped()), "signatures": GARBAGE * 65},
        "65 signatures, the limit is 64",
    ),
}


@forgeries("id, wrapped, what", UNSIGNED)
def test_policies_that_no_pinned_key_has_signed(wrapped, what):
    reference, documents = signed(wrapped, KEY)
    refused_reference(reference, 324, documents, what)


@pytest.mark.forgery
def test_an_envelope_without_a_pinned_key_is_no_policy():
    reference, documents = signed(envelope(dumped(), KEY))
    refused_reference(reference, 320, documents)


@each(
    "id, key",
    ("garbage", "not a key"),
    ("P-384", pem(ec.generate_private_key(ec.SECP384R1()))),
    ("X25519", pem(x25519.X25519PrivateKey.generate())),
)
def test_a_pinned_key_that_cannot_be_used(key):
    reference, documents = signed(envelope(dumped(), KEY), KEY)
    reference = ImaReference(policy_sha256=reference.policy_sha256, signed_by=(key, pem(KEY)))
    refused_reference(reference, 324, documents, "signed_by")


UNTIL = datetime(2026, 11, 30, tzinfo=UTC)
NEWER = hashlib.sha256(b"the next version").hexdigest()


def test_the_policy_before_is_accepted_beside_the_next():
    former = FormerPolicy(policy=document(excludes=["/old/.*"]), until=UNTIL)
    after = {"/usr/bin/x": [NEWER], "/usr/bin/new": [SHA256]}
    reference = ImaReference(policy=document(digests=after, excludes=["/new/.*"]), former=former)
    policies = RuntimePolicies()
    alone, both = policies.get(reference, {}), policies.with_former(reference, {})
    assert both is not None
    newer = b"sha256:\0" + bytes.fromhex(NEWER)
    for name, digest, then, now in (
        (b"/usr/bin/x", FIELD, Verdict.ACCEPTED, Verdict.WRONG),
        (b"/usr/bin/x", newer, Verdict.ACCEPTED, Verdict.ACCEPTED),
        (b"/usr/bin/x", b"sha256:\0" + bytes(32), Verdict.WRONG, Verdict.WRONG),
        (b"/usr/bin/new", FIELD, Verdict.ACCEPTED, Verdict.ACCEPTED),
        (b"/old/y", FIELD, Verdict.EXCLUDED, Verdict.UNKNOWN),
        (b"/new/y", FIELD, Verdict.EXCLUDED, Verdict.EXCLUDED),
        (b"/usr/bin/evil", FIELD, Verdict.UNKNOWN, Verdict.UNKNOWN),
    ):
        assert both.judge(name, digest, is_buffer=False) is then
        assert alone.judge(name, digest, is_buffer=False) is now
    assert both.digest == alone.digest
    assert both.identity != alone.identity


def test_without_a_former_policy_there_is_one():
    assert RuntimePolicies().with_former(ImaReference(policy=document()), {}) is None


@each(
    "id, former, code",
    ("nothing", FormerPolicy(until=UNTIL), "ST-ATTS-321"),
    ("absent", FormerPolicy(policy_sha256="ab" * 32, until=UNTIL), "ST-ATTS-321"),
    ("malformed", FormerPolicy(policy={"meta": 1}, until=UNTIL), "ST-ATTS-320"),
)
def test_a_former_policy_must_be_there(former, code):
    reference = ImaReference(policy=document(), former=former)
    vocabulary.refused(AttestationError, code, RuntimePolicies().with_former, reference, {})


@pytest.mark.forgery
def test_a_former_policy_must_be_signed_by_its_own_keys():
    good, forged = (envelope(dumped(release=1), key) for key in (KEY, OTHER))
    former = FormerPolicy(policy=forged, signed_by=(pem(KEY),), until=UNTIL)
    reference = ImaReference(policy=good, signed_by=(pem(KEY),), former=former)
    vocabulary.refused(
        AttestationError, "ST-ATTS-324", RuntimePolicies().with_former, reference, {}
    )
    assert reference.named == ()
