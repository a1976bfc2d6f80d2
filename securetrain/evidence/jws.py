# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Signed JSON of other issuers (JWS, RFC 7515, compact), against keys that are pinned.

Rules:

1. sizes are checked before anything is decoded. A token is three segments of base64url in their
   one spelling; header and payload are JSON objects without duplicate keys;
2. the header may hold ``alg``, ``kid``, ``typ`` and, where the reference values say so, ``jku`` or
   ``jwk``, which some issuers write into every token. Those two are compared with what is pinned
   and never used. Any other parameter is refused, ``crit`` and ``b64`` among them;
3. ``alg`` must be pinned for the issuer, be asymmetric, and fit the key; ``kid`` (empty when it is
   absent) must select exactly one pinned key;
4. nothing in a payload is a claim until the signature over it has verified (`Unverified.verify`).

The cryptography is PyJWT's; its clock is never asked.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, TypeAlias

import jwt
import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from msgspec import Meta

from securetrain.core import canonical
from securetrain.core.errors import AttestationError, UsageError
from securetrain.evidence.recent import Recent

TOKEN_LIMIT: Final = 64 << 10
MAX_KEYS: Final = 64
_MIN_RSA_BITS: Final = 2048
_TYPES: Final = frozenset({"", "JWT", "eat+jwt"})
_Key: TypeAlias = ec.EllipticCurvePublicKey | rsa.RSAPublicKey
_Text: TypeAlias = Annotated[str, Meta(max_length=4096)]
_Kid: TypeAlias = Annotated[str, Meta(max_length=512)]


class Algorithm(StrEnum):
    """The signatures that tokens may have (RFC 7518, 3.1): the asymmetric ones."""

    RS256 = "RS256"
    RS384 = "RS384"
    RS512 = "RS512"
    PS256 = "PS256"
    PS384 = "PS384"
    PS512 = "PS512"
    ES256 = "ES256"
    ES384 = "ES384"
    ES512 = "ES512"


_CURVES: Final = {
    "secp256r1": Algorithm.ES256,
    "secp384r1": Algorithm.ES384,
    "secp521r1": Algorithm.ES512,
}
_RSA: Final = frozenset(Algorithm) - frozenset(_CURVES.values())


class Jwk(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A public key as issuers publish it (RFC 7517)."""

    kty: Literal["EC", "RSA"]
    kid: _Kid = ""
    """What tokens select it by; empty for an issuer whose tokens name no key."""
    alg: Algorithm | None = None
    use: Literal["sig"] = "sig"
    crv: _Text = ""
    x: _Text = ""
    y: _Text = ""
    n: _Text = ""
    e: _Text = ""
    x5c: Annotated[tuple[Annotated[str, Meta(max_length=8 << 10)], ...], Meta(max_length=8)] = ()
    """Certificates. The first one's key is used when the JWK has no numbers of its own (Azure's);
    being pinned is what it is trusted for, so its dates and issuer mean nothing."""
    key_ops: tuple[_Text, ...] = ()
    x5t: _Text = ""
    x5t_s256: _Text = msgspec.field(default="", name="x5t#S256")


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    alg: str
    kid: _Kid = ""
    typ: str = ""
    jku: str | None = None
    jwk: Jwk | None = None


@dataclass(frozen=True, slots=True)
class _Pinned:
    key: _Key
    algorithms: frozenset[Algorithm]


class Jwks(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A key set, as an issuer publishes it (RFC 7517, 5)."""

    keys: Annotated[tuple[Jwk, ...], Meta(max_length=MAX_KEYS)] = ()


KeyMemory: TypeAlias = Recent[Jwks, Mapping[str, _Pinned]]
"""Key sets that were loaded, by what they were loaded from."""


