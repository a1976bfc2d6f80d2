# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Does a maker of TPMs vouch for this endorsement key, and what is that worth?

Sources: TCG EK Credential Profile for TPM Family 2.0, version 2.6; RFC 5280, 6.

Rules:

1. the key is of a known template (`keys`), the certificate meets the profile (`profile`) and is for
   this very key;
2. a path of at most `MAX_DEPTH` certificates leads to a pinned root, at an explicit time: the
   system's store and clock play no part. Everything between is a CA with keyCertSign, nothing is
   signed by a hash below SHA-256 or with an RSA key below 2048 bits. The root may be any CA that
   the operator pins, also one that another has signed; the nearest counts. What has expired,
   anywhere on the path, is refused with a code of its own, and so is what is revoked;
3. what a path is worth is said by the root that it ends at: a hardware TPM, a virtual TPM, a test.
   A maker of software TPMs is worth a virtual TPM at most, wherever its path ends;
4. a key without a certificate counts only when its name is listed, and then as a virtual TPM: its
   operator vouches for it, nobody else does. A certificate that is sent must hold, listed or not.

Paths are verified by OpenSSL, which reads certificates that stricter parsers refuse. A certificate
says that a genuine TPM holds the key, never that it is a TPM of ours: see the enrollment.
"""

import hashlib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final, TypeAlias

import msgspec
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from msgspec import Meta
from OpenSSL import crypto

from securetrain.core.errors import AttestationError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence.binding import prefixed
from securetrain.evidence.recent import Recent
from securetrain.evidence.tpm.keys import check_endorsement_key
from securetrain.evidence.tpm.profile import (
    Identity,
    check_authority,
    check_endorsement_profile,
)
from securetrain.evidence.tpm.structures import NativeKey, PublicArea, parse_public
from securetrain.identity import path_search, paths

MAX_CERTIFICATE: Final = 8 << 10
MAX_CHAIN: Final = 8
"""Most certificates that a node may send beside its own."""
MAX_KEYS: Final = 1 << 14
"""Accepted endorsement keys that are remembered."""
MAX_LINKS: Final = 1 << 10
"""Accepted CAs that are remembered."""
LEAF: Final = "endorsement key certificate"

_SOFTWARE: Final = frozenset({"id:49424D20", "id:00001014", "id:53572020", "id:4D534654"})
"""Vendor ids of software TPMs: IBM (twice: libtpms and swtpm, IBM's own), "SW  ", and Microsoft's
simulator, which shares its id with hardware that is thereby ranked too low, not too high."""
_SOFTWARE_MODEL: Final = "swtpm"
_PEM: Final = re.compile(rb"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")

Pem: TypeAlias = Annotated[str, Meta(max_length=256 << 10)]
"""One or more certificates."""
EkName: TypeAlias = Annotated[
    str, Meta(pattern=r"^000[bcd]([0-9a-f]{64}|[0-9a-f]{96}|[0-9a-f]{128})\Z")
]
"""Name of an endorsement key (nameAlg and digest), lower-case hex."""
Sha256: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class TpmReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The makers whose endorsement keys are accepted. Empty accepts none."""

    roots: tuple[Pem, ...] = ()
    """CAs of makers of hardware TPMs."""
    virtual_roots: tuple[Pem, ...] = ()
    """CAs of virtual TPMs: a cloud's, a hypervisor's."""
    test_roots: tuple[Pem, ...] = ()
    """CAs of software TPMs that stand for nothing. A root that is pinned more than once counts as
    the least that it is pinned as."""
    intermediates: tuple[Pem, ...] = ()
    """CAs between these roots and the keys, for nodes that do not send them. Not trusted by
    themselves."""
    revoked: tuple[EkName, ...] = ()
    """Endorsement keys that are refused."""
    revoked_certificates: tuple[Sha256, ...] = ()
    """SHA-256 of certificates (DER) that no path may contain."""
    allow_uncertified: tuple[EkName, ...] = ()
    """Endorsement keys that are accepted without a certificate, as virtual TPMs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endorsement:
    """An endorsement key, and what is known about its TPM."""

    key: PublicArea
    name: bytes
    """The key's Name: the identity of the TPM."""
    tier: NodeTier
    template: str
    """Of the key, in the EK Credential Profile: ``L-1`` to ``H-7``."""
    manufacturer: str = ""
    """``id:`` and the TCG vendor id; empty, as all below, for a key without a certificate."""
    model: str = ""
    version: str = ""
    root: str = ""
    """SHA-256 of the pinned certificate (DER) at which the path ends, hex."""
    expires: datetime | None = None
    """When the first certificate of the path does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Path:
    """A verified path."""

    spki: bytes
    identity: Identity
    tier: NodeTier
    root: str
    validity: path_search.Validity


class Endorsements:
    """The pinned roots, read once, and what has been accepted under them.

    A verifier owns one for as long as its reference values stand.
    """

    def __init__(self, reference: TpmReference, max_keys: int = MAX_KEYS) -> None:
        """Read the pinned certificates.

        Args:
            reference: what is pinned.
            max_keys: how many accepted keys to remember, at least one.

        Raises:
            AttestationError: ST-ATTS-009 when one is malformed.
        """
        self._revoked = frozenset(reference.revoked)
        self._revoked_certificates = frozenset(reference.revoked_certificates)
        self._uncertified = frozenset(reference.allow_uncertified)
        intermediates = tuple(_pinned(reference.intermediates, "intermediates"))
        roots: list[crypto.X509] = []
        self._tiers: dict[str, NodeTier] = {}
        # From most to least, so that the least stands.
        for field, pinned, tier in (
            ("roots", reference.roots, NodeTier.TPM),
            ("virtual_roots", reference.virtual_roots, NodeTier.VTPM),
            ("test_roots", reference.test_roots, NodeTier.TEST_ONLY),
        ):
            for root in _pinned(pinned, field):
                roots.append(root)
                self._tiers[path_search.fingerprint(root)] = tier
        self._anchors = path_search.Anchors(roots, intermediates)
        # By the bytes of key and certificates; by fingerprint and whether it is the path's root.
        self._accepted: Recent[bytes, tuple[Endorsement, path_search.Validity]] = Recent(max_keys)
        self._links: Recent[tuple[str, bool], path_search.Validity] = Recent(MAX_LINKS)

    def check(
        self, public: bytes, certificate: bytes, chain: Sequence[bytes], now: datetime
    ) -> Endorsement:
        """Judge an endorsement key.

        Args:
            public: TPM2B_PUBLIC.
            certificate: DER; empty when the TPM has none.
            chain: intermediate certificates, DER, in any order.
            now: the time of the check.

        Raises:
            AttestationError: ST-ATTS-101 and ST-ATTS-102 as in `structures.parse_public`,
                ST-ATTS-103 template, ST-ATTS-105 malformed or missing the profile, ST-ATTS-106 for
                another key, ST-ATTS-107 no path to a pinned root, ST-ATTS-108 expired or not yet
                valid, ST-ATTS-109 revoked, ST-ATTS-110 no certificate and not listed.
        """
        sent = hashlib.sha256(b"".join(map(prefixed, (public, certificate, *chain)))).digest()
        known = self._accepted.get(sent)
        if known is not None and known[1].covers(now):
            return known[0]
        key = parse_public(public, "endorsement key")
        template = check_endorsement_key(key)
        if key.name.hex() in self._revoked:
            raise _revoked("endorsement key", key.name.hex())
        if not certificate:
            return self._uncertified_key(key, template)
        _check_sizes(certificate, chain)
        native = _spki(key.key())
        path = self._verify(certificate, chain, native, now)
        if path.spki != native:
            raise AttestationError(
                "ST-ATTS-106", "is for another key than the endorsement key that came with it", LEAF
            )
        endorsement = Endorsement(
            key=key,
            name=key.name,
            tier=path.tier,
            template=template,
            manufacturer=path.identity.manufacturer,
            model=path.identity.model,
            version=path.identity.version,
            root=path.root,
            expires=path.validity.ends,
        )
        self._accepted.put(sent, (endorsement, path.validity))
        return endorsement

    def _uncertified_key(self, key: PublicArea, template: str) -> Endorsement:
        if key.name.hex() not in self._uncertified:
            raise AttestationError(
                "ST-ATTS-110", f"no certificate for {key.name.hex()}", "endorsement key"
            )
        return Endorsement(key=key, name=key.name, tier=NodeTier.VTPM, template=template)

    def _verify(
        self, certificate: bytes, chain: Sequence[bytes], native: bytes, now: datetime
    ) -> _Path:
        leaf = _load(certificate, LEAF)
        is_rsa, spki = _leaf_key(leaf, native)
        identity = check_endorsement_profile(certificate, LEAF, rsa=is_rsa)
        path = self._build(leaf, chain, now)
        last = len(path) - 1
        times = [self._link(one, depth, root=depth == last) for depth, one in enumerate(path)]
        root = path_search.fingerprint(path[-1])
        tier = self._tiers[root]
        return _Path(
            spki=spki,
            identity=identity,
            tier=min(tier, NodeTier.VTPM) if _is_software(identity) else tier,
            root=sys.intern(root),
            validity=path_search.Validity(max(t.begins for t in times), min(t.ends for t in times)),
        )

    def _build(
        self, leaf: crypto.X509, chain: Sequence[bytes], now: datetime
    ) -> Sequence[crypto.X509]:
        """The path that OpenSSL finds and verifies, leaf first."""
        sent = (_load(one, f"certificate {n} of the chain") for n, one in enumerate(chain, 1))
        try:
            return self._anchors.find(leaf, sent, now)
        except paths.BadPathError as bad:
            raise self._broken(bad) from bad

    def _link(self, certificate: crypto.X509, depth: int, *, root: bool) -> path_search.Validity:
        """The validity of one certificate of a path that OpenSSL has verified.

        Few CAs certify many keys: what they say is looked at once.
        """
        fingerprint = path_search.fingerprint(certificate)
        known = self._links.get((fingerprint, root)) if depth else None
        if known is not None:
            return known
        where = _place(depth, root=root)
        if fingerprint in self._revoked_certificates:
            raise _revoked(where, fingerprint)
        try:
            validity = path_search.weigh(certificate, depth, is_root=root)
        except paths.BadPathError as bad:
            raise _refusal(bad, where) from bad
        if depth and not root:
            check_authority(path_search.encoded(certificate), where)
        return self._links.put((fingerprint, root), validity) if depth else validity

    def _broken(self, bad: paths.BadPathError) -> AttestationError:
        """The refusal of a path that OpenSSL did not find."""
        return _refusal(bad, _place(bad.position, root=bad.fingerprint in self._tiers))


def check_endorsement(
    public: bytes,
    certificate: bytes,
    chain: Sequence[bytes],
    reference: TpmReference,
    now: datetime,
) -> Endorsement:
    """Judge one endorsement key; see `Endorsements.check`, which many keys want."""
    return Endorsements(reference).check(public, certificate, chain, now)


def _pinned(texts: Iterable[str], field: str) -> Iterator[crypto.X509]:
    for number, text in enumerate(texts):
        where = f"tpm.{field}[{number}]"
        found = _PEM.findall(text.encode())
        if not found:
            raise _bad_reference("no PEM certificate", where)
        for pem in found:
            try:
                yield crypto.load_certificate(crypto.FILETYPE_PEM, pem)
            except crypto.Error as error:
                raise _bad_reference(f"not a certificate: {error}", where) from error


def _check_sizes(certificate: bytes, chain: Sequence[bytes]) -> None:
    if len(chain) > MAX_CHAIN:
        raise _malformed(f"{len(chain)} certificates, the limit is {MAX_CHAIN}", "chain")
    if max(map(len, (certificate, *chain))) > MAX_CERTIFICATE:
        raise _malformed(f"more than {MAX_CERTIFICATE} bytes", "chain")


def _load(certificate: bytes, where: str) -> crypto.X509:
    try:
        loaded = crypto.load_certificate(crypto.FILETYPE_ASN1, certificate)
    except crypto.Error as error:
        raise _malformed(f"not a certificate: {error}", where) from error
    if path_search.encoded(loaded) != certificate:
        raise _malformed("other bytes follow the certificate, or it is not DER", where)
    return loaded


def _leaf_key(leaf: crypto.X509, native: bytes) -> tuple[bool, bytes]:
    """Tell whether a leaf's key is RSA, and its SubjectPublicKeyInfo.

    Nearly every leaf has the key that came with it (`native`), which was read before; others, and
    other encodings of the same one, are read anew.
    """
    try:
        key = leaf.get_pubkey()
        if crypto.dump_publickey(crypto.FILETYPE_ASN1, key) == native:
            return key.type() == crypto.TYPE_RSA, native
    except (crypto.Error, ValueError, TypeError):
        pass  # `native_key` says what it is
    try:
        read = path_search.native_key(leaf, 0)
    except paths.BadPathError as bad:
        raise _refusal(bad, LEAF) from bad
    return isinstance(read, rsa.RSAPublicKey), _spki(read)


def _place(depth: int, *, root: bool = False) -> str:
    if depth == 0:
        return LEAF
    return f"root (certificate {depth} above)" if root else f"intermediate certificate {depth}"


def _spki(key: NativeKey) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _is_software(identity: Identity) -> bool:
    return identity.manufacturer in _SOFTWARE or _SOFTWARE_MODEL in identity.model.lower()


def _malformed(what: str, where: str) -> AttestationError:
    return AttestationError("ST-ATTS-105", what, where)


def _refusal(bad: paths.BadPathError, where: str) -> AttestationError:
    match bad.flaw:
        case paths.Flaw.MALFORMED:
            return _malformed(bad.what, where)
        case paths.Flaw.EXPIRED | paths.Flaw.NOT_YET:
            return AttestationError("ST-ATTS-108", bad.what, where)
        case _:
            return AttestationError("ST-ATTS-107", bad.what, where)


def _revoked(where: str, what: str) -> AttestationError:
    return AttestationError("ST-ATTS-109", f"{what} is revoked", where)


def _bad_reference(what: str, where: str) -> AttestationError:
    return AttestationError("ST-ATTS-009", what, where)
