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
    error = vocabulary.refused(AttestationError, code, verify, data)
    assert error.where == "RIM x"
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


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param('edition="GPU" product="GH100"', 'product="GH100" edition="GPU"', id="order"),
        pytest.param('edition="GPU"', "edition = 'GPU'\n", id="quotes"),
        pytest.param('edition="GPU"', 'edition="&#71;P&#x55;"', id="character-references"),
        pytest.param("></ns0:Resource>", "/>", id="empty-element"),
        pytest.param("<ns0:Resource", f'<ns0:Resource xmlns:ns0="{SWID}"', id="superfluous"),
        pytest.param("</SoftwareIdentity>", "</SoftwareIdentity>\n\n", id="after-the-root"),
        pytest.param("\n    <ns0:Entity", "\r\n    <ns0:Entity", id="line-ends"),
        pytest.param(
            f'<ds:Transform Algorithm="{C14N}"></ds:Transform>',
            f'<ds:Transform Algorithm="{C14N}"/>',
            id="empty-transform",
        ),
    ],
)
def test_other_spellings_of_the_same_document(old, new):
    data = after(old, new)
    assert data != GOOD
    verify(data)


# Canonical XML, against another implementation where the two agree: the standard library's is
# Canonical XML 2.0, which is the same when every namespace is used where it is declared.


def canonicalized(text):
    return canonical(parse(text.encode(), "x")).decode()


