# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Marshalled TPM 2.0 structures: read strictly, written exactly.

Source: TCG TPM 2.0 Library, Part 2 (Structures). Names of fields and constants are the TCG's.

Rules:

1. a structure is read to its last byte, and writing what was read gives the same bytes: nothing is
   normalised, so that names and digests computed from the written form are the TPM's own;
2. every length is compared with the field's own limit and with what is there, before it is used;
3. only what a verifier of training nodes has a use for is read: RSA of 2048 to 4096 bits and the
   NIST curves, names by SHA-256 or better, quotes and certifications, hash banks of the SHA
   families. Everything else is refused as unsupported, which is not the same as malformed;
4. a TPMS_ATTEST is refused at once when its magic is not TPM_GENERATED_VALUE: a restricted key
   signs foreign data too, as long as it does not begin with that (CVE-2024-29038).

What an endorsement or attestation key must be is judged in `keys`, what a quote must say in
`quote`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from struct import Struct
from typing import Final, TypeAlias, TypeVar

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from securetrain.core.errors import AttestationError
from securetrain.evidence.reader import Reader
from securetrain.evidence.tpm.constants import (
    DEFINED,
    GENERATED,
    Algorithm,
    Attributes,
    Curve,
    Hash,
    Tag,
)

MAX_SELECTIONS: Final = 16
MAX_PCR_SELECT: Final = 4
"""Most octets of one bank's bit map."""
PCR_SELECT: Final = 3
"""Octets of the bit map of 24 registers."""
MAX_DIGEST: Final = 64
MAX_NAME: Final = 2 + MAX_DIGEST
MAX_RSA: Final = 512
MAX_ECC: Final = 66
RSA_BITS: Final = frozenset({2048, 3072, 4096})
RSA_EXPONENT: Final = 65537
_AES_BITS: Final = frozenset({128, 192, 256})

NativeKey: TypeAlias = rsa.RSAPublicKey | ec.EllipticCurvePublicKey


class Scheme(msgspec.Struct, frozen=True):
    """A signing, encryption or key derivation scheme with its hash."""

    algorithm: Algorithm
    hash: Hash | None = None
    """None for RSAES only."""

    def __str__(self) -> str:
        return self.algorithm.name + (f"-{self.hash.name}" if self.hash else "")


@dataclass(frozen=True, slots=True)
class Symmetric:
    """TPMT_SYM_DEF_OBJECT: AES, its key size and its mode."""

    bits: int
    mode: Algorithm = Algorithm.CFB


