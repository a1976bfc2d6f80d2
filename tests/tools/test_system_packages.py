# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import pytest

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


@pytest.mark.parametrize(
    ("is_root", "apt", "answers", "calls", "says"),
    [
        (False, "/usr/bin/apt-get", [], 0, "not root"),
        (True, None, [], 0, "no apt-get"),
        (True, "/usr/bin/apt-get", [True], 1, "installing"),
        (True, "/usr/bin/apt-get", [False, True, True], 3, "installing"),
        (True, "/usr/bin/apt-get", [False, True, False], 3, "could not install"),
        (True, "/usr/bin/apt-get", [False, False], 2, "could not install"),
    ],
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


@pytest.mark.parametrize(
    ("command", "good", "says"),
    [
        (["true"], True, ""),
        (["false"], False, "system packages"),
        (["no-such-xyz"], False, "No such"),
    ],
)
def test_commands_that_fail_say_why(capsys, command, good, says):
    assert system_packages._run(command) is good
    assert says in capsys.readouterr().out
