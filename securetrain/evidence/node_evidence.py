# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Evidence as it travels: what the attesting environments of one node said, bound to a connection.

Rules:

1. there are two kinds, told apart by media type: what a node only says about itself
   (`selfreport`), and node evidence, in which a TPM, a TEE, GPUs or a token issuer speak too;
2. node evidence carries the self-report as its manifest. The binding covers the manifest, and the
   hardware covers the binding; the node's identity key signs the whole body;
3. a body has exactly one spelling (sorted keys, no white space, no defaults), so that duplicate
   keys and second readings do not exist;
4. every field is bounded, and the number of values before any of them is built.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Final, TypeAlias, cast

import msgspec
from msgspec import Meta

from securetrain.core.errors import AttestationError
from securetrain.evidence.binding import prefixed

NODE_TYPE: Final = "application/vnd.securetrain.node-evidence+json"
BODY_LIMIT: Final = 4 << 20
MAX_VALUES: Final = 1 << 16
"""Far above what a body can hold in its fields; tokens may hold commas of their own."""
MAX_DEVICES: Final = 32
PART_SIZE: Final = 256 << 10
"""Bytes of each part of a long measurement list but the last."""
MAX_PARTS: Final = 256
LIST_SIZE: Final = PART_SIZE * MAX_PARTS
"""Bytes of a measurement list that is sent in parts: half a million entries."""
_DIGEST: Final = 32
_KEYS: Final = tuple(map(str, range(24)))
"""Numbers of registers, as keys of an object."""
_SIGNED_LABEL: Final = b"securetrain-evidence-v1"

Structure: TypeAlias = Annotated[bytes, Meta(max_length=8 << 10)]
"""One TPM structure, certificate or key."""
Certificates: TypeAlias = Annotated[tuple[Structure, ...], Meta(max_length=8)]
"""DER, leaf first."""
Index: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 32)]


class TeeKind(StrEnum):
    """Confidential-computing environments of CPUs."""

    SEV_SNP = "sev-snp"
    TDX = "tdx"


class DeviceKind(StrEnum):
    """Devices that speak SPDM."""

    GPU = "gpu"
    SWITCH = "switch"


