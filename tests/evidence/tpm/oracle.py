# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What tpm2-pytss (libtss2) reads in a structure. Runs alone, in an environment of its own.

Lines of JSON come in, ``{"kind": ..., "data": hex}``, and go out: ``{"read": false}``, or
``{"read": true, "fields": ..., "again": hex}`` when the structure was read to its last byte. Fields
have the TCG's names; numbers are numbers, bytes are hex.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

from tpm2_pytss import TSS2_Exception, types
from tpm2_pytss.constants import TPM2_ALG, TPM2_ST

_HASHED = {
    *(TPM2_ALG.RSASSA, TPM2_ALG.RSAPSS, TPM2_ALG.OAEP, TPM2_ALG.ECDSA, TPM2_ALG.ECDH),
    *(TPM2_ALG.SM2, TPM2_ALG.ECSCHNORR, TPM2_ALG.ECMQV),
}
_KDFS = {TPM2_ALG.MGF1, TPM2_ALG.KDF1_SP800_56A, TPM2_ALG.KDF2, TPM2_ALG.KDF1_SP800_108}


def public(read: Any) -> dict[str, Any]:
    """TPM2B_PUBLIC."""
    area = read.publicArea
    fields: dict[str, Any] = {
        "type": int(area.type),
        "nameAlg": int(area.nameAlg),
        "objectAttributes": int(area.objectAttributes),
        "authPolicy": hexed(area.authPolicy),
    }
    if area.type == TPM2_ALG.RSA:
        detail = area.parameters.rsaDetail
        fields |= {
            "keyBits": int(detail.keyBits),
            "exponent": int(detail.exponent),
            "modulus": hexed(area.unique.rsa),
        }
    elif area.type == TPM2_ALG.ECC:
        detail = area.parameters.eccDetail
        fields |= {
            "curveID": int(detail.curveID),
            "kdf": scheme(detail.kdf, "mgf1"),
            "x": hexed(area.unique.ecc.x),
            "y": hexed(area.unique.ecc.y),
        }
    else:
        return fields
    symmetric = detail.symmetric
    fields["symmetric"] = [int(symmetric.algorithm)]
    if symmetric.algorithm != TPM2_ALG.NULL:
        fields["symmetric"] += [int(symmetric.keyBits.sym), int(symmetric.mode.sym)]
    fields["scheme"] = scheme(detail.scheme, "anySig")
    return fields


def scheme(read: Any, member: str) -> list[int]:
    """The algorithm, and its hash where it has one."""
    algorithm = int(read.scheme)
    if algorithm not in _HASHED | _KDFS:
        return [algorithm]
    return [algorithm, int(getattr(read.details, member).hashAlg)]


def selections(read: Any) -> list[list[Any]]:
    """TPML_PCR_SELECTION."""
    found = []
    for one in read:
        bits = bytes(one.pcrSelect)[: one.sizeofSelect]
        found.append([int(one.hash), int(one.sizeofSelect), bits.hex()])
    return found


def attest(read: Any) -> dict[str, Any]:
    """TPMS_ATTEST."""
    fields = {
        "magic": int(read.magic),
        "type": int(read.type),
        "qualifiedSigner": hexed(read.qualifiedSigner),
        "extraData": hexed(read.extraData),
        "clock": int(read.clockInfo.clock),
        "resetCount": int(read.clockInfo.resetCount),
        "restartCount": int(read.clockInfo.restartCount),
        "safe": int(read.clockInfo.safe),
        "firmwareVersion": int(read.firmwareVersion),
    }
    if read.type == TPM2_ST.ATTEST_QUOTE:
        fields["pcrSelect"] = selections(read.attested.quote.pcrSelect)
        fields["pcrDigest"] = hexed(read.attested.quote.pcrDigest)
    elif read.type == TPM2_ST.ATTEST_CERTIFY:
        fields["name"] = hexed(read.attested.certify.name)
        fields["qualifiedName"] = hexed(read.attested.certify.qualifiedName)
    return fields


def signature(read: Any) -> dict[str, Any]:
    """TPMT_SIGNATURE."""
    algorithm = int(read.sigAlg)
    fields: dict[str, Any] = {"sigAlg": algorithm}
    if algorithm in {TPM2_ALG.RSASSA, TPM2_ALG.RSAPSS}:
        made = read.signature.rsassa
        fields |= {"hash": int(made.hash), "parts": [hexed(made.sig)]}
    elif algorithm == TPM2_ALG.ECDSA:
        made = read.signature.ecdsa
        fields |= {
            "hash": int(made.hash),
            "parts": [hexed(made.signatureR), hexed(made.signatureS)],
        }
    return fields


def hexed(read: Any) -> str:
    """Bytes of a sized buffer."""
    return bytes(read).hex()


KINDS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "public": (types.TPM2B_PUBLIC, public),
    "selections": (types.TPML_PCR_SELECTION, selections),
    "attest": (types.TPMS_ATTEST, attest),
    "signature": (types.TPMT_SIGNATURE, signature),
}


def answer(kind: str, data: bytes) -> dict[str, Any]:
    """What libtss2 makes of one structure."""
    structure, describe = KINDS[kind]
    try:
        read, used = structure.unmarshal(data)
    except TSS2_Exception:
        return {"read": False}
    if used != len(data):
        return {"read": False}
    return {"read": True, "fields": describe(read), "again": read.marshal().hex()}


def main() -> None:
    """Answer every line."""
    for line in sys.stdin:
        asked = json.loads(line)
        answered = answer(asked["kind"], bytes.fromhex(asked["data"]))
        sys.stdout.write(json.dumps(answered) + "\n")


if __name__ == "__main__":
    main()
