# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What makes each check fail on the hardened cluster, and what only looks as if it did."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.audit.conftest import FIXTURES
from tests.audit.declared import machines
from tests.audit.slurm.cluster import Tree

CONF = "/etc/slurm/slurm.conf"
NODES = "/etc/slurm/nodes.conf"
CGROUP = "/etc/slurm/cgroup.conf"
DBD = "/etc/slurm/slurmdbd.conf"
KEY = "/etc/munge/munge.key"
SSHD = "/etc/pam.d/sshd"
REST = "/usr/lib/systemd/system/slurmrestd.service"
CONTAINER = "/etc/slurm/job_container.conf"


@dataclass(frozen=True)
class Bad:
    """A fault, the check that must find it, and the file and the line that show it."""

    check: str
    make: Callable[[Tree], object]
    evidence: str
    line: int = 0
    also: frozenset[str] = frozenset()


def edit(check: str, path: str, old: str, new: str, *at: int | str) -> Bad:
    """A change of a file, with the line that shows it and the checks that see it too."""
    line = next((one for one in at if isinstance(one, int)), 0)
    also = frozenset(one for one in at if isinstance(one, str))
    return Bad(check, lambda t: t.edit(path, old, new), path, line, also)


def mode(check: str, path: str, bits: int) -> Bad:
    return Bad(check, lambda t: (t.root / path[1:]).chmod(bits), path)


def owner(check: str, path: str, uid: int = 1000) -> Bad:
    return Bad(check, lambda t: t.owners.update({path: uid}), path)


def write(check: str, path: str, text: str | bytes, bits: int = 0o644, line: int = 0) -> Bad:
    return Bad(check, lambda t: t.write(path, text, bits), path, line)


def in_scratch(tree: Tree) -> None:
    tree.edit(CONF, "=/etc/slurm/task.sh", "=/scratch/task.sh")
    tree.write("/scratch/task.sh", "").parent.chmod(0o777)


