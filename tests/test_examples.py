# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The examples do what they say."""

import re
import sys
from pathlib import Path

import pytest

from tests.vocabulary import ran

EXAMPLES = Path(__file__).parent.parent / "examples"
OWN_MODEL = EXAMPLES / "own_model.py"


def steps(command: list[str], tmp_path: Path) -> list[str]:
    done = ran([sys.executable, "-m", *command, "--steps", "10"], cwd=tmp_path)
    return re.findall(r"step \d+: loss .*", done.stdout)


@pytest.mark.many
@pytest.mark.dist
@pytest.mark.slow
def test_a_model_of_ones_own_is_the_same_on_a_mesh_under_the_launcher(tmp_path):
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node"]
    alone = steps([*torchrun, "1", str(OWN_MODEL)], tmp_path)
    assert len(alone) == 2
    hardened = ["securetrain", "run", "--standalone", "--run-dir", "run", "--nproc-per-node"]
    assert steps([*hardened, "2", str(OWN_MODEL), "--tp", "2"], tmp_path) == alone


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.many
def test_so_it_is_on_four_ranks(tmp_path):
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node"]
    alone = steps([*torchrun, "1", str(OWN_MODEL)], tmp_path)
    mesh = ["--pp", "2", "--dp-shard", "2"]
    assert steps([*torchrun, "4", str(OWN_MODEL), *mesh], tmp_path) == alone


@pytest.mark.dist
@pytest.mark.slow
def test_a_tiny_model_is_made_signed_fine_tuned_and_taken_elsewhere(tmp_path):
    """The commands at the top of the recipe, one after the other."""
    recipe = EXAMPLES / "fine-tune.yaml"

    def run(*command: str) -> str:
        done = ran([sys.executable, *command], cwd=tmp_path)
        return done.stdout

    text = recipe.read_text(encoding="utf-8").replace("\\\n#", "")
    commands = re.findall(r"^#   (\S.*?)(?:  +or any.*)?$", text, re.MULTILINE)
    lines = [one.strip() for line in commands for one in line.split(";")]
    assert len(lines) == 9
    said = []
    for line in lines:
        words = [str(EXAMPLES.parent / w) if w.startswith("examples/") else w for w in line.split()]
        said.append(run(*(words[1:] if words[0] == "python" else ["-m", *words])))
    losses = [float(x) for x in re.findall(r"step \d+/30  ([0-9.]+) nats", said[-2])]
    assert losses[-1] < losses[0] - 0.5, losses
    assert (tmp_path / "tuned" / "model.safetensors").is_file()
    assert (tmp_path / "tuned" / "tokenizer.json").is_file()
    plan = run("-m", "securetrain", "plan", str(recipe))
    assert "2 layers of 64" in plan
