# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The SEV-SNP attestation report as the firmware writes it: 1184 little-endian bytes.

Rules:

1. the size is exact, and bytes that the ABI reserves are zero. Bits of the guest policy and of
   PLATFORM_INFO that this reader does not know are kept, for the rules to judge (`snp_rules`);
2. versions 2 to 5. CPUID fields exist from version 3 on and mitigation vectors from version 5 on;
   in older versions their bytes are reserved. AMD adds fields in reserved bytes and changes no
   others: a newer version is read as version 5, without a look at what is reserved there, and no
   reference accepts one unless it says so;
3. the reader judges form only. Nothing of a report is true before its signature was checked.

Source: AMD 56860, SEV Secure Nested Paging Firmware ABI Specification, rev. 1.58: section 7.3
(MSG_REPORT_REQ, ATTESTATION_REPORT), section 4.3 (guest policy), section 2.2 (TCB_VERSION) and
chapter 10 (ECDSA signatures).
"""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from securetrain.evidence.reader import Reader

REPORT_SIZE: Final = 0x4A0
SIGNED_SIZE: Final = 0x2A0
MALFORMED: Final = "ST-ATTS-401"
_NUMBER: Final = 72
_ECDSA_P384_SHA384: Final = 1
_KNOWN_POLICY: Final = (1 << 26) - 1
NEWEST: Final = 5
"""The newest version that this reader knows all fields of."""
_NEWEST_READ: Final = 0xFF
_RESERVED_ONE: Final = 17
_KNOWN_PLATFORM_BITS: Final = 0b1011_1111


class Product(StrEnum):
    """Processor families, by the name that AMD's key service has for them."""

    MILAN = "Milan"
    GENOA = "Genoa"
    TURIN = "Turin"


class SigningKey(IntEnum):
    """The key that the firmware signs with: of the chip, or loaded by a cloud provider."""

    VCEK = 0
    VLEK = 1


class PolicyBit(IntEnum):
    """Bits of the guest policy."""

    SMT = 16
    MIGRATE_MA = 18
    DEBUG = 19
    SINGLE_SOCKET = 20
    CXL_ALLOW = 21
    MEM_AES_256_XTS = 22
    RAPL_DIS = 23
    CIPHERTEXT_HIDING = 24
    PAGE_SWAP_DISABLE = 25


