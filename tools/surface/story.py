# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Runs commands in one folder and keeps what each of them did."""

import contextlib
import io
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from unittest import mock

from tools.surface import shapes

_ENVIRONMENT: Final = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "TZ": "UTC"}


class Story:
    """Runs commands in one folder and keeps what each of them did."""

    def __init__(self, folder: Path, main: Callable[[Sequence[str]], int]) -> None:
        self.here = folder
        self._main = main
        self._done: dict[str, dict[str, Any]] = {}

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """The folder as the working directory, and an environment without anything of its own."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith("SECURETRAIN")
        }
        home = self.here / "home"
        home.mkdir()
        own = {"HOME": str(home), "SECURETRAIN_STATE": str(home / "state")}
        with (
            contextlib.chdir(self.here),
            mock.patch.dict(os.environ, {**kept, **_ENVIRONMENT, **own}, clear=True),
        ):
            yield

    def run(self, *words: object) -> str:
        """Run one command; what it printed on standard output."""
        arguments = [str(word) for word in words]
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2))
        with (
            mock.patch.object(sys, "stdout", out),
            mock.patch.object(sys, "stderr", err),
            mock.patch.object(sys, "stdin", io.StringIO("")),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            try:
                code = self._main(arguments)
            except SystemExit as leaving:
                code = leaving.code if isinstance(leaving.code, int) else 1
        texts = []
        for stream in (out, err):
            stream.flush()
            assert isinstance(stream.buffer, io.BytesIO)
            texts.append(stream.buffer.getvalue().decode("utf-8", "replace"))
        self._keep(arguments, code, *texts)
        return texts[0]

    def start(self, *words: str) -> None:
        """Run one command as a process of its own. Its output tells of this machine: not kept."""
        command = [sys.executable, "-m", "securetrain", *words]
        done = subprocess.run(
            command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, check=False
        )
        self._keep(list(words), done.returncode, "", "")

    def _keep(self, arguments: list[str], code: int, out: str, err: str) -> None:
        name = shapes.settled(" ".join(["securetrain", *arguments]), self.here)
        again = 2
        while name in self._done:
            name = f"{name.removesuffix(f' (#{again - 1})')} (#{again})"
            again += 1
        said = shapes.settled(out + "\n(stderr)\n" + err, self.here)
        self._done[name] = {
            "exit codes": code,
            "refusal codes": sorted(set(re.findall(r"\bST-[A-Z]{3,4}-\d{3}\b", out + err))),
            "json": shapes.output_shape(out),
            "output": _of_a_run(name, said),
        }

    def record(self) -> dict[str, dict[str, Any]]:
        """Part -> command line -> what was kept."""
        parts = ("exit codes", "refusal codes", "json", "output")
        return {part: {name: one[part] for name, one in self._done.items()} for part in parts}


def _of_a_run(name: str, said: str) -> str:
    """Without the numbers of a trained model; of its report nothing: it tells of the machine."""
    if name.startswith("securetrain report ran"):
        return ""
    trained = " ran/" in name or "<folder>/ran/" in name
    return re.sub(r"\d[\d,]{3,}", "<n>", said) if trained else said
