# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Certificate paths: whether a certificate hangs from a pinned one (RFC 5280, section 6).

A line is certificates in their order, leaf first, root last; makers of CPUs and GPUs send theirs
so. Who delivers a certificate is never believed, the root least:

1. the root is known by the SHA-256 of its SubjectPublicKeyInfo, is its own issuer, and its key has
   signed it; nothing is remembered of a line whose root is not pinned;
2. signature scheme and keys are the rules', never the ones that a certificate names;
3. every issuer says critically that it is a CA, may sign certificates, and has room for what is
   below it. The leaf is none and, where it says what its key is for, that is signing data alone;
4. a critical extension that is not understood here is a refusal, and so is a name constraint, a
   negative serial number, a signature that is not whole bytes, a certificate that comes twice;
5. signatures come first and dates last, so that "expired" is said only of what is otherwise
   genuine.

Each link is verified by `cryptography`'s path validation (`Engine.PROFILE`), issuer and subject as
a path of their own. Its profile is the web's, and AMD's genuine certificates do not meet it: they
spell out defaults of RSASSA-PSS, and VCEKs are numbered 0. Theirs are verified under their scheme,
and rules 1 to 5 are all that they get (`Engine.SCHEME`).

Where the order is not known, or the profile does not fit, `path_search` is asked.

What a link is worth depends on two certificates and their place, so `Links` remembers it. Times and
pins are judged anew whenever they are asked about.
"""

import hashlib
import warnings
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from threading import Lock
from typing import Final, NamedTuple, TypeAlias

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtensionOID, SignatureAlgorithmOID
from cryptography.x509.verification import (
    Criticality,
    ExtensionPolicy,
    PolicyBuilder,
    Store,
    VerificationError,
)

MAX_LINE: Final = 8
"""Most certificates of a line, leaf and root included."""
CERTIFICATE_LIMIT: Final = 8 << 10
REMEMBERED_LINKS: Final = 4096

UNREADABLE: Final = (
    ValueError,
    TypeError,
    Warning,  # on what it will refuse one day, where warnings are errors
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""What `cryptography` raises on certificates that are not what they should be."""


class Flaw(Enum):
    """The ways in which a path fails; what each is called is its caller's."""

    MALFORMED = auto()
    UNTRUSTED = auto()
    """It does not lead where it should, or somebody on it may not do what they did."""
    UNPINNED = auto()
    """The root of a line is somebody else's."""
    EXPIRED = auto()
    NOT_YET = auto()


class BadPathError(Exception):
    """A path that does not hold; its callers say with which code they refuse it."""

    def __init__(self, flaw: Flaw, what: str, position: int, fingerprint: str = "") -> None:
        """Name the flaw.

        Args:
            flaw: its kind.
            what: it, in words.
            position: of the certificate, 0 for the leaf.
            fingerprint: SHA-256 of that certificate (DER), hex; empty for a line.
        """
        super().__init__(what)
        self.flaw = flaw
        self.what = what
        self.position = position
        self.fingerprint = fingerprint


class Scheme(Enum):
    """The scheme by which a maker signs certificates, lists and documents."""

    RSA_4096_PSS_SHA384 = auto()
    ECDSA_P256_SHA256 = auto()
    ECDSA_P384_SHA384 = auto()

    @property
    def key(self) -> str:
        """The kind of key that it takes, for people."""
        return _SCHEMES[self].key

    def fits(self, key: object) -> bool:
        """Tell whether `key` is of the scheme's kind."""
        if self is Scheme.RSA_4096_PSS_SHA384:
            return isinstance(key, rsa.RSAPublicKey) and key.key_size == 4096
        return isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == _SCHEMES[self].curve

    def check(self, key: object, signature: bytes, message: bytes) -> None:
        """Verify a signature.

        Raises:
            InvalidSignature: it is not by `key` under this scheme.
        """
        if not self.fits(key):
            raise InvalidSignature
        if isinstance(key, rsa.RSAPublicKey):
            pss = padding.PSS(padding.MGF1(hashes.SHA384()), padding.PSS.DIGEST_LENGTH)
            key.verify(signature, message, pss, hashes.SHA384())
        else:
            assert isinstance(key, ec.EllipticCurvePublicKey)
            key.verify(signature, message, ec.ECDSA(_SCHEMES[self].digest))


class _Traits(NamedTuple):
    key: str
    curve: str
    algorithm: x509.ObjectIdentifier
    name: str
    digest: hashes.HashAlgorithm


