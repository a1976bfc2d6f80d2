# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Results and passports; `test_a_passport_is_read_back` is the control of every forgery."""

import base64
import hmac
import json
from datetime import UTC, datetime, timedelta

import jwt
import msgspec
import pytest

from securetrain.attest.session.passport import issue_passport, svid_pem, verify_passport
from securetrain.core.errors import AttestationError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence.result import (
    PROFILE,
    TOKEN_LIMIT,
    AttestationResult,
    Submodule,
    read_named,
    trust_vector,
    verify_result,
)
from securetrain.identity.job_ca import JobCA, certificate_pem
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.spiffe import Role, SpiffeId
from tests import vocabulary
from tests.tables import forgeries

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
CA = JobCA.create("securetrain.local", "job-1", NOW)
KEY = PrivateKey.generate(KeyKind.P256)
NODE = PrivateKey.generate(KeyKind.P256)
RESULT = AttestationResult(
    job="job-1",
    node="node-0",
    key_id=NODE.key_id,
    tier=NodeTier.TPM,
    label="tpm",
    media_type="a/b",
    evidence="1" * 64,
    policy="2" * 64,
    reference_values="3" * 64,
    issued=NOW,
    expires=NOW + timedelta(minutes=10),
    submods={
        "tpm": Submodule(
            trust_vector=trust_vector("hardware", "instance-identity"),
            claims={"manufacturer": "IBM", "secure_boot": True, "entries": 5000},
        ),
        "self-report": Submodule(trust_vector=trust_vector()),
    },
)


def passport(**changes):
    result = msgspec.structs.replace(RESULT, **changes)
    return issue_passport(result, key=KEY, ca=CA, node_key=NODE.public)


def read(ear, svid, now=NOW, key=KEY, ca=CA):
    return verify_passport(ear, svid, key=key.public, ca=ca.certificate, now=now)


def refused(what, ear, svid, **more):
    return vocabulary.refused(AttestationError, "ST-ATTS-014", read, ear, svid, **more, says=what)


def test_a_passport_is_read_back():
    made = passport()
    found = read(made.ear, svid_pem(made).encode())
    assert found.result == RESULT
    assert SpiffeId.of_certificate(found.svid).role is Role.MEMBER
    assert verify_result(made.ear, KEY.public, NOW) == RESULT


def test_an_ear_is_shaped_as_the_draft_says():
    claims = jwt.decode(passport().ear, options={"verify_signature": False})
    assert claims["eat_profile"] == PROFILE
    assert claims["exp"] - claims["iat"] == 600
    tpm = claims["submods"]["tpm"]
    assert tpm["ear_status"] == 2
    assert tpm["ear_trustworthiness_vector"]["hardware"] == 2
    assert claims["submods"]["self-report"]["ear_status"] == 0


def test_an_unattested_node_has_a_name_of_its_own():
    made = passport(tier=NodeTier.SELF_ASSERTED, label="UNATTESTED (self-reported)")
    assert "/unattested/node-0" in str(SpiffeId.of_certificate(made.svid))
    assert read(made.ear, svid_pem(made).encode()).result.tier is NodeTier.SELF_ASSERTED


ATTESTED, UNATTESTED = passport(), passport(tier=NodeTier.SELF_ASSERTED)
SVID, PLAIN = (svid_pem(one).encode() for one in (ATTESTED, UNATTESTED))
MINUTES = timedelta(minutes=10)
ENROLLED = certificate_pem(CA.issue(Role.NODE, NODE.public, NOW, node="node-0", lifetime=MINUTES))
OTHER_CA = {"ca": JobCA.create("securetrain.local", "job-1", NOW)}


def said(**changes):
    return msgspec.structs.replace(RESULT, **changes).sign(KEY)