class PlatformBit(IntEnum):
    """Bits of PLATFORM_INFO that rules are made of."""

    ALIAS_CHECK_COMPLETE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The fields of a report, in its order."""

    version: int
    guest_svn: int
    policy: int
    family_id: bytes
    image_id: bytes
    vmpl: int
    current_tcb: bytes
    platform_info: int
    author_key_enabled: bool
    mask_chip_key: bool
    """The host told the firmware not to sign reports."""
    signing_key: int
    report_data: bytes
    measurement: bytes
    host_data: bytes
    id_key_digest: bytes
    author_key_digest: bytes
    report_id: bytes
    report_id_ma: bytes
    reported_tcb: bytes
    cpu: tuple[int, int, int] | None
    """Family, model and stepping; from version 3 on."""
    chip_id: bytes
    committed_tcb: bytes
    current_version: tuple[int, int, int]
    """Major, minor, build of the firmware that runs."""
    committed_version: tuple[int, int, int]
    """The oldest firmware that the platform can go back to."""
    launch_tcb: bytes
    launch_mitigations: int
    """From version 5 on; else 0."""
    current_mitigations: int
    signed: bytes
    """What the signature covers."""
    signature: tuple[int, int]

    @property
    def unknown_policy(self) -> int:
        """Bits of the guest policy that this reader does not know."""
        return self.policy & ~_KNOWN_POLICY

    @property
    def unknown_platform(self) -> int:
        """Bits of PLATFORM_INFO that this reader does not know."""
        return self.platform_info & ~_KNOWN_PLATFORM_BITS

    def has_policy(self, bit: PolicyBit) -> bool:
        """Tell whether a bit of the guest policy is set."""
        return bool(self.policy >> bit & 1)

    def has_platform(self, bit: PlatformBit) -> bool:
        """Tell whether a bit of PLATFORM_INFO is set."""
        return bool(self.platform_info >> bit & 1)


def parse_report(data: bytes) -> Report:
    """Read a report.

    Raises:
        AttestationError: ST-ATTS-401.
    """
    reader = Reader(data, MALFORMED, "SEV-SNP report", "little")
    if len(data) != REPORT_SIZE:
        raise reader.bad(f"{len(data)} bytes, a report has {REPORT_SIZE}")
    version = reader.u32()
    if not 2 <= version <= _NEWEST_READ:
        raise reader.bad(f"version {version}, this reader knows 2 to {NEWEST}")
    known = version <= NEWEST
    guest_svn = reader.u32()
    policy = _policy(reader)
    family_id, image_id = reader.take(16), reader.take(16)
    vmpl = reader.u32()
    algorithm = reader.u32()
    if algorithm != _ECDSA_P384_SHA384:
        raise reader.bad(f"signature algorithm {algorithm}, only ECDSA P-384 with SHA-384 exists")
    current_tcb = reader.take(8)
    platform_info = reader.u64()
    flags = reader.u32()
    if flags >> 5:
        raise reader.bad(f"key flags {flags:#x} have reserved bits")
    _zero(reader, 4, "the bytes after the key flags", known)
    report_data, measurement, host_data = reader.take(64), reader.take(48), reader.take(32)
    id_key_digest, author_key_digest = reader.take(48), reader.take(48)
    report_id, report_id_ma = reader.take(32), reader.take(32)
    reported_tcb = reader.take(8)
    cpu = (reader.u8(), reader.u8(), reader.u8()) if version >= 3 else None
    _zero(reader, 0x1A0 - reader.position, "the bytes before CHIP_ID", known)
    chip_id = reader.take(64)
    committed_tcb = reader.take(8)
    current, committed = _firmware(reader), _firmware(reader)
    launch_tcb = reader.take(8)
    mitigations = (reader.u64(), reader.u64()) if version >= 5 else (0, 0)
    _zero(reader, SIGNED_SIZE - reader.position, "the bytes before SIGNATURE", known)
    signature = reader.number(_NUMBER), reader.number(_NUMBER)
    _zero(reader, reader.left, "the bytes after S")
    return Report(
        version=version,
        guest_svn=guest_svn,
        policy=policy,
        family_id=family_id,
        image_id=image_id,
        vmpl=vmpl,
        current_tcb=current_tcb,
        platform_info=platform_info,
        author_key_enabled=bool(flags & 1),
        mask_chip_key=bool(flags >> 1 & 1),
        signing_key=flags >> 2,
        report_data=report_data,
        measurement=measurement,
        host_data=host_data,
        id_key_digest=id_key_digest,
        author_key_digest=author_key_digest,
        report_id=report_id,
        report_id_ma=report_id_ma,
        reported_tcb=reported_tcb,
        cpu=cpu,
        chip_id=chip_id,
        committed_tcb=committed_tcb,
        current_version=current,
        committed_version=committed,
        launch_tcb=launch_tcb,
        launch_mitigations=mitigations[0],
        current_mitigations=mitigations[1],
        signed=data[:SIGNED_SIZE],
        signature=signature,
    )


def product_of_cpu(family: int, model: int) -> Product | None:
    """The product that CPUID's family and model stand for; None for those without SEV-SNP keys."""
    match family, model >> 4:
        case 0x19, 0x0:
            return Product.MILAN
        case 0x19, 0x1 | 0xA:
            return Product.GENOA
        case 0x1A, 0x0 | 0x1:
            return Product.TURIN
        case _:
            return None


def _policy(reader: Reader) -> int:
    policy = reader.u64()
    if not policy >> _RESERVED_ONE & 1:
        raise reader.bad(f"guest policy {policy:#x}: bit {_RESERVED_ONE} must be one")
    return policy


def _firmware(reader: Reader) -> tuple[int, int, int]:
    build, minor, major = reader.u8(), reader.u8(), reader.u8()
    _zero(reader, 1, "the byte after a firmware version")
    return major, minor, build


def _zero(reader: Reader, size: int, name: str, known: bool = True) -> None:  # noqa: FBT001, FBT002
    """Reserved bytes; in a version that is not known, nobody can say which are."""
    if any(reader.take(size)) and known:
        raise reader.bad(f"{name} are reserved and not zero")
