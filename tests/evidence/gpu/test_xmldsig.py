# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The one form of signed XML; `test_the_form` is the control of everything that is refused."""

import base64
import re
import xml.etree.ElementTree as ET

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from securetrain.core.errors import AttestationError
from securetrain.evidence.gpu.xmldsig import (
    LIMIT,
    MAX_CERTIFICATES,
    MAX_DEPTH,
    MAX_ELEMENTS,
    canonical,
    parse,
    read_document,
)
from tests import vocabulary
from tests.evidence.gpu.authority import make_authority, new_key
from tests.evidence.gpu.rimforge import (
    C14N,
    DSIG,
    SIGNED_INFO,
    SWID,
    TCG,
    manifest,
    put_in,
    sign,
    signature_element,
)
from tests.tables import each, forgeries

AUTHORITY = make_authority()
KEY = AUTHORITY.signer.key.public_key()
TEXT = manifest()
GOOD = sign(TEXT, AUTHORITY)


def verify(data):
    document = read_document(data, "RIM x")
    document.check_content()
    assert isinstance(KEY, ec.EllipticCurvePublicKey)
    document.check_signature(KEY)
    return document


def refused(code, data):
    error = vocabulary.refused(AttestationError, code, verify, data, names="RIM x")
    assert "RIM service" in error.fix
    return error.what


def after(old, new, count=1):
    """The good document with a change that anybody can make."""
    assert old.encode() in GOOD, old
    return GOOD.replace(old.encode(), new.encode(), count)


def before(old, new):
    """A document whose signer signed another SignedInfo."""
    assert old in SIGNED_INFO, old
    return sign(TEXT, AUTHORITY, info=SIGNED_INFO.replace(old, new, 1))


def test_the_form():
    document = verify(GOOD)
    assert [element.name for element in document.content] == ["Entity", "Meta", "Payload"]
    assert document.certificates == tuple(holder.der for holder in AUTHORITY.chain)


@each(
    "id, old, new",
    ("order", 'edition="GPU" product="GH100"', 'product="GH100" edition="GPU"'),
    ("quotes", 'edition="GPU"', "edition = 'GPU'\n"),
    ("character-references", 'edition="GPU"', 'edition="&#71;P&#x55;"'),
    ("empty-element", "></ns0:Resource>", "/>"),
    ("superfluous", "<ns0:Resource", f'<ns0:Resource xmlns:ns0="{SWID}"'),
    ("after-the-root", "</SoftwareIdentity>", "</SoftwareIdentity>\n\n"),
    ("line-ends", "\n    <ns0:Entity", "\r\n    <ns0:Entity"),
    ("empty-transform", f'"{C14N}"></ds:Transform>', f'"{C14N}"/>'),
)
def test_other_spellings_of_the_same_document(old, new):
    data = after(old, new)
    assert data != GOOD
    verify(data)


# Canonical XML, against another implementation where the two agree: the standard library's is
# Canonical XML 2.0, which is the same when every namespace is used where it is declared.


def canonicalized(text):
    return canonical(parse(text.encode(), "x")).decode()


@each(
    "text",
    f'<a xmlns="{SWID}" z="1" b="2" a="3"/>',
    f'<p:a xmlns:p="{SWID}"><p:b  x = "1"\n/> text <p:c>&lt;&amp;&gt;"\'</p:c></p:a>',
    f'<p:a xmlns:p="{SWID}" x="&lt;&gt;&amp;&quot;&#9;&#10;&#13;\t\n"/>',
    f'<p:a xmlns:p="{SWID}">&#13;\r\n\r&#x20AC; \u20ac</p:a>',
    f'<q:a xmlns:q="{TCG}" xmlns:p="{SWID}" p:z="1" q:a="2" a="3" p:a="4"/>',
    f'<a xmlns="{SWID}"><b xmlns="{TCG}"><c/></b><d/></a>',
    f'<a xmlns="{SWID}"><p:b xmlns:p="{TCG}"/><p:b xmlns:p="{TCG}"/></a>',
)
def test_canonical_form(text):
    assert canonicalized(text) == ET.canonicalize(text)


