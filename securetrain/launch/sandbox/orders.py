# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The orders for `holder`: what workers see of the machine, and what of it they may change.

Rules:

1. everything is read-only, and everything that a worker's user may not read stays unreadable;
2. home folders, ``/tmp``, ``/var/tmp``, ``/run`` and ``/dev`` are replaced: a private home, private
   temporary folders, devices by name (`devices`). A folder that the user cannot enter and in which
   something lies that is shown is replaced too;
3. what a script needs is shown in its place: the interpreter, its search path, the script's folder,
   the working directory, what its arguments, the built-in trainer's job file and libraries'
   variables name (`named_elsewhere`), ``--input``, ``--output``. With the owner mapped to the job's
   user, so that the owner's rights are the user's, whatever the mode says;
4. writable are the working directory, ``--output`` and what `RunDir.worker_writable` names, and
   never the interpreter or our own code in it. The folders of the system, home folders and the root
   are not made writable because somebody stands in them (`obstacle_to_writing`);
5. the run's keys, the node's state and identity folders are empty, wherever they lie. Keys of
   ours and other runs that lie in a folder that is shown are looked for (`secrets_below`): the keys
   are empty, the runs read-only.
"""

import os
import resource
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final

from securetrain.core.errors import HIDDEN_VARIABLE
from securetrain.launch.sandbox import landlock, seccomp
from securetrain.launch.sandbox.devices import (
    LINKS,
    NCCL_TOPOLOGY,
    SHARED_MEMORY,
    device_groups,
    lacking_devices,
    memory_to_lock,
    shared_memory_size,
    shown_devices,
)
from securetrain.launch.sandbox.kernel import CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER
from securetrain.launch.sandbox.secrets_below import secrets_below
from securetrain.launch.sandbox.user import JobUser
from securetrain.launch.sandbox.view import (
    OWN_NETWORK,
    TEMPORARY,
    TOKENS,
    Scene,
    View,
    is_below,
    named,
    obstacle_to_writing,
)
from securetrain.network import Namespace

_NEW_UTS, _NEW_IPC = 0x04000000, 0x08000000
NAMESPACES: Final = CLONE_NEWNS | CLONE_NEWPID | _NEW_UTS | _NEW_IPC
_PRIVATE: Final = "/tmp/.securetrain"  # noqa: S108 - in a private /tmp
PRIVATE_CACHE: Final = "cache/private"
"""Below the run, without namespaces: the workers' home and temporary folder."""
RLIMITS: Final = (
    (resource.RLIMIT_CORE, 0, 0),
    (resource.RLIMIT_MSGQUEUE, 0, 0),
    (resource.RLIMIT_NICE, 0, 0),
    (resource.RLIMIT_RTPRIO, 0, 0),
)
"""Soft and hard, never above what the launcher has.

A core holds secrets, and the kernel hands it to a program outside; message queues are counted by
user and not by job; a priority above others' takes the machine from them, for ever with real-time.
All others stay the launcher's, because jobs need them: files for data loaders, address space for
CUDA. Under a profile for RDMA, which registers memory, it may be locked without a limit, as root
may, who the workers are not. Processes are counted by user, who may have several jobs: they are
limited for each job, by its group (`cgroup`).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """The parts of a sandbox that are tried."""

    namespaces: bool = True
    user: bool = True
    landlock: bool = True
    seccomp: bool = True
    limits: bool = True
    """Where they were asked for: of memory and tasks."""
    network: bool = False
    """One with loopback alone, where the job has none."""
    ranks_apart: bool = False
    """Whether each rank has a Landlock domain of its own."""


def view(scene: Scene, *, mapped: bool) -> View:
    """Collect the mounts of a job (rules 1 to 5)."""
    seen = View(scene, mapped=mapped)
    for home in scene.homes:
        if home.is_dir():
            seen.replace(os.path.realpath(home))
    for place in TEMPORARY:
        if Path(place).is_dir():
            seen.replace(place, mode="1777", write=True)
    seen.replace(os.path.realpath("/run"))
    _show_working_directory(seen, scene)
    for word in scene.search_path:
        seen.show(Path(word), own=False)
    for path in scene.code:
        seen.show(path, own=False)
    if scene.script is not None:
        seen.show(Path(os.path.realpath(scene.script)).parent)
        seen.show(scene.script)
    for path in (*named(scene.arguments, scene.cwd), *scene.inputs, scene.run):
        seen.show(path)
    for path in (*scene.outputs, *scene.writable):
        seen.show(path, write=True)
    seen.settle()
    seen.open_ways()
    _hide_secrets(seen, scene)
    _show_devices(seen, rdma=scene.rdma)
    _show_names(seen, scene)
    return seen


def _show_working_directory(seen: View, scene: Scene) -> None:
    """Writable where that is no harm; the home is private, unless the job works in it."""
    user, cwd = scene.user, os.path.realpath(scene.cwd)
    home = os.path.realpath(scene.home) if scene.home is not None else ""
    if home and home != cwd and (home in seen.roots or seen.is_replaced(home)):
        ids = [user.uid, user.gid] if user is not None and seen.mapped else None
        seen.replace(home, mode="0700", write=True, owner=ids)
    stops = obstacle_to_writing(scene.cwd, scene.all_homes)
    outputs = [os.path.realpath(path) for path in scene.outputs]
    if any(cwd == output or is_below(cwd, output) for output in outputs):
        return  # it will be shown with them
    if cwd in TEMPORARY:
        said = "is private, and what is written there is gone at the end"
        seen.notes.append(f"the working directory {cwd} {said}: --output DIR keeps it")
    elif stops:
        seen.notes.append(f"the working directory {cwd} is read-only: {stops}; --output DIR")
        seen.show(scene.cwd)
    else:
        seen.show(scene.cwd, write=True)


def _show_names(seen: View, scene: Scene) -> None:
    """The job network's files of /etc; without one, name servers that are told below /run."""
    for name, source in scene.names.items():
        place = os.path.realpath(f"/etc/{name}")
        if Path(place).exists():
            seen.bind(str(source), place, write=False, ids=None, folder=False)
    servers = os.path.realpath("/etc/resolv.conf")
    if not scene.names and servers.startswith("/run/"):
        seen.show(Path(servers), own=False)


