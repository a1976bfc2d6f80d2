# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The kernel, mounts and shared memory."""

from collections.abc import Callable, Mapping
from typing import Any

from tests.audit.hardened.faults import Bad, all_of, setting, text
from tests.audit.hardened.machine import MOUNTS, SUDOERS, Machine

BAD: Mapping[str, Bad] = {
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
    "mps": Bad(
        "ST-IPC-004",
        all_of(
            lambda m: m.folder("/tmp", 0o1777),
            lambda m: m.folder("/tmp/nvidia-mps", 0o777),
        ),
    ),
    "control-socket": Bad(
        "ST-IPC-008",
        all_of(
            lambda m: m.folder("/tmp", 0o1777),
            lambda m: m.environ.update(TORCH_WORKER_SERVER_SOCKET="/tmp/worker.sock"),
        ),
    ),
    "processes-of-all": text(
        "ST-SEC-012", "/proc/self/mountinfo", MOUNTS.replace("rw,hidepid=invisible", "rw,hidepid=0")
    ),
    "sudo": text("ST-SEC-009", "/etc/sudoers", SUDOERS + "me ALL=(ALL) NOPASSWD: ALL\n"),
    "sudo-by-group": text("ST-SEC-009", "/etc/sudoers", f"{SUDOERS}%me ALL = NOPASSWD:ALL\n"),
    "sudo-by-alias": text(
        "ST-SEC-009",
        "/etc/sudoers",
        SUDOERS.replace("ada, %wheel", "ada, \\\n  me # on call").replace("%sudo", "%wheel"),
    ),
    "sudo-in-a-folder": text(
        "ST-SEC-009", "/etc/sudoers.d/90-cloud", "ALL ALL=(ALL) NOPASSWD:ALL\n", subject=True
    ),
    "sudo-of-an-editor": text(
        "ST-SEC-009",
        "/etc/sudoers",
        f"{SUDOERS}me ALL=PASSWD: /bin/ls, NOPASSWD: /usr/bin/vim /etc/x\n",
    ),
    "sudo-without-authentication": text(
        "ST-SEC-009", "/etc/sudoers", SUDOERS.replace("env_reset", "env_reset, !authenticate")
    ),
    "ptrace": setting("ST-IPC-002", "kernel.yama.ptrace_scope", 0),
    "shared-memory": Bad("ST-IPC-001", lambda m: m.write("/dev/shm/psm_1a2b", "", 0o644)),
}

GOOD: Mapping[str, tuple[str, Callable[[Machine], Any]]] = {
    "sudo-taken-away": (
        "ST-SEC-009",
        lambda m: m.append("/etc/sudoers", "ALL, !me ALL = NOPASSWD: ALL\n"),
    ),
    "sudo-file-that-is-not-read": (
        "ST-SEC-009",
        lambda m: m.write("/etc/sudoers.d/90.conf", "ALL ALL=(ALL) NOPASSWD:ALL\n"),
    ),
    "sudo-for-others-only": (
        "ST-SEC-009",
        lambda m: m.append("/etc/sudoers", "Defaults:ada !authenticate\n#77 ALL=NOPASSWD:ALL\n"),
    ),
    "no-sudo": (
        "ST-SEC-009",
        all_of(
            lambda m: (m.root / "etc/sudoers").unlink(),
            lambda m: (m.root / "usr/bin/sudo").unlink(),
        ),
    ),
    "no-mps": ("ST-IPC-004", lambda m: m.folder("/tmp", 0o1777)),
}