@pytest.mark.parametrize(
    "text",
    [
        f'<a xmlns="{SWID}" z="1" b="2" a="3"/>',
        f'<p:a xmlns:p="{SWID}"><p:b  x = "1"\n/> text <p:c>&lt;&amp;&gt;"\'</p:c></p:a>',
        f'<p:a xmlns:p="{SWID}" x="&lt;&gt;&amp;&quot;&#9;&#10;&#13;\t\n"/>',
        f'<p:a xmlns:p="{SWID}">&#13;\r\n\r&#x20AC; \u20ac</p:a>',
        f'<q:a xmlns:q="{TCG}" xmlns:p="{SWID}" p:z="1" q:a="2" a="3" p:a="4"/>',
        f'<a xmlns="{SWID}"><b xmlns="{TCG}"><c/></b><d/></a>',
        f'<a xmlns="{SWID}"><p:b xmlns:p="{TCG}"/><p:b xmlns:p="{TCG}"/></a>',
    ],
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


@pytest.mark.forgery
@pytest.mark.parametrize(
    ("data", "what"),
    [
        pytest.param(b'<?xml version="1.0"?>' + GOOD, "XML declaration", id="declaration"),
        pytest.param(DOCTYPE.encode() + GOOD, "document type", id="doctype"),
        pytest.param(b"<?a b?>" + GOOD, "processing", id="instruction-before"),
        pytest.param(after("<ns0:Payload", "<?a b?><ns0:Payload"), "processing", id="instruction"),
        pytest.param(after("<ns0:Payload", "<!-- --><ns0:Payload"), "comment", id="comment"),
        pytest.param(GOOD + b"<!-- -->", "comment", id="comment-after"),
        pytest.param(
            after("<ds:DigestValue>", "<ds:DigestValue><!-- -->"), "comment", id="comment-in-digest"
        ),
        pytest.param(
            after("<ns0:Payload", "<![CDATA[ ]]><ns0:Payload"), "CDATA", id="character-data"
        ),
        pytest.param(after('edition="', 'xml:lang="en" edition="'), "xml", id="xml-lang"),
        pytest.param(after('edition="', 'xml:id="a" edition="'), "xml", id="xml-id"),
        pytest.param(
            after("<ns0:Meta", f'<ns0:Meta xmlns:xml="{NAMESPACE}"'), NAMESPACE, id="xml-declared"
        ),
        pytest.param(after("<ns0:Meta", '<ns0:Meta xmlns:e="urn:e"'), "urn:e", id="namespace"),
        pytest.param(after("<ns0:Meta", '<ns0:Meta xmlns=""'), "namespace", id="no-namespace"),
        pytest.param(after("<ns0:Meta", f'<ns0:Meta xmlns:e="{SWID} a"'), "", id="separator"),
        pytest.param(after('edition="', 'e:edition="'), "unbound prefix", id="prefix"),
        pytest.param(after('edition="', 'edition="" edition="'), "duplicate", id="twice"),
        pytest.param(
            after(
                "<ns0:Meta", f'<ns0:Meta xmlns:e="{TCG}" e:BindingSpec="x" e:PlatformModel="GH100"'
            ),
            "duplicate",
            id="twice-by-two-prefixes",
        ),
        pytest.param(after('edition="GPU"', 'edition="&x;"'), "undefined entity", id="entity"),
        pytest.param(GOOD[:-1], "not well-formed", id="truncated"),
        pytest.param(GOOD + GOOD, "not well-formed", id="two-roots"),
        pytest.param(GOOD + b"x", "not well-formed", id="text-after"),
        pytest.param(b"", "does not start", id="empty"),
        pytest.param(after("GPU", "\x00"), "does not start", id="nul"),
        pytest.param(GOOD.replace(b"GPU", b"\xff"), "not well-formed", id="not-utf8"),
        pytest.param(GOOD.replace(b"GPU", b"\xed\xa0\x80"), "not well-formed", id="surrogate"),
        pytest.param(GOOD.decode().encode("utf-16"), "not well-formed", id="utf-16"),
        pytest.param(GOOD.decode().encode("utf-16-le"), "does not start", id="utf-16-no-mark"),
        pytest.param(b"\xef\xbb\xbf" + GOOD, "does not start", id="byte-order-mark"),
        pytest.param(GOOD + b" " * LIMIT, "the limit is", id="size"),
        pytest.param(after("<ns0:Payload", "x<ns0:Payload"), "text between", id="text"),
    ],
)
def test_xml_that_is_not_accepted(data, what):
    assert what in refused("ST-ATTS-701", data)


def nested(depth):
    return f'<a xmlns="{SWID}">' + "<a>" * (depth - 1) + "</a>" * depth


@pytest.mark.forgery
def test_bounds():
    def rows(count):
        return f'<a xmlns="{SWID}">{"<b/>" * count}</a>'

    parse(nested(MAX_DEPTH).encode(), "x")
    parse(rows(MAX_ELEMENTS - 1).encode(), "x")
    with pytest.raises(AttestationError, match=f"{MAX_DEPTH} levels"):
        parse(nested(MAX_DEPTH + 1).encode(), "x")
    with pytest.raises(AttestationError, match=f"{MAX_ELEMENTS} elements"):
        parse(rows(MAX_ELEMENTS).encode(), "x")
    padded = nested(1).encode()
    parse(padded + b" " * (LIMIT - len(padded)), "x")


def test_text_in_pieces():
    assert parse(f'<a xmlns="{SWID}">{"x&#33;" * 9000}</a>'.encode(), "x").text() == "x!" * 9000
    with pytest.raises(AttestationError, match="an element where text belongs"):
        parse(f'<a xmlns="{SWID}">x<b/></a>'.encode(), "x").text()


# The form of the signature. Each is well signed, in another form.

TRANSFORMS = re.search(r"<ds:Transforms>.*</ds:Transforms>", SIGNED_INFO)
assert TRANSFORMS is not None
ENVELOPED, C14N_TRANSFORM = re.findall(r"<ds:Transform .*?</ds:Transform>", TRANSFORMS.group())
REFERENCE = SIGNED_INFO[SIGNED_INFO.index("<ds:Reference") :]


@pytest.mark.forgery
@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        pytest.param('URI=""', 'URI="#x"', "whole document", id="reference-to-a-part"),
        pytest.param('URI=""', 'URI="file:///etc/passwd"', "whole document", id="reference-out"),
        pytest.param(' URI=""', "", "Reference has other attributes", id="reference-to-nothing"),
        pytest.param('URI=""', 'Id="x" URI=""', "Reference has other", id="reference-id"),
        pytest.param(REFERENCE, REFERENCE * 2, "4 elements, expected 3", id="two-references"),
        pytest.param(REFERENCE, "", "2 elements, expected 3", id="no-reference"),
        pytest.param(C14N, "http://www.w3.org/TR/2001/REC-xml-c14n-20010315", "2001", id="c14n-1"),
        pytest.param(
            C14N, "http://www.w3.org/2001/10/xml-exc-c14n#", "exc-c14n", id="c14n-exclusive"
        ),
        pytest.param(C14N, f"{C14N}#WithComments", "WithComments", id="c14n-comments"),
        pytest.param("#ecdsa-sha384", "#ecdsa-sha256", "ecdsa-sha256", id="ecdsa-sha256"),
        pytest.param("#ecdsa-sha384", "#rsa-sha384", "rsa-sha384", id="rsa"),
        pytest.param("#ecdsa-sha384", "#hmac-sha384", "hmac-sha384", id="hmac"),
        pytest.param("xmldsig-more#sha384", "xmlenc#sha256", "sha256", id="digest-sha256"),
        pytest.param(ENVELOPED, "", "1 elements, expected 2", id="not-enveloped"),
        pytest.param(
            ENVELOPED + C14N_TRANSFORM, C14N_TRANSFORM + ENVELOPED, C14N, id="transforms-swapped"
        ),
        pytest.param(C14N_TRANSFORM, "", "1 elements, expected 2", id="no-c14n"),
        pytest.param(
            C14N_TRANSFORM, C14N_TRANSFORM * 2, "3 elements, expected 2", id="another-transform"
        ),
        pytest.param(
            ENVELOPED,
            ENVELOPED.replace(f"{DSIG}enveloped-signature", "http://www.w3.org/TR/xslt"),
            "xslt",
            id="xslt",
        ),
        pytest.param(
            f'"{C14N}"></ds:Transform>',
            f'"{C14N}"><ds:XPath>1</ds:XPath></ds:Transform>',
            "parameters",
            id="transform-with-parameters",
        ),
        pytest.param(
            "</ds:SignatureMethod>",
            "<ds:HMACOutputLength>8</ds:HMACOutputLength></ds:SignatureMethod>",
            "parameters",
            id="method-with-parameters",
        ),
        pytest.param("<ds:Transforms>", "<ds:Transforms>x", "text between", id="text"),
        pytest.param("DIGEST", "", "0 bytes, expected 48", id="no-digest"),
        pytest.param("DIGEST", "DIGESTAAAA", "51 bytes, expected 48", id="long-digest"),
        pytest.param("DIGEST", "D\u00efGEST", "bad base64", id="digest-that-is-no-base64"),
        pytest.param(
            "<ds:DigestValue>DIGEST</ds:DigestValue>",
            "<ds:DigestValue><ds:X>DIGEST</ds:X></ds:DigestValue>",
            "an element where text",
            id="digest-in-an-element",
        ),
        pytest.param("ds:DigestMethod", "ds:DigestMethods", "DigestMethod", id="name"),
    ],
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


