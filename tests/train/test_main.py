# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import os
import signal
import subprocess
import sys
import time

import pytest

from securetrain.core.errors import UsageError
from securetrain.train.__main__ import StopFlag, main, run_dir_of
from tests.train.jobs import JOB
from tests.vocabulary import outcome, refused


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def test_without_a_run_directory_it_says_how_to_start(job):
    error = refused(UsageError, "ST-USAG-001", main, [str(job)], {})
    assert "securetrain train job.yaml" in error.fix
    assert "securetrain run -m securetrain.train" in error.fix


def test_a_folder_that_is_no_run_directory_is_refused(tmp_path):
    refused(UsageError, "ST-USAG-001", run_dir_of, {"SECURETRAIN_RUN_DIR": str(tmp_path)})


def test_a_bad_job_is_refused_before_torch_is_loaded(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(JOB + "stepz: 1\n")
    done = outcome([sys.executable, "-X", "importtime", "-m", "securetrain.train", str(path)])
    assert done.returncode == 2
    assert "ST-USAG-007" in done.stderr
    assert f"{path}: stepz" in done.stderr
    assert "| torch\n" not in done.stderr


def seen(flag: StopFlag) -> bool:
    """Reads the flag again: a type checker believes that nothing has changed it."""
    return flag.requested


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_asks_and_the_second_one_acts(number):
    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        flag = StopFlag()
        flag.install()
        assert not flag.requested
        os.kill(os.getpid(), number)
        assert seen(flag) is True
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        for n, handler in before.items():
            signal.signal(n, handler)


@pytest.mark.dist
@pytest.mark.slow
def test_a_terminated_run_ends_with_a_whole_checkpoint(new_run, tmp_path):
    made = new_run()
    path = tmp_path / "job.yaml"
    text = JOB.replace("steps: 6", "steps: 100000").replace("every: 3}", "every: 0}")
    path.write_text(text.replace("console_every: 0", "console_every: 1000"))
    environment = {
        **os.environ,
        "SECURETRAIN_RUN_DIR": str(made.run_dir.root),
        "OMP_NUM_THREADS": "1",
    }
    environment.pop("RANK", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "securetrain.train", str(path)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        metrics = made.run_dir.metrics
        while not (metrics.exists() and metrics.stat().st_size):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "the state is saved" in output
    (name,) = [p.name for p in made.run_dir.checkpoints.iterdir() if p.is_dir()]
    assert name.startswith("step-")
    assert ".tmp-" not in name
