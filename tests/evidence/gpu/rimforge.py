# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""RIMs in the form of NVIDIA's, and forged ones.

A manifest is written in its canonical form, so that what is signed is the text itself and the
verifier's canonicalisation is checked against something else. A signature is put in by `sign`; what
a forger changes is text: before signing (a signer who errs) or after it (anybody).
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from tests.evidence.gpu.authority import Authority

SWID = "http://standards.iso.org/iso/19770/-2/2015/schema.xsd"
TCG = (
    "https://trustedcomputinggroup.org/resource/"
    "tcg-reference-integrity-manifest-rim-information-model/"
)
SHA384 = "http://www.w3.org/2001/04/xmlenc#sha384"
DSIG = "http://www.w3.org/2000/09/xmldsig#"
C14N = "http://www.w3.org/2006/12/xml-c14n11"

SCOPE = {"": SWID, "ns0": SWID, "ns2": SHA384}
"""Namespaces that a manifest's root declares."""

SIGNED_INFO = f"""\
<ds:CanonicalizationMethod Algorithm="{C14N}"></ds:CanonicalizationMethod>\
<ds:SignatureMethod Algorithm="http://www.w3.org/2001/04/xmldsig-more#ecdsa-sha384">\
</ds:SignatureMethod>\
<ds:Reference URI=""><ds:Transforms>\
<ds:Transform Algorithm="{DSIG}enveloped-signature"></ds:Transform>\
<ds:Transform Algorithm="{C14N}"></ds:Transform></ds:Transforms>\
<ds:DigestMethod Algorithm="http://www.w3.org/2001/04/xmldsig-more#sha384"></ds:DigestMethod>\
<ds:DigestValue>DIGEST</ds:DigestValue></ds:Reference>"""

Measurements = Mapping[int, Iterable[bytes]]


def digest_of(number: int) -> bytes:
    """A digest that no firmware has."""
    return hashlib.sha384(b"firmware-%d" % number).digest()


def resource(index: int, digests: Iterable[bytes], *, active: bool = True) -> str:
    """One measurement."""
    values = {f"Hash{number}": digest.hex() for number, digest in enumerate(digests)}
    hashed = "".join(f' ns2:{name}="{value}"' for name, value in sorted(values.items()))
    return (
        f'<ns0:Resource active="{active}" alternatives="{len(values)}" index="{index}"'
        f' name="Measurement_{index}" size="48" type="Measurement"{hashed}></ns0:Resource>'
    )


def manifest(
    version: str = "96.00.5E.00.01",
    *,
    product: str = "GH100",
    edition: str = "GPU",
    measurements: Measurements | None = None,
    inactive: Iterable[int] = (62, 63),
) -> str:
    """A manifest's canonical text, without a signature."""
    golden = {0: [digest_of(0)], 1: [digest_of(1), digest_of(100)]}
    chosen = golden if measurements is None else measurements
    resources = [resource(index, digests) for index, digests in chosen.items()]
    resources += [resource(index, [bytes(48)], active=False) for index in inactive]
    rows = "\n        ".join(resources)
    tcg = {
        "BindingSpec": "RIMIM",
        "BindingSpecVersion": "1.01",
        "FirmwareManufacturer": "NVIDIA Corporation",
        "FirmwareManufacturerId": "5703",
        "PlatformManufacturerId": "5703",
        "PlatformManufacturerStr": "NVIDIA Corporation",
        "PlatformModel": product,
    }
    about = "".join(f' ns1:{key}="{value}"' for key, value in tcg.items())
    return (
        f"<SoftwareIdentity{declarations(SCOPE)}"
        f' corpus="false" name="{product}" patch="false" supplemental="false"'
        f' tagId="{"ab" * 48}" tagVersion="0" version="1.0">\n'
        '    <ns0:Entity name="NVIDIA Corporation" role="softwareCreator tagCreator"></ns0:Entity>'
        f'\n    <ns0:Meta xmlns:ns1="{TCG}" PayloadType="direct" colloquialVersion="{version}"'
        f' edition="{edition}" product="{product}" revision="r1"{about}></ns0:Meta>\n'
        f'    <ns0:Payload xmlns:SHA384="{SHA384}">\n        {rows}\n    </ns0:Payload>\n'
        "</SoftwareIdentity>"
    )


def declarations(scope: Mapping[str, str]) -> str:
    """Namespace declarations in canonical order."""
    return "".join(
        f' xmlns{":" if prefix else ""}{prefix}="{uri}"' for prefix, uri in sorted(scope.items())
    )


def signature_element(
    content: str,
    authority: Authority,
    *,
    info: str = SIGNED_INFO,
    scope: Mapping[str, str] = SCOPE,
    certificates: Iterable[bytes] | None = None,
    key: ec.EllipticCurvePrivateKey | None = None,
) -> str:
    """The Signature over canonical content."""
    digest = base64.b64encode(hashlib.sha384(content.encode()).digest()).decode()
    inner = info.replace("DIGEST", digest)
    signed = f"<ds:SignedInfo{declarations({**scope, 'ds': DSIG})}>{inner}</ds:SignedInfo>".encode()
    signer = key or authority.signer.key
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    r, s = decode_dss_signature(signer.sign(signed, ec.ECDSA(hashes.SHA384())))
    width = (signer.curve.key_size + 7) // 8
    value = base64.b64encode(r.to_bytes(width, "big") + s.to_bytes(width, "big")).decode()
    chain = [holder.der for holder in authority.chain] if certificates is None else certificates
    listed = "".join(
        f"<ds:X509Certificate>{base64.encodebytes(der).decode()}</ds:X509Certificate>"
        for der in chain
    )
    return (
        f'<ds:Signature xmlns:ds="{DSIG}"><ds:SignedInfo>{inner}</ds:SignedInfo>'
        f"<ds:SignatureValue>{value}</ds:SignatureValue>"
        f"<ds:KeyInfo><ds:X509Data>{listed}</ds:X509Data></ds:KeyInfo></ds:Signature>"
    )


def put_in(content: str, signature: str) -> bytes:
    """The document: the signature as the last child of the root."""
    body, end, name = content.rpartition("</")
    return f"{body}{signature}{end}{name}".encode()


def sign(content: str, authority: Authority, **changes: object) -> bytes:
    """A signed RIM."""
    return put_in(content, signature_element(content, authority, **changes))  # type: ignore[arg-type]
