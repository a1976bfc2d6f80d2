# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The certificates and revocation lists behind SEV-SNP reports; the control is in `test_snp.py`."""

from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from tests.evidence.tee import forge
from tests.evidence.tee.forge import DAY, NOW, der, p256_key, p384_key, rsa_key
from tests.evidence.tee.forge_amd import AmdWorld, refused
from tests.identity.worlds import custom
from tests.tables import each, forgeries

MILAN = AmdWorld()


def refused_leaf(code, where="VCEK", *, text="", **options):
    refused(code, where, text=text, certificates=[der(MILAN.leaf(**options))])


def refused_chain(code, where, *, text="", ask=None, ark=None):
    vendor = [der(ask or MILAN.ask()), der(ark or MILAN.ark())]
    refused(code, where, text=text, vendor_chain=vendor)


@forgeries(
    "options, text",
    ({"signer": rsa_key("x")}, "is not signed by the SEV-Milan"),
    ({"signer": rsa_key("ark")}, "is not signed by the SEV-Milan"),
    ({"pss": False}, "is not signed by the SEV-Milan"),
    ({"hash_algorithm": hashes.SHA256()}, "is not signed by the SEV-Milan"),
    ({"issuer": "SEV-Rome"}, "issued by 'SEV-Rome'"),
    ({"subject": "SEV-VLEK"}, "the certificate is of 'SEV-VLEK'"),
    ({"subject": "VCEK"}, "the certificate is of 'VCEK'"),
    ({"ca": True}, "is a CA"),
    ({"more": [(forge.NO_USAGE, True)]}, "may not sign"),
    ({"more": [(custom("1.2.3", b""), True)]}, "unknown critical extensions"),
)
def test_a_key_that_amd_did_not_certify(options, text):
    refused_leaf("ST-ATTS-404", text=text, **options)


def test_a_key_that_says_it_signs():
    leaf = MILAN.leaf(more=[(forge.SIGNING_USAGE, True)])
    assert MILAN.verify(certificates=[der(leaf)])


@pytest.mark.forgery
def test_a_key_on_another_curve():
    refused_leaf("ST-ATTS-404", "VCEK", key=p256_key("vek"), text="P-384")
    refused_leaf("ST-ATTS-404", "VCEK", key=rsa_key("x"), text="P-384")


@forgeries(
    "id, start, end", ("expired", NOW - 9 * DAY, NOW - DAY), ("not-yet", NOW + DAY, NOW + 9 * DAY)
)
def test_certificates_out_of_date(start, end):
    dates = {"start": start, "end": end}
    refused_leaf("ST-ATTS-405", **dates)
    refused_chain("ST-ATTS-405", "SEV-Milan", ask=MILAN.ask(**dates))
    refused_chain("ST-ATTS-405", "ARK-Milan", ark=MILAN.ark(**dates))


def test_the_first_and_last_second():
    leaf = MILAN.leaf(start=NOW, end=NOW + DAY)
    for now in (NOW, NOW + DAY):
        assert MILAN.verify(certificates=[der(leaf)], now=now)
    for now in (NOW - timedelta(seconds=1), NOW + DAY + timedelta(seconds=1)):
        refused("ST-ATTS-405", "VCEK", certificates=[der(leaf)], now=now)


@pytest.mark.forgery
def test_forged_is_not_called_expired():
    refused_leaf("ST-ATTS-404", signer=rsa_key("x"), end=NOW - DAY, start=NOW - 2 * DAY)


@pytest.mark.forgery
def test_a_root_of_the_same_name():
    root = forge.certificate("ARK-Milan", "ARK-Milan", rsa_key("x"), rsa_key("x"), ca=True)
    ask = forge.certificate("SEV-Milan", "ARK-Milan", rsa_key("ask"), rsa_key("x"), ca=True)
    refused_chain("ST-ATTS-404", "ARK-Milan", ask=ask, ark=root, text="the pinned root has")


@pytest.mark.forgery
def test_a_root_whose_dates_somebody_else_wrote():
    ark = forge.certificate("ARK-Milan", "ARK-Milan", rsa_key("ark"), rsa_key("x"), ca=True)
    refused_chain("ST-ATTS-404", "ARK-Milan", ark=ark, text="is not signed")


@forgeries(
    "options, text",
    ({"ca": False}, "may not sign certificates"),
    ({"may_sign_certificates": False}, "may not sign certificates"),
    ({"extensions": [(custom("1.2.3", b""), True)]}, "unknown critical"),
)
def test_an_intermediate_that_is_none(options, text):
    refused_chain("ST-ATTS-404", "SEV-Milan", ask=MILAN.ask(**options), text=text)


