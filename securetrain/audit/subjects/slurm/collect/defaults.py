# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The values that Slurm uses for what a configuration does not set, by version.

Source: Slurm's own, https://github.com/SchedMD/slurm, branches slurm-21.08 to slurm-26.05:
``src/common/read_config.h`` and ``read_config.c`` for slurm.conf, ``src/interfaces/cgroup.c``
(before 23.02 ``src/common/cgroup.c``) for cgroup.conf, ``src/slurmdbd/read_config.c`` for
slurmdbd.conf, ``src/plugins/namespace/tmpfs/read_jcconf.h`` for job_container.conf. None of those
that checks ask about changed between these versions; where a name came, the row says since when.
What a newer version does without a setting is not known here.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

Version: TypeAlias = tuple[int, int]

OLDEST: Final[Version] = (21, 8)
NEWEST: Final[Version] = (26, 5)
"""The versions that the table was compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Default:
    """One setting of slurm.conf or cgroup.conf."""

    names: tuple[str, ...]
    """Its name, and older or newer ones; the first that is set counts."""
    value: str
    """The value that Slurm takes without it: words for a list, ``yes`` or ``no`` for a switch."""
    since: Version = OLDEST
    """Before, Slurm does not know the name and refuses the file."""


SLURM_CONF: Final = {
    "auth_type": Default(names=("AuthType",), value="auth/munge"),
    "auth_alt_types": Default(names=("AuthAltTypes",), value=""),
    "cred_type": Default(names=("CredType", "CryptoType"), value="cred/munge"),
    "tls_type": Default(names=("TLSType",), value="tls/none", since=(24, 5)),
    "slurm_user": Default(names=("SlurmUser",), value="root"),
    "disable_root_jobs": Default(names=("DisableRootJobs",), value="no"),
    "private_data": Default(names=("PrivateData",), value=""),
    # A Slurm that was built without cgroups has proctrack/pgid here, and no task/cgroup either.
    "proctrack_type": Default(names=("ProctrackType",), value="proctrack/cgroup"),
    "task_plugin": Default(names=("TaskPlugin",), value=""),
    "namespace_type": Default(names=("NamespaceType", "JobContainerType"), value=""),
    "prolog_flags": Default(names=("PrologFlags",), value=""),
    "gres_types": Default(names=("GresTypes",), value=""),
    "accounting_storage_type": Default(names=("AccountingStorageType",), value=""),
    "accounting_storage_enforce": Default(names=("AccountingStorageEnforce",), value=""),
    "propagate_resource_limits": Default(names=("PropagateResourceLimits",), value="all"),
    "propagate_resource_limits_except": Default(names=("PropagateResourceLimitsExcept",), value=""),
    "metrics_type": Default(names=("MetricsType",), value="", since=(25, 11)),
    "metrics_auth_users": Default(names=("MetricsAuthUsers",), value="", since=(26, 5)),
    "metrics_parameters": Default(names=("MetricsParameters",), value="", since=(26, 5)),
}
CGROUP_CONF: Final = {
    "constrain_cores": Default(names=("ConstrainCores",), value="no"),
    "constrain_devices": Default(names=("ConstrainDevices",), value="no"),
    "constrain_ram_space": Default(names=("ConstrainRAMSpace",), value="no"),
}
SLURMDBD_CONF: Final = {
    "dbd_private_data": Default(names=("PrivateData",), value=""),
}
STATE_SAVE_LOCATION: Final = "/var/spool"
SLURMD_SPOOL_DIR: Final = "/var/spool/slurmd"
PRIVATE_DIRS: Final = "/tmp,/dev/shm"  # noqa: S108 - what it makes private
PLUGSTACK: Final = "plugstack.conf"


def unknown_to(default: Default, version: Version | None, *, is_set: bool) -> str:
    """The reason why nothing is known of a setting in a version; empty when something is."""
    if version is None:
        return ""
    shown = f"{version[0]}.{version[1]:02}"
    if is_set and version < default.since:
        return f"Slurm {shown} does not know {default.names[0]}, and refuses the file"
    if not is_set and version > NEWEST:
        return (
            f"{default.names[0]} is not set, and the defaults of Slurm {shown} are not known here"
        )
    return ""