@forgeries(
    "id, what, ear, svid, how",
    ("an unattested svid", "the SVID", ATTESTED.ear, PLAIN, {}),
    ("an attested svid", "the SVID", UNATTESTED.ear, SVID, {}),
    ("another-node", "the SVID is", said(node="node-1"), SVID, {}),
    ("another-job", "the SVID is", said(job="job-2"), SVID, {}),
    ("another-key", "the SVID is", said(key_id="4" * 64), SVID, {}),
    ("outlives its result", "lives longer", said(expires=NOW + MINUTES / 2), SVID, {}),
    ("after the lease", "the SVID", ATTESTED.ear, SVID, {"now": NOW + 1.1 * MINUTES}),
    ("of another CA", "the SVID", ATTESTED.ear, SVID, OTHER_CA),
    ("the enrollment certificate", "the SVID", ATTESTED.ear, ENROLLED, {}),
)
def test_an_svid_that_is_not_of_the_result(what, ear, svid, how):
    refused(what, ear, svid, **how)


@forgeries("moment", -1, 600, 10000)
def test_a_result_out_of_its_time(moment):
    given = (passport().ear, KEY.public, NOW + timedelta(seconds=moment))
    vocabulary.refused(AttestationError, "ST-ATTS-014", verify_result, *given)


def forge(ear, header=None, claims=None, key=KEY):
    """The same token with parts replaced, signed again."""
    new_header = {**jwt.get_unverified_header(ear), **(header or {})}
    body = jwt.decode(ear, options={"verify_signature": False})
    body.update(claims or {})
    return jwt.encode(body, key.native, algorithm="ES256", headers=new_header)


def none_token(ear):
    header = base64.urlsafe_b64encode(json.dumps({"alg": "none", "typ": "ear+jwt"}).encode())
    return f"{header.decode().rstrip('=')}.{ear.split('.')[1]}."


def hmac_token(ear):
    """Signed with HS256, the public key as its secret."""
    header = base64.urlsafe_b64encode(json.dumps({"alg": "HS256", "typ": "ear+jwt"}).encode())
    message = f"{header.decode().rstrip('=')}.{ear.split('.')[1]}"
    tag = hmac.new(KEY.public.spki, message.encode(), "sha256").digest()
    return f"{message}.{base64.urlsafe_b64encode(tag).decode().rstrip('=')}"


@forgeries(
    "id, token, what",
    ("signed-by-the-node", lambda e: forge(e, key=NODE), "Signature"),
    ("signature-altered", lambda e: e[:-4] + "AAAA", ""),
    ("another-type", lambda e: forge(e, header={"typ": "JWT"}), "header"),
    ("another-key-id", lambda e: forge(e, header={"kid": "5" * 64}), "header"),
    ("jku", lambda e: forge(e, header={"jku": "https://x"}), "header"),
    ("another-exp", lambda e: forge(e, claims={"exp": 1}), "contradict"),
    ("one-more-claim", lambda e: forge(e, claims={"new": 1}), "contradict"),
    ("no-signature", lambda e: e.rpartition(".")[0] + ".", ""),
    ("alg-none", none_token, "header"),
    ("alg-confusion", hmac_token, "header"),
    ("not-a-token", lambda _: "a.b.c", ""),
    ("empty", lambda _: "", ""),
    ("oversized", lambda e: e + "A" * (64 << 10), "limit"),
)
def test_a_forged_result(token, what):
    forged = token(passport().ear)
    given = (verify_result, forged, KEY.public)
    vocabulary.refused(AttestationError, "ST-ATTS-014", *given, says=what)


def test_a_vector_knows_only_the_claims_of_ar4si():
    with pytest.raises(KeyError):
        trust_vector("goodness")


def test_a_result_that_is_named_needs_no_signature_of_its_own_and_is_no_other():
    made = RESULT
    token = made.sign(KEY)
    head, body, signature = token.split(".")
    assert read_named(token, made.digest) == made
    assert read_named(f"{head}.{body}.{signature[::-1]}", made.digest) == made
    other = msgspec.structs.replace(made, node="node-9")
    vocabulary.refused(AttestationError, "ST-ATTS-014", read_named, other.sign(KEY), made.digest)
    for broken in ("", ".", "a.b", f"{head}.{body[:-9]}.x", f"{head}.W10.x", f"{head}.bnVsbA.x"):
        vocabulary.refused(AttestationError, "ST-ATTS-014", read_named, broken, made.digest)
    with pytest.raises(AttestationError):
        read_named("a." * TOKEN_LIMIT, made.digest)