@given(st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), st.text(max_size=20)))
def test_canonical_form_of_any_values(values):
    element = ET.Element(f"{{{SWID}}}a", values)
    element.text = "".join(values.values())
    try:
        text = ET.tostring(element, encoding="unicode")
        expected = ET.canonicalize(text)
    except (ET.ParseError, ValueError):
        return
    assert canonicalized(text) == expected


def test_namespaces_that_are_not_used_belong_to_the_canonical_form():
    text = f'<a xmlns="{SWID}" xmlns:z="{TCG}" xmlns:b="{DSIG}"><b xmlns:z="{TCG}"/></a>'
    assert canonicalized(text) == (
        f'<a xmlns="{SWID}" xmlns:b="{DSIG}" xmlns:z="{TCG}"><b></b></a>'
    )
    inner = parse(text.encode(), "x").elements()[0]
    assert canonical(inner).decode() == (f'<b xmlns="{SWID}" xmlns:b="{DSIG}" xmlns:z="{TCG}"></b>')


# The subset of XML.

DOCTYPE = '<!DOCTYPE SoftwareIdentity [<!ENTITY x "y">]>'
NAMESPACE = "http://www.w3.org/XML/1998/namespace"
TWO_PREFIXES = f'<ns0:Meta xmlns:e="{TCG}" e:BindingSpec="x" e:PlatformModel="GH100"'


@forgeries(
    "id, data, what",
    ("declaration", b'<?xml version="1.0"?>' + GOOD, "XML declaration"),
    ("doctype", DOCTYPE.encode() + GOOD, "document type"),
    ("instruction-before", b"<?a b?>" + GOOD, "processing"),
    ("instruction", after("<ns0:Payload", "<?a b?><ns0:Payload"), "processing"),
    ("comment", after("<ns0:Payload", "<!-- --><ns0:Payload"), "comment"),
    ("comment-after", GOOD + b"<!-- -->", "comment"),
    ("comment-in-digest", after("<ds:DigestValue>", "<ds:DigestValue><!-- -->"), "comment"),
    ("character-data", after("<ns0:Payload", "<![CDATA[ ]]><ns0:Payload"), "CDATA"),
    ("xml-lang", after('edition="', 'xml:lang="en" edition="'), "xml"),
    ("xml-id", after('edition="', 'xml:id="a" edition="'), "xml"),
    ("xml-declared", after("<ns0:Meta", f'<ns0:Meta xmlns:xml="{NAMESPACE}"'), NAMESPACE),
    ("namespace", after("<ns0:Meta", '<ns0:Meta xmlns:e="urn:e"'), "urn:e"),
    ("no-namespace", after("<ns0:Meta", '<ns0:Meta xmlns=""'), "namespace"),
    ("separator", after("<ns0:Meta", f'<ns0:Meta xmlns:e="{SWID} a"'), ""),
    ("prefix", after('edition="', 'e:edition="'), "unbound prefix"),
    ("twice", after('edition="', 'edition="" edition="'), "duplicate"),
    ("twice-by-two-prefixes", after("<ns0:Meta", TWO_PREFIXES), "duplicate"),
    ("entity", after('edition="GPU"', 'edition="&x;"'), "undefined entity"),
    ("truncated", GOOD[:-1], "not well-formed"),
    ("two-roots", GOOD + GOOD, "not well-formed"),
    ("text-after", GOOD + b"x", "not well-formed"),
    ("empty", b"", "does not start"),
    ("nul", after("GPU", "\x00"), "does not start"),
    ("not-utf8", GOOD.replace(b"GPU", b"\xff"), "not well-formed"),
    ("surrogate", GOOD.replace(b"GPU", b"\xed\xa0\x80"), "not well-formed"),
    ("utf-16", GOOD.decode().encode("utf-16"), "not well-formed"),
    ("utf-16-no-mark", GOOD.decode().encode("utf-16-le"), "does not start"),
    ("byte-order-mark", b"\xef\xbb\xbf" + GOOD, "does not start"),
    ("size", GOOD + b" " * LIMIT, "the limit is"),
    ("text", after("<ns0:Payload", "x<ns0:Payload"), "text between"),
)
def test_xml_that_is_not_accepted(data, what):
    assert what in refused("ST-ATTS-701", data)


