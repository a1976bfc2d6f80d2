# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Environment variables that the launcher knows: names and why they matter. Data only.

Patterns are shell-style and case-sensitive.
"""

import re
from typing import Final

FABRIC: Final = (
    "NCCL_*",
    "RCCL_*",
    "GLOO_*",
    "TP_SOCKET_IFNAME",
    "TP_TRANSPORT*",
    "UCX_*",
    "UCC_*",
    "FI_*",
    "HCOLL_*",
    "SHARP_*",
    "NVSHMEM_*",
    "ROCSHMEM_*",
    "IBV_*",
    "RDMAV_*",
    "MLX4_*",
    "MLX5_*",
    "PSM2_*",
    "PSM3_*",
)
"""Families that decide where the job's bytes go and which plugins carry them."""

SCHEDULER: Final = (
    "SLURM_*",
    "SLURMD_*",
    "SBATCH_*",
    "PBS_*",
    "LSB_*",
    "LSF_*",
    "SGE_*",
    "FLUX_*",
    "COBALT_*",
    "HYDRA_*",
    "PMI_*",
    "PMIX_*",
    "OMPI_*",
    "PRTE_*",
    "MPI_LOCAL*",
    "MPICH_*",
    "I_MPI_*",
    "KUBERNETES_*",
)
"""Variables of schedulers and MPI launchers; the policy says which reach the workers."""

LAUNCHER: Final = (
    "PET_*",
    "SECURETRAIN_*",
    "TORCHELASTIC_*",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_NAME",
    "ROLE_WORLD_SIZE",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
    "TORCH_ELASTIC_WORKER_IDENTICAL",
)
"""Variables that the launcher or the agent sets; an inherited value is another job's."""

LAUNCHER_KEEP: Final = frozenset(
    {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "TORCHELASTIC_SIGNALS_TO_HANDLE"}
)
"""Settings of torch's agent that only change how it prints and which signals it takes."""

DEBUG_SERVERS: Final = (
    "TORCH_WORKER_SERVER_SOCKET",
    "TORCH_FR_DUMP_TEMP_FILE",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
)
"""Debug endpoints and dump files of torch; dumps are pickles in predictable places."""

CODE_LOADERS: Final = (
    "LD_PRELOAD",
    "LD_AUDIT",
    "LD_ORIGIN_PATH",
    "GLIBC_TUNABLES",
    "GCONV_PATH",
    "PYTHONSTARTUP",
    "PYTHONHOME",
    "PYTHONINSPECT",
    "PYTHONBREAKPOINT",
    "PYTHONPYCACHEPREFIX",
    "PYTHONEXECUTABLE",
    "PYTHONPLATLIBDIR",
    "PYTHONUSERBASE",
    "PYTHON_EXEC",
    "BASH_ENV",
    "ENV",
    "CUDA_INJECTION32_PATH",
    "CUDA_INJECTION64_PATH",
    "NVTX_INJECTION32_PATH",
    "NVTX_INJECTION64_PATH",
    "TRITON_CACHE_MANAGER",
    "TRITON_OVERRIDE_DIR",
    "TRITON_KERNEL_OVERRIDE",
    "TRITON_PTXAS_PATH",
    "TRITON_LIBCUDA_PATH",
    "TORCHINDUCTOR_*REMOTE_CACHE*",
    "TORCHINDUCTOR_REDIS_*",
    "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD",
)
"""Variables that make a process load somebody's code, or drop torch's own safe-loading default."""

SEARCH_PATHS: Final = frozenset({"PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LIBRARY_PATH"})
"""Lists of directories that code is loaded from; unsafe entries are taken out one by one."""

CACHES: Final = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "TORCH_EXTENSIONS_DIR": "extensions",
}
"""Directories of compiled code, which torch would otherwise load from predictable shared places:
whoever writes there first runs code in every job. Variable to directory below the cache of the
run's key (`launch.compile_cache`)."""

SECRET_NAME: Final = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|SECRETS|PASSWORD|PASSWD|PASSPHRASE|PWD|PAT|CREDENTIAL|CREDENTIALS|"
    r"APIKEY|COOKIE|JWT|AUTH_SOCK|AUTH_CONFIG|NETRC|"
    r"(?:API|ACCESS|PRIVATE|SECRET|SIGNING|ENCRYPTION|SERVICE|ACCOUNT|SSH|AUTH|LICENSE)_KEY)(?:_|$)"
    r"|^PGPASS|PASSWORD$|_KEY$|^OTEL_EXPORTER_OTLP_(?:\w+_)?HEADERS$",
    re.IGNORECASE,
)
"""Names that look like a secret. Every worker, every library in it and every peer that gets code
execution there can read the environment, and `/proc` shows it to the user's other processes."""

SECRET_NAME_KEEP: Final = frozenset({"PWD", "OLDPWD"})

SECRET_VALUE: Final = re.compile(r"[a-z][a-z0-9+.-]{0,30}://[^/\s:@]*:[^/\s@]+@", re.IGNORECASE)
"""A URL with a password in it."""
