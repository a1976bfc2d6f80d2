# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Endorsement keys whose maker is known, and all the others.

`test_..._tier` and what is honest by name are the controls.
"""

import dataclasses
from datetime import UTC, datetime, timedelta, timezone
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat import asn1
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding

from securetrain.core.errors import AttestationError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence.tpm.certificates import (
    LEAF,
    MAX_CERTIFICATE,
    MAX_CHAIN,
    Endorsements,
    TpmReference,
    check_endorsement,
)
from securetrain.evidence.tpm.keys import EK_TEMPLATES
from securetrain.identity import path_search
from tests import vocabulary
from tests.evidence.tpm.forge import (
    BEGIN,
    END,
    MAKER,
    NOW,
    SWTPM,
    Authority,
    end_entity,
    flip,
    make_key,
    raw,
    resign,
    rsa_key,
)
from tests.identity.worlds import certificate, limits, usage
from tests.tables import each, forgeries

ROOT = Authority("maker root")
MIDDLE = Authority("maker intermediate", ROOT)
ISSUER = Authority("maker issuer", MIDDLE)
EK = make_key(EK_TEMPLATES["H-3"]).public
OTHER = make_key(EK_TEMPLATES["H-3"]).public
REFERENCE = TpmReference(roots=(ROOT.pem,), intermediates=(MIDDLE.pem, ISSUER.pem))
LEAF_CERTIFICATE = ISSUER.endorse(EK)


def judge(certificate=LEAF_CERTIFICATE, chain=(), *, key=EK, now=NOW, **reference: Any):
    return check_endorsement(
        key.tpm2b, certificate, chain, msgspec.structs.replace(REFERENCE, **reference), now
    )


def refused(code, certificate=LEAF_CERTIFICATE, chain=(), **named: Any) -> AttestationError:
    return vocabulary.refused(AttestationError, code, judge, certificate, chain, **named)


def fingerprint(certificate: bytes) -> str:
    return sha256(certificate).hexdigest()


# Controls.


@each("template", "L-1", "L-2", "H-1", "H-2", "H-3", "H-4", "H-6")
def test_honest_keys(template):
    key = make_key(EK_TEMPLATES[template]).public
    found = judge(ISSUER.endorse(key), key=key)
    assert found.tier is NodeTier.TPM
    assert found.key == key
    assert found.name == key.name
    assert found.template == template
    assert (found.manufacturer, found.model, found.version) == tuple(MAKER.values())
    assert found.root == fingerprint(ROOT.der)
    assert found.expires == END


def test_an_honest_node_may_send_the_chain_in_any_order():
    for chain in ([ISSUER.der, MIDDLE.der], [MIDDLE.der, ISSUER.der, ROOT.der]):
        assert judge(chain=chain, intermediates=()).tier is NodeTier.TPM
    assert judge(chain=[ISSUER.der], intermediates=(MIDDLE.pem,)).tier is NodeTier.TPM


def test_honest_certificates_signed_by_rsa():
    root = Authority("rsa root", key=rsa_key(3072))
    assert judge(root.endorse(EK), roots=(root.pem,)).tier is NodeTier.TPM


def test_any_ca_may_be_pinned():
    for chain in ((), (ISSUER.der, MIDDLE.der), (MIDDLE.der, ROOT.der)):
        found = judge(roots=(ISSUER.pem,), intermediates=(), chain=chain)
        assert found.root == fingerprint(ISSUER.der)
    assert judge(roots=(ISSUER.pem,)).root == fingerprint(ISSUER.der)


def test_the_nearest_pinned_ca_makes_the_tier():
    found = judge(roots=(ROOT.pem,), test_roots=(ISSUER.pem,), chain=[ISSUER.der, MIDDLE.der])
    assert found.tier is NodeTier.TEST_ONLY
    assert judge(roots=(ISSUER.pem,), test_roots=(ROOT.pem,)).tier is NodeTier.TPM


def test_several_certificates_in_one_text():
    bundle = f"# makers\n{Authority('another').pem}\n{ROOT.pem}"
    assert judge(roots=(bundle,), intermediates=(MIDDLE.pem + ISSUER.pem,)).tier is NodeTier.TPM


@each(
    "id, reference, tier",
    ("roots", {}, NodeTier.TPM),
    ("virtual", {"roots": (), "virtual_roots": (ROOT.pem,)}, NodeTier.VTPM),
    ("test", {"roots": (), "test_roots": (ROOT.pem,)}, NodeTier.TEST_ONLY),
    ("roots-and-virtual", {"virtual_roots": (ROOT.pem,)}, NodeTier.VTPM),
    ("roots-and-test", {"test_roots": (ROOT.pem,)}, NodeTier.TEST_ONLY),
    ("all", {"virtual_roots": (ROOT.pem,), "test_roots": (ROOT.pem,)}, NodeTier.TEST_ONLY),
)
def test_the_root_makes_the_tier(reference, tier):
    assert judge(**reference).tier is tier


@forgeries(
    "id, attributes",
    ("swtpm", SWTPM),
    *(
        (maker, {**MAKER, "2.23.133.2.1": maker})
        for maker in ("id:49424D20", "id:00001014", "id:53572020", "id:4D534654", "id:4d534654")
    ),
    ("model", {**MAKER, "2.23.133.2.2": "My SWTPM 2"}),
)
def test_software_is_never_the_hardware_tier(attributes):
    certificate = ISSUER.endorse(EK, attributes=attributes)
    assert judge(certificate).tier is NodeTier.VTPM
    virtual = {"roots": (), "virtual_roots": (ROOT.pem,)}
    assert judge(certificate, **virtual).tier is NodeTier.VTPM
    assert judge(certificate, test_roots=(ROOT.pem,)).tier is NodeTier.TEST_ONLY


def test_a_listed_key_needs_no_certificate():
    found = judge(b"", allow_uncertified=(EK.name.hex(),))
    assert found.tier is NodeTier.VTPM
    assert (found.manufacturer, found.root, found.expires) == ("", "", None)
    assert judge(b"", allow_uncertified=(EK.name.hex(),), roots=()).tier is NodeTier.VTPM


def test_a_listed_key_with_a_certificate_is_worth_what_the_certificate_is():
    assert judge(allow_uncertified=(EK.name.hex(),)).tier is NodeTier.TPM


def test_the_first_certificate_to_expire_counts():
    early = Authority("early", ROOT, end=END - timedelta(days=365))
    assert judge(early.endorse(EK), [early.der]).expires == END - timedelta(days=365)


def test_validity_ends_with_the_last_second():
    assert judge(now=END).expires == END
    assert judge(now=BEGIN).tier is NodeTier.TPM
    elsewhere = timezone(timedelta(hours=9))
    assert judge(now=END.astimezone(elsewhere)).tier is NodeTier.TPM


def test_certificates_that_end_at_the_end_of_time():
    forever = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    root = Authority("forever", end=forever)
    assert judge(root.endorse(EK, end=forever), roots=(root.pem,)).expires == forever


def test_names_that_are_not_der():
    # As one maker writes them: a set of two attributes, not sorted. Stricter parsers refuse it.
    root = Authority("a")
    der, leaf = root.der, root.endorse(EK)
    pairs = [
        asn1.encode_der(x509.ObjectIdentifier(oid)) + b"\x0c\x01" + text
        for oid, text in (("2.5.4.10", b"b"), ("2.5.4.3", b"a"))
    ]
    unsorted = b"".join(b"\x30" + bytes([len(one)]) + one for one in pairs)
    old = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a")]).public_bytes()
    new = b"\x30" + bytes([len(unsorted) + 2]) + b"\x31" + bytes([len(unsorted)]) + unsorted
    der, leaf = (resign(_rename(one, old, new), root.key) for one in (der, leaf))
    vocabulary.refused(ValueError, "InvalidSetOrdering", x509.load_der_x509_certificate, leaf)
    assert judge(leaf, roots=(x509_pem(der),)).tier is NodeTier.TPM
    assert refused("ST-ATTS-107", leaf).where == LEAF


def _rename(der: bytes, old: bytes, new: bytes) -> bytes:
    """The certificate with another name in it; lengths of what is around it are put right."""
    body = bytes(asn1.decode_der(asn1.TLV, der).data)
    content = asn1.decode_der(_Pieces, der).content
    old_content = b"\x30" + asn1.encode_der(bytes(content.data))[1:]
    new_content = bytes(content.data).replace(old, new)
    assert new_content != content.data
    new_content = b"\x30" + asn1.encode_der(new_content)[1:]
    return b"\x30" + asn1.encode_der(body.replace(old_content, new_content))[1:]


@asn1.sequence
class _Pieces:
    content: asn1.TLV
    algorithm: asn1.TLV
    signature: asn1.BitString


def x509_pem(der: bytes) -> str:
    from base64 import encodebytes

    text = encodebytes(der).decode()
    return f"-----BEGIN CERTIFICATE-----\n{text}-----END CERTIFICATE-----\n"


# The key.


@pytest.mark.forgery
def test_the_certificate_of_another_tpm():
    assert refused("ST-ATTS-106", key=OTHER).where == LEAF
    refused("ST-ATTS-106", ISSUER.endorse(make_key(EK_TEMPLATES["L-1"]).public))


@forgeries(
    "id, changes, code",
    ("signing", {"attributes": EK.attributes | (1 << 18)}, "ST-ATTS-103"),
    ("unrestricted", {"attributes": EK.attributes & ~(1 << 16)}, "ST-ATTS-103"),
    ("another-policy", {"auth_policy": bytes(48)}, "ST-ATTS-103"),
)
def test_a_certified_key_in_another_dress(changes, code):
    # The certificate is for the key alone; the template is what the key may be used for.
    refused(code, key=dataclasses.replace(EK, **changes))


@pytest.mark.forgery
def test_a_public_area_that_is_cut():
    given = (EK.tpm2b[:-1], LEAF_CERTIFICATE, (), REFERENCE, NOW)
    vocabulary.refused(
        AttestationError, "ST-ATTS-101", check_endorsement, *given, names="endorsement key"
    )


# The path.


@pytest.mark.forgery
def test_a_ca_with_the_same_name():
    fake_root = Authority("maker root")
    fake = Authority("maker issuer", fake_root)
    for chain in ([], [fake.der], [fake.der, fake_root.der]):
        refused("ST-ATTS-107", fake.endorse(EK), chain)
        refused("ST-ATTS-107", fake.endorse(EK), chain, intermediates=())
    refused("ST-ATTS-107", fake_root.endorse(EK))


WHOLE = [ISSUER.der, MIDDLE.der, ROOT.der]
PINNED_LEAF = {"roots": (x509_pem(LEAF_CERTIFICATE),), "says": "no pinned root"}
ABOVE = "intermediate certificate 1"
TURNED = [flip(ISSUER.der, -1), MIDDLE.der]
WEAK = {"chain": [resign(ISSUER.der, MIDDLE.key, "sha1")], "intermediates": (MIDDLE.pem,)}
BY_SHA1 = {"certificate": resign(LEAF_CERTIFICATE, ISSUER.key, "sha1"), "says": "SHA1"}
BEHIND = {"chain": [ISSUER.der, MIDDLE.der + b"\0"], "names": "certificate 2 of the chain"}


@forgeries(
    "id, code, how",
    ("no root is pinned", 107, {"chain": WHOLE, "roots": ()}),
    ("nothing is pinned", 107, {"roots": (), "intermediates": ()}),
    ("a known intermediate is no root", 107, {"roots": (Authority("another").pem,)}),
    ("the middle is missing", 107, {"intermediates": (ISSUER.pem,)}),
    ("the issuer is missing", 107, {"intermediates": (MIDDLE.pem,)}),
    ("the leaf itself is pinned", 107, PINNED_LEAF),
    ("the leaf itself is all that is pinned", 107, {**PINNED_LEAF, "intermediates": ()}),
    ("more certificates than are read", 105, {"chain": [ROOT.der] * (MAX_CHAIN + 1)}),
    ("behind it", 105, {"certificate": LEAF_CERTIFICATE + b"\0", "says": "other bytes"}),
    ("bytes behind another", 105, BEHIND),
    # The profile has tests of its own; here it matters that it is asked.
    ("the profile", 105, {"certificate": ISSUER.endorse(EK, purpose=None), "names": LEAF}),
    ("a turned bit", 107, {"certificate": flip(LEAF_CERTIFICATE, -1), "says": "signature"}),
    ("a turned bit above", 107, {"chain": TURNED, "intermediates": (), "names": ABOVE}),
    ("a leaf signed by SHA-1", 107, {**BY_SHA1, "names": LEAF}),
    ("an intermediate signed by SHA-1", 107, {**WEAK, "names": ABOVE}),
)
def test_paths_that_lead_to_no_root(code, how):
    refused(f"ST-ATTS-{code}", **how)


def test_as_many_certificates_as_are_read():
    judge(chain=[ROOT.der] * MAX_CHAIN)


@pytest.mark.forgery
def test_a_certificate_that_signs_itself():
    own = make_key(EK_TEMPLATES["H-3"])
    maker = Authority("own", key=own.private)
    refused("ST-ATTS-107", maker.endorse(own.public), [maker.der], key=own.public)


@forgeries("at", -1, -40, 60, 200)
def test_a_bit_of_the_certificate_is_turned(at):
    altered = flip(LEAF_CERTIFICATE, at)
    vocabulary.refused(AttestationError, "^ST-ATTS-(105|107):", judge, altered)


@forgeries(
    "id, changes",
    ("no-constraints", {"constraints": None}),
    ("no-ca", {"constraints": limits(ca=False)}),
    ("no-usage", {"usage": None}),
    ("no-cert-sign", {"usage": (usage("crl_sign"), True)}),
    ("unknown-critical", {"more": raw("1.2.3.4", b"", critical=True)}),
)
def test_an_intermediate_that_may_not_issue(changes):
    bad = Authority("below", ROOT, **changes)
    refused("ST-ATTS-107", bad.endorse(EK), [bad.der], names=ABOVE)


@pytest.mark.forgery
def test_an_endorsement_key_issues_certificates():
    # The owner of one genuine key certifies keys of their own with it.
    genuine = make_key(EK_TEMPLATES["H-3"])
    forged = Authority("tpm", key=genuine.private)
    forged.certificate = ISSUER.issue(
        genuine.private.public_key(),
        subject="tpm",
        extensions=end_entity(genuine.private.public_key()),
    )
    refused("ST-ATTS-107", forged.endorse(EK), [forged.der])


@pytest.mark.forgery
def test_more_cas_than_a_ca_allows():
    limit = x509.BasicConstraints(ca=True, path_length=0)
    narrow = Authority("narrow", ROOT, constraints=(limit, True))
    assert judge(narrow.endorse(EK), [narrow.der]).tier is NodeTier.TPM
    below = Authority("below", narrow)
    refused("ST-ATTS-107", below.endorse(EK), [narrow.der, below.der], says="path length")


def descend(depth: int) -> list[Authority]:
    line = [ROOT]
    for number in range(depth):
        line.append(Authority(f"level {number}", line[-1]))
    return line


@pytest.mark.forgery
def test_a_path_that_is_too_long():
    line = descend(path_search.MAX_DEPTH - 1)
    fits = [one.der for one in line[1:-1]]
    assert judge(line[-2].endorse(EK), fits).tier is NodeTier.TPM
    error = refused("ST-ATTS-107", line[-1].endorse(EK), [*fits, line[-1].der])
    assert f"a path of {path_search.MAX_DEPTH + 1}" in error.what


@pytest.mark.forgery
def test_certificates_that_are_too_large():
    padding = raw("1.2.3.4", bytes(MAX_CERTIFICATE))
    refused("ST-ATTS-105", ISSUER.endorse(EK, more=padding))
    assert "bytes" in refused("ST-ATTS-105", chain=[bytes(MAX_CERTIFICATE + 1)]).what


@forgeries("data", b"\0", b"\x30\x00", b"-----BEGIN CERTIFICATE-----", bytes(100))
def test_what_is_no_certificate(data):
    assert refused("ST-ATTS-105", data).where == LEAF
    assert refused("ST-ATTS-105", chain=[data]).where == "certificate 1 of the chain"


@pytest.mark.forgery
def test_a_leaf_with_a_key_of_another_kind():
    wrong = ed25519.Ed25519PrivateKey.generate().public_key()
    leaf = ISSUER.issue(wrong, extensions=end_entity(wrong)).public_bytes(Encoding.DER)
    assert "neither RSA nor ECC" in refused("ST-ATTS-105", leaf).what
    # OpenSSL reads a key on a curve that nobody else does.
    odd = leaf.replace(b"\x06\x03\x2b\x65\x70", b"\x06\x03\x2b\x65\x7f")
    assert "key" in refused("ST-ATTS-105", odd).what


# Weak algorithms.


@pytest.mark.forgery
def test_signatures_whose_hash_is_a_parameter():
    root = Authority("pss", key=rsa_key())
    assert judge(root.endorse(EK), roots=(root.pem,)).tier is NodeTier.TPM
    refused("ST-ATTS-107", root.endorse(EK, pss=True), roots=(root.pem,), says="rsassaPss")


def test_a_root_may_have_signed_itself_by_anything():
    old = x509_pem(resign(ROOT.der, ROOT.key, "sha1"))
    assert judge(roots=(old,)).tier is NodeTier.TPM


@forgeries(
    "id, key, bits",
    ("rsa-1024", rsa_key(1024), 1024),
    ("p224", ec.generate_private_key(ec.SECP224R1()), 224),
)
def test_a_ca_with_a_weak_key(key, bits):
    weak = Authority("weak", ROOT, key=key)
    error = refused("ST-ATTS-107", weak.endorse(EK), [weak.der])
    assert f"{bits} bits" in error.what
    assert error.where == "intermediate certificate 1"
    root = Authority("weak root", key=key)
    refused("ST-ATTS-107", root.endorse(EK), roots=(root.pem,), names="root (certificate 1 above)")


@pytest.mark.forgery
def test_a_ca_with_a_key_of_another_kind():
    key: Any = ed25519.Ed25519PrivateKey.generate()
    root = Authority("edwards", ROOT, key=key)
    more = end_entity(EK.key()).values()
    leaf = certificate("", "edwards", EK.key(), key, (BEGIN, END), *more, serial=1, digest=None)
    refused("ST-ATTS-107", leaf.public_bytes(Encoding.DER), [root.der])


# Time.

LATE = NOW + timedelta(days=1)
EARLY = NOW - timedelta(days=1)


@forgeries(
    "id, begin, end, word",
    ("expired", BEGIN, EARLY, "expired"),
    ("not-yet-valid", LATE, END, "not yet valid"),
)
def test_certificates_out_of_time(begin, end, word):
    times: dict[str, Any] = {"begin": begin, "end": end}
    refused("ST-ATTS-108", ISSUER.endorse(EK, **times), says=word, names=LEAF)
    middle = Authority("middle", ROOT, **times)
    refused("ST-ATTS-108", middle.endorse(EK), [middle.der], names="intermediate certificate 1")
    root = Authority("root", **times)
    refused("ST-ATTS-108", root.endorse(EK), roots=(root.pem,), names="root (certificate 1 above)")


@forgeries(
    "id, now", ("after", END + timedelta(seconds=1)), ("before", BEGIN - timedelta(seconds=1))
)
def test_the_verifiers_time_counts(now):
    refused("ST-ATTS-108", now=now)
    refused("ST-ATTS-108", now=now.astimezone(timezone(timedelta(hours=-11))))


@pytest.mark.forgery
def test_a_time_that_has_no_date():
    # OpenSSL compares the year 0; a calendar has none.
    old = b"\x30\x1e\x17\x0d200101000000Z\x17\x0d400101000000Z"
    new = b"\x30\x20\x18\x0f00000101000000Z\x17\x0d400101000000Z"
    odd = resign(_rename(LEAF_CERTIFICATE, old, new), ISSUER.key)
    refused("ST-ATTS-105", odd, says="validity cannot be read", names=LEAF)


@pytest.mark.forgery
def test_expired_and_untrusted_is_untrusted():
    fake = Authority("maker issuer", begin=BEGIN, end=EARLY)
    refused("ST-ATTS-107", fake.endorse(EK, end=EARLY), [fake.der], intermediates=())


# Revocation and the lack of certificates.


@forgeries(
    "id, certificate, where",
    ("leaf", LEAF_CERTIFICATE, LEAF),
    ("issuer", ISSUER.der, "intermediate certificate 1"),
    ("intermediate", MIDDLE.der, "intermediate certificate 2"),
    ("root", ROOT.der, "root (certificate 3 above)"),
)
def test_a_revoked_certificate(certificate, where):
    refused("ST-ATTS-109", revoked_certificates=(fingerprint(certificate),), names=where)


LISTED = {"allow_uncertified": (EK.name.hex(),)}
REVOKED = {"revoked": (EK.name.hex(),)}


@forgeries(
    "id, code, how",
    ("revoked", 109, {**REVOKED, "names": "endorsement key"}),
    ("revoked and listed", 109, {"certificate": b"", **REVOKED, **LISTED}),
    ("not listed", 110, {"certificate": b""}),
    ("another is listed", 110, {"certificate": b"", "allow_uncertified": (OTHER.name.hex(),)}),
    ("in the chain alone", 110, {"certificate": b"", "chain": [LEAF_CERTIFICATE, ISSUER.der]}),
    ("listed, by nobody", 107, {"certificate": Authority("nobody").endorse(EK), **LISTED}),
    ("listed, of another", 106, {"certificate": ISSUER.endorse(OTHER), **LISTED}),
    ("listed, no certificate", 105, {"certificate": b"\0", **LISTED}),
)
def test_keys_that_are_revoked_or_not_listed(code, how):
    refused(f"ST-ATTS-{code}", **how)


# What a verifier remembers.


@pytest.fixture
def endorsements():
    return Endorsements(REFERENCE)


def check(endorsements, certificate=LEAF_CERTIFICATE, *, key=EK, now=NOW, chain=()):
    return endorsements.check(key.tpm2b, certificate, chain, now)


def counted(endorsements, monkeypatch):
    calls = []
    build = Endorsements._build

    def counting(self, leaf, *rest):
        calls.append(leaf)
        return build(self, leaf, *rest)

    monkeypatch.setattr(Endorsements, "_build", counting)
    return calls


def test_a_path_is_verified_once(endorsements, monkeypatch):
    calls = counted(endorsements, monkeypatch)
    assert check(endorsements) == check(endorsements)
    assert len(calls) == 1
    check(endorsements, chain=[ROOT.der])
    assert len(calls) == 2, "other bytes, another path"


@pytest.mark.forgery
def test_a_remembered_path_expires(endorsements):
    check(endorsements)
    for now in (END + timedelta(seconds=1), BEGIN - timedelta(seconds=1)):
        vocabulary.refused(AttestationError, "ST-ATTS-108", check, endorsements, now=now)
    check(endorsements)


@pytest.mark.forgery
def test_a_remembered_path_is_for_its_own_key(endorsements):
    check(endorsements)
    vocabulary.refused(AttestationError, "ST-ATTS-106", check, endorsements, key=OTHER)


@pytest.mark.forgery
def test_the_border_between_two_certificates_is_moved(endorsements):
    check(endorsements, chain=[ISSUER.der])
    vocabulary.refused(
        AttestationError, "ST-ATTS-105", check, endorsements, LEAF_CERTIFICATE + ISSUER.der
    )


@pytest.mark.forgery
def test_refusals_are_not_remembered_as_paths(endorsements, monkeypatch):
    calls = counted(endorsements, monkeypatch)
    for _ in range(2):
        with pytest.raises(AttestationError):
            check(endorsements, flip(LEAF_CERTIFICATE, -1))
    assert len(calls) == 2


def test_what_is_remembered_is_bounded(monkeypatch):
    endorsements = Endorsements(REFERENCE, max_keys=2)
    calls = counted(endorsements, monkeypatch)
    leaves = [ISSUER.endorse(EK) for _ in range(3)]
    for leaf in leaves:
        check(endorsements, leaf)
    assert len(endorsements._accepted) == 2
    check(endorsements, leaves[2])
    check(endorsements, leaves[1])
    assert len(calls) == 3
    check(endorsements, leaves[0])
    assert len(calls) == 4, "the oldest was forgotten"


# Reference values.


@each(
    "field, text",
    ("roots", "nothing"),
    ("roots", ""),
    ("virtual_roots", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"),
    ("test_roots", ROOT.pem.replace("CERTIFICATE", "PUBLIC KEY")),
    ("intermediates", "-----BEGIN CERTIFICATE-----"),
)
def test_pinned_certificates_that_are_none(field, text):
    pinned, where = TpmReference(**{field: (ROOT.pem, text)}), f"tpm.{field}[1]"
    vocabulary.refused(AttestationError, "ST-ATTS-009", Endorsements, pinned, names=where)


@each(
    "document",
    {"revoked": [EK.name.hex().upper()]},
    {"revoked": [EK.name.hex()[4:]]},
    {"revoked": ["0004" + "00" * 20]},
    {"allow_uncertified": ["*"]},
    {"revoked_certificates": ["00"]},
    {"anything": []},
    {"roots": [1]},
)
def test_reference_values_of_another_form(document):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(document, TpmReference)


def test_reference_values_that_are_read():
    names = [make_key(EK_TEMPLATES[name]).public.name.hex() for name in ("H-2", "H-3", "H-4")]
    document = {"roots": [ROOT.pem], "revoked": names, "revoked_certificates": ["00" * 32]}
    assert msgspec.convert(document, TpmReference).revoked == tuple(names)


def test_an_honest_signature_is_what_the_tests_turn():
    # The control of the control: the library agrees that the certificates are good.
    leaf, issuer = x509.load_der_x509_certificate(LEAF_CERTIFICATE), ISSUER.certificate
    leaf.verify_directly_issued_by(issuer)
    with pytest.raises((InvalidSignature, ValueError)):
        leaf.verify_directly_issued_by(ROOT.certificate)
