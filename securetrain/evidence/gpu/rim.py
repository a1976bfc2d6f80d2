# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's Reference Integrity Manifests (RIMs): what the firmware of a GPU or switch must measure.

A RIM is a SWID tag (ISO/IEC 19770-2) in the shape of the TCG Reference Integrity Manifest
Information Model 1.01, signed as `xmldsig` says. There is one for every driver, one for every VBIOS
of a GPU and one for every BIOS of a switch. Rules, in order:

1. the document is signed XML of the one accepted form, its content what was signed;
2. its certificates are one chain, leaf first, to a root whose SubjectPublicKeyInfo is pinned; every
   key is on P-384 and every signature ECDSA with SHA-384; the leaf is no CA and may sign;
3. the signature verifies under the leaf's key;
4. the content has exactly the elements and attributes of NVIDIA's RIMs: a base RIM of manufacturer
   5703 (NVIDIA's IANA private enterprise number), with one measurement for an index, each with its
   number of SHA-384 alternatives and at least one of them active;
5. every certificate is valid now. "Expired" is told apart from everything else: most RIMs for
   hardware in the field are signed by certificates that ended years before the hardware does. It
   is accepted only when the policy says so (``node.gpu.allow_expired_rims``);
6. where a status lookup is given, none of them is revoked, on hold or unknown.

Which RIM belongs to which device is for `firmware`.
"""

import hashlib
import re
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from threading import Lock
from types import MappingProxyType
from typing import Final

from cryptography import x509

from securetrain.core.errors import AttestationError
from securetrain.evidence.gpu import signer, xmldsig
from securetrain.evidence.gpu.certificates import StatusLookup
from securetrain.evidence.gpu.xmldsig import SHA384, SWID, TCG_RIM, Element, refusal

NVIDIA_RIM_ROOTS: Final = frozenset(
    {"dec1dc316477aa851eebdf51327ae9f864bc8d89254657ed1e7eb9168af1e1a3"}
)
"""SHA-256 of the SubjectPublicKeyInfo of "NVIDIA CoRIM signing Root CA" (valid 2023 to 2053), as it
is published in NVIDIA/nvtrust, guest_tools/gpu_verifiers/local_gpu_verifier/src/verifier/certs."""
NVIDIA: Final = "5703"
DIGEST_SIZE: Final = 48
MAX_INDEX: Final = 255
MAX_ALTERNATIVES: Final = 32
MAX_CACHED: Final = 256

_EXPIRED: Final = "ST-ATTS-706"
_NOT_YET: Final = "ST-ATTS-707"

FIRMWARE_VERSION: Final = re.compile(r"[0-9A-F]{2}(\.[0-9A-F]{2}){4}")
DRIVER_VERSION: Final = re.compile(r"[0-9]{3}\.[0-9]{2,3}(\.[0-9]{2})?")
_HEX_DIGEST: Final = re.compile(r"[0-9a-fA-F]{96}")
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,2}")
_NAME: Final = re.compile(r"[0-9A-Za-z_.-]{1,64}")


class RimKind(StrEnum):
    """The kind of component that a RIM speaks of."""

    DRIVER = "driver"
    VBIOS = "vbios"
    SWITCH = "switch"


@dataclass(frozen=True, slots=True)
class Golden:
    """The values that one measurement may have."""

    digests: frozenset[bytes]
    active: bool
    """Whether the measurement must be one of `digests`; else the RIM says nothing about it."""
    size: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rim:
    """A RIM whose signature and chain verified. What time changes is `check_signer`'s."""

    kind: RimKind
    tag: str
    """The SWID tag's id."""
    version: str
    """Of the driver or the firmware, in upper case."""
    manufacturer: str
    product: str
    """The chip: GH100, GB100, LS10."""
    measurements: Mapping[int, Golden]
    certificates: tuple[x509.Certificate, ...]
    """The signer's chain, root last: what has to be asked about for revocation."""
    valid_from: datetime
    valid_until: datetime
    sha256: str
    """Of the document, hex."""

    @property
    def golden(self) -> dict[int, frozenset[bytes]]:
        """Accepted digests of the active measurements, by index."""
        return {i: golden.digests for i, golden in self.measurements.items() if golden.active}

    def expired(self, now: datetime) -> bool:
        """Tell whether a certificate of its signer has ended."""
        return now > self.valid_until


class RimCache:
    """Verified RIMs by the SHA-256 of their bytes, so that a fleet's few are verified once.

    Only signatures and content are remembered, for one set of roots; validity is looked at again
    on every use. Safe for threads.
    """

    def __init__(self, roots: Collection[str] = NVIDIA_RIM_ROOTS, size: int = MAX_CACHED) -> None:
        """Start empty.

        Args:
            roots: SPKI pins (SHA-256, hex) of the roots.
            size: how many RIMs are kept; the one that was not used for longest goes first.
        """
        self._roots = frozenset(roots)
        self._size = size
        self._rims: OrderedDict[str, Rim] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._rims)

    def parse(
        self,
        data: bytes,
        *,
        now: datetime,
        allow_expired: bool = False,
        status: StatusLookup | None = None,
        where: str = "RIM",
    ) -> Rim:
        """As `parse_rim` with the roots of this cache."""
        digest = hashlib.sha256(data).hexdigest()
        with self._lock:
            rim = self._rims.get(digest)
        if rim is None:
            rim = _verified(data, self._roots, where)
        with self._lock:
            self._rims[digest] = rim
            self._rims.move_to_end(digest)
            while len(self._rims) > self._size:
                self._rims.popitem(last=False)
        check_signer(rim, now=now, allow_expired=allow_expired, status=status, where=where)
        return rim


