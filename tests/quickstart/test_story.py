# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Commands of README.md are tried here."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from securetrain.cli.main import main
from securetrain.core.codes import ExitCode
from securetrain.core.errors import UsageError
from securetrain.core.vocabulary import Boundary, State
from securetrain.quickstart import steps, story
from securetrain.quickstart.screen import QuietScreen
from securetrain.quickstart.story_state import Options, Story
from securetrain.report.run.model import BoundaryState, ProofState
from securetrain.report.run.record import exit_code_of, read_run

STEPS = 6
NOT_PASSED = {State.FAIL, State.UNKNOWN, State.WAIVED}


def a_story(run_dir: Path) -> Story:
    return Story(
        options=Options(run_dir=run_dir, steps=STEPS),
        screen=QuietScreen(),
        clock=lambda: datetime.now(UTC),
        environ=dict(os.environ),
    )


# --- what a person sees when something is wrong; nothing is started here


@pytest.mark.parametrize(
    ("module", "extra"),
    [("torch", "train"), ("tensorboardX", "train"), ("jinja2", "report"), ("matplotlib", "report")],
)
def test_a_missing_extra_is_named_before_anything_is_made(tmp_path, monkeypatch, module, extra):
    real = importlib.util.find_spec
    monkeypatch.setattr(story, "find_spec", lambda name: None if name == module else real(name))
    with pytest.raises(UsageError) as caught:
        story.tell(a_story(tmp_path / "run"))
    assert caught.value.code == "ST-USAG-004"
    assert f"pip install '.[{extra}]'" in caught.value.fix
    assert not (tmp_path / "run").exists()


