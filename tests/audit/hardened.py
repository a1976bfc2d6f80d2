# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A hardened machine as a tree of files, and what makes each check fail there.

What is read is what the kernel, OpenSSH, NCCL and Python would read: the collectors are under test,
not facts that somebody wrote down.
"""

import os
import shutil
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from securetrain.audit.collect.host import Host
from securetrain.audit.facts import SysctlName

HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"  # noqa: E501
SSHD = """\
Include /etc/ssh/sshd_config.d/*.conf
PermitRootLogin no
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM yes
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
        mount("/proc", "proc"),
        mount("/sys/kernel/security", "securityfs"),
        mount("/dev", "devtmpfs"),
        mount("/tmp", "tmpfs", "rw,nosuid,nodev"),
        mount("/dev/shm", "tmpfs", "rw,nosuid,nodev"),
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


@dataclass
class Machine:
    """A tree that is being built."""

    root: Path
    site: Path
    environ: dict[str, str] = field(default_factory=dict)
    links: bytes = LO + ETH0 + DONE

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
            links=lambda: self.links,
        )


def distribution(site: Path, name: str, version: str, record: str = "", points: str = "") -> None:
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text(record)
    (info / "entry_points.txt").write_text(points)


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
        "/proc/11/comm": "sshd\n",
        "/proc/11/maps": "",
    }.items():
        machine.write(path, text)
    for key, value in SYSCTLS.items():
        machine.write(sysctl(key), f"{value}\n")
    for name in ("inductor", "triton", "extensions"):
        machine.folder(f"/home/me/cache/{name}", 0o700)
    machine.write("/home/me/.ssh/id_ed25519", "-----BEGIN OPENSSH PRIVATE KEY-----\n", 0o600)
    machine.write("/dev/shm/nccl-x", "", 0o600)
    machine.folder("/proc/11/fd")
    (machine.root / "proc/11/fd/3").symlink_to("socket:[22]")
    namespace = machine.root / "proc/self/ns/pid"
    namespace.parent.mkdir(parents=True)
    namespace.symlink_to("pid:[4026531836]")
    machine.environ |= {
        "PATH": "/usr/bin",
        "NCCL_SOCKET_IFNAME": "=eth0",
        "GLOO_SOCKET_IFNAME": "eth0",
        "TORCHINDUCTOR_CACHE_DIR": "/home/me/cache/inductor",
        "TRITON_CACHE_DIR": "/home/me/cache/triton",
        "TORCH_EXTENSIONS_DIR": "/home/me/cache/extensions",
    }
    machine.site.mkdir()
    (machine.site / "honest.pth").write_text("")
    distribution(machine.site, "torch", "2.13.0", record="honest.pth,,\n")
    return machine


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
    return machine


@dataclass(frozen=True)
class Bad:
    """Something on the machine that one check must find."""

    check: str
    make: Callable[[Machine], Any]
    evidence: str = ""
    """The file that shows it: hide it, and the check may not pass."""
    is_subject: bool = False
    """Whether the file is itself what is wrong, so that nothing is wrong without it."""
    also: frozenset[str] = frozenset()
    """Other checks that rightly see it too."""


def text(check: str, path: str, content: str, *, subject: bool = False, also: Any = ()) -> Bad:
    return Bad(check, lambda m: m.write(path, content), path, subject, frozenset(also))


def env(check: str, also: Any = (), **values: str) -> Bad:
    return Bad(check, lambda m: m.environ.update(values), also=frozenset(also))


def setting(check: str, name: SysctlName, value: int) -> Bad:
    return text(check, sysctl(name), f"{value}\n")


def interface(check: str, message: bytes) -> Bad:
    return Bad(check, lambda m: setattr(m, "links", LO + ETH0 + message + DONE))


def _all(*steps: Callable[[Machine], Any]) -> Callable[[Machine], Any]:
    return lambda machine: [step(machine) for step in steps]


MAIN, DROP_IN = "/etc/ssh/sshd_config", "/etc/ssh/sshd_config.d/60.conf"
CONF = "/etc/nccl.conf"
PRIVATE = "-----BEGIN RSA PRIVATE KEY-----\n"


def _unpinned(machine: Machine) -> None:
    del machine.environ["NCCL_SOCKET_IFNAME"]


def _torch(version: str) -> Callable[[Machine], Any]:
    def make(machine: Machine) -> None:
        (machine.site / "torch-2.13.0.dist-info").rename(
            machine.site / f"torch-{version}.dist-info"
        )
        distribution(machine.site, "torch", version, record="honest.pth,,\n")

    return make


BAD: Mapping[str, Bad] = {
    # sshd: order, includes, blocks
    "sshd-comment-is-no-include": Bad(
        "ST-SEC-007",
        _all(
            lambda m: m.write(MAIN, "#" + SSHD.replace("PasswordAuthentication no\n", "")),
            lambda m: m.write(DROP_IN, "PasswordAuthentication no\n"),
        ),
        MAIN,
    ),
    "sshd-include-after-own-lines": Bad(
        "ST-SEC-007",
        _all(
            lambda m: m.write(MAIN, f"PasswordAuthentication yes\n{SSHD}"),
            lambda m: m.write(DROP_IN, "PasswordAuthentication no\n"),
        ),
        MAIN,
    ),
    "sshd-include-first": text("ST-SEC-007", DROP_IN, "PermitRootLogin yes\n", subject=True),
    "sshd-include-elsewhere": Bad(
        "ST-SEC-007",
        _all(
            lambda m: m.write(MAIN, f"Include /opt/site.conf # ours\n{SSHD}"),
            lambda m: m.write("/opt/site.conf", "PasswordAuthentication=yes\n"),
        ),
        "/opt/site.conf",
        is_subject=True,
    ),
    "sshd-match": text(
        "ST-SEC-007", MAIN, f"{SSHD}Match User backup\n\tPasswordAuthentication yes # why\n"
    ),
    "sshd-match-in-drop-in": text(
        "ST-SEC-007", DROP_IN, "Match Address 10.*\n permitrootlogin yes\n", subject=True
    ),
    "sshd-include-in-match": Bad(
        "ST-SEC-007",
        _all(
            lambda m: m.write(MAIN, f"{SSHD}Match all\nInclude opt.conf\n"),
            lambda m: m.write("/etc/ssh/opt.conf", 'KbdInteractiveAuthentication "yes"\n'),
        ),
        MAIN,
    ),
    "sshd-keyboard-interactive": text(
        "ST-SEC-007",
        MAIN,
        "PermitRootLogin no\nPasswordAuthentication no\nChallengeResponseAuthentication yes\n",
    ),
    "sshd-cut-short": text("ST-SEC-007", MAIN, ""),
    # ssh
    "ssh-unchecked-with-comment": text(
        "ST-SEC-006", "/home/me/.ssh/config", "StrictHostKeyChecking no # why\n", subject=True
    ),
    "ssh-unchecked-in-drop-in": Bad(
        "ST-SEC-006",
        _all(
            lambda m: m.write("/etc/ssh/ssh_config", "Include ssh_config.d/*.conf\n"),
            lambda m: m.write("/etc/ssh/ssh_config.d/a.conf", "UserKnownHostsFile=/dev/null\n"),
        ),
        "/etc/ssh/ssh_config.d/a.conf",
        is_subject=True,
    ),
    # NCCL
    "plugin-in-etc": text(
        "ST-FAB-006", CONF, "NCCL_NET_PLUGIN=ofi\n", subject=True, also=["ST-FAB-021"]
    ),
    "plugin-in-home": text(
        "ST-FAB-006",
        "/home/me/.nccl.conf",
        "NCCL_TUNER_PLUGIN=x\n",
        subject=True,
        also=["ST-FAB-021"],
    ),
    "plugin-writable": Bad(
        "ST-FAB-006",
        _all(
            lambda m: m.write(CONF, "NCCL_NET_PLUGIN=/opt/libnccl-net.so\n"),
            lambda m: m.write("/opt/libnccl-net.so", "", 0o666),
        ),
        CONF,
        is_subject=True,
    ),
    "interface-prefix-in-file": Bad(
        "ST-FAB-001",
        _all(
            _unpinned,
            lambda m: m.write("/home/me/.nccl.conf", "NCCL_SOCKET_IFNAME=eth\n"),
            lambda m: m.write(CONF, "NCCL_SOCKET_IFNAME==eth0\n"),
        ),
        "/home/me/.nccl.conf",
        is_subject=True,
        also=frozenset({"ST-FAB-002"}),
    ),
    "interface-with-blanks-is-unset": Bad(
        "ST-FAB-001",
        _all(_unpinned, lambda m: m.write(CONF, "NCCL_SOCKET_IFNAME = =eth0\n")),
        CONF,
        also=frozenset({"ST-FAB-021"}),
    ),
    "gloo-unset": Bad("ST-FAB-002", lambda m: m.environ.pop("GLOO_SOCKET_IFNAME")),
    "comm-id-in-file": text(
        "ST-FAB-004", CONF, "NCCL_COMM_ID=a:1\n", subject=True, also=["ST-FAB-021"]
    ),
    "nccl-conf-writable": Bad("ST-FAB-008", lambda m: m.write(CONF, "", 0o666)),
    "variable-in-file": text("ST-FAB-021", CONF, "NCCL_TOPO_FILE=/x\n", subject=True),
    # network
    "rp-filter": Bad(
        "ST-NET-001",
        _all(
            lambda m: m.write(sysctl("net.ipv4.conf.all.rp_filter"), "0\n"),
            lambda m: setattr(m, "links", LO + ETH0 + link("eth1") + DONE),
        ),
        sysctl("net.ipv4.conf.all.rp_filter"),
    ),
    "router-advertisements": interface("ST-NET-002", link("eth1", four={7: 1}, six={3: 1})),
    "redirects": interface("ST-NET-004", link("eth1", four={7: 1, 3: 1}, six={})),
    "forwarding": setting("ST-NET-005", "net.ipv4.ip_forward", 1),
    "tcp-service": text("ST-NET-011", "/proc/self/net/tcp6", HEADER + row("0" * 32, 8888)),
    "udp-service": text(
        "ST-NET-011", "/proc/self/net/udp", HEADER + row("00000000", 5353, state="07", uid=5)
    ),
    "udp6-service": text(
        "ST-NET-011", "/proc/self/net/udp6", HEADER + row("0" * 32, 111, state="07", uid=5)
    ),
    "store": text(
        "ST-RDZ-002", "/proc/self/net/tcp", HEADER + row("00000000", 29500), also=["ST-NET-011"]
    ),
    "debug-server": Bad(
        "ST-DBG-004",
        _all(
            lambda m: m.write("/proc/self/net/tcp", HEADER + row("0100007F", 25999)),
            lambda m: m.write("/proc/12/comm", "python\n"),
            lambda m: m.write("/proc/12/maps", "7f-80 r-xp 0 0:0 1 /x/libtorch_cpu.so\n"),
            lambda m: m.folder("/proc/12/fd"),
            lambda m: (m.root / "proc/12/fd/3").symlink_to("socket:[77]"),
        ),
        "/proc/self/net/tcp",
    ),
    # host
    "lockdown": text(
        "ST-HST-002", "/sys/kernel/security/lockdown", "[none] integrity confidentiality\n"
    ),
    "spectre": text("ST-HST-004", "/proc/cmdline", "ro spectre_v2=off\n"),
    "iommu-after-comma": text("ST-HST-004", "/proc/cmdline", "ro iommu=noforce,off\n"),
    "kernel-log": setting("ST-HST-005", "kernel.dmesg_restrict", 0),
    "kernel-pointers": setting("ST-HST-005", "kernel.kptr_restrict", 0),
    "bpf": setting("ST-HST-005", "kernel.unprivileged_bpf_disabled", 0),
    "dumps": setting("ST-HST-005", "fs.suid_dumpable", 1),
    "links": setting("ST-HST-006", "fs.protected_symlinks", 0),
    "tmp": text("ST-HST-007", "/proc/self/mountinfo", MOUNTS.replace("rw,nosuid,nodev", "rw")),
    "no-lsm": text("ST-HST-012", "/sys/kernel/security/lsm", "lockdown,capability,yama\n"),
    "ptrace": setting("ST-IPC-002", "kernel.yama.ptrace_scope", 0),
    "shared-memory": Bad("ST-IPC-001", lambda m: m.write("/dev/shm/psm_1a2b", "", 0o644)),
    # identity
    "personal-access-token": env("ST-SEC-001", GITHUB_PAT="github_pat_x"),
    "password-in-url": env("ST-SEC-001", DATABASE_URL="postgres://u:pw@h/db"),
    "key-of-another-name": Bad(
        "ST-SEC-003", lambda m: m.write("/home/me/.ssh/cluster", PRIVATE, 0o644)
    ),
    "key-in-another-folder": Bad(
        "ST-SEC-003",
        _all(
            lambda m: m.write("/home/me/.ssh/config", "Host gpu\nIdentityFile ~/Keys/Gpu.pem\n"),
            lambda m: m.write("/home/me/Keys/Gpu.pem", PRIVATE, 0o640),
        ),
    ),
    # supply chain
    "torch-old": Bad("ST-SUP-001", _torch("2.5.1")),
    "start-up-file": Bad("ST-SUP-011", lambda m: (m.site / "zz.pth").write_text("")),
    "working-directory-in-path": env("ST-SUP-012", PATH="/usr/bin:."),
    "empty-entry-of-path": env("ST-SUP-012", PATH=":/usr/bin"),
    "relative-library-path": env("ST-SUP-012", LD_LIBRARY_PATH="lib"),
    "preloaded-for-all": Bad(
        "ST-SUP-012",
        _all(
            lambda m: m.write("/etc/ld.so.preload", "/opt/hook.so # ours\n"),
            lambda m: m.write("/opt/hook.so", "", 0o666),
        ),
        "/etc/ld.so.preload",
        is_subject=True,
    ),
    "preload-list-writable": Bad("ST-SUP-012", lambda m: m.write("/etc/ld.so.preload", "", 0o666)),
    "inductor": Bad("ST-SUP-013", lambda m: m.folder("/home/me/cache/inductor", 0o777)),
    "triton": Bad("ST-SUP-014", lambda m: m.folder("/home/me/cache/triton", 0o777)),
    "extensions": Bad("ST-SUP-015", lambda m: m.folder("/home/me/cache/extensions", 0o777)),
    "handler": Bad(
        "ST-SUP-023",
        lambda m: distribution(m.site, "other", "1", points="[torchrun.handlers]\nx = o:f\n"),
    ),
    "weights-only": env("ST-CKP-005", TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="Y"),
}
"""By name; between them they make every check fail that looks at the machine."""


GOOD: Mapping[str, tuple[str, Callable[[Machine], Any]]] = {
    "sshd-include-wins": (
        "ST-SEC-007",
        _all(
            lambda m: m.append(MAIN, "PasswordAuthentication yes\n"),
            lambda m: m.write(DROP_IN, "PasswordAuthentication no\n"),
        ),
    ),
    "sshd-match-ends-with-its-file": (
        "ST-SEC-007",
        lambda m: m.write(DROP_IN, "Match User x\nPasswordAuthentication no\n"),
    ),
    "sshd-match-that-closes": (
        "ST-SEC-007",
        lambda m: m.append(MAIN, "Match User x\nPermitRootLogin no\n"),
    ),
    "ssh-settled-before": (
        "ST-SEC-006",
        lambda m: m.append("/etc/ssh/ssh_config", "Host x\nStrictHostKeyChecking no\n"),
    ),
    "interface-pinned-in-file": (
        "ST-FAB-001",
        _all(_unpinned, lambda m: m.write(CONF, "NCCL_SOCKET_IFNAME==eth0\n")),
    ),
    "environment-before-file": (
        "ST-FAB-001",
        lambda m: m.write("/home/me/.nccl.conf", "NCCL_SOCKET_IFNAME=eth\n"),
    ),
    "no-plugin-in-file": ("ST-FAB-006", lambda m: m.write(CONF, "NCCL_NET_PLUGIN=none\n")),
    "agent": ("ST-SEC-001", lambda m: m.environ.update(SSH_AUTH_SOCK="/run/agent")),
    "mode-of-secrets": ("ST-SEC-001", lambda m: m.environ.update(SECRETS_MODE="file")),
    "length-of-passwords": ("ST-SEC-001", lambda m: m.environ.update(PASSWORD_MIN="12")),
    "switch": ("ST-SEC-001", lambda m: m.environ.update(USE_AUTH_TOKEN="True")),
    "weights-only-false": (
        "ST-CKP-005",
        lambda m: m.environ.update(TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="False"),
    ),
    "weights-only-on": (
        "ST-CKP-005",
        lambda m: m.environ.update(TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="on"),
    ),
    "udp-answer-to-a-peer": (
        "ST-NET-011",
        lambda m: m.write("/proc/self/net/udp", HEADER + row("00000000", 40000, state="01", uid=5)),
    ),
    "preloaded-by-root": (
        "ST-SUP-012",
        _all(
            lambda m: m.write("/etc/ld.so.preload", "/opt/hook.so\n"),
            lambda m: m.write("/opt/hook.so", "", 0o755),
        ),
    ),
    "key-of-its-own": (
        "ST-SEC-003",
        lambda m: m.write("/home/me/.ssh/cluster", PRIVATE, 0o600),
    ),
    "known-hosts": ("ST-SEC-003", lambda m: m.write("/home/me/.ssh/known_hosts", "h k\n", 0o644)),
}
"""What looks like a fault and is none."""
