# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Finds a TPM's endorsement key and its certificates, and uses the key.

Sources: TCG EK Credential Profile for TPM Family 2.0, version 2.6 (2.2.1.4 and 2.2.1.5: NV indices
of certificates and chains; annex B: templates, policies); TCG Registry of Reserved TPM 2.0 Handles
and Localities.

Rules:

1. the key is one that has a certificate in the TPM: the first of `_PREFERENCE`. Without any
   certificate it is a persistent key that is of a template, or else the one of template L-1;
2. a persistent key is used when its public area is the template's; otherwise the key is made again,
   which gives the same key for the same seed;
3. certificates are passed on as they are: judging them is the verifier's.

Not supported: keys made from a template or nonce that the maker stored in NV (0x1C00003, 0x1C00004,
0x1C0000B, 0x1C0000C), unless they are persistent and of a standard template all the same.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from securetrain.attest.node.tpm.client import Range, Tpm
from securetrain.core.errors import AttestationError
from securetrain.evidence.tpm import (
    EK_TEMPLATES,
    POLICY_C,
    Handle,
    PublicArea,
    check_endorsement_key,
    parse_public,
    policy_a,
    policy_b,
)

MAX_CHAIN: Final = 8
CERTIFICATE_INDICES: Final[Mapping[str, int]] = MappingProxyType(
    {
        "H-3": 0x1C00016,
        "L-1": 0x1C00002,
        "L-2": 0x1C0000A,
        "H-1": 0x1C00012,
        "H-2": 0x1C00014,
        "H-6": 0x1C0001C,
        "H-7": 0x1C0001E,
        "H-4": 0x1C00018,
    }
)
"""NV index of the certificate of each template's key, the preferred one first: P-384, then RSA-2048
and P-256, which every TPM has, then the rest."""
DEFAULT_TEMPLATE: Final = "L-1"
_CHAIN: Final = range(0x1C00100, 0x1C00200)
_PERSISTENT: Final = range(0x81010000, 0x81020000)
_DER_HEAD: Final = 4
"""A SEQUENCE of 256 to 65535 bytes: 30 82 and its length in two bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndorsementKey:
    """An endorsement key, and what vouches for it."""

    template: str
    """``L-1`` to ``H-7``."""
    public: PublicArea
    handle: int | None
    """Where it is persistent; None when it is made again for each use."""
    certificate: bytes
    """DER; empty when the TPM has none."""
    chain: tuple[bytes, ...]
    """Intermediate certificates that the TPM holds, DER."""


def find(tpm: Tpm) -> EndorsementKey:
    """The endorsement key of a TPM.

    Raises:
        AttestationError: ST-ATTS-151 to ST-ATTS-155 when the TPM does not do what is needed.
    """
    indices = frozenset(tpm.handles(Range.NV))
    persistent = _persistent(tpm)
    certified = [name for name, index in CERTIFICATE_INDICES.items() if index in indices]
    template = next(iter([*certified, *persistent]), DEFAULT_TEMPLATE)
    if template in persistent:
        handle, public = persistent[template]
        return _described(tpm, indices, template, public, handle)
    with tpm.create_primary(EK_TEMPLATES[template]) as made:
        public = tpm.read_public(made)
    return _described(tpm, indices, template, public, None)


@contextmanager
def session(tpm: Tpm, key: EndorsementKey) -> Iterator[int]:
    """A policy session that may use the endorsement key once."""
    algorithm = key.public.name_alg
    with tpm.policy_session(algorithm) as handle:
        tpm.policy_secret(handle, Handle.ENDORSEMENT)
        if key.public.auth_policy == policy_b(algorithm):
            tpm.policy_or(handle, (policy_a(algorithm), POLICY_C[algorithm]))
        yield handle


def split_certificates(data: bytes) -> list[bytes]:
    """Certificates that are stored one behind another, without the padding that may follow."""
    found = []
    while data[:2] == b"\x30\x82":
        size = _DER_HEAD + int.from_bytes(data[2:_DER_HEAD], "big")
        if size > len(data):
            break
        found.append(data[:size])
        data = data[size:]
    return found


def _described(
    tpm: Tpm, indices: frozenset[int], template: str, public: PublicArea, handle: int | None
) -> EndorsementKey:
    index = CERTIFICATE_INDICES[template]
    leaf = split_certificates(tpm.nv_read(index)) if index in indices else []
    # The profile lets one certificate run over from an index into the next.
    chain = b"".join(tpm.nv_read(index) for index in _CHAIN if index in indices)
    return EndorsementKey(
        template=template,
        public=public,
        handle=handle,
        certificate=leaf[0] if leaf else b"",
        chain=tuple(split_certificates(chain)[:MAX_CHAIN]),
    )


def _persistent(tpm: Tpm) -> dict[str, tuple[int, PublicArea]]:
    """Persistent endorsement keys, by template."""
    found: dict[str, tuple[int, PublicArea]] = {}
    for handle in tpm.handles(Range.PERSISTENT):
        if handle not in _PERSISTENT:
            continue
        area = tpm.read_public_area(handle)
        try:
            public = parse_public(area)
            template = check_endorsement_key(public)
        except AttestationError:
            continue  # another key than an endorsement key
        found.setdefault(template, (handle, public))
    return found
