# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Reads this machine's measurement logs: the firmware's, systemd's, and the list of IMA.

Sources: Linux, security/integrity/ima/ima_fs.c (both lists) and drivers/char/tpm/eventlog (the
firmware's log); systemd, src/shared/tpm2-util.c (the userspace log) and systemd-stub(7) (signed
predictions).

Rules:

1. the lists are read after the quote: the kernel appends an entry before it extends the register,
   so that a list that is read later reaches what was quoted. The verifier ignores what follows;
2. what is missing, unreadable or over its limit is left out, with a note for people. Whether that
   is acceptable is the verifier's business: an absent log is never a good one;
3. nothing is judged or altered here. Only entries that the verifier has seen before are left out.
"""

from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from securetrain.core.errors import UsageError
from securetrain.core.files import read_file
from securetrain.evidence import LIST_SIZE, ImaList, ImaParts, cut_list
from securetrain.evidence.tpm import Refusal, split_binary

EVENT_LOG_LIMIT: Final = 1 << 20
USERSPACE_LOG_LIMIT: Final = 256 << 10
SIGNATURES_LIMIT: Final = 64 << 10
IMA_READ_LIMIT: Final = LIST_SIZE
IMA_SEND_LIMIT: Final = 3 << 19
"""What fits into an evidence's body beside everything else, as base64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The paths at which the kernel shows its logs."""

    event_log: Path = Path("/sys/kernel/security/tpm0/binary_bios_measurements")
    ima_binary: Path = Path("/sys/kernel/security/ima/binary_runtime_measurements")
    ima_ascii: Path = Path("/sys/kernel/security/ima/ascii_runtime_measurements")
    userspace_log: Path = Path("/run/log/systemd/tpm2-measure.log")
    pcr_signatures: Path = Path("/run/systemd/tpm2-pcr-signature.json")


@dataclass(slots=True)
class Measurements:
    """Reads the logs, and notes what could not be read."""

    sources: Sources
    notes: list[str] = field(default_factory=list)
    announced: ImaParts | None = None
    parts: tuple[bytes, ...] = ()
    """Of a list that is too long for a body."""

    def event_log(self) -> bytes:
        """The firmware's log; empty when it cannot be had."""
        return self._read(self.sources.event_log, EVENT_LOG_LIMIT) or b""

    def userspace_log(self) -> bytes:
        """Read systemd's log; empty on a machine without one."""
        return self._optional(self.sources.userspace_log, USERSPACE_LOG_LIMIT)

    def pcr_signatures(self) -> bytes:
        """The signed predictions that came with the image; empty where none did."""
        return self._optional(self.sources.pcr_signatures, SIGNATURES_LIMIT)

    def _optional(self, path: Path, limit: int) -> bytes:
        """Read a file that most machines do not have: its absence is no news."""
        return (self._read(path, limit) or b"") if path.exists() else b""

    def ima(self, first: int, *, in_parts: bool = False) -> ImaList | None:
        """The kernel's list without its first entries; None when it cannot be had.

        Where the verifier will ask for parts, one that is too long for a body is `announced`. A
        list that is shorter than `first` is that of another boot: all of it is returned.
        """
        for path, binary in ((self.sources.ima_binary, True), (self.sources.ima_ascii, False)):
            data = self._read(path, IMA_READ_LIMIT)
            if data is not None:
                return self._after(data, first, binary=binary, in_parts=in_parts)
        return None

    def _after(self, data: bytes, first: int, *, binary: bool, in_parts: bool) -> ImaList | None:
        try:
            offset = skip_binary(data, first) if binary else skip_ascii(data, first)
        except Refusal as error:
            self.notes.append(f"the IMA list is left out: {error.what}")
            return None
        if offset is None:
            first, offset = 0, 0
        if len(data) - offset > IMA_SEND_LIMIT:
            if in_parts and binary:
                self.parts = cut_list(data[offset:])
                self.announced = ImaParts.of(first, self.parts)
                return None
            self.notes.append(
                f"the IMA list is left out: {len(data) - offset} bytes, over {IMA_SEND_LIMIT};"
                " narrow the IMA policy, or reboot"
            )
            return None
        return ImaList(binary=binary, first=first, entries=data[offset:])

    def _read(self, path: Path, limit: int) -> bytes | None:
        try:
            return read_file(path, limit)
        except UsageError as error:
            self.notes.append(f"{path}: {error.what}")
            return None


def skip_binary(data: bytes, count: int) -> int | None:
    """Offset behind the first entries of a binary list; None when it has fewer.

    Raises:
        Refusal: when it is no such list.
    """
    sizes = [len(entry) for entry in islice(split_binary(data), count)]
    return sum(sizes) if len(sizes) == count else None


def skip_ascii(data: bytes, count: int) -> int | None:
    """Offset behind the first lines of an ASCII list; None when it has fewer."""
    offset = 0
    for _ in range(count):
        offset = data.find(b"\n", offset) + 1
        if not offset:
            return None
    return offset