def _show_devices(seen: View, *, rdma: bool) -> None:
    seen.replace("/dev")
    seen.replace(SHARED_MEMORY, mode="1777", size=shared_memory_size(), write=True)
    ways = "newinstance,ptmxmode=0666,mode=0620"
    seen.replace("/dev/pts", type="devpts", data=ways, device=True)
    for path in shown_devices(rdma=rdma):
        place, folder = str(path), path.is_dir()
        seen.bind(place, place, write=True, ids=None, folder=folder, device=True)
    seen.show(Path(NCCL_TOPOLOGY), own=False)
    seen.notes += _device_notes(rdma=rdma)


def _device_notes(*, rdma: bool) -> list[str]:
    return [said for said in (lacking_devices(), memory_to_lock() if rdma else "") if said]


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
        "netns": "" if scene.netns == OWN_NETWORK else scene.netns,
        "network": features.namespaces and features.network,
        "user": None,
        "maps": [],
        "limits": list(map(list, RLIMITS)),
        "raised": [resource.RLIMIT_MEMLOCK] if scene.rdma else [],
        "cgroup": scene.cgroup if features.limits else "",
        "seccomp": seccomp.program().hex() if features.seccomp else "",
        "variables": {},
    }
    version = scene.landlock_version if features.landlock else 0
    made["domain"] = landlock.own_domain(version) if features.ranks_apart and version else {}
    if not features.namespaces:
        return made | _without_namespaces(scene, version)
    seen = view(scene, mapped=mapped)
    home = str(scene.home) if scene.home is not None else ""
    private = seen.empty.get(os.path.realpath(home), {}).get("write", False) if home else False
    folders: list[Any] = [(_PRIVATE, 0o700, True)]
    if not private:
        home = f"{_PRIVATE}/home"
        folders.append((home, 0o700, True))
    files = []
    if made["network"]:
        hosts = Namespace.name_texts({socket.gethostname(): IPv4Address("127.0.0.1")})
        files = [(f"/etc/{name}", text) for name, text in hosts.items()]
    if scene.user is not None:
        files += _accounts(scene.user, home)
        groups = [*scene.user.groups, *device_groups(scene.user, rdma=scene.rdma)]
        made["user"] = {"uid": scene.user.uid, "gid": scene.user.gid, "groups": groups}
    writable = [place for place, one in seen.binds.items() if one["write"]]
    return made | {
        "namespaces": NAMESPACES | (CLONE_NEWUSER if scene.own_user_namespace else 0),
        "maps": sorted({tuple(one["map"]) for one in seen.binds.values() if one["map"]}),
        "binds": [one for _, one in sorted(seen.binds.items())],
        "empty": [one for _, one in sorted(seen.empty.items())],
        "links": [*LINKS, *sorted(seen.links.items())],
        "files": files,
        "folders": folders,
        "sealed": ["/run", "/dev"],
        "blank": sorted(set(seen.blank)),
        "errors": _PRIVATE,
        "landlock": landlock.rules(
            version, [*writable, *TEMPORARY, SHARED_MEMORY, home], devices=("/dev", "/proc")
        ),
        "variables": {
            "HOME": home,
            HIDDEN_VARIABLE: ":".join(_unseen(seen, scene)),
            **_temporary(scene.temporary, writable),
        },
        "notes": seen.notes,
    }


