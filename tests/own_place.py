# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A home, caches and state of one process of tests, in place of the machine's.

Nothing that a developer's machine remembers changes what a test finds, and no test leaves anything
there. Two suites at once share nothing; ports are the system's choice (`tests.vocabulary`).
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from securetrain.core.nodestate import STATE_VARIABLE

ROOT: Final = Path(__file__).resolve().parent.parent
_STEERING: Final = (
    *(
        "AWS_",
        "CUDA_",
        "DS_",
        "GITHUB_",
        "GLOO_",
        "HF_",
        "HUGGINGFACE_",
        "KUBE",
        "LOCAL_",
        "MASTER_",
    ),
    *("MLFLOW_", "NCCL_", "PET_", "RANK", "SLURM_", "SSH_", "TORCH", "TRANSFORMERS_", "TRITON_"),
    *("UCX_", "WANDB_", "WORLD_SIZE", "XDG_"),
)
"""Beginnings of variables that lead to the machine's places, or steer a job."""


def take_own_place() -> Path:
    """Point this process, and all that it starts, to a fresh folder; the caller removes it."""
    place = Path(tempfile.mkdtemp(prefix="st-tests-"))
    for name in [name for name in os.environ if name.startswith(_STEERING)]:
        del os.environ[name]
    pip = Path.home() / ".config" / "pip" / "pip.conf"
    if pip.exists():  # where packages come from is no state: tests build wheels
        os.environ.setdefault("PIP_CONFIG_FILE", str(pip))
    for name, below in (("HOME", "home"), ("XDG_CACHE_HOME", "cache"), (STATE_VARIABLE, "state")):
        os.environ[name] = str(place / below)
        (place / below).mkdir(mode=0o700)
    # A checkout may belong to another user than the one that tests it.
    (place / "home" / ".gitconfig").write_text(f"[safe]\n\tdirectory = {ROOT}\n")
    return place


def leave(place: Path, pid: int) -> None:
    """Remove the folder, in the process that took it."""
    if os.getpid() == pid:
        shutil.rmtree(place, ignore_errors=True)
