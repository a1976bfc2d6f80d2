# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Confidential VMs of Google Cloud: the CPU's report and the virtual TPM, bound to each other.

In such a VM the guest asks the CPU for its report itself. Its virtual TPM is the host's; Google
certifies the TPM's attestation key, and the certificate says which instance it is of. So there are
two chains to one exchange::

    CPU maker -> report -> REPORT_DATA = binding and attestation key
    Google    -> certificate of the attestation key -> quote with the binding

Rules:

1. the attestation key counts by a certificate that leads to a pinned root of Google's, is for
   signing, and names an instance (extension 1.3.6.1.4.1.11129.2.1.21);
2. the report carries the exchange's binding *and* the SHA-256 of that key: the guest that asked for
   it meant this TPM, and no other;
3. the TPM's firmware log, which PCR 0 has signed, says what kind of confidential VM the host has
   started (event ``GCE NonHostInfo``), and it is the kind of the report. So the TPM of a plain VM
   cannot be lent to a confidential one;
4. the report's measurement is endorsed by Google (`google_endorsement`). An accepted guest of
   elsewhere is none, and the other way round;
5. the instance is of an accepted project and zone, of production, and the one that is enrolled for
   the node, unless the reference accepts every instance;
6. what the VM booted is measured by a TPM that its host runs: of SEV-SNP, that is Google's word
   alone. TDX measures it too (`tdx_boot`), and both must hold.

Two guests whose administrators help each other, each of the right kind, can still divide the work:
whoever is root in a VM asks for any report. What tells them apart is rule 5.

Sources: google/go-tpm-tools, server/verify.go (instance information), client/handles.go (NV
indices), server/policy_constants.go (GCE NonHostInfo); RFC 5280.
"""

import hashlib
import hmac
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final

import msgspec
from cryptography import x509
from cryptography.hazmat import asn1
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from msgspec import Meta

from securetrain.core.errors import AttestationError
from securetrain.evidence.recent import Recent
from securetrain.evidence.tee.google_certificates import (
    check_signer,
    find_path,
    load,
    pinned,
    validity_of,
)
from securetrain.evidence.tee.google_endorsement import (
    ENDORSEMENT_LIMIT,
    Endorsement,
    Launch,
    endorsed,
    open_endorsement,
)
from securetrain.evidence.tpm import eventlog
from securetrain.evidence.tpm.constants import Algorithm, Attributes, Curve, Hash
from securetrain.evidence.tpm.eventlog import EventType
from securetrain.evidence.tpm.structures import (
    RSA_BITS,
    EccKey,
    PublicArea,
    RsaKey,
    Scheme,
)
from securetrain.identity import path_search, paths

BAD_KEY: Final = "ST-ATTS-444"
WRONG_INSTANCE: Final = "ST-ATTS-445"
WRONG_KIND: Final = "ST-ATTS-446"
INSTANCE_INFO: Final = x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.1.21")
MAX_CHAIN: Final = 8
_INFO_LIMIT: Final = 1024
_MAX_ID: Final = (1 << 64) - 1
_TEXT: Final = re.compile(r"[!-~]{1,128}")
_MAX_KEYS: Final = 1 << 12
_TECHNOLOGIES: Final = {"tdx": 3, "sev-snp": 4}
_TECHNOLOGY: Final = b"GCE NonHostInfo\0"
_TECHNOLOGY_SIZE: Final = 32
_AK_ATTRIBUTES: Final = Attributes.RESTRICTED | Attributes.SIGN
_VERSION_TAG: Final = b"\xa0"
_PRODUCTION_TAG: Final = b"\xa1"

Pem = Annotated[str, Meta(max_length=256 << 10)]
Name = Annotated[str, Meta(pattern=r"\A[!-~]{1,128}\Z")]
Count = Annotated[int, Meta(ge=1, le=1 << 16)]
Svn = Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]


class GoogleReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Reference values of Google's confidential VMs. Empty accepts none.

    Beside these, `snp` and `tdx` judge the report, all but its measurement.
    """

    roots: Annotated[tuple[Pem, ...], Meta(max_length=16)] = ()
    """Google's CAs of virtual TPMs' attestation keys (`EK/AK CA Root`)."""
    intermediates: Annotated[tuple[Pem, ...], Meta(max_length=64)] = ()
    """CAs between these and the keys: VMs do not send them. Not trusted by themselves."""
    endorsement_roots: Annotated[tuple[Pem, ...], Meta(max_length=16)] = ()
    """Google's CAs of launch endorsements (`GCE-cc-tcb-root`)."""
    endorsements: Annotated[
        tuple[Annotated[bytes, Meta(max_length=ENDORSEMENT_LIMIT)], ...], Meta(max_length=256)
    ] = ()
    """Launch endorsements, as Google publishes them."""
    projects: Annotated[tuple[Name, ...], Meta(max_length=1024)] = ()
    """Ids of projects whose instances are accepted."""
    zones: Annotated[tuple[Name, ...], Meta(max_length=1024)] = ()
    """Zones of accepted instances; empty leaves the zone open."""
    vcpus: Annotated[tuple[Count, ...], Meta(max_length=256)] = ()
    """Accepted numbers of virtual CPUs (SEV-SNP); empty accepts all that are endorsed."""
    memory_gib: Annotated[tuple[Count, ...], Meta(max_length=256)] = ()
    """Accepted sizes of memory, in GiB (TDX); empty accepts all that are endorsed."""
    min_snp_svn: Svn = 0
    """Smallest security version of the firmware on SEV-SNP."""
    min_tdx_svn: Svn = 0
    """The same on TDX."""
    min_security_version: Svn = 0
    """Smallest security version of the instance, in its key's certificate."""
    allow_test: bool = False
    """Accept instances that are none of production: Google can look into those."""
    any_vm: bool = False
    """Accept instances that are not enrolled for their node, where instances come and go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """An instance of Compute Engine, as a key's certificate names it."""

    zone: str
    project: str
    project_number: int
    vm: str
    """Its id, decimal."""
    name: str
    security_version: int
    production: bool

    @property
    def identity(self) -> str:
        """The VM, as leases and revocations name it."""
        return f"vm:{self.vm}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedKey:
    """An attestation key that Google has certified."""

    ak: PublicArea
    digest: bytes
    """SHA-256 of its SubjectPublicKeyInfo: what the CPU's report names."""
    instance: Instance


