# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The firmware's event log: what it says was extended into which register, entry by entry.

A log is a claim. It becomes evidence only where its digests, replayed in order, give the registers
that a TPM or a TEE has signed; `boot` and `ccel` compare them. Rules of the parser:

1. a log is at most 1 MiB, which is also the limit of its entries: each is at least 32 bytes;
2. the crypto-agile format alone (header "Spec ID Event03"): each entry has exactly the digests that
   the header announces, each once, with the length of its algorithm. The older SHA-1 format is
   recognised and refused: SHA-1 collisions are affordable;
3. every size is compared with what is left before anything is read, and nothing follows the last
   entry, but for the padding of CCEL tables, all zeros or all ones;
4. an entry that was measured names a register that exists. Entries of type EV_NO_ACTION measure
   nothing, whatever register they name;
5. only digests are covered by a register. The type and the data of an entry, and the order between
   entries of different registers, can be anything: nobody may trust them before the digest of that
   very entry has been explained.

Sources: TCG PC Client Platform Firmware Profile 1.05 and 1.06, section 10 (event logging) and
9.4.5.3 (StartupLocality); Linux 6.9, include/linux/tpm_eventlog.h (checks of the header); Intel
TDX Virtual Firmware Design Guide, section 8 (CCEL).
"""

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from struct import Struct
from typing import Final

import msgspec

from securetrain.core.errors import AttestationError
from securetrain.evidence.reader import Reader
from securetrain.evidence.tpm.constants import Hash

LOG_LIMIT: Final = 1 << 20
MALFORMED: Final = "ST-ATTS-201"
PCRS: Final = range(24)

_SIGNATURE: Final = b"Spec ID Event03\0"
_LOCALITY: Final = b"StartupLocality\0"
_LOCALITIES: Final = (0, 3, 4)
"""Of TPM2_Startup, and 4 after an H-CRTM sequence."""
_SHOWN: Final = (Hash.SHA256, Hash.SHA384, Hash.SHA512, Hash.SHA1)
"""Which bank's digests a person sees, the first that the log has."""


_ALGORITHMS: Final[dict[int, tuple[str, int]]] = {
    **{int(known): (known.name, known.size) for known in Hash},
    0x0012: ("SM3_256", 32),
    0x0027: ("SHA3_256", 32),
    0x0028: ("SHA3_384", 48),
    0x0029: ("SHA3_512", 64),
}
"""Name and digest size by TPM_ALG_ID. Registers are judged by SHA-2 banks alone, but the digests of
the others must be stepped over."""


class EventType(IntEnum):
    """The types that a rule here speaks of, and those that a person wants to see by name."""

    PREBOOT_CERT = 0x00000000
    POST_CODE = 0x00000001
    NO_ACTION = 0x00000003
    SEPARATOR = 0x00000004
    ACTION = 0x00000005
    EVENT_TAG = 0x00000006
    S_CRTM_CONTENTS = 0x00000007
    S_CRTM_VERSION = 0x00000008
    CPU_MICROCODE = 0x00000009
    PLATFORM_CONFIG_FLAGS = 0x0000000A
    TABLE_OF_DEVICES = 0x0000000B
    COMPACT_HASH = 0x0000000C
    IPL = 0x0000000D
    IPL_PARTITION_DATA = 0x0000000E
    NONHOST_CODE = 0x0000000F
    NONHOST_CONFIG = 0x00000010
    NONHOST_INFO = 0x00000011
    OMIT_BOOT_DEVICE_EVENTS = 0x00000012
    POST_CODE2 = 0x00000013
    EFI_VARIABLE_DRIVER_CONFIG = 0x80000001
    EFI_VARIABLE_BOOT = 0x80000002
    EFI_BOOT_SERVICES_APPLICATION = 0x80000003
    EFI_BOOT_SERVICES_DRIVER = 0x80000004
    EFI_RUNTIME_SERVICES_DRIVER = 0x80000005
    EFI_GPT_EVENT = 0x80000006
    EFI_ACTION = 0x80000007
    EFI_PLATFORM_FIRMWARE_BLOB = 0x80000008
    EFI_HANDOFF_TABLES = 0x80000009
    EFI_PLATFORM_FIRMWARE_BLOB2 = 0x8000000A
    EFI_HANDOFF_TABLES2 = 0x8000000B
    EFI_VARIABLE_BOOT2 = 0x8000000C
    EFI_GPT_EVENT2 = 0x8000000D
    EFI_HCRTM_EVENT = 0x80000010
    EFI_VARIABLE_AUTHORITY = 0x800000E0
    EFI_SPDM_FIRMWARE_BLOB = 0x800000E1
    EFI_SPDM_FIRMWARE_CONFIG = 0x800000E2
    EFI_SPDM_DEVICE_POLICY = 0x800000E3
    EFI_SPDM_DEVICE_AUTHORITY = 0x800000E4


