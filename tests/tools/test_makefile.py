# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What make says on a machine that lacks something, and that it goes on when the thing is there."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

INTERPRETER = """#!/bin/sh
case "$1 $2" in
"-m venv") {venv} ;;
"-m pip") {pip} ;;
*) exec {python} "$@" ;;
esac
"""


def interpreter(path: Path, *, venv: str, pip: str = "exit 1") -> Path:
    """Write a Python whose modules venv and pip do as they are told."""
    path.write_text(INTERPRETER.format(venv=venv, pip=pip, python=sys.executable))
    path.chmod(0o755)
    return path


def make(tmp_path: Path, python: object) -> subprocess.CompletedProcess[str]:
    venv = tmp_path / "venv"
    return subprocess.run(
        ["make", "-C", str(ROOT), f"VENV={venv}", f"PYTHON={python}", f"{venv}/.run"],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def test_an_environment_that_could_not_be_finished_is_made_again(tmp_path):
    """Debian's Python without python3-venv leaves an interpreter behind, and no pip."""
    inside = tmp_path / "venv" / "bin" / "python"
    half = interpreter(tmp_path / "half", venv=f"mkdir -p {inside.parent}; cp $0 {inside}; exit 1")
    for _ in range(2):
        failed = make(tmp_path, half)
        assert failed.returncode != 0
        assert "install python3-venv" in failed.stderr
    assert inside.exists()
    good = interpreter(
        tmp_path / "good", venv=f"cp {tmp_path}/with-pip {inside}; touch {inside.parent}/pip"
    )
    interpreter(tmp_path / "with-pip", venv="exit 1", pip="exit 0")
    made = make(tmp_path, good)
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "venv" / ".run").exists()


def test_an_old_python_and_none_are_named(tmp_path):
    old = tmp_path / "old"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    for python in (old, tmp_path / "nowhere"):
        refused = make(tmp_path, python)
        assert f"{python} is not Python 3.11 or newer" in refused.stderr
        assert refused.returncode != 0
