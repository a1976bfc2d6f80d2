# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Containerfile says what is so: Python, extras, sources, user and entry point.

No image is built: that needs a container engine and a registry.
"""

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGE = (ROOT / "docs/how-to/containers.md").read_text()
IGNORED = (ROOT / ".containerignore").read_text().splitlines()


def parsed():
    """Its instructions, in order: name and text, lines that go on joined."""
    lines = (ROOT / "Containerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#"))
    joined = re.sub(r"\\\n", " ", text)
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


FILE = parsed()
BUILD = FILE[: [name for name, _ in FILE].index("FROM", 2)]
FINAL = FILE[len(BUILD) :]


def words(name, part=FILE):
    return [text for found, text in part if found == name]


def argument(name):
    (value,) = (text.partition("=")[2] for text in words("ARG") if text.startswith(f"{name}="))
    return value


def test_there_is_a_stage_that_builds_and_one_that_runs():
    assert words("FROM") == ["${BASE} AS build", "${BASE}"]
    assert "gcc" in str(BUILD)
    assert "gcc" not in str(FINAL)
    names = {name for name, _ in FILE}
    assert names <= {
        *("ARG", "FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "ENTRYPOINT", "CMD")
    }, "ADD fetches, and unpacks"


def test_the_base_has_a_python_that_the_project_supports():
    found = re.fullmatch(
        r"docker\.io/library/python:(3\.\d+)-slim-[a-z]+(@sha256:[0-9a-f]{64})?", argument("BASE")
    )
    assert found is not None
    version = tuple(map(int, found[1].split(".")))
    least = tuple(map(int, PROJECT["requires-python"].removeprefix(">=").split(".")))
    assert version >= least
    assert f"Programming Language :: Python :: {found[1]}" in PROJECT["classifiers"]


def test_its_extras_are_extras():
    extras = argument("EXTRAS").split(",")
    assert set(extras) <= set(PROJECT["optional-dependencies"])
    assert "dev" not in extras


@pytest.mark.parametrize(("extras", "ending"), [("train,report", "[train,report]"), ("", "")])
def test_no_extras_are_none(extras, ending):
    (install,) = (text for text in words("RUN", FINAL) if "pip install" in text)
    wheel = re.search(r'"(\$\{wheel\}[^"]*)"', install)
    assert wheel is not None
    said = subprocess.run(
        ["/bin/sh", "-c", f'printf %s "{wheel[1]}"'],
        env={"wheel": "a.whl", "EXTRAS": extras},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert said.stdout == f"a.whl{ending}"


def test_versions_are_those_of_the_constraints():
    """An environment that pip makes to build in, too, by way of the variable."""
    (install,) = (text for text in words("RUN", FINAL) if "pip install" in text)
    assert "-c /tmp/constraints.txt" in install
    assert "pip check" in install
    assert any("PIP_CONSTRAINT=/src/constraints.txt" in text for text in words("ENV", BUILD))
    assert any("SECURETRAIN_KERNEL=required" in text for text in words("ENV", BUILD))
    assert not re.search(r"curl|wget|--trusted-host|http://", str(FILE))


def test_what_is_copied_is_there_and_let_through():
    let_through = {line.removeprefix("!") for line in IGNORED if line.startswith("!")}
    for text in words("COPY"):
        if text.startswith("--from=build"):
            continue
        *sources, _ = text.split()
        for source in sources:
            assert (ROOT / source).exists(), source
            assert source in let_through, source
    assert IGNORED[1] == "*", "what is not named stays outside"
    assert (ROOT / ".dockerignore").read_text().splitlines() == IGNORED, "for another engine"


@pytest.mark.parametrize("name", ["readme", "license-files"])
def test_what_the_wheel_needs_is_copied(name):
    copied = " ".join(words("COPY", BUILD)).split()
    named = PROJECT[name]
    for one in [named] if isinstance(named, str) else named:
        assert one in copied
    assert {"hatch_build.py", "tools/kernel.py", "policies", "threat_models"} <= set(copied)


def test_it_runs_as_nobody_in_particular():
    (user,) = words("USER")
    assert user.isdigit()
    assert int(user) > 0
    assert any(f"--uid {user}" in text for text in words("RUN", FINAL))
    assert FINAL.index(("USER", user)) > max(
        place for place, (name, _) in enumerate(FINAL) if name == "RUN"
    )


def test_it_starts_a_command_of_the_project():
    ((program,),) = (json.loads(text) for text in words("ENTRYPOINT"))
    assert program in PROJECT["scripts"]
    ((verb,),) = (json.loads(text) for text in words("CMD"))
    from securetrain.cli.main import VERBS

    assert verb in VERBS


def test_the_page_says_its_arguments():
    for name in ("BASE", "EXTRAS"):
        assert f"| `{name}` | `{argument(name)}` |" in PAGE
    assert "was not built" in PAGE
