# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The view that workers get of a machine: a collection of mounts, before any is made.

Of a path is shown what lies at its end; links on the way are kept where they would be lost. What
can be seen and read as it is needs no mount.
"""

import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from securetrain.core.errors import SecureTrainError
from securetrain.core.files import read_file
from securetrain.launch.sandbox.cgroup import NO_LIMITS, Limits
from securetrain.launch.sandbox.user import JobUser
from securetrain.policy.load import parse_yaml

TEMPORARY: Final = ("/tmp", "/var/tmp")  # noqa: S108 - private ones stand there
_SYSTEM: Final = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/run", "/sbin"),
    *("/sys", "/usr", "/var/lib", "/var/log", "/var/spool", "/var/cache"),
)
_SHARED: Final = frozenset({"/", "/var", "/home", "/opt", "/mnt", "/media", "/srv"})
_MANY: Final = 256
OWN_NETWORK: Final = "own"
"""In the place of a namespace: one that is made for the job, with loopback alone."""
_WORD_LIMIT: Final = 4096
_JOB_LIMIT: Final = 1 << 20
LIBRARY_PLACES: Final = (
    *("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_ASSETS_CACHE", "HUGGINGFACE_HUB_CACHE"),
    *("TRANSFORMERS_CACHE", "DIFFUSERS_CACHE", "SENTENCE_TRANSFORMERS_HOME", "MODELSCOPE_CACHE"),
    *("TORCH_HOME", "XDG_CACHE_HOME", "NLTK_DATA", "TIKTOKEN_CACHE_DIR"),
    *("KERAS_HOME", "TFDS_DATA_DIR", "DGLDATA_DIR", "MPLCONFIGDIR", "NUMBA_CACHE_DIR"),
)
"""Variables by which libraries find data and models that a person keeps."""
TOKENS: Final = tuple(
    f"{folder}{name}"
    for folder in ("", "huggingface/", "modelscope/credentials/")
    for name in ("token", "stored_tokens", "git_token", "session")
)
"""Files of such places that hold a person's access: they are there, without what is in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A job on this node, as far as its sandbox depends on it."""

    run: Path
    keys: Path
    writable: tuple[Path, ...]
    """Of the run: `RunDir.worker_writable`, and what the job itself asks for."""
    outputs: tuple[Path, ...] = ()
    """``--output``."""
    inputs: tuple[Path, ...] = ()
    """``--input``, and what `named_elsewhere` finds."""
    cwd: Path
    script: Path | None = None
    arguments: tuple[str, ...] = ()
    """Of the script: those that name something are shown."""
    search_path: tuple[str, ...] = ()
    """Folders of modules, libraries and programs."""
    code: tuple[Path, ...] = ()
    """The interpreter and our own package: shown, and never writable."""
    hidden: tuple[Path, ...] = ()
    """Folders of keys and state."""
    homes: tuple[Path, ...] = ()
    home: Path | None = None
    """The launcher's own, which becomes the workers' private one."""
    temporary: str = ""
    """TMPDIR of the workers' environment."""
    user: JobUser | None = None
    """None: the launcher's."""
    own_user_namespace: bool = False
    """Whether the launcher is an ordinary user, who needs one to mount anything."""
    netns: str = ""
    """The job's network namespace, or `OWN_NETWORK`; empty for the machine's."""
    names: Mapping[str, Path] = field(default_factory=dict)
    """Files in the place of files of /etc, by their name there."""
    rdma: bool = False
    landlock_version: int = 0
    limits: Limits = NO_LIMITS
    cgroup: str = ""
    """The file by which the holder enters the workers' group."""

    @property
    def all_homes(self) -> tuple[Path, ...]:
        """Home folders, the launcher's own among them."""
        return (*self.homes, *([self.home] if self.home is not None else []))


