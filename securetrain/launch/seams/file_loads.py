# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The seams by which a script's own loads of pickled files are read under the allow-list.

Rules:

1. ``torch.load`` without ``weights_only``, of a file or of memory, reads under `unpickler`'s rules.
   With ``weights_only``, its default, torch's own restricted reader stays;
2. so does ``pickle.load``, but of memory, pipes and sockets (how processes talk to their own
   children) and of what torch's and Triton's compilers keep (`_OWN_CACHES`). ``numpy.load`` and
   ``pandas.read_pickle`` call it;
3. ``torch.load`` with a ``pickle_module`` that is not Python's is refused: nothing restricts it;
4. files below ``checkpoint.allow_pickles_in`` are read as without securetrain. Where a file is, is
   asked of its descriptor, and its path with every link followed.

This protects an honest script from a file. It does not protect the job from the script:
``pickle.loads``, ``pickle.Unpickler``, dill, joblib and TorchScript archives are not watched.
"""

import contextlib
import dataclasses
import functools
import io
import os
import pickle
import stat
import sys
from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from securetrain.core import printable
from securetrain.launch.seams import patches
from securetrain.launch.seams.import_hooks import Patch
from securetrain.launch.seams.unpickler import Rules, SafePickle, Source, make_unpickler, refuse

FILES: Final = Source(
    "ST-RUNT-037",
    "the pickle in this file",
    "a file",
    "see what it would run with 'securetrain scan' before anything else. When '{name}' only holds"
    " data, let the script declare it with torch.serialization.add_safe_globals, or the policy with"
    " checkpoint.allow_globals; a folder that you trust as much as the script can be named in"
    " checkpoint.allow_pickles_in",
)
_NO_LIMIT: Final = sys.maxsize
"""A file is as large as the disk that the script's people gave it."""
_OWN_CACHES: Final = (
    "torch._dynamo",
    "torch._functorch",
    "torch._inductor",
    "triton",
)
"""Packages that pickle what they compile, into the private folder of this user and policy."""
_WHERE_LIMIT: Final = 300
_MODULE_PLACE: Final = 2
"""Where ``torch.load`` has its ``pickle_module``."""


@dataclass(frozen=True, slots=True)
class _Place:
    text: str
    is_trusted: bool


_MEMORY: Final = _Place("bytes in memory", is_trusted=False)


@dataclass(slots=True)
class FileLoads:
    """The loads of one worker."""

    rules: Rules
    """Those for peers: mode, names and whom to tell."""
    trusted: Collection[str]
    """Absolute paths, of the policy (rule 4)."""
    _now: ContextVar[_Place] = field(init=False)
    _trusted: tuple[Path, ...] = field(init=False)
    _pickle: SafePickle = field(init=False)

    def __post_init__(self) -> None:
        self._now = ContextVar("file-load", default=_MEMORY)
        self._trusted = tuple(Path(os.path.realpath(path)) for path in self.trusted)
        self._pickle = _PickleOfFiles(self)

    def patches(self) -> dict[str, Patch]:
        """The seams, by module."""
        return {
            "torch.serialization": functools.partial(
                patches.apply_all,
                (
                    functools.partial(patches.replace_pickle, self._pickle),
                    functools.partial(patches.wrap, self._restricting_torch, "load"),
                ),
            ),
            "pickle": functools.partial(patches.wrap, self._restricting_pickle, "load"),
        }

    def reader(self) -> type[pickle.Unpickler]:
        """The unpickler for what is being loaded now."""
        place = self._now.get()
        if place.is_trusted:
            return pickle.Unpickler
        return make_unpickler(self._rules(place))

    def _rules(self, place: _Place) -> Rules:
        source = dataclasses.replace(FILES, where=place.text)
        return dataclasses.replace(self.rules, limit=_NO_LIMIT, source=source)

    def _restricting_torch(self, load: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(load)
        def restricted(*args: Any, **kwargs: Any) -> Any:
            with self._loading(args[0] if args else kwargs.get("f")) as place:
                given = args[_MODULE_PLACE] if len(args) > _MODULE_PLACE else None
                given = kwargs.get("pickle_module", given)
                if given is pickle:
                    args = (*args[:_MODULE_PLACE], *args[_MODULE_PLACE + 1 :])
                    kwargs["pickle_module"] = self._pickle
                elif not (given is None or isinstance(given, SafePickle) or place.is_trusted):
                    name = getattr(given, "__name__", type(given).__name__)
                    refuse(name, self._rules(place), f"would be read with {name}, unrestricted")
                return load(*args, **kwargs)

        return restricted

    def _restricting_pickle(self, load: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(load)
        def restricted(file: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1).f_globals.get("__name__", "")  # noqa: SLF001 - rule 2
            if _is_within(caller, _OWN_CACHES) or not _is_stored(file):
                return load(file, **kwargs)
            with self._loading(file):
                return self.reader()(file, **kwargs).load()

        return restricted

    @contextlib.contextmanager
    def _loading(self, file: Any) -> Iterator[_Place]:
        """Remember what is being loaded; within a trusted file all of it is trusted."""
        outer = self._now.get()
        place = outer if outer.is_trusted else self._place(file)
        token = self._now.set(place)
        try:
            yield place
        finally:
            self._now.reset(token)

    def _place(self, file: Any) -> _Place:
        path = _path_of(file)
        if path is None:
            name = getattr(file, "name", None)
            said = name if isinstance(name, str) else "an open file"
            return _MEMORY if isinstance(file, io.BytesIO) else _Place(_shown(said), False)
        real = Path(os.path.realpath(path))
        return _Place(
            _shown(str(path.absolute())), any(real.is_relative_to(one) for one in self._trusted)
        )


class _PickleOfFiles(SafePickle):
    """`pickle` for ``torch.load``."""

    def __init__(self, loads: FileLoads) -> None:
        self._loads = loads

    @property
    def Unpickler(self) -> type[pickle.Unpickler]:  # noqa: N802 - pickle's name
        """The reader for what is being loaded now."""
        return self._loads.reader()


def _path_of(file: Any) -> Path | None:
    """Name the path that the bytes come from, as the kernel says it; None where there is none."""
    if isinstance(file, str | bytes | os.PathLike):
        return Path(os.fsdecode(file))
    number = _descriptor(file)
    if number is None:
        return None
    try:
        return Path(f"/proc/self/fd/{number}").readlink()
    except OSError:
        return None


def _descriptor(file: Any) -> int | None:
    try:
        number = file.fileno()
    except (AttributeError, OSError, ValueError):
        return None
    return number if isinstance(number, int) else None


def _is_stored(file: Any) -> bool:
    """Return whether the bytes come from a file, compressed and remote ones among them (rule 2)."""
    if isinstance(file, io.BytesIO):
        return False
    number = _descriptor(file)
    if number is None:
        return True
    try:
        mode = os.fstat(number).st_mode
    except OSError:
        return True
    return not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode))


def _is_within(module: str, packages: Collection[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _shown(text: str) -> str:
    return printable(text, keep="")[:_WHERE_LIMIT]
