# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What torchrun finds out too late, or nobody says, is refused before a run exists."""

import argparse
import json
import os
import sys

import pytest

from securetrain.core.errors import NetworkError, RuntimeRefusal, SecureTrainError, UsageError
from securetrain.launch import dropin
from securetrain.launch.entrypoint import _name_standalone
from securetrain.launch.options import scan
from securetrain.launch.process.error_file import ErrorFile
from tests.tables import each, items
from tests.vocabulary import refused


def program(name, *, module=False, no_python=False, run_path=False):
    return argparse.Namespace(
        training_script=name, module=module, no_python=no_python, run_path=run_path
    )


def test_a_program_that_is_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.py").touch()
    (tmp_path / "pack").mkdir()
    (tmp_path / "other" / "far").mkdir(parents=True)
    for found in (
        program("s.py"),
        program(str(tmp_path / "pack")),
        program("json.tool", module=True),
        program("pack.train", module=True),
        program("far", module=True),
        program("sh", no_python=True),
        program("s.py", no_python=True, run_path=True),
    ):
        dropin.check_program(found, {"PYTHONPATH": "other", "PATH": os.environ["PATH"]})


@items(
    "missing",
    program("s.py"),
    program("nowhere/s.py"),
    program("st_none.train", module=True),
    program("..", module=True),
    program("", module=True),
    program("s.py", no_python=True),
    program("st-no-such-program", no_python=True),
)
def test_a_program_that_is_missing(tmp_path, monkeypatch, missing):
    monkeypatch.chdir(tmp_path)
    refused(UsageError, "ST-USAG-002", dropin.check_program, missing, {"PATH": "/usr/bin:/bin"})


def test_looking_for_a_module_imports_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "st_loud").mkdir()
    (tmp_path / "st_loud" / "__init__.py").write_text("raise SystemExit(99)")
    dropin.check_program(program("st_loud.train", module=True), {})
    assert "st_loud" not in sys.modules


@each(
    "given, allowed, is_fine",
    *(("1", 0, True), ("64", 0, True), ("65", 0, False), ("100000", 0, False)),
    *(("100000", 100000, True), ("8", 4, False), ("0", 0, False), ("-1", 0, False)),
    *(("auto", 0, True), ("gpu", 1, True)),
)
def test_workers_that_no_machine_has_room_for(given, allowed, is_fine):
    if is_fine:
        dropin.check_workers(given, allowed, cores=2)
        return
    refused(UsageError, "ST-USAG-001", dropin.check_workers, given, allowed, cores=2)
    dropin.check_workers("1600", 0, cores=100)


def test_names_that_are_not_utf8(tmp_path, monkeypatch):
    dropin.check_text(["--lr", "1", "d\u00e4ta.py"], {})
    with pytest.raises(UsageError) as caught:
        dropin.check_text(["--standalone", os.fsdecode(b"data-\xff.py")], {})
    assert caught.value.code == "ST-USAG-001"
    assert r"data-\xff.py" in caught.value.what
    assert "argument 2" in caught.value.where
    strange = tmp_path / os.fsdecode(b"here-\xff")
    strange.mkdir()
    monkeypatch.chdir(strange)
    refused(UsageError, "not UTF-8", dropin.check_text, [], {})


def test_a_variable_that_torch_refuses_is_named():
    error = ValueError("\nInvalid log settings: foo, must be\nValid settings: ...")
    refusal = dropin.import_refusal(error, {"TORCH_LOGS": "foo"})
    assert isinstance(refusal, UsageError)
    assert refusal.code == "ST-USAG-001"
    assert refusal.where == "TORCH_LOGS=foo"
    assert "Invalid log settings: foo" in refusal.what
    assert dropin.import_refusal(error, {}) is error


@each(
    "argv, command",
    (
        ["--standalone", "--no-python", "python3", "-u", "t.py", "--lr", "1"],
        "securetrain run --standalone t.py --lr 1",
    ),
    (["--no_python", "python", "-m", "pack"], "securetrain run -m pack"),
    (["--no-python", "python", "-c", "1"], ""),
    (["--no-python", "bash", "t.sh"], ""),
)
def test_the_command_instead_of_no_python(argv, command):
    name = next(word for word in argv if word.startswith(("python", "bash")))
    assert dropin.without_no_python(argv, name) == command


def test_who_named_no_policy_is_told_what_to_type():
    argv = ["--nproc-per-node", "2", "x.py", "--lr", "a b"]
    refused: SecureTrainError = RuntimeRefusal("ST-RUNT-003", "2 checks failed")
    _name_standalone(refused, argv, scan(argv))
    assert "type: securetrain run --standalone --nproc-per-node 2 x.py --lr 'a b';" in refused.fix
    for other in (["--policy", "baseline", *argv], ["--standalone", *argv], ["--nnodes=2", *argv]):
        refused = NetworkError("ST-NETW-001")
        _name_standalone(refused, other, scan(other))
        assert "--standalone" not in refused.fix
    failed = RuntimeRefusal("ST-RUNT-004")
    _name_standalone(failed, argv, scan(argv))
    assert "--standalone" not in failed.fix


# The error file of whoever started the launcher.


def test_a_workers_error_is_handed_on(tmp_path):
    child = tmp_path / "child.json"
    child.write_text(json.dumps({"message": {"message": "ValueError: x", "extraInfo": {}}}))
    file = ErrorFile.of({"TORCHELASTIC_ERROR_FILE": str(tmp_path / "parent.json")})
    file.hand_on(str(child), 3)
    file.record(RuntimeRefusal("ST-RUNT-004"))
    found = json.loads((tmp_path / "parent.json").read_text())
    assert found == {"message": {"message": "ValueError: x", "extraInfo": {}, "errorCode": 3}}


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100_000, "\xff", "x" * (2 << 20)])
def test_what_no_worker_should_have_written_is_not_handed_on(tmp_path, text):
    (tmp_path / "child.json").write_text(text)
    path = tmp_path / "parent.json"
    file = ErrorFile(path)
    file.hand_on(str(tmp_path / "child.json"), 3)
    file.hand_on("<N/A>", 3)
    file.record(RuntimeRefusal("ST-RUNT-004", "rank 0 ended"))
    assert "rank 0 ended" in json.loads(path.read_text())["message"]["message"]


def test_a_link_in_the_place_of_the_file_is_not_followed(tmp_path):
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "parent.json").symlink_to(tmp_path / "victim")
    ErrorFile(tmp_path / "parent.json").record(RuntimeRefusal("ST-RUNT-004"))
    assert (tmp_path / "victim").read_text() == "mine"
    assert (tmp_path / "parent.json").is_file()


def test_a_file_that_cannot_be_written_is_said(tmp_path, capsys):
    ErrorFile(tmp_path / "none" / "parent.json").record(RuntimeRefusal("ST-RUNT-004"))
    assert "TORCHELASTIC_ERROR_FILE cannot be written" in capsys.readouterr().err
    ErrorFile.of({}).record(RuntimeRefusal("ST-RUNT-004"))