BAD: dict[str, Bad] = {
    "auth-none": edit("ST-SLM-001", CONF, "AuthType=auth/munge", "AuthType=auth/none", 4),
    "auth-none-last": edit("ST-SLM-001", NODES, "NodeName=", "authtype = auth/none\nNodeName=", 1),
    "auth-none-continued": edit("ST-SLM-001", CONF, "=auth/munge", "= \\\n auth/none", 4),
    "alt-none": edit("ST-SLM-001", CONF, "=auth/jwt", "=auth/jwt,auth/none", 5, "ST-SLM-003"),
    "cred-none": edit("ST-SLM-002", CONF, "TLSType", "CredType=cred/none\nTLSType", 7),
    "crypto-none": edit("ST-SLM-002", CONF, "TLSType", "CryptoType=crypto/none\nTLSType", 7),
    "munge-key-open": mode("ST-SLM-003", KEY, 0o440),
    "munge-key-of-ann": owner("ST-SLM-003", KEY),
    "token-key-open": mode("ST-SLM-003", "/var/spool/slurmctld/jwt_hs256.key", 0o644),
    "munge-key-of-a-password": write(
        "ST-SLM-004", KEY, b"5baa61e4c9b93f3f0682250b6cf8331b7ee68f", 0o400
    ),
    "munge-key-of-zeros": write("ST-SLM-004", KEY, b"\0" * 1024, 0o400),
    "munge-in-containers": write(
        "ST-SLM-005", "/etc/enroot/mounts.d/10.fstab", "# x\n/run/munge /run/munge\n", line=2
    ),
    "no-tls": edit("ST-SLM-006", CONF, "TLSType=tls/s2n", "TLSType=tls/none", 7),
    "tls-unset": edit("ST-SLM-006", CONF, "TLSType=tls/s2n", "#TLSType=tls/s2n", 0),
    "slurm-user-root": edit(
        "ST-SLM-007",
        CONF,
        "SlurmUser=slurm",
        "SlurmUser=root",
        3,
        "ST-SLM-003",
        "ST-SLM-016",
        "ST-SLM-023",
    ),
    "root-jobs": edit("ST-SLM-008", CONF, "RootJobs=YES", "RootJobs=0", 8),
    "root-jobs-somewhere": edit(
        "ST-SLM-008", NODES, "debug Nodes", "debug DisableRootJobs=NO Nodes", 5
    ),
    "private-data-unset": edit("ST-SLM-009", CONF, "PrivateData=", "#PrivateData=", 0),
    "private-data-less": edit("ST-SLM-009", CONF, "jobs,usage,", "", 9),
    "private-in-database": edit("ST-SLM-009", DBD, "PrivateData=", "#PrivateData=", 0),
    "conf-of-ann": owner("ST-SLM-010", CONF),
    "included-of-ann": owner("ST-SLM-010", NODES),
    "conf-for-all": mode("ST-SLM-010", CGROUP, 0o666),
    "lua-for-all": mode("ST-SLM-010", "/etc/slurm/job_submit.lua", 0o646),
    "plugstack-for-all": mode("ST-SLM-010", "/etc/slurm/plugstack.conf.d/pyxis.conf", 0o666),
    "prolog-for-all": mode("ST-SLM-011", "/etc/slurm/prolog.d/10-gpu.sh", 0o777),
    "health-of-ann": owner("ST-SLM-011", "/usr/sbin/nhc"),
    "prolog-in-scratch": Bad("ST-SLM-011", in_scratch, CONF, 18),
    "spank-of-ann": owner("ST-SLM-011", "/usr/lib/slurm/spank_pyxis.so"),
    "linuxproc": edit("ST-SLM-012", CONF, "proctrack/cgroup", "proctrack/linuxproc", 12),
    "no-task-cgroup": edit("ST-SLM-012", CONF, ",task/cgroup", "", 13),
    "devices-no": edit("ST-SLM-012", CGROUP, "Devices=yes", "Devices=no", 2),
    "devices-unset": edit("ST-SLM-012", CGROUP, "ConstrainDevices=yes\n", "", 0),
    "ram-unset": edit("ST-SLM-012", CGROUP, "ConstrainRAMSpace=yes\n", "", 0),
    "gpus-without-files": write(
        "ST-SLM-012", "/etc/slurm/gres.conf", "AutoDetect=off\nName=gpu Count=8\n", line=2
    ),
    "tmp-shared": edit("ST-SLM-013", CONF, "NamespaceType", "#NamespaceType", 0),
    "namespace-none": edit(
        "ST-SLM-013",
        CONF,
        "NamespaceType=namespace/tmpfs",
        "JobContainerType=job_container/none",
        14,
    ),
    "shm-shared": edit("ST-SLM-013", CONTAINER, "/tmp,/dev/shm", "/tmp", 2),
    "off-for-some": edit(
        "ST-SLM-013", CONTAINER, "AutoBase", "NodeName=gpu-[1-2] BasePath=none\nAutoBase", 1
    ),
    "no-contain": edit("ST-SLM-014", CONF, "Contain,Alloc", "Alloc", 15),
    "not-adopted": edit("ST-SLM-014", SSHD, "account required pam_slurm", "# account pam_slurm", 0),
    "adopted-last-of-all": edit(
        "ST-SLM-014", SSHD, "@include common-account\n", "account sufficient pam_localuser.so\n", 2
    ),
    "adopted-optional": edit("ST-SLM-014", SSHD, "account required", "account optional", 3),
    "not-enforced": edit(
        "ST-SLM-015", CONF, "StorageEnforce=associations", "StorageEnforce=wckeys#", 23
    ),
    "database-open": mode("ST-SLM-016", DBD, 0o640),
    "database-of-ann": owner("ST-SLM-016", DBD),
    "password-of-guides": edit("ST-SLM-016", DBD, "qm3xT9vGw0LrYd81KbPz", "some_pass", 7),
    "password-short": edit("ST-SLM-016", DBD, "qm3xT9vGw0LrYd81KbPz", "t7Kz", 7),
    "password-none": edit("ST-SLM-016", DBD, "StoragePass", "#StoragePass", 0),
    "rest-open": edit("ST-SLM-017", REST, "127.0.0.1:6820", "0.0.0.0:6820", 0),
    "rest-as-root": edit("ST-SLM-017", REST, "User=slurmrestd", "", 0),
    "rest-as-slurm": edit("ST-SLM-017", REST, "User=slurmrestd", "User=slurm", 0),
    "limits": edit("ST-SLM-018", CONF, "LimitsExcept=MEMLOCK,CORE", "Limits=ALL", 24),
    "old": write("ST-SLM-020", "/etc/slurm/version.txt", "slurm 24.05.7\n", line=1),
    "older": write("ST-SLM-020", "/etc/slurm/version.txt", "slurm 22.05.11\n", line=1),
    "shared-nodes": edit("ST-SLM-021", NODES, "debug Nodes", "debug ExclusiveUser=NO Nodes", 5),
    "state-open": mode("ST-SLM-023", "/var/spool/slurmctld", 0o755),
    "state-of-ann": owner("ST-SLM-023", "/var/spool/slurmctld"),
    "spool-for-all": mode("ST-SLM-023", "/var/spool/slurmd", 0o777),
    "metrics": edit(
        "ST-SLM-024",
        CONF,
        "MetricsAuthUsers=prometheus",
        "MetricsParameters=ignore_private_data",
        0,
    ),
}
BAD |= {
    name: Bad(check, made.make, made.evidence, also=made.also)
    for name, (check, made) in machines(FIXTURES, "slurm").items()
}


