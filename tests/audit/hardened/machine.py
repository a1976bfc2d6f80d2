# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A hardened machine as a tree of files.

What is read is what the kernel, OpenSSH, NCCL and Python would read: the collectors are under test,
not facts that somebody wrote down.
"""

import base64
import errno
import hashlib
import os
import shutil
import socket
import stat
import struct
import sys
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import TypeAlias

from securetrain.audit.subjects.node.collect.host import NOTHING, Host, Kernel, Named
from securetrain.audit.subjects.node.facts.node import SysctlName
from tests.audit.hardened import keys
from tests.audit.hardened.signed import NAMED, put_signed

HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"  # noqa: E501
SSHD = """\
Include /etc/ssh/sshd_config.d/*.conf
PermitRootLogin no
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM yes
"""
SUDOERS = """\
Defaults env_reset
User_Alias OPERATORS = ada, %wheel
root ALL=(ALL:ALL) ALL
%sudo ALL=(ALL) ALL
OPERATORS ALL = NOPASSWD: ALL
me ALL=(root) NOPASSWD: /usr/bin/nvidia-smi -pm 1
@includedir /etc/sudoers.d
"""
SYSCTLS: dict[SysctlName, int] = {
    "fs.protected_fifos": 2,
    "fs.protected_hardlinks": 1,
    "fs.protected_regular": 2,
    "fs.protected_symlinks": 1,
    "fs.suid_dumpable": 0,
    "kernel.dmesg_restrict": 1,
    "kernel.kptr_restrict": 2,
    "kernel.unprivileged_bpf_disabled": 2,
    "kernel.yama.ptrace_scope": 1,
    "net.ipv4.conf.all.accept_redirects": 0,
    "net.ipv4.conf.all.rp_filter": 1,
    "net.ipv4.ip_forward": 0,
}


def mount(target: str, fstype: str, options: str = "rw") -> str:
    return f"9 1 0:9 / {target} {options} shared:1 - {fstype} none rw\n"


MOUNTS = "".join(
    (
        mount("/", "ext4"),
        mount("/proc", "proc", "rw,hidepid=invisible"),
        mount("/sys/kernel/security", "securityfs"),
        mount("/dev", "devtmpfs"),
        mount("/tmp", "tmpfs", "rw,nosuid,nodev"),
        mount("/dev/shm", "tmpfs", "rw,nosuid,nodev"),
        "9 1 0:9 / /data rw,nodev,nosuid shared:1 - nfs4 srv:/ rw,sec=krb5p,addr=10.0.0.9\n",
    )
)


def sysctl(name: str) -> str:
    return "/proc/sys/" + name.replace(".", "/")


def row(address: str, port: int, *, state: str = "0A", uid: int = 0, inode: int = 77) -> str:
    """A line of /proc/net/tcp or udp."""
    peer = "0" * len(address)
    return (
        f"   0: {address}:{port:04X} {peer}:0000 {state} 00000000:00000000 00:00000000"
        f" 00000000 {uid:5d}        0 {inode} 1 0 100 0 0 10 0\n"
    )


SSH = row("00000000", 22, inode=22)


def attribute(kind: int, data: bytes) -> bytes:
    whole = struct.pack("=HH", 4 + len(data), kind) + data
    return whole + b"\0" * (-len(whole) % 4)


def link(
    name: str,
    *,
    flags: int = 1,
    kind: str = "",
    four: Mapping[int, int] | None = None,
    six: Mapping[int, int] | None = None,
) -> bytes:
    """One RTM_NEWLINK message; places in `four` count from 0 too."""
    four_words = [(four or {}).get(i, 0) for i in range(33)]
    six_words = [(six or {}).get(i, 0) for i in range(59)]
    inet = attribute(socket.AF_INET, attribute(1, struct.pack("=33i", *four_words)))
    inet6 = attribute(socket.AF_INET6, attribute(2, struct.pack("=59i", *six_words)))
    body = struct.pack("=BxHiII", 0, 1, 2, flags, 0) + attribute(3, name.encode() + b"\0")
    if kind:
        body += attribute(18, attribute(1, kind.encode()))
    body += attribute(26, inet + (b"" if six is None else inet6))
    return struct.pack("=IHHII", 16 + len(body), 16, 2, 1, 0) + body


DONE = struct.pack("=IHHIIi", 20, 3, 2, 1, 0, 0)
LO = link("lo", flags=0x9, six={3: 1})
ETH0 = link("eth0", four={7: 1}, six={})
WG0 = link("wg0", kind="wireguard", four={7: 1}, six={})
ROUTE = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
ROUTES_6 = (
    "fd000000000000000000000000000000 40 " + "0" * 32 + " 00 " + "0" * 32
    + " 00000100 00000001 00000000 00000001     eth0\n"
)  # fmt: skip


def route(network: str, interface: str, flags: int = 1) -> str:
    """A line of /proc/net/route."""
    whole = ip_network(network)
    to, mask = (int.from_bytes(a.packed, sys.byteorder) for a in (whole[0], whole.netmask))
    return f"{interface}\t{to:08X}\t00000000\t{flags:04X}\t0\t0\t0\t{mask:08X}\t0\t0\t0\n"


ACCEPT, DROP = 1, 0


def nft(kind: int, *attributes: bytes) -> bytes:
    """A message about nftables, of the family inet."""
    body = bytes((1, 0, 0, 0)) + b"".join(attributes)
    return struct.pack("=IHHII", 16 + len(body), 0xA00 | kind, 2, 1, 0) + body


def number(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack(">i", value))


def chain(name: str, hook: int | None, policy: int = ACCEPT) -> bytes:
    based = attribute(4, number(1, hook) + number(2, 0)) + number(5, policy) if hook else b""
    words = attribute(1, b"t\0"), attribute(3, f"{name}\0".encode()), attribute(7, b"filter\0")
    return nft(3, *words, based)


def expression(name: str, *attributes: bytes) -> bytes:
    return attribute(1, attribute(1, f"{name}\0".encode()) + attribute(2, b"".join(attributes)))


def iifname(name: str, ended: bytes = b"\0") -> tuple[bytes, bytes]:
    compared = number(1, 1), number(2, 0), attribute(3, attribute(1, name.encode() + ended))
    return expression("meta", number(1, 1), number(2, 6)), expression("cmp", *compared)


def address(offset: int, value: str) -> tuple[bytes, ...]:
    """A comparison of the IPv4 address at an offset: 12 for the source, 16 for the destination."""
    version = number(1, 1), number(2, 0), attribute(3, attribute(1, b"\2"))
    compared = number(1, 1), number(2, 0), attribute(3, attribute(1, ip_address(value).packed))
    loaded = number(1, 1), number(2, 1), number(3, offset), number(4, 4)
    return (
        *(expression("meta", number(1, 1), number(2, 15)), expression("cmp", *version)),
        *(expression("payload", *loaded), expression("cmp", *compared)),
    )


def verdict(code: int, to: str = "") -> bytes:
    words = number(1, code) + (attribute(2, f"{to}\0".encode()) if to else b"")
    return expression("immediate", number(1, 0), attribute(2, attribute(2, words)))


def rule(*expressions: bytes) -> bytes:
    return b"".join(expressions)


def in_chain(name: str, expressions: bytes) -> bytes:
    """The message of a rule."""
    words = attribute(1, b"t\0"), attribute(2, f"{name}\0".encode())
    return nft(6, *words, attribute(4, expressions))


class Filters:
    """What the kernel says of packet filters: a chain that drops for each hook, and their rules."""

    def __init__(self) -> None:
        self.chains = {"input": DROP, "output": DROP}
        self.rules: dict[str, list[bytes]] = {"input": [rule(*iifname("lo"), verdict(1))]}
        self.refused = 0

    def dump(self, kind: int, *_: object) -> bytes:
        if self.refused:
            raise OSError(self.refused, os.strerror(self.refused))
        if kind not in {4, 7}:
            return (nft(0, attribute(1, b"t\0")) if kind == 1 else b"") + DONE
        if kind == 4:
            hooks = {"input": 1, "output": 3}
            others = (chain(name, None) for name in self.rules if name not in hooks)
            based = (chain(n, hooks[n], p) for n, p in self.chains.items())
            return b"".join((*based, *others)) + DONE
        lists = (in_chain(name, one) for name, rules in self.rules.items() for one in rules)
        return b"".join(lists) + DONE


@dataclass
class Machine:
    """A tree that is being built."""

    root: Path
    site: Path
    environ: dict[str, str] = field(default_factory=dict)
    links: bytes = LO + ETH0 + WG0 + DONE
    filters: Filters = field(default_factory=Filters)
    named: Named = NOTHING

    def write(self, path: str, text: str, mode: int = 0o644) -> Path:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)
        return file

    def append(self, path: str, text: str) -> None:
        self.write(path, (self.root / path.lstrip("/")).read_text() + text)

    def folder(self, path: str, mode: int = 0o755) -> None:
        folder = self.root / path.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(mode)

    def host(self) -> Host:
        return Host(
            environ=self.environ,
            search_path=(str(self.site),),
            uid=os.geteuid(),
            gid=os.getegid(),
            user="me",
            home=Path("/home/me"),
            account_home=Path("/home/me"),
            root=self.root,
            kernel=Kernel(links=lambda: self.links, nft=self.filters.dump, programs=tuple),
            named=self.named,
        )


Entry: TypeAlias = tuple[int, int, bytes | str | None]
"""Mode and owner, and the content, the target of a link, or None of a folder."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A machine to which tests may do anything: the next one finds it as it was built."""

    machine: Machine
    entries: Mapping[Path, "Entry"]

    @classmethod
    def of(cls, machine: Machine) -> "Kept":
        return cls(machine, dict(_entries(machine.root.parent)))

    def again(self) -> Machine:
        """The machine as it was built."""
        there = dict(_entries(self.machine.root.parent))
        for path in sorted(there.keys() - self.entries.keys(), reverse=True):
            _remove(path)
        for path, entry in self.entries.items():
            if there.get(path) != entry:
                _restore(path, *entry)
        return replace(
            self.machine, environ=dict(self.machine.environ), filters=deepcopy(self.machine.filters)
        )


def _entries(base: Path) -> Iterator[tuple[Path, Entry]]:
    """Everything below a folder, folders before what is in them."""
    for entry in os.scandir(base):
        path, info = Path(entry.path), entry.stat(follow_symlinks=False)
        mode, own = info.st_mode, (info.st_mode, info.st_uid)
        if entry.is_symlink():
            yield path, (*own, str(path.readlink()))
        elif entry.is_dir():
            path.chmod(0o700 | mode & 0o7777)
            yield path, (*own, None)
            yield from _entries(path)
        elif entry.is_file():
            path.chmod(0o400 | mode & 0o7777)
            yield path, (*own, path.read_bytes())
        else:
            yield path, (*own, "")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _restore(path: Path, mode: int, uid: int, content: bytes | str | None) -> None:
    if os.path.lexists(path) and (content is not None or not path.is_dir()):
        _remove(path)
    if content is None:
        path.mkdir(exist_ok=True)
    elif isinstance(content, str):
        path.symlink_to(content)
        return
    else:
        path.write_bytes(content)
    if path.stat().st_uid != uid:
        os.chown(path, uid, -1)
    path.chmod(stat.S_IMODE(mode))


def distribution(site: Path, name: str, version: str, record: str = "", points: str = "") -> None:
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text(record)
    (info / "entry_points.txt").write_text(points)


def recorded(site: Path) -> str:
    """A module of torch and its line in RECORD."""
    (site / "torch").mkdir(exist_ok=True)
    (site / "torch/serialization.py").write_text("x = 1\n")
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"x = 1\n").digest()).decode().rstrip("=")
    return f"honest.pth,,\ntorch/serialization.py,sha256={digest},6\n"


TOOLKIT = "Package: nvidia-container-toolkit\nStatus: install ok installed\nVersion: 1.18.0-1\n\n"
REQUIREMENTS = "# locked\ntorch==2.13.0 \\\n    --hash=sha256:00\n"


def hardened(base: Path) -> Machine:
    """A machine on which every check passes under the policy 'dev'."""
    machine = Machine(root=base / "root", site=base / "site-packages")
    for path, text in {
        "/proc/self/mountinfo": MOUNTS,
        "/proc/self/cgroup": "0::/user.slice\n",
        "/proc/self/net/tcp": HEADER + SSH,
        "/proc/self/net/tcp6": HEADER,
        "/proc/self/net/udp": HEADER + row("00000000", 68, state="07"),
        "/proc/self/net/udp6": HEADER,
        "/proc/self/net/route": ROUTE + route("10.0.0.0/24", "eth0"),
        "/proc/self/net/ipv6_route": ROUTES_6,
        "/sys/class/dmi/id/sys_vendor": "Dell Inc.\n",
        "/sys/firmware/dmi/entries/17-0/raw": "",
        "/proc/cmdline": "quiet mitigations=auto\n",
        "/proc/driver/nvidia/version": "NVRM version: 580.65.06\n",
        "/sys/kernel/security/lockdown": "none [integrity] confidentiality\n",
        "/sys/kernel/security/lsm": "lockdown,capability,yama,apparmor\n",
        "/etc/passwd": f"root:x:0:0::/root:/bin/sh\nme:x:{os.geteuid()}:9::/home/me:/bin/sh\n",
        "/etc/group": "root:x:0:\nme:x:9:\n",
        "/etc/shadow": "root:*::::::\nme:!::::::\n",
        "/etc/nsswitch.conf": "passwd: files systemd\n",
        "/etc/ssh/sshd_config": SSHD,
        "/etc/ssh/sshd_config.d/50-site.conf": "# nothing yet\n",
        "/etc/ssh/ssh_config": "Host *\n    StrictHostKeyChecking yes\n",
        "/etc/nccl.conf": "NCCL_DEBUG=WARN\n",
        "/usr/bin/true": "",
        "/proc/sys/kernel/random/boot_id": "7e3c1a54-0000-4000-8000-000000000001\n",
        "/etc/machine-id": "0123456789abcdef0123456789abcdef\n",
        "/etc/hosts": "127.0.0.1 localhost\n10.0.0.1 gpu-0 # first\n",
        "/etc/ssh/ssh_host_ed25519_key.pub": "ssh-ed25519 AAAA root@a\n",
        "/usr/bin/nvidia-ctk": "",
        "/var/lib/dpkg/status": TOOLKIT,
        "/etc/pip.conf": "[global]\nindex-url = https://mirror.example/simple\n",
        "/job/requirements.txt": REQUIREMENTS,
        "/usr/bin/sudo": "",
        "/etc/sudoers": SUDOERS,
        "/etc/sudoers.d/README": "# nothing yet\n",
        f"{keys.FOLDER}/node.crt": keys.leaf(),
        f"{keys.FOLDER}/ca.crt": keys.anchor(),
        "/proc/11/comm": "sshd\n",
        "/proc/11/maps": "",
        "/proc/11/cmdline": "/usr/sbin/sshd\0-D\0",
    }.items():
        machine.write(path, text)
    for key, value in SYSCTLS.items():
        machine.write(sysctl(key), f"{value}\n")
    for name in ("inductor", "triton", "extensions"):
        machine.folder(f"/home/me/cache/{name}", 0o700)
    machine.write("/home/me/.ssh/id_ed25519", "-----BEGIN OPENSSH PRIVATE KEY-----\n", 0o600)
    machine.write(f"{keys.FOLDER}/node.pem", "", 0o600)
    machine.write("/dev/shm/nccl-x", "", 0o600)
    machine.folder("/proc/11/fd")
    (machine.root / "proc/11/fd/3").symlink_to("socket:[22]")
    namespace = machine.root / "proc/self/ns/pid"
    namespace.parent.mkdir(parents=True)
    namespace.symlink_to("pid:[4026531836]")
    machine.environ |= {
        "PATH": "/usr/bin",
        "NCCL_SOCKET_IFNAME": "=wg0",
        "GLOO_SOCKET_IFNAME": "wg0",
        "TORCHINDUCTOR_CACHE_DIR": "/home/me/cache/inductor",
        "TRITON_CACHE_DIR": "/home/me/cache/triton",
        "TORCH_EXTENSIONS_DIR": "/home/me/cache/extensions",
    }
    put_signed(machine.root)
    machine.named = NAMED
    machine.site.mkdir()
    (machine.site / "honest.pth").write_text("")
    distribution(machine.site, "torch", "2.13.0", record=recorded(machine.site))
    return machine


def gloo(machine: Machine, *, tls: bool) -> None:
    """A job that wants TLS of Gloo, and torch's library with the names of Gloo's transports."""
    machine.environ["GLOO_DEVICE_TRANSPORT"] = "TCP_TLS"
    library = machine.site / "torch/lib/libtorch_cpu.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    names = [b"_ZN4gloo9transport3tcp6DeviceE", *([b"_ZN4gloo9transport3tcp3tls6DeviceE"] * tls)]
    library.write_bytes(b"\x7fELF\0" + b"\0".join(names))


def plain_container(base: Path) -> Machine:
    """A container of one user as an engine starts it, with the kernel's own defaults."""
    machine = hardened(base)
    for path in ("/sys/kernel/security", "/etc/ssh", "/proc/driver", "/home/me/.ssh"):
        shutil.rmtree(machine.root / path.lstrip("/"))
    (machine.root / "etc/nccl.conf").unlink()
    machine.write(
        "/proc/self/mountinfo",
        mount("/", "overlay")
        + mount("/proc", "proc")
        + mount("/dev", "tmpfs")
        + mount("/dev/shm", "tmpfs", "rw,nosuid,nodev"),
    )
    machine.write("/proc/self/cgroup", "0::/docker/0123456789abcdef\n")
    machine.write("/.dockerenv", "")
    machine.write("/etc/passwd", "root:x:0:0::/root:/bin/bash\nubuntu:x:1000:9::/:/bin/bash\n")
    machine.write("/etc/shadow", "root:*::::::\nubuntu:!::::::\n")
    machine.write("/proc/self/net/tcp", HEADER)
    for name in ("kernel.kptr_restrict", "kernel.dmesg_restrict", "fs.protected_fifos"):
        machine.write(sysctl(name), "0\n")
    machine.write(sysctl("net.ipv4.ip_forward"), "1\n")
    shutil.rmtree(machine.root / "proc/sys/kernel/yama")
    namespace = machine.root / "proc/self/ns/pid"
    namespace.unlink()
    namespace.symlink_to("pid:[4026532301]")
    machine.folder("/tmp", 0o1777)
    machine.environ = {"PATH": "/usr/bin"}
    machine.links = LO + link("eth0", kind="veth", six={26: 1, 3: 1}) + DONE
    machine.filters.refused = errno.EPERM
    machine.append("/proc/self/net/route", route("0.0.0.0/0", "eth0", flags=3))
    return machine