@dataclass(frozen=True, slots=True, kw_only=True)
class RsaKey:
    """TPMS_RSA_PARMS (the key's own part) and TPM2B_PUBLIC_KEY_RSA."""

    bits: int
    exponent: int = 0
    """0 stands for 65537."""
    modulus: bytes = b""
    """Empty or zeros in a template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EccKey:
    """TPMS_ECC_PARMS (the key's own part) and TPMS_ECC_POINT."""

    curve: Curve
    kdf: Scheme | None = None
    x: bytes = b""
    """Empty or zeros in a template."""
    y: bytes = b""


@dataclass(frozen=True, kw_only=True)
class PublicArea:
    """TPMT_PUBLIC of an asymmetric key."""

    name_alg: Hash
    attributes: Attributes
    auth_policy: bytes = b""
    symmetric: Symmetric | None = None
    """Set for storage keys only: how a parent protects its children."""
    scheme: Scheme | None = None
    """None when the key leaves it to each command."""
    unique: RsaKey | EccKey

    @cached_property
    def encoded(self) -> bytes:
        """TPMT_PUBLIC."""
        return _encode_public(self)

    @property
    def tpm2b(self) -> bytes:
        """TPM2B_PUBLIC."""
        return tpm2b(self.encoded)

    @cached_property
    def name(self) -> bytes:
        """The object's Name: nameAlg, then the digest of the public area (Part 1, 16)."""
        # Not `encoded`, which would be kept: a verifier has the keys of a whole fleet.
        return number(self.name_alg, 2) + self.name_alg.digest(_encode_public(self))

    def key(self) -> NativeKey:
        """The public key; made once, because verifying is what a verifier does all day.

        Raises:
            AttestationError: ST-ATTS-101 when it is no such key (a template, a point off the curve,
                a modulus of another size).
        """
        return self._native

    def forget(self) -> None:
        """Let go of what was worked out, but for the name: it is worked out again when asked for.

        OpenSSL's form of a key takes more memory than all the rest.
        """
        vars(self).pop("_native", None)
        vars(self).pop("encoded", None)

    @cached_property
    def _native(self) -> NativeKey:
        try:
            return _native_key(self.unique)
        except (ValueError, UnsupportedAlgorithm) as error:
            raise _malformed(f"not a public key: {error}", "TPMT_PUBLIC.unique") from error


class PcrSelection(msgspec.Struct, frozen=True):
    """TPMS_PCR_SELECTION: registers of one bank."""

    bank: Hash
    pcrs: tuple[int, ...]
    """Ascending."""
    size: int = PCR_SELECT
    """Octets of the bit map."""


class ClockInfo(msgspec.Struct, frozen=True):
    """TPMS_CLOCK_INFO."""

    clock: int
    """Milliseconds that the TPM has been powered."""
    reset_count: int
    restart_count: int
    safe: bool
    """Whether `clock` has never gone back; false for a while after power was cut."""


class QuoteInfo(msgspec.Struct, frozen=True):
    """TPMS_QUOTE_INFO."""

    selections: tuple[PcrSelection, ...]
    digest: bytes


@dataclass(frozen=True, slots=True)
class CertifyInfo:
    """TPMS_CERTIFY_INFO."""

    name: bytes
    qualified_name: bytes


class Attest(msgspec.Struct, frozen=True, kw_only=True):
    """TPMS_ATTEST of a quote or of a certification."""

    qualified_signer: bytes
    extra_data: bytes
    clock: ClockInfo
    firmware: int
    """firmwareVersion: what the TPM's maker counts its firmware by."""
    attested: QuoteInfo | CertifyInfo


class Signature(msgspec.Struct, frozen=True):
    """TPMT_SIGNATURE by RSASSA, RSAPSS or ECDSA."""

    scheme: Scheme
    parts: tuple[bytes, ...]
    """RSA: the signature. ECDSA: r and s."""


# Writing.


def number(value: int, size: int) -> bytes:
    """An unsigned number of `size` bytes."""
    return int(value).to_bytes(size, "big")


def tpm2b(data: bytes) -> bytes:
    """A sized buffer: the bytes behind their length in two bytes."""
    return number(len(data), 2) + data


def encode_selections(selections: Iterable[PcrSelection]) -> bytes:
    """TPML_PCR_SELECTION."""
    items = tuple(selections)
    return number(len(items), 4) + b"".join(map(_encode_selection, items))


def _encode_public(area: PublicArea) -> bytes:
    match area.unique:
        case RsaKey(bits=bits, exponent=exponent, modulus=modulus):
            kind = Algorithm.RSA
            own = number(bits, 2) + number(exponent, 4) + tpm2b(modulus)
        case EccKey(curve=curve, kdf=kdf, x=x, y=y):
            kind = Algorithm.ECC
            own = number(curve, 2) + _encode_scheme(kdf) + tpm2b(x) + tpm2b(y)
    head = number(kind, 2) + number(area.name_alg, 2) + number(area.attributes, 4)
    shared = _encode_symmetric(area.symmetric) + _encode_scheme(area.scheme)
    return head + tpm2b(area.auth_policy) + shared + own


def _encode_scheme(scheme: Scheme | None) -> bytes:
    if scheme is None:
        return number(Algorithm.NULL, 2)
    return number(scheme.algorithm, 2) + (number(scheme.hash, 2) if scheme.hash else b"")


def _encode_symmetric(symmetric: Symmetric | None) -> bytes:
    if symmetric is None:
        return number(Algorithm.NULL, 2)
    return number(Algorithm.AES, 2) + number(symmetric.bits, 2) + number(symmetric.mode, 2)


def _encode_selection(selection: PcrSelection) -> bytes:
    bits = sum(1 << pcr for pcr in set(selection.pcrs))
    bitmap = bits.to_bytes(selection.size, "little")
    return number(selection.bank, 2) + number(selection.size, 1) + bitmap


# Reading.


def parse_public(data: bytes, where: str = "TPM2B_PUBLIC") -> PublicArea:
    """Read a TPM2B_PUBLIC.

    Raises:
        AttestationError: ST-ATTS-101 malformed, ST-ATTS-102 an algorithm that is not supported.
    """
    reader = Reader(data, "ST-ATTS-101", where)
    area = reader.take(reader.u16())
    reader.end()
    return parse_public_area(area, where)


def parse_public_area(data: bytes, where: str = "TPMT_PUBLIC") -> PublicArea:
    """Read a TPMT_PUBLIC.

    Raises:
        AttestationError: ST-ATTS-101 malformed, ST-ATTS-102 an algorithm that is not supported.
    """
    reader = Reader(data, "ST-ATTS-101", where)
    kind = _algorithm(reader, "type", _KEYS)
    name_alg = _member(reader, "nameAlg", Hash)
    if name_alg is Hash.SHA1:
        raise _unsupported("nameAlg SHA1", where)
    attributes = reader.u32()
    if attributes & ~DEFINED:
        raise reader.bad(f"objectAttributes {attributes:#x} has reserved bits")
    area = PublicArea(
        name_alg=name_alg,
        attributes=Attributes(attributes),
        auth_policy=reader.sized(2, MAX_DIGEST),
        symmetric=_symmetric(reader),
        scheme=_scheme(reader, "scheme", _SCHEMES[kind]),
        unique=_rsa(reader) if kind is Algorithm.RSA else _ecc(reader),
    )
    reader.end()
    return area


def parse_selections(data: bytes, where: str = "TPML_PCR_SELECTION") -> tuple[PcrSelection, ...]:
    """Read a TPML_PCR_SELECTION.

    Raises:
        AttestationError: ST-ATTS-101 malformed, ST-ATTS-102 a bank that is not supported.
    """
    reader = Reader(data, "ST-ATTS-101", where)
    selections = _selections(reader)
    reader.end()
    return selections


def parse_attest(data: bytes, where: str = "TPMS_ATTEST") -> Attest:
    """Read a TPMS_ATTEST.

    Raises:
        AttestationError: ST-ATTS-101 malformed, ST-ATTS-102 a bank that is not supported,
            ST-ATTS-112 neither a quote nor a certification that a TPM made.
    """
    reader = Reader(data, "ST-ATTS-101", where)
    magic, tag = reader.unpack(_MAGIC)
    if magic != GENERATED:
        raise _not_generated(f"magic {magic:#010x}, not TPM_GENERATED_VALUE", where)
    if tag not in {Tag.ATTEST_QUOTE, Tag.ATTEST_CERTIFY}:
        raise _not_generated(f"type {tag:#06x} is neither a quote nor a certification", where)
    signer, extra = reader.sized(2, MAX_NAME), reader.sized(2, MAX_DIGEST)
    clock, reset, restart, safe, firmware = reader.unpack(_CLOCK)
    if safe not in {0, 1}:
        raise reader.bad(f"clockInfo.safe is {safe}, neither YES nor NO")
    attest = Attest(
        qualified_signer=signer,
        extra_data=extra,
        clock=ClockInfo(clock, reset, restart, bool(safe)),
        firmware=firmware,
        attested=_quote(reader) if tag == Tag.ATTEST_QUOTE else _certify(reader),
    )
    reader.end()
    return attest


def parse_signature(data: bytes, where: str = "TPMT_SIGNATURE") -> Signature:
    """Read a TPMT_SIGNATURE.

    Raises:
        AttestationError: ST-ATTS-101 malformed, ST-ATTS-102 an algorithm that is not supported.
    """
    reader = Reader(data, "ST-ATTS-101", where)
    algorithm = _algorithm(reader, "sigAlg", _SIGNING)
    scheme = _SIGNED[algorithm, _member(reader, "hash", Hash)]
    if algorithm is Algorithm.ECDSA:
        parts: tuple[bytes, ...] = (reader.sized(2, MAX_ECC), reader.sized(2, MAX_ECC))
    else:
        parts = (reader.sized(2, MAX_RSA),)
    reader.end()
    return Signature(scheme, parts)


_MAGIC: Final = Struct(">IH")
_CLOCK: Final = Struct(">QIIBQ")
"""TPMS_CLOCK_INFO, and firmwareVersion behind it."""
_BITS: Final = tuple(tuple(bit for bit in range(8) if octet >> bit & 1) for octet in range(256))
"""The bits that are set in an octet."""
_KEYS: Final = frozenset({Algorithm.RSA, Algorithm.ECC})
_SIGNING: Final = frozenset({Algorithm.RSASSA, Algorithm.RSAPSS, Algorithm.ECDSA})
_SIGNED: Final = {
    (algorithm, digest): Scheme(algorithm, digest) for algorithm in _SIGNING for digest in Hash
}
_SCHEMES: Final = {
    Algorithm.RSA: frozenset(
        {Algorithm.RSASSA, Algorithm.RSAPSS, Algorithm.RSAES, Algorithm.OAEP, Algorithm.NULL}
    ),
    Algorithm.ECC: frozenset({Algorithm.ECDSA, Algorithm.ECDH, Algorithm.NULL}),
}
_KDFS: Final = frozenset({Algorithm.KDF1_SP800_56A, Algorithm.KDF1_SP800_108, Algorithm.NULL})
_MODES: Final = frozenset(
    {Algorithm.CTR, Algorithm.OFB, Algorithm.CBC, Algorithm.CFB, Algorithm.ECB}
)

_E = TypeVar("_E", bound=IntEnum)
# An enum's own look-up is a tenth of what reading a quote takes.
_MEMBERS: Final[dict[type[IntEnum], dict[int, IntEnum]]] = {
    of: {int(member): member for member in of} for of in (Algorithm, Hash, Curve)
}


def _member(reader: Reader, field: str, of: type[_E]) -> _E:
    value = reader.u16()
    member = _MEMBERS[of].get(value)
    if not isinstance(member, of):
        raise _unsupported(f"{field} {value:#06x}", reader.where)
    return member


def _algorithm(reader: Reader, field: str, allowed: frozenset[Algorithm]) -> Algorithm:
    algorithm = _member(reader, field, Algorithm)
    if algorithm not in allowed:
        raise _unsupported(f"{field} {algorithm.name}", reader.where)
    return algorithm


def _symmetric(reader: Reader) -> Symmetric | None:
    algorithm = _algorithm(reader, "symmetric", frozenset({Algorithm.AES, Algorithm.NULL}))
    if algorithm is Algorithm.NULL:
        return None
    bits = reader.u16()
    if bits not in _AES_BITS:
        raise _unsupported(f"AES with {bits} bits", reader.where)
    return Symmetric(bits, _algorithm(reader, "mode", _MODES))


def _scheme(reader: Reader, field: str, allowed: frozenset[Algorithm]) -> Scheme | None:
    algorithm = _algorithm(reader, field, allowed)
    if algorithm is Algorithm.NULL:
        return None
    if algorithm is Algorithm.RSAES:
        return Scheme(algorithm)
    return Scheme(algorithm, _member(reader, f"{field} hash", Hash))


def _rsa(reader: Reader) -> RsaKey:
    bits, exponent = reader.u16(), reader.u32()
    if bits not in RSA_BITS:
        raise _unsupported(f"RSA of {bits} bits", reader.where)
    if exponent not in {0, RSA_EXPONENT}:
        raise _unsupported(f"RSA exponent {exponent}", reader.where)
    return RsaKey(bits=bits, exponent=exponent, modulus=reader.sized(2, MAX_RSA))


def _ecc(reader: Reader) -> EccKey:
    curve = _member(reader, "curveID", Curve)
    return EccKey(
        curve=curve,
        kdf=_scheme(reader, "kdf", _KDFS),
        x=reader.sized(2, curve.size),
        y=reader.sized(2, curve.size),
    )


def _selections(reader: Reader) -> tuple[PcrSelection, ...]:
    count = reader.u32()
    if count > MAX_SELECTIONS:
        raise reader.bad(f"{count} PCR selections, the limit is {MAX_SELECTIONS}")
    return tuple(_selection(reader) for _ in range(count))


def _selection(reader: Reader) -> PcrSelection:
    bank, bitmap = _member(reader, "PCR bank", Hash), reader.sized(1, MAX_PCR_SELECT)
    pcrs = [8 * place + bit for place, octet in enumerate(bitmap) for bit in _BITS[octet]]
    return PcrSelection(bank, tuple(pcrs), len(bitmap))


def _quote(reader: Reader) -> QuoteInfo:
    return QuoteInfo(_selections(reader), reader.sized(2, MAX_DIGEST))


def _certify(reader: Reader) -> CertifyInfo:
    return CertifyInfo(reader.sized(2, MAX_NAME), reader.sized(2, MAX_NAME))


def _native_key(unique: RsaKey | EccKey) -> NativeKey:
    if isinstance(unique, EccKey):
        x, y = int.from_bytes(unique.x, "big"), int.from_bytes(unique.y, "big")
        return ec.EllipticCurvePublicNumbers(x, y, unique.curve.primitive()).public_key()
    n = int.from_bytes(unique.modulus, "big")
    if n.bit_length() != unique.bits or n % 2 == 0:
        raise ValueError(f"the modulus is no odd number of {unique.bits} bits")
    return rsa.RSAPublicNumbers(unique.exponent or RSA_EXPONENT, n).public_key()


def _malformed(what: str, where: str) -> AttestationError:
    return AttestationError("ST-ATTS-101", what, where)


def _unsupported(what: str, where: str) -> AttestationError:
    return AttestationError("ST-ATTS-102", f"{what} is not supported", where)


def _not_generated(what: str, where: str) -> AttestationError:
    return AttestationError("ST-ATTS-112", what, where)