class View:
    """Collects what is shown, hidden and writable."""

    def __init__(self, scene: Scene, *, mapped: bool) -> None:
        self.scene = scene
        self.mapped = mapped
        self.empty: dict[str, dict[str, Any]] = {}
        self.binds: dict[str, dict[str, Any]] = {}
        self.links: dict[str, str] = {}
        self.roots: set[str] = set()
        """Replaced folders: what is to be seen below them must be shown."""
        self.notes: list[str] = []
        self.blank: list[str] = []
        """Files that are shown without what is in them."""

    def replace(self, place: str, **how: Any) -> None:
        """Have an empty folder in memory in a place."""
        settings = {"type": "tmpfs", "mode": "0755", "size": "", "data": "", "owner": None}
        self.empty[place] = {**settings, "write": False, "device": False, **how, "place": place}
        self.roots.add(place)

    def show(self, path: Path, *, write: bool = False, own: bool = True) -> None:
        """Show something in its place.

        Args:
            path: As it is spelled; links on the way are kept.
            write: Whether it may be changed.
            own: Whether the owner's rights become the user's, even to read.
        """
        place = os.path.realpath(path)
        try:
            found = os.stat(place)
        except OSError:
            return
        for link, target in links_on_the_way(path, self.roots):
            self.links[link] = target
        if write and place in self.roots:  # asked for by name
            self.roots.discard(place)
            del self.empty[place]
        elif not write and any(root == place or is_below(root, place) for root in self.roots):
            if place not in TEMPORARY:
                self._show_entries(Path(place), own=own)
            return
        if before := self.binds.get(place):
            before["write"] = before["write"] or write
            before["map"] = before["map"] or self._map(found, write=write, own=own)
            return
        closed = self._closed_parent(place)
        if closed:
            self.replace(closed)
        ids = self._map(found, write=write, own=own)
        if not (write or ids or self.is_replaced(place)):
            return  # it can be seen as it is
        self.bind(place, place, write=write, ids=ids, folder=stat.S_ISDIR(found.st_mode))

    def settle(self) -> None:
        """Leave out what is shown to be read in a folder that may be changed anyway."""
        for place in sorted(self.binds, key=len, reverse=True):
            around = [one for one in (*self.binds, *self.roots) if is_below(place, one)]
            nearest = max(around, key=len, default="")
            if not self.binds[place]["write"] and self.binds.get(nearest, {}).get("write"):
                del self.binds[place]

    def bind(
        self, source: str, place: str, *, write: bool, ids: Any, folder: bool, device: bool = False
    ) -> None:
        """Have something in a place, or in another's."""
        self.binds[place] = {
            "source": source,
            "place": place,
            "write": write,
            "map": ids,
            "folder": folder,
            "device": device,
        }

    def protect(self, path: Path) -> None:
        """Keep something read-only inside of what is writable."""
        place = os.path.realpath(path)
        inside = [bind for bind in self.binds if bind == place or is_below(place, bind)]
        if any(self.binds[bind]["write"] for bind in inside) and os.path.exists(place):
            owner = max(inside, key=len)
            ids = self.binds[owner]["map"]
            self.bind(place, place, write=False, ids=ids, folder=os.path.isdir(place))

    def hide(self, path: Path) -> None:
        """Have nothing where keys are, if it can be seen at all."""
        place = os.path.realpath(path)
        if os.path.isdir(place):
            shown = any(place == bind or is_below(place, bind) for bind in self.binds)
            if shown or not self.is_replaced(place):
                self.replace(place, mode="0555")

    def _show_entries(self, folder: Path, *, own: bool) -> None:
        """Show the entries of a home folder but those that are hidden by their name."""
        try:
            entries = sorted(e for e in folder.iterdir() if not e.name.startswith("."))
        except OSError:
            return
        if len(entries) > _MANY:
            entries = [e for e in entries if e.suffix == ".py" or (e / "__init__.py").exists()]
        for entry in entries[:_MANY]:
            if os.path.realpath(entry) not in self.roots and not entry.is_socket():
                self.show(entry, own=own)

    def _map(self, found: os.stat_result, *, write: bool, own: bool) -> list[int] | None:
        user = self.scene.user
        if not self.mapped or user is None or (found.st_uid, found.st_gid) == (user.uid, user.gid):
            return None
        if found.st_uid >= 1 << 31 or found.st_gid >= 1 << 31:
            return None
        readable = 0o005 if stat.S_ISDIR(found.st_mode) else 0o004
        if write or own or found.st_mode & readable != readable:
            return [found.st_uid, found.st_gid]
        return None

    def is_replaced(self, place: str) -> bool:
        """Return whether something lies in a replaced folder."""
        return any(is_below(place, root) for root in self.roots)

    def open_ways(self) -> None:
        """Replace what stands closed on the way to something that is shown.

        At last: a folder that was shown after what lies in it brings its closed ones along.
        """
        for place in sorted(self.binds):
            while (closed := self._closed_parent(place)) and closed not in self.roots:
                self.replace(closed)

    def _closed_parent(self, place: str) -> str:
        """The topmost folder above that the user cannot enter; empty when it can reach it.

        A folder in a replaced one is made for the way, unless it is seen there: as a part of
        something that is shown, with its owner for the user or not.
        """
        user = self.scene.user
        if user is None or not self.mapped:
            return ""
        for parent in reversed(Path(place).parents):
            over = self._nearest(str(parent))
            shown = self.binds.get(over)
            if (over and shown is None) or str(parent) == "/":
                continue
            at = parent.stat()
            owners = [user.uid, *((shown and shown["map"]) or ())[:1]]
            if not at.st_mode & (0o101 if at.st_uid in owners else 0o001):
                return str(parent)
        return ""

    def _nearest(self, place: str) -> str:
        """The innermost of what is shown or replaced that a path is or lies in; empty when none."""
        ways = (place, *map(str, Path(place).parents))
        return next((way for way in ways if way in self.binds or way in self.roots), "")


