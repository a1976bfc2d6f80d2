# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Git, asked for what was: earlier versions of a file, and messages of commits."""

import shutil
import subprocess
from functools import cached_property
from pathlib import Path
from typing import Final

MAIN: Final = "origin/main"


class History:
    """The history of a checkout, as far as it is there."""

    def __init__(self, root: Path) -> None:
        """Look at nothing yet."""
        self.root = root

    @cached_property
    def blind(self) -> str:
        """The reason why the history is not to be seen; empty when it is."""
        if shutil.which("git") is None:
            return "git is not installed"
        if not (self.root / ".git").exists():
            return "this is no clone"
        if self.text("rev-parse", "--is-shallow-repository").strip() != "false":
            return "this clone is shallow"
        return ""

    def text(self, *words: str) -> str:
        """The output of a git command; empty when it fails."""
        done = subprocess.run(
            ["git", "-C", str(self.root), *words], capture_output=True, text=True, check=False
        )
        return done.stdout if done.returncode == 0 else ""

    def lines(self, *words: str) -> list[str]:
        """The lines of a git command's output."""
        return [] if self.blind else self.text(*words).split()

    def first(self, path: str) -> str:
        """What a file was when it came, or nothing."""
        added = self.lines("log", "--diff-filter=A", "--format=%H", "--", path)
        return self.text("show", f"{added[-1]}:{path}") if added else ""

    def earlier(self, path: str) -> dict[str, str]:
        """What a file was: in HEAD, in its parent, and where this branch left the main one.

        HEAD's parent is asked so that a commit on the main branch itself is looked at.
        """
        if self.blind:
            return {}
        left = self.text("merge-base", "HEAD", MAIN).strip() or "HEAD"
        asked = {"HEAD": "HEAD", "HEAD^": "HEAD^", MAIN: left}
        texts = {name: self.text("show", f"{at}:{path}") for name, at in asked.items()}
        return {name: text for name, text in texts.items() if text}
