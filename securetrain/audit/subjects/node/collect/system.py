# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about the kernel and the machine: settings, mounts, shared memory, devices.

What a container merely does not show (securityfs, devices, settings of modules) is an error there,
never absent.
"""

import errno
import ipaddress
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePath
from typing import Final, get_args

from securetrain.audit.facts import Outcome, Reading
from securetrain.audit.subjects.node.collect.host import (
    HiddenError,
    Host,
    MountPoint,
    known,
    reading,
)
from securetrain.audit.subjects.node.collect.machine import NOT_IN_A_CONTAINER, container
from securetrain.audit.subjects.node.collect.software import container_toolkit
from securetrain.audit.subjects.node.facts.artifacts import NetworkMount
from securetrain.audit.subjects.node.facts.node import (
    Hardware,
    Kernel,
    Mount,
    SharedSegment,
    SysctlName,
)

NETWORK_FILESYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "lustre", "gpfs", "cifs", "smb3", "beegfs", "wekafs", "ceph", "glusterfs",
     "fuse.sshfs", "fuse.s3fs", "fuse.juicefs", "9p", "afs", "panfs"}
)  # fmt: skip
_SYSTEM: Final = frozenset({"/", "/usr"})
"""What a machine without disks runs from; its set-id programs are the system's own."""
_MOUNT_POINTS: Final = ("/", "/tmp", "/dev/shm", "/proc")  # noqa: S108
_SEGMENT_PREFIXES: Final = (
    "nccl-", "torch_", "cuda.shm", "sem.nccl", "pym-", "psm_", "pymp-", "sem.mp-",
)  # fmt: skip
"""NCCL, torch and CUDA; psm_ is multiprocessing.shared_memory, pymp- and sem.mp- its kin."""
_CMDLINE_WORDS: Final = frozenset(
    {"mitigations", "iommu", "intel_iommu", "amd_iommu", "nokaslr", "nopti", "pti", "nospectre_v1",
     "nospectre_v2", "spectre_v2", "spectre_v2_user", "spec_store_bypass_disable",
     "nospec_store_bypass_disable", "l1tf", "mds", "tsx_async_abort", "mmio_stale_data", "retbleed",
     "srbds", "spec_rstack_overflow", "gather_data_sampling", "reg_file_data_sampling",
     "indirect_target_selection", "tsa", "spectre_bhi", "nosmep", "nosmap", "kvm.nx_huge_pages"}
)  # fmt: skip
"""What switches protections of the kernel (Documentation/admin-guide/kernel-parameters.txt)."""
_DMI: Final = "/sys/class/dmi/id"
_IPMI: Final = "/sys/class/ipmi"
_FIRMWARE: Final = "/sys/firmware/dmi/entries"
_CLOUDS: Final = (
    ("amazon", "aws"),
    ("google", "gcp"),
    ("7783-7084-3265-9085-8269-3286-77", "azure"),
    ("oraclecloud", "oci"),
    ("alibaba cloud", "alibaba"),
    ("openstack", "openstack"),
    ("digitalocean", "digitalocean"),
    ("hetzner", "hetzner"),
)
"""What firmware says of its cloud; 38 is SMBIOS's number for an IPMI device."""
_NOT_HERE: Final = "not there, seen from inside a container: the machine may have it"


def sysctls(host: Host) -> dict[SysctlName, Reading[int]]:
    """The settings that checks ask about, each with its own outcome."""
    host.names("/proc/sys")  # without it nothing below says anything
    names: tuple[SysctlName, ...] = get_args(SysctlName)
    return {name: reading(lambda name=name: _sysctl(host, name)) for name in names}  # type: ignore[misc]


def _sysctl(host: Host, name: str) -> int:
    try:
        return int(host.text(f"/proc/sys/{name.replace('.', '/')}", 64).split()[0])
    except FileNotFoundError:
        if _in_container(host):
            raise HiddenError(f"{name}: {_NOT_HERE}") from None
        raise


def _in_container(host: Host) -> bool:
    """Return whether this may be a container: when nothing says, it may."""
    return known(lambda: container(host)) != NOT_IN_A_CONTAINER


def mounts(host: Host) -> tuple[Mount, ...]:
    """The mounts that checks ask about; the topmost of each."""
    return tuple(
        Mount(target=target, fstype=mount.fstype, options=_flags(mount))
        for target, mount in sorted(host.mounted().items())
        if target in _MOUNT_POINTS
    )


def network_mounts(host: Host) -> tuple[NetworkMount, ...]:
    """The filesystems of other machines that are mounted here."""
    return tuple(
        NetworkMount(
            target=target,
            fstype=mount.fstype,
            options=_flags(mount),
            system=target in _SYSTEM,
            encrypted=_encrypted(mount),
        )
        for target, mount in sorted(host.mounted().items())
        if mount.fstype in NETWORK_FILESYSTEMS
    )


def _encrypted(mount: MountPoint) -> Reading[bool]:
    """Return whether the client's options say that nothing passes in clear."""
    options = dict(part.partition("=")[::2] for part in mount.options.split(","))
    address = options.get("addr", "")
    value: bool | None = None
    if mount.fstype == "fuse.sshfs" or options.get("trans") == "virtio" or _is_here(address):
        value = True
    elif mount.fstype in ("nfs", "nfs4"):
        tls = options.get("xprtsec") in ("tls", "mtls")
        value = tls or options["sec"] == "krb5p" if tls or "sec" in options else None
    elif mount.fstype in ("cifs", "smb3"):
        value = True if "seal" in options else None
    elif mount.fstype == "ceph":
        value = options.get("ms_mode", "legacy") == "secure"
    if value is None:
        reason = f"{mount.target}: the client's options of {mount.fstype} do not say"
        return Reading(outcome=Outcome.ERROR, reason=reason)
    return Reading(outcome=Outcome.OK, value=value)