def nested(depth):
    return f'<a xmlns="{SWID}">' + "<a>" * (depth - 1) + "</a>" * depth


def rows(count):
    return f'<a xmlns="{SWID}">{"<b/>" * count}</a>'


@pytest.mark.forgery
def test_bounds():
    padded = nested(1) + " " * (LIMIT - len(nested(1)))
    for text in (nested(MAX_DEPTH), rows(MAX_ELEMENTS - 1), padded):
        parse(text.encode(), "x")
    for text, what in (
        (nested(MAX_DEPTH + 1), f"{MAX_DEPTH} levels"),
        (rows(MAX_ELEMENTS), f"{MAX_ELEMENTS} elements"),
    ):
        vocabulary.refused(AttestationError, what, parse, text.encode(), "x")


def test_text_in_pieces():
    assert parse(f'<a xmlns="{SWID}">{"x&#33;" * 9000}</a>'.encode(), "x").text() == "x!" * 9000
    with pytest.raises(AttestationError, match="an element where text belongs"):
        parse(f'<a xmlns="{SWID}">x<b/></a>'.encode(), "x").text()


# The form of the signature. Each is well signed, in another form.

TRANSFORMS = re.search(r"<ds:Transforms>.*</ds:Transforms>", SIGNED_INFO)
assert TRANSFORMS is not None
ENVELOPED, C14N_TRANSFORM = re.findall(r"<ds:Transform .*?</ds:Transform>", TRANSFORMS.group())
REFERENCE = SIGNED_INFO[SIGNED_INFO.index("<ds:Reference") :]


@forgeries(
    "id, old, new, what",
    ("reference-to-a-part", 'URI=""', 'URI="#x"', "whole document"),
    ("reference-out", 'URI=""', 'URI="file:///etc/passwd"', "whole document"),
    ("reference-to-nothing", ' URI=""', "", "Reference has other attributes"),
    ("reference-id", 'URI=""', 'Id="x" URI=""', "Reference has other"),
    ("two-references", REFERENCE, REFERENCE * 2, "4 elements, expected 3"),
    ("no-reference", REFERENCE, "", "2 elements, expected 3"),
    ("c14n-1", C14N, "http://www.w3.org/TR/2001/REC-xml-c14n-20010315", "2001"),
    ("c14n-exclusive", C14N, "http://www.w3.org/2001/10/xml-exc-c14n#", "exc-c14n"),
    ("c14n-comments", C14N, f"{C14N}#WithComments", "WithComments"),
    ("ecdsa-sha256", "#ecdsa-sha384", "#ecdsa-sha256", "ecdsa-sha256"),
    ("rsa", "#ecdsa-sha384", "#rsa-sha384", "rsa-sha384"),
    ("hmac", "#ecdsa-sha384", "#hmac-sha384", "hmac-sha384"),
    ("digest-sha256", "xmldsig-more#sha384", "xmlenc#sha256", "sha256"),
    ("not-enveloped", ENVELOPED, "", "1 elements, expected 2"),
    ("transforms-swapped", ENVELOPED + C14N_TRANSFORM, C14N_TRANSFORM + ENVELOPED, C14N),
    ("no-c14n", C14N_TRANSFORM, "", "1 elements, expected 2"),
    ("another-transform", C14N_TRANSFORM, C14N_TRANSFORM * 2, "3 elements, expected 2"),
    ("xslt", f"{DSIG}enveloped-signature", "http://www.w3.org/TR/xslt", "xslt"),
    ("transform-parameters", f'"{C14N}"></ds:T', f'"{C14N}"><ds:XPath/></ds:T', "parameters"),
    ("method-parameters", "</ds:SignatureM", "<ds:HMACOutputLength/></ds:SignatureM", "parameters"),
    ("text", "<ds:Transforms>", "<ds:Transforms>x", "text between"),
    ("no-digest", "DIGEST", "", "0 bytes, expected 48"),
    ("long-digest", "DIGEST", "DIGESTAAAA", "51 bytes, expected 48"),
    ("digest-that-is-no-base64", "DIGEST", "D\u00efGEST", "bad base64"),
    ("digest-in-an-element", ">DIGEST<", "><ds:X>DIGEST</ds:X><", "an element where text"),
    ("name", "ds:DigestMethod", "ds:DigestMethods", "DigestMethod"),
)
def test_signatures_of_another_form(old, new, what):
    info = SIGNED_INFO.replace(old, new, 1)
    if old == "ds:DigestMethod":
        info = SIGNED_INFO.replace(old, new)
    assert info != SIGNED_INFO
    assert what in refused("ST-ATTS-702", sign(TEXT, AUTHORITY, info=info))