@asn1.sequence
class _InstanceInfo:
    zone: str
    project_number: int
    project: str
    id: int
    name: str
    properties: Annotated[list[asn1.TLV] | None, asn1.Explicit(0)]


class GoogleAppraiser:
    """Reads what is pinned once, for as long as one edition of the reference values stands."""

    def __init__(self, reference: GoogleReference) -> None:
        """Read certificates and endorsements.

        Args:
            reference: what is accepted.

        Raises:
            AttestationError: ST-ATTS-009.
        """
        self.reference = reference
        self._roots = pinned(reference.roots, "roots")
        self._between = pinned(reference.intermediates, "intermediates")
        try:
            self._endorsements = open_endorsements(reference)
        except AttestationError as error:
            raise AttestationError("ST-ATTS-009", error.what, error.where) from error
        self._keys: Recent[bytes, tuple[CertifiedKey, path_search.Validity]] = Recent(_MAX_KEYS)

    def key(self, certificate: bytes, chain: Sequence[bytes], now: datetime) -> CertifiedKey:
        """Rule 1.

        Args:
            certificate: of the attestation key, DER.
            chain: certificates above it that the node sent, DER.
            now: the time of the check.

        Raises:
            AttestationError: ST-ATTS-444.
        """
        digests = (hashlib.sha256(one).digest() for one in (certificate, *chain))
        kept = b"".join(digests)
        known = self._keys.get(kept)
        if known is not None and known[1].covers(now):
            return known[0]
        where = "google.ak_certificate"
        leaf = load(certificate, BAD_KEY, where)
        read = check_signer(leaf, BAD_KEY, where)
        if len(chain) > MAX_CHAIN:
            raise AttestationError(BAD_KEY, f"{len(chain)} certificates above it", where)
        sent = [load(one, BAD_KEY, f"google.ak_chain[{n}]") for n, one in enumerate(chain)]
        path = find_path(leaf, [*self._between, *sent], self._roots, now, code=BAD_KEY, where=where)
        validity = validity_of(path, BAD_KEY, where)
        found = CertifiedKey(
            ak=_public_area(read), digest=key_digest(read), instance=_instance(read)
        )
        self._keys.put(kept, (found, validity))
        return found

    def endorsed(self, kind: str, measurement: str, now: datetime) -> tuple[Endorsement, Launch]:
        """Rule 4.

        Raises:
            AttestationError: ST-ATTS-443.
        """
        reference = self.reference
        snp = kind == "sev-snp"
        return endorsed(
            self._endorsements,
            kind,
            measurement,
            now,
            counts=reference.vcpus if snp else reference.memory_gib,
            min_svn=reference.min_snp_svn if snp else reference.min_tdx_svn,
        )

    def judge(self, instance: Instance, enrolled: Collection[str], node: str) -> None:
        """Rule 5.

        Args:
            instance: as its certificate names it.
            enrolled: ids of VMs that are enrolled for the node.
            node: the node's name.

        Raises:
            AttestationError: ST-ATTS-012 for another VM, ST-ATTS-445 for what it is.
        """
        reference = self.reference
        if instance.vm not in enrolled and (enrolled or not reference.any_vm):
            others = ", ".join(enrolled) or "none that is enrolled"
            raise AttestationError(
                "ST-ATTS-012",
                f"the VM is {instance.vm}, the node has {others}",
                f"node {node}: vms",
                "enroll the VM for this node, or accept every VM (google.any_vm)",
            )
        if instance.project not in reference.projects:
            raise _wrong("project", f"{instance.project!r} is none of {list(reference.projects)}")
        if reference.zones and instance.zone not in reference.zones:
            raise _wrong("zone", f"{instance.zone!r} is none of {list(reference.zones)}")
        if not instance.production and not reference.allow_test:
            raise _wrong("is_production", "it is an instance for tests, which Google can look into")
        if instance.security_version < reference.min_security_version:
            least = reference.min_security_version
            raise _wrong("security_version", f"{instance.security_version}, at least {least}")


