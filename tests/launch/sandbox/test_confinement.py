# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import json
import os
from argparse import Namespace
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest

from securetrain.core.errors import RuntimeRefusal, UsageError
from securetrain.core.rundir import RunDir
from securetrain.core.vocabulary import SandboxMode
from securetrain.identity.keys import PrivateKey
from securetrain.launch.agent.elastic_agent import Failure
from securetrain.launch.node import confinement
from securetrain.launch.node.confinement import NO_DEMANDS, NO_NETWORK, OFF, compiles_as, confine
from securetrain.launch.node.failures import as_error, sandbox_fix
from securetrain.launch.process.workerlog import describe
from securetrain.launch.sandbox.cgroup import Limits
from securetrain.launch.sandbox.secrets_below import secrets_below
from securetrain.launch.sandbox.view import Scene
from securetrain.launch.setup import prepare_run
from securetrain.ledger import Ledger
from securetrain.network import rootless
from securetrain.policy.schema import Host
from tests.launch.sandbox.machine import lacking
from tests.launch.worlds import write_policy
from tests.tables import items
from tests.vocabulary import needs, refused


@dataclass
class Options:
    """What is read of a command line."""

    requires_sandbox: bool = False
    outputs: tuple[Path, ...] = ()
    inputs: tuple[Path, ...] = ()
    user: str = "12345"
    torch: Any = None
    max_memory_mib: int = 0
    max_tasks: int = 0

    def __post_init__(self) -> None:
        self.torch = Namespace(module=False, training_script="s.py", training_script_args=["x"])


class Started:
    """A sandbox that lacks something."""

    missing: tuple[str, ...] = ("Landlock (none)",)
    label = "DEGRADED: user 7; without Landlock (none)"
    notes = ("a note",)
    user = 7
    closed = 0
    reached = ()
    scenes: ClassVar[list[Scene]] = []

    @classmethod
    def start(cls, scene, **_):
        cls.scenes.append(scene)
        return cls()

    def close(self):
        type(self).closed += 1


@pytest.fixture
def job(tmp_path, monkeypatch):
    run = RunDir(tmp_path / "run")
    run.keys.mkdir(parents=True)
    ledger = Ledger(run.ledger, PrivateKey.generate(), "agent", lambda: datetime.now(UTC)).begin()
    monkeypatch.setattr(confinement, "Sandbox", Started)
    monkeypatch.setattr(Started, "closed", 0)

    def start(mode, host=NO_DEMANDS, **options):
        given: Any = Options(**options)
        return confine(run, given, mode, {"HOME": str(tmp_path)}, ledger, host=host)

    def events():
        lines = run.ledger.read_text().splitlines()[1:]
        return [json.loads(line)["body"]["event"] for line in lines]

    return run, start, events


def test_a_required_sandbox_that_lacks_something(job):
    run, start, events = job
    needs: dict[str, Any] = {"requires_sandbox": True}
    for mode in (SandboxMode.REQUIRED, SandboxMode.PREFERRED, SandboxMode.OFF):
        options = {} if mode is SandboxMode.REQUIRED else needs
        refused(RuntimeRefusal, "ST-RUNT-020", start, mode, **options, says="Landlock (none)")
    assert Started.closed == 3
    assert events() == []  # the launcher records the refusal
    assert not run.checkpoints.exists()


def test_a_preferred_one_says_what_is_missing(job):
    run, start, events = job
    found = start(SandboxMode.PREFERRED)
    assert found.label.startswith("DEGRADED")
    (event,) = events()
    assert (event["event"], event["decision"]) == ("sandbox-degraded", "observe")
    assert event["details"]["missing"] == "Landlock (none)"
    assert event["details"]["user"] == found.user == 7
    assert run.checkpoints.is_dir()
    (run.tensorboard / "kept").touch()
    found.close()
    assert not run.checkpoints.exists()
    assert not run.metrics.exists()
    assert run.tensorboard.exists()


def test_none_is_said_too(job):
    _, start, events = job
    found, plan = start(SandboxMode.OFF), object()
    assert (found.label, found.sandbox, found.user) == (OFF, None, os.geteuid())
    assert events()[0]["event"] == "sandbox-degraded"
    assert found.inside(plan, plan, NO_NETWORK) is plan


def test_the_lower_limit_counts_and_no_sandbox_means_none(job):
    _, start, events = job
    start(SandboxMode.PREFERRED, Host(max_memory_mib=100, max_tasks=7), max_tasks=9)
    assert Started.scenes[-1].limits == Limits(memory_mib=100, tasks=7)
    start(SandboxMode.PREFERRED)
    assert not Started.scenes[-1].limits
    found = start(SandboxMode.OFF, Host(max_tasks=7))
    assert found.label == f"{OFF}; without a sandbox there is no limit (at most 7 tasks)"
    assert events()[-1]["details"]["label"] == found.label


