# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Measured boots that never happened: firmware event logs and IMA lists, right to the byte.

::

    boot = Boot(command_line="root=/dev/vda1 ro")
    files = measure_files({"/usr/bin/python3": b"..."}, boot.registers())
    tpm.boot(boot.digests(), files)              # a `SoftwareTpm`
    log, listing = boot.log(), encode_ima(files)

Everything is made here from short labels: no vendor's data, and the same bytes on every run.

Sources: TCG PC Client Platform Firmware Profile 1.06, sections 3.3.4 (what is measured into which
register, and the order in PCR 7) and 10 (event structures); UEFI 2.10, sections 3.3 (variables) and
32.4.1 (signature databases); Linux, Documentation/security/IMA-templates.rst.
"""

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Final
from uuid import UUID

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from securetrain.evidence.tpm import EventType, Hash

GLOBAL: Final = UUID("8be4df61-93ca-11d2-aa0d-00e098032b8c")
"""EFI_GLOBAL_VARIABLE: SecureBoot, PK, KEK, BootOrder."""
SECURITY_DATABASE: Final = UUID("d719b2cb-3d3a-4596-a3bc-dad00e67656f")
"""EFI_IMAGE_SECURITY_DATABASE: db and dbx."""
_X509: Final = UUID("a5c059a1-94e4-4aa7-87b5-ab155c2bf072")
_SHA256: Final = UUID("c1c41626-504c-4092-aca9-41f936934328")
_OWNER: Final = UUID("5ec07e57-0000-4000-8000-000000000001")
"""The owner of the entries in the databases: nobody real."""

_SPEC_ID: Final = b"Spec ID Event03\0"
_SEPARATOR: Final = bytes(4)
_BOOT_OPTION: Final = b"Calling EFI Application from Boot Option"
_EXIT: Final = (
    b"Exit Boot Services Invocation",
    b"Exit Boot Services Returned with Success",
)
_LOAD_OPTION_ACTIVE: Final = 1
_END_OF_DEVICE_PATH: Final = bytes.fromhex("7fff0400")
_MADE: Final = datetime(2020, 1, 1, tzinfo=UTC)
_VALID: Final = timedelta(days=36500)

_IMA_PCR: Final = 10
_AGGREGATED: Final = range(10)


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of a firmware log."""

    pcr: int
    type: EventType
    data: bytes
    measured: bytes | None = None
    """The bytes that are digested, where they are not `data`."""

    def digest(self, bank: Hash) -> bytes:
        """The digest that the register of one bank is extended with."""
        return bank.digest(self.data if self.measured is None else self.measured)


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """The boot of a machine; its fields are what a reference value can be about."""

    firmware: bytes = b"firmware image 1.0"
    firmware_version: str = "securetrain test firmware 1.0"
    secure_boot: bool = True
    db: tuple[str, ...] = ("boot loader signer",)
    """Names of the certificates that may sign boot loaders; the first signed this one."""
    dbx: tuple[bytes, ...] = (b"a boot loader that was revoked",)
    """Images that must not start."""
    boot_loader: bytes = b"boot loader image 2.12"
    kernel: bytes = b"kernel image 6.8"
    initrd: bytes = b"initrd image 6.8"
    command_line: str = "/vmlinuz root=/dev/vda1 ro"
    machine: bytes = b""
    """What tells this machine from others of its image: its serial number, its disk's GUID."""
    host: bytes = b""
    """What a cloud's host says of the VM (EV_NONHOST_INFO)."""

    def events(self) -> tuple[Event, ...]:
        """Every measured event, in order."""
        return (
            *self._firmware_events(),
            *self._secure_boot_events(),
            *self._configuration_events(),
            Event(4, EventType.EFI_ACTION, _BOOT_OPTION),
            *(Event(pcr, EventType.SEPARATOR, _SEPARATOR) for pcr in range(7)),
            *self._authority_events(),
            *self._loader_events(),
            *(Event(5, EventType.EFI_ACTION, text) for text in _EXIT),
        )

    def log(self, banks: Sequence[Hash] = (Hash.SHA256,)) -> bytes:
        """The log as firmware hands it over."""
        return encode_log(self.events(), banks)

    def digests(self, bank: Hash = Hash.SHA256) -> tuple[tuple[int, bytes], ...]:
        """Register and digest of each extension, in order."""
        return tuple((event.pcr, event.digest(bank)) for event in self.events())

    def registers(self, bank: Hash = Hash.SHA256) -> dict[int, bytes]:
        """Values of PCR 0 to 9 after this boot."""
        return replay(self.digests(bank), bank)

    def _firmware_events(self) -> Iterable[Event]:
        version = (self.firmware_version + "\0").encode("utf-16-le")
        yield Event(0, EventType.S_CRTM_VERSION, version)
        place = struct.pack("<QQ", 0xFF800000, len(self.firmware))
        yield Event(0, EventType.EFI_PLATFORM_FIRMWARE_BLOB, place, self.firmware)
        if self.host:
            yield Event(0, EventType.NONHOST_INFO, self.host)

    def _secure_boot_events(self) -> Iterable[Event]:
        """PCR 7: the state, the keys in their order, and the end of them."""
        dbx = [_signature(hashlib.sha256(image).digest()) for image in self.dbx]
        variables = (
            (GLOBAL, "SecureBoot", bytes([self.secure_boot])),
            (GLOBAL, "PK", _certificates(("platform key",))),
            (GLOBAL, "KEK", _certificates(("key exchange key",))),
            (SECURITY_DATABASE, "db", _certificates(self.db)),
            (SECURITY_DATABASE, "dbx", _signature_list(_SHA256, dbx) if dbx else b""),
        )
        for vendor, name, data in variables:
            variable = _variable(vendor, name, data)
            yield Event(7, EventType.EFI_VARIABLE_DRIVER_CONFIG, variable)
        yield Event(7, EventType.SEPARATOR, _SEPARATOR)

    def _configuration_events(self) -> Iterable[Event]:
        """PCR 1: the boot options, and what is this machine's."""
        option = struct.pack("<IH", _LOAD_OPTION_ACTIVE, len(_END_OF_DEVICE_PATH))
        option += "linux\0".encode("utf-16-le") + _END_OF_DEVICE_PATH
        for name, data in (("BootOrder", bytes(2)), ("Boot0000", option)):
            yield Event(1, EventType.EFI_VARIABLE_BOOT2, _variable(GLOBAL, name, data))
        if self.machine:
            yield Event(1, EventType.EFI_HANDOFF_TABLES2, b"SMBIOS " + self.machine)

    def _authority_events(self) -> Iterable[Event]:
        """PCR 7: which key allowed the boot loader to start; with Secure Boot only."""
        if self.secure_boot:
            signer = _variable(SECURITY_DATABASE, "db", _signature(certificate(self.db[0])))
            yield Event(7, EventType.EFI_VARIABLE_AUTHORITY, signer)

    def _loader_events(self) -> Iterable[Event]:
        """PCR 4, 5, 8 and 9: partitions, boot loader, kernel and its command line."""
        table = b"EFI PART" + bytes(84) + struct.pack("<Q", 0)
        if self.machine:
            table = table[:56] + hashlib.sha256(self.machine).digest()[:16] + table[72:]
        yield Event(5, EventType.EFI_GPT_EVENT, table)
        application = EventType.EFI_BOOT_SERVICES_APPLICATION
        yield Event(4, application, _image_load(self.boot_loader), self.boot_loader)
        yield Event(4, application, _image_load(self.kernel), self.kernel)
        line = self.command_line.encode()
        yield Event(8, EventType.IPL, b"kernel_cmdline: " + line + b"\0", line)
        yield Event(9, EventType.IPL, b"/vmlinuz\0", self.kernel)
        yield Event(9, EventType.IPL, b"/initrd\0", self.initrd)


