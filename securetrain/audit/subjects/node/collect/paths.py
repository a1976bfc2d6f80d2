# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about the paths that a job executes or loads from: every component, as the kernel walks it.

Which directories those are follows what torch, Triton and NCCL do themselves:
``torch/_inductor/runtime/cache_dir_utils.py``, ``torch/utils/cpp_extension.py``,
``triton/runtime/cache.py`` and NCCL's ``src/misc/param.cc``.
"""

import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from securetrain.audit.facts import Outcome
from securetrain.audit.subjects.node.collect import nccl, places
from securetrain.audit.subjects.node.collect.host import (
    HiddenError,
    Host,
    TooMuchError,
    outcome_of,
    reading,
)
from securetrain.audit.subjects.node.collect.system import octal
from securetrain.audit.subjects.node.facts.node import SEARCHED, Link, PathFact, PathRole

MAX_PATHS: Final = 256
MAX_LINKS: Final = 40
"""Symbolic links on one way; the kernel's own limit (path_resolution(7))."""
NCCL_PLUGIN_VARIABLES: Final = (
    "NCCL_NET_PLUGIN",
    "NCCL_TUNER_PLUGIN",
    "NCCL_PROFILER_PLUGIN",
    "NCCL_GIN_PLUGIN",
    "NCCL_ENV_PLUGIN",
)
_PRELOADED: Final = "/etc/ld.so.preload"
_HF_FOLDERS: Final = (
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "TRANSFORMERS_CACHE",
    "HF_DATASETS_CACHE",
    "HF_MODULES_CACHE",
    "HF_ASSETS_CACHE",
)


def paths(host: Host) -> tuple[PathFact, ...]:
    """The chain of every path that the job would execute or load from."""
    groups = _Groups(host)
    wanted = dict.fromkeys(_wanted(host))
    stores = list(places.stores_of_processes(host))
    wanted |= dict.fromkeys(item for item in stores if not isinstance(item, PathFact))
    if len(wanted) > MAX_PATHS:
        raise TooMuchError(f"more than {MAX_PATHS} paths")
    return (
        *(_path_fact(host, groups, *item) for item in wanted),
        *_preload_list(host),
        *(item for item in stores if isinstance(item, PathFact)),
    )


def _wanted(host: Host) -> Iterator[tuple[PathRole, str, str]]:
    """Role, path and origin of each path."""
    env = host.environ
    inductor, origin = inductor_cache(host)
    yield PathRole.INDUCTOR_CACHE, inductor, origin
    if env.get("TRITON_CACHE_DIR"):
        yield PathRole.TRITON_CACHE, env["TRITON_CACHE_DIR"], "TRITON_CACHE_DIR"
    else:
        # Inductor points Triton below its own cache; Triton by itself uses the home directory.
        yield PathRole.TRITON_CACHE, f"{inductor}/triton", origin
        home = env.get("TRITON_HOME") or str(host.home)
        yield PathRole.TRITON_CACHE, f"{home}/.triton/cache", "default"
    if env.get("TORCH_EXTENSIONS_DIR"):
        yield PathRole.TORCH_EXTENSIONS, env["TORCH_EXTENSIONS_DIR"], "TORCH_EXTENSIONS_DIR"
    else:
        cache = env.get("XDG_CACHE_HOME") or f"{host.home}/.cache"
        yield PathRole.TORCH_EXTENSIONS, f"{cache}/torch_extensions", "default"
    yield from _of_artifacts(host)
    for path in nccl.conf_files(host):
        if path != os.devnull:
            yield PathRole.NCCL_CONF, path, "NCCL"
    for name in NCCL_PLUGIN_VARIABLES:
        for value, origin in nccl.values(host, name):
            for plugin in value.split(","):
                if plugin.startswith("/"):
                    yield PathRole.NCCL_PLUGIN, plugin, origin
    yield from places.places(host)
    yield from _searched(host)