def parse_rim(
    data: bytes,
    *,
    roots: Collection[str],
    now: datetime,
    allow_expired: bool = False,
    status: StatusLookup | None = None,
    where: str = "RIM",
) -> Rim:
    """Verify a RIM.

    Args:
        data: the document.
        roots: SPKI pins (SHA-256, hex) of the roots that may stand above its signer.
        now: the time of the check.
        allow_expired: accept a signer whose certificates have ended.
        status: tells revoked certificates; None leaves that unchecked.
        where: names the RIM in errors.

    Raises:
        AttestationError: ST-ATTS-701 malformed, 702 signed in another form, 703 content changed,
            704 bad signature, 705 no chain to a root, 706 expired, 707 not valid yet, 719 to 721
            revoked.
    """
    rim = _verified(data, roots, where)
    check_signer(rim, now=now, allow_expired=allow_expired, status=status, where=where)
    return rim


def check_signer(
    rim: Rim, *, now: datetime, allow_expired: bool, status: StatusLookup | None, where: str
) -> None:
    """Check what may change about a verified RIM: whether its signer is valid and not revoked.

    Raises:
        AttestationError: ST-ATTS-706 expired, 707 not valid yet, 719 to 721 revoked.
    """
    if now < rim.valid_from:
        what = f"its signer is valid from {rim.valid_from.isoformat()}, now {now.isoformat()}"
        raise refusal(_NOT_YET, what, where)
    if rim.expired(now) and not allow_expired:
        what = f"its signer was valid until {rim.valid_until.isoformat()}, now {now.isoformat()}"
        raise AttestationError(_EXPIRED, what, where)
    if status is not None:
        signer.check_revocation(rim.certificates, status, where)


def _verified(data: bytes, roots: Collection[str], where: str) -> Rim:
    document = xmldsig.read_document(data, where)
    document.check_content()
    chain = signer.verify_chain(document.certificates, roots, where)
    document.check_signature(chain.key)
    return _read(document, chain, hashlib.sha256(data).hexdigest())


def _read(document: xmldsig.Document, chain: signer.Chain, sha256: str) -> Rim:
    if len(document.content) != 3:
        raise document.root.bad("expected Entity, Meta, Payload and Signature")
    entity, meta, payload = document.content
    identity = document.root.expect(SWID, "SoftwareIdentity", *_unqualified(_IDENTITY))
    _expect_values(document.root, identity, _IDENTITY)
    _expect_values(entity, entity.expect(SWID, "Entity", *_unqualified(_ENTITY)), _ENTITY)
    about = meta.expect(SWID, "Meta", *_unqualified(_META), *((TCG_RIM, n) for n in _META_TCG))
    _expect_values(meta, about, {**_META, **_META_TCG})
    if not identity["name"] == about["product"] == about["PlatformModel"]:
        raise meta.bad("the tag's name, product and platform model differ")
    for element in (entity, meta):
        if element.children:
            raise element.bad("it has content")
    version = about["colloquialVersion"].upper()
    return Rim(
        kind=_kind(meta, about["edition"], version),
        tag=identity["tagId"],
        version=version,
        manufacturer=about["PlatformManufacturerId"],
        product=about["product"],
        measurements=MappingProxyType(_measurements(payload)),
        certificates=chain.certificates,
        valid_from=chain.valid_from,
        valid_until=chain.valid_until,
        sha256=sha256,
    )


