# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Revocation from the cache; `test_good_certificates` is the control."""

import hashlib

import pytest
from cryptography.x509 import ocsp

from securetrain.core.errors import AttestationError
from securetrain.evidence.gpu.certificates import CertificateStatus
from securetrain.evidence.gpu.revocation import CachedStatus, crl_id, ocsp_id
from securetrain.evidence.gpu.rim import parse_rim
from tests import vocabulary
from tests.evidence.gpu.authority import DAY, OCSP_SIGNING, issue
from tests.evidence.gpu.rimforge import manifest, sign
from tests.evidence.gpu.test_crl import make as make_crl
from tests.evidence.gpu.test_crl import revoke
from tests.evidence.gpu.test_ocsp import AUTHORITY, NOW, VALID, respond
from tests.tables import forgeries

SIGNER, ISSUER, PRODUCT, ROOT = AUTHORITY.chain
UNTIL = {"start": NOW - DAY, "end": NOW + DAY}


class Store:
    """A cache in memory that counts what it is asked for."""

    def __init__(self, **documents):
        self.documents = documents
        self.asked = []

    def get(self, kind, name, now):
        self.asked.append((kind, name))
        try:
            return self.documents[kind][name]
        except KeyError:
            raise AttestationError("ST-ATTS-735", f"no {kind} {name}", "cache", "add it") from None

    def has(self, kind, name):
        return name in self.documents.get(kind, {})


def response(certificate, issuer, **changes):
    by = issue("Responder", issuer, ca=False, extra=(OCSP_SIGNING,), **VALID)
    return {ocsp_id(certificate.certificate): respond(certificate, issuer, by=by, **changes)}


REVOKED = {"status": ocsp.OCSPCertStatus.REVOKED}
LIST = {crl_id(PRODUCT.certificate): make_crl(by=PRODUCT, **UNTIL)}
DOCUMENTS = {"ocsp": {**response(SIGNER, ISSUER), **response(PRODUCT, ROOT)}, "crl": LIST}


def ask(store, holder=SIGNER, issuer=ISSUER, now=NOW):
    return CachedStatus(store, now)(holder.certificate, issuer.certificate)


def refused(code, store, **changes):
    return vocabulary.refused(AttestationError, code, ask, store, **changes)


def test_good_certificates():
    store = Store(**DOCUMENTS)
    pairs = [(SIGNER, ISSUER), (ISSUER, PRODUCT), (PRODUCT, ROOT)]
    assert {ask(store, *pair) for pair in pairs} == {CertificateStatus.GOOD}
    assert [kind for kind, _ in store.asked] == ["ocsp", "crl", "ocsp"]


def test_ids():
    der = hashlib.sha256(SIGNER.der).hexdigest()
    assert ocsp_id(SIGNER.certificate) == der
    assert crl_id(ISSUER.certificate) == ISSUER.pin


def test_answers_are_remembered():
    store = Store(**DOCUMENTS)
    lookup = CachedStatus(store, NOW)
    for _ in range(3):
        lookup(SIGNER.certificate, ISSUER.certificate)
        lookup(ISSUER.certificate, PRODUCT.certificate)
    assert len(store.asked) == 2


@pytest.mark.forgery
def test_revoked_by_response_and_by_list():
    assert ask(Store(ocsp=response(SIGNER, ISSUER, **REVOKED))) is CertificateStatus.REVOKED
    entry = make_crl(revoke(SIGNER), by=ISSUER, **UNTIL)
    assert ask(Store(crl={ISSUER.pin: entry})) is CertificateStatus.REVOKED


@pytest.mark.forgery
def test_a_response_comes_before_a_list():
    clean = {ISSUER.pin: make_crl(by=ISSUER, **UNTIL)}
    store = Store(ocsp=response(SIGNER, ISSUER, **REVOKED), crl=clean)
    assert ask(store) is CertificateStatus.REVOKED
    store = Store(ocsp=response(SIGNER, ISSUER, **{**REVOKED, "end": NOW - DAY / 4}), crl=clean)
    refused("ST-ATTS-716", store)


@pytest.mark.forgery
def test_not_to_know_is_not_good():
    assert refused("ST-ATTS-735", Store()).what.startswith("no ocsp")
    refused("ST-ATTS-735", Store(ocsp=response(PRODUCT, ROOT)))


@pytest.mark.forgery
def test_documents_that_do_not_verify():
    name = ocsp_id(SIGNER.certificate)
    other = response(PRODUCT, ROOT)
    refused("ST-ATTS-713", Store(ocsp={name: next(iter(other.values()))}))
    refused("ST-ATTS-711", Store(ocsp={name: b"x"}))
    refused("ST-ATTS-713", Store(crl={ISSUER.pin: make_crl(by=PRODUCT, **UNTIL)}))
    refused("ST-ATTS-716", Store(**DOCUMENTS), now=NOW + 2 * DAY)
    assert "RIM Signer" in refused("ST-ATTS-711", Store(crl={ISSUER.pin: b"x"})).where


@forgeries("holder, issuer", (SIGNER, ISSUER), (ISSUER, PRODUCT), (PRODUCT, ROOT))
def test_a_rim_under_a_revoked_certificate(holder, issuer):
    documents = {**DOCUMENTS["ocsp"], **response(ISSUER, PRODUCT)}
    data = sign(manifest(), AUTHORITY)
    good = CachedStatus(Store(ocsp=documents), NOW)
    parse_rim(data, roots=AUTHORITY.roots, now=NOW, status=good, allow_expired=True)
    bad = Store(ocsp={**documents, **response(holder, issuer, **REVOKED)})
    with pytest.raises(AttestationError, match="ST-ATTS-719"):
        parse_rim(
            data, roots=AUTHORITY.roots, now=NOW, status=CachedStatus(bad, NOW), allow_expired=True
        )
