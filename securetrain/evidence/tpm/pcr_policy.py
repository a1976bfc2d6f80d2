# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Signed predictions of registers: what `systemd-measure sign` and `ukify` put beside an image.

A builder computes which value PCR 11 will have after its image has started, makes the TPM policy
digest of that value, and signs the digest. Rules:

1. the digest is computed here, from the value that the TPM has quoted. What a document says about
   a digest only chooses which of its signatures are tried;
2. a signature counts if a key of the reference values has made it, and if the digest is not among
   those that were retired: an old image keeps its signature, so it is thrown out by name;
3. the document itself is nobody's word. A node may send any; only signatures in it count. It has
   at most 64 KiB, and at most `TRIES` signatures of the quoted value are tried.

Sources: systemd, systemd-measure(1), "sign"; src/shared/tpm2-util.c (tpm2_calculate_policy_pcr);
TCG TPM 2.0 Library, Part 3, 23.7 (TPM2_PolicyPCR).
"""

import base64
import binascii
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Final

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from msgspec import Meta

from securetrain.core.errors import AttestationError
from securetrain.evidence.tpm.constants import Hash
from securetrain.evidence.tpm.structures import PcrSelection, encode_selections, number

DOCUMENT_LIMIT: Final = 64 << 10
TRIES: Final = 16
REFUSED: Final = "ST-ATTS-242"
_CC_POLICY_PCR: Final = 0x17F
_MIN_RSA: Final = 2048
_CURVES: Final = ("secp256r1", "secp384r1", "secp521r1")

PolicyKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey


class _Signature(msgspec.Struct, frozen=True):
    """One signed prediction; its other fields are for the TPM's own use."""

    pcrs: Annotated[tuple[Annotated[int, Meta(ge=0, le=23)], ...], Meta(max_length=24)]
    pol: Annotated[str, Meta(max_length=128)]
    sig: Annotated[str, Meta(max_length=4096)]


_DECODER: Final = msgspec.json.Decoder(dict[str, tuple[_Signature, ...]], strict=True)


def policy_digest(pcrs: Mapping[int, bytes], selected: Sequence[int]) -> bytes:
    """The SHA-256 digest of TPM2_PolicyPCR over registers of the SHA-256 bank."""
    sha256 = Hash.SHA256
    values = sha256.digest(b"".join(pcrs[index] for index in sorted(set(selected))))
    selection = encode_selections([PcrSelection(sha256, tuple(sorted(set(selected))))])
    return sha256.digest(bytes(sha256.size) + number(_CC_POLICY_PCR, 4) + selection + values)


def load_policy_key(pem: str, where: str) -> PolicyKey:
    """A key that predictions are signed with.

    Raises:
        AttestationError: ST-ATTS-009.
    """
    try:
        key = load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _bad_key(f"not a public key in PEM: {error}", where) from error
    if isinstance(key, rsa.RSAPublicKey) and key.key_size >= _MIN_RSA:
        return key
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in _CURVES:
        return key
    raise _bad_key("not an RSA key of 2048 bits or more, nor one on P-256, P-384 or P-521", where)


def check_signed_policy(
    document: bytes,
    pcrs: Mapping[int, bytes],
    *,
    register: int,
    keys: Sequence[PolicyKey],
    retired: Collection[str] = (),
) -> str:
    """Tell that a key has signed a prediction of a quoted register.

    Args:
        document: `tpm2-pcr-signature.json`.
        pcrs: quoted values of the SHA-256 bank.
        register: the one that must be among those that are predicted.
        keys: of the reference values.
        retired: policy digests (hex) whose signatures no longer count.

    Returns:
        The policy digest, hex.

    Raises:
        AttestationError: ST-ATTS-242.
    """
    where = f"PCR {register}, signed policy"
    listed = _read(document, where)
    old = ""
    tried = 0
    for one in listed:
        digest = _predicts(one, pcrs, register)
        if digest in retired:
            old = digest
        elif digest and tried < TRIES:
            tried += 1
            if any(_signs(key, one.sig, bytes.fromhex(digest)) for key in keys):
                return digest
    if old:
        raise _refused(f"the prediction {old} was retired", where)
    raise _refused(
        f"none of {len(listed)} predictions is of the quoted value {pcrs[register].hex()} and"
        " signed by a key of policy_keys",
        where,
    )


def _read(document: bytes, where: str) -> tuple[_Signature, ...]:
    if not document:
        raise _refused("the node sent no signatures", where)
    if len(document) > DOCUMENT_LIMIT:
        raise _refused(f"{len(document)} bytes, the limit is {DOCUMENT_LIMIT}", where)
    try:
        return _DECODER.decode(document).get("sha256", ())
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _refused(f"the document is malformed: {error}", where) from error


def _predicts(one: _Signature, pcrs: Mapping[int, bytes], register: int) -> str:
    """The policy digest (hex) of a prediction that is of what was quoted; else empty."""
    if register not in one.pcrs or any(index not in pcrs for index in one.pcrs):
        return ""
    digest = policy_digest(pcrs, one.pcrs).hex()
    return digest if one.pol.lower() == digest else ""


def _signs(key: PolicyKey, text: str, digest: bytes) -> bool:
    try:
        signature = base64.b64decode(text, validate=True)
        if isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, digest, padding.PKCS1v15(), hashes.SHA256())
        else:
            key.verify(signature, digest, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, binascii.Error, ValueError):
        return False
    return True


def _refused(what: str, where: str) -> AttestationError:
    return AttestationError(REFUSED, what, where)


def _bad_key(what: str, where: str) -> AttestationError:
    return AttestationError(
        "ST-ATTS-009", what, where, "give the public key that 'systemd-measure sign' is run with"
    )
