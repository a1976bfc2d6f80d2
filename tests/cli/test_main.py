# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable

import click
import pytest

from securetrain.cli import main as cli
from securetrain.cli.main import VERBS, Verb, main, wants_json
from securetrain.core.codes import CODES
from securetrain.core.errors import IntegrityError, UsageError
from tests.tables import items

HEAVY = ("torch", "numpy", "rich", "msgspec", "cryptography", "OpenSSL", "matplotlib", "jinja2")


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Makes the verb `probe` do what a test says."""

    def install(body: Callable[[], object]) -> None:
        @click.command()
        @click.option("--json", "as_json", is_flag=True)
        def command(as_json: bool) -> object:  # noqa: FBT001 - click
            return body()

        monkeypatch.setattr(sys.modules[__name__], "command", command, raising=False)
        monkeypatch.setitem(VERBS, "probe", Verb(f"{__name__}:command", "a probe"))
        monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])

    return install


def raising(error: BaseException) -> Callable[[], object]:
    def body() -> object:
        raise error

    return body


REFUSAL = IntegrityError("ST-CKPT-130", "leaf 3 differs", "model/rank-0.bin", "get it again")


def test_help_imports_nothing_heavy():
    script = (
        "import sys; from securetrain.cli.main import main; code = main(['--help']);"
        f"print('HEAVY', code, [m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert "HEAVY 0 []" in done.stdout
    for name in VERBS:
        assert f"  {name} " in done.stdout
    assert "Exit codes:" in done.stdout


def test_the_help_names_every_exit_code_that_a_refusal_can_have(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out.split("Exit codes:")[1]
    for code in {int(code.exit) for code in CODES.values()}:
        assert f" {code} " in text


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("securetrain 0.")


def test_a_refusal_says_what_where_and_fix_and_has_its_exit_code(verb, capsys):
    verb(raising(REFUSAL))
    assert main(["probe"]) == 13
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "error ST-CKPT-130: leaf 3 differs",
        "  where: model/rank-0.bin",
        "  fix:   get it again",
    ]


def test_escape_sequences_in_an_error_cannot_repaint_the_terminal(verb, capsys):
    verb(raising(IntegrityError("ST-CKPT-141", "extra file", "a\x1b[2K\x1b[32mok\u202e\r", "x")))
    assert main(["probe"]) == 14
    err = capsys.readouterr().err
    assert "\x1b" not in err
    assert "\r" not in err
    assert r"where: a\x1b[2K\x1b[32mok\u202e\r" in err


def test_with_json_the_error_is_the_only_output(verb, capsys):
    verb(raising(REFUSAL))
    assert main(["probe", "--json"]) == 13
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out) == {"error": REFUSAL.to_dict()}


@pytest.mark.parametrize(
    ("error", "code", "exit_code"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file", "/nowhere"), "ST-USAG-002", 20),
        (OSError(errno.ENOSPC, "No space", "/full"), "ST-USAG-006", 20),
        (OSError(errno.EADDRINUSE, "in use"), "ST-USAG-003", 2),
        (UsageError("ST-USAG-004", "no torch"), "ST-USAG-004", 2),
        (ZeroDivisionError("oops"), "ST-USAG-010", 1),
        (RecursionError("deep"), "ST-USAG-010", 1),
        (BaseException("torch's CheckpointException is one"), "ST-USAG-010", 1),
        (click.UsageError("bad flag"), "ST-USAG-001", 2),
        (click.FileError("a.txt", "unreadable"), "ST-USAG-002", 20),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_every_kind_of_error_has_a_code_and_an_exit_code(verb, capsys, error, code, exit_code):
    verb(raising(error))
    assert main(["probe"]) == exit_code
    assert capsys.readouterr().err.startswith(f"error {code}: ")
    assert main(["probe", "--json"]) == exit_code
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code


def test_the_traceback_of_an_internal_error_is_shown_on_request_only(verb, capsys, monkeypatch):
    verb(raising(ZeroDivisionError("oops")))
    main(["probe"])
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert "SECURETRAIN_TRACEBACK=1" in err
    monkeypatch.setenv("SECURETRAIN_TRACEBACK", "1")
    main(["probe"])
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_is_one_line_and_130(verb, capsys):
    verb(raising(KeyboardInterrupt()))
    assert main(["probe"]) == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert err.split() == ["interrupted"]


@items("value, expected", (None, 0), (0, 0), (3, 3), (True, 0), (False, 0), ("text", 0))
def test_a_verb_returns_its_exit_code(verb, value, expected):
    verb(lambda: value)
    assert main(["probe"]) == expected


@pytest.mark.parametrize(("value", "expected"), [(None, 0), (7, 7), ("a message", 1)])
def test_a_verb_may_also_leave_with_system_exit(verb, capsys, value, expected):
    verb(raising(SystemExit(value)))
    assert main(["probe"]) == expected


@pytest.mark.parametrize("arguments", [["nonsense"], ["--nonsense"], ["probe", "--nonsense"]])
def test_a_bad_command_line_exits_2(verb, capsys, arguments):
    verb(lambda: 0)
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("error ST-USAG-001: ")
    assert "--help" in err


def test_a_bad_command_line_is_json_too(capsys):
    assert main(["nonsense", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "ST-USAG-001"


def test_without_a_verb_the_help_is_shown(capsys):
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert "Usage: securetrain" in out + err


@items(
    "line, expected",
    ("verify x --json", True),
    ("verify x --format json", True),
    ("verify x --format=json", True),
    ("verify x --format text", False),
    ("verify x -- --json", False),
    ("run script.py --json", False),
    ("train job.yaml --format json", False),
    ("", False),
)
def test_json_is_recognised_without_parsing(line, expected):
    assert wants_json(line.split()) is expected


def test_a_reader_that_closes_the_pipe_gets_no_traceback():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "securetrain", "--help"],
        stdout=write,
        stderr=subprocess.PIPE,
        check=False,
        timeout=60,
    )
    os.close(write)
    assert done.stderr == b""
    assert done.returncode == 1


def test_every_verb_can_be_loaded(capsys):
    for name in VERBS:
        command = cli.cli.get_command(click.Context(cli.cli), name)
        assert isinstance(command, click.Command), name