ELEMENT = signature_element(TEXT, AUTHORITY)
CERTIFICATE = re.search(r"<ds:X509Certificate>.*?</ds:X509Certificate>", ELEMENT, re.DOTALL)
assert CERTIFICATE is not None
MORE = CERTIFICATE.group() * (MAX_CERTIFICATES - 3)
TAG = f'<SoftwareIdentity xmlns="{SWID}"/>'


@forgeries(
    "id, old, new, what",
    ("id", "<ds:Signature ", '<ds:Signature Id="a" ', "Signature has other"),
    ("info-id", "<ds:SignedInfo>", '<ds:SignedInfo Id="a">', "SignedInfo"),
    ("object", "</ds:KeyInfo>", f"</ds:KeyInfo><ds:Object>{TAG}</ds:Object>", "4 elements"),
    ("two-key-infos", "</ds:KeyInfo>", "</ds:KeyInfo><ds:KeyInfo></ds:KeyInfo>", "4 elements"),
    ("key-name", "<ds:X509Data>", "<ds:KeyName>x</ds:KeyName><ds:X509Data>", "2 elements"),
    ("key-value", "ds:X509Data", "ds:KeyValue", "X509Data"),
    ("subject-name", "<ds:X509Data>", "<ds:X509Data><ds:X509SubjectName/>", "X509Certificate"),
    ("key-id", "<ds:KeyInfo>", '<ds:KeyInfo Id="k">', "KeyInfo has other"),
    ("many-certificates", "</ds:X509Data>", f"{MORE}</ds:X509Data>", "7 certificates"),
    ("long-certificate", "</ds:X509C", "A" * 20000 + "</ds:X509C", "characters of base64"),
    ("base64", "<ds:X509Certificate>", "<ds:X509Certificate>=", "base64"),
    ("long-signature", "<ds:SignatureValue>", "<ds:SignatureValue>AAAA", "99 bytes"),
    ("value-id", "<ds:SignatureValue>", '<ds:SignatureValue Id="v">', "SignatureValue"),
    ("signed-info", "ds:SignedInfo", "ds:SignedInfos", "SignedInfo"),
    ("value", "ds:SignatureValue", "ds:SignatureValues", "SignatureValue"),
    ("key-info", "ds:KeyInfo", "ds:KeyInfos", "KeyInfo"),
    ("name", "ds:Signature>", "ds:Signatures>", "Signature"),
)
def test_a_signature_element_of_another_form(old, new, what):
    assert old in ELEMENT
    count = 1 if "<" in old else -1
    changed = ELEMENT.replace(old, new, count)
    if old == "ds:Signature>":
        changed = ELEMENT.replace(old, new).replace("<ds:Signature ", "<ds:Signatures ")
    assert what in refused("ST-ATTS-702", put_in(TEXT, changed))


BODY = TEXT.removesuffix("</SoftwareIdentity>")
WRAPPED = TEXT.replace("</ns0:Payload>", f"{ELEMENT}</ns0:Payload>")
ORIGINAL = GOOD.decode()


def inside(text, element):
    return put_in(text, element).decode()


