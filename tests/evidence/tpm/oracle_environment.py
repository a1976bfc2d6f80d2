# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""tpm2-pytss, compiled once, in an environment of its own: an oracle, and the extra ``[tpm]``.

It is compiled against libtss2 (libtss2-dev, gcc, pkg-config and an index of packages are needed),
so no development environment has it by default. To optimize what cffi generates would take more
than twice as long, for a few thousand calls.
"""

import importlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from securetrain.core.files import locked
from tests.vocabulary import outcome, pip_for

PACKAGE = "tpm2-pytss==3.0.0"
ENVIRONMENT = Path(__file__).resolve().parents[3] / "build" / "oracles" / PACKAGE.replace("==", "-")
BUILD_SECONDS = 240


def oracle_python(lost: str) -> Path:
    """The interpreter of the environment, made when it is not there.

    Args:
        lost: What a test does not show without it, for the reason of its skip.
    """
    ENVIRONMENT.parent.mkdir(parents=True, exist_ok=True)
    with locked(ENVIRONMENT.with_suffix(".lock")):
        return _made(lost)


def use_library(lost: str) -> None:
    """Make ``import tpm2_pytss`` work in this process; what is installed already goes first."""
    try:
        importlib.import_module("tpm2_pytss")
    except ModuleNotFoundError:
        python = oracle_python(lost)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        sys.path.append(str(python.parent.parent / "lib" / version / "site-packages"))
        importlib.invalidate_caches()
        importlib.import_module("tpm2_pytss")


def _made(lost: str) -> Path:
    python, ready = ENVIRONMENT / "bin" / "python", ENVIRONMENT / "ready"
    if ready.exists():
        return python
    if missing := [tool for tool in ("gcc", "pkg-config") if shutil.which(tool) is None]:
        pytest.skip(f"{lost}: {', '.join(missing)} not found")
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    venv.create(ENVIRONMENT)
    command = [*pip_for(python), PACKAGE]
    env = {**os.environ, "CFLAGS": "-O0 -g0"}
    try:
        done = outcome(command, env=env, timeout=BUILD_SECONDS)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{lost}: {PACKAGE} took over {BUILD_SECONDS} s to build")
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        pytest.skip(f"{lost}: {PACKAGE} cannot be installed: {reason}")
    ready.touch()
    return python