_SCHEMES: Final[Mapping[Scheme, _Traits]] = {
    Scheme.RSA_4096_PSS_SHA384: _Traits(
        "RSA-4096", "", SignatureAlgorithmOID.RSASSA_PSS, "rsassaPss", hashes.SHA384()
    ),
    Scheme.ECDSA_P256_SHA256: _Traits(
        *("P-256", "secp256r1", SignatureAlgorithmOID.ECDSA_WITH_SHA256, "ecdsa-with-SHA256"),
        hashes.SHA256(),
    ),
    Scheme.ECDSA_P384_SHA384: _Traits(
        *("P-384", "secp384r1", SignatureAlgorithmOID.ECDSA_WITH_SHA384, "ecdsa-with-SHA384"),
        hashes.SHA384(),
    ),
}


class Engine(Enum):
    """The judge of a link."""

    PROFILE = auto()
    """`cryptography.x509.verification`."""
    SCHEME = auto()
    """The signature alone, for makers whose certificates do not meet that profile."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rules:
    """The rules of one maker's certificates; equal to themselves alone, which is quick."""

    name: str
    scheme: Scheme
    engine: Engine = Engine.PROFILE
    limit: int = CERTIFICATE_LIMIT
    """Bytes of a certificate."""
    leaf_key: bool = True
    """Whether the leaf's key is of the scheme's kind, too."""
    leaf_usage: bool = True
    """Whether the leaf must say what its key is for."""
    understood: frozenset[x509.ObjectIdentifier] = frozenset(
        {ExtensionOID.BASIC_CONSTRAINTS, ExtensionOID.KEY_USAGE}
    )
    """Extensions that may be critical."""


@dataclass(frozen=True, slots=True)
class Link:
    """A certificate that was checked against its issuer, in its place; no time changes it."""

    certificate: x509.Certificate
    not_before: datetime
    not_after: datetime


Sent: TypeAlias = bytes | x509.Certificate
"""A certificate, in DER or read already."""
Line: TypeAlias = Sequence[tuple[str, Sent]]
"""Roles (for people) and certificates, leaf first, root last."""
LinkKey: TypeAlias = tuple[Rules, int, frozenset[str] | None, bytes, bytes]
"""All that the worth of a link depends on: rules, place (certificates below), the pins where it is
the root, and the digests of certificate and issuer."""


class Links:
    """Links that held; bounded, the longest unused leave first. Safe for threads.

    Devices of one family share their upper certificates, and a device keeps its own until its
    firmware changes. Refusals are never kept.
    """

    def __init__(self, limit: int = REMEMBERED_LINKS) -> None:
        """Start empty.

        Args:
            limit: number of certificates, about 4 KiB each.
        """
        self._limit = limit
        self._links: OrderedDict[LinkKey, Link] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._links)

    def get(self, key: LinkKey) -> Link | None:
        """The link that is kept under `key`."""
        with self._lock:
            link = self._links.get(key)
            if link is not None:
                self._links.move_to_end(key)
            return link

    def put(self, key: LinkKey, link: Link) -> Link:
        """Keep a link that held, and give it back."""
        with self._lock:
            self._links[key] = link
            self._links.move_to_end(key)
            while len(self._links) > self._limit:
                self._links.popitem(last=False)
        return link


def verify_line(
    line: Line,
    pins: Collection[str],
    now: datetime,
    rules: Rules,
    links: Links | None = None,
) -> list[Link]:
    """Lead certificates to a pinned root, all of them in date.

    Args:
        line: leaf first, root last.
        pins: SHA-256 of the SubjectPublicKeyInfo of each accepted root, lower-case hex.
        now: the time of the check, with a time zone.
        rules: the maker's.
        links: what a verifier of many lines keeps.

    Raises:
        BadPathError: it does not hold.
    """
    if not 1 < len(line) <= MAX_LINE:
        raise BadPathError(
            Flaw.MALFORMED, f"{len(line)} certificates, 2 to {MAX_LINE} make a line", 0
        )
    links = Links(MAX_LINE) if links is None else links
    digests = [_digest(sent) for _, sent in line]
    roots = frozenset(pins)
    held: list[Link] = []
    for position in range(len(line) - 1, -1, -1):
        above = digests[min(position + 1, len(line) - 1)]
        key = (rules, position, None if held else roots, digests[position], above)
        link = links.get(key)
        if link is None:
            link = links.put(key, _link(line, position, held, roots, rules))
        held.insert(0, link)
    if len(set(digests)) < len(digests):
        raise untrusted("a certificate comes twice", 0)
    for position, link in enumerate(held):
        _check_dates(link, now, position)
    return held


