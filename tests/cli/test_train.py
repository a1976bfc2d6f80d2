# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain train``: which flag goes where.

Commands of docs/how-to/train-a-job.md are tried here.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from securetrain.cli.jobs.train import HELP, TRAINER_FLAGS, command, split_flags
from securetrain.core.errors import UsageError
from tests.tables import items
from tests.train.jobs import JOB
from tests.vocabulary import refused


@items(
    "flags, trainer, launcher",
    ([], [], []),
    (["--steps", "9"], ["--steps", "9"], []),
    (["--steps=9", "--tee", "3"], ["--steps=9"], ["--tee", "3"]),
    (
        ["--run-dir", "r", "--resume", "never", "--max-restarts", "2", "--stop-after", "4"],
        ["--resume", "never", "--stop-after", "4"],
        ["--run-dir", "r", "--max-restarts", "2"],
    ),
    (["--standalone"], [], ["--standalone"]),
)
def test_the_trainers_flags_are_the_trainers(flags, trainer, launcher):
    assert split_flags(flags) == (trainer, launcher)


@pytest.mark.parametrize("flag", TRAINER_FLAGS)
def test_a_flag_without_a_value_is_refused(flag):
    refused(UsageError, "ST-USAG-001", split_flags, ["--standalone", flag])
    assert flag in HELP


def test_the_launcher_gets_the_jobs_numbers_and_the_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(JOB + "launch: {nproc_per_node: 2}\n")
    seen: list[Sequence[str]] = []

    def main(argv: Sequence[str]) -> int:
        seen.append(argv)
        return 0

    monkeypatch.setattr("securetrain.launch.main", main)
    arguments = [str(job), "--steps", "9", "--run-dir", "r"]
    assert command.main(arguments, standalone_mode=False) == 0
    assert seen == [
        [
            *("--standalone", "--nproc-per-node=2", "--nnodes=1", "--run-dir", "r"),
            *("-m", "securetrain.train", str(job), "--steps", "9"),
        ]
    ]


@pytest.mark.parametrize(("arguments", "code"), [([], 2), (["--help"], 0), (["j.yaml", "-h"], 0)])
def test_help_shows_both_kinds_of_flags(arguments, code):
    result = CliRunner().invoke(command, arguments, standalone_mode=False)
    assert (result.return_value, result.exception) == (code, None)
    assert "securetrain train job.yaml --run-dir runs/first --steps 2000" in result.output
