# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""DSSE envelopes (https://github.com/secure-systems-lab/dsse/blob/v1.0.2/protocol.md).

A payload is bytes until a signature over it has verified: ``verify`` returns ``VerifiedPayload``,
and only that type is parsed by the rest of the project. Envelopes are canonical JSON with strict
base64, so that no byte of an envelope file can change without being noticed.

A pair of keys (`identity.keys`) signs twice in one envelope. It counts as one signer, by the
classical key's id: the companion alone counts for nothing, a companion's signature that is there
must verify, and where `verify` is told that both must hold, one without the other is refused
(ST-IDEN-024).

A keyless signer (`identity.keyless`) makes a Sigstore bundle around an envelope instead, in
canonical JSON too; `identity.trust` verifies it.
"""

import base64
import binascii
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from securetrain.core import canonical
from securetrain.core.errors import IdentityError, UsageError
from securetrain.identity.keys import EnvelopeSigner, PairSigner, PublicKey, Signer

ENVELOPE_LIMIT: Final = 64 << 20
MAX_SIGNATURES: Final = 64
IN_TOTO: Final = "application/vnd.in-toto+json"


class Signature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One signature: the id of its key and its bytes in base64."""

    keyid: str
    sig: str


class Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The envelope as it is stored."""

    payload: str
    payloadType: str  # noqa: N815 - the name in the specification
    signatures: list[Signature]


@dataclass(frozen=True, slots=True)
class VerifiedPayload:
    """Bytes whose signatures verified, and by which keys."""

    data: bytes
    payload_type: str
    key_ids: frozenset[str]
    paired: frozenset[str] = frozenset()
    """Those of them whose companions have signed too."""
    identities: frozenset[str] = frozenset()
    """The name that a keyless signer's certificate carries, in full; a template is never here."""


