# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Firmware event logs, byte by byte and by hand, so that they can also be wrong in every way.

It shares no code with the parser. A `Log` is a list of entries that a test edits; the registers of
the machine are those of the entries that it really measured.
"""

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

NAMES = {0x04: "sha1", 0x0B: "sha256", 0x0C: "sha384", 0x0D: "sha512", 0x12: "sm3"}
SIZES = {0x04: 20, 0x0B: 32, 0x0C: 48, 0x0D: 64, 0x12: 32}
SHA1, SHA256, SHA384, SM3 = 0x04, 0x0B, 0x0C, 0x12

NO_ACTION, SEPARATOR, CRTM_CONTENTS, CRTM_VERSION, IPL = 0x03, 0x04, 0x07, 0x08, 0x0D
POST_CODE, EVENT_TAG, CONFIG_FLAGS, OMIT = 0x01, 0x06, 0x0A, 0x12
DRIVER_CONFIG, VARIABLE_BOOT, APPLICATION = 0x80000001, 0x80000002, 0x80000003
DRIVER, GPT, ACTION, BLOB2 = 0x80000004, 0x80000006, 0x80000007, 0x8000000A
HANDOFF, AUTHORITY = 0x80000009, 0x800000E0

GLOBAL = UUID("8be4df61-93ca-11d2-aa0d-00e098032b8c")
SECURITY = UUID("d719b2cb-3d3a-4596-a3bc-dad00e67656f")
SHIM = UUID("605dab50-e046-4300-abb6-3dd810dd8b23")

CALLING = b"Calling EFI Application from Boot Option"
EXIT = (b"Exit Boot Services Invocation", b"Exit Boot Services Returned with Success")
COMMAND_LINE = b"/vmlinuz root=/dev/vda1 ro"
COMMANDS = (b"set default=0", b"linux " + COMMAND_LINE)


@dataclass(frozen=True)
class Entry:
    """One event: what was measured and what is written about it."""

    register: int
    type: int
    data: bytes
    content: bytes
    """What the digest is of."""

    def digest(self, algorithm: int = SHA256) -> bytes:
        if NAMES[algorithm] == "sm3":
            return bytes(32)
        return hashlib.new(NAMES[algorithm], self.content).digest()


def event(register: int, kind: int, data: bytes, content: bytes | None = None) -> Entry:
    return Entry(register, kind, data, data if content is None else content)


def renamed(entry: Entry, kind: int, data: bytes | None = None) -> Entry:
    """The same measurement under another name."""
    return replace(entry, type=kind, data=entry.data if data is None else data)


def header(
    algorithms: Sequence[int] = (SHA256,),
    *,
    sizes: Mapping[int, int] | None = None,
    signature: bytes = b"Spec ID Event03\0",
    version: tuple[int, int] = (2, 0),
    count: int | None = None,
    vendor: bytes = b"\0",
    register: int = 0,
    digest: bytes = bytes(20),
    kind: int = NO_ACTION,
) -> bytes:
    major, minor = version
    body = signature + struct.pack("<IBBBB", 0, minor, major, 0, 2)
    body += struct.pack("<I", len(algorithms) if count is None else count)
    known = SIZES if sizes is None else {**SIZES, **sizes}
    body += b"".join(struct.pack("<HH", a, known.get(a, 32)) for a in algorithms) + vendor
    return struct.pack("<II20sI", register, kind, digest, len(body)) + body


def encode_entry(
    entry: Entry, algorithms: Sequence[int] = (SHA256,), digests: bytes | None = None
) -> bytes:
    if digests is None:
        pairs = [struct.pack("<H", a) + entry.digest(a) for a in algorithms]
        digests = struct.pack("<I", len(pairs)) + b"".join(pairs)
    head = struct.pack("<II", entry.register, entry.type)
    return head + digests + struct.pack("<I", len(entry.data)) + entry.data


def encode(entries: Iterable[Entry], algorithms: Sequence[int] = (SHA256,)) -> bytes:
    return header(algorithms) + b"".join(encode_entry(e, algorithms) for e in entries)


def encode_legacy(entries: Iterable[Entry]) -> bytes:
    return b"".join(
        struct.pack("<II20sI", e.register, e.type, e.digest(SHA1), len(e.data)) + e.data
        for e in entries
    )


def registers(
    entries: Iterable[Entry], algorithm: int = SHA256, count: int = 24
) -> dict[int, bytes]:
    """What the machine's registers hold."""
    values = {index: bytes(SIZES[algorithm]) for index in range(count)}
    for entry in entries:
        if entry.type != NO_ACTION:
            extended = values[entry.register] + entry.digest(algorithm)
            values[entry.register] = hashlib.new(NAMES[algorithm], extended).digest()
    return values


def pcrs(entries: Iterable[Entry]) -> dict[int, bytes]:
    """Those that a quote covers."""
    values = registers(entries)
    return {index: values[index] for index in (*range(11), 14)}


