# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Compiled code that later runs use again: a folder for each script, user, versions and policy.

::

    <state>/cache/<key>/key.json, lock, inductor/, triton/, extensions/

Whoever writes to a compiler's cache runs code in every job that reads it. So:

1. the key is of everything that the code depends on (Python, torch, triton, the compilers, the
   processor) and of who could have written it: the script as it was started, with its owner, the
   user of the workers, and the policy under which they ran. Another one: another folder;
2. the folders belong to the launcher's user and nobody else may write to them or to one above
   them. Where that does not hold the run has a cache of its own, as if it were the first, and that
   is said;
3. a run that uses a folder holds its lock, shared. Whoever is alone removes locks that a killed
   compiler left, for which the next one would wait for ever;
4. nothing that is in use is removed.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import msgspec

from securetrain.core import NodeState, canonical
from securetrain.core.errors import SecureTrainError, UsageError, os_error
from securetrain.core.files import make_private_dir, read_file, write_atomic
from securetrain.network import CACHES, cache_problem

KEY_FILE: Final = "key.json"
LOCK: Final = "lock"
_LIMIT: Final = 16 << 10
_PACKAGES: Final = ("torch", "triton", "pytorch-triton-rocm", "deepspeed")
_COMPILERS: Final = {"CXX": "c++", "CC": "cc", "NVCC": "nvcc"}
_NAME_LENGTH: Final = 32


class CacheKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that a cache's content depends on."""

    user: int
    """Of the workers."""
    script: str
    """Its digest and owner, or the name of a module (`script_of`)."""
    policy: str
    """The policy's digest."""
    python: str
    packages: dict[str, str]
    compilers: dict[str, str]
    processor: str

    @property
    def name(self) -> str:
        """The folder's name."""
        return hashlib.sha256(canonical.encode(self)).hexdigest()[:_NAME_LENGTH]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """The cache of one run."""

    folder: Path
    problem: str = ""
    """Why it is this run's own; empty for a shared one."""
    lock: int = -1

    @property
    def pins(self) -> dict[str, str]:
        """The variables that lead there."""
        return {name: str(self.folder / below) for name, below in CACHES.items()}

    @property
    def warnings(self) -> tuple[str, ...]:
        """The reason why it is not shared, for people."""
        return (f"compiled code is not shared: {self.problem}",) if self.problem else ()

    def release(self) -> None:
        """Let others remove it; call it once, at the run's end."""
        if self.lock >= 0:
            os.close(self.lock)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCache:
    """One cache, for people."""

    name: str
    key: CacheKey | None
    """None when what it says of itself cannot be believed."""
    size: int
    used: float
    """When a run began to use it last, in seconds since 1970."""
    in_use: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearedCaches:
    """The result of `clear_caches`."""

    removed: tuple[str, ...]
    in_use: tuple[str, ...]


def key_of(
    policy: str,
    environ: Mapping[str, str],
    *,
    user: int,
    script: str,
    installed: Callable[[str], str] = version,
    proc: Path = Path("/proc"),
) -> CacheKey:
    """The key of this machine's cache under a policy. No program is run.

    Args:
        policy: The policy's digest.
        environ: May name compilers (``CXX``, ``CC``), and says where they are.
        user: The workers' user.
        script: What is started, as `script_of` says it.
        installed: The version of an installed package.
        proc: Where the processor is described.
    """
    packages = {}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            packages[name] = installed(name)
    compilers = {}
    for variable, usual in _COMPILERS.items():
        found = shutil.which(environ.get(variable) or usual, path=environ.get("PATH"))
        if found is not None:
            info = Path(found).stat()
            compilers[variable] = f"{os.path.realpath(found)} {info.st_size} {info.st_mtime_ns}"
    return CacheKey(
        user=user,
        script=script,
        policy=policy,
        python=f"{sys.implementation.cache_tag} {sys.version}",
        packages=packages,
        compilers=compilers,
        processor=_processor(proc),
    )


def script_of(name: str, *, module: bool) -> str:
    """Say what is started: a file by its content and owner, anything else by its name.

    What a script imports is not in it.
    """
    try:
        if module:
            return f"module {name}"
        with Path(name).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return f"sha256:{digest} of user {os.fstat(file.fileno()).st_uid}"
    except OSError:
        return f"program {name}"


