# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Roles, lifetimes and names; certificates that a careless or hostile CA might issue."""

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from securetrain.core.errors import IdentityError
from securetrain.identity.job_ca import (
    CLOCK_SKEW,
    MAX_LEAF_LIFETIME,
    JobCA,
    certificate_pem,
    check_leaf,
    load_certificate,
)
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.spiffe import Role
from tests import vocabulary
from tests.identity import worlds
from tests.tables import each

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
CA = JobCA.create("securetrain.local", "job-1", NOW)
KEY = PrivateKey.generate(KeyKind.P256)
CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
NODE_URI = "spiffe://securetrain.local/job/job-1/node/node-0"


def issue(role=Role.NODE, node="node-0", now=NOW, lifetime=HOUR, ca=CA):
    return ca.issue(role, KEY.public, now, node=node, lifetime=lifetime)


def forge(
    *,
    uris=(NODE_URI,),
    dns=(),
    eku=(CLIENT,),
    ca=False,
    sign=True,
    cert_sign=False,
    signer=CA.key,
    issuer=CA.certificate.subject,
    without=(),
):
    """A leaf by the CA's own key, with anything wrong that one may wish."""
    names = [*map(x509.UniformResourceIdentifier, uris), *map(x509.DNSName, dns)]
    extensions = {
        "constraints": x509.BasicConstraints(ca=ca, path_length=None),
        "usage": worlds.usage(*["digital_signature"] * sign, *["key_cert_sign"] * cert_sign),
        "eku": x509.ExtendedKeyUsage(list(eku)),
        "san": x509.SubjectAlternativeName(names),
    }
    kept = ((one, True) for name, one in extensions.items() if name not in without)
    valid = (NOW - HOUR, NOW + HOUR)
    return worlds.certificate("", issuer, KEY.public.native, signer.native, valid, *kept)


def refused(certificate, code="ST-IDEN-005", role=Role.NODE, now=NOW):
    vocabulary.refused(IdentityError, code, check_leaf, certificate, CA.certificate, role, now)


def test_each_role_is_good_for_itself():
    assert str(check_leaf(issue(), CA.certificate, Role.NODE, NOW)) == NODE_URI
    found = check_leaf(issue(Role.COORDINATOR, ""), CA.certificate, Role.COORDINATOR, NOW)
    assert str(found) == "spiffe://securetrain.local/job/job-1/coordinator"


def test_and_for_nothing_else():
    refused(issue(), role=Role.COORDINATOR)
    refused(issue(Role.COORDINATOR, ""), role=Role.NODE)


def test_the_forging_tool_can_make_an_honest_one():
    assert check_leaf(forge(), CA.certificate, Role.NODE, NOW).node == "node-0"


FORGED = {
    "005": {
        "both roles": {"eku": (CLIENT, SERVER)},
        "other role": {"eku": (SERVER,)},
        "any role": {"eku": (ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE,)},
        "a CA": {"ca": True},
        "may sign certificates": {"cert_sign": True},
        "may not sign": {"sign": False},
        "no constraints": {"without": ("constraints",)},
        "no key usage": {"without": ("usage",)},
        "no EKU": {"without": ("eku",)},
        "other key": {"signer": PrivateKey.generate(KeyKind.P256)},
        "other issuer": {"issuer": x509.Name([])},
    },
    "006": {
        "no name": {"without": ("san",)},
        "two names": {"uris": (NODE_URI, NODE_URI + "1")},
        "another name beside it": {"dns": ("node-0",)},
        "only DNS": {"uris": (), "dns": ("node-0",)},
        "no SPIFFE id": {"uris": ("https://x.example/",)},
        "a coordinator's name": {"uris": ("spiffe://securetrain.local/job/job-1/coordinator",)},
    },
}


@each(
    "id, forged, code",
    *((name, one, code) for code, table in FORGED.items() for name, one in table.items()),
)
def test_certificates_that_the_cas_own_key_signed_and_that_are_refused(forged, code):
    refused(forge(**forged), f"ST-IDEN-{code}")


def test_a_leaf_cannot_issue():
    """A node that signs a certificate with its own key, naming the CA or itself as issuer."""
    refused(forge(signer=KEY))
    refused(forge(signer=KEY, issuer=issue().subject))


def test_the_ca_itself_is_no_node():
    refused(CA.certificate)


@each(
    "when, good",
    (NOW - CLOCK_SKEW - timedelta(seconds=1), False),
    (NOW - CLOCK_SKEW, True),
    (NOW + HOUR, True),
    (NOW + HOUR + timedelta(seconds=1), False),
)
def test_validity(when, good):
    if good:
        check_leaf(issue(), CA.certificate, Role.NODE, when)
    else:
        refused(issue(), now=when)


def test_nothing_lives_longer_than_a_day_or_than_the_ca():
    issue(lifetime=MAX_LEAF_LIFETIME)
    with pytest.raises(IdentityError, match="ST-IDEN-005"):
        issue(lifetime=MAX_LEAF_LIFETIME + timedelta(seconds=1))
    late = issue(now=CA.certificate.not_valid_after_utc - HOUR, lifetime=MAX_LEAF_LIFETIME)
    assert late.not_valid_after_utc == CA.certificate.not_valid_after_utc


@each("node", "", "a/b", "a" * 65, "a b", "../up", "n\u00f6de")
def test_bad_node_names(node):
    vocabulary.refused(IdentityError, "ST-IDEN-006", issue, node=node)


@each("domain, job", ("UPPER", "j"), ("", "j"), ("d", ""), ("d", "a/b"))
def test_bad_job_names(domain, job):
    vocabulary.refused(IdentityError, "ST-IDEN-006", JobCA.create, domain, job, NOW)


def test_a_ca_of_the_same_name_is_another_ca():
    refused(issue(ca=JobCA.create("securetrain.local", "job-1", NOW)))


def test_one_ca_key_can_be_told_apart_by_job():
    other = dataclasses.replace(CA, job="job-2")
    found = check_leaf(issue(ca=other), CA.certificate, Role.NODE, NOW)
    assert found.job == "job-2", "the caller compares it: ST-ADMN-004"


def test_pem():
    assert load_certificate(certificate_pem(CA.certificate)) == CA.certificate
    for bad in (b"", b"x", certificate_pem(CA.certificate) * 2):
        vocabulary.refused(IdentityError, "ST-IDEN-005", load_certificate, bad, "file")