_HEAD: Final = Struct("<III")
_NAMES: Final = {int(kind): f"EV_{kind.name}" for kind in EventType}


class Event(msgspec.Struct, frozen=True):
    """One entry of a log. Everything in it is the log's own word."""

    index: int
    """Position in the log; the header is entry 0."""
    register: int
    """The PCR, or the measurement register of a CCEL (1 is RTMR0)."""
    type: int
    digest: bytes
    """What was extended, in the bank that the log was read for."""
    data: bytes

    @property
    def name(self) -> str:
        """The type as the specification spells it, or its number."""
        return _NAMES.get(self.type) or f"event type {self.type:#x}"


@dataclass(frozen=True, kw_only=True)
class EventLog:
    """A parsed log, with the digests of one bank."""

    banks: tuple[str, ...]
    """Names of all the banks that it has digests of."""
    bank: Hash
    events: tuple[Event, ...]
    legacy: bool = False
    """In the SHA-1 format, which no register is judged by."""

    def of(self, register: int) -> tuple[Event, ...]:
        """The events of one register, in order."""
        return tuple(self._measured.get(register, ()))

    @cached_property
    def _measured(self) -> dict[int, list[Event]]:
        registers: dict[int, list[Event]] = {}
        for event in self.events:
            if event.type != EventType.NO_ACTION:
                registers.setdefault(event.register, []).append(event)
        return registers


def parse(
    log: bytes, bank: Hash = Hash.SHA256, *, registers: range = PCRS, padded: bool = False
) -> EventLog:
    """Read a crypto-agile log.

    Args:
        log: the whole log.
        bank: whose digests are wanted: SHA-256 for PCRs, SHA-384 for RTMRs.
        registers: those that exist.
        padded: whether the log is a table that is larger than its content (CCEL).

    Raises:
        AttestationError: ST-ATTS-201 when it is malformed, ST-ATTS-202 when it has the SHA-1
            format, ST-ATTS-203 when it has no digests of the bank.
    """
    reader = _start(log)
    header = _legacy_event(reader, 0)
    if not _is_agile(header):
        raise _legacy()
    sizes = _header(header)
    names = tuple(_ALGORITHMS[number][0] for number in sizes)
    if bank not in sizes:
        raise AttestationError(
            "ST-ATTS-203",
            f"the log has digests of {', '.join(names)}, not of {bank.name}",
            reader.where,
            f"activate the {bank.name} bank of the TPM in the firmware's settings",
        )
    events: list[Event] = []
    usual = _Usual(sizes, bank)
    while reader.left:
        if padded and _is_padding(log, reader):
            break
        event = usual.event(log, reader, len(events) + 1) or _event(
            reader, len(events) + 1, sizes, bank
        )
        if event.register not in registers and event.type != EventType.NO_ACTION:
            raise reader.bad(f"an entry for register {event.register}, which does not exist")
        events.append(event)
    return EventLog(banks=names, bank=bank, events=tuple(events))


def read(log: bytes) -> EventLog:
    """Read a log of either format, to show it to a person; nothing may be judged by it.

    Raises:
        AttestationError: ST-ATTS-201 when it is malformed, ST-ATTS-203 when it has no digests of
            SHA-1 or SHA-2.
    """
    reader = _start(log)
    header = _legacy_event(reader, 0)
    if _is_agile(header):
        sizes = _header(header)
        bank = next((known for known in _SHOWN if known in sizes), Hash.SHA256)
        return parse(log, bank, padded=True)
    events = [header]
    while reader.left:
        events.append(_legacy_event(reader, len(events)))
    return EventLog(banks=("SHA1",), bank=Hash.SHA1, events=tuple(events), legacy=True)


def replay(log: EventLog) -> dict[int, bytes]:
    """The value of every register that has an entry, as the log tells it.

    Raises:
        AttestationError: ST-ATTS-201 when the locality of the TPM's start is told twice, late or
            wrongly; ST-ATTS-202 for a log of the SHA-1 format.
    """
    if log.legacy:
        raise _legacy()
    digest_of = log.bank.digest
    zeros = bytes(log.bank.size)
    values: dict[int, bytes] = {}
    for event in log.events:
        if event.type != EventType.NO_ACTION:
            register = event.register
            values[register] = digest_of(values.get(register, zeros) + event.digest)
        elif event.data.startswith(_LOCALITY):
            if 0 in values:
                raise _bad_locality(event, "comes after PCR 0 was started")
            values[0] = zeros[1:] + _locality(event)
    return values


def _locality(event: Event) -> bytes:
    """The byte that PCR 0 starts from."""
    locality = event.data[len(_LOCALITY) :]
    if event.register != 0 or len(locality) != 1 or locality[0] not in _LOCALITIES:
        raise _bad_locality(event, f"is {locality[:8].hex() or 'empty'} for PCR {event.register}")
    return locality