def open_cache(state: NodeState, key: CacheKey, own: Path) -> Cache:
    """The cache of a run: the shared one, or `own` when that is not safe (rule 2).

    Raises:
        UsageError: ST-USAG-002 or ST-USAG-018 when not even the run's own can be made.
    """
    folder = state.caches / key.name
    try:
        make_private_dir(state.caches)
        if problem := cache_problem(str(state.caches)):
            raise UsageError("ST-USAG-018", problem, str(state.caches))
        make_private_dir(folder)
        _make_places(folder)
        lock = _lock(folder)
        stored = read_key(folder)
        if stored is None:
            write_atomic(folder / KEY_FILE, canonical.encode(key), mode=0o600)
        elif stored != key:
            os.close(lock)
            raise UsageError("ST-USAG-017", "another key's cache is in it", str(folder))
    except SecureTrainError as error:
        make_private_dir(own)
        _make_places(own)
        return Cache(folder=own, problem=f"{error.what} ({error.where})")
    os.utime(folder / KEY_FILE)
    return Cache(folder=folder, lock=lock)


def list_caches(state: NodeState) -> list[StoredCache]:
    """Every cache below the state folder, the newest first.

    Raises:
        UsageError: ST-USAG-002 when it cannot be read.
    """
    try:
        names = sorted(path.name for path in state.caches.iterdir() if path.is_dir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise os_error(error, str(state.caches)) from error
    found = []
    for name in names:
        folder = state.caches / name
        marker = folder / KEY_FILE
        found.append(
            StoredCache(
                name=name,
                key=read_key(folder),
                size=sum(p.lstat().st_size for p in folder.rglob("*") if not p.is_dir()),
                used=(marker if marker.exists() else folder).lstat().st_mtime,
                in_use=not _is_free(folder),
            )
        )
    return sorted(found, key=lambda one: (-one.used, one.name))


def clear_caches(state: NodeState, names: tuple[str, ...] = ()) -> ClearedCaches:
    """Remove caches: those that are named by the beginning of their names, or all.

    Raises:
        UsageError: ST-USAG-001 when there is none of a name, ST-USAG-002.
    """
    stored = [one.name for one in list_caches(state)]
    for name in names:
        if not any(one.startswith(name) for one in stored):
            raise UsageError(
                "ST-USAG-001", "no such cache", name, "securetrain cache list shows them"
            )
    removed, in_use = [], []
    for one in stored:
        if names and not one.startswith(names):
            continue
        folder = state.caches / one
        if not _is_free(folder):
            in_use.append(one)
            continue
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise os_error(error, str(folder)) from error
        removed.append(one)
    return ClearedCaches(removed=tuple(removed), in_use=tuple(in_use))


def read_key(folder: Path) -> CacheKey | None:
    """Read the key of a cache; None when its name is of another."""
    try:
        data = read_file(folder / KEY_FILE, _LIMIT)
        key = canonical.decode(data, CacheKey, limit=_LIMIT, canonical=True)
    except SecureTrainError:
        return None
    return key if key.name == folder.name else None


def _make_places(folder: Path) -> None:
    for below in CACHES.values():
        make_private_dir(folder / below)


def _lock(folder: Path) -> int:
    """Hold the lock, shared; alone for a moment, the locks of killed compilers go (rule 3)."""
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        lock = os.open(folder / LOCK, flags, 0o600)
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for left in (folder / CACHES["TORCH_EXTENSIONS_DIR"]).rglob("lock"):
                left.unlink()
        fcntl.flock(lock, fcntl.LOCK_SH)
    except OSError as error:
        raise os_error(error, str(folder / LOCK)) from error
    return lock


def _is_free(folder: Path) -> bool:
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError as error:
        raise os_error(error, str(folder / LOCK)) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


def _processor(proc: Path) -> str:
    """The architecture, and a digest of what the processor can do."""
    try:
        lines = (proc / "cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    kinds = ("model name", "flags", "Features", "CPU part")
    able = sorted({line for line in lines if line.startswith(kinds)})
    digest = hashlib.sha256("\n".join(able).encode()).hexdigest()[:16]
    return f"{platform.machine()} {digest}"