def certified_key(certificate: bytes) -> tuple[PublicArea, bytes]:
    """The key that a certificate is for, and its digest; nobody has verified the certificate.

    Raises:
        AttestationError: ST-ATTS-444.
    """
    read = check_signer(load(certificate, BAD_KEY, "google.ak_certificate"), BAD_KEY, "certificate")
    return _public_area(read), key_digest(read)


def open_endorsements(reference: GoogleReference) -> tuple[Endorsement, ...]:
    """The launch endorsements of reference values.

    Raises:
        AttestationError: ST-ATTS-009 for a root, ST-ATTS-442 for an endorsement.
    """
    roots = pinned(reference.endorsement_roots, "endorsement_roots")
    return tuple(
        open_endorsement(one, roots, f"google.endorsements[{number}]")
        for number, one in enumerate(reference.endorsements)
    )


def key_digest(certificate: x509.Certificate) -> bytes:
    """SHA-256 of the SubjectPublicKeyInfo of a certificate's key."""
    spki = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(spki).digest()


def check_technology(log: bytes, pcr0: bytes, kind: str) -> None:
    """Compare the kind of VM that the TPM's host has started with the kind of the report.

    Args:
        log: the firmware's event log.
        pcr0: the quoted PCR 0.
        kind: ``sev-snp`` or ``tdx``.

    Raises:
        AttestationError: ST-ATTS-201 and 202 for the log, ST-ATTS-204 when PCR 0 does not explain
            it, ST-ATTS-446 for another kind.
    """
    parsed = eventlog.parse(log)
    replayed = eventlog.replay(parsed).get(0, b"")
    if not hmac.compare_digest(replayed, pcr0):
        raise AttestationError("ST-ATTS-204", "the log does not replay to PCR 0", "google.vtpm")
    told = [
        event.data
        for event in parsed.of(0)
        if event.type == EventType.NONHOST_INFO
        # The type is the log's own word, and so are the data until their digest was measured.
        and hmac.compare_digest(parsed.bank.digest(event.data), event.digest)
        and event.data.startswith(_TECHNOLOGY)
        and len(event.data) == _TECHNOLOGY_SIZE
    ]
    if len(told) != 1:
        raise _other_kind(f"the log says {len(told)} times what kind of VM it is")
    found = told[0][len(_TECHNOLOGY)]
    if found != _TECHNOLOGIES[kind]:
        raise _other_kind(f"the VM is of kind {found}, {kind} is {_TECHNOLOGIES[kind]}")


