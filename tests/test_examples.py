# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The examples do what they say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

OWN_MODEL = Path(__file__).parent.parent / "examples" / "own_model.py"


def steps(command: list[str], tmp_path: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", *command, "--steps", "10"],
        cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return re.findall(r"step \d+: loss .*", done.stdout)


@pytest.mark.dist
@pytest.mark.slow
def test_a_model_of_ones_own_is_the_same_on_every_mesh_and_under_the_launcher(tmp_path):
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node"]
    alone = steps([*torchrun, "1", str(OWN_MODEL)], tmp_path)
    assert len(alone) == 2
    hardened = ["securetrain", "run", "--standalone", "--run-dir", "run", "--nproc-per-node"]
    assert steps([*hardened, "2", str(OWN_MODEL), "--tp", "2"], tmp_path) == alone
    mesh = ["--pp", "2", "--dp-shard", "2"]
    assert steps([*torchrun, "4", str(OWN_MODEL), *mesh], tmp_path) == alone