@pytest.mark.forgery
def test_an_intermediate_by_somebody_else():
    ask = forge.certificate("SEV-Milan", "ARK-Milan", rsa_key("ask"), rsa_key("x"), ca=True)
    refused_chain("ST-ATTS-404", "SEV-Milan", ask=ask, text="is not signed by the ARK-Milan")


@pytest.mark.forgery
def test_a_root_that_allows_no_intermediates():
    ark = MILAN.ark(path_length=0)
    refused_chain("ST-ATTS-404", "ARK-Milan", ark=ark, text="1 CAs are below it")
    assert MILAN.verify(vendor_chain=[der(MILAN.ask()), der(MILAN.ark(path_length=1))])


@pytest.mark.forgery
def test_an_intermediate_with_a_key_of_another_kind():
    for key in (forge.short_rsa_key("x"), p384_key("x"), forge.ed25519_key("x")):
        ask = forge.certificate("SEV-Milan", "ARK-Milan", key, rsa_key("ark"), ca=True)
        leaf = MILAN.leaf(signer=key)
        vendor = [der(ask), der(MILAN.ark())]
        refused("ST-ATTS-404", "SEV-Milan", certificates=[der(leaf)], vendor_chain=vendor)


@each(
    "id, data, text",
    ("empty", b"", "not a certificate"),
    ("garbage", b"\x30\x03\x02\x01\x01", "not a certificate"),
    ("large", bytes(9000), "9000 bytes"),
    ("pem", forge.pem(MILAN.leaf()), "not a certificate"),
)
def test_certificates_that_are_none(data, text):
    refused("ST-ATTS-402", "certificates[0]", certificates=[data], text=text)


def test_trailing_bytes_of_a_certificate():
    refused("ST-ATTS-402", certificates=[der(MILAN.leaf()) + b"\0"])


def test_too_many_certificates():
    refused("ST-ATTS-402", certificates=[der(MILAN.leaf())] * 17, text="17 certificates")


@each(
    "id, change",
    ("junk", lambda pem: pem + b"x"),
    ("empty", lambda pem: b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
    ("no-end", lambda pem: pem.replace(b"-----END", b"-----EMD", 1)),
    ("half", lambda pem: b"-----BEGIN " + pem),
    ("many", lambda pem: pem * 20),
)
def test_a_cache_that_is_no_pem(change):
    vendor = [change(forge.pem(MILAN.ask(), MILAN.ark()))]
    refused("ST-ATTS-402", "vendor_chain[0]", vendor_chain=vendor)


# Revocation.


def test_a_list_that_has_somebody_else():
    state = MILAN.verify(crl=MILAN.crl([8, 9]), rules={"require_crl": True})
    assert state.crl_checked


@pytest.mark.forgery
def test_a_list_that_is_asked_for():
    refused("ST-ATTS-407", "CRL", rules={"require_crl": True}, text="there is none")


@pytest.mark.forgery
def test_a_revoked_intermediate():
    vendor = [der(MILAN.ask(serial=0x10001)), der(MILAN.ark())]
    refused(
        "ST-ATTS-406", "SEV-Milan", vendor_chain=vendor, crl=MILAN.crl([5, 0x10001]), text="revoked"
    )


@forgeries(
    "id, crl, text",
    ("empty", b"", "not a revocation list"),
    ("garbage", b"\x30\x00", "not a revocation list"),
    ("large", bytes((4 << 20) + 1), "the limit is"),
    ("forged", forge.revocation_list("ARK-Milan", rsa_key("x")), "not signed by the CA"),
    ("product", forge.revocation_list("ARK-Genoa", rsa_key("ark")), "of another CA"),
    ("intermediate", forge.revocation_list("SEV-Milan", rsa_key("ask")), "of another CA"),
    ("delta", MILAN.crl(extensions=[(x509.DeltaCRLIndicator(1), True)]), "partial list"),
)
def test_lists_that_are_not_amds(crl, text):
    refused("ST-ATTS-407", "CRL", crl=crl, text=text)


def test_a_list_in_pem():
    crl = x509.load_der_x509_crl(MILAN.crl()).public_bytes(Encoding.PEM)
    assert MILAN.verify(crl=crl).crl_checked


@forgeries(
    "id, dates",
    ("expired", {"start": NOW - 9 * DAY, "end": NOW - DAY}),
    ("not-yet", {"start": NOW + DAY, "end": NOW + 9 * DAY}),
)
def test_lists_out_of_date(dates):
    refused("ST-ATTS-405", "CRL", crl=MILAN.crl(**dates), text="the list is good from")


@pytest.mark.forgery
def test_a_root_that_may_not_sign_lists():
    ark = MILAN.ark(may_sign_lists=False)
    vendor = [der(MILAN.ask()), der(ark)]
    refused("ST-ATTS-407", "CRL", vendor_chain=vendor, crl=MILAN.crl(), text="may not sign lists")