def _instance(certificate: x509.Certificate) -> Instance:
    where = "google.ak_certificate, instance information"
    found = [e for e in certificate.extensions if e.oid == INSTANCE_INFO]
    value = found[0].value if found else None
    if not isinstance(value, x509.UnrecognizedExtension):
        raise AttestationError(BAD_KEY, "it names no instance of Compute Engine", where)
    if len(value.value) > _INFO_LIMIT:
        raise AttestationError(BAD_KEY, f"{len(value.value)} bytes, limit {_INFO_LIMIT}", where)
    try:
        info = asn1.decode_der(_InstanceInfo, value.value)
        version, production = _properties(info.properties or [])
    except (ValueError, TypeError, OverflowError) as error:
        raise AttestationError(BAD_KEY, f"malformed: {error}", where) from error
    numbers = (info.project_number, info.id, version)
    if not all(0 <= one <= _MAX_ID for one in numbers) or not info.id:
        raise AttestationError(BAD_KEY, f"numbers {numbers}", where)
    if not all(_TEXT.fullmatch(text) for text in (info.zone, info.project, info.name)):
        raise AttestationError(BAD_KEY, "a name that is empty, long or not printable", where)
    return Instance(
        zone=info.zone,
        project=info.project,
        project_number=info.project_number,
        vm=str(info.id),
        name=info.name,
        security_version=version,
        production=production,
    )


def _properties(found: Sequence[asn1.TLV]) -> tuple[int, bool]:
    """Security version and whether it is of production; what Google adds behind is left alone.

    Raises:
        ValueError: one of them is malformed, or stands twice.
    """
    tags = [bytes(one.tag_bytes) for one in found]
    if tags != sorted(set(tags)):
        raise ValueError("properties out of order")
    values = {bytes(one.tag_bytes): bytes(one.data) for one in found}
    version, production = values.get(_VERSION_TAG), values.get(_PRODUCTION_TAG)
    return (
        0 if version is None else asn1.decode_der(int, version),
        False if production is None else asn1.decode_der(bool, production),
    )


def _public_area(certificate: x509.Certificate) -> PublicArea:
    """The key as a TPM has it; that it is restricted is what Google's certificate stands for."""
    try:
        with paths.no_warnings():
            key = certificate.public_key()
    except paths.UNREADABLE as error:
        raise AttestationError(BAD_KEY, f"its key: {error}", "google.ak_certificate") from error
    algorithm, unique = _unique(key)
    area = PublicArea(
        name_alg=Hash.SHA256,
        attributes=_AK_ATTRIBUTES,
        scheme=Scheme(algorithm, Hash.SHA256),
        unique=unique,
    )
    area.key()
    return area


def _unique(key: object) -> tuple[Algorithm, RsaKey | EccKey]:
    if isinstance(key, rsa.RSAPublicKey) and key.key_size in RSA_BITS:
        numbers = key.public_numbers()
        if numbers.e == 65537:
            modulus = numbers.n.to_bytes(key.key_size // 8, "big")
            return Algorithm.RSASSA, RsaKey(bits=key.key_size, modulus=modulus)
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        point = key.public_numbers()
        x, y = point.x.to_bytes(32, "big"), point.y.to_bytes(32, "big")
        return Algorithm.ECDSA, EccKey(curve=Curve.P256, x=x, y=y)
    raise AttestationError(
        BAD_KEY,
        "its key is neither RSA (2048 bits or more, 65537) nor P-256",
        "google.ak_certificate",
    )


def _wrong(field: str, what: str) -> AttestationError:
    return AttestationError(WRONG_INSTANCE, what, f"google instance, {field}")


def _other_kind(what: str) -> AttestationError:
    return AttestationError(WRONG_KIND, what, "google.vtpm, GCE NonHostInfo")
