# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Places where a job meets others on its machine: sockets, dumps, a store in a file, plugins.

Defaults follow what the programs do themselves: NCCL's ``src/plugin/*.cc``, torch's
``FlightRecorder.cpp`` and ``control_plane/WorkerServer.cpp``, and the manual of NVIDIA's MPS.
"""

import os
import re
from collections.abc import Iterator, Sequence
from typing import Final

from securetrain.audit.facts import Outcome
from securetrain.audit.subjects.node.collect import nccl
from securetrain.audit.subjects.node.collect.host import HiddenError, Host, TooMuchError, outcome_of
from securetrain.audit.subjects.node.collect.surroundings import is_any_process_hidden
from securetrain.audit.subjects.node.facts.node import PathFact, PathRole

_SEARCHED: Final = (
    ("NCCL_NET_PLUGIN", "libnccl-net.so"),
    ("NCCL_TUNER_PLUGIN", "libnccl-tuner.so"),
    ("NCCL_PROFILER_PLUGIN", "libnccl-profiler.so"),
    ("NCCL_ENV_PLUGIN", "libnccl-env.so"),
)
"""What NCCL looks for along LD_LIBRARY_PATH unless a variable says otherwise."""
_DUMPS: Final = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_SOCKETS: Final = ("TORCH_WORKER_SERVER_SOCKET", "KINETO_IPC_SOCKET_DIR")
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
_MAX_PROCESSES: Final = 65536


def places(host: Host) -> Iterator[tuple[PathRole, str, str]]:
    """Role, path and origin of each."""
    env = host.environ
    yield from _searched(host)
    named = next((name for name in _DUMPS if env.get(name)), "")
    cache = env.get("XDG_CACHE_HOME") or f"{host.home}/.cache"
    dump = env[named] if named else f"{cache}/torch/comm_lib_trace_rank_"
    yield PathRole.FLIGHT_RECORDER, f"{dump}0", named or "default"
    for name in _SOCKETS:
        if env.get(name):
            yield PathRole.CONTROL_SOCKET, env[name], name
    for name, default in _MPS:
        if env.get(name) or _is_there(host, default):
            yield PathRole.MPS, env.get(name) or default, name if env.get(name) else "default"
    for name in sorted(env):
        if name.removeprefix("TORCH_").removeprefix("PET_") in _STORES:
            for found in _STORE_WORD.finditer(env[name]):
                yield PathRole.FILE_STORE, found[1], name


def _searched(host: Host) -> Iterator[tuple[PathRole, str, str]]:
    variable = "LD_LIBRARY_PATH"
    folders = [one for one in host.environ.get(variable, "").split(":") if one.startswith("/")]
    for plugin, library in _SEARCHED if folders else ():
        if not any(value for value, _ in nccl.values(host, plugin)):
            for folder in folders:
                yield PathRole.NCCL_SEARCHED, f"{folder.rstrip('/')}/{library}", variable


def _is_there(host: Host, path: str) -> bool:
    try:
        host.at(path).lstat()
    except FileNotFoundError:
        return False
    except OSError:
        return True  # out of reach: the walk says why
    return True


def stores_of_processes(host: Host) -> Iterator[tuple[PathRole, str, str] | PathFact]:
    """Stores in files that this user's processes name in their arguments, or what hides one."""
    if is_any_process_hidden(host):
        yield _unread("/proc", Outcome.ERROR, "something is mounted over a process")
    with os.scandir(host.at("/proc")) as entries:
        pids = [entry.name for entry in entries if entry.name.isdigit()]
    if len(pids) > _MAX_PROCESSES:
        raise TooMuchError(f"more than {_MAX_PROCESSES} processes")
    for pid in sorted(pids, key=int):
        path = f"/proc/{pid}/cmdline"
        try:
            if host.at(f"/proc/{pid}").stat().st_uid != host.uid:
                continue
            words = host.text(path, _ARGUMENTS_LIMIT).split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        except (OSError, TooMuchError, HiddenError) as error:
            yield _unread(path, *outcome_of(error))
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


def _unread(path: str, outcome: Outcome, reason: str) -> PathFact:
    return PathFact(
        outcome=outcome, reason=reason, role=PathRole.FILE_STORE, path=path, origin="arguments"
    )
