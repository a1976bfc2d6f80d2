# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Runtime policies made of packages and container images, and their files."""

import json
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from securetrain.attest.fleet.packages import dpkg, image, rpm
from securetrain.attest.fleet.packages.listing import FileListing, unusable
from securetrain.core import canonical
from securetrain.core.files import read_file, write_atomic
from securetrain.evidence.tpm import (
    PAYLOAD_TYPE,
    POLICY_LIMIT,
    ImaReference,
    RuntimePolicies,
    parse_runtime_policy,
)
from securetrain.identity import dsse
from securetrain.identity.keys import PrivateKey, PublicKey

PACKAGES_SUFFIX: Final = ".packages.json"
_ENVELOPE_LIMIT: Final = 2 * POLICY_LIMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class ImaSources:
    """The packages and images to list."""

    dpkg: Sequence[Path] = ()
    """Roots of systems, and ``.deb`` files."""
    rpm: Sequence[Path] = ()
    """Roots of systems, and ``.rpm`` files."""
    images: Sequence[Path] = ()
    """OCI layouts, as folder or tar, and saved images."""
    platform: str = ""
    """Of the images, where there are several."""


def list_files(sources: ImaSources) -> FileListing:
    """List the files of all sources.

    Raises:
        UsageError: ST-USAG-001, 002 or 008.
    """
    listing = FileListing()
    for path in sources.dpkg:
        (dpkg.list_installed if path.is_dir() else dpkg.list_deb)(path, listing)
    for path in sources.rpm:
        (rpm.list_installed if path.is_dir() else rpm.list_rpm)(path, listing)
    for path in sources.images:
        image.list_image(path, listing, sources.platform)
    if not listing.files:
        raise unusable("no file was found", "", "name --dpkg, --rpm or --image")
    return listing


def write_list(
    path: Path,
    listing: FileListing,
    now: datetime,
    *,
    excludes: Sequence[str] = (),
    beside: Sequence[Mapping[str, Any]] = (),
    key: PrivateKey | None = None,
) -> bytes:
    """Write a runtime policy, and beside it which packages it was made of.

    Args:
        path: the policy's file.
        listing: the files.
        now: the time, for its header.
        excludes: patterns of paths that any file may have.
        beside: policies whose digests are accepted too.
        key: signs it, in the envelope that Keylime reads; None leaves it plain.

    Returns:
        What was written.

    Raises:
        AttestationError: ST-ATTS-323 for a pattern.
        UsageError: ST-USAG-002 when it cannot be written, 008 when it is too large.
    """
    document = listing.document(now, excludes=excludes, beside=beside)
    parse_runtime_policy(document)
    data = document if key is None else dsse.sign(document, PAYLOAD_TYPE, [key])
    packages = {
        "made": now.isoformat(),
        "packages": sorted(listing.packages),
        "files": len(listing.files),
        "left_out": listing.left_out,
        "notes": listing.notes,
        "signed_by": dict(sorted(listing.signed_by.items())),
    }
    write_atomic(path.with_name(path.name + PACKAGES_SUFFIX), canonical.dumps(packages))
    write_atomic(path, data)
    return data


def read_list(path: Path, keys: Sequence[PublicKey] = ()) -> tuple[ImaReference, dict[str, Any]]:
    """Read a runtime policy, plain or in its envelope.

    Args:
        path: its file.
        keys: of which one must have signed the envelope.

    Returns:
        What reference values say of it, and the policy itself.

    Raises:
        AttestationError: ST-ATTS-320 to 324 for one in an envelope.
        UsageError: ST-USAG-002 or 008.
    """
    data = read_file(path, _ENVELOPE_LIMIT)
    document = canonical.loads(data, limit=_ENVELOPE_LIMIT, where=str(path))
    if not isinstance(document, dict):
        raise unusable("not a JSON object", str(path), "name a runtime policy")
    if "payloadType" not in document:
        return ImaReference(policy=document), document
    pems = tuple(
        key.native.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
        for key in keys
    )
    reference = ImaReference(policy=document, signed_by=pems)
    RuntimePolicies().get(reference, {})  # before a byte of what is inside is used
    try:
        inner = json.loads(b64decode(document["payload"], validate=True))
    except (ValueError, TypeError, KeyError, Base64Error, RecursionError) as error:
        raise unusable(
            f"its envelope holds no JSON: {error}", str(path), "make it again"
        ) from error
    assert isinstance(inner, dict), "it was compiled"
    return reference, inner
