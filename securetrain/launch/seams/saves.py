# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The seams by which a worker notices that its script saves what nobody signs, or has it signed.

Rules:

1. what is noticed is a call of a function that people save with (the table below), unless
   securetrain's own writer is given to it. The files are not looked at;
2. it is reported before the first byte is written, so that a death in the middle of a save leaves
   it said; under ``enforcement: require`` nothing is written at all (ST-RUNT-022);
3. torch's own calls within a save that was noticed, and what stays in memory, are no saves;
4. with ``checkpoint.sign_saves`` a save to a disk of this machine is signed (`artifacts.saved`) and
   not accused. Not signed are the older ``dcp.save_state_dict``, saves without collectives, in a
   process of their own or by another writer, and what goes elsewhere;
5. how long saves of directories take is reported, and that one goes on: for the launcher's own end.

=============================================  =================================================
torch.distributed.checkpoint.state_dict_saver  ``save``, ``async_save``, ``save_state_dict``
torch.serialization                            ``torch.save`` to a path or an open file
safetensors.torch, safetensors.numpy           ``save_file``
lightning.fabric.utilities.cloud_io            ``_atomic_save``, which saves by way of memory
transformers, peft, accelerate, deepspeed,     the calls that write a directory (`frameworks`), each
lightning                                      one save with all that it writes (`folder_saves`)
=============================================  =================================================