def _is_here(address: str) -> bool:
    """Return whether the server is this machine: a tunnel's end, as with EFS over TLS."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _flags(mount: MountPoint) -> tuple[str, ...]:
    """Mount options without their values, which may name hosts and keys, but that of hidepid."""
    found = {
        option if option.startswith("hidepid=") else option.partition("=")[0]
        for option in mount.options.split(",")
    }
    return tuple(sorted(found))


def filesystem_of(host: Host, path: str) -> str:
    """The type of the filesystem that holds `path` (the longest mount point before it)."""
    mounted = host.mounted()
    above = (one for one in (path, *map(str, PurePath(path).parents)) if one in mounted)
    holds = next(above, None)
    return mounted[holds].fstype if holds else ""


def shm(host: Host) -> tuple[SharedSegment, ...]:
    """Shared-memory files that NCCL, CUDA and torch leave in /dev/shm."""
    found = []
    for name in host.names("/dev/shm"):  # noqa: S108 - where they are
        if not name.startswith(_SEGMENT_PREFIXES):
            continue
        try:
            info = host.at(f"/dev/shm/{name}").lstat()  # noqa: S108
        except FileNotFoundError:
            continue  # it went away while we looked
        found.append(SharedSegment(name=name, uid=info.st_uid, mode=octal(info.st_mode)))
    return tuple(found)


def kernel(host: Host) -> Kernel:
    """The security words of the command line, lockdown and security modules."""
    return Kernel(
        cmdline=reading(lambda: tuple(_cmdline(host))),
        lockdown=reading(lambda: _chosen(_security(host, "lockdown"))),
        lsm=reading(lambda: tuple(filter(None, _security(host, "lsm").strip().split(",")))),
    )


def _cmdline(host: Host) -> Iterator[str]:
    """``name=value`` for each of the values that stand between commas."""
    words = host.text("/proc/cmdline", 16384).split()
    if not words:
        raise ValueError("/proc/cmdline is empty")
    for word in words:
        name, equals, value = word.strip('"').partition("=")
        if name.replace("-", "_") in _CMDLINE_WORDS:
            yield from (f"{name}{equals}{part}" for part in value.split(","))


def _security(host: Host, name: str) -> str:
    """A file of securityfs.

    Raises:
        HiddenError: when that is not mounted, as in most containers: then nothing is known.
    """
    folder = "/sys/kernel/security"
    if host.filesystem_at(folder) != "securityfs":
        raise HiddenError(f"securityfs is not mounted on {folder}")
    return host.text(f"{folder}/{name}", 1024)


def _chosen(text: str) -> str:
    """The word in brackets: ``none [integrity] confidentiality``."""
    return next((w.strip("[]") for w in text.split() if w.startswith("[")), text.strip())


def hardware(host: Host) -> Hardware:
    """The NVIDIA driver, InfiniBand adapters, the TPM and the confidential-guest device."""
    return Hardware(
        nvidia_driver=reading(lambda: _first_line(host, "/proc/driver/nvidia/version")),
        infiniband=reading(lambda: tuple(host.names("/sys/class/infiniband"))),
        tpm=reading(lambda: _first_device(host, ("/dev/tpmrm0",))),
        container_toolkit=reading(lambda: container_toolkit(host)),
        tee=reading(lambda: _first_device(host, ("/dev/sev-guest", "/dev/tdx_guest"))),
        cloud=reading(lambda: _cloud(host)),
        bmc=reading(lambda: _bmc(host)),
    )


def _cloud(host: Host) -> str:
    """The cloud whose firmware this is.

    Raises:
        FileNotFoundError: when the firmware says nothing, or nothing of a cloud.
    """
    said = []
    for name in ("sys_vendor", "product_name", "chassis_asset_tag", "bios_version"):
        with suppress(FileNotFoundError):
            said.append(host.text(f"{_DMI}/{name}", 4096).strip().lower())
    for mark, cloud in _CLOUDS:
        if any(mark in text for text in said):
            return cloud
    raise FileNotFoundError(errno.ENOENT, "no cloud in what the firmware says", _DMI)


def _bmc(host: Host) -> str:
    """The place that shows a management processor: a driver's, or the firmware's table.

    Raises:
        FileNotFoundError: when there is none.
    """
    with suppress(FileNotFoundError):
        if host.names(_IPMI):
            return _IPMI
    if any(name.startswith("38-") for name in host.names(_FIRMWARE)):
        return f"{_FIRMWARE}/38-0"
    raise FileNotFoundError(errno.ENOENT, "no management processor", _FIRMWARE)


def _first_line(host: Host, path: str) -> str:
    return host.text(path, 4096).splitlines()[0].strip()


def _first_device(host: Host, paths: tuple[str, ...]) -> str:
    """The first that exists, whether or not this user may open it.

    Raises:
        HiddenError: when there is none and /dev is not the kernel's own, as in a container.
        FileNotFoundError: when there is none.
    """
    for path in paths:
        try:
            if stat.S_ISCHR(host.at(path).stat().st_mode):
                return path
        except FileNotFoundError:
            continue
    if host.filesystem_at("/dev") != "devtmpfs":
        raise HiddenError(f"{paths[-1]}: {_NOT_HERE}")
    host.at(paths[-1]).stat()
    raise ValueError(f"{paths[-1]} is no device")


def octal(mode: int) -> str:
    """Permission bits as four octal digits."""
    return f"{stat.S_IMODE(mode):04o}"