class Signing(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The way in which one issuer signs its tokens. The defaults accept no token."""

    jwks: Jwks = Jwks()
    algorithms: tuple[Algorithm, ...] = ()
    jku: _Text = ""
    """The address of the key set that the issuer writes into its tokens (Azure: the issuer and
    ``/certs``). It is compared, never followed; empty refuses tokens with one."""
    embedded_key: bool = False
    """The issuer repeats its key in the header of its tokens (Trustee does). It is compared, never
    used; false refuses tokens with one."""


@dataclass(frozen=True, slots=True)
class Unverified:
    """A token that is well-formed; what it says is not known to be its issuer's."""

    text: str
    header: _Header
    payload: Mapping[str, Any]
    where: str

    @property
    def issuer(self) -> str:
        """The issuer whose keys verify it."""
        issuer = self.payload.get("iss")
        if not isinstance(issuer, str):
            raise malformed("it names no issuer (iss)", self.where)
        return issuer

    def verify(self, signing: Signing, keys: KeyMemory | None = None) -> Mapping[str, Any]:
        """The claims, which the pinned key has signed.

        Args:
            signing: how the issuer signs.
            keys: pinned keys that were loaded before, for an appraiser of many tokens to keep.

        Raises:
            AttestationError: ST-ATTS-802 no pinned key is selected, 803 an algorithm or a header
                that is not pinned, 804 the signature, 811 a pinned key that cannot be used.
        """
        header = self.header
        algorithm = next((one for one in signing.algorithms if one == header.alg), None)
        if algorithm is None:
            allowed = ", ".join(signing.algorithms) or "none"
            raise self._not_pinned(f"alg is {header.alg!r}, pinned: {allowed}")
        pinned = _keys(signing.jwks, keys).get(header.kid)
        if pinned is None:
            raise AttestationError(
                "ST-ATTS-802",
                f"signed by key {header.kid!r}, which is not pinned for this issuer",
                self.where,
                "pin the issuer's new keys in the reference values, after checking where they"
                " come from",
            )
        if algorithm not in pinned.algorithms:
            raise self._not_pinned(f"alg is {header.alg!r}, which does not fit key {header.kid!r}")
        self._compare_header(signing, pinned.key)
        return self._checked(pinned.key, algorithm)

    def _compare_header(self, signing: Signing, key: _Key) -> None:
        header = self.header
        if header.jku is not None and (not signing.jku or header.jku != signing.jku):
            raise self._not_pinned("its header names a place to fetch keys from (jku)")
        if header.jwk is not None and not (signing.embedded_key and _is_key(header.jwk, key)):
            raise self._not_pinned("its header brings a key of its own (jwk)")

    def _checked(self, key: _Key, algorithm: Algorithm) -> Mapping[str, Any]:
        try:
            # The text was read above; PyJWT reads it again, with the same outcome for one spelling.
            jwt.PyJWS().decode_complete(self.text, key, algorithms=[algorithm.value])
        except jwt.PyJWTError as error:
            raise AttestationError(
                "ST-ATTS-804", "the signature does not verify under the pinned key", self.where
            ) from error
        return self.payload

    def _not_pinned(self, what: str) -> AttestationError:
        return AttestationError("ST-ATTS-803", what, self.where)


def parse(token: str, where: str) -> Unverified:
    """Read a compact JWS.

    Raises:
        AttestationError: ST-ATTS-801 malformed, 803 a header parameter that is never accepted.
    """
    if len(token) > TOKEN_LIMIT:
        raise malformed(f"{len(token)} characters, the limit is {TOKEN_LIMIT}", where)
    segments = token.split(".")
    if len(segments) != 3:
        raise malformed(f"{len(segments)} segments, a compact JWS has 3", where)
    header, payload, _ = (_unbase64(segment, where) for segment in segments)
    fields = _object(header, where)
    return Unverified(token, _read_header(fields, where), _object(payload, where), where)


def malformed(what: str, where: str) -> AttestationError:
    """The refusal of something that is no token."""
    return AttestationError("ST-ATTS-801", f"not an attestation token: {what}", where)


def _read_header(fields: Mapping[str, Any], where: str) -> _Header:
    try:
        header = msgspec.convert(fields, _Header, strict=True)
    except msgspec.ValidationError as error:
        raise AttestationError(
            "ST-ATTS-803", f"its header is not acceptable: {error}", where
        ) from error
    if header.typ not in _TYPES:
        raise malformed(f"typ is {header.typ[:64]!r}", where)
    return header


def _unbase64(segment: str, where: str) -> bytes:
    try:
        data = base64.b64decode(segment + "=" * (-len(segment) % 4), b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise malformed(f"bad base64url: {error}", where) from error
    if base64.urlsafe_b64encode(data).rstrip(b"=").decode() != segment:
        raise malformed("base64url that is not in its one spelling", where)
    return data


def _object(data: bytes, where: str) -> Mapping[str, Any]:
    try:
        value = canonical.loads(data, limit=TOKEN_LIMIT, where=where)
    except UsageError as error:
        raise malformed(error.what, where) from error
    if not isinstance(value, dict):
        raise malformed("header and payload are JSON objects", where)
    return value


def _keys(jwks: Jwks, memory: KeyMemory | None) -> Mapping[str, _Pinned]:
    """Keys by id: they come from the reference values and serve many tokens."""
    known = None if memory is None else memory.get(jwks)
    if known is not None:
        return known
    loaded = _load_keys(jwks)
    return loaded if memory is None else memory.put(jwks, loaded)


def _load_keys(jwks: Jwks) -> Mapping[str, _Pinned]:
    loaded: dict[str, _Pinned] = {}
    for jwk in jwks.keys:
        if jwk.kid in loaded:
            raise _unusable(f"two pinned keys have the id {jwk.kid!r}")
        try:
            key = _public(jwk)
        except ValueError as error:
            raise _unusable(f"key {jwk.kid!r} cannot be read: {error}") from error
        fitting = _fitting(key)
        if jwk.alg is not None:
            fitting &= {jwk.alg}
        if not fitting:
            raise _unusable(f"key {jwk.kid!r} fits no algorithm that is accepted")
        loaded[jwk.kid] = _Pinned(key, fitting)
    return loaded


def _fitting(key: _Key) -> frozenset[Algorithm]:
    if isinstance(key, rsa.RSAPublicKey):
        return _RSA if key.key_size >= _MIN_RSA_BITS else frozenset()
    return frozenset({_CURVES[key.curve.name]} if key.curve.name in _CURVES else ())


def _is_key(jwk: Jwk, key: _Key) -> bool:
    try:
        return _public(jwk) == key
    except ValueError:
        return False


def _public(jwk: Jwk) -> _Key:
    """The key in a JWK.

    Raises:
        ValueError: when there is none of its type.
    """
    if jwk.x5c and not (jwk.x or jwk.n):
        first = base64.b64decode(jwk.x5c[0], validate=True)
        key: Any = x509.load_der_x509_certificate(first).public_key()
    else:
        # An algorithm must be named; any of the key's type will do to read its numbers.
        reader = "ES256" if jwk.kty == "EC" else "RS256"
        try:
            key = jwt.get_algorithm_by_name(reader).from_jwk(msgspec.to_builtins(jwk))
        except jwt.PyJWTError as error:
            raise ValueError(str(error)) from error
    if not isinstance(key, ec.EllipticCurvePublicKey if jwk.kty == "EC" else rsa.RSAPublicKey):
        raise ValueError(f"it is not of type {jwk.kty}")  # noqa: TRY004 - data, not a mistake
    return key


def _unusable(what: str) -> AttestationError:
    return AttestationError("ST-ATTS-811", what, "reference values: tokens")
