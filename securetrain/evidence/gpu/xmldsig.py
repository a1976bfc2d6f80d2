# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The one form of signed XML that NVIDIA's RIMs have, and nothing else of XML or XML signatures.

Rules, in order:

1. at most `LIMIT` bytes of UTF-8 that start with an element, `MAX_DEPTH` levels and
   `MAX_ELEMENTS` elements;
2. no XML or document type declaration, so no entities; no processing instructions, comments or
   CDATA sections; only the namespaces in `NAMESPACES`, which leaves out every ``xml:`` attribute;
3. exactly one Signature in the whole document, and it is the last child of the root: nothing of
   what is read lies inside, beside or around another signed element;
4. the Signature has exactly the elements and attributes of the enveloped form: Canonical XML 1.1,
   ECDSA with SHA-384, one Reference with ``URI=""`` (the whole document), its transforms the
   enveloped signature and Canonical XML 1.1, and the SHA-384 digest. Attributes that are not named
   here, ids among them, are refused;
5. the digest of the canonical document without the Signature equals the DigestValue;
6. the signature over the canonical SignedInfo verifies under the key that the caller gives.

Sources: XML Signature Syntax and Processing 1.1 (W3C), 4.3, 6.6.4; Canonical XML 1.1 (W3C);
RFC 6931, 2.1.3 and 2.3.6. For what wrapping can do see "Breaking XML Signature Verification"
(McIntosh and Austel, 2005). The parser is expat with namespaces on.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from xml.parsers import expat

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from securetrain.core.errors import AttestationError

LIMIT: Final = 1 << 20
MAX_DEPTH: Final = 8
MAX_ELEMENTS: Final = 512
MAX_CERTIFICATES: Final = 6
CERTIFICATE_LIMIT: Final = 8 << 10

SWID: Final = "http://standards.iso.org/iso/19770/-2/2015/schema.xsd"
TCG_RIM: Final = (
    "https://trustedcomputinggroup.org/resource/"
    "tcg-reference-integrity-manifest-rim-information-model/"
)
SHA384: Final = "http://www.w3.org/2001/04/xmlenc#sha384"
DSIG: Final = "http://www.w3.org/2000/09/xmldsig#"
NAMESPACES: Final = frozenset({SWID, TCG_RIM, SHA384, DSIG})

_C14N: Final = "http://www.w3.org/2006/12/xml-c14n11"
_ENVELOPED: Final = DSIG + "enveloped-signature"
_ECDSA_SHA384: Final = "http://www.w3.org/2001/04/xmldsig-more#ecdsa-sha384"
_DIGEST_SHA384: Final = "http://www.w3.org/2001/04/xmldsig-more#sha384"
_DIGEST_SIZE: Final = 48
_COORDINATE_SIZE: Final = 48

_MALFORMED: Final = "ST-ATTS-701"
_FORM: Final = "ST-ATTS-702"
_DIGEST: Final = "ST-ATTS-703"
_SIGNATURE: Final = "ST-ATTS-704"


@dataclass(slots=True)
class Element:
    """An element as it was written: prefixes and declarations matter to its canonical form."""

    namespace: str
    name: str
    tag: str
    """The name with its prefix."""
    attributes: dict[tuple[str, str], tuple[str, str]]
    """(namespace, name) to (name with its prefix, value)."""
    scope: Mapping[str, str]
    """Namespaces in scope, by prefix; the empty prefix is the default namespace."""
    where: str
    children: list["Element | str"] = field(default_factory=list)

    def elements(self) -> list["Element"]:
        """Its child elements.

        Raises:
            AttestationError: ST-ATTS-701 when there is text between them.
        """
        found = [child for child in self.children if isinstance(child, Element)]
        if any(isinstance(child, str) and child.strip() for child in self.children):
            raise self.bad("text between elements")
        return found

    def text(self) -> str:
        """Its text, which is all it may have.

        Raises:
            AttestationError: ST-ATTS-701 when there are elements in it.
        """
        parts = [child for child in self.children if isinstance(child, str)]
        if len(parts) != len(self.children):
            raise self.bad("an element where text belongs")
        return "".join(parts)

    def expect(self, namespace: str, name: str, *attributes: tuple[str, str]) -> Mapping[str, str]:
        """Values of its attributes by local name, when it is this element with exactly these.

        Raises:
            AttestationError: ST-ATTS-701.
        """
        if (self.namespace, self.name) != (namespace, name):
            raise self.bad(f"expected the element {name}")
        if set(self.attributes) != set(attributes):
            names = ", ".join(sorted(name for _, name in self.attributes)) or "none"
            raise self.bad(f"{name} has other attributes than it should: {names}")
        return {key[1]: value for key, (_, value) in self.attributes.items()}

    def bad(self, what: str) -> AttestationError:
        """The refusal of this element."""
        return refusal(_MALFORMED, f"{what} (element {self.tag})", self.where)


