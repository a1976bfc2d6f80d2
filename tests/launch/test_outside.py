# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What a script does outside of the policy's reach is noticed, said, and refused where required."""

import functools
import io
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from securetrain.core.errors import RuntimeRefusal
from securetrain.core.vocabulary import LOADS_NOT_HELD, PROGRAMS_NOT_PROTECTED, EnforcementMode
from securetrain.launch.process.workerlog import OutsideReport, WorkerReport
from securetrain.launch.seams.outside import OutsideWatch, unshielded
from securetrain.launch.summary import outside_summary
from securetrain.ledger import events
from securetrain.policy import load_demands, read_demands
from securetrain.policy.schema import Expect
from tests.launch.worlds import policy_of
from tests.tables import each
from tests.vocabulary import refused

SHIELDED_PYTHON = [sys.executable, "-m", "securetrain", "key", "show", "a.pem"]


@each(
    "words, name",
    ([sys.executable, "-c", "secret = 1"], f"{sys.executable.rpartition('/')[2]} -c"),
    (["python3.12", "train.py", "--lr", "1"], "python3.12 train.py --lr"),
    (["torchrun", "--standalone", "train.py"], "torchrun --standalone train.py"),
    (["env", "A=b", "nice", "-n", "5", "python", "x.py"], "python x.py"),
    (["bash", "-c", "exec python x.py"], "python x.py"),
    (["deepspeed", "x.py"], "deepspeed x.py"),
    (SHIELDED_PYTHON, ""),
    (["gcc", "-shared", "python.c"], ""),
    (["file", "python3"], ""),
    (["uname"], ""),
    ([], ""),
)
def test_programs_in_python_are_known_by_their_words(words, name):
    assert unshielded(words) == name


class Heard:
    """What a watch says, with the watch."""

    def __init__(self, *, required=False, demands=("checkpoint.expect",)):
        self.said: list[str] = []
        self.events: list[Any] = []
        self.changes: list[int] = []
        self.watch = OutsideWatch(
            is_required=required,
            demands=demands,
            say=self.said.append,
            record=lambda make: self.events.append(make(events)),
            changed=lambda: self.changes.append(1),
        )

    def module(self, name, **parts):
        """A module in which the seams were closed."""
        module = ModuleType(name)
        vars(module).update(parts)
        self.watch.patches()[name](module)
        return module


@pytest.fixture
def popen():
    """A stand-in that starts nothing."""

    def make(heard):
        class Popen:
            def __init__(self, args, **kwargs):
                self.args = args

        return heard.module("subprocess", Popen=Popen).Popen

    return make


def test_a_program_without_the_shim_is_said_once_and_counted(popen):
    heard = Heard()
    start = popen(heard)
    for _ in range(2):
        assert start(["python", "x.py"]).args == ["python", "x.py"]
    start(["gcc", "x.c"])
    start("python y.py | tee log", shell=True)
    assert heard.watch.report().programs == {"python x.py": 2, "python y.py |": 1}
    (line,) = heard.said
    assert line == f"{PROGRAMS_NOT_PROTECTED}: the script starts python x.py, without the shim"
    (event,) = heard.events
    assert event.labels == (PROGRAMS_NOT_PROTECTED,)
    assert len(heard.changes) == 3


def test_where_all_is_required_the_program_does_not_start(popen):
    heard = Heard(required=True)
    started = []
    with pytest.raises(RuntimeRefusal, match="without the worker shim") as caught:
        started.append(popen(heard)(["python", "x.py"]))
    assert (caught.value.code, started) == ("ST-RUNT-021", [])
    assert [event.code for event in heard.events] == ["ST-RUNT-021"]
    popen(heard)(["gcc", "x.c"])


def test_the_shell_of_os_is_looked_at():
    heard = Heard()
    system = heard.module("os", system=len).system
    assert system("python x.py") == 11
    assert heard.watch.programs == {"python x.py": 1}


def test_what_compilers_start_is_their_own(popen):
    heard = Heard()
    start = popen(heard)
    scope = {"__name__": "torch._inductor.compile_worker", "start": start}
    exec("start(['python', 'worker.py'])", scope)
    assert heard.watch.programs == {}
    exec("start(['python', 'worker.py'])", scope | {"__name__": "script"})
    assert heard.watch.programs == {"python worker.py": 1}


def test_a_real_program_is_noticed_by_the_real_seam(monkeypatch):
    """The control: the same call without the seam is not noticed by anybody."""
    heard = Heard()
    monkeypatch.setattr(subprocess.Popen, "__init__", subprocess.Popen.__init__)
    subprocess.run([sys.executable, "-c", ""], check=True)
    assert heard.watch.programs == {}
    heard.watch.patches()["subprocess"](subprocess)
    subprocess.run([sys.executable, "-c", ""], check=True)
    assert len(heard.watch.programs) == 1


def test_loads_are_noticed_where_the_policy_asks_something_of_them():
    assert not {"torch.serialization", "safetensors"} & set(Heard(demands=()).watch.patches())
    heard = Heard()
    load = heard.module("torch.serialization", load=lambda f, **_: f).load
    assert load("a.pt") == "a.pt"
    load(io.BytesIO(b""))
    load(f="b.pt")
    read = heard.module("safetensors", safe_open=lambda f, framework: f).safe_open
    read("c.safetensors", framework="pt")
    report = heard.watch.report()
    assert report.loads == {"torch.load": 2, "safetensors": 1}
    assert report.places == ("a.pt", "b.pt", "c.safetensors")
    (line,) = heard.said
    assert (
        line == f"{LOADS_NOT_HELD}: torch.load loads a.pt, which is not held to checkpoint.expect"
    )


