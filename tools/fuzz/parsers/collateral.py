# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The parsers of what NVIDIA and an operator sign: RIMs, OCSP, CRLs, the cache's index."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import ocsp

from securetrain.attest.session.cache import (
    INDEX_NAME,
    INDEX_TYPE,
    CollateralCache,
    Entry,
    Index,
    Item,
    build_cache,
)
from securetrain.core import canonical
from securetrain.evidence.collateral import CollateralKind
from securetrain.evidence.gpu.crl import verify_crl
from securetrain.evidence.gpu.ocsp import verify_response
from securetrain.evidence.gpu.rim import parse_rim
from securetrain.evidence.gpu.signer import verify_chain
from securetrain.evidence.gpu.xmldsig import canonical as canonical_xml
from securetrain.evidence.gpu.xmldsig import parse as parse_xml
from securetrain.identity import dsse
from securetrain.identity.keys import PrivateKey
from tests.evidence.gpu.authority import NOW, OCSP_SIGNING, issue, make_authority
from tests.evidence.gpu.rimforge import manifest, sign
from tests.evidence.gpu.test_crl import make as make_crl
from tests.evidence.gpu.test_crl import revoke
from tools.fuzz.engine import Parser

_AUTHORITY: Final = make_authority()
_SIGNER: Final = _AUTHORITY.signer.certificate
_ISSUER: Final = _AUTHORITY.issuer.certificate
_KEY: Final = PrivateKey.generate()
_DAY: Final = timedelta(days=1)
_PRODUCED: Final = datetime.now(UTC).replace(microsecond=0)
"""The library that makes responses says that they were produced now."""


def collateral(folder: Path) -> list[Parser]:
    """All of them.

    Args:
        folder: a directory for the cache.
    """
    home = folder / "cache"
    item = Item(kind=CollateralKind.RIM, id="x", data=b"data", fetched=NOW)
    build_cache(home, [item], _KEY, NOW, NOW + _DAY)
    index = (home / INDEX_NAME).read_bytes()

    def open_index(data: bytes) -> object:
        (home / INDEX_NAME).write_bytes(data)
        return CollateralCache.open(home, {_KEY.key_id: _KEY.public}, NOW)

    return [
        Parser("rim", lambda: [sign(manifest(), _AUTHORITY)], _read_rim, share=0.5),
        # Signed around the mutation, so that it reaches the content.
        Parser("rim-content", lambda: [manifest().encode()], _sign_and_read, share=0.1),
        Parser("rim-signer", lambda: [_AUTHORITY.signer.der], _read_chain, share=0.3),
        Parser("ocsp-response", _responses, _read_response, share=0.5),
        Parser("crl", _lists, lambda data: verify_crl(data, _SIGNER, _ISSUER, now=NOW), share=0.5),
        Parser("collateral-index", lambda: [index], open_index, share=0.3),
        Parser(
            "collateral-index-document",
            _indexes,
            lambda data: open_index(dsse.sign(data, INDEX_TYPE, [_KEY])),
            share=0.3,
        ),
    ]


def _read_rim(data: bytes) -> object:
    return parse_rim(data, roots=_AUTHORITY.roots, now=NOW)


def _sign_and_read(data: bytes) -> object:
    text = canonical_xml(parse_xml(data, "manifest")).decode()
    return _read_rim(sign(text, _AUTHORITY))


def _read_chain(data: bytes) -> object:
    chain = [data, *(holder.der for holder in _AUTHORITY.chain[1:])]
    return verify_chain(chain, _AUTHORITY.roots, "RIM")


def _responses() -> list[bytes]:
    responder = issue(
        "Responder",
        _AUTHORITY.issuer,
        ca=False,
        extra=(OCSP_SIGNING,),
        not_before=_PRODUCED - _DAY,
        not_after=_PRODUCED + _DAY,
    )
    return [
        ocsp.OCSPResponseBuilder()
        .add_response(
            _SIGNER,
            _ISSUER,
            hashes.SHA384(),
            ocsp.OCSPCertStatus.GOOD,
            _PRODUCED,
            _PRODUCED + _DAY,
            None,
            None,
        )
        .responder_id(named, responder.certificate)
        .certificates([responder.certificate])
        .sign(responder.key, hashes.SHA384())
        .public_bytes(Encoding.DER)
        for named in ocsp.OCSPResponderEncoding
    ]


def _read_response(data: bytes) -> object:
    return verify_response(data, _SIGNER, _ISSUER, now=datetime.now(UTC))


def _lists() -> list[bytes]:
    by = _AUTHORITY.issuer
    return [make_crl(by=by), make_crl(revoke(_AUTHORITY.signer), by=by)]


def _indexes() -> list[bytes]:
    entry = Entry(kind=CollateralKind.OCSP, id="x", sha256="ab" * 32, size=4, fetched=NOW)
    last = Index(version=3, created=NOW, expires=NOW + _DAY, entries=(entry,))
    return [canonical.encode(last)]