def _of_artifacts(host: Host) -> Iterator[tuple[PathRole, str, str]]:
    """Folders of the job's checkpoints, and where libraries keep what they load.

    The names follow ``huggingface_hub/constants.py``, ``datasets/config.py``, ``torch/hub.py``, the
    CUDA programming guide, numba's and Python's documentation.
    """
    env = host.environ
    for named in host.named.checkpoints:
        yield PathRole.CHECKPOINTS, named.path, named.origin
    cache = env.get("XDG_CACHE_HOME") or f"{host.home}/.cache"
    top, origin = env.get("HF_HOME") or f"{cache}/huggingface", "HF_HOME"
    yield PathRole.DATASET_CACHE, top, origin if env.get(origin) else "default"
    for name in _HF_FOLDERS:
        if env.get(name):
            yield PathRole.DATASET_CACHE, env[name], name
    if env.get("TORCH_HOME"):
        yield PathRole.TORCH_HUB, env["TORCH_HOME"], "TORCH_HOME"
    else:
        yield PathRole.TORCH_HUB, f"{cache}/torch", "default"
    compiled = env.get("CUDA_CACHE_PATH")
    origin = "CUDA_CACHE_PATH" if compiled else "default"
    yield PathRole.KERNEL_CACHE, compiled or f"{host.home}/.nv/ComputeCache", origin
    for name in ("NUMBA_CACHE_DIR", "PYTHONPYCACHEPREFIX"):
        if env.get(name):
            yield PathRole.KERNEL_CACHE, env[name], name


def _searched(host: Host) -> Iterator[tuple[PathRole, str, str]]:
    """Places that the loader and Python search, and its list for every process (ld.so(8))."""
    for name, role in SEARCHED.items():
        value = host.environ.get(name)
        if value is None and role is PathRole.EXECUTABLES:
            value, name = os.defpath, "default"  # noqa: PLW2901 - as execvp(3) does without PATH
        separator = r"[:\s]+" if role is PathRole.PRELOAD else ":"
        for entry in re.split(separator, value) if value else ():
            # an empty entry is the working directory, which is whatever the job starts in
            if entry or role is not PathRole.PRELOAD:
                yield role, entry or ".", name
    yield PathRole.PRELOAD, _PRELOADED, "default"
    with suppress(OSError, TooMuchError, HiddenError):  # `_preload_list` says so
        for entry in re.split(r"[:\s]+", re.sub(r"#.*", "", host.text(_PRELOADED))):
            if entry:
                yield PathRole.PRELOAD, entry, _PRELOADED


def _preload_list(host: Host) -> list[PathFact]:
    """Say that what the loader's list names is not known, when it is not."""
    found = reading(lambda: host.text(_PRELOADED))
    if found.outcome in (Outcome.OK, Outcome.ABSENT):
        return []
    return [
        PathFact(
            outcome=found.outcome,
            reason=found.reason,
            role=PathRole.PRELOAD,
            path=f"{_PRELOADED}: its entries",
            origin=_PRELOADED,
        )
    ]


def inductor_cache(host: Host) -> tuple[str, str]:
    """The folder where torch.compile keeps what it later runs, and the setting that decides it."""
    env = host.environ
    if env.get("TORCHINDUCTOR_CACHE_DIR"):
        return env["TORCHINDUCTOR_CACHE_DIR"], "TORCHINDUCTOR_CACHE_DIR"
    base = next((env[n] for n in ("TMPDIR", "TEMP", "TMP") if env.get(n)), "/tmp")  # noqa: S108
    user = next((env[n] for n in ("LOGNAME", "USER", "LNAME", "USERNAME") if env.get(n)), host.user)
    return f"{base}/torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user), "default"


def seen(host: Host) -> Iterator[os.stat_result]:
    """The folders on the way to those paths, and to the working directory."""
    groups = _Groups(host)
    wanted: set[str] = set()
    with suppress(OSError, TooMuchError, HiddenError):
        wanted = {path for _, path, _ in _wanted(host)}
    for path in {*wanted, str(Path.cwd())}:
        with suppress(OSError, TooMuchError):
            for link in _walk(host, groups, path) if path.startswith("/") else ():
                yield host.at(link.path).lstat()