def test_our_own_reader_is_held_to_it():
    heard = Heard()
    name = "torch.distributed.checkpoint.state_dict_loader"
    load = heard.module(name, load=lambda *_args, **_kwargs: None).load
    ours = type("SignedReader", (), {"read_data": None, "__module__": "securetrain.artifacts.x"})()
    load({}, storage_reader=ours)
    assert heard.watch.loads == {}
    load({}, storage_reader=SimpleNamespace(read_data=None, path="there"))
    assert heard.watch.loads == {"dcp.load": 1}


def test_where_all_is_required_the_load_does_not_happen():
    heard = Heard(required=True)
    loaded: list[str] = []
    load = heard.module("torch.serialization", load=loaded.append).load
    error = refused(RuntimeRefusal, r"checkpoint\.expect", load, "a.pt")
    assert (error.code, error.where, loaded) == ("ST-RUNT-021", "a.pt", [])
    assert isinstance(heard.events[-1], events.OutsideRefused)


# -- the end of the run --------------------------------------------------------------------------


STRICT = functools.partial(
    policy_of, dataset={"max_age_days": 9}, checkpoint={"expect": Expect(run="r0")}
)


def test_demands_are_those_that_the_policy_makes():
    assert (load_demands(policy_of()), read_demands(policy_of())) == ((), ())
    assert load_demands(STRICT()) == ("checkpoint.expect",)
    assert read_demands(STRICT()) == ("dataset.max_age_days",)
    assert list(outside_summary.at_start(policy_of())) == []
    said, refused = (next(outside_summary.at_start(STRICT(mode))) for mode in EnforcementMode)
    assert "other loads are said" in said
    assert "refused (enforcement: require)" in refused


def report(**said):
    return WorkerReport(rank=0, attempt=0, outside=OutsideReport(**said))


def test_the_end_says_all_of_it_with_what_changes_it():
    found = outside_summary.at_end(
        STRICT(),
        [
            report(programs={"python x.py": 1}, loads={"torch.load": 2}, places=("a\x1b.pt",)),
            report(programs={"python x.py": 1}),
        ],
    )
    assert found is not None
    programs, loads, data = found.labels
    assert programs.startswith(f"{PROGRAMS_NOT_PROTECTED}: 2 programs without the shim, first py")
    assert loads.startswith(f"{LOADS_NOT_HELD}: 2 loads by torch.load, first a")
    assert "\x1b" not in loads
    assert "not enforced: checkpoint.expect; load with securetrain.artifacts" in loads
    assert data.startswith("data: NOT KNOWN: none was read with securetrain; not enforced: dataset")
    assert found.fields == ("checkpoint.expect", "dataset.max_age_days")


def test_the_end_has_nothing_to_say_where_nothing_was_left_out():
    assert outside_summary.at_end(policy_of(), [report()]) is None
    assert outside_summary.at_end(STRICT(), [report(reads_signed=True)]) is None


def test_the_ledger_has_the_end(tmp_path):
    written: list[Any] = []
    said: list[str] = []
    ledger: Any = SimpleNamespace(write=written.append)
    outside_summary.record_outside(None, ledger, said.append)
    assert (written, said) == ([], [])
    found = outside_summary.at_end(
        STRICT(), [report(programs={"python": 1}, loads={"torch.load": 3}, places=("a.pt",))]
    )
    assert found is not None
    outside_summary.record_outside(found, ledger, said.append)
    assert tuple(said) == found.labels
    programs, loads, data = written
    assert isinstance(data, events.DataNotKnown)
    assert (data.subject, data.fields) == ("end of the run", "dataset.max_age_days")
    assert data.labels == ("data: NOT KNOWN",)
    assert (programs.subject, programs.programs) == ("end of the run", 1)
    assert (loads.loads, loads.ways) == (3, "torch.load")


@pytest.mark.parametrize("mode", EnforcementMode)
def test_workers_without_the_shim_are_said_with_what_they_leave_out(mode):
    policy = STRICT(mode)
    start, _ = outside_summary.at_start(policy, protected=False)
    found = outside_summary.at_end(policy, [], protected=False)
    assert found is not None
    assert found.labels[0] == start
    assert start.startswith(f"{PROGRAMS_NOT_PROTECTED}: the workers run without the shim; not enf")
    assert set(found.unshielded) >= {"checkpoint.unpickle", "checkpoint.expect"}
    assert set(found.unshielded) < set(found.fields)
    written: list[Any] = []
    ledger: Any = SimpleNamespace(write=written.append)
    outside_summary.record_outside(found, ledger, lambda _line: None)
    assert written[0].subject == "all workers"
    assert written[0].fields == ", ".join(found.unshielded)


def test_a_run_that_opened_no_signed_dataset_is_refused_where_all_is_required():
    for mode in EnforcementMode:
        found = outside_summary.at_end(STRICT(mode), [report()])
        error = outside_summary.refusal(STRICT(mode), found)
        if mode is EnforcementMode.REPORT:
            assert error is None
        else:
            assert error is not None
            assert (error.code, error.where) == ("ST-RUNT-021", "policy: dataset.max_age_days")
    required = EnforcementMode.REQUIRE
    opened = outside_summary.at_end(STRICT(required), [report(reads_signed=True)])
    assert outside_summary.refusal(STRICT(required), opened) is None
    assert outside_summary.refusal(policy_of(required), None) is None


def test_numbers_of_a_lying_worker_are_bounded():
    many = {f"python {n}.py": 10**9 for n in range(99)}
    found = outside_summary.at_end(policy_of(), [report(programs=many, places=("x",))])
    assert found is not None
    assert len(found.programs) == 16
    assert max(found.programs.values()) == 1_000_000