@pytest.mark.forgery
@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        pytest.param("<ds:Signature ", '<ds:Signature Id="a" ', "Signature has other", id="id"),
        pytest.param("<ds:SignedInfo>", '<ds:SignedInfo Id="a">', "SignedInfo", id="info-id"),
        pytest.param(
            "</ds:KeyInfo>",
            f'</ds:KeyInfo><ds:Object><SoftwareIdentity xmlns="{SWID}"/></ds:Object>',
            "4 elements",
            id="object",
        ),
        pytest.param(
            "</ds:KeyInfo>",
            "</ds:KeyInfo><ds:KeyInfo></ds:KeyInfo>",
            "4 elements",
            id="two-key-infos",
        ),
        pytest.param(
            "<ds:X509Data>", "<ds:KeyName>x</ds:KeyName><ds:X509Data>", "2 elements", id="key-name"
        ),
        pytest.param("ds:X509Data", "ds:KeyValue", "X509Data", id="key-value"),
        pytest.param(
            "<ds:X509Data>",
            "<ds:X509Data><ds:X509SubjectName>x</ds:X509SubjectName>",
            "X509Certificate",
            id="subject-name",
        ),
        pytest.param("<ds:KeyInfo>", '<ds:KeyInfo Id="k">', "KeyInfo has other", id="key-id"),
        pytest.param(
            "</ds:X509Data>",
            CERTIFICATE.group() * (MAX_CERTIFICATES - 3) + "</ds:X509Data>",
            "7 certificates",
            id="many-certificates",
        ),
        pytest.param(
            "</ds:X509Certificate>",
            "A" * 20000 + "</ds:X509Certificate>",
            "characters of base64",
            id="long-certificate",
        ),
        pytest.param("<ds:X509Certificate>", "<ds:X509Certificate>=", "base64", id="base64"),
        pytest.param(
            "<ds:SignatureValue>", "<ds:SignatureValue>AAAA", "99 bytes", id="long-signature"
        ),
        pytest.param(
            "<ds:SignatureValue>", '<ds:SignatureValue Id="v">', "SignatureValue", id="value-id"
        ),
        pytest.param("ds:SignedInfo", "ds:SignedInfos", "SignedInfo", id="signed-info"),
        pytest.param("ds:SignatureValue", "ds:SignatureValues", "SignatureValue", id="value"),
        pytest.param("ds:KeyInfo", "ds:KeyInfos", "KeyInfo", id="key-info"),
        pytest.param("ds:Signature>", "ds:Signatures>", "Signature", id="name"),
    ],
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