def encode_log(events: Iterable[Event], banks: Sequence[Hash] = (Hash.SHA256,)) -> bytes:
    """Events as a crypto-agile log with the digests of each bank."""
    head = _SPEC_ID + struct.pack("<IBBBBI", 0, 0, 2, 0, 2, len(banks))
    head += b"".join(struct.pack("<HH", bank, bank.size) for bank in banks) + b"\0"
    first = struct.pack("<II20sI", 0, EventType.NO_ACTION, bytes(20), len(head)) + head
    return first + b"".join(_encode_event(event, banks) for event in events)


def replay(digests: Iterable[tuple[int, bytes]], bank: Hash = Hash.SHA256) -> dict[int, bytes]:
    """Values of PCR 0 to 9, and of every other register that is extended."""
    registers = {pcr: bytes(bank.size) for pcr in _AGGREGATED}
    for pcr, digest in digests:
        registers[pcr] = bank.digest(registers.get(pcr, bytes(bank.size)) + digest)
    return registers


@cache
def certificate(name: str) -> bytes:
    """A self-signed certificate (DER) that depends on nothing but its name."""
    key = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject)
    builder = builder.public_key(key.public_key()).serial_number(1)
    builder = builder.not_valid_before(_MADE).not_valid_after(_MADE + _VALID)
    return builder.sign(key, None).public_bytes(Encoding.DER)


def _encode_event(event: Event, banks: Sequence[Hash]) -> bytes:
    digests = b"".join(struct.pack("<H", bank) + event.digest(bank) for bank in banks)
    head = struct.pack("<III", event.pcr, event.type, len(banks))
    return head + digests + struct.pack("<I", len(event.data)) + event.data


def _variable(vendor: UUID, name: str, data: bytes) -> bytes:
    """UEFI_VARIABLE_DATA."""
    text = name.encode("utf-16-le")
    return vendor.bytes_le + struct.pack("<QQ", len(name), len(data)) + text + data


def _signature(data: bytes) -> bytes:
    """EFI_SIGNATURE_DATA."""
    return _OWNER.bytes_le + data


def _signature_list(kind: UUID, signatures: Sequence[bytes]) -> bytes:
    """EFI_SIGNATURE_LIST; its signatures have one size."""
    body = b"".join(signatures)
    return kind.bytes_le + struct.pack("<III", 28 + len(body), 0, len(signatures[0])) + body


def _certificates(names: Iterable[str]) -> bytes:
    """A signature database: one list for each certificate, for their sizes differ."""
    return b"".join(_signature_list(_X509, [_signature(certificate(name))]) for name in names)


def _image_load(image: bytes) -> bytes:
    """UEFI_IMAGE_LOAD_EVENT with an empty device path."""
    path = _END_OF_DEVICE_PATH
    return struct.pack("<QQQQ", 0x100000, len(image), 0, len(path)) + path
