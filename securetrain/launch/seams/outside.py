# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The seams by which a worker notices what its script does outside of what the policy reaches.

Rules:

1. a program in Python, or a launcher of such programs, that the script starts by ``subprocess`` or
   ``os.system`` runs without the shim: what it trains, saves and loads is not known. What
   multiprocessing starts has the shim, and what torch's and Triton's compilers start is their own;
2. a load by ``torch.load``, ``dcp.load`` or safetensors is not held to what the policy asks of a
   loaded checkpoint (``checkpoint.expect``, ``checkpoint.max_age_days``), whether it is verified or
   not. Where the policy asks for nothing of it, there is nothing to say;
3. both are said when they happen, in the rank's report and in the ledger; under ``enforcement:
   require`` they are refused before they happen (ST-RUNT-021).

=============================================  =================================================
subprocess                                     ``Popen``, by which all of it starts programs
os                                             ``system``
torch.serialization                            ``torch.load`` of a file
torch.distributed.checkpoint.state_dict_loader ``load`` by another reader than securetrain's
safetensors                                    ``safe_open``
=============================================  =================================================

This tells an honest script's people what they have. A script that hides it can: ``os.exec``, a
shell script that starts Python, or a reader of its own.
"""

import functools
import io
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from securetrain.core import printable
from securetrain.core.errors import RuntimeRefusal
from securetrain.core.vocabulary import LOADS_NOT_HELD, PROGRAMS_NOT_PROTECTED
from securetrain.launch.process.workerlog import OutsideReport
from securetrain.launch.seams import patches
from securetrain.launch.seams.import_hooks import Patch
from securetrain.launch.seams.saves import place_of_directory

_DCP: Final = "torch.distributed.checkpoint"
_PYTHON: Final = re.compile(r"(python|pypy)[0-9.]*\Z")
_LAUNCHERS: Final = frozenset(
    "accelerate composer deepspeed horovodrun mpiexec mpirun ray srun torchrun".split()  # noqa: SIM905 - words
)
_OWN: Final = ("torch._inductor", "torch._dynamo", "torch.utils", "triton", "multiprocessing")
"""Packages whose programs are their own (rule 1)."""
_READERS: Final = "securetrain.artifacts.dataset.verified"
"""Imported where a script opens a signed dataset."""
_FRAMES: Final = 8
_KEPT: Final = 16
_TEXT: Final = 300
_SHOWN: Final = 120


@dataclass(slots=True, kw_only=True)
class OutsideWatch:
    """The doings of one worker outside."""

    is_required: bool
    """Whether the policy refuses it."""
    demands: tuple[str, ...]
    """The fields of the policy about loads that only securetrain's own loads are held to."""
    say: Callable[[str], None]
    """One line for people."""
    record: Callable[[Callable[[Any], Any]], None]
    """Write an event, made from `ledger.events`."""
    changed: Callable[[], None]
    """The report has something new."""
    programs: dict[str, int] = field(default_factory=dict)
    loads: dict[str, int] = field(default_factory=dict)
    places: list[str] = field(default_factory=list)

    def patches(self) -> dict[str, Patch]:
        """The seams, by module."""
        found: dict[str, Patch] = {
            "subprocess": self._hook_popen,
            "os": functools.partial(patches.wrap, self._system, "system"),
        }
        if self.demands:
            load = functools.partial(self._loading, place_of=_place_of_file)
            together = functools.partial(self._loading, place_of=_place_of_reader)
            found |= {
                "torch.serialization": functools.partial(
                    patches.wrap, functools.partial(load, "torch.load"), "load"
                ),
                f"{_DCP}.state_dict_loader": functools.partial(
                    patches.wrap_if_there, functools.partial(together, "dcp.load"), "load"
                ),
                "safetensors": functools.partial(
                    patches.wrap_if_there, functools.partial(load, "safetensors"), "safe_open"
                ),
            }
        return found

    def report(self) -> OutsideReport:
        """Everything until now."""
        return OutsideReport(
            programs=dict(self.programs),
            loads=dict(self.loads),
            places=tuple(self.places),
            reads_signed=_READERS in sys.modules,
        )

    # -- programs ----------------------------------------------------------------------------------

    def _hook_popen(self, module: Any) -> None:
        popen = patches.find(module, "Popen")
        popen.__init__ = self._starting(patches.find(popen, "__init__"))

    def _starting(self, init: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(init)
        def __init__(popen: Any, args: Any, *rest: Any, **kwargs: Any) -> None:  # noqa: N807 - it is one
            words = _words(args, is_shell=bool(kwargs.get("shell")))
            self._start(words, kwargs.get("executable"))
            init(popen, args, *rest, **kwargs)

        return __init__

    def _system(self, system: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(system)
        def noticed(command: Any) -> int:
            self._start(_words(command, is_shell=True), None)
            return system(command)

        return noticed

    def _start(self, words: Sequence[str], executable: Any) -> None:
        name = unshielded(words, executable)
        if not name or _is_own():
            return
        name = printable(name, keep="")[:_TEXT]
        if self.is_required:
            self._refuse(f"{name} would run without the worker shim", name)
        is_first = not self.programs
        if name in self.programs or len(self.programs) < _KEPT:
            self.programs[name] = self.programs.get(name, 0) + 1
        self.changed()
        if is_first:
            self.say(f"{PROGRAMS_NOT_PROTECTED}: the script starts {name}, without the shim")
            self.record(lambda events: events.ProgramsNotProtected(subject=name[:200]))

    # -- loads -------------------------------------------------------------------------------------

    def _loading(
        self,
        way: str,
        load: Callable[..., Any],
        *,
        place_of: Callable[[Sequence[Any], dict[str, Any]], str],
    ) -> Callable[..., Any]:
        @functools.wraps(load, updated=())
        def noticed(*args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1).f_globals.get("__name__", "")  # noqa: SLF001 - parts of a load
            if not caller.startswith((_DCP, "securetrain.")) and (place := place_of(args, kwargs)):
                self._load(way, printable(place, keep="")[:_TEXT])
            return load(*args, **kwargs)

        return noticed

    def _load(self, way: str, place: str) -> None:
        fields = ", ".join(self.demands)
        if self.is_required:
            self._refuse(f"{way} would load what is not held to {fields}", place)
        is_first = not self.loads
        self.loads[way] = self.loads.get(way, 0) + 1
        if len(self.places) < _KEPT and place not in self.places:
            self.places.append(place)
        self.changed()
        if is_first:
            self.say(f"{LOADS_NOT_HELD}: {way} loads {place}, which is not held to {fields}")
            self.record(
                lambda events: events.LoadsNotHeld(subject=place[:200], ways=way, fields=fields)
            )

    def _refuse(self, what: str, where: str) -> None:
        error = RuntimeRefusal(
            "ST-RUNT-021",
            f"{what}, and the policy requires that all of it is enforced (enforcement)",
            where,
        )
        self.record(lambda events: events.OutsideRefused.of(error, where[:200]))
        raise error


def unshielded(words: Sequence[str], executable: Any = None) -> str:
    """Name the program in Python that these words start; empty for another one."""
    names = [os.fsdecode(executable)] if isinstance(executable, str | bytes | os.PathLike) else []
    spread = [*names, *_words(words, is_shell=False)]
    for place, word in enumerate(spread):
        name = Path(word).name
        if _PYTHON.match(name) or name in _LAUNCHERS:
            rest = spread[place + 1 :]
            if rest[:2] == ["-m", "securetrain"]:
                return ""
            shown = [name, *rest[: 1 if rest[:1] == ["-c"] else 2]]
            return " ".join(shown)[:_SHOWN]
        if place >= len(names) and not _may_lead(word):
            break
    return ""


def _may_lead(word: str) -> bool:
    """Tell whether a program may follow: behind ``env A=b``, ``nice -n 5``, ``sh -c``."""
    return (
        word.startswith("-")
        or "=" in word
        or word.isdigit()
        or Path(word).name in {"env", "nice", "nohup", "sh", "bash", "time", "timeout", "exec"}
    )


def _words(args: Any, *, is_shell: bool) -> list[str]:
    if isinstance(args, str | bytes):
        text = os.fsdecode(args)
        try:
            return shlex.split(text) if is_shell else [text]
        except ValueError:
            return text.split()
    if isinstance(args, os.PathLike):
        return [os.fsdecode(args)]
    given = [os.fsdecode(one) for one in args if isinstance(one, str | bytes | os.PathLike)]
    for place, word in enumerate(given[:-1]):
        if word == "-c" and Path(given[0]).name in {"sh", "bash"}:
            return [*given[: place + 1], *_words(given[place + 1], is_shell=True)]
    return given


def _is_own() -> bool:
    """Tell whether one of torch's own parts, or ours, starts the program (rule 1)."""
    frame = sys._getframe(3)  # noqa: SLF001 - rule 1 goes by the caller
    for _ in range(_FRAMES):
        name = frame.f_globals.get("__name__", "")
        if name.startswith("securetrain.") or any(
            name == one or name.startswith(f"{one}.") for one in _OWN
        ):
            return True
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False


def _place_of_file(args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    """Say which file is read; empty for memory."""
    given = next((one for one in (*args[:1], kwargs.get("f"), kwargs.get("filename")) if one), None)
    if isinstance(given, str | bytes | os.PathLike):
        return os.fsdecode(given)
    if given is None or isinstance(given, io.BytesIO):
        return ""
    name = getattr(given, "name", None)
    return name if isinstance(name, str) else "an open file"


def _place_of_reader(args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    """Say what ``dcp.load`` reads; empty for securetrain's own reader."""
    given = [*args[1:], *kwargs.values()]
    reader = next((one for one in given if hasattr(one, "read_data")), None)
    if type(reader).__module__.startswith("securetrain."):
        return ""
    return place_of_directory(args, kwargs)