@dataclass(frozen=True, slots=True)
class Document:
    """A document of the accepted form. Nothing in it counts until both checks have returned."""

    root: Element
    content: tuple[Element, ...]
    """Child elements of the root, without the Signature."""
    signature: Element
    signed_info: Element
    certificates: tuple[bytes, ...]
    """DER, from KeyInfo, in the order of the document."""
    digest: bytes
    value: bytes

    def check_content(self) -> None:
        """Compare the document with its digest.

        Raises:
            AttestationError: ST-ATTS-703.
        """
        found = hashlib.sha384(canonical(self.root, without=self.signature)).digest()
        if not hmac.compare_digest(found, self.digest):
            raise refusal(
                _DIGEST,
                f"its digest is {found.hex()[:16]}, {self.digest.hex()[:16]} was signed",
                self.root.where,
            )

    def check_signature(self, key: ec.EllipticCurvePublicKey) -> None:
        """Verify the signature over the digest.

        Raises:
            AttestationError: ST-ATTS-704.
        """
        r, s = (
            int.from_bytes(half, "big")
            for half in (self.value[:_COORDINATE_SIZE], self.value[_COORDINATE_SIZE:])
        )
        try:
            key.verify(
                encode_dss_signature(r, s), canonical(self.signed_info), ec.ECDSA(hashes.SHA384())
            )
        except InvalidSignature as error:
            raise refusal(
                _SIGNATURE,
                "the signature does not verify under the key of the first certificate",
                self.root.where,
            ) from error


def read_document(data: bytes, where: str) -> Document:
    """Read signed XML of the accepted form; call both of its checks before using anything in it.

    Raises:
        AttestationError: ST-ATTS-701 it is not the XML that is accepted, ST-ATTS-702 it is signed
            in another form.
    """
    root = parse(data, where)
    elements = root.elements()
    others = [root, *(inner for element in elements[:-1] for inner in _walk(element))]
    if not elements or any(element.namespace == DSIG for element in others):
        raise refusal(_FORM, "expected one Signature, as the last child of the root", where)
    signature = elements[-1]
    try:
        signature.expect(DSIG, "Signature")
        signed_info, value, key_info = _parts(signature, 3)
        value.expect(DSIG, "SignatureValue")
        return Document(
            root=root,
            content=tuple(elements[:-1]),
            signature=signature,
            signed_info=signed_info,
            certificates=_read_key_info(key_info),
            digest=_read_signed_info(signed_info),
            value=_base64(value, 2 * _COORDINATE_SIZE),
        )
    except AttestationError as error:
        raise refusal(_FORM, error.what, where) from error


def parse(data: bytes, where: str) -> Element:
    """Parse XML of the subset.

    Raises:
        AttestationError: ST-ATTS-701.
    """
    if len(data) > LIMIT:
        raise refusal(_MALFORMED, f"{len(data)} bytes, the limit is {LIMIT}", where)
    try:
        text = data.decode()
        # expat looks for UTF-16 whatever encoding it is told.
        if not text.startswith("<") or "\0" in text:
            raise refusal(_MALFORMED, "it does not start with an element in UTF-8", where)
        return _Builder(where).build(text)
    except (UnicodeDecodeError, expat.ExpatError) as error:
        raise refusal(_MALFORMED, f"not well-formed XML: {error}", where) from error


def canonical(element: Element, without: Element | None = None) -> bytes:
    """Canonical XML 1.1 (inclusive) of an element and what is in it.

    Args:
        element: what is written, with every namespace in its scope.
        without: an element that is left out with everything in it.
    """
    pieces: list[str] = []
    _write(element, without, {}, pieces)
    return "".join(pieces).encode()


class _Builder:
    """Makes a tree of what expat reports, and refuses what is not in the subset."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._root: Element | None = None
        self._open: list[Element] = []
        self._declared: dict[str, str] = {}
        self._count = 0

    def build(self, text: str) -> Element:
        # The separator is no character of a namespace in NAMESPACES, and no other namespace
        # reaches the name of an element or attribute.
        parser = expat.ParserCreate("UTF-8", " ")
        parser.namespace_prefixes = True
        parser.buffer_text = True
        parser.XmlDeclHandler = self._refuse("an XML declaration")
        parser.StartDoctypeDeclHandler = self._refuse("a document type declaration")
        parser.ProcessingInstructionHandler = self._refuse("a processing instruction")
        parser.CommentHandler = self._refuse("a comment")
        parser.StartCdataSectionHandler = self._refuse("a CDATA section")
        parser.StartNamespaceDeclHandler = self._declare
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.Parse(text, True)
        assert self._root is not None, "a document without a root is not well-formed"
        return self._root

    def _refuse(self, what: str) -> Any:
        def handler(*_: object) -> None:
            raise refusal(_MALFORMED, f"{what} is not accepted", self._where)

        return handler

    def _declare(self, prefix: str | None, uri: str | None) -> None:
        if uri not in NAMESPACES:
            raise refusal(_MALFORMED, f"the namespace {uri!r} is not accepted", self._where)
        self._declared[prefix or ""] = uri

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._count += 1
        if len(self._open) >= MAX_DEPTH or self._count > MAX_ELEMENTS:
            what = f"more than {MAX_DEPTH} levels or {MAX_ELEMENTS} elements"
            raise refusal(_MALFORMED, what, self._where)
        outer = self._open[-1].scope if self._open else {}
        scope = {**outer, **self._declared} if self._declared else outer
        self._declared = {}
        namespace, local, tag = self._split(name)
        element = Element(namespace, local, tag, {}, scope, self._where)
        for full, value in attributes.items():
            namespace, local, tag = self._split(full)
            element.attributes[namespace, local] = (tag, value)
        if self._open:
            self._open[-1].children.append(element)
        else:
            self._root = element
        self._open.append(element)

    def _split(self, name: str) -> tuple[str, str, str]:
        """Namespace, local name and name with prefix of expat's ``URI local prefix``."""
        match name.split(" "):
            case [uri, local, prefix] if uri in NAMESPACES:
                return uri, local, f"{prefix}:{local}"
            case [uri, local] if uri in NAMESPACES:
                return uri, local, local
            case [local]:
                return "", local, local
            case _:
                raise refusal(_MALFORMED, f"the name {name!r} is not accepted", self._where)

    def _end(self, _: str) -> None:
        self._open.pop()

    def _text(self, text: str) -> None:
        # White space around the root is none of its content, and expat refuses other text there.
        if self._open:
            self._open[-1].children.append(text)


