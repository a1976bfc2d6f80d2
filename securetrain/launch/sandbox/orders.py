# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The orders for `holder`: what workers see of the machine, and what of it they may change.

Rules:

1. everything is read-only, and everything that a worker's user may not read stays unreadable;
2. home folders, ``/tmp``, ``/var/tmp``, ``/run`` and ``/dev`` are replaced: a private home, private
   temporary folders, devices by name (`DEVICES`). A folder that the user cannot enter and in which
   something lies that is shown is replaced too;
3. what a script needs is shown in its place: the interpreter, its search path, the script's folder,
   the working directory, what its arguments name, ``--input``, ``--output``. With the owner mapped
   to the job's user, so that the owner's rights are the user's, whatever the mode says;
4. writable are the working directory, ``--output`` and what `RunDir.worker_writable` names, and
   never the interpreter or our own code in it. The folders of the system, home folders and the root
   are not made writable because somebody stands in them (`obstacle_to_writing`);
5. keys, the node's state and identity folders are empty, wherever they lie; of the run's keys
   exactly the files that `EXPOSED_KEYS` names are left. Keys of ours and other runs that lie in a
   folder that is shown are looked for (`secrets_below`): the keys are empty, the runs read-only.
"""

import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from securetrain.launch.sandbox import landlock, seccomp
from securetrain.launch.sandbox.holder import (
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
)
from securetrain.launch.sandbox.secrets_below import secrets_below
from securetrain.launch.sandbox.user import JobUser

EXPOSED_KEYS: Final = ("worker.pem", "checkpoint.pem", "rank.pem", "rank.json")
"""Files below ``keys/`` that trainer and shim still read themselves."""

TEMPORARY: Final = ("/tmp", "/var/tmp")  # noqa: S108 - they are replaced by private ones
DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty")
GPU_DEVICES: Final = (
    "nvidia[0-9]*",
    "nvidiactl",
    "nvidia-uvm",
    "nvidia-uvm-tools",
    "nvidia-modeset",
    "nvidia-caps",
    "nvidia-caps-imex-channels",
    "gdrdrv",
    "kfd",
    "dri/renderD*",
)
"""Of NVIDIA's and AMD's drivers. ``/dev/infiniband`` is shown under a profile for RDMA only."""
RDMA_DEVICES: Final = "infiniband"

_NEW_UTS, _NEW_IPC = 0x04000000, 0x08000000
NAMESPACES: Final = CLONE_NEWNS | CLONE_NEWPID | _NEW_UTS | _NEW_IPC
_SYSTEM: Final = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/run", "/sbin"),
    *("/sys", "/usr", "/var/lib", "/var/log", "/var/spool", "/var/cache"),
)
_MANY: Final = 256
_NO_CORE: Final = (4, 0, 0)
"""RLIMIT_CORE: a core holds secrets, and the kernel hands it to a program outside of any sandbox."""
_SPAN: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """The parts of a sandbox that are tried."""

    namespaces: bool = True
    user: bool = True
    landlock: bool = True
    seccomp: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What the launcher knows of a job on this node."""

    run: Path
    keys: Path
    writable: tuple[Path, ...]
    """Of the run: `RunDir.worker_writable`, and what the job itself asks for."""
    outputs: tuple[Path, ...] = ()
    """``--output``."""
    inputs: tuple[Path, ...] = ()
    """``--input``."""
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
    user: JobUser | None = None
    """None: the launcher's."""
    own_user_namespace: bool = False
    """Whether the launcher is an ordinary user, who needs one to mount anything."""
    netns: str = ""
    names: Mapping[str, Path] = field(default_factory=dict)
    """Files in the place of files of /etc, by their name there."""
    rdma: bool = False
    landlock_version: int = 0


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
        if place in self.roots or any(_is_below(root, place) for root in self.roots):
            if not write and place not in TEMPORARY:
                self._show_entries(Path(place), own=own)
            return
        if before := self.binds.get(place):
            before["write"] = before["write"] or write
            before["map"] = before["map"] or self._map(found, write=write, own=own)
            return
        closed = self._closed_parent(place, found)
        if closed:
            self.replace(closed)
        ids = self._map(found, write=write, own=own)
        if not (write or ids or self._is_replaced(place)):
            return  # it can be seen as it is
        self.bind(place, place, write=write, ids=ids, folder=stat.S_ISDIR(found.st_mode))

    def bind(  # noqa: PLR0917 - a row of a table
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
        inside = [bind for bind in self.binds if bind == place or _is_below(place, bind)]
        if any(self.binds[bind]["write"] for bind in inside) and os.path.exists(place):
            owner = max(inside, key=len)
            ids = self.binds[owner]["map"]
            self.bind(place, place, write=False, ids=ids, folder=os.path.isdir(place))

    def hide(self, path: Path) -> None:
        """Have nothing where keys are, if it can be seen at all."""
        place = os.path.realpath(path)
        if os.path.isdir(place):
            shown = any(place == bind or _is_below(place, bind) for bind in self.binds)
            if shown or not self._is_replaced(place):
                self.replace(place, mode="0555")

    def _show_entries(self, folder: Path, *, own: bool) -> None:
        """What lies in a home folder, without what is hidden there by its name."""
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

    def _is_replaced(self, place: str) -> bool:
        return any(_is_below(place, root) for root in self.roots)

    def _closed_parent(self, place: str, found: os.stat_result) -> str:
        """The topmost folder above that the user cannot enter; empty when it can reach it."""
        user = self.scene.user
        if user is None or not self.mapped or self._is_replaced(place):
            return ""
        for parent in reversed(Path(place).parents):
            at = parent.stat()
            enters = at.st_mode & 0o001 or (at.st_uid == user.uid and at.st_mode & 0o100)
            if not enters and str(parent) != "/":
                return str(parent)
        return ""


def obstacle_to_writing(path: Path, homes: Collection[Path]) -> str:
    """Explain why a working directory is not made writable; empty when it is."""
    place = os.path.realpath(path)
    if place == "/" or place in {"/var", "/home", "/opt", "/mnt", "/media", "/srv"}:
        return "it holds more than this job"
    if any(place == system or _is_below(place, system) for system in _SYSTEM):
        return "it belongs to the system"
    if place in {os.path.realpath(home) for home in homes}:
        return "it is a home folder"
    return ""


def view(scene: Scene, *, mapped: bool) -> View:
    """What is shown of the machine (rules 1 to 5)."""
    seen = View(scene, mapped=mapped)
    user = scene.user
    ids = [user.uid, user.gid] if user is not None and mapped else None
    for home in scene.homes:
        if os.path.isdir(home):
            seen.replace(os.path.realpath(home))
    for place in TEMPORARY:
        if os.path.isdir(place):
            seen.replace(place, mode="1777", write=True)
    seen.replace(os.path.realpath("/run"))
    stops = obstacle_to_writing(scene.cwd, [*scene.homes, *([scene.home] if scene.home else [])])
    is_home = scene.home is not None and os.path.realpath(scene.cwd) == os.path.realpath(scene.home)
    if scene.home is not None and not is_home and (home := os.path.realpath(scene.home)):
        if home in seen.roots or seen._is_replaced(home):  # noqa: SLF001 - one module
            seen.replace(home, mode="0700", write=True, owner=ids)
    if os.path.realpath(scene.cwd) in TEMPORARY:
        seen.notes.append(
            f"the working directory {scene.cwd} is private, and gone at the end: --output DIR"
        )
    elif stops:
        seen.notes.append(f"the working directory {scene.cwd} is read-only: {stops}; --output DIR")
        seen.show(scene.cwd)
    else:
        seen.show(scene.cwd, write=True)
    for folder in scene.search_path:
        seen.show(Path(folder), own=False)
    for path in scene.code:
        seen.show(path, own=False)
    if scene.script is not None:
        seen.show(Path(os.path.realpath(scene.script)).parent)
        seen.show(scene.script)
    for path in (*named(scene.arguments, scene.cwd), *scene.inputs):
        seen.show(path)
    seen.show(scene.run)
    for path in (*scene.outputs, *scene.writable):
        seen.show(path, write=True)
    for path in scene.code:
        seen.protect(path)
    _protect_run(seen, scene)
    _show_devices(seen, rdma=scene.rdma)
    for name, source in scene.names.items():
        if os.path.exists(f"/etc/{name}"):
            place = os.path.realpath(f"/etc/{name}")
            seen.bind(str(source), place, write=False, ids=None, folder=False)
    if not scene.names and (place := os.path.realpath("/etc/resolv.conf")).startswith("/run/"):
        seen.show(Path(place), own=False)
    return seen


def orders(scene: Scene, features: Features, numbers: Mapping[str, int]) -> dict[str, Any]:
    """The orders, as `holder` reads them.

    Args:
        scene: The job.
        features: What is tried.
        numbers: The descriptors that the holder inherits: socket, status, lifeline.
    """
    mapped = features.namespaces and features.user and scene.user is not None
    scene = scene if mapped else replace(scene, user=None)
    made: dict[str, Any] = {
        **numbers,
        "launcher": os.getuid(),
        "namespaces": 0,
        "netns": scene.netns,
        "user": None,
        "maps": [],
        "limits": [_NO_CORE],
        "cgroup": "",
        "seccomp": seccomp.program().hex() if features.seccomp else "",
        "variables": {},
    }
    version = scene.landlock_version if features.landlock else 0
    if not features.namespaces:
        return made | _without_namespaces(scene, version)
    seen = view(scene, mapped=mapped)
    home = str(scene.home) if scene.home is not None else ""
    private = seen.empty.get(os.path.realpath(home), {}).get("write", False) if home else False
    folders: list[Any] = [("/tmp/.securetrain", 0o700, True)]  # noqa: S108 - a private one
    if not private:
        home = "/tmp/home"  # noqa: S108
        folders.append((home, 0o700, True))
    variables = {"HOME": home, "TMPDIR": "/tmp"}  # noqa: S108
    files = []
    if scene.user is not None:
        variables |= {"USER": scene.user.name, "LOGNAME": scene.user.name}
        files = _accounts(scene.user, home)
        groups = [*scene.user.groups, *device_groups(scene.user, rdma=scene.rdma)]
        made["user"] = {"uid": scene.user.uid, "gid": scene.user.gid, "groups": groups}
    writable = [place for place, one in seen.binds.items() if one["write"]]
    return made | {
        "namespaces": NAMESPACES | (CLONE_NEWUSER if scene.own_user_namespace else 0),
        "maps": sorted({tuple(one["map"]) for one in seen.binds.values() if one["map"]}),
        "binds": [one for _, one in sorted(seen.binds.items())],
        "empty": [one for _, one in sorted(seen.empty.items())],
        "links": [*_DEVICE_LINKS, *sorted(seen.links.items())],
        "files": files,
        "folders": folders,
        "sealed": ["/run", "/dev"],
        "blank": seen.blank,
        "cwd": "/",
        "errors": "/tmp/.securetrain",  # noqa: S108
        "landlock": landlock.rules(
            version, [*writable, *TEMPORARY, "/dev/shm", home], devices=("/dev", "/proc")
        ),
        "variables": variables,
        "notes": seen.notes,
    }


def _without_namespaces(scene: Scene, version: int) -> dict[str, Any]:
    """Landlock alone: the machine's own /tmp, and the launcher's own user."""
    private = scene.run / "cache"
    secret = [*scene.hidden, *scene.homes, Path("/run/docker.sock"), scene.keys]
    writable = [*scene.writable, *scene.outputs]
    if not obstacle_to_writing(scene.cwd, [*scene.homes, *([scene.home] if scene.home else [])]):
        writable.append(scene.cwd)
    shown = [*scene.code, *map(Path, scene.search_path), *scene.inputs]
    shown += [scene.cwd, *named(scene.arguments, scene.cwd)]
    if scene.script is not None:
        shown += [scene.script.parent, scene.script]
    hidden = [str(path) for path in (*scene.hidden, scene.keys)]
    readable = landlock.all_but([str(path) for path in secret])
    for path in (*shown, scene.run):
        if os.path.exists(path):
            readable += landlock.all_but(hidden, os.path.realpath(path))
    readable += [str(scene.keys / name) for name in EXPOSED_KEYS]
    writable = [Path(os.path.realpath(path)) for path in writable]
    places = [place for path in writable for place in landlock.all_but(hidden, str(path))]
    rules = landlock.rules(
        version,
        [*places, *TEMPORARY, "/dev/shm", str(private / "home"), str(private / "errors")],
        devices=("/dev", "/proc"),
        readable=readable,
    )
    return {
        "errors": str(private / "errors"),
        "landlock": rules,
        "variables": {"HOME": str(private / "home")},
        "notes": [],
        "cwd": "/",
    }


def named(arguments: Iterable[str], cwd: Path) -> Iterator[Path]:
    """What arguments of a script name: folders, and the folders of files."""
    for argument in arguments:
        for word in {argument, argument.partition("=")[2]}:
            if not word or "\0" in word or len(word) > 4096:
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


def links_on_the_way(path: Path, roots: Collection[str]) -> Iterator[tuple[str, str]]:
    """Links in a path that lie in replaced folders, and where they lead."""
    at = "/"
    for part in Path(os.path.abspath(path)).parts[1:]:
        spelled = os.path.join(at, part)
        if os.path.islink(spelled) and any(_is_below(spelled, root) for root in roots):
            yield spelled, os.readlink(spelled)
        at = os.path.realpath(spelled)


def device_groups(user: JobUser, *, rdma: bool, dev: Path = Path("/dev")) -> list[int]:
    """Groups without which the user could not open the devices that are shown."""
    groups = set()
    for path in shown_devices(rdma=rdma, dev=dev):
        found = path.stat()
        if stat.S_ISCHR(found.st_mode) and found.st_gid and not found.st_mode & 0o006:
            groups.add(found.st_gid)
    return sorted(groups - {user.gid})


def shown_devices(*, rdma: bool, dev: Path = Path("/dev")) -> list[Path]:
    """The devices that workers see: the usual ones, GPUs, and for RDMA its own."""
    patterns = [*DEVICES, *GPU_DEVICES, *([RDMA_DEVICES] if rdma else [])]
    return sorted(path for pattern in patterns for path in dev.glob(pattern))


def _show_devices(seen: View, *, rdma: bool) -> None:
    seen.replace("/dev")
    size = os.statvfs("/dev/shm")
    limit = str(size.f_frsize * size.f_blocks // _SPAN * _SPAN or _SPAN)
    seen.replace("/dev/shm", mode="1777", size=limit, write=True)
    ways = "newinstance,ptmxmode=0666,mode=0620"
    seen.replace("/dev/pts", type="devpts", data=ways, device=True)
    for path in shown_devices(rdma=rdma):
        place = str(path)
        folder = path.is_dir()
        seen.bind(place, place, write=True, ids=None, folder=folder, device=True)


_DEVICE_LINKS: Final = (
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
    ("/dev/ptmx", "pts/ptmx"),
)


def _protect_run(seen: View, scene: Scene) -> None:
    """The run's own files stay read-only in a writable folder, and its keys out of sight."""
    writable = {os.path.realpath(path) for path in (*scene.writable, *scene.outputs)}
    run = os.path.realpath(scene.run)
    apart = {run, *(os.path.realpath(path) for path in (*scene.code, *scene.hidden))}
    mine = [place for place, one in seen.binds.items() if one["folder"]]
    for place in [place for place in mine if place != run and not _is_below(place, run)]:
        if place in apart:
            continue
        keys, runs = secrets_below(place, apart)
        for other in runs:
            seen.protect(Path(other))
        for key in keys:
            seen.binds.pop(key, None)
            seen.blank.append(key)
    seen.protect(scene.run)
    if (bind := seen.binds.get(run)) and run not in writable:
        bind["write"] = False
    for path in (*scene.hidden, scene.keys):
        seen.hide(path)
    ids = None
    if (user := scene.user) is not None and seen.mapped and scene.keys.exists():
        found = scene.keys.stat()
        same = (found.st_uid, found.st_gid) == (user.uid, user.gid)
        ids = None if same else [found.st_uid, found.st_gid]
    keys = os.path.realpath(scene.keys)
    for name in EXPOSED_KEYS:
        if os.path.exists(f"{keys}/{name}"):
            place = f"{keys}/{name}"
            seen.bind(place, place, write=False, ids=ids, folder=False)


def _accounts(user: JobUser, home: str) -> list[tuple[str, str]]:
    """The machine's users and groups, with the job's own where it has none."""
    texts = []
    for name, line in (
        ("passwd", f"{user.name}:x:{user.uid}:{user.gid}::{home}:/bin/sh\n"),
        ("group", f"{user.name}:x:{user.gid}:\n"),
    ):
        try:
            text = Path("/etc", name).read_text("utf-8", "replace")
        except OSError:
            continue
        known = any(row.split(":")[2:3] == [line.split(":")[2]] for row in text.splitlines())
        if not known:
            texts.append((f"/etc/{name}", text.rstrip("\n") + "\n" + line))
    return texts


def _is_below(path: str, folder: str) -> bool:
    return path != folder and (path + "/").startswith(folder.rstrip("/") + "/")


def shown_paths(made: Mapping[str, Any]) -> Sequence[str]:
    """Where something of the machine is shown, for whoever explains a missing file."""
    return [str(one["place"]) for one in made.get("binds", ())]
