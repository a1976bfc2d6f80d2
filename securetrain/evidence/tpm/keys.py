# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Rules for a TPM's endorsement key and attestation key.

Sources: TCG EK Credential Profile for TPM Family 2.0, version 2.6, annex B (templates); TCG TPM 2.0
Library, Part 1 (Names, attributes).

Rules:

1. an endorsement key is of one of the profile's templates, to the bit: a restricted storage key
   that the TPM made, that never leaves it and never signs, usable under the profile's policies
   only. A certificate vouches for a key; the template is what makes activation mean something;
2. an attestation key signs only what the TPM itself states (restricted, sign, never decrypt), was
   made by the TPM and is fixed to it, and its own scheme names the hash: SHA-256 or better. Without
   `noDA` a node whose power is cut three times locks itself out of attestation;
3. where a key stands in the TPM is said by its qualified name, which we compute ourselves from the
   public areas of its parents.

That the attestation key is in the same TPM as the endorsement key is proven by activating a
credential (`credential`), not by anything here.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from securetrain.core.errors import AttestationError
from securetrain.evidence.tpm.constants import Algorithm, Attributes, Curve, Handle, Hash
from securetrain.evidence.tpm.structures import (
    EccKey,
    PublicArea,
    RsaKey,
    Scheme,
    Symmetric,
    number,
)

_CC_POLICY_SECRET: Final = 0x151
_CC_POLICY_OR: Final = 0x171

POLICY_C: Final[Mapping[Hash, bytes]] = MappingProxyType(
    {
        Hash.SHA256: bytes.fromhex(
            "3767e2edd43ff45a3a7e1eaefcef78643dca964632e7aad82c673a30d8633fde"
        ),
        Hash.SHA384: bytes.fromhex(
            "d6032ce61f2fb3c240eb3cf6a33237ef2b6a16f4293c22b4"
            "55e261cffd217ad5b4947c2d73e63005eed2dc2b3593d165"
        ),
        Hash.SHA512: bytes.fromhex(
            "589ee1e146544716e8deafe6db247b01b81e9f9c7dd16b814aa159138749105f"
            "ba5388dd1dea702f35240c184933121e2c61b8f50d3ef91393a49a38c3f73fc8"
        ),
    }
)
"""TPM2_PolicyAuthorizeNV with the profile's index of each hash (annex B.6.4)."""


def policy_a(algorithm: Hash) -> bytes:
    """PolicyA: TPM2_PolicySecret with the endorsement hierarchy (annex B.6.2)."""
    command = number(_CC_POLICY_SECRET, 4) + number(Handle.ENDORSEMENT, 4)
    return algorithm.digest(algorithm.digest(bytes(algorithm.size) + command))


def policy_b(algorithm: Hash) -> bytes:
    """PolicyB: TPM2_PolicyOR of PolicyA and PolicyC (annex B.6.5)."""
    branches = policy_a(algorithm) + POLICY_C[algorithm]
    return algorithm.digest(bytes(algorithm.size) + number(_CC_POLICY_OR, 4) + branches)


_LOW: Final = (
    Attributes.FIXED_TPM
    | Attributes.FIXED_PARENT
    | Attributes.SENSITIVE_DATA_ORIGIN
    | Attributes.ADMIN_WITH_POLICY
    | Attributes.RESTRICTED
    | Attributes.DECRYPT
)
_HIGH: Final = _LOW | Attributes.USER_WITH_AUTH


def _high(algorithm: Hash, aes: int, unique: RsaKey | EccKey) -> PublicArea:
    return PublicArea(
        name_alg=algorithm,
        attributes=_HIGH,
        auth_policy=policy_b(algorithm),
        symmetric=Symmetric(aes),
        unique=unique,
    )


def _low(unique: RsaKey | EccKey) -> PublicArea:
    return PublicArea(
        name_alg=Hash.SHA256,
        attributes=_LOW,
        auth_policy=policy_a(Hash.SHA256),
        symmetric=Symmetric(128),
        unique=unique,
    )


EK_TEMPLATES: Final[Mapping[str, PublicArea]] = MappingProxyType(
    {
        "L-1": _low(RsaKey(bits=2048, modulus=bytes(256))),
        "L-2": _low(EccKey(curve=Curve.P256, x=bytes(32), y=bytes(32))),
        "H-1": _high(Hash.SHA256, 128, RsaKey(bits=2048)),
        "H-2": _high(Hash.SHA256, 128, EccKey(curve=Curve.P256)),
        "H-3": _high(Hash.SHA384, 256, EccKey(curve=Curve.P384)),
        "H-4": _high(Hash.SHA512, 256, EccKey(curve=Curve.P521)),
        "H-6": _high(Hash.SHA384, 256, RsaKey(bits=3072)),
        "H-7": _high(Hash.SHA384, 256, RsaKey(bits=4096)),
    }
)
"""By the profile's names, as they go into TPM2_CreatePrimary. H-5 (SM2) is not supported."""

