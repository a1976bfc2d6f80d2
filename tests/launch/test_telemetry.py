# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Trackers follow a launch from processes of their own: whatever those do, the launch goes on."""

import json
import os
import shlex
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import pytest

from securetrain.core import RUN_DIR_VARIABLE
from securetrain.core.errors import UsageError
from securetrain.launch.telemetry import followed
from tests.integrations.pages import snippet
from tests.integrations.runs import TOKEN
from tests.integrations.test_trackers import collector  # noqa: F401 - a fixture
from tests.tables import items
from tests.vocabulary import outcome, ran
from tests.waiting import until

LINE = json.dumps({"trackers": [{"delivered": 7, "undelivered": 0, "problem": ""}]})
DOWN = json.dumps({"trackers": [{"delivered": 7, "undelivered": 3, "problem": "TimeoutError"}]})
REFUSED = json.dumps({"error": {"code": "ST-USAG-004", "what": "w", "fix": "f"}}, indent=2)


def follow(tmp_path, program, patience=60.0, environ=None, block=lambda: None):
    said: list[str] = []
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with followed(
        tmp_path,
        ["otlp"],
        os.environ if environ is None else environ,
        said.append,
        patience=patience,
        command=lambda _tracker, _root: command,
    ):
        block()
    return said


@items(
    "line, text",
    (LINE, "otlp: 7 items delivered"),
    (DOWN, "otlp: 7 items delivered, 3 NOT (TimeoutError)"),
    ("[]", "otlp: NOT KNOWN what was delivered: it did not end in time"),
    ('{"trackers": [{}]}', "otlp: NOT KNOWN what was delivered: it did not end in time"),
)
def test_what_was_delivered_is_said_at_the_end(line, text, tmp_path):
    program = f"import sys; print('ready', flush=True); sys.stdin.read(); print({line!r})"
    assert follow(tmp_path, program) == [f"telemetry: {text}"]


def test_a_library_that_is_not_there_refuses_the_start(tmp_path):
    with pytest.raises(UsageError) as refused:
        follow(tmp_path, f"print({REFUSED!r})", block=pytest.fail)
    assert (refused.value.code, refused.value.where) == ("ST-USAG-004", "--telemetry")


def test_a_follower_that_dies_at_once_is_told_at_the_end(tmp_path):
    said = follow(tmp_path, "raise SystemExit(3)")
    assert "NOT KNOWN" in said[0]


def test_a_follower_that_hangs_is_killed_with_what_it_started(tmp_path):
    pids = tmp_path / "pids"
    program = f"""
        import os, pathlib, signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("ready", flush=True)
        other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        pathlib.Path({str(pids)!r}).write_text(f"{{os.getpid()}} {{other.pid}}")
        time.sleep(600)
    """
    said = follow(tmp_path, program, 1.0, block=lambda: until(pids.exists))
    assert "NOT KNOWN" in said[0]

    def gone() -> bool:
        for pid in map(int, pids.read_text().split()):
            with suppress(ProcessLookupError, FileNotFoundError):
                os.kill(pid, 0)
                if "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text():
                    return False
        return True

    until(gone)


def test_a_follower_that_floods_is_bounded(tmp_path):
    program = "import sys\nprint('ready', flush=True)\nwhile True: sys.stdout.write('x' * 65536)"
    before = time.monotonic()
    said = follow(tmp_path, program, 30.0)
    assert "NOT KNOWN" in said[0]
    assert time.monotonic() - before < 60


def test_it_is_given_the_users_environment_and_not_the_runs(tmp_path):
    program = """
        import json, os, sys
        print("ready", flush=True)
        sys.stderr.write(os.environ["WANDB_API_KEY"])
        row = {"delivered": 1, "undelivered": 0, "problem": " ".join(sorted(os.environ))}
        print(json.dumps({"trackers": [row]}))
    """
    environ = {"WANDB_API_KEY": TOKEN, RUN_DIR_VARIABLE: str(tmp_path), "PATH": os.environ["PATH"]}
    (said,) = follow(tmp_path, program, environ=environ)
    assert "WANDB_API_KEY" in said
    assert RUN_DIR_VARIABLE not in said
    assert TOKEN not in said


SCRIPT = """
import os
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
print("worker has", sorted(name for name in os.environ if "HEADERS" in name or "WANDB" in name))
dist.destroy_process_group()
"""


def launch(tmp_path, *options, **environ):
    (tmp_path / "train.py").write_text(SCRIPT)
    given = [sys.executable, "-m", "securetrain", "run", "--standalone", "--nproc-per-node", "2"]
    return outcome(
        [*given, "--run-dir", str(tmp_path / "run"), *options, str(tmp_path / "train.py")],
        env={**os.environ, **environ},
    )


@pytest.mark.compat("opentelemetry-sdk")
@pytest.mark.dist
@pytest.mark.parametrize("status", [200, 400])
def test_a_real_run_is_followed_and_a_collector_that_refuses_changes_nothing(
    status,
    tmp_path,
    collector,  # noqa: F811
):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    collector.status = status
    done = launch(tmp_path, "--telemetry", "otlp", WANDB_API_KEY=TOKEN)
    assert done.returncode == 0, done.stderr
    assert "worker has []" in done.stdout
    assert "telemetry: otlp: " in done.stderr
    assert ("NOT (NotSentError)" in done.stderr) == (status == 400)
    assert any(b"epoch" in body and b"UNATTESTED" in body for _, body, _ in collector.bodies)
    for path in (tmp_path / "run").rglob("*"):
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes(), path
    assert TOKEN not in done.stdout + done.stderr


@pytest.mark.compat("opentelemetry-sdk")
@pytest.mark.dist
def test_a_collector_that_is_not_there_changes_nothing(tmp_path):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    nowhere = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "2",
    }
    done = launch(tmp_path, "--telemetry", "otlp", **nowhere)
    assert done.returncode == 0, done.stderr
    assert "telemetry: otlp: " in done.stderr
    assert "NOT" in done.stderr


@pytest.mark.compat("opentelemetry-sdk")
@pytest.mark.dist
def test_the_page_starts_a_run_as_it_stands(tmp_path, collector):  # noqa: F811
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    *_, line = snippet("docs/how-to/follow-a-run.md", "launch").splitlines()
    (tmp_path / "train.py").write_text(SCRIPT)
    words = shlex.split(line)
    assert words[:2] == ["securetrain", "run"]
    done = ran([sys.executable, "-m", *words], cwd=tmp_path)
    assert "telemetry: otlp: " in done.stderr
    assert collector.bodies