def _bad_locality(event: Event, what: str) -> AttestationError:
    return AttestationError(
        MALFORMED, f"the StartupLocality {what}", f"event log, entry {event.index}"
    )


def _start(log: bytes) -> Reader:
    reader = Reader(log, MALFORMED, "event log", "little")
    if len(log) > LOG_LIMIT:
        raise reader.bad(f"{len(log)} bytes, the limit is {LOG_LIMIT}")
    return reader


def _legacy_event(reader: Reader, index: int) -> Event:
    """TCG_PCR_EVENT: also the format of a crypto-agile log's header."""
    reader.where = f"event log, entry {index}"
    return Event(
        index=index,
        register=reader.u32(),
        type=reader.u32(),
        digest=reader.take(Hash.SHA1.size),
        data=reader.sized(4, LOG_LIMIT),
    )


def _is_agile(header: Event) -> bool:
    return header.type == EventType.NO_ACTION and header.data.startswith(_SIGNATURE)


def _header(header: Event) -> dict[int, int]:
    """TCG_EfiSpecIDEvent: the algorithms of the entries, with the sizes of their digests.

    The class of the platform, the errata and the vendor's bytes change nothing and are not judged.
    """
    reader = Reader(header.data, MALFORMED, "event log, header", "little")
    # The firmware of TDX guests writes 1, the number of RTMR0.
    if header.register not in {0, 1} or any(header.digest):
        raise reader.bad("it names a register or has a digest; it measures nothing")
    reader.take(len(_SIGNATURE) + 4)
    minor, major = reader.u8(), reader.u8()
    if (major, minor) != (2, 0):
        raise reader.bad(f"version {major}.{minor}, expected 2.0")
    reader.take(2)
    count = reader.u32()
    if not 1 <= count <= len(_ALGORITHMS):
        raise reader.bad(f"{count} algorithms, expected 1 to {len(_ALGORITHMS)}")
    sizes: dict[int, int] = {}
    for _ in range(count):
        number, size = reader.u16(), reader.u16()
        name, expected = _ALGORITHMS.get(number, ("", 0))
        if not name or number in sizes:
            raise reader.bad(f"algorithm {number:#06x} is unknown or announced twice")
        if size != expected:
            raise reader.bad(f"digests of {name} have {expected} bytes, it says {size}")
        sizes[number] = size
    reader.sized(1, 0xFF)
    reader.end()
    return sizes


class _Usual:
    """Entries whose digests are in the order of the header, as all firmware writes them.

    One of them is read in one go; what is not like that is left to `_event`, which says why.
    """

    def __init__(self, sizes: dict[int, int], bank: Hash) -> None:
        digests = "".join(f"H{size}s" for size in sizes.values())
        self._layout = Struct(f"<III{digests}I")
        self._numbers = tuple(sizes)
        self._wanted = 4 + 2 * self._numbers.index(bank)

    def event(self, log: bytes, reader: Reader, index: int) -> Event | None:
        """The entry at the reader, which is then behind it; None when it is not like that."""
        start = reader.position
        body = start + self._layout.size
        if body > len(log):
            return None
        found = self._layout.unpack_from(log, start)
        size = found[-1]
        if found[2] != len(self._numbers) or found[3:-1:2] != self._numbers:
            return None
        if size > LOG_LIMIT or body + size > len(log):
            return None
        reader.where = f"event log, entry {index}"
        reader.take(self._layout.size + size)
        return Event(index, found[0], found[1], found[self._wanted], log[body : body + size])


def _event(reader: Reader, index: int, sizes: dict[int, int], bank: Hash) -> Event:
    """TCG_PCR_EVENT2."""
    reader.where = f"event log, entry {index}"
    register, kind, count = reader.unpack(_HEAD)
    if count != len(sizes):
        raise reader.bad(f"{count} digests, the header announces {len(sizes)}")
    digests: dict[int, bytes] = {}
    for _ in range(count):
        algorithm = reader.u16()
        if algorithm not in sizes or algorithm in digests:
            raise reader.bad(f"a digest of {algorithm:#06x} is unannounced or there twice")
        digests[algorithm] = reader.take(sizes[algorithm])
    return Event(index, register, kind, digests[bank], reader.sized(4, LOG_LIMIT))


def _is_padding(log: bytes, reader: Reader) -> bool:
    """Tell whether the content is over: eight bytes of 0x00 or of 0xff start no entry of a CCEL."""
    position = reader.position
    start = log[position : position + 8]
    if start.strip(start[:1]) or start[0] not in {0x00, 0xFF}:
        return False
    if log[position:].strip(start[:1]):
        raise reader.bad("content follows the padding")
    return True


def _legacy() -> AttestationError:
    return AttestationError(
        "ST-ATTS-202",
        "the log has the SHA-1 format of TPM 1.2, not the crypto-agile one",
        "event log",
    )