@pytest.mark.forgery
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(TEXT, id="not-signed"),
        pytest.param(f"{BODY}{ELEMENT}{ELEMENT}</SoftwareIdentity>", id="two"),
        pytest.param(TEXT.replace("<ns0:Payload", f"{ELEMENT}<ns0:Payload"), id="not-last"),
        pytest.param(WRAPPED, id="below-the-payload"),
        pytest.param(
            put_in(WRAPPED, signature_element(WRAPPED, AUTHORITY)).decode(), id="another-inside"
        ),
        pytest.param(
            f'<SoftwareIdentity xmlns="{SWID}">{ORIGINAL}{TEXT}</SoftwareIdentity>',
            id="wrapped-beside-a-forged-one",
        ),
        pytest.param(
            put_in(TEXT.replace("5E", "00"), f"<w>{ORIGINAL}</w>{ELEMENT}").decode(),
            id="original-kept-inside",
        ),
        pytest.param(
            f'<ds:Signature xmlns:ds="{DSIG}">{ELEMENT}</ds:Signature>', id="root-is-a-signature"
        ),
        pytest.param(
            put_in(TEXT, ELEMENT.replace(f'xmlns:ds="{DSIG}"', f'xmlns:ds="{SWID}"')).decode(),
            id="in-another-namespace",
        ),
        pytest.param(f'<SoftwareIdentity xmlns="{SWID}"></SoftwareIdentity>', id="no-content"),
    ],
)
def test_signatures_in_another_place(data):
    found = refused("ST-ATTS-702", data.encode())
    assert "Signature" in found


# What was signed.


@pytest.mark.forgery
@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param('active="True"', 'active="False"', id="measurement-off"),
        pytest.param('index="0"', 'index="2"', id="another-index"),
        pytest.param('colloquialVersion="96', 'colloquialVersion="97', id="version"),
        pytest.param("ns2:Hash0=", "ns2:Hash1=", id="renamed-attribute"),
        pytest.param(' revision="r1"', "", id="attribute-gone"),
        pytest.param(' revision="r1"', ' revision="r1" more="1"', id="attribute-more"),
        pytest.param("</ns0:Payload>", "<ns0:Resource/></ns0:Payload>", id="element-more"),
        pytest.param("\n    <ns0:Payload", "\n     <ns0:Payload", id="white-space"),
        pytest.param("ns0:Entity", "ns9:Entity", id="prefix"),
        pytest.param(SWID, TCG, id="namespace"),
        pytest.param("<ns0:Payload ", f'<ns0:Payload xmlns:n="{SWID}" ', id="unused-namespace"),
        pytest.param('edition="GPU"', 'edition="GPU&#13;"', id="carriage-return"),
    ],
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


OTHER_TEXT = manifest("96.00.5E.00.02")


@pytest.mark.forgery
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(sign(TEXT, AUTHORITY, key=new_key()), id="another-key"),
        pytest.param(changed_value(lambda v: v[:-1] + bytes([v[-1] ^ 1])), id="bit-flip"),
        pytest.param(changed_value(lambda v: v[48:] + v[:48]), id="swapped-halves"),
        pytest.param(changed_value(lambda v: bytes(96)), id="zeros"),
        pytest.param(changed_value(lambda v: bytes(48) + v[48:]), id="r-is-zero"),
        pytest.param(changed_value(lambda v: v[:48] + b"\xff" * 48), id="s-too-large"),
        pytest.param(
            put_in(
                OTHER_TEXT,
                re.sub(
                    "<ds:DigestValue>.*</ds:DigestValue>",
                    re.findall(
                        "<ds:DigestValue>.*</ds:DigestValue>",
                        signature_element(OTHER_TEXT, AUTHORITY),
                    )[0],
                    ELEMENT,
                ),
            ),
            id="another-documents-digest",
        ),
        pytest.param(
            sign(TEXT, AUTHORITY, scope={"": SWID, "ns0": SWID}), id="namespaces-left-out"
        ),
    ],
)
def test_signatures_that_do_not_verify(data):
    refused("ST-ATTS-704", data)


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_with_a_code(data):
    with pytest.raises(AttestationError, match="ST-ATTS-70"):
        read_document(data, "x")