GOOD: Final = {
    "munge is the default": ("ST-SLM-001", lambda t: t.edit(CONF, "AuthType=auth/munge\n", "")),
    "auth/slurm": (
        "ST-SLM-001",
        lambda t: t.edit(CONF, "AuthType=auth/munge", "AuthType=auth/slurm"),
    ),
    "in a comment": (
        "ST-SLM-001",
        lambda t: t.edit(CONF, "AuthType", "#AuthType=auth/none\nAuthType"),
    ),
    "overwritten": (
        "ST-SLM-001",
        lambda t: t.edit(CONF, "AuthType", "AuthType=auth/none\nAuthType"),
    ),
    "of another name": (
        "ST-SLM-001",
        lambda t: t.edit(CONF, "TLSType", "AuthInfo=auth/none\nTLSType"),
    ),
    "crypto/munge": ("ST-SLM-002", lambda t: t.edit(CONF, "TLS", "CryptoType=crypto/munge\nTLS")),
    "switches have many words": (
        "ST-SLM-012",
        lambda t: t.write(
            CGROUP, "constraincores=1\nConstrainDevices = TRUE\nConstrainRamSpace=up\n"
        ),
    ),
    "plug-ins by short names": (
        "ST-SLM-012",
        lambda t: t.edit(CONF, "task/affinity,task/cgroup", "cgroup,affinity"),
    ),
    "found by NVML": ("ST-SLM-012", lambda t: t.write("/etc/slurm/gres.conf", "AutoDetect=nvml\n")),
    "its old name": (
        "ST-SLM-013",
        lambda t: t.edit(
            CONF, "NamespaceType=namespace/tmpfs", "JobContainerType=job_container/tmpfs"
        ),
    ),
    "directories by default": (
        "ST-SLM-013",
        lambda t: t.write(CONTAINER, "BasePath=/raid/private\n"),
    ),
    "namespace/linux": (
        "ST-SLM-013",
        lambda t: (
            t.edit(CONF, "namespace/tmpfs", "namespace/linux"),
            t.write("/etc/slurm/namespace.yaml", "defaults: {base_path: /raid/private}\n"),
        ),
    ),
    "limits implied": (
        "ST-SLM-015",
        lambda t: t.edit(CONF, "associations,limits,qos,safe", "safe"),
    ),
    "a socket alone": (
        "ST-SLM-017",
        lambda t: t.edit(REST, " 127.0.0.1:6820", ""),
    ),
    "a user of its own": (
        "ST-SLM-017",
        lambda t: t.edit(REST, "User=slurmrestd", "DynamicUser=yes"),
    ),
    "a newer series": (
        "ST-SLM-020",
        lambda t: t.write("/etc/slurm/version.txt", "slurm 26.11.0\n"),
    ),
    "a script says it": (
        "ST-SLM-016",
        lambda t: t.edit(DBD, "StoragePass=qm3xT9vGw0LrYd81KbPz", "StoragePassScript=/etc/slurm/p"),
    ),
    "a program of SlurmUser for slurmctld": (
        "ST-SLM-011",
        lambda t: t.owners.update({"/etc/slurm/ctld.sh": 640}),
    ),
}