_AK_MUST: Final = (
    Attributes.FIXED_TPM
    | Attributes.FIXED_PARENT
    | Attributes.SENSITIVE_DATA_ORIGIN
    | Attributes.NO_DA
    | Attributes.RESTRICTED
    | Attributes.SIGN
)
_AK_MAY: Final = _AK_MUST | Attributes.USER_WITH_AUTH | Attributes.ADMIN_WITH_POLICY

AK_TEMPLATE: Final = PublicArea(
    name_alg=Hash.SHA256,
    attributes=_AK_MUST | Attributes.USER_WITH_AUTH,
    scheme=Scheme(Algorithm.ECDSA, Hash.SHA256),
    unique=EccKey(curve=Curve.P256),
)
"""The attestation key that our own agent makes below the endorsement key."""

_RSA_SIGNING: Final = frozenset({Algorithm.RSASSA, Algorithm.RSAPSS})


def check_endorsement_key(public: PublicArea) -> str:
    """Judge an endorsement key by its public area.

    Returns:
        The template's name, ``L-1`` to ``H-7``.

    Raises:
        AttestationError: ST-ATTS-103 when it is of no template, ST-ATTS-101 when it is no key.
    """
    template = _TEMPLATES.get(_shape(public))
    if template is None:
        raise AttestationError(
            "ST-ATTS-103",
            f"of no template of the TCG EK Credential Profile: {_describe(public)}",
            "endorsement key",
        )
    public.key()
    return template


def check_attestation_key(public: PublicArea) -> None:
    """Judge an attestation key by its public area.

    Raises:
        AttestationError: ST-ATTS-104 when it cannot vouch for a node, ST-ATTS-101 when it is no
            key.
    """
    if missing := _AK_MUST & ~public.attributes:
        raise _weak("objectAttributes", f"a key without {_names(missing)}")
    if extra := public.attributes & ~_AK_MAY:
        raise _weak("objectAttributes", f"a key with {_names(extra)}")
    if public.symmetric is not None:
        raise _weak("symmetric", "a key with the parameters of a storage key")
    allowed = _RSA_SIGNING if isinstance(public.unique, RsaKey) else {Algorithm.ECDSA}
    if public.scheme is None or public.scheme.algorithm not in allowed:
        raise _weak(
            "scheme", f"scheme {public.scheme or 'NULL'} is not a signing scheme of its own"
        )
    if public.scheme.hash in {None, Hash.SHA1}:
        raise _weak("scheme", f"scheme {public.scheme}: the hash must be SHA-256 or better")
    public.key()


def qualified_name(path: Sequence[PublicArea], hierarchy: Handle = Handle.ENDORSEMENT) -> bytes:
    """The Qualified Name of the last key of a path (Part 1, 26.5).

    Args:
        path: the public areas from the primary key down to the key itself.
        hierarchy: what the primary key belongs to.
    """
    name = number(hierarchy, 4)
    for public in path:
        name = number(public.name_alg, 2) + public.name_alg.digest(name + public.name)
    return name


def _shape(public: PublicArea) -> tuple[object, ...]:
    """Everything of a public area but the key itself."""
    match public.unique:
        case RsaKey(bits=bits):
            own: tuple[object, ...] = (Algorithm.RSA, bits)
        case EccKey(curve=curve, kdf=kdf):
            own = (Algorithm.ECC, curve, kdf)
    return (
        *(public.name_alg, public.attributes, public.auth_policy, public.symmetric),
        *(public.scheme, own),
    )


_TEMPLATES: Final = {_shape(template): name for name, template in EK_TEMPLATES.items()}


def _describe(public: PublicArea) -> str:
    match public.unique:
        case RsaKey(bits=bits):
            kind = f"RSA-{bits}"
        case EccKey(curve=curve):
            kind = f"ECC {curve.name}"
    policy = public.auth_policy.hex() or "none"
    return (
        f"{kind}, name by {public.name_alg.name}, attributes {_names(public.attributes)}, "
        f"policy {policy}, symmetric {public.symmetric}, scheme {public.scheme or 'NULL'}"
    )


def _names(attributes: Iterable[Attributes]) -> str:
    return ", ".join(attribute.name or "" for attribute in attributes)


def _weak(field: str, what: str) -> AttestationError:
    return AttestationError("ST-ATTS-104", what, f"attestation key: {field}")
