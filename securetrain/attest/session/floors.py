# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Signed documents that do not go back: reference values, and the index of a cache.

Rules:

1. an edition that is older than one that was accepted before is refused, and so is another one of
   the same version: two people enrolled into one edition, or one of the two is somebody's copy;
2. what was accepted is remembered for each key that may have signed it, so that a second key in the
   policy opens no way back. One operator's key therefore signs one fleet's values and one cache.
"""

import hashlib
from collections.abc import Iterable

from securetrain.attest.session.cache import Index
from securetrain.attest.session.state import Seen, StateStore
from securetrain.core import canonical
from securetrain.core.errors import AttestationError
from securetrain.evidence import SignedReferenceValues, unusable


def require_newest_values(state: StateStore, values: SignedReferenceValues) -> None:
    """Refuse reference values that went back, and remember these.

    Raises:
        AttestationError: ST-ATTS-009; ST-ATTS-015 or 017 when it cannot be known.
    """
    version = values.values.version
    if what := _went_back(state, "reference-values", values.signed_by, version, values.digest):
        raise unusable(
            what,
            values.where,
            "put the newest edition back: an old one may know machines that were thrown out; a"
            " second fleet needs a key of its own",
        )


def require_newest_cache(state: StateStore, index: Index, keys: Iterable[str], where: str) -> None:
    """Refuse a cache that went back, and remember this one.

    Raises:
        AttestationError: ST-ATTS-734; ST-ATTS-015 or 017 when it cannot be known.
    """
    digest = hashlib.sha256(canonical.encode(index)).hexdigest()
    if what := _went_back(state, "collateral", keys, index.version, digest):
        raise AttestationError(
            "ST-ATTS-734",
            what,
            where,
            "put the newest cache back; a second cache needs a key of its own",
        )


def _went_back(state: StateStore, kind: str, keys: Iterable[str], version: int, digest: str) -> str:
    """The objection to an edition; empty when there is none."""
    for key in sorted(keys):
        given = Seen(document=f"{kind}:{key}", version=version, digest=digest)
        stands = state.accept(given)
        if stands.version > version:
            return f"version {version}, version {stands.version} was accepted before"
        if stands != given:
            return f"another edition of version {version} was accepted before"
    return ""