def _link(
    line: Line,
    position: int,
    above: Sequence[Link],
    pins: frozenset[str],
    rules: Rules,
) -> Link:
    """Check one certificate against its issuer, the first above it, or itself at the root."""
    _, sent = line[position]
    der = sent if isinstance(sent, bytes) else sent.public_bytes(Encoding.DER)
    if len(der) > rules.limit:
        what = f"{len(der)} bytes, the limit is {rules.limit}"
        raise BadPathError(Flaw.MALFORMED, what, position)
    try:
        with no_warnings():
            certificate = x509.load_der_x509_certificate(der) if isinstance(sent, bytes) else sent
            # A signature is whole bytes; `cryptography` does not look at the count of unused bits.
            if not der.endswith(b"\0" + certificate.signature):
                raise ValueError("its signature is not a string of whole bytes")
            if certificate.serial_number < 0:
                raise ValueError("its serial number is negative")
            issuer = above[0].certificate if above else certificate
            _check_names(certificate, issuer, _issuer_role(line, position), position)
            if not above:
                _check_pin(spki_sha256(certificate), pins, position)
            _check_key(certificate, position, rules)
            _check_issued(certificate, issuer, _issuer_role(line, position), position, rules)
            _check_extensions(certificate, position, rules)
            begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    except UNREADABLE as error:
        raise BadPathError(Flaw.MALFORMED, f"not a certificate: {error}", position) from error
    return Link(certificate, begins, ends)


def _digest(sent: Sent) -> bytes:
    if isinstance(sent, bytes):
        return hashlib.sha256(sent).digest()
    return sent.fingerprint(hashes.SHA256())


def _issuer_role(line: Line, position: int) -> str:
    return line[min(position + 1, len(line) - 1)][0]


def _check_pin(spki: str, pins: frozenset[str], position: int) -> None:
    if spki not in pins:
        known = ", ".join(sorted(pins)) or "no key: none is pinned"
        what = f"its key has the SHA-256 {spki} and is not pinned: the pinned root has {known}"
        raise BadPathError(Flaw.UNPINNED, what, position)


def _check_names(
    certificate: x509.Certificate, issuer: x509.Certificate, role: str, position: int
) -> None:
    if certificate.issuer != issuer.subject:
        raise untrusted(
            f"does not name the {role} as issuer: issued by"
            f" {certificate.issuer.rfc4514_string()!r}, the next one is"
            f" {issuer.subject.rfc4514_string()!r}",
            position,
        )


def _check_key(certificate: x509.Certificate, position: int, rules: Rules) -> None:
    if position == 0 and not rules.leaf_key:
        return
    if not rules.scheme.fits(certificate.public_key()):
        raise untrusted(f"its key is not one of {rules.scheme.key}", position)


def _check_issued(
    certificate: x509.Certificate, issuer: x509.Certificate, role: str, position: int, rules: Rules
) -> None:
    asked, found = _SCHEMES[rules.scheme], certificate.signature_algorithm_oid
    if found != asked.algorithm:
        raise untrusted(
            f"is not signed by the {role} as it should be: signed with {found.dotted_string},"
            f" not {asked.name}",
            position,
        )
    try:
        # `cryptography` would take a root, which is its own issuer, as it is: unverified.
        if certificate == issuer or rules.engine is Engine.SCHEME:
            _check_signature(certificate, issuer, rules.scheme)
        else:
            _check_profile(certificate, issuer)
    except (InvalidSignature, VerificationError, *UNREADABLE) as error:
        raise untrusted(
            f"is not signed by the {role}: its issuer's key did not sign it, or not a certificate"
            f" like this ({str(error)[:200] or type(error).__name__})",
            position,
        ) from error


def _check_signature(
    certificate: x509.Certificate, issuer: x509.Certificate, scheme: Scheme
) -> None:
    # The algorithm beside the signature is no part of what is signed; this compares it with the
    # one that is, for what it is worth: the scheme believes neither.
    certificate.verify_directly_issued_by(issuer)
    scheme.check(issuer.public_key(), certificate.signature, certificate.tbs_certificate_bytes)