def test_a_limit_that_was_reached_is_in_the_ledger_and_in_the_refusal(job, monkeypatch):
    _, start, events = job
    found = start(SandboxMode.PREFERRED)
    monkeypatch.setattr(Started, "reached", ("the kernel ended 1 process", "more"))
    found.close()
    found.close()
    (event,) = [one for one in events() if one["event"] == "sandbox-limit-reached"]
    assert event["details"]["what"] == "the kernel ended 1 process; more"
    failure = Failure(rank=0, local_rank=0, pid=7, exit_code=-9, timestamp=1, ending="SIGKILL")
    error = as_error([failure], [], Path("/none"), confined=found)
    assert error.fix == "the kernel ended 1 process; more"


def test_one_that_cannot_be_made_at_all(job, monkeypatch):
    _, start, events = job

    def fails(_scene, **_):
        raise OSError("nothing works")

    monkeypatch.setattr(Started, "start", fails)
    refused(RuntimeRefusal, "ST-RUNT-020", start, SandboxMode.REQUIRED)
    found = start(SandboxMode.PREFERRED)
    assert found.sandbox is None
    assert "nothing works" in found.label
    assert events()[0]["details"]["missing"] == "nothing works"


def test_outputs_are_made_and_inputs_are_there(job, tmp_path):
    _, start, _ = job
    start(SandboxMode.PREFERRED, outputs=(tmp_path / "new" / "out",))
    assert (tmp_path / "new" / "out").is_dir()
    for options, code in (
        ({"inputs": (tmp_path / "missing",)}, "ST-USAG-002"),
        ({"outputs": (Path("/"),)}, "ST-USAG-001"),
    ):
        refused(UsageError, code, start, SandboxMode.PREFERRED, **options)


def test_a_refused_path_is_named_with_its_option(tmp_path):
    def fix(error):
        return sandbox_fix(describe(error))

    path = str(tmp_path / "x")
    assert fix(PermissionError(13, "no", path)) == (
        f"workers may not write there: --output {tmp_path}, or --output {path}"
    )
    assert "--output" in fix(OSError(30, "no", path))
    assert fix(FileNotFoundError(2, "no", path)) == ""
    (tmp_path / "x").touch()
    assert fix(FileNotFoundError(2, "no", path)) == f"workers do not see it: --input {path}"
    wrapped = RuntimeError("torch says it its own way")
    wrapped.__cause__ = OSError(30, "no", path)
    assert "--output" in fix(wrapped)
    assert fix(ValueError("no")) == ""
    assert fix(OSError(28, "full", path)) == ""


@pytest.mark.dist
@pytest.mark.netns
@needs(lacking)
def test_what_a_person_sees(launch, tmp_path):
    script = tmp_path / "job" / "train.py"
    script.parent.mkdir()
    script.write_text("import sys; open(sys.argv[1], 'w')")
    done = launch(tmp_path / "job" / "a" / "run", "--standalone", str(script), "/var/tmp/../out")
    assert done.code == 1
    assert "sandbox      user 19000" in done.err
    assert "--output /" in done.err
    assert done.summary["sandbox"].startswith("user ")
    (event,) = done.events("sandbox-achieved")
    assert event.details["user"] > 1_900_000_000
    place = tmp_path / "job" / "a" / "text"
    done = launch(tmp_path / "job" / "a" / "run2", "--standalone", str(script), str(place))
    assert done.code == 0, done.err
    assert place.stat().st_uid == os.getuid()
    done = launch(tmp_path / "job" / "a" / "run3", "--standalone", "--user", "root", str(script))
    assert done.code == 2
    assert done.events("sandbox-refused")[0].code == "ST-USAG-001"


def test_every_key_of_another_run_is_found(tmp_path):
    run = prepare_run(tmp_path / "run", "dev", datetime.now(UTC)).run
    keys, runs = secrets_below(str(tmp_path))
    assert set(map(Path, keys)) == set(run.keys.glob("*.pem"))
    assert runs == [str(run.root)]


@items(
    "root, mode, named, expected",
    (True, SandboxMode.PREFERRED, "12345", 12345),  # two users plant no code for each other
    (True, SandboxMode.PREFERRED, "", 0),  # made for this job: it has no code of its own
    (True, SandboxMode.OFF, "12345", 0),
    (False, SandboxMode.REQUIRED, "", 1000),
)
def test_the_user_whose_compiled_code_is_shared(monkeypatch, root, mode, named, expected):
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    monkeypatch.setattr(rootless, "is_inside", lambda: False)
    options: Any = Options(user=named)
    assert compiles_as(options, mode) == expected


@pytest.mark.dist
@pytest.mark.netns
@needs(lacking)
def test_workers_without_a_sandbox_are_named_at_the_start_and_at_the_end(launch, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    policy = write_policy(tmp_path / "open.yaml", host={"sandbox": "off"})
    done = launch(tmp_path / "run", "--standalone", "--policy", policy, str(script))
    assert done.code == 0, done.err
    assert done.err.count(f"sandbox      {OFF}") == 2
    assert done.summary["sandbox"] == OFF