def variable(guid: UUID, name: str, value: bytes, slack: bytes = b"") -> bytes:
    text = name.encode("utf-16-le")
    return guid.bytes_le + struct.pack("<QQ", len(name), len(value)) + text + value + slack


def policy(name: str, value: bytes, register: int = 7) -> Entry:
    """One of Secure Boot's variables."""
    guid = GLOBAL if name in {"SecureBoot", "PK", "KEK", "AuditMode"} else SECURITY
    return event(register, DRIVER_CONFIG, variable(guid, name, value))


def authority(name: str = "db", value: bytes = b"signer of the boot loader") -> Entry:
    return event(7, AUTHORITY, variable(SECURITY if name == "db" else SHIM, name, value))


def secure_boot(state: bytes = b"\1") -> list[Entry]:
    """The variables of PCR 7, in order."""
    values = {"SecureBoot": state, "PK": b"platform key", "KEK": b"exchange key"}
    values |= {"db": b"signature database", "dbx": b"revoked signatures"}
    return [policy(name, value) for name, value in values.items()]


def separator(register: int, value: bytes = bytes(4)) -> Entry:
    return event(register, SEPARATOR, value)


def command(text: bytes, prefix: bytes = b"grub_cmd: ", register: int = 8) -> Entry:
    return event(register, IPL, prefix + text + b"\0", text)


def image(name: bytes, path: str = "\\EFI\\BOOT\\BOOTX64.EFI") -> Entry:
    """A boot application."""
    text = (path + "\0").encode("utf-16-le")
    node = struct.pack("<BBH", 4, 4, len(text) + 4) + text + bytes.fromhex("7fff0400")
    place = struct.pack("<QQQQ", 0x1000, 0x2000, 0, len(node)) + node
    return event(4, APPLICATION, place, name)


def good_boot(state: bytes = b"\1") -> list[Entry]:
    """A machine that boots GRUB through shim, with Secure Boot on unless `state` says otherwise."""
    return [
        event(0, CRTM_VERSION, "firmware 1.0\0".encode("utf-16-le")),
        event(0, BLOB2, b"where it lies", b"the firmware's code"),
        *secure_boot(state),
        separator(7),
        event(1, CONFIG_FLAGS, b"ACPI DATA", b"tables"),
        event(1, VARIABLE_BOOT, variable(GLOBAL, "BootOrder", b"\0\0"), b"\0\0"),
        event(2, DRIVER, b"where it lies", b"option ROM"),
        event(4, ACTION, CALLING),
        *(separator(index) for index in range(7)),
        authority(),
        event(5, GPT, b"EFI PART and so on"),
        image(b"shim", "\\EFI\\BOOT\\SHIMX64.EFI"),
        event(14, IPL, b"MokList\0", b"owner's keys"),
        authority("SbatLevel", b"sbat,1,2021030218\n"),
        authority("Shim", b"certificate of the distribution"),
        image(b"grub", "\\EFI\\BOOT\\GRUBX64.EFI"),
        event(9, IPL, b"(hd0,gpt1)/grub.cfg\0", b"configuration"),
        *map(command, COMMANDS),
        event(9, IPL, b"/vmlinuz\0", b"kernel"),
        image(b"kernel"),
        command(COMMAND_LINE, b"kernel_cmdline: "),
        event(9, IPL, b"/initrd\0", b"initrd"),
        *(event(5, ACTION, text) for text in EXIT),
    ]


def good_guest(state: bytes = b"\1") -> list[Entry]:
    """The same as a TDX guest, where registers 1 to 4 are RTMR0 to RTMR3."""
    return [
        event(1, 0x8000000B, b"TdxTable", b"hand-off block"),
        event(1, BLOB2, b"CFV", b"variables of the firmware"),
        *(replace(entry, register=1) for entry in secure_boot(state)),
        separator(1),
        event(1, CONFIG_FLAGS, b"ACPI DATA", b"tables"),
        event(2, ACTION, CALLING),
        separator(2),
        separator(2),
        replace(authority(), register=1),
        event(2, GPT, b"EFI PART and so on"),
        replace(image(b"shim"), register=2),
        event(3, IPL, b"MokList\0", b"owner's keys"),
        replace(authority("Shim", b"certificate of the distribution"), register=1),
        replace(image(b"grub"), register=2),
        *(replace(command(text), register=3) for text in COMMANDS),
        event(3, IPL, b"/vmlinuz\0", b"kernel"),
        replace(command(COMMAND_LINE, b"kernel_cmdline: "), register=3),
        *(event(2, ACTION, text) for text in EXIT),
    ]


def rtmrs(entries: Iterable[Entry]) -> list[bytes]:
    values = registers(entries, SHA384, 5)
    return [values[index] for index in range(1, 5)]


def position(entries: Sequence[Entry], **wanted: object) -> int:
    """Where the first entry with these fields is."""
    return next(
        index
        for index, entry in enumerate(entries)
        if all(getattr(entry, field) == value for field, value in wanted.items())
    )
