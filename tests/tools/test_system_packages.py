# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from pathlib import Path

from tests.tables import items
from tools import system_packages
from tools.system_packages import PACKAGES, Package, install, missing

FAKE = Package("fake-package", "no-such-command-xyz", "is for the test", "none")


def test_a_command_that_is_found_is_not_missing():
    assert missing([FAKE], find=lambda _: "/usr/bin/x") == []
    assert missing([FAKE], find=lambda _: None) == [FAKE]


def test_a_file_shows_a_package_that_has_no_command(tmp_path):
    header = Package("fake-dev", str(tmp_path / "fake.h"), "is for the test", "none")
    assert missing([header]) == [header]
    (tmp_path / "fake.h").write_text("")
    assert missing([header]) == []


def test_every_package_has_a_reason():
    assert len({package.name for package in PACKAGES}) == len(PACKAGES)
    for package in PACKAGES:
        assert package.reason
        assert package.tests


@items(
    "is_root, apt, answers, calls, says",
    (False, "/usr/bin/apt-get", [], 0, "not root"),
    (True, None, [], 0, "no apt-get"),
    (True, "/usr/bin/apt-get", [True], 1, "installing"),
    (True, "/usr/bin/apt-get", [False, True, True], 3, "installing"),
    (True, "/usr/bin/apt-get", [False, True, False], 3, "could not install"),
    (True, "/usr/bin/apt-get", [False, False], 2, "could not install"),
)
def test_installing(is_root, apt, answers, calls, says):
    told: list[str] = []
    ran: list[list[str]] = []
    pending = iter(answers)

    def run(command):
        ran.append(list(command))
        return next(pending)

    done = install([FAKE], is_root=is_root, apt=apt, run=run, say=told.append)
    assert done is (bool(answers) and answers[-1])
    assert len(ran) == calls
    assert any(says in line for line in told)
    assert all(command[0] == apt for command in ran)


NEWER = Package("fake-newer", "true", "is for the test", "none", too_old="v1\\.[0-4]")


@items("printed, old", ("fake v1.4", True), ("fake v1.5", False), ("", False))
def test_what_is_too_old_is_missing(tmp_path, printed, old):
    tool = tmp_path / "tool"
    tool.write_text(f"#!/bin/sh\necho '{printed}'\n")
    tool.chmod(0o755)
    package = replace(NEWER, shown_by=str(tool))
    assert (missing([package]) == [package]) is old
    tool.chmod(0o644)
    assert missing([package]) == [package]


@items(
    "answers, done",
    ([True, True, True], True),
    ([True, True, False], False),
    ([True, False], False),
)
def test_what_must_be_newer_comes_from_backports(answers, done):
    ran: list[list[str]] = []
    pending = iter(answers)
    lists = []

    def run(command):
        ran.append(list(command))
        if "-o" in command:
            source = command[command.index("-o") + 1].partition("=")[2]
            lists.append(Path(source).read_text())
        return next(pending)

    found = install(
        [FAKE, NEWER],
        is_root=True,
        apt="apt-get",
        run=run,
        say=lambda _: None,
        backports="deb http://example.org/debian x main",
    )
    assert found is done
    assert ran[0][-1] == "fake-package"
    assert "fake-newer" not in ran[0]
    assert "Dir::Etc::SourceParts=-" in ran[1]
    assert ran[1][-2:] == ["update", "-q"]
    assert set(lists) == {"deb http://example.org/debian x main\n"}
    if done:
        assert ran[2][-1] == "fake-newer"
        assert "Dir::Etc::SourceParts=-" in ran[2]


def test_a_release_that_has_it_needs_no_backports():
    ran: list[list[str]] = []

    def run(command):
        ran.append(list(command))
        return True

    install([NEWER], is_root=True, apt="apt-get", run=run, say=lambda _: None)
    assert len(ran) == 1
    assert "-o" not in ran[0]


def test_the_code_name(monkeypatch):
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: {"VERSION_CODENAME": "bookworm"})
    assert system_packages.code_name() == "bookworm"
    monkeypatch.setattr("platform.freedesktop_os_release", dict)
    assert system_packages.code_name() == ""

    def fail():
        raise OSError

    monkeypatch.setattr("platform.freedesktop_os_release", fail)
    assert system_packages.code_name() == ""


def test_what_is_missing_is_named_and_nothing_fails(monkeypatch, capsys):
    monkeypatch.setattr(system_packages, "missing", lambda _: [FAKE])
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert system_packages.main() == 0
    out = capsys.readouterr().out
    assert "fake-package is missing" in out
    assert "these tests are skipped: none" in out


def test_nothing_missing_means_no_word(monkeypatch, capsys):
    monkeypatch.setattr(system_packages, "missing", lambda _: [])
    assert system_packages.main() == 0
    assert capsys.readouterr().out == ""


@items(
    "command, good, says",
    (["true"], True, ""),
    (["false"], False, "system packages"),
    (["no-such-xyz"], False, "No such"),
)
def test_commands_that_fail_say_why(capsys, command, good, says):
    assert system_packages._run(command) is good
    assert says in capsys.readouterr().out
