# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""UEFI structures inside the data of firmware events, and a line of text for people.

What is read here proves nothing by itself: `secureboot` first ties the data to a measured digest.
Text for people is printable ASCII of bounded length, whatever the data holds.

Sources: TCG PC Client Platform Firmware Profile 1.05, 10.2.3 (UEFI_IMAGE_LOAD_EVENT) and 10.2.6
(UEFI_VARIABLE_DATA); UEFI 2.10, section 10.3 (device paths).
"""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from securetrain.core.errors import AttestationError
from securetrain.evidence.reader import Reader
from securetrain.evidence.tpm.eventlog import Event, EventType

GLOBAL_VARIABLE: Final = UUID("8be4df61-93ca-11d2-aa0d-00e098032b8c")
IMAGE_SECURITY_DATABASE: Final = UUID("d719b2cb-3d3a-4596-a3bc-dad00e67656f")
SHIM_LOCK: Final = UUID("605dab50-e046-4300-abb6-3dd810dd8b23")

_NAME_LIMIT: Final = 1024
_VALUE_LIMIT: Final = 1 << 20
_TEXT_LIMIT: Final = 160
_FILE_PATH: Final = (4, 4)
"""Type and subtype of the device path node that has a file's name."""
_VARIABLES: Final = frozenset(
    {
        EventType.EFI_VARIABLE_DRIVER_CONFIG,
        EventType.EFI_VARIABLE_BOOT,
        EventType.EFI_VARIABLE_BOOT2,
        EventType.EFI_VARIABLE_AUTHORITY,
    }
)
_IMAGES: Final = frozenset(
    {EventType.EFI_BOOT_SERVICES_APPLICATION, EventType.EFI_BOOT_SERVICES_DRIVER}
)


@dataclass(frozen=True, slots=True)
class Variable:
    """UEFI_VARIABLE_DATA."""

    guid: UUID
    name: str
    value: bytes
    slack: int
    """Bytes of the event after the value; the specification has none."""


def parse_variable(data: bytes, code: str, where: str) -> Variable:
    """Read the data of an event that measured a variable.

    Args:
        data: of the event.
        code: what a misfit is refused with.
        where: names the event in errors.

    Raises:
        AttestationError: `code`.
    """
    reader = Reader(data, code, where, "little")
    guid = UUID(bytes_le=reader.take(16))
    letters, size = reader.u64(), reader.u64()
    if letters > _NAME_LIMIT or size > _VALUE_LIMIT:
        raise reader.bad(f"a variable with a name of {letters} letters and {size} bytes")
    try:
        name = reader.take(2 * letters).decode("utf-16-le")
    except UnicodeDecodeError as error:
        raise reader.bad("the name of the variable is not UTF-16") from error
    return Variable(guid, name, reader.take(size), reader.left)


def describe(event: Event) -> str:
    """Describe an event in its own words, for people; empty where nothing is readable."""
    try:
        if event.type in _VARIABLES:
            variable = parse_variable(event.data, "ST-ATTS-201", "")
            return printable(f"{variable.name}, {len(variable.value)} bytes")
        if event.type in _IMAGES:
            return printable(_file_path(event.data))
    except AttestationError:
        return ""
    text = event.data.rstrip(b"\0")
    encoding = "utf-16-le" if b"\0" in text else "ascii"
    words = event.data.decode(encoding, "replace").rstrip("\0")
    readable = all(letter in "\t\n" or " " <= letter <= "~" for letter in words)
    return printable(words) if readable else ""


def printable(text: str) -> str:
    """The text in printable ASCII, cut to a line: logs must not speak to terminals."""
    shown = "".join(letter if " " <= letter <= "~" else "." for letter in text[:_TEXT_LIMIT])
    return shown + "..." * (len(text) > _TEXT_LIMIT)


def _file_path(data: bytes) -> str:
    """The file names in an image's device path."""
    reader = Reader(data, "ST-ATTS-201", "", "little")
    reader.take(24)
    path = Reader(reader.sized(8, len(data)), "ST-ATTS-201", "", "little")
    found = ""
    while path.left:
        node = (path.u8(), path.u8())
        size = path.u16()
        content = path.take(size - 4)
        if node == _FILE_PATH:
            found += content.decode("utf-16-le", "replace").rstrip("\0")
    return found