def _path_fact(host: Host, groups: "_Groups", role: PathRole, path: str, origin: str) -> PathFact:
    if not path.startswith("/"):
        return PathFact(
            outcome=Outcome.ERROR,
            reason="a relative path: it depends on where the job starts",
            role=role,
            path=path,
            origin=origin,
        )
    outcome, reason, chain = _chain(host, groups, path)
    return PathFact(
        outcome=outcome, reason=reason, role=role, path=path, origin=origin, chain=chain
    )


def chains(host: Host) -> Callable[[str], tuple[Outcome, str, tuple[Link, ...]]]:
    """Return what tells, of an absolute path, what is on the way and how looking at it ended."""
    groups = _Groups(host)
    return lambda path: _chain(host, groups, path)


def _chain(host: Host, groups: "_Groups", path: str) -> tuple[Outcome, str, tuple[Link, ...]]:
    chain: list[Link] = []
    try:
        for link in _walk(host, groups, path):
            chain.append(link)  # noqa: PERF402 - what was seen before an error counts
        outcome, reason = Outcome.OK, ""
    except (OSError, TooMuchError) as error:
        outcome, reason = outcome_of(error)
        if outcome is Outcome.ABSENT:
            hidden = reading(lambda: host.refuse_hidden(path))
            outcome, reason = (
                (outcome, reason)
                if hidden.outcome is Outcome.OK
                else (hidden.outcome, hidden.reason)
            )
    return outcome, reason, tuple(chain)


def _walk(host: Host, groups: "_Groups", path: str) -> Iterator[Link]:
    """Each component of `path` and of the links on the way, until one does not exist."""
    todo = [part for part in path.split("/") if part not in ("", ".")][::-1]
    here = ""
    yield _link(host, groups, "/")
    links = 0
    while todo:
        part = todo.pop()
        if part == "..":
            here = here.rpartition("/")[0]
            continue
        current = f"{here}/{part}"
        link = _link(host, groups, current)
        yield link
        if link.kind != "link":
            here = current
            continue
        links += 1
        if links > MAX_LINKS:
            raise TooMuchError(f"more than {MAX_LINKS} links on the way to {path}")
        target = str(host.at(current).readlink())
        if target.startswith("/"):
            here = ""
        todo += [piece for piece in target.split("/") if piece not in ("", ".")][::-1]


def _link(host: Host, groups: "_Groups", path: str) -> Link:
    info = host.at(path).lstat()
    shared = info.st_mode & stat.S_IWGRP and not stat.S_ISLNK(info.st_mode)
    return Link(
        path=path,
        kind=_kind(info.st_mode),
        uid=host.owner(info),
        mode=octal(info.st_mode),
        group_uids=groups.members(info.st_gid) if shared else (),
    )


def _kind(mode: int) -> Literal["directory", "file", "link", "other"]:
    if stat.S_ISDIR(mode):
        return "directory"
    if stat.S_ISLNK(mode):
        return "link"
    return "file" if stat.S_ISREG(mode) else "other"


class _Groups:
    """The members of groups, from the local files; a directory service's groups are not known."""

    def __init__(self, host: Host) -> None:
        self._members: dict[int, set[int]] = {}
        self._known = True
        try:
            users = [row.split(":") for row in host.text("/etc/passwd").splitlines()]
            groups = [row.split(":") for row in host.text("/etc/group").splitlines()]
            uids = {row[0]: int(row[2]) for row in users if len(row) > 3}
            for row in groups:
                if len(row) > 3:
                    names = [name for name in row[3].split(",") if name]
                    self._members[int(row[2])] = {uids[name] for name in names if name in uids}
                    if any(name not in uids for name in names):
                        del self._members[int(row[2])]
            for row in users:
                if len(row) > 3 and int(row[3]) in self._members:
                    self._members[int(row[3])].add(int(row[2]))
        except (OSError, ValueError, TooMuchError):
            self._known = False

    def members(self, gid: int) -> tuple[int, ...] | None:
        """The uids in group `gid`; None when that cannot be known here."""
        if not self._known or gid not in self._members:
            return None
        return tuple(sorted(self._members[gid]))
