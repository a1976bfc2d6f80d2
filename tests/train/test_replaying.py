# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Steps that cannot be done again are a refusal, never a pass."""

import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from securetrain.artifacts.statement.statements import Opened
from securetrain.artifacts.tree.layout import Kind
from securetrain.chain import Form, Pack, Verdict, documents, records
from securetrain.chain.documents import Environment
from securetrain.chain.replay import line as lines
from securetrain.chain.replay import outcome
from securetrain.chain.replay.line import SETTABLE
from securetrain.core import RunDir
from securetrain.core.errors import IntegrityError
from securetrain.identity import load_trust
from securetrain.policy.load import load_policy
from securetrain.train import replay_run, replaying
from securetrain.train.config import parse_job
from securetrain.train.replaying import ended_by, plan
from tests.chain.test_packs import of_bound
from tests.chain.test_replay import Log
from tests.chain.worlds import LATER, MINUTE, NOW, Job, Run
from tests.train.jobs import JOB
from tests.vocabulary import ran, refused
from tests.waiting import until

ASKED = outcome.AskedSegment(
    begin="", begin_digest="", end="x", end_digest="ab" * 32, after=0, last=1, rates=(), again=True
)


def test_steps_that_fail_are_refused_with_their_own_words(tmp_path: Path, monkeypatch):
    def fail(command, words, env):
        words.write(b"error ST-CKPT-130: its bytes were changed")
        return 13

    monkeypatch.setattr(replay_run, "_wait", fail)
    request, policy = outcome.Request(trust="t", segments=(ASKED,)), load_policy("dev").policy
    with pytest.raises(IntegrityError) as refused:
        replay_run.run_steps(tmp_path, parse_job(JOB, "job"), request, policy, processes=1, env={})
    assert refused.value.code == "ST-CHAN-025"
    assert "its bytes were changed" in refused.value.what


def result_of(created: datetime, seen: datetime | None, job: Job) -> Verdict:
    subject = Opened(
        kind=Kind.CHECKPOINT,
        predicate=job.checkpoint(created, step=16),
        digest="ab" * 32,
        key_ids=frozenset(),
    )
    made = Verdict.of(Path("m.stpack"), form=Form.PACK, at=NOW)
    made.opened, made.logged = subject, cast("Any", SimpleNamespace(seen=seen))
    return made


def test_a_run_that_sets_its_clock_back_draws_nothing(tmp_path: Path):
    """Its maker knew this log checkpoint while it forged, and claims to have ended before it."""
    log, job = Log(), Job()
    known = log.checkpoint(tmp_path / "known", NOW - MINUTE, NOW - MINUTE)
    claimed = result_of(NOW - 9 * MINUTE, None, job)
    # The control: by the run's own word, the log checkpoint is a later one.
    assert claimed.opened is not None
    created = claimed.opened.checkpoint.created
    assert lines.seed_of(known, log.trust, after=created, subject="s", now=NOW)
    refused(IntegrityError, "ST-CHAN-024", ended_by, claimed, "m.stpack")
    # Witnesses say when it was there, and the log checkpoint is refused for what it is.
    ended = ended_by(result_of(NOW - 9 * MINUTE, NOW, job), "m.stpack")
    assert ended == NOW
    with pytest.raises(IntegrityError) as early:
        lines.seed_of(known, log.trust, after=ended, subject="s", now=NOW)
    assert early.value.code == "ST-CHAN-024"


