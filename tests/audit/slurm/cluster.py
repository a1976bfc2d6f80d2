# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A hardened cluster's configuration as a tree of files, and what makes each check fail there."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from securetrain.audit.subjects.node.collect.host import Host
from securetrain.audit.subjects.slurm.collect.cluster import collect_slurm_from
from securetrain.audit.subjects.slurm.facts import SlurmFacts
from tests.audit.conftest import NOW

SLURM_CONF = """\
ClusterName=Train
SlurmctldHost=ctl-1(10.0.0.1)
SlurmUser=slurm
AuthType=auth/munge
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key=/var/spool/slurmctld/jwt_hs256.key
TLSType=tls/s2n
DisableRootJobs=YES
PrivateData=accounts,events,jobs,usage,users,nodes,partitions,reservations
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
ProctrackType=proctrack/cgroup
TaskPlugin=task/affinity,task/cgroup
NamespaceType=namespace/tmpfs
PrologFlags=Contain,Alloc
Prolog=/etc/slurm/prolog.d/*
PrologSlurmctld=/etc/slurm/ctld.sh
TaskProlog=/etc/slurm/task.sh
HealthCheckProgram=/usr/sbin/nhc
JobSubmitPlugins=lua
GresTypes=gpu
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageEnforce=associations,limits,qos,safe
PropagateResourceLimitsExcept=MEMLOCK,CORE
MetricsType=metrics/openmetrics
MetricsAuthUsers=prometheus
Include nodes.conf
"""
NODES_CONF = """\
NodeName=gpu-[001-064] CPUs=128 \\
    RealMemory=2000000 Gres=gpu:h100:8 State=UNKNOWN
PartitionName=DEFAULT ExclusiveUser=YES State=UP
PartitionName=train Nodes=gpu-[001-064] Default=YES
PartitionName=debug Nodes=gpu-[001-002]
"""
SLURMDBD_CONF = """\
AuthType=auth/munge
DbdHost=ctl-1
SlurmUser=slurm
PrivateData=accounts,events,jobs,usage,users
StorageType=accounting_storage/mysql
StorageUser=slurm
StoragePass=qm3xT9vGw0LrYd81KbPz
"""
CGROUP_CONF = "ConstrainCores=yes\nConstrainDevices=yes\nConstrainRAMSpace=yes\n"
GRES_CONF = "NodeName=gpu-[001-064] Name=gpu Type=h100 File=/dev/nvidia[0-7]\n"
CONTAINER_CONF = "AutoBasePath=true\nBasePath=/raid/private Dirs=/tmp,/dev/shm\n"
SSHD = "auth include common-auth\n@include common-account\naccount required pam_slurm_adopt.so\n"
REST = """\
[Service]
User=slurmrestd
ExecStart=/usr/sbin/slurmrestd unix:/run/slurmrestd.socket 127.0.0.1:6820
"""


@dataclass(frozen=True, kw_only=True)
class Owned(Host):
    """A host whose files belong to whom the tree says, whoever runs the tests."""

    owned: Mapping[int, int]

    def owner(self, info: os.stat_result) -> int:
        return self.owned.get(info.st_ino, 0)


@dataclass
class Tree:
    """A machine with a Slurm configuration, or a copy of one."""

    root: Path
    directory: str = "/etc/slurm"
    owners: dict[str, int] = field(default_factory=dict)
    """The users that files of it belong to; root without an entry."""

    def write(self, path: str, text: str | bytes, mode: int = 0o644) -> Path:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        file.chmod(mode)
        return file

    def edit(self, path: str, old: str, new: str) -> None:
        file = self.root / path.lstrip("/")
        text = file.read_text()
        assert old in text, (path, old)
        file.write_text(text.replace(old, new, 1))

    def host(self) -> Host:
        return Owned(
            owned={
                os.lstat(self.root / path[1:]).st_ino: uid
                for path, uid in self.owners.items()
                if os.path.lexists(self.root / path[1:])
            },
            environ={},
            search_path=(),
            uid=0,
            gid=0,
            user="",
            home=Path("/"),
            root=self.root,
        )

    def facts(self) -> SlurmFacts:
        return collect_slurm_from(self.host(), self.directory, now=NOW)


KEY = bytes(range(256)) * 4


def hardened(base: Path) -> Tree:
    """A controller that computes too, on which every check passes."""
    base.chmod(0o755)
    tree = Tree(base / "root")
    for path, text in {
        "/etc/slurm/slurm.conf": SLURM_CONF,
        "/etc/slurm/nodes.conf": NODES_CONF,
        "/etc/slurm/cgroup.conf": CGROUP_CONF,
        "/etc/slurm/gres.conf": GRES_CONF,
        "/etc/slurm/job_container.conf": CONTAINER_CONF,
        "/etc/slurm/plugstack.conf": "include /etc/slurm/plugstack.conf.d/*.conf\n",
        "/etc/slurm/plugstack.conf.d/pyxis.conf": "required /usr/lib/slurm/spank_pyxis.so\n",
        "/etc/slurm/job_submit.lua": "",
        "/etc/slurm/version.txt": "slurm 26.05.4\n",
        "/etc/slurm/prolog.d/10-gpu.sh": "",
        "/etc/slurm/ctld.sh": "",
        "/etc/slurm/task.sh": "",
        "/usr/sbin/nhc": "",
        "/usr/sbin/slurmd": "",
        "/usr/lib/slurm/spank_pyxis.so": "",
        "/etc/enroot/mounts.d/20-data.fstab": "/data /data none bind,ro\n",
        "/etc/pam.d/sshd": SSHD,
        "/etc/pam.d/common-account": "account [success=1 new_authtok_reqd=1 default=ignore]"
        " pam_unix.so\naccount requisite pam_deny.so\n",
        "/usr/lib/systemd/system/slurmrestd.service": REST,
        "/etc/passwd": "root:x:0:0::/root:/bin/sh\nslurm:x:640:640::/:/bin/false\n"
        "munge:x:641:641::/:/bin/false\nann:x:1000:1000::/home/ann:/bin/sh\n",
        "/etc/group": "root:x:0:\n",
        "/proc/self/mountinfo": "9 1 0:9 / / rw shared:1 - ext4 none rw\n",
    }.items():
        tree.write(path, text)
    tree.write("/etc/slurm/slurmdbd.conf", SLURMDBD_CONF, 0o600)
    tree.write("/etc/munge/munge.key", KEY, 0o400)
    tree.write("/var/spool/slurmctld/jwt_hs256.key", KEY[:32], 0o600)
    (tree.root / "var/spool/slurmctld").chmod(0o700)
    (tree.root / "var/spool/slurmd").mkdir()
    tree.owners |= {
        "/etc/munge/munge.key": 641,
        "/etc/slurm/slurmdbd.conf": 640,
        "/var/spool/slurmctld": 640,
        "/var/spool/slurmctld/jwt_hs256.key": 640,
    }
    return tree


Make = Callable[[Tree], object]