def test_a_used_directory_is_refused_and_left_alone(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("keep")
    assert main(["quickstart", "--run-dir", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "error ST-USAG-005: " in err
    assert "is kept in" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_too_little_space_is_an_error_before_anything_is_made(tmp_path, monkeypatch, capsys):
    usage = SimpleNamespace(free=100 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert main(["quickstart", "--run-dir", str(tmp_path / "run"), "--json"]) == 20
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "ST-USAG-006"
    assert not (tmp_path / "run").exists()


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["quickstart", "--run-dir", str(tmp_path / "file" / "run")]) == 20
    assert f"where: {tmp_path / 'file' / 'run'}" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_no_permission_to_write_is_an_error(tmp_path, capsys):
    tmp_path.chmod(0o500)
    assert main(["quickstart", "--run-dir", str(tmp_path / "run")]) == 20
    assert "error ST-USAG-002: " in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--steps", "0"], ["--nproc-per-node", "x"], ["--what"]])
def test_bad_options_exit_2(arguments):
    assert main(["quickstart", *arguments]) == 2


@pytest.mark.parametrize("broken", ["signed_corpus", "preflight"])
def test_a_step_that_fails_ends_the_story_and_keeps_what_was_made(
    tmp_path, monkeypatch, capsys, broken
):
    def fail(_: Story) -> str:
        raise UsageError("ST-USAG-011", "too little text", "lib", "use another Python")

    monkeypatch.setattr(steps, "signed_corpus", lambda _: "")
    monkeypatch.setattr(steps, broken, fail)
    run_dir = tmp_path / "run"
    assert main(["quickstart", "--run-dir", str(run_dir)]) == 2
    out, err = capsys.readouterr()
    assert f"what was made is kept in {run_dir}" in err
    assert "error ST-USAG-011: too little text" in err
    assert "Keys and policy" in out
    assert (run_dir / "trust.json").exists()
    assert not (run_dir / "report.html").exists()


@pytest.mark.parametrize("step", ["keys_and_policy", "signed_corpus", "preflight"])
def test_ctrl_c_at_any_step_is_one_line_and_130(tmp_path, monkeypatch, capsys, step):
    def interrupt(_: Story) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(steps, "signed_corpus", lambda _: "")
    monkeypatch.setattr(steps, step, interrupt)
    assert main(["quickstart", "--run-dir", str(tmp_path / "run")]) == ExitCode.INTERRUPTED
    assert capsys.readouterr().err.split("\n")[-2] == "interrupted"


def test_with_json_nothing_else_is_on_standard_output(tmp_path, monkeypatch, capsys):
    def fail(_: Story) -> str:
        raise UsageError("ST-USAG-011", "too little text")

    monkeypatch.setattr(steps, "signed_corpus", fail)
    assert main(["quickstart", "--run-dir", str(tmp_path / "run"), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "ST-USAG-011"


def test_what_run_sets_right_a_line_later_is_no_finding(tmp_path):
    story = a_story(tmp_path / "run")
    story.environ = dict(story.environ) | {
        "GITHUB_PAT": "github_pat_x",
        "NCCL_COMM_ID": "10.0.0.1:1",
        "NCCL_NET_PLUGIN": "ofi",
        "LD_PRELOAD": "./hook.so",
        "PATH": f"{os.environ['PATH']}:.",
        "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1",
    }
    steps.keys_and_policy(story)
    steps.preflight(story)
    found = json.loads(story.run.audit.read_text())["findings"]
    wrong = {finding["check"] for finding in found if finding["state"] in {"fail", "unknown"}}
    wrong -= {"ST-FAB-018"}  # of what listens on this machine, such as another test's ranks
    set_right = ("ST-SEC-001", "ST-CKP-005", "ST-SUP-013", "ST-SUP-014", "ST-SUP-015", "ST-FAB-")
    assert [check for check in sorted(wrong) if check.startswith(set_right)] == []


# --- one real story


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "securetrain", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.slow
@pytest.mark.dist
def test_the_whole_story(finished: Any):
    result = finished.result
    assert result["ok"]
    assert [step["number"] for step in result["steps"]] == list(range(1, 8))
    assert result["validation_bits_per_byte"] < 8
    assert result["bigram_bits"] < result["validation_bits_per_byte"]
    assert result["checkpoint"].endswith(f"step-{STEPS + 1:08d}")
    for name in (
        "report.html", "trust.json", "policy.json", "ledger.jsonl", "metrics.jsonl",
        "sketches.jsonl", "audit.json", "run.json", "verify.json", "dataset/statement.json",
        f"checkpoints/step-{STEPS:08d}/statement.json", "logs/quickstart.log", "job.yaml",
    ):  # fmt: skip
        assert (finished.run_dir / name).is_file(), name


@pytest.mark.slow
@pytest.mark.dist
def test_the_report_of_the_story_is_honest_and_complete(finished: Any):
    record = read_run(finished.run_dir, datetime.now(UTC))
    assert exit_code_of(record) == ExitCode.OK
    assert record.problems == ()
    assert record.outcome_ok
    assert record.ledger.proof.state is ProofState.VERIFIED
    assert record.ledger.closed
    states = {view.boundary: view.state for view in record.boundaries}
    assert states[Boundary.NODE] is BoundaryState.PARTIAL
    assert BoundaryState.REFUSED not in states.values()
    # What the audit finds of this machine, such as the caches of earlier runs, is open there.
    assert record.audit is not None
    machines = {f.boundary for f in record.audit.findings if f.state in NOT_PASSED}
    for boundary in (
        Boundary.IDENTITY, Boundary.DATASET, Boundary.GRADIENTS, Boundary.CHECKPOINT,
    ):  # fmt: skip
        wanted = BoundaryState.PARTIAL if boundary in machines else BoundaryState.CHECKED
        assert states[boundary] is wanted, boundary
    last = record.checkpoints[-1]
    assert last.step == STEPS + 1
    assert last.parents == (record.checkpoints[-2].digest,)
    assert last.verdict == "clean"
    assert [result.ok for result in record.verifications] == [True, True]
    assert any("UNATTESTED" in limit for limit in record.limits)


@pytest.mark.slow
@pytest.mark.dist
def test_the_commands_that_it_names_work(finished: Any, tmp_path: Path):
    prove, flip, audit = finished.result["next"]
    assert run(*prove.split()[1:]).returncode == 0
    copy = tmp_path / "copy"
    shutil.copytree(finished.result["checkpoint"], copy)
    program = prove.split()[0]
    script = flip.replace(finished.result["checkpoint"], str(copy)).replace(
        f"{program} verify", f"{sys.executable} -m securetrain verify"
    )
    done = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == ExitCode.CONTENT
    assert "ST-CKPT-130" in done.stdout + done.stderr
    assert "rank-00000.bin" in done.stdout + done.stderr
    assert run(*audit.split()[1:]).returncode in {0, 1, 3}


@pytest.mark.slow
@pytest.mark.dist
def test_the_report_command_on_a_real_run(finished: Any, tmp_path: Path):
    done = run("report", str(finished.run_dir), "--json", "--html", str(tmp_path / "r.html"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ledger"]["proof"]["state"] == "verified"
    assert (tmp_path / "r.html").stat().st_size > 50_000
    done = run("report", str(finished.run_dir))
    assert done.returncode == 0
    assert "\ntrust boundaries\n" in done.stdout


@pytest.mark.slow
@pytest.mark.dist
def test_no_process_of_the_story_is_left(finished: Any):
    wanted = str(finished.run_dir).encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            assert wanted not in command, command