def _check_profile(certificate: x509.Certificate, issuer: x509.Certificate) -> None:
    """Let `cryptography` judge two certificates as a path of their own.

    The time is one at which both are valid. Nothing else in its verdict depends on the time, so the
    verdict may be kept; `_check_dates` is asked each time.
    """
    begins = max(certificate.not_valid_before_utc, issuer.not_valid_before_utc)
    if begins > min(certificate.not_valid_after_utc, issuer.not_valid_after_utc):
        # Never valid together: `_check_dates` refuses one of the two at any time, and says which.
        certificate.verify_directly_issued_by(issuer)
        return
    verifier = (
        PolicyBuilder()
        .store(Store([issuer]))
        .time(begins)
        .max_chain_depth(0)
        .extension_policies(ca_policy=_ISSUER, ee_policy=_ISSUED)
        .build_client_verifier()
    )
    verifier.verify(certificate, [])


_ISSUER: Final = (
    ExtensionPolicy.permit_all()
    .require_present(x509.BasicConstraints, Criticality.CRITICAL, None)
    .require_present(x509.KeyUsage, Criticality.AGNOSTIC, None)
)
_ISSUED: Final = ExtensionPolicy.permit_all()
"""A leaf or a CA: what it must be is `_check_extensions`'s to say."""


def _check_extensions(certificate: x509.Certificate, below: int, rules: Rules) -> None:
    """`below` is the number of certificates under this one; 0 makes it the leaf."""
    found = {extension.oid: extension for extension in certificate.extensions}
    unknown = [
        oid.dotted_string
        for oid, extension in found.items()
        if (extension.critical and oid not in rules.understood)
        or oid == ExtensionOID.NAME_CONSTRAINTS
    ]
    if unknown:
        raise untrusted(f"unknown critical extensions {unknown}", below)
    constraints = found.get(ExtensionOID.BASIC_CONSTRAINTS)
    usage = found.get(ExtensionOID.KEY_USAGE)
    basic = None if constraints is None else constraints.value
    assert basic is None or isinstance(basic, x509.BasicConstraints)
    uses = None if usage is None else usage.value
    assert uses is None or isinstance(uses, x509.KeyUsage)
    if below == 0:
        _check_leaf(basic, uses, rules)
        return
    refusal = "it may not sign certificates"
    if constraints is None or basic is None or not constraints.critical:
        raise untrusted(f"it has no critical basicConstraints: {refusal}", below)
    if not basic.ca:
        raise untrusted(f"it is not a CA: {refusal}", below)
    if basic.path_length is not None and basic.path_length < below - 1:
        what = f"its path length is {basic.path_length}, {below - 1} CAs are below it"
        raise untrusted(what, below)
    if uses is None:
        raise untrusted(f"it has no keyUsage: {refusal}", below)
    if not uses.key_cert_sign:
        raise untrusted(f"{refusal} (keyCertSign)", below)


def _check_leaf(
    basic: x509.BasicConstraints | None, uses: x509.KeyUsage | None, rules: Rules
) -> None:
    if basic is not None and basic.ca:
        raise untrusted("it is a CA, a leaf was expected", 0)
    if uses is None and rules.leaf_usage:
        raise untrusted("it has no keyUsage", 0)
    if uses is not None and (uses.key_cert_sign or not uses.digital_signature):
        raise untrusted("its key may not sign: its key usage is not digitalSignature alone", 0)


def _check_dates(link: Link, now: datetime, position: int) -> None:
    if link.not_before <= now <= link.not_after:
        return
    flaw, what = Flaw.NOT_YET, f"valid from {link.not_before.isoformat()}"
    if now > link.not_after:
        flaw, what = Flaw.EXPIRED, f"expired {link.not_after.isoformat()}"
    span = f"it is good from {link.not_before} to {link.not_after}, now {now}"
    raise BadPathError(flaw, f"{what}: {span}", position)


def spki_sha256(certificate: x509.Certificate) -> str:
    """SHA-256 of the SubjectPublicKeyInfo, hex: what roots are pinned by."""
    key = certificate.public_key()
    return hashlib.sha256(
        key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    ).hexdigest()


@contextmanager
def no_warnings() -> Iterator[None]:
    """Ignore what `cryptography` will refuse one day: AMD numbers all VCEKs 0, which RFC 5280
    forbids and the parser warns about; it also warns about lengths in names, which mean nothing.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def untrusted(what: str, position: int) -> BadPathError:
    """A path that does not lead where it should."""
    return BadPathError(Flaw.UNTRUSTED, what, position)