@forgeries(
    "id, data",
    ("not-signed", TEXT),
    ("two", f"{BODY}{ELEMENT}{ELEMENT}</SoftwareIdentity>"),
    ("not-last", TEXT.replace("<ns0:Payload", f"{ELEMENT}<ns0:Payload")),
    ("below-the-payload", WRAPPED),
    ("another-inside", inside(WRAPPED, signature_element(WRAPPED, AUTHORITY))),
    ("wrapped-beside-a-forged-one", TAG.replace("/>", f">{ORIGINAL}{TEXT}</SoftwareIdentity>")),
    ("original-kept-inside", inside(TEXT.replace("5E", "00"), f"<w>{ORIGINAL}</w>{ELEMENT}")),
    ("root-is-a-signature", f'<ds:Signature xmlns:ds="{DSIG}">{ELEMENT}</ds:Signature>'),
    ("in-another-namespace", inside(TEXT, ELEMENT.replace(f'ds="{DSIG}"', f'ds="{SWID}"'))),
    ("no-content", f'<SoftwareIdentity xmlns="{SWID}"></SoftwareIdentity>'),
)
def test_signatures_in_another_place(data):
    assert "Signature" in refused("ST-ATTS-702", data.encode())


# What was signed.


@forgeries(
    "id, old, new",
    ("measurement-off", 'active="True"', 'active="False"'),
    ("another-index", 'index="0"', 'index="2"'),
    ("version", 'colloquialVersion="96', 'colloquialVersion="97'),
    ("renamed-attribute", "ns2:Hash0=", "ns2:Hash1="),
    ("attribute-gone", ' revision="r1"', ""),
    ("attribute-more", ' revision="r1"', ' revision="r1" more="1"'),
    ("element-more", "</ns0:Payload>", "<ns0:Resource/></ns0:Payload>"),
    ("white-space", "\n    <ns0:Payload", "\n     <ns0:Payload"),
    ("prefix", "ns0:Entity", "ns9:Entity"),
    ("namespace", SWID, TCG),
    ("unused-namespace", "<ns0:Payload ", f'<ns0:Payload xmlns:n="{SWID}" '),
    ("carriage-return", 'edition="GPU"', 'edition="GPU&#13;"'),
)
def test_content_that_was_changed(old, new):
    data = after(old, new)
    if old == "ns0:Entity":
        data = GOOD.replace(b"<ns0:Entity", f'<ns9:Entity xmlns:ns9="{SWID}"'.encode()).replace(
            b"</ns0:Entity", b"</ns9:Entity"
        )
    if old.startswith("ns2"):
        data = GOOD.replace(b'ns2:Hash1="', b'ns2:Hash7="')
    assert "was signed" in refused("ST-ATTS-703", data)


def changed_value(change):
    match = re.search(rb"<ds:SignatureValue>(.*)</ds:SignatureValue>", GOOD)
    assert match is not None
    value = base64.b64encode(change(base64.b64decode(match.group(1))))
    return GOOD.replace(match.group(1), value)


OTHER_TEXT, DIGEST = manifest("96.00.5E.00.02"), "<ds:DigestValue>.*</ds:DigestValue>"
OTHER_DIGEST = re.findall(DIGEST, signature_element(OTHER_TEXT, AUTHORITY))[0]


@forgeries(
    "id, data",
    ("another-key", sign(TEXT, AUTHORITY, key=new_key())),
    ("bit-flip", changed_value(lambda v: v[:-1] + bytes([v[-1] ^ 1]))),
    ("swapped-halves", changed_value(lambda v: v[48:] + v[:48])),
    ("zeros", changed_value(lambda v: bytes(96))),
    ("r-is-zero", changed_value(lambda v: bytes(48) + v[48:])),
    ("s-too-large", changed_value(lambda v: v[:48] + b"\xff" * 48)),
    ("another-documents-digest", put_in(OTHER_TEXT, re.sub(DIGEST, OTHER_DIGEST, ELEMENT))),
    ("namespaces-left-out", sign(TEXT, AUTHORITY, scope={"": SWID, "ns0": SWID})),
)
def test_signatures_that_do_not_verify(data):
    refused("ST-ATTS-704", data)


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_with_a_code(data):
    vocabulary.refused(AttestationError, "ST-ATTS-70", read_document, data, "x")