PARENT = """\
import sys, time
from pathlib import Path
from securetrain.train import replay_run, replaying
words = open(sys.argv[1], "w+b")
child = "import os, sys, time; print(os.getpid(), flush=True); time.sleep(600)"
replay_run._wait([sys.executable, "-c", child], words, {})
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda one: one.name)
def test_the_steps_end_with_whoever_asked_for_them(tmp_path: Path, number: signal.Signals):
    words = tmp_path / "words"
    with subprocess.Popen([sys.executable, "-c", PARENT, str(words)]) as parent:
        try:
            until(lambda: words.exists() and words.read_bytes().endswith(b"\n"), "no child")
            child = int(words.read_bytes())
            parent.send_signal(number)
            assert parent.wait(120) != 0
            until(lambda: not _runs(child), "the child lives on")
        finally:
            parent.kill()


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("module", ["", "my.train"])
def test_the_steps_of_another_program_are_not_asked_for(tmp_path: Path, module: str) -> None:
    """As docs/how-to/replay-steps.md says: it is refused for its job, whatever else is missing."""
    run = Run(tmp_path / "run")
    program = documents.Input(name="train.py", sha256="ab" * 32) if not module else None
    job = run.job.pieces.keep(documents.Job(program=program, module=module))
    run.save(of_bound(run, job=job))
    root = run.trust()
    with Pack.open(run.pack()) as pack, pytest.raises(IntegrityError) as refused:
        plan(pack, trust=root, data=root, first=None, last=None, draw_by=None, now=LATER)
    assert refused.value.code == "ST-CHAN-022"
    assert f"the job ran {module or 'a script'}: its seed" in refused.value.what
    assert "no option of `run` does" in refused.value.what


RUN = Environment(variables={"OMP_NUM_THREADS": "3", "MKL_CBWR": "AVX2", "NCCL_ALGO": "^Tree"})


def test_the_run_s_variables_take_the_place_of_one_s_own():
    here = {"PATH": "/bin", "OMP_NUM_THREADS": "1", "OMP_DYNAMIC": "true", "HOME": "/h"}
    assert lines.variables_of(RUN, here) == {"PATH": "/bin", "HOME": "/h", **RUN.variables}
    assert lines.variables_of(None, here) == here


@pytest.mark.parametrize(
    "name",
    [
        *(
            "LD_PRELOAD",
            "PYTHONPATH",
            "PATH",
            "OMP_TOOL_LIBRARIES",
            "OMP_DISPLAY_ENV",
            "TORCH_HOME",
        ),
        *("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "NCCL_NET_PLUGIN", "KMP_LOCK_KIND", "HF_TOKEN"),
    ],
)
def test_a_run_sets_nothing_else_on_the_machine_of_whoever_replays_it(name: str):
    """Its document is another party's: `OMP_TOOL_LIBRARIES=x.so` makes OpenMP load a library."""
    assert lines.variables_of(Environment(variables={name: "x.so"}), {"PATH": "/bin"}) == {
        "PATH": "/bin"
    }


@given(
    name=st.sampled_from(sorted(SETTABLE)),
    value=st.one_of(st.text(max_size=40), st.from_regex(r"[0-9]{1,12}(,[0-9]{1,12})*\Z")),
)
def test_no_value_is_a_path_or_a_million_threads(name: str, value: str):
    made = lines.variables_of(Environment(variables={name: value}), {})
    assert not set(made.get(name, "")) & set("/~$\\\n\0 %@")
    if name.endswith("_NUM_THREADS"):
        assert all(0 <= int(one) <= 9999 for one in made.get(name, "0").split(","))


@pytest.mark.slow
@pytest.mark.dist
def test_eight_steps_are_equal_bit_by_bit_from_an_empty_environment(new_run, tmp_path, monkeypatch):
    data = new_run("data").run_dir
    (tmp_path / "job.yaml").write_text(
        JOB.replace("steps: 6", f"steps: 8\ntrust: {data.trust}")
        .replace("{every: 3}", "{every: 4}")
        .replace("data: {", f"data: {{dataset: {data.dataset}, ")
    )
    run, packed, empty = RunDir(tmp_path / "run"), tmp_path / "m.stpack", {"PATH": "/usr/bin:/bin"}
    tool = [sys.executable, "-m", "securetrain"]
    line = ["train", tmp_path / "job.yaml", "--run-dir", run.root]
    ran([*tool, *line], env={**empty, "OMP_NUM_THREADS": "3", "MKL_CBWR": "COMPATIBLE"})
    roots = ["--trust", run.trust, "--trust-data", data.trust]
    ran([*tool, "pack", run.checkpoint(8), *roots, "--walk-in", data.root, "--out", packed])
    places = ["--in", run.root, "--in", data.root]
    said = ran([*tool, "replay", packed, *roots, *places, "--compare", "exact"], env=empty).stdout
    assert "bit by bit" in said
    assert "steps 5 to 8" in said
    # The control: without the run's variables the workers have none, and it says which.
    monkeypatch.setattr(lines, "variables_of", lambda _run, _here: empty)
    now = datetime.now(UTC)
    root, other = load_trust(run.trust, now), load_trust(data.trust, now)
    with Pack.open(packed) as pack:
        asked = plan(pack, trust=root, data=other, first=4, last=8, draw_by=None, now=now)
    found = replaying.replay(
        asked, places=[run.root, data.root], trust=run.trust, trust_data=data.trust
    )
    assert found.comparison is records.Comparison.BOUND
    assert "'OMP_NUM_THREADS': '3'" in found.why
