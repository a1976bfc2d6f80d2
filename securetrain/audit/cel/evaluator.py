# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""CEL, evaluated in a process of its own. A program itself, run by path; library only.

Rules:

1. the library that evaluates has no limit of cost, so its process has: of processor time for each
   answer, and of memory. What exceeds one ends the process, and the next question gets a new one;
2. an expression that ended `MAX_ENDS` processes is not evaluated again;
3. an error is told by its kind, never by the library's words, which quote the object's values.
"""

import importlib.util
import json
import resource
import select
import signal
import subprocess
import sys
import types
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final, Self

CPU_SECONDS: Final = 1.0
"""Of one answer."""
WALL_SECONDS: Final = 60.0
MEMORY: Final = 256 << 20
MAX_OBJECT: Final = 1 << 20
"""Bytes of an object as JSON."""
MAX_ENDS: Final = 3
_MAX_PROGRAMS: Final = 512


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of an expression about an object."""

    value: bool | None
    why: str = ""
    """Why it says nothing."""
    missing: str | None = None
    """The key that is not there, where that is why."""
    compiles: bool = True
    """Whether the library understands the expression."""


def is_installed() -> bool:
    """Return whether the library is there."""
    return importlib.util.find_spec("cel") is not None


@dataclass(slots=True)
class Evaluator:
    """Asks a process, which it starts when there is a question; a context manager."""

    ends: Counter[str] = field(default_factory=Counter)
    process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start nothing yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self._end()

    def ask(self, cel: str, shown: bytes) -> Answer:
        """Evaluate an expression over an object.

        Args:
            cel: The expression.
            shown: The object as JSON, without what it may not see.
        """
        if len(shown) > MAX_OBJECT:
            return Answer(None, f"the object has more than {MAX_OBJECT >> 20} MiB")
        if self.ends[cel] >= MAX_ENDS:
            return Answer(None, "the expression took too much too often, and was given up")
        line = json.dumps(cel).encode() + b"\t" + shown + b"\n"
        try:
            said = self._answer(line)
        except OSError:
            said = b""
        if said:
            return Answer(**json.loads(said))
        self.ends[cel] += 1
        return Answer(None, self._end() or f"no answer within {WALL_SECONDS:.0f} s")

    def _answer(self, line: bytes) -> bytes:
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-I", __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={},
            )
        asked, told = self.process.stdin, self.process.stdout
        assert asked is not None
        assert told is not None
        asked.write(line)
        asked.flush()
        ready, _, _ = select.select([told], [], [], WALL_SECONDS)
        return told.readline() if ready else b""

    def _end(self) -> str:
        """End the process; what ended it before, if something did."""
        if self.process is None:
            return ""
        process, self.process = self.process, None
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):  # what was asked last, and nobody reads
                pipe.close() if pipe is not None else None
        try:
            process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        match process.returncode:
            case 0 | -9:  # at the end, or when nothing came
                return ""
            case code if code == -signal.SIGPROF:
                return f"it took more than {CPU_SECONDS} s of processor time"
            case code:
                return (
                    f"the evaluator ended ({code}): more than {MEMORY >> 20} MiB, or a fault of it"
                )


def _serve(asked: BinaryIO, told: BinaryIO) -> None:
    """Answer questions until there are no more."""
    sys.modules["cel.cli"] = types.ModuleType("cel.cli")  # its command line, half a second to load
    import cel  # noqa: PLC0415 - here alone

    for name, limit in (("DATA", MEMORY), ("CORE", 0), ("FSIZE", 0)):
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))
    programs: dict[str, Any] = {}
    while line := asked.readline():
        text, _, shown = line.partition(b"\t")
        value = json.loads(shown)
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # whose signal ends the process
        said = _evaluated(cel, json.loads(text), value, programs)
        signal.setitimer(signal.ITIMER_PROF, 0)
        told.write(json.dumps(said).encode() + b"\n")
        told.flush()


def _evaluated(cel: Any, text: str, value: Any, programs: dict[str, Any]) -> dict[str, Any]:
    try:
        if text not in programs:
            if len(programs) >= _MAX_PROGRAMS:
                programs.clear()
            programs[text] = cel.compile(text)
    except ValueError:
        return {"value": None, "why": "it does not compile", "compiles": False}
    try:
        found = programs[text].execute({"object": value})
    except KeyError as error:
        key = error.args[0] if error.args else None
        return {"value": None, "why": "a field is not there", "missing": str(key)}
    except Exception as error:  # noqa: BLE001 - whatever it is, it is no answer
        return {"value": None, "why": f"it has no value here ({type(error).__name__})"}
    if not isinstance(found, bool):
        return {"value": None, "why": f"it is no boolean but of the type {type(found).__name__}"}
    return {"value": found}


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer)
