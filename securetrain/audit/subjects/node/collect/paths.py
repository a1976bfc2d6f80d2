# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about the paths that a job executes or loads from: every component, as the kernel walks it.

Rules:

1. which places those are follows what the programs do themselves: torch's ``cache_dir_utils.py``,
   ``cpp_extension.py``, ``hub.py``, ``FlightRecorder.cpp`` and ``WorkerServer.cpp``,
   ``triton/runtime/cache.py``, ``huggingface_hub/constants.py``, ``datasets/config.py``, NCCL's
   ``src/plugin/*.cc``, the CUDA programming guide, the manual of NVIDIA's MPS, and numba's and
   Python's documentation;
2. NCCL reads (``src/misc/param.cc``) the file that NCCL_CONF_FILE names, as it stands; without it
   ``.nccl.conf`` in the home directory of the user database, whatever HOME says; then
   /etc/nccl.conf. A line is ``NAME=value`` with every blank kept, a ``#`` counts in the first
   column only. A variable that is set already keeps its value: the environment goes before
   the files, the first file before the second, the first line before the later ones.
"""

import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from securetrain.audit.facts import Observed, Outcome
from securetrain.audit.subjects.node.collect.host import (
    FAILURES,
    Host,
    TooMuchError,
    at_most,
    known,
    observed,
    outcome_of,
    reading,
)
from securetrain.audit.subjects.node.collect.machine import is_any_process_hidden
from securetrain.audit.subjects.node.collect.system import octal
from securetrain.audit.subjects.node.facts.node import (
    SEARCHED,
    ConfFile,
    ConfVariable,
    Link,
    PathFact,
    PathRole,
)

MAX_PATHS: Final = 256
MAX_LINKS: Final = 40
"""Symbolic links on one way; the kernel's own limit (path_resolution(7))."""
_PLUGINS: Final = (
    ("NCCL_NET_PLUGIN", "libnccl-net.so"),
    ("NCCL_TUNER_PLUGIN", "libnccl-tuner.so"),
    ("NCCL_PROFILER_PLUGIN", "libnccl-profiler.so"),
    ("NCCL_GIN_PLUGIN", ""),
    ("NCCL_ENV_PLUGIN", "libnccl-env.so"),
)
"""Variables that name plugins of NCCL, and what it looks for without them."""
_PRELOADED: Final = "/etc/ld.so.preload"
_PLACES: Final = (
    (PathRole.TRITON_CACHE, "TRITON_CACHE_DIR", "{triton}/.triton/cache"),
    (PathRole.TORCH_EXTENSIONS, "TORCH_EXTENSIONS_DIR", "{cache}/torch_extensions"),
    (PathRole.DATASET_CACHE, "HF_HOME", "{cache}/huggingface"),
    (PathRole.TORCH_HUB, "TORCH_HOME", "{cache}/torch"),
    (PathRole.KERNEL_CACHE, "CUDA_CACHE_PATH", "{home}/.nv/ComputeCache"),
)
"""Roles, the variable that names their place, and where it is without it."""
_IF_NAMED: Final = {
    PathRole.DATASET_CACHE: (
        "HF_HUB_CACHE",
        "HUGGINGFACE_HUB_CACHE",
        "TRANSFORMERS_CACHE",
        "HF_DATASETS_CACHE",
        "HF_MODULES_CACHE",
        "HF_ASSETS_CACHE",
    ),
    PathRole.KERNEL_CACHE: ("NUMBA_CACHE_DIR", "PYTHONPYCACHEPREFIX"),
    PathRole.CONTROL_SOCKET: ("TORCH_WORKER_SERVER_SOCKET", "KINETO_IPC_SOCKET_DIR"),
}
"""Places that are there only where a variable names them."""
_DUMPS: Final = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_MPS: Final = (
    ("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"),  # noqa: S108 - the default of CUDA
    ("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps"),
)
_STORES: Final = ("INIT_METHOD", "DIST_INIT_METHOD", "DIST_URL", "RDZV_ENDPOINT", "MASTER_URL")
_STORE_WORD: Final = re.compile(r"(?:^|=)file://(/[^?\s]*)")
_STORE_OPTION: Final = re.compile(
    r"init[-_]method|dist[-_](url|init)|rdzv[-_]endpoint|master[-_]url"
)
_ARGUMENTS_LIMIT: Final = 256 << 10
_SHARED: Final = "/etc/nccl.conf"
_MAX_OPTIONS: Final = 256
_MAX_TEXT: Final = 1023
_Wanted: TypeAlias = tuple[PathRole, str, str]
"""Role, path and origin."""
_Chains: TypeAlias = Callable[[str], tuple[Outcome, str, tuple[Link, ...]]]


def paths(host: Host) -> tuple[PathFact, ...]:
    """The chain of every path that the job would execute or load from."""
    chain = chains(host)
    stores = list(stores_of_processes(host))
    named = (item for item in stores if not isinstance(item, PathFact))
    wanted = dict.fromkeys((*_wanted(host), *named))
    return (
        *(_path_fact(chain, *item) for item in at_most(MAX_PATHS, wanted, "paths")),
        *_preload_list(host),
        *(item for item in stores if isinstance(item, PathFact)),
    )


def _wanted(host: Host) -> Iterator[_Wanted]:
    """Role, path and origin of each path."""
    env = host.environ
    cache = env.get("XDG_CACHE_HOME") or f"{host.home}/.cache"
    inductor, origin = inductor_cache(host)
    yield PathRole.INDUCTOR_CACHE, inductor, origin
    if not env.get("TRITON_CACHE_DIR"):
        # Inductor points Triton below its own cache; Triton by itself uses the home directory.
        yield PathRole.TRITON_CACHE, f"{inductor}/triton", origin
    below = {"cache": cache, "home": host.home, "triton": env.get("TRITON_HOME") or host.home}
    for role, name, default in _PLACES:
        place = env.get(name)
        yield role, place or default.format(**below), name if place else "default"
    for role, names in _IF_NAMED.items():
        yield from ((role, env[name], name) for name in names if env.get(name))
    for named in host.named.checkpoints:
        yield PathRole.CHECKPOINTS, named.path, named.origin
    yield from ((PathRole.NCCL_CONF, one, "NCCL") for one in conf_files(host) if one != os.devnull)
    for plugin, _ in _PLUGINS:
        for value, origin in values(host, plugin):
            named_ones = (one for one in value.split(",") if one.startswith("/"))
            yield from ((PathRole.NCCL_PLUGIN, one, origin) for one in named_ones)
    yield from _nccl_searches(host)
    yield from _shared(host, cache)
    yield from _searched(host)


def _shared(host: Host, cache: str) -> Iterator[_Wanted]:
    """Places where a job meets others on its machine: dumps, MPS, a store in a file."""
    env = host.environ
    dump = next((name for name in _DUMPS if env.get(name)), "")
    stem = env[dump] if dump else f"{cache}/torch/comm_lib_trace_rank_"
    yield PathRole.FLIGHT_RECORDER, f"{stem}0", dump or "default"
    for name, default in _MPS:
        # what is out of reach is there: the walk says why
        if env.get(name) or known(partial(host.is_there, default), otherwise=True):
            yield PathRole.MPS, env.get(name) or default, name if env.get(name) else "default"
    for name in sorted(env):
        if name.removeprefix("TORCH_").removeprefix("PET_") in _STORES:
            stores = _STORE_WORD.finditer(env[name])
            yield from ((PathRole.FILE_STORE, found[1], name) for found in stores)


def _nccl_searches(host: Host) -> Iterator[_Wanted]:
    """The plugins that NCCL looks for along LD_LIBRARY_PATH unless a variable names one."""
    variable = "LD_LIBRARY_PATH"
    folders = [one for one in host.environ.get(variable, "").split(":") if one.startswith("/")]
    for plugin, library in _PLUGINS if folders else ():
        if library and not any(value for value, _ in values(host, plugin)):
            for folder in folders:
                yield PathRole.NCCL_SEARCHED, f"{folder.rstrip('/')}/{library}", variable


def _searched(host: Host) -> Iterator[_Wanted]:
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
    listed = known(lambda: host.text(_PRELOADED)) or ""  # `_preload_list` says when it is not known
    entries = re.split(r"[:\s]+", re.sub(r"#.*", "", listed))
    yield from ((PathRole.PRELOAD, entry, _PRELOADED) for entry in entries if entry)


def _preload_list(host: Host) -> list[PathFact]:
    """Say that what the loader's list names is not known, when it is not."""
    found = reading(lambda: host.text(_PRELOADED))
    if found.outcome in (Outcome.OK, Outcome.ABSENT):
        return []
    entries = f"{_PRELOADED}: its entries"
    return [_unread(found, entries, role=PathRole.PRELOAD, origin=_PRELOADED)]


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
    wanted = known(lambda: [path for _, path, _ in _wanted(host)]) or []
    for path in {*wanted, str(Path.cwd())}:
        with suppress(OSError, TooMuchError):
            for link in _walk(host, groups, path) if path.startswith("/") else ():
                yield host.at(link.path).lstat()


def _path_fact(chain: _Chains, role: PathRole, path: str, origin: str) -> PathFact:
    outcome, reason = Outcome.ERROR, "a relative path: it depends on where the job starts"
    links: tuple[Link, ...] = ()
    if path.startswith("/"):
        outcome, reason, links = chain(path)
    return PathFact(
        outcome=outcome, reason=reason, role=role, path=path, origin=origin, chain=links
    )


def _unread(found: Observed, path: str, *, role: PathRole, origin: str) -> PathFact:
    return PathFact(outcome=found.outcome, reason=found.reason, role=role, path=path, origin=origin)


def chains(host: Host) -> _Chains:
    """Return what tells, of an absolute path, what is on the way and how looking at it ended."""
    groups = _Groups(host)

    def chain(path: str) -> tuple[Outcome, str, tuple[Link, ...]]:
        links: list[Link] = []
        # what was seen before an error counts
        ended: Observed = reading(lambda: links.extend(_walk(host, groups, path)))
        if ended.outcome is Outcome.ABSENT:
            hidden = reading(lambda: host.refuse_hidden(path))
            ended = ended if hidden.outcome is Outcome.OK else hidden
        return ended.outcome, ended.reason, tuple(links)

    return chain


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
        self._members = known(lambda: _members(host)) or {}

    def members(self, gid: int) -> tuple[int, ...] | None:
        """The uids in group `gid`; None when that cannot be known here."""
        return tuple(sorted(self._members[gid])) if gid in self._members else None


def _members(host: Host) -> dict[int, set[int]]:
    users = [row for row in host.rows("/etc/passwd") if len(row) > 3]
    uids = {row[0]: int(row[2]) for row in users}
    found: dict[int, set[int]] = {}
    for row in host.rows("/etc/group"):
        if len(row) > 3:
            names = [name for name in row[3].split(",") if name]
            found[int(row[2])] = {uids[name] for name in names if name in uids}
            if any(name not in uids for name in names):
                del found[int(row[2])]
    for row in users:
        if int(row[3]) in found:
            found[int(row[3])].add(int(row[2]))
    return found


def stores_of_processes(host: Host) -> Iterator[_Wanted | PathFact]:
    """Stores in files that this user's processes name in their arguments, or what hides one."""
    if is_any_process_hidden(host):
        hidden = Observed(outcome=Outcome.ERROR, reason="something is mounted over a process")
        yield _unread(hidden, "/proc", role=PathRole.FILE_STORE, origin="arguments")
    for pid in host.processes():
        path = f"/proc/{pid}/cmdline"
        try:
            if host.at(f"/proc/{pid}").stat().st_uid != host.uid:
                continue
            words = host.text(path, _ARGUMENTS_LIMIT).split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        except FAILURES as error:
            outcome, reason = outcome_of(error)
            seen_so = Observed(outcome=outcome, reason=reason)
            yield _unread(seen_so, path, role=PathRole.FILE_STORE, origin="arguments")
            continue
        for store in stores_in(words):
            yield PathRole.FILE_STORE, store, "arguments of a process"


def stores_in(words: Sequence[str]) -> Iterator[str]:
    """The files that options of a command line name for a store."""
    before = ""
    for word in words:
        found = _STORE_WORD.search(word)
        option = word.partition("=")[0] if "=" in word else before
        if found and _STORE_OPTION.search(option.lower()):
            yield found[1]
        before = word


def conf_files(host: Host) -> tuple[str, ...]:
    """The files that NCCL reads variables from, in its order."""
    own = host.environ.get("NCCL_CONF_FILE")
    if not own and host.account_home is not None:
        own = f"{host.account_home}/.nccl.conf"
    return (own, _SHARED) if own else (_SHARED,)


def nccl_conf(host: Host) -> tuple[ConfFile, ...]:
    """The variables that NCCL would set from its files."""
    return tuple(_conf_file(host, path) for path in conf_files(host))


def values(host: Host, name: str) -> Iterator[tuple[str, str]]:
    """The value of a variable wherever it is set, with the place; the first is what NCCL sees."""
    if name in host.environ:
        yield host.environ[name], name
    for file in nccl_conf(host):
        for option in file.options or ():
            if option.name == name:
                yield option.value, file.path


def _conf_file(host: Host, path: str) -> ConfFile:
    def options() -> dict[str, Any]:
        if path == os.devnull:
            return {"options": ()}  # asked for in so many words
        if not path.startswith("/"):
            raise ValueError("a relative path: it depends on where the job starts")
        return {"options": at_most(_MAX_OPTIONS, tuple(_options(host.text(path))), "options")}

    return observed(ConfFile, options, path=path)


def _options(text: str) -> list[ConfVariable]:
    found: dict[str, ConfVariable] = {}
    for number, line in enumerate(text.split("\n"), 1):
        name, equals, value = line.partition("=")
        if equals and name and not line.startswith("#"):
            name = name[:_MAX_TEXT]
            option = ConfVariable(name=name, value=value[:_MAX_TEXT], line=number)
            found.setdefault(name, option)
    return list(found.values())
