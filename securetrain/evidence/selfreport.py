# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Software evidence: what a node says about itself when no hardware speaks for it.

Rules:

1. it has a media type of its own and no field that claims a judgement: whoever controls the node
   can say anything here. Its use is to notice drift and misconfiguration;
2. what cannot be read is listed in ``missing``: absence is never a good value;
3. values of environment variables that may hold secrets are not collected; hardware addresses and
   serial numbers are not collected; the machine id is hashed with the job's name;
4. every field is bounded, when collected and when parsed.
"""

import hashlib
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

import securetrain
from securetrain.core.errors import AttestationError

SELF_ASSERTED_TYPE: Final = "application/vnd.securetrain.self-asserted+json"
BODY_LIMIT: Final = 4 << 20
MAX_VALUES: Final = 1 << 16
_TEXT_LIMIT: Final = 4096
_PACKAGES: Final = (
    "securetrain",
    "torch",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "numpy",
    "cryptography",
    "pyopenssl",
)
# Variables that change what code runs. Their values are paths, never secrets.
_LOADER_VARIABLES: Final = (
    "LD_AUDIT",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "PYTHONHOME",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "PYTHONINSPECT",
)

Text: TypeAlias = Annotated[str, Meta(max_length=_TEXT_LIMIT)]
Name: TypeAlias = Annotated[str, Meta(max_length=128)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 53)]


class Kernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The running kernel and how it was started."""

    release: Text
    machine: Text
    command_line: Text
    lockdown: Text
    tainted: Text
    module_signatures_enforced: Text


class Hardware(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Inventory without addresses or serial numbers."""

    vendor: Text
    product: Text
    firmware: Text
    cpu_model: Text
    num_cpus: Count
    memory_bytes: Count
    gpus: Annotated[tuple[Text, ...], Meta(max_length=64)]
    tpm_device: bool


class Software(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The interpreter and the packages that matter, by their installed metadata."""

    python: Text
    executable_sha256: Name
    packages: Annotated[dict[Name, Name], Meta(max_length=64)]
    loader_variables: Annotated[dict[Name, Text], Meta(max_length=64)]
    securetrain: Name


class SoftwareEvidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that a node says about itself."""

    kernel: Kernel
    hardware: Hardware
    software: Software
    machine_id_sha256: Name
    missing: Annotated[tuple[Name, ...], Meta(max_length=64)]
    """Sources that could not be read, by path or name."""


def parse_software(body: bytes) -> SoftwareEvidence:
    """Read a self-asserted body.

    Raises:
        AttestationError: ST-ATTS-001 when it is not canonical JSON of the schema.
    """
    if len(body) > BODY_LIMIT:
        raise _bad(f"{len(body)} bytes, the limit is {BODY_LIMIT}")
    if body.count(b",") > MAX_VALUES:  # lists are built before their lengths are compared
        raise _bad(f"more than {MAX_VALUES} values")
    try:
        evidence = msgspec.json.decode(body, type=SoftwareEvidence, strict=True)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _bad(str(error)) from error
    # Every renewal brings one: for names in ASCII and without fractions this is RFC 8785.
    if msgspec.json.encode(evidence, order="sorted") != body:
        raise _bad("not in canonical form (RFC 8785)")
    return evidence


def collect_software(
    *, job: str, executable: Path, environ: Mapping[str, str], root: Path = Path("/")
) -> SoftwareEvidence:
    """Look at this machine. Reads files below `root` only, plus installed package metadata."""
    reader = _Reader(root)
    cpu = reader.text("proc/cpuinfo")
    memory = reader.text("proc/meminfo")
    return SoftwareEvidence(
        kernel=Kernel(
            release=reader.text("proc/sys/kernel/osrelease"),
            machine=platform.machine(),
            command_line=reader.text("proc/cmdline"),
            lockdown=reader.text("sys/kernel/security/lockdown"),
            tainted=reader.text("proc/sys/kernel/tainted"),
            module_signatures_enforced=reader.text("sys/module/module/parameters/sig_enforce"),
        ),
        hardware=Hardware(
            vendor=reader.text("sys/class/dmi/id/sys_vendor"),
            product=reader.text("sys/class/dmi/id/product_name"),
            firmware=reader.text("sys/class/dmi/id/bios_version"),
            cpu_model=_line_value(cpu, "model name"),
            num_cpus=os.cpu_count() or 0,
            memory_bytes=_kibibytes(_line_value(memory, "MemTotal")) * 1024,
            gpus=_gpus(reader),
            tpm_device=(root / "dev/tpmrm0").exists(),
        ),
        software=Software(
            python=platform.python_version(),
            executable_sha256=reader.sha256(executable),
            packages=_packages(),
            loader_variables={
                name: environ[name][:_TEXT_LIMIT] for name in _LOADER_VARIABLES if name in environ
            },
            securetrain=securetrain.__version__,
        ),
        machine_id_sha256=_machine_id(reader, job),
        missing=tuple(reader.missing),
    )


@dataclass(slots=True)
class _Reader:
    """Bounded reads that note what was missing."""

    root: Path
    missing: list[str] = field(default_factory=list)

    def text(self, name: str) -> str:
        """The beginning of a small file, without the white space around it."""
        try:
            with (self.root / name).open("rb") as file:
                return file.read(_TEXT_LIMIT).decode("utf-8", "replace").strip()
        except OSError:
            self.missing.append(name)
            return ""

    def sha256(self, path: Path) -> str:
        """Digest of a whole file, hex; empty when it cannot be read."""
        try:
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:
            self.missing.append("executable")
            return ""


def _machine_id(reader: _Reader, job: str) -> str:
    """Hashed with the job's name, so that two jobs cannot be linked by it."""
    machine = reader.text("etc/machine-id")
    if not machine:
        return ""
    return hashlib.sha256(f"securetrain-machine-id:{job}:{machine}".encode()).hexdigest()


def _gpus(reader: _Reader) -> tuple[str, ...]:
    """NVIDIA GPUs by model; the driver's own listing, which needs no library."""
    folder = reader.root / "proc/driver/nvidia/gpus"
    try:
        names = sorted(entry.name for entry in folder.iterdir())[:64]
    except OSError:
        return ()
    found = (reader.text(f"proc/driver/nvidia/gpus/{name}/information") for name in names)
    return tuple(_line_value(text, "Model") for text in found)


def _packages() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = str(metadata.version(name))[:128]
        except metadata.PackageNotFoundError:
            continue
    return versions


def _line_value(text: str, key: str) -> str:
    """The value of the first 'key: value' line."""
    for line in _lines_with(text, key):
        return line.partition(":")[2].strip()
    return ""


def _lines_with(text: str, key: str) -> Iterable[str]:
    return (line for line in text.splitlines() if line.partition(":")[0].strip() == key)


def _kibibytes(value: str) -> int:
    number = value.partition(" ")[0]
    return int(number) if number.isascii() and number.isdigit() else 0


def _bad(what: str) -> AttestationError:
    return AttestationError("ST-ATTS-001", f"not software evidence: {what}", "evidence")
