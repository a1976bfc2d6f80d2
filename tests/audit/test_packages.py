# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Where packages come from: lists, locks, indexes, and files against their RECORD."""

import pytest

from securetrain.audit.facts import Outcome
from securetrain.audit.subjects.node.collect import software as packages
from securetrain.audit.subjects.node.collect.host import HiddenError, Named, NamedPath
from tests.audit.hardened.machine import TOOLKIT, distribution, hardened
from tests.vocabulary import refused

UV = """\
version = 1
[[package]]
name = "job"
source = { virtual = "." }
[[package]]
name = "numpy"
sdist = { url = "https://h/numpy.tar.gz", hash = "sha256:00" }
[[package]]
name = "mine"
source = { git = "https://h/mine?rev=main#0123456789012345678901234567890123456789" }
"""
POETRY = '[[package]]\nname = "numpy"\nfiles = [{file = "n.whl", hash = "sha256:00"}]\n'
PIPFILE = '{"default": {"numpy": {"hashes": ["sha256:00"], "version": "==2"}}, "develop": {}}'


@pytest.fixture
def look(tmp_path):
    def go(name, text):
        machine = hardened(tmp_path)
        machine.write(f"/job/{name}", text)
        machine.named = Named(requirements=(NamedPath(path=f"/job/{name}", origin="x"),))
        (found,) = packages.requirements(machine.host())
        return found.hashed

    return go


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("uv.lock", UV, None),
        ("uv.lock", UV.replace(', hash = "sha256:00"', ""), 6),
        ("uv.lock", UV.replace("#0123456789012345678901234567890123456789", ""), 9),
        ("poetry.lock", POETRY, None),
        ("poetry.lock", POETRY.replace('{file = "n.whl", hash = "sha256:00"}', ""), 2),
        ("pylock.toml", POETRY.replace("[[package]]", "[[packages]]"), None),
        ("Pipfile.lock", PIPFILE, None),
        ("Pipfile.lock", PIPFILE.replace('"sha256:00"', ""), 1),
        ("requirements.txt", "a==1 --hash=sha256:0\nb==1\n", 2),
        ("requirements.txt", "# a\n-i https://h\na==1 \\\n  --hash=sha256:0\n", None),
        ("requirements.txt", "x @ https://h/x.whl#sha256=00\n", None),
        ("requirements.txt", "-e .\n", 1),
    ],
)
def test_a_package_without_a_digest_is_found_at_its_line(look, name, text, line):
    found = look(name, text)
    assert found.outcome is Outcome.OK
    assert found.value is (line is None)
    assert (found.at.line if found.at else None) == line


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("uv.lock", "[[package"),
        ("uv.lock", ""),
        ("Pipfile.lock", "{"),
        ("Pipfile.lock", "[1]"),
        ("uv.lock", "package = 7"),
        ("requirements.txt", "# nothing\n"),
        ("requirements.txt", "-r gone.txt\n"),
        ("requirements.txt", "a\n" * 60_000),
    ],
)
def test_what_is_no_list_of_packages_is_not_known(look, name, text):
    found = look(name, text)
    assert found.value is None
    assert found.outcome is Outcome.ERROR
    assert found.reason


def test_two_lists_that_include_each_other_are_read_once(look):
    found = look("requirements.txt", "-r requirements.txt\na==1 --hash=sha256:0\n")
    assert found.value is True


def test_no_password_of_an_index_is_kept(tmp_path):
    machine = hardened(tmp_path)
    machine.environ["PIP_EXTRA_INDEX_URL"] = "https://user:hunter2@h.example:8443/simple HTTP://x/y"
    machine.write("/etc/pip.conf", "[global]\nextra-index-url = https://t0ken@h2/simple\n")
    found = packages.indexes(machine.host())
    options = [(one.name, one.host) for source in found for one in source.options or ()]
    assert options == [
        ("pip.extra-index-url", "h.example"),
        ("pip.plain-http", "x"),
        ("pip.extra-index-url", "x"),
        ("pip.extra-index-url", "h2"),
    ]
    assert "hunter2" not in repr(found)
    assert "t0ken" not in repr(found)


def test_a_changed_file_is_named_with_its_package(tmp_path):
    machine = hardened(tmp_path)
    (machine.site / "torch/serialization.py").write_text("import os\n")
    sample = packages.records(machine.host())
    assert [(one.distribution, one.path.rpartition("/")[2]) for one in sample.changed] == [
        ("torch", "serialization.py")
    ]
    assert (sample.files, sample.distributions) == (1, 1)


def test_a_working_tree_is_nobodys_record(tmp_path):
    machine = hardened(tmp_path)
    (machine.site / "torch/serialization.py").write_text("import os\n")
    url = machine.site / "torch-2.13.0.dist-info/direct_url.json"
    url.write_text('{"url": "file:///src/torch", "dir_info": {"editable": true}}')
    refused(ValueError, "nothing that is installed", lambda: packages.records(machine.host()))


def test_without_a_record_nothing_is_known(tmp_path):
    machine = hardened(tmp_path)
    distribution(machine.site, "torch", "2.13.0", record="honest.pth,,\n")
    refused(ValueError, "nothing that is installed", lambda: packages.records(machine.host()))


def test_the_toolkit_without_its_package_has_no_version(tmp_path):
    machine = hardened(tmp_path)
    assert packages.container_toolkit(machine.host()) == "1.18.0"
    removed = TOOLKIT.replace("ok installed", "ok config-files")
    machine.write("/var/lib/dpkg/status", removed)
    refused(ValueError, "not known", lambda: packages.container_toolkit(machine.host()))
    (machine.root / "usr/bin/nvidia-ctk").unlink()
    with pytest.raises(FileNotFoundError):
        packages.container_toolkit(machine.host())
    for program in (machine.root / "usr/bin").iterdir():
        program.unlink()
    machine.append("/proc/self/mountinfo", "9 1 0:9 / /usr/bin rw - tmpfs none rw\n")
    with pytest.raises(HiddenError):
        packages.container_toolkit(machine.host())
