# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import ast
import os
import sys
from pathlib import Path

import pytest

from securetrain.network import exec_private
from securetrain.network.exec_private import (
    BIND,
    FAILED,
    NODEV,
    NOEXEC,
    NOSUID,
    READ_ONLY,
    REMOUNT,
    inherited_files,
    main,
    mounts,
)
from tests.tables import each
from tests.vocabulary import outcome, refused


def test_options_become_mounts():
    assert mounts(["--empty", "/run", "--bind", "/a", "/etc/hosts"]) == [
        ("tmpfs", "/run", "tmpfs", NOSUID | NODEV | NOEXEC, "mode=0755,size=1m"),
        ("/a", "/etc/hosts", "", BIND, ""),
        ("", "/etc/hosts", "", REMOUNT | BIND | READ_ONLY, ""),
    ]
    assert mounts(["--hand", "/k", "KEY", "--empty", "/run"]) == mounts(["--empty", "/run"])
    assert inherited_files(["--empty", "/run", "--hand", "/k", "KEY"]) == [("/k", "KEY")]
    assert inherited_files(["--bind", "--hand", "--hand"]) == []
    assert mounts([]) == []


@each(
    "options",
    ["--else"],
    ["--empty"],
    ["--bind"],
    ["--bind", "/a"],
    ["x"],
    ["--hand"],
    ["--hand", "/a"],
)
def test_a_bad_option_is_no_mount(options):
    with pytest.raises(ValueError):  # noqa: PT011 - the message is for whoever runs it by hand
        mounts(options)


def start(*arguments):
    return outcome([sys.executable, "-I", "-S", exec_private.__file__, *arguments])


def test_it_becomes_the_program():
    done = start("--", sys.executable, "-c", "import sys; print(sys.argv[1:]); sys.exit(7)", "a b")
    assert done.stdout == "['a b']\n"
    assert done.returncode == 7


@each(
    "arguments",
    [],
    ["--"],
    ["/bin/true"],
    ["--else", "--", "/bin/true"],
    ["--bind", "/no/such", "/etc/hosts", "--", "/bin/echo", "started"],
    ["--empty", "/no/such", "--", "/bin/echo", "started"],
    ["--", "/no/such/program"],
    ["--", "true"],  # never along PATH
    ["--hand", "/no/such", "KEY", "--", "/bin/echo", "started"],
    ["--hand", "/dev/null", "KEY", "--", "/bin/echo", "started"],
    ["--hand", "/dev/zero", "KEY", "--", "/bin/echo", "started"],
)
def test_what_cannot_be_done_starts_nothing(arguments):
    done = start(*arguments)
    assert done.returncode == FAILED
    assert "started" not in done.stdout
    assert done.stderr


SHOW = """
import os
number = int(os.environ["KEY"])
print(os.readlink(f"/proc/self/fd/{number}"), os.read(number, 99), os.read(number, 99))
"""


def test_what_is_handed_over_is_in_memory_and_read_once(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("hush")
    done = start("--hand", str(secret), "KEY", "--", sys.executable, "-c", SHOW)
    assert done.stdout == "/memfd:securetrain (deleted) b'hush' b''\n"


def test_mounts_come_before_the_program(monkeypatch):
    ran: list[object] = []
    monkeypatch.setattr(exec_private, "make", ran.extend)
    monkeypatch.setattr("os.execv", lambda path, argv: ran.append((path, argv)))
    assert main(["--empty", "/run", "--", "/bin/x", "--", "y"]) == FAILED
    assert ran == [*mounts(["--empty", "/run"]), ("/bin/x", ["/bin/x", "--", "y"])]


def test_it_needs_nothing_but_the_library():
    tree = ast.parse(Path(exec_private.__file__).read_text())
    names = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [str(node.module)]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert names <= sys.stdlib_module_names


def test_a_remount_keeps_what_a_file_system_forbids(monkeypatch):
    """In a user namespace, whoever says less is refused; elsewhere the mount would lose it."""
    calls = []
    monkeypatch.setattr(exec_private, "_call", lambda *given: calls.append(given))

    class Had:
        f_flag = NOSUID | os.ST_NODIRATIME | os.ST_RELATIME | os.ST_SYNCHRONOUS

    monkeypatch.setattr("os.statvfs", lambda place: Had if place == "/x" else None)
    exec_private.make(mounts(["--bind", "/a", "/x"]))
    bind, again = calls
    assert bind == ("mount", b"/a", b"/x", b"", BIND, b"")
    relatime = 1 << 21
    flags = REMOUNT | BIND | READ_ONLY | NOSUID | os.ST_NODIRATIME | relatime
    assert again == ("mount", b"", b"/x", b"", flags, b"")


def test_what_the_kernel_refuses_is_an_error():
    refused(OSError, "/no/such", exec_private.make, mounts(["--empty", "/no/such"]))