class _Struct(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """A part of node evidence."""


class AttestationKeys(_Struct, frozen=True, kw_only=True):
    """A node's TPM keys: sent in Hello, before the challenge that is encrypted to them."""

    ek_public: Structure
    """TPM2B_PUBLIC of the endorsement key."""
    ek_certificate: Structure = b""
    """DER; empty where the TPM has none (the verifier then needs the key's name enrolled)."""
    ek_chain: Certificates = ()
    """Intermediate certificates that the TPM or the platform holds."""
    ak_public: Structure
    """TPM2B_PUBLIC of the attestation key."""


class ImaList(_Struct, frozen=True, kw_only=True):
    """The kernel's measurement list, or what came after the part that was attested before."""

    binary: bool
    """Whether `entries` is the binary list, else the ASCII one."""
    first: Index
    """Number of entries that were left out because they were attested before."""
    entries: bytes


class ImaParts(_Struct, frozen=True, kw_only=True):
    """A binary measurement list that is too long for a body.

    It is announced here, under the node's signature; its parts follow when the verifier asks.
    """

    first: Index
    """As in `ImaList`."""
    size: Annotated[int, Meta(ge=1, le=LIST_SIZE)]
    """Bytes of all parts."""
    digests: Annotated[bytes, Meta(min_length=_DIGEST, max_length=_DIGEST * MAX_PARTS)]
    """SHA-256 of each part, one behind the other."""

    @property
    def count(self) -> int:
        """Parts that the size makes."""
        return -(-self.size // PART_SIZE)

    def digest(self, index: int) -> bytes:
        """SHA-256 of a part, counted from 0."""
        return self.digests[index * _DIGEST : (index + 1) * _DIGEST]

    def length(self, index: int) -> int:
        """Bytes of a part."""
        return min(PART_SIZE, self.size - index * PART_SIZE)

    @classmethod
    def of(cls, first: int, parts: Sequence[bytes]) -> "ImaParts":
        """The announcement of a list that was cut by `cut_list`."""
        digests = b"".join(hashlib.sha256(part).digest() for part in parts)
        return cls(first=first, size=sum(map(len, parts)), digests=digests)


def cut_list(entries: bytes) -> tuple[bytes, ...]:
    """The parts of a list, in order."""
    return tuple(entries[start : start + PART_SIZE] for start in range(0, len(entries), PART_SIZE))


class TpmEvidence(_Struct, frozen=True, kw_only=True):
    """A quote and the logs behind its registers."""

    activation: Annotated[bytes, Meta(max_length=32)] = b""
    """HMAC-SHA-256 of the binding under the secret of the challenge's credential; empty when the
    challenge had none (a renewal)."""
    quote: Structure
    """TPMS_ATTEST."""
    signature: Structure
    """TPMT_SIGNATURE."""
    pcrs: Annotated[dict[Annotated[int, Meta(ge=0, le=23)], Structure], Meta(max_length=24)]
    """Values of the SHA-256 bank, by index."""
    event_log: Annotated[bytes, Meta(max_length=1 << 20)] = b""
    """The firmware's log; empty on a renewal whose boot registers did not change."""
    ima: ImaList | None = None
    ima_parts: ImaParts | None = None
    """In place of `ima`, for a list that is too long for it."""
    userspace_log: Annotated[bytes, Meta(max_length=256 << 10)] = b""
    """What systemd extended after the firmware's log had ended (JSON text sequence)."""
    pcr_signatures: Annotated[bytes, Meta(max_length=64 << 10)] = b""
    """Signed predictions of PCR 11, as they came with the image (`tpm2-pcr-signature.json`)."""


class ParavisorEvidence(_Struct, frozen=True, kw_only=True):
    """The part of a confidential VM whose report only its paravisor can ask for (Azure)."""

    runtime_data: Structure
    """JSON: REPORT_DATA is its hash."""
    vtpm: TpmEvidence
    """By the key that the runtime data name, and for this exchange."""


class GoogleEvidence(_Struct, frozen=True, kw_only=True):
    """The part of a confidential VM of Google Cloud, whose virtual TPM its host runs."""

    ak_certificate: Structure
    """Google's certificate of the virtual TPM's attestation key, DER."""
    ak_chain: Certificates = ()
    """Certificates above it, where the VM has them."""
    vtpm: TpmEvidence
    """The quote by that key."""


class TeeEvidence(_Struct, frozen=True, kw_only=True):
    """A report or quote of the CPU's confidential-computing environment."""

    kind: TeeKind
    report: Annotated[bytes, Meta(max_length=64 << 10)]
    """SEV-SNP: the 1184 bytes of the report. TDX: the quote."""
    certificates: Certificates = ()
    """SEV-SNP: what the host's certificate table holds, VCEK or VLEK first."""
    event_log: Annotated[bytes, Meta(max_length=1 << 20)] = b""
    """TDX: the CCEL data."""
    paravisor: ParavisorEvidence | None = None
    """Set where the report is not the guest's own."""
    google: GoogleEvidence | None = None
    """Set where Google vouches for the virtual TPM, whose key the report then names."""


class DeviceEvidence(_Struct, frozen=True, kw_only=True):
    """An SPDM measurement report of one GPU or switch."""

    kind: DeviceKind
    report: Annotated[bytes, Meta(max_length=64 << 10)]
    """GET_MEASUREMENTS request and MEASUREMENTS response."""
    certificates: Certificates
    driver: Annotated[str, Meta(max_length=64)] = ""


class NodeEvidence(_Struct, frozen=True, kw_only=True):
    """Everything that speaks for one node."""

    manifest: bytes
    """The self-report: `selfreport.SoftwareEvidence` as canonical JSON."""
    tpm: TpmEvidence | None = None
    tee: TeeEvidence | None = None
    devices: Annotated[tuple[DeviceEvidence, ...], Meta(max_length=MAX_DEVICES)] = ()
    tokens: Annotated[
        tuple[Annotated[str, Meta(max_length=64 << 10)], ...], Meta(max_length=4)
    ] = ()
    """Attestation tokens of other issuers: EAT or EAR, compact JWS, or a detached bundle."""

    def encode(self) -> bytes:
        """The one spelling of this evidence."""
        plain = self
        if self.tpm is not None:
            plain = msgspec.structs.replace(plain, tpm=_written(self.tpm))
        tee = self.tee
        if tee is not None and tee.paravisor is not None:
            spoken = msgspec.structs.replace(tee.paravisor, vtpm=_written(tee.paravisor.vtpm))
            tee = msgspec.structs.replace(tee, paravisor=spoken)
        if tee is not None and tee.google is not None:
            google = msgspec.structs.replace(tee.google, vtpm=_written(tee.google.vtpm))
            tee = msgspec.structs.replace(tee, google=google)
        if tee is not self.tee:
            plain = msgspec.structs.replace(plain, tee=tee)
        return _ENCODER.encode(plain)


_ENCODER: Final = msgspec.json.Encoder(order="sorted")
_DECODER: Final = msgspec.json.Decoder(NodeEvidence, strict=True)


def _written(tpm: TpmEvidence) -> TpmEvidence:
    """Keys of JSON objects are text, in whose order they stand; registers are numbers."""
    pcrs = {_KEYS[index]: value for index, value in tpm.pcrs.items()}
    return msgspec.structs.replace(tpm, pcrs=cast("dict[int, bytes]", pcrs))


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A body of one media type, bound and signed by the node's identity key."""

    media_type: str
    body: bytes
    binding: bytes
    signature: bytes
    parts: tuple[bytes, ...] = field(default=(), repr=False, compare=False)
    """On the node: parts of the list that the body announces, for a verifier that asks."""

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the body."""
        return hashlib.sha256(self.body).digest()

    def signed_message(self) -> bytes:
        """The message that the node's identity key signs."""
        return signed_message(self.media_type, self.digest, self.binding)


def signed_message(media_type: str, digest: bytes, binding: bytes) -> bytes:
    """The message behind an evidence's signature: kind, body digest and binding, each prefixed."""
    fields = (media_type.encode(), digest, binding)
    return _SIGNED_LABEL + b"".join(map(prefixed, fields))


def parse_node(body: bytes) -> NodeEvidence:
    """Read node evidence.

    Raises:
        AttestationError: ST-ATTS-001 when it is too large, not of the schema or spelt otherwise.
    """
    if len(body) > BODY_LIMIT:
        raise _bad(f"{len(body)} bytes, the limit is {BODY_LIMIT}")
    # A list is built before its length is compared: a million texts would take 100 MiB.
    if len(body) > MAX_VALUES and body.count(b",") > MAX_VALUES:
        raise _bad(f"more than {MAX_VALUES} values")
    try:
        evidence = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _bad(str(error)) from error
    tee = evidence.tee
    if tee is not None and tee.paravisor is not None and tee.google is not None:
        raise _bad("a paravisor and Google speak for one virtual TPM")
    if evidence.encode() != body:
        raise _bad("not in its canonical form (sorted keys, no duplicates, no white space)")
    return evidence


def device_nonce(binding: bytes) -> bytes:
    """The 32-byte nonce for GPUs and switches: the binding under a label of its own."""
    return hashlib.sha256(b"securetrain-device-nonce-v1" + prefixed(binding)).digest()


def report_data(binding: bytes, key: bytes = b"") -> bytes:
    """The 64 bytes that a TEE's report carries (REPORT_DATA, REPORTDATA).

    Args:
        binding: of this exchange.
        key: SHA-256 of the virtual TPM's attestation key, where the report names it.
    """
    if key:
        label = b"securetrain-report-data-and-key-v1"
        return hashlib.sha512(label + prefixed(binding) + prefixed(key)).digest()
    return hashlib.sha512(b"securetrain-report-data-v1" + prefixed(binding)).digest()


def _bad(what: str) -> AttestationError:
    return AttestationError("ST-ATTS-001", f"not node evidence: {what}", "evidence")