This tells an honest script's people what they have. A script that wants to hide a save can:
``pickle.dump``, a file of its own format, or the same functions fetched another way.
"""

import functools
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from securetrain.core import printable
from securetrain.core.errors import RuntimeRefusal
from securetrain.core.vocabulary import NOT_SIGNED
from securetrain.launch.process.workerlog import SaveReport
from securetrain.launch.seams import patches
from securetrain.launch.seams.folder_saves import FolderCalls, is_inner, is_part, writing
from securetrain.launch.seams.frameworks import SAVES, FolderSave
from securetrain.launch.seams.import_hooks import Patch
from securetrain.launch.seams.signed_calls import signed_call

if TYPE_CHECKING:
    from securetrain.artifacts import signer

_DCP: Final = "torch.distributed.checkpoint"
_PARTS: Final = frozenset(
    f"{_DCP}.{name}"
    for name in (
        "filesystem",
        "staging",
        "default_planner",
        "state_dict_saver",
        "_async_thread_executor",
        "_async_process_executor",
    )
)
"""Modules whose own calls are parts of a save that was noticed (rule 3)."""
_ASYNC: Final = f"{_DCP}._async_thread_executor"
_LIGHTNING: Final = "_atomic_save"
_PLACES: Final = 16
_LONG: Final = 5.0
"""Seconds after which it is reported that a save goes on."""
_PLACE_LIMIT: Final = 300


@dataclass(slots=True, kw_only=True)
class SaveWatch:
    """The saves of one worker that nobody signs."""

    is_required: bool
    """Whether the policy refuses them."""
    is_first: bool
    """Whether this rank speaks for all about what all ranks do together."""
    say: Callable[[str], None]
    """One line for people."""
    record: Callable[[Callable[[Any], Any]], None]
    """Write an event, made from `ledger.events`."""
    changed: Callable[[], None]
    """The report has something new."""
    signing: "signer.SaveSigner | None" = None
    """Has saves signed; None where the policy does not ask for it."""
    lacking: tuple[str, ...] = ()
    """The demands of the policy that signed files leave unenforced as well."""
    ways: dict[str, int] = field(default_factory=dict)
    """How often each function was called, for what nobody signs."""
    places: list[str] = field(default_factory=list)
    seconds: int = 0
    """Of the longest save, whoever signs it."""
    _going: int = 0
    """Saves that have been going on for `_LONG` seconds."""
    folders: FolderCalls = field(default_factory=FolderCalls)

    def patches(self) -> dict[str, Patch]:
        """The seams, by module."""
        together = functools.partial(self._noticing, place_of=place_of_directory, by_all=True)
        file = functools.partial(self._noticing, place_of=_place_of_file)
        found: dict[str, Patch] = {
            f"{_DCP}.state_dict_saver": functools.partial(
                patches.apply_all,
                [
                    functools.partial(
                        patches.wrap_if_there, functools.partial(together, f"dcp.{name}"), name
                    )
                    for name in ("save", "async_save", "save_state_dict")
                ],
            ),
            "torch.serialization": functools.partial(
                patches.wrap, functools.partial(file, "torch.save"), "save"
            ),
        }
        for package in ("torch", "numpy"):
            found[f"safetensors.{package}"] = functools.partial(
                patches.wrap_if_there,
                functools.partial(file, f"safetensors.{package}.save_file"),
                "save_file",
            )
        for package in ("lightning.fabric", "lightning_fabric"):
            found[f"{package}.utilities.cloud_io"] = functools.partial(
                patches.wrap_if_there, functools.partial(file, "lightning"), _LIGHTNING
            )
        for row in SAVES:
            for module in row.modules:
                around = functools.partial(self._noticing_folder, row)
                patch = functools.partial(patches.wrap_method_if_there, around, row.owner, row.call)
                earlier = (found[module],) if module in found else ()
                found[module] = functools.partial(patches.apply_all, (*earlier, patch))
        return found

    def report(self) -> SaveReport:
        """Everything until now."""
        signed: dict[str, int] = {}
        if self.signing is not None:
            self.signing.sweep()
            self.signing.take_in()
            signed = dict(self.signing.ways)
        return SaveReport(
            unsigned=dict(self.ways),
            places=tuple(self.places),
            signed=signed,
            seconds=self.seconds,
            is_saving=self._going > 0,
        )

    def _timed(self, save: Callable[..., Any]) -> Callable[..., Any]:
        """Note how long it takes: a launcher that is told to end waits for a save (rule 5)."""

        @functools.wraps(save)
        def timed(*args: Any, **kwargs: Any) -> Any:
            began, told = time.monotonic(), threading.Event()
            long = threading.Timer(_LONG, self._count, [1, told])
            long.daemon = True
            long.start()
            try:
                return save(*args, **kwargs)
            finally:
                long.cancel()
                long.join()
                self.seconds = max(self.seconds, math.ceil(time.monotonic() - began))
                if told.is_set():
                    self._count(-1)

        return timed

    def _count(self, number: int, told: threading.Event | None = None) -> None:
        self._going += number
        if told is not None:
            told.set()
        with suppress(RuntimeError):  # another thread changes what is reported
            self.changed()

    def _noticing(
        self,
        way: str,
        save: Callable[..., Any],
        *,
        place_of: Callable[[Sequence[Any], dict[str, Any]], str],
        by_all: bool = False,
    ) -> Callable[..., Any]:
        save = self._timed(save) if by_all else save

        @functools.wraps(save)
        def noticed(*args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1).f_globals.get("__name__", "")  # noqa: SLF001 - rule 3
            in_thread = caller == _ASYNC and self._signs
            if (caller in _PARTS and not in_thread) or not (place := place_of(args, kwargs)):
                return save(*args, **kwargs)
            if is_part(place, is_folder=by_all):
                return save(*args, **kwargs)
            if way == "dcp.async_save" and self._signs and _is_async_thread(kwargs):
                return save(*args, **kwargs)  # the thread's own call of `save` is signed
            if self._signs and self.signing is not None:
                said = "dcp.async_save" if in_thread else way
                kept = signed_call(self.signing, said, save, place, (args, kwargs))
                if kept is not None:
                    self.changed()
                    return kept.result
            self._notice(way, printable(place, keep="")[:_PLACE_LIMIT], by_all=by_all)
            return save(*args, **kwargs)

        return noticed

    def _noticing_folder(self, row: FolderSave, save: Callable[..., Any]) -> Callable[..., Any]:
        save = self._timed(save)

        @functools.wraps(save)
        def noticed(*args: Any, **kwargs: Any) -> Any:
            given = (args[0], args[1:], kwargs)
            where = row.place(given)
            if not where or is_inner(where):
                return save(*args, **kwargs)
            place = _path(where)
            can_sign = self._signs and "://" not in place and not row.is_later(given)
            if can_sign and self.signing is not None:
                here = functools.partial(save, *args, **kwargs)
                kept = self.folders.sign(self.signing, row, here, given)
                self.changed()
                return kept
            by_all = row.is_collective(given)
            if not row.has_weights or not (by_all or row.leads(given)):
                return save(*args, **kwargs)
            self._notice(row.way, printable(place, keep="")[:_PLACE_LIMIT], by_all=by_all)
            with writing(place, signs=False, is_signed=False):
                return save(*args, **kwargs)

        return noticed

    @property
    def _signs(self) -> bool:
        """Tell whether saves are signed, and that is enough for the policy."""
        return self.signing is not None and not (self.is_required and self.lacking)

    def _notice(self, way: str, place: str, *, by_all: bool) -> None:
        """Rule 2."""
        speaks = not self.ways and (self.is_first or not by_all)
        if self.is_required:
            self._refuse(way, place)
        self.ways[way] = self.ways.get(way, 0) + 1
        if len(self.places) < _PLACES and place not in self.places:
            self.places.append(place)
        self.changed()
        if speaks:
            self.say(f"{NOT_SIGNED}: {way} saves {place}, which nobody signs")
            self.record(lambda events: events.CheckpointsNotSigned(ways=way, place=place))

    def _refuse(self, way: str, place: str) -> None:
        lacking = f" ({', '.join(self.lacking)} are not met by signed files)"
        error = RuntimeRefusal(
            "ST-RUNT-022",
            f"{way} would save what nobody signs, and the policy requires that it is enforced"
            f" (enforcement){lacking if self.signing is not None and self.lacking else ''}",
            place,
        )
        self.record(lambda events: events.UnsignedSaveRefused.of(error, place))
        raise error


def place_of_directory(args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    """Say where a distributed save goes; empty for one by securetrain's own writer."""
    given = [*args[1:], *kwargs.values()]
    writer = next((one for one in given if hasattr(one, "write_data")), None)
    if type(writer).__module__.startswith("securetrain."):
        return ""
    paths = [
        kwargs.get("checkpoint_id"),
        *(getattr(writer, name, None) for name in ("checkpoint_id", "path")),
        *(one for one in args[1:] if isinstance(one, str | os.PathLike)),
    ]
    return next((_path(one) for one in paths if one), "an unknown place")


def _place_of_file(args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    """Say which file is written; empty for memory."""
    named = [kwargs.get(name) for name in ("f", "filename", "filepath")]
    target = next((one for one in (*named, *args[1:2]) if one is not None), None)
    if isinstance(target, str | os.PathLike):
        return _path(target)
    name = getattr(target, "name", None)
    if isinstance(name, str | os.PathLike):
        return _path(name)
    return "an open file" if isinstance(name, int) else ""


def _path(path: Any) -> str:
    text = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else str(path)
    return text if "://" in text else str(Path(text).absolute())


def _is_async_thread(kwargs: dict[str, Any]) -> bool:
    """Tell whether ``dcp.async_save`` saves in a thread of this process."""
    kind = kwargs.get("async_checkpointer_type")
    return kind is None or getattr(kind, "name", "") == "THREAD"