# What the attributes must be; a pattern where they differ from RIM to RIM.
_IDENTITY: Final[Mapping[str, str | re.Pattern[str]]] = {
    "corpus": "false",
    "patch": "false",
    "supplemental": "false",
    "name": _NAME,
    "tagId": _HEX_DIGEST,
    "tagVersion": _NUMBER,
    "version": _NAME,
}
_ENTITY: Final[Mapping[str, str | re.Pattern[str]]] = {
    "name": "NVIDIA Corporation",
    "role": "softwareCreator tagCreator",
}
_META: Final[Mapping[str, str | re.Pattern[str]]] = {
    "PayloadType": "direct",
    "colloquialVersion": _NAME,
    "edition": _NAME,
    "product": _NAME,
    "revision": _NAME,
}
_META_TCG: Final[Mapping[str, str | re.Pattern[str]]] = {
    "BindingSpec": "RIMIM",
    "BindingSpecVersion": "1.01",
    "FirmwareManufacturer": "NVIDIA Corporation",
    "FirmwareManufacturerId": NVIDIA,
    "PlatformManufacturerId": NVIDIA,
    "PlatformManufacturerStr": "NVIDIA Corporation",
    "PlatformModel": _NAME,
}
_RESOURCE: Final[Mapping[str, str | re.Pattern[str]]] = {
    "type": "Measurement",
    "index": _NUMBER,
    "active": re.compile("True|False"),
    "alternatives": _NUMBER,
    "name": _NAME,
    "size": str(DIGEST_SIZE),
}


def _unqualified(attributes: Mapping[str, object]) -> list[tuple[str, str]]:
    return [("", name) for name in attributes]


def _expect_values(
    element: Element, found: Mapping[str, str], expected: Mapping[str, str | re.Pattern[str]]
) -> None:
    for name, rule in expected.items():
        value = found[name]
        fits = value == rule if isinstance(rule, str) else rule.fullmatch(value)
        if not fits:
            raise element.bad(f"{name} is {value[:64]!r}")


def _kind(meta: Element, edition: str, version: str) -> RimKind:
    firmware = FIRMWARE_VERSION.fullmatch(version)
    match edition:
        case "SWITCH" if firmware:
            return RimKind.SWITCH
        case "GPU" if firmware:
            return RimKind.VBIOS
        case "GPU" if DRIVER_VERSION.fullmatch(version):
            return RimKind.DRIVER
        case _:
            raise meta.bad(f"edition {edition!r} with version {version!r}")


def _measurements(payload: Element) -> dict[int, Golden]:
    payload.expect(SWID, "Payload")
    found: dict[int, Golden] = {}
    for resource in payload.elements():
        index, golden = _measurement(resource)
        if index in found:
            raise resource.bad(f"a second measurement {index}")
        found[index] = golden
    if not any(golden.active for golden in found.values()):
        raise payload.bad("no measurement is active")
    return found


def _measurement(resource: Element) -> tuple[int, Golden]:
    hashed = sorted(name for namespace, name in resource.attributes if namespace == SHA384)
    values = resource.expect(
        SWID, "Resource", *_unqualified(_RESOURCE), *((SHA384, name) for name in hashed)
    )
    _expect_values(resource, values, _RESOURCE)
    index, alternatives = int(values["index"]), int(values["alternatives"])
    if index > MAX_INDEX or not 1 <= alternatives <= MAX_ALTERNATIVES:
        raise resource.bad(f"index {index} with {alternatives} alternatives")
    if hashed != sorted(f"Hash{number}" for number in range(alternatives)):
        raise resource.bad(f"{alternatives} alternatives, but {', '.join(hashed)}")
    _expect_values(resource, values, dict.fromkeys(hashed, _HEX_DIGEST))
    if resource.children:
        raise resource.bad("it has content")
    return index, Golden(
        digests=frozenset(bytes.fromhex(values[name]) for name in hashed),
        active=values["active"] == "True",
        size=int(values["size"]),
        name=values["name"],
    )
