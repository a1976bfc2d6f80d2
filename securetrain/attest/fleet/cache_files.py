# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Documents that a person brings in files, named and dated for the signed cache.

Rules:

1. the name is one that a verifier asks for: a typing error is a document that is never found. Where
   the document says of itself what it is about, that must be the name;
2. a document has the form of its kind, and is not put in when it has ended. RIMs are verified here.
   The others' signatures need what is in the evidence or in other documents: verifiers check them
   at every use;
3. an entry may be used until the document itself ends.
"""

import hashlib
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import unquote

import msgspec
from cryptography import x509
from cryptography.x509 import ocsp
from msgspec import Meta

from securetrain.attest.fleet.fetch import is_named
from securetrain.attest.session.cache import INDEX_NAME, Index, Item, build_cache, read_index
from securetrain.attest.session.floors import require_newest_cache
from securetrain.attest.session.state import StateStore
from securetrain.core.errors import AttestationError
from securetrain.core.files import read_file
from securetrain.evidence import LIMITS, CollateralKind, trusted_keys
from securetrain.evidence.gpu import NVIDIA_RIM_ROOTS, UNREADABLE, parse_rim
from securetrain.evidence.tee import AMD, INTEL, load_certificates
from securetrain.evidence.tpm import PAYLOAD_TYPE, parse_runtime_policy
from securetrain.identity import dsse
from securetrain.identity.keys import PrivateKey, PublicKey

LIFETIME: Final = timedelta(days=30)
_PRODUCT: Final = r"(Milan|Genoa|Turin)-(VCEK|VLEK)"
_SHA256: Final = r"[0-9a-f]{64}"
NAMES: Final[Mapping[CollateralKind, str]] = {
    CollateralKind.RIM: r"NV_(GPU|SWITCH)_[0-9A-Z_.]{1,120}",
    CollateralKind.OCSP: _SHA256,
    CollateralKind.CRL: rf"{_SHA256}|amd-{_PRODUCT}|intel-(root|platform|processor)",
    CollateralKind.TCB_INFO: r"[0-9a-f]{12}",
    CollateralKind.QE_IDENTITY: r"tdx",
    CollateralKind.AMD_CHAIN: _PRODUCT,
    CollateralKind.ISSUER_CHAIN: r"tcb-info|qe-identity",
    CollateralKind.RUNTIME_POLICY: _SHA256,
}
"""What verifiers ask for (`tee.appraisal`, `gpu.firmware`, `gpu.revocation`), as patterns."""
_Time = Annotated[datetime, Meta(tz=True)]


@dataclass(frozen=True, slots=True)
class Listing:
    """The content of a cache, fresh or not."""

    index: Index
    now: datetime

    @property
    def expired(self) -> bool:
        """Tell whether the whole cache is over."""
        return self.now > self.index.expires

    def ended(self) -> tuple[str, ...]:
        """Entries that may not be used any more, as ``kind id``."""
        return tuple(
            f"{entry.kind} {entry.id}"
            for entry in self.index.entries
            if entry.expires is not None and self.now > entry.expires
        )


class _TcbInfo(msgspec.Struct, frozen=True, rename="camel"):
    fmspc: str
    next_update: _Time


class _TcbAnswer(msgspec.Struct, frozen=True, rename="camel"):
    tcb_info: _TcbInfo


class _QeIdentity(msgspec.Struct, frozen=True, rename="camel"):
    next_update: _Time


class _QeAnswer(msgspec.Struct, frozen=True, rename="camel"):
    enclave_identity: _QeIdentity


def read_item(
    kind: CollateralKind,
    name: str,
    path: Path,
    now: datetime,
    rim_roots: Collection[str] = NVIDIA_RIM_ROOTS,
) -> Item:
    """One document from a file.

    Args:
        kind: what it is.
        name: what verifiers ask for it by; empty for a runtime policy, whose name is its SHA-256.
        path: the file.
        now: the time, timezone-aware.
        rim_roots: SHA-256 of the SubjectPublicKeyInfo of the roots of RIMs.

    Raises:
        AttestationError: ST-ATTS-739 when it is no such document or has another name; 7xx for a RIM
            and 32x for a runtime policy that does not verify.
        UsageError: ST-USAG-002 when the file cannot be read.
    """
    data = read_file(path, LIMITS[kind])
    if data.startswith(b"-----BEGIN%20"):
        data = unquote(data.decode("ascii", "replace")).encode()  # a header, as it was sent
    if kind is CollateralKind.RUNTIME_POLICY:
        name = hashlib.sha256(data).hexdigest()
    if not re.fullmatch(NAMES[kind], name):
        raise _unusable(f"{name!r} is no name of a {kind}; names are {NAMES[kind]}", path)
    try:
        if kind is CollateralKind.RIM:
            ends = None
            _rim(data, name, path, now, rim_roots)
        elif kind is CollateralKind.TCB_INFO:
            ends = _tcb_info(data, name, path)
        else:
            ends = _ENDS[kind](data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, *UNREADABLE) as error:
        raise _unusable(f"not a {kind} document: {error}", path) from error
    if ends is not None and ends < now:
        raise _unusable(f"it was good until {ends.isoformat()}", path)
    return Item(kind=kind, id=name, data=data, fetched=now, expires=ends)


def add_items(
    folder: Path,
    items: Sequence[Item],
    *,
    key: PrivateKey,
    signed_by: Sequence[str],
    now: datetime,
    lifetime: timedelta = LIFETIME,
    state: StateStore,
) -> Index:
    """Put documents into a cache and sign its next version; without documents, renew it.

    Args:
        folder: the cache; made when it is not there.
        items: the documents.
        key: signs the new index.
        signed_by: keys (SPKI, base64) of which one must have signed the index that is there.
        now: the time, timezone-aware.
        lifetime: how long the index is good.
        state: knows the editions that were accepted before; remembers this one.

    Raises:
        AttestationError: ST-ATTS-009 and 731 to 739; ST-ATTS-015 or 017 about the state.
    """
    keys = trusted_keys(signed_by, "--signed-by")
    if os.path.lexists(folder / INDEX_NAME):
        _read(folder, keys, state)
    index = build_cache(folder, items, key, now, now + lifetime, keys=keys)
    require_newest_cache(state, index, (*keys, key.key_id), str(folder))
    return index


def list_cache(folder: Path, signed_by: Sequence[str], now: datetime, state: StateStore) -> Listing:
    """List the content of a cache; it may be over, and did not go back.

    Raises:
        AttestationError: ST-ATTS-009, 731, 732 and 734; ST-ATTS-015 or 017 about the state.
    """
    return Listing(_read(folder, trusted_keys(signed_by, "--signed-by"), state), now)


def _read(folder: Path, keys: Mapping[str, PublicKey], state: StateStore) -> Index:
    index = read_index(folder, keys)
    require_newest_cache(state, index, keys, str(folder))
    return index


def _rim(data: bytes, name: str, path: Path, now: datetime, roots: Collection[str]) -> None:
    rim = parse_rim(data, roots=roots, now=now, allow_expired=True, where=str(path))
    if not is_named(rim, name):
        raise _unusable(f"it is the {rim.kind} RIM {rim.version} of {rim.product}", path)


def _crl(data: bytes) -> datetime | None:
    is_pem = data.startswith(b"-----BEGIN")
    load = x509.load_pem_x509_crl if is_pem else x509.load_der_x509_crl
    return load(data).next_update_utc


def _ocsp(data: bytes) -> datetime | None:
    return ocsp.load_der_ocsp_response(data).next_update_utc


def _tcb_info(data: bytes, name: str, path: Path) -> datetime:
    info = msgspec.json.decode(data, type=_TcbAnswer).tcb_info
    if info.fmspc.lower() != name:
        raise _unusable(f"it is about FMSPC {info.fmspc}", path)
    return info.next_update


def _qe_identity(data: bytes) -> datetime:
    return msgspec.json.decode(data, type=_QeAnswer).enclave_identity.next_update


def _amd_chain(data: bytes) -> None:
    load_certificates(data, AMD, "AMD's certificates")


def _issuer_chain(data: bytes) -> None:
    load_certificates(data, INTEL, "Intel's certificates")


def _check_policy(data: bytes) -> None:
    """A policy must compile; one in an envelope is checked against its signers by the verifier."""
    try:
        envelope = msgspec.json.decode(data, type=dsse.Envelope)
    except msgspec.ValidationError:
        parse_runtime_policy(data)
        return
    if envelope.payloadType != PAYLOAD_TYPE:
        raise ValueError(f"an envelope of {envelope.payloadType}")


_ENDS: Final[Mapping[CollateralKind, Callable[[bytes], datetime | None]]] = {
    CollateralKind.OCSP: _ocsp,
    CollateralKind.CRL: _crl,
    CollateralKind.QE_IDENTITY: _qe_identity,
    CollateralKind.AMD_CHAIN: _amd_chain,
    CollateralKind.ISSUER_CHAIN: _issuer_chain,
    CollateralKind.RUNTIME_POLICY: _check_policy,
}
"""Looks at a document; until when it is good, where it says so."""


def _unusable(what: str, path: Path) -> AttestationError:
    return AttestationError("ST-ATTS-739", what, str(path))