def _walk(element: Element) -> Iterator[Element]:
    yield element
    for child in element.children:
        if isinstance(child, Element):
            yield from _walk(child)


def _write(
    element: Element, without: Element | None, written: Mapping[str, str], pieces: list[str]
) -> None:
    changed = {p: uri for p, uri in element.scope.items() if written.get(p) != uri}
    pieces.append(f"<{element.tag}")
    for prefix, uri in sorted(changed.items()):
        pieces.append(f' xmlns{":" if prefix else ""}{prefix}="{_escape_value(uri)}"')
    for _, (tag, value) in sorted(element.attributes.items()):
        pieces.append(f' {tag}="{_escape_value(value)}"')
    pieces.append(">")
    for child in element.children:
        if isinstance(child, str):
            pieces.append(_escape_text(child))
        elif child is not without:
            _write(child, without, {**written, **changed}, pieces)
    pieces.append(f"</{element.tag}>")


def _escape_text(text: str) -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("\r", "&#xD;")


def _escape_value(value: str) -> str:
    value = value.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return value.replace("\t", "&#x9;").replace("\n", "&#xA;").replace("\r", "&#xD;")


def _parts(element: Element, count: int) -> list[Element]:
    parts = element.elements()
    if len(parts) != count:
        raise element.bad(f"{len(parts)} elements, expected {count}")
    return parts


def _algorithm(element: Element, name: str, expected: str) -> Element:
    found = element.expect(DSIG, name, ("", "Algorithm"))["Algorithm"]
    if found != expected:
        raise element.bad(f"{found!r}, expected {expected!r}")
    if element.children:
        raise element.bad("parameters, expected none")
    return element


def _read_signed_info(signed_info: Element) -> bytes:
    """The digest of the document that was signed."""
    signed_info.expect(DSIG, "SignedInfo")
    method, algorithm, reference = _parts(signed_info, 3)
    _algorithm(method, "CanonicalizationMethod", _C14N)
    _algorithm(algorithm, "SignatureMethod", _ECDSA_SHA384)
    if reference.expect(DSIG, "Reference", ("", "URI"))["URI"] != "":
        raise reference.bad("it does not cover the whole document")
    transforms, digest_method, digest = _parts(reference, 3)
    transforms.expect(DSIG, "Transforms")
    enveloped, c14n = _parts(transforms, 2)
    _algorithm(enveloped, "Transform", _ENVELOPED)
    _algorithm(c14n, "Transform", _C14N)
    _algorithm(digest_method, "DigestMethod", _DIGEST_SHA384)
    digest.expect(DSIG, "DigestValue")
    return _base64(digest, _DIGEST_SIZE)


def _read_key_info(key_info: Element) -> tuple[bytes, ...]:
    key_info.expect(DSIG, "KeyInfo")
    (data,) = _parts(key_info, 1)
    data.expect(DSIG, "X509Data")
    certificates = data.elements()
    if len(certificates) > MAX_CERTIFICATES:
        raise data.bad(f"{len(certificates)} certificates, the limit is {MAX_CERTIFICATES}")
    for certificate in certificates:
        certificate.expect(DSIG, "X509Certificate")
    return tuple(_base64(certificate) for certificate in certificates)


def _base64(element: Element, size: int | None = None) -> bytes:
    """The bytes that an element's text spells, in lines or not."""
    text = "".join(element.text().split())
    if len(text) > 2 * CERTIFICATE_LIMIT:
        raise element.bad(f"{len(text)} characters of base64")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise element.bad(f"bad base64: {error}") from error
    if size is not None and len(data) != size:
        raise element.bad(f"{len(data)} bytes, expected {size}")
    return data


def refusal(code: str, what: str, where: str) -> AttestationError:
    """A refusal of a RIM."""
    return AttestationError(code, what, where)
