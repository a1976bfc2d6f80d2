# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Every command of every page is one that the command line takes, and does what its page says."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from securetrain.testing.machine import Machine
from tests.pages.commands import HELP, PAGES, ROOT, commands_of, refusal, verb
from tests.pages.stories import FLEET, RUN, STORIES

TYPED = [command for page in PAGES for command in commands_of(page)]
PAGES_WITH_COMMANDS = sorted({command.page for command in TYPED if ROOT / command.page != HELP})
WAIT = 900


@pytest.mark.parametrize("page", sorted({command.page for command in TYPED}))
def test_the_command_line_takes_what_a_page_types(page):
    wrong = {
        command.text: why
        for command in TYPED
        for words in command.words
        if command.page == page and words[0] == "securetrain" and (why := refusal(words))
    }
    assert wrong == {}


def first_of(table, text):
    """What a table has for a command; nothing when it has nothing."""
    return next((value for begin, value in table.items() if text.startswith(begin)), None)


def skipped(story, text):
    """Say whether a command is not run here."""
    return first_of(story.not_run, text) or first_of(story.by, text)


def test_every_command_is_run_or_has_its_reason():
    assert sorted(STORIES) == PAGES_WITH_COMMANDS


@pytest.mark.parametrize("page", sorted(STORIES))
def test_a_story_fits_its_page(page):
    story = STORIES[page]
    texts = [command.text for command in TYPED if command.page == page]
    for begin in (*story.ends, *story.not_run, *story.by):
        assert any(text.startswith(begin) for text in texts), begin
    for words in story.instead:
        assert any(words in text for text in texts), words
    for begin, file in story.by.items():
        tested = (ROOT / file).read_text("utf-8")
        assert page in tested, f"{file} does not name {page}"
        for command in TYPED:
            if command.page == page and command.text.startswith(begin):
                for simple in command.words:
                    assert verb(simple) in tested, f"{file} does not try {command.text}"


def test_what_a_story_copies_is_there():
    """In a clone: a folder that git ignores is there for its author alone."""
    copied = re.findall(r"\$ROOT/([\w/]+)", " ".join(story.before for story in STORIES.values()))
    assert [name for name in copied if (ROOT / name).exists()] == copied != []


class Shell:
    """Types commands in a folder, where ``securetrain`` is this one."""

    def __init__(self, folder: Path, page: str = "README.md", **env: str) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.tools = folder.parent / f"{folder.name}-bin"
        self.tools.mkdir()
        self.program("securetrain", "-m securetrain")
        self.program("torchrun", "-m torch.distributed.run")
        self.program("block", f"{ROOT}/tests/pages/commands.py {ROOT / page}")
        self.env = {
            "PATH": f"{self.tools}:{os.environ['PATH']}",
            "HOME": str(self.tools),
            "PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "ROOT": str(ROOT),
            "SECURETRAIN_STATE": str(folder.parent / f"{folder.name}-state"),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "100",
            **env,
        }

    def program(self, name: str, words: str, before: str = "") -> None:
        """Put a program of this Python on the path."""
        path = self.tools / name
        path.write_text(f'#!/bin/sh\n{before}exec {sys.executable} {words} "$@"\n')
        path.chmod(0o755)

    def type(self, text: str, ends: tuple[int, ...] = (0,)) -> str:
        done = subprocess.run(
            ["bash", "-e", "-c", text],
            cwd=self.folder, env=self.env, capture_output=True, text=True,
            check=False, timeout=WAIT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        said = f"{text}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        assert done.returncode in ends, f"ended with {done.returncode}, expected {ends}: {said}"
        return done.stdout


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A folder in which a run was made as `RUN` says."""
    shell = Shell(tmp_path_factory.mktemp("run") / "here")
    shell.type(RUN)
    return shell.folder


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """Node-17, with a software TPM."""
    folder = tmp_path_factory.mktemp("fleet")
    with Machine(folder / "node-17", "node-17", ca=folder / "ca") as made:
        made.boot()
        made.write_settings(folder / "node-17.settings")
        yield made, folder


SPEAKS = """[ "$1 $2" = "attest collect" ] && set -- "$@" --attester "$SPEAKS" --state "$KEYS"
"""


@pytest.fixture
def shell(page, tmp_path: Path, request: pytest.FixtureRequest) -> Shell:
    story, here = STORIES[page], tmp_path / "here"
    if story.run:
        shutil.copytree(request.getfixturevalue("run"), here, symlinks=True)
    made = Shell(here, page)
    if story.fleet:
        node, folder = request.getfixturevalue("machine")
        made.env |= {"SPEAKS": f"{folder}/node-17.settings", "KEYS": f"{folder}/node-17.keys"}
        made.program("securetrain", "-m securetrain", SPEAKS)
        (here / "root.pem").write_text(node.tpm.root_certificate)
        (here / "infineon.pem").write_text(node.tpm.issuer_certificate)
        made.type(FLEET)
    return made


def tell(page: str, shell: Shell) -> None:
    story = STORIES[page]
    if story.before:
        shell.type(story.before)
    for command in TYPED:
        text = command.text
        if command.page != page or skipped(story, text):
            continue
        for words, put in story.instead.items():
            text = text.replace(words, put)
        shell.type(text, first_of(story.ends, command.text) or (0,))


def pages():
    """The cheap ones are told always."""
    for page, story in sorted(STORIES.items()):
        if any(c.page == page and not skipped(story, c.text) for c in TYPED):
            yield pytest.param(page, marks=() if story.cheap else (pytest.mark.many,))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", list(pages()))
def test_the_commands_of_a_page(page, shell):
    tell(page, shell)