def _without_namespaces(scene: Scene, version: int) -> dict[str, Any]:
    """Landlock alone: the machine's own folders, and the launcher's own user.

    A folder in which something lies that is hidden cannot be written to, only what is in it: there
    is no rule for "all but". So a working directory that holds the run is not writable. It can be
    listed: what cannot be listed, Python imports nothing from.
    """
    private = scene.run / PRIVATE_CACHE
    hidden = [*map(str, scene.hidden), str(scene.keys)]
    secret = [*hidden, *map(str, scene.homes), "/run/docker.sock"]
    shown = [*scene.code, *map(Path, scene.search_path), *scene.inputs, scene.cwd, scene.run]
    shown += named(scene.arguments, scene.cwd)
    if scene.script is not None:
        shown += [scene.script.parent, scene.script]
    readable = landlock.all_but(secret)
    closed = {os.path.realpath(path) for path in hidden}
    listed = []
    for place in sorted({os.path.realpath(path) for path in shown if path.exists()}):
        if any(place == one or is_below(place, one) for one in closed):
            continue  # an argument may name a key
        parts = landlock.all_but(hidden, place)
        readable += parts
        listed += [place] if parts != [place] else []
    places = [*scene.outputs, *map(Path, (*TEMPORARY, SHARED_MEMORY))]
    notes = _device_notes(rdma=scene.rdma)
    if stops := obstacle_to_writing(scene.cwd, scene.all_homes):
        notes.append(f"the working directory {scene.cwd} is read-only: {stops}; --output DIR")
    else:
        places.append(scene.cwd)
    kept = [*hidden, str(scene.run), *map(str, scene.code)]
    writable = [os.path.realpath(path) for path in (*scene.writable, private)]
    for place in map(os.path.realpath, places):
        parts = landlock.all_but(kept, place)
        writable += parts
        if parts != [place]:
            notes.append(
                f"{place} holds what workers may not change: only folders in it are theirs"
            )
    rules = landlock.rules(
        version, writable, devices=("/dev", "/proc"), readable=readable, listed=listed
    )
    return {
        "errors": str(private),
        "landlock": rules,
        "variables": {"HOME": str(private), "TMPDIR": str(private)},
        "notes": notes,
    }


def _hide_secrets(seen: View, scene: Scene) -> None:
    """The run's own files stay read-only in a writable folder, and keys out of sight (rule 5)."""
    for path in scene.code:
        seen.protect(path)
    writable = {os.path.realpath(path) for path in (*scene.writable, *scene.outputs)}
    run = os.path.realpath(scene.run)
    # The interpreter's own library may be a place too, of thousands of folders: so is its prefix.
    apart = {run, *map(os.path.realpath, (*scene.code, *scene.hidden, Path(os.__file__).parent))}
    mine = [place for place, one in seen.binds.items() if one["folder"]]
    for place in [place for place in mine if place != run and not is_below(place, run)]:
        if place in apart:
            continue
        found_keys, runs = secrets_below(place, apart)
        for other in runs:
            seen.protect(Path(other))
        seen.blank += found_keys
        # What a library keeps beside the data in its cache: a person's access to its hub.
        seen.blank += [file for name in TOKENS if Path(file := f"{place}/{name}").is_file()]
    seen.protect(scene.run)
    if (bind := seen.binds.get(run)) and run not in writable:
        bind["write"] = False
    for path in (*scene.hidden, scene.keys):
        seen.hide(path)


def _unseen(seen: View, scene: Scene) -> list[str]:
    """The replaced folders in which people keep things: workers cannot tell what lies there."""
    own = {os.path.realpath(path) for path in (*scene.hidden, scene.keys)}
    return sorted(root for root in seen.roots - own if not f"{root}/".startswith("/dev/"))


def _temporary(given: str, writable: Sequence[str]) -> dict[str, str]:
    """The private folder, for workers that were told another in which they may not write."""
    place = os.path.realpath(given) if given else TEMPORARY[0]
    kept = any(place == one or is_below(place, one) for one in (*TEMPORARY, *writable))
    return {} if kept else {"TMPDIR": TEMPORARY[0]}


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