def pae(payload_type: str, payload: bytes) -> bytes:
    """The pre-authentication encoding, which is what gets signed."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def payload_of(message: bytes, payload_type: str) -> bytes:
    """The payload in a pre-authentication encoding: of a message that is to be signed.

    Raises:
        IdentityError: ST-IDEN-004 when it is another encoding, or of another payload type.
    """
    head = pae(payload_type, b"").rsplit(b" ", 2)[0] + b" "
    _, space, payload = message[len(head) :].partition(b" ")
    if not (message.startswith(head) and space) or message != pae(payload_type, payload):
        raise IdentityError(
            "ST-IDEN-004", f"not the encoding of a payload of the type {payload_type!r}"
        )
    return payload


def sign(
    payload: bytes,
    payload_type: str,
    keys: Sequence[Signer],
    *,
    classical: bool = False,
    keyless: bool = False,
) -> bytes:
    """An envelope's canonical bytes, signed by every key in `keys`.

    Args:
        payload: what is signed.
        payload_type: its type.
        keys: the signers; a keyless one signs alone.
        classical: leave companions out: for what exists once for each rank or node.
        keyless: take a keyless signer: for what a trust root's identities are asked about.

    Raises:
        UsageError: ST-USAG-001 for a keyless signer beside others, or where none is taken.
    """
    if any(isinstance(key, EnvelopeSigner) for key in keys):
        if not keyless:
            raise UsageError(
                "ST-USAG-001",
                "whoever reads this asks for the signature of a key, not of an identity",
                fix="give a key file, a pkcs11: URI or a key of a cloud's key service",
            )
        (key, *others) = keys
        if others or not isinstance(key, EnvelopeSigner):
            raise UsageError(
                "ST-USAG-001",
                "a keyless signature stands alone in its bundle",
                fix="sign with one identity, or with keys",
            )
        return key.sign_envelope(payload, payload_type)
    message = pae(payload_type, payload)
    envelope = Envelope(
        payload=base64.b64encode(payload).decode(),
        payloadType=payload_type,
        signatures=[one for key in keys for one in _signatures(key, message, classical=classical)],
    )
    return canonical.encode(envelope)


def _signatures(key: Signer, message: bytes, *, classical: bool = False) -> list[Signature]:
    made = (
        key.sign_all(message)
        if isinstance(key, PairSigner) and not classical
        else ((key.key_id, key.sign(message)),)
    )
    return [Signature(key_id, base64.b64encode(data).decode()) for key_id, data in made]


def verify(
    data: bytes,
    payload_type: str,
    keys: Mapping[str, PublicKey],
    *,
    threshold: int = 1,
    revoked: Collection[str] = (),
    both: bool = False,
    where: str = "",
) -> VerifiedPayload:
    """Check an envelope against the keys that may sign it.

    Every signature whose key is known must verify; at least `threshold` of them are needed.

    Args:
        data: the envelope.
        payload_type: the only one that is accepted.
        keys: the keys that may sign, by key id.
        threshold: how many of them must have.
        revoked: ids of keys that count no more; they only make the refusal say so.
        both: count a key only together with its companion.
        where: for the refusal.

    Raises:
        IdentityError: ST-IDEN-004 malformed or another payload type, ST-IDEN-002 a signature does
            not verify, ST-IDEN-024 a companion's is missing, ST-IDEN-015 too few without a revoked
            key, ST-IDEN-003 no signature is by a known key, ST-IDEN-009 below threshold.
    """
    envelope = _parse(data, payload_type, where)
    payload = _unbase64(envelope.payload, where)
    message = pae(payload_type, payload)
    known = {**keys, **{k.companion.key_id: k.companion for k in keys.values() if k.companion}}
    verified: set[str] = set()
    for signature in envelope.signatures:
        key = known.get(signature.keyid)
        if key is not None:
            try:
                key.verify(_unbase64(signature.sig, where), message)
            except IdentityError as error:
                raise IdentityError(error.code, error.what, where, error.fix) from error
            verified.add(signature.keyid)
    signed = verified & keys.keys()
    paired = {i for i in signed if (c := keys[i].companion) is not None and c.key_id in verified}
    good = paired if both else signed
    if both and len(good) < threshold <= len(signed):
        raise IdentityError(
            "ST-IDEN-024",
            f"key {min(signed - paired)[:16]} has signed, and its ML-DSA companion has not",
            where,
        )
    if len(good) < threshold:
        _refuse_revoked(envelope, revoked, where)
    if not good:
        raise IdentityError(
            "ST-IDEN-003",
            f"signed by {', '.join(s.keyid[:16] for s in envelope.signatures) or 'nobody'},"
            f" not by any of the {len(keys)} trusted keys",
            where,
        )
    if len(good) < threshold:
        raise IdentityError(
            "ST-IDEN-009", f"{len(good)} valid signatures, {threshold} needed", where
        )
    return VerifiedPayload(payload, payload_type, frozenset(good), frozenset(paired))


def add_signatures(data: bytes, payload_type: str, keys: Sequence[Signer]) -> bytes:
    """Sign an envelope's payload with more keys; a key that has signed it signs it anew.

    Only what was looked at should be given to this: the signatures that are there are not checked.

    Raises:
        IdentityError: ST-IDEN-004 malformed, or another payload type.
        UsageError: ST-USAG-001 for a keyless signer.
    """
    envelope = _parse(data, payload_type, "")
    message = pae(payload_type, _unbase64(envelope.payload, ""))
    signed = {signature.keyid: signature for signature in envelope.signatures}
    for key in keys:
        if isinstance(key, EnvelopeSigner):
            raise UsageError(
                "ST-USAG-001",
                "a keyless signature stands alone in its bundle",
                fix="add the signature of a key",
            )
        signed |= {one.keyid: one for one in _signatures(key, message)}
    return canonical.encode(msgspec.structs.replace(envelope, signatures=list(signed.values())))


def _refuse_revoked(envelope: Envelope, revoked: Collection[str], where: str) -> None:
    found = [s.keyid for s in envelope.signatures if s.keyid in revoked]
    if found:
        raise IdentityError(
            "ST-IDEN-015", f"signed by key {found[0][:16]}, which was revoked", where
        )


def _parse(data: bytes, payload_type: str, where: str) -> Envelope:
    try:
        envelope = canonical.decode(
            data, Envelope, limit=ENVELOPE_LIMIT, where=where, canonical=True
        )
    except UsageError as error:
        raise IdentityError("ST-IDEN-004", f"not a DSSE envelope: {error.what}", where) from error
    if envelope.payloadType != payload_type:
        raise IdentityError(
            "ST-IDEN-004",
            f"payload type {envelope.payloadType!r}, expected {payload_type!r}",
            where,
        )
    if not 1 <= len(envelope.signatures) <= MAX_SIGNATURES:
        raise IdentityError("ST-IDEN-004", f"{len(envelope.signatures)} signatures", where)
    if len({s.keyid for s in envelope.signatures}) != len(envelope.signatures):
        raise IdentityError("ST-IDEN-004", "two signatures by one key", where)
    return envelope


def _unbase64(text: str, where: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise IdentityError("ST-IDEN-004", f"bad base64: {error}", where) from error
    if base64.b64encode(data).decode() != text:
        raise IdentityError("ST-IDEN-004", "base64 that is not in canonical form", where)
    return data
