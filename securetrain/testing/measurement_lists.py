# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Measurement lists as the kernel would write them, made from invented files."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from struct import pack

from securetrain.evidence import ImaList


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One entry, which a test may make wrong in every part."""

    name: bytes
    digest: bytes
    """The digest field, ``algorithm ':' NUL digest``."""
    template: bytes = b"ima-sig"
    extra: bytes = b""
    pcr: int = 10
    violation: bool = False

    @property
    def data(self) -> bytes:
        """The template data."""
        if self.template == b"ima":
            return self.digest[-20:] + self.name.ljust(256, b"\0")
        fields = [self.digest, self.name + b"\0"]
        if self.template in {b"ima-sig", b"ima-sigv2", b"ima-buf"}:
            fields.append(self.extra)
        return b"".join(pack("<I", len(field)) + field for field in fields)

    @property
    def listed(self) -> bytes:
        """The digest that the list shows."""
        return bytes(20) if self.violation else hashlib.sha1(self.data).digest()  # noqa: S324

    @property
    def extends(self) -> bytes:
        """The digest that the SHA-256 bank is extended with."""
        return b"\xff" * 32 if self.violation else hashlib.sha256(self.data).digest()

    def binary(self) -> bytes:
        """The entry of a binary list."""
        header = pack("<I20sI", self.pcr, self.listed, len(self.template)) + self.template
        if self.template == b"ima":
            return header + self.digest[-20:] + pack("<I", len(self.name)) + self.name
        return header + pack("<I", len(self.data)) + self.data

    def ascii(self) -> bytes:
        """The line of an ASCII list."""
        algorithm, _, digest = self.digest.partition(b":\0")
        shown = digest.hex() if self.template == b"ima" else f"{algorithm.decode()}:{digest.hex()}"
        fields = [str(self.pcr), self.listed.hex(), self.template.decode(), shown]
        line = " ".join(fields).encode() + b" " + self.name
        if self.template in {b"ima-sig", b"ima-sigv2", b"ima-buf"}:
            line += b" " + self.extra.hex().encode()
        return line + b"\n"


def measured_file(name: str, content: bytes = b"", template: str = "ima-sig") -> Measurement:
    """An entry for a file."""
    digest = b"sha256:\0" + hashlib.sha256(content or name.encode()).digest()
    if template.endswith("v2"):
        digest = b"ima:" + digest
    return Measurement(name=name.encode(), digest=digest, template=template.encode())


def measured_buffer(name: str, content: bytes) -> Measurement:
    """An entry for a key of a keyring, a command line and the like."""
    digest = b"sha256:\0" + hashlib.sha256(content).digest()
    return Measurement(name=name.encode(), digest=digest, template=b"ima-buf", extra=content)


def aggregate(boot: bytes, template: str = "ima-sig") -> Measurement:
    """The first entry of a boot; `boot` is the SHA-256 over PCRs 0 to 9."""
    kind = b"ima:" if template.endswith("v2") else b""
    digest = kind + b"sha256:\0" + boot
    return Measurement(name=b"boot_aggregate", digest=digest, template=template.encode())


def replayed(measurements: Sequence[Measurement], start: bytes = bytes(32)) -> bytes:
    """PCR 10 of the SHA-256 bank after these entries."""
    for measurement in measurements:
        start = hashlib.sha256(start + measurement.extends).digest()
    return start


def ima_list(
    measurements: Sequence[Measurement], *, binary: bool = True, first: int = 0
) -> ImaList:
    """The evidence."""
    entries = encode_ima(measurements, binary=binary)
    return ImaList(binary=binary, first=first, entries=entries)


def measure_files(
    files: Mapping[str, bytes], registers: Mapping[int, bytes]
) -> tuple[Measurement, ...]:
    """The list of a boot, template ima-ng: its aggregate, then every file (path and content).

    Args:
        files: what was run, in order.
        registers: PCR 0 to 9 of the SHA-256 bank.
    """
    boot = hashlib.sha256(b"".join(registers[pcr] for pcr in range(10))).digest()
    contents = (measured_file(path, data, "ima-ng") for path, data in files.items())
    return (aggregate(boot, "ima-ng"), *contents)


def encode_ima(measurements: Iterable[Measurement], *, binary: bool = True) -> bytes:
    """The list as the kernel shows it."""
    return b"".join(one.binary() if binary else one.ascii() for one in measurements)