def obstacle_to_writing(path: Path, homes: Collection[Path]) -> str:
    """Explain why a working directory is not made writable; empty when it is."""
    place = os.path.realpath(path)
    if place in _SHARED:
        return "it holds more than this job"
    if any(place == system or is_below(place, system) for system in _SYSTEM):
        return "it belongs to the system"
    if place in {os.path.realpath(home) for home in homes}:
        return "it is a home folder"
    return ""


def named(arguments: Iterable[str], cwd: Path) -> Iterator[Path]:
    """Folders, files and their folders that arguments of a script name."""
    for argument in arguments:
        for word in {argument, argument.partition("=")[2]}:
            if not word or "\0" in word or len(word) > _WORD_LIMIT:
                continue
            path = cwd / word
            try:
                found = path.stat()
            except OSError:
                continue
            if stat.S_ISREG(found.st_mode):
                yield path
                yield path.parent
            elif stat.S_ISDIR(found.st_mode):
                yield path


def named_elsewhere(
    job: Path | None, environ: Mapping[str, str], cwd: Path, user: int
) -> Iterator[Path]:
    """Files and folders that no argument names: a job file does, or a variable of a library.

    A job file that another person wrote opens what that person may open: what belongs to its owner.

    Args:
        job: The built-in trainer's job file; None for any other program.
        environ: The workers' variables.
        cwd: Where relative paths begin.
        user: The launcher's own: a job file of this user's names what it likes.
    """
    for name in LIBRARY_PLACES:
        if environ.get(name, "").startswith("/"):
            yield from _existing(environ[name], cwd)
    if job is None:
        return
    try:
        about = (cwd / job).stat()
        text = read_file(cwd / job, _JOB_LIMIT).decode()
        document = parse_yaml(text, str(job))
    except (OSError, ValueError, SecureTrainError):
        return  # the trainer refuses it with its reason
    trusted = about.st_uid == user and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    for word in _words_of(document):
        for path in _existing(word, cwd):
            if trusted or path.stat().st_uid == about.st_uid:
                yield path


def _words_of(document: object) -> Iterator[str]:
    """The texts of a document that was read from YAML."""
    if isinstance(document, dict):
        document = list(document.values())
    if isinstance(document, list):
        for one in document:
            yield from _words_of(one)
    elif isinstance(document, str) and "\0" not in document and len(document) <= _WORD_LIMIT:
        yield document


def _existing(word: str, cwd: Path) -> Iterator[Path]:
    try:
        mode = (cwd / word).stat().st_mode
    except OSError:
        return
    if word and (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        yield cwd / word


def links_on_the_way(path: Path, roots: Collection[str]) -> Iterator[tuple[str, str]]:
    """Links in a path that lie in replaced folders, and where they lead."""
    at = "/"
    for part in Path(os.path.abspath(path)).parts[1:]:
        spelled = os.path.join(at, part)
        if os.path.islink(spelled) and any(is_below(spelled, root) for root in roots):
            yield spelled, os.readlink(spelled)
        at = os.path.realpath(spelled)


def is_below(path: str, folder: str) -> bool:
    """Return whether a path lies in a folder, at any depth."""
    return path != folder and (path + "/").startswith(folder.rstrip("/") + "/")
