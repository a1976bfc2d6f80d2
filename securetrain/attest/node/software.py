# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Collect the self-report of a node: what software can say about its machine."""

import hashlib
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Final

import securetrain
from securetrain.evidence import TEXT_LIMIT, Hardware, Kernel, Software, SoftwareEvidence

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
                name: environ[name][:TEXT_LIMIT] for name in _LOADER_VARIABLES if name in environ
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
                return file.read(TEXT_LIMIT).decode("utf-8", "replace").strip()
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
