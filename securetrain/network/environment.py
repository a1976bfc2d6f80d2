# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The environment of the workers: what is pinned, what is removed, and why.

torch's agent hands its whole environment to every worker, so this is where a stray variable turns
into a listening socket on the wrong interface, a plugin, or a leaked token. Rules, in order; the
first that applies to a variable decides:

1. a **pinned** variable gets the launcher's value; another value that was set loses, and that is
   said (the policy may allow fabric variables, but never those that choose the interface or the
   transport: `transport`);
2. ``--pass-env NAME`` lets one variable through; a pinned one cannot be passed (ST-NETW-003),
   except for a compiler cache that points to a directory of the user's own;
3. variables that the launcher or torch's agent set themselves are removed;
4. fabric families (NCCL_*, GLOO_*, UCX_* ...) are removed unless the policy allows them;
5. scheduler families (SLURM_* ...) are removed unless the policy passes them;
6. debug endpoints are removed unless the policy allows debug servers;
7. variables that make a process load code (LD_PRELOAD, PYTHONSTARTUP ...) are removed;
8. unsafe entries of search paths (PYTHONPATH, LD_LIBRARY_PATH, PATH) are taken out; a relative one
   of PYTHONPATH becomes absolute first, because it means the launcher's working directory;
9. names and values that look like secrets are removed;
10. everything else is passed.

The result is a pure function of the arguments; the file system enters only through the judges.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from securetrain.core import RUN_DIR_VARIABLE, STATE_VARIABLE
from securetrain.core.errors import NetworkError
from securetrain.core.vocabulary import NetworkProfile
from securetrain.network import variables
from securetrain.network.addresses import DEVICE
from securetrain.network.profile import TUNNELLED, VERBS
from securetrain.network.search_paths import PathJudge, cache_problem, path_problem
from securetrain.policy.schema import Policy

PROFILE_VARIABLE: Final = "SECURETRAIN_PROFILE"
"""Tells the worker shim which network profile to check its sockets against."""

EMPTY_NCCL_CONF: Final = "nccl.conf"
"""An empty file below the run directory: NCCL then reads no other configuration."""

CACHE_DIR: Final = "cache"

_SHOWN: Final = 5
"""Names in one warning."""

_SOCKETS: Final = {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}
"""The pin that keeps NCCL on sockets, so in the job network, on a machine with RDMA devices."""


class Reason(StrEnum):
    """The reason why a variable, or a part of it, did not reach the workers."""

    PINNED = "pinned to another value"
    LAUNCHER = "set by the launcher itself"
    FABRIC = "configures the fabric"
    SCHEDULER = "set by the scheduler"
    DEBUG = "opens a debug endpoint"
    LOADER = "loads code into processes"
    PATH = "unsafe entry of a search path"
    SECRET = "looks like a secret"  # noqa: S105 - the reason, not a secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """A variable that was removed, or from which something was taken out."""

    name: str
    reason: Reason
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEnvironment:
    """The environment of the workers, and what people should know about it."""

    env: Mapping[str, str]
    pinned: Mapping[str, str]
    removed: tuple[Removed, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Surprises for the user, one sentence for each reason or pin."""
        lines: list[str] = []
        for reason in Reason:
            entries = [entry for entry in self.removed if entry.reason is reason]
            if entries:
                lines += _sentences(reason, entries)
        return tuple(lines)


def worker_environment(
    base: Mapping[str, str],
    policy: Policy,
    profile: NetworkProfile,
    run_dir: Path,
    *,
    verbs: Mapping[str, str] | None = None,
    device: str = "",
    state: Path | None = None,
    caches: Mapping[str, str] | None = None,
    pass_env: Collection[str] = (),
    cwd: Path | None = None,
    judge: PathJudge = path_problem,
    judge_cache: PathJudge = cache_problem,
) -> WorkerEnvironment:
    """Compute the workers' environment.

    Args:
        base: The environment that the launcher was started with.
        policy: The run's policy.
        profile: The achieved network profile.
        run_dir: The run directory, absolute.
        verbs: NCCL's settings for the RDMA port of this node (`rdma.Place`), when it has one.
        device: The device that other nodes reach this one by, under store-tls.
        state: The folder that this machine keeps between runs (`nodestate`).
        caches: The pins of compiler caches (`variables.CACHES`); without them they are below the
            run directory.
        pass_env: Names that the user lets through (``--pass-env``).
        cwd: The working directory of launcher and workers; relative entries stay so without it.
        judge: Says why a directory is unsafe to load code from.
        judge_cache: The same for directories of compiled code.

    Raises:
        NetworkError: ST-NETW-003 when a pinned variable is to be passed with another value.
    """
    fixed = transport(profile, verbs, device)
    every = pins(policy, profile, run_dir, verbs, device) | dict(caches or {})
    if state is not None:
        every[STATE_VARIABLE] = str(state)
    pinned = _effective_pins(base, policy, every, pass_env, judge_cache, fixed=fixed)
    env: dict[str, str] = {}
    removed: list[Removed] = []
    for name, value in sorted(base.items()):
        if name in pinned:
            if value != pinned[name]:
                removed.append(Removed(name=name, reason=Reason.PINNED, detail=pinned[name]))
        elif name in pass_env:
            env[name] = value
        elif reason := _reason(name, value, policy):
            removed.append(Removed(name=name, reason=reason))
        elif name in variables.SEARCH_PATHS:
            entries = _absolute(value, cwd) if name == "PYTHONPATH" and cwd else value.split(":")
            _filter_path(name, entries if value else [], judge, env, removed)
        else:
            env[name] = value
    return WorkerEnvironment(env=env | pinned, pinned=pinned, removed=tuple(removed))


def pins(
    policy: Policy,
    profile: NetworkProfile,
    run_dir: Path,
    verbs: Mapping[str, str] | None = None,
    device: str = "",
) -> dict[str, str]:
    """The variables that the launcher sets for a profile.

    Raises:
        NetworkError: ST-NETW-001 for a profile that nothing here can pin.
    """
    fabric = {"NCCL_RAS_ENABLE": "0", "NCCL_CONF_FILE": str(run_dir / EMPTY_NCCL_CONF)}
    caches = {name: str(run_dir / CACHE_DIR / folder) for name, folder in variables.CACHES.items()}
    own = {RUN_DIR_VARIABLE: str(run_dir), PROFILE_VARIABLE: str(profile)}
    fixed = transport(profile, verbs, device)
    return own | fixed | caches | (fabric if policy.fabric.pin_environment else {})


def transport(
    profile: NetworkProfile, verbs: Mapping[str, str] | None = None, device: str = ""
) -> dict[str, str]:
    """The pins that make a profile true: the interface and what NCCL may use beside it.

    No policy and no flag can change these. MASTER_ADDR is not among them: torch's agent sets it for
    every round, from the store that the rendezvous made.

    Raises:
        NetworkError: ST-NETW-001 for a profile that has none, ST-NETW-032 for one that needs an
            RDMA port when there is none, or the other way round.
    """
    devices = dict.fromkeys(TUNNELLED, DEVICE) | {
        NetworkProfile.LOOPBACK: "lo",
        NetworkProfile.STORE_TLS: device,
    }
    if not devices.get(profile):
        raise NetworkError(
            "ST-NETW-001",
            f"no device is known for the profile {profile}",
            fix="use a policy that accepts loopback",
        )
    if (profile in VERBS) is not bool(verbs):
        raise NetworkError(
            "ST-NETW-032",
            f"NCCL is told of {'no' if not verbs else 'an'} RDMA port under {profile}",
            "the workers' environment",
        )
    device = devices[profile]
    return {
        "GLOO_SOCKET_IFNAME": device,
        "TP_SOCKET_IFNAME": device,
        # A bare name is a prefix for NCCL; '=' asks for exactly this interface.
        "NCCL_SOCKET_IFNAME": f"={device}",
        "NCCL_SOCKET_FAMILY": "AF_INET",
        # A plugin would be another transport, in code that nobody named.
        "NCCL_NET_PLUGIN": "none",
        **(verbs or _SOCKETS),
    }


def _effective_pins(
    base: Mapping[str, str],
    policy: Policy,
    pinned: Mapping[str, str],
    pass_env: Collection[str],
    judge_cache: PathJudge,
    *,
    fixed: Collection[str],
) -> dict[str, str]:
    """The pins without those that the policy or the user may and do replace (rules 1 and 2)."""
    effective = dict(pinned)
    for name in [n for n in pinned if base.get(n, pinned[n]) != pinned[n]]:
        if _matches(name, policy.fabric.allow_environment) and name not in fixed:
            del effective[name]
        elif name in pass_env:
            problem = judge_cache(base[name]) if name in variables.CACHES else ""
            if problem or name not in variables.CACHES:
                raise _cannot_pass(name, pinned[name], problem)
            del effective[name]
    return effective


def _reason(name: str, value: str, policy: Policy) -> Reason | None:
    """Rules 3 to 7 and 9: why a variable is removed."""
    if _matches(name, variables.LAUNCHER) and name not in variables.LAUNCHER_KEEP:
        return Reason.LAUNCHER
    if _matches(name, variables.FABRIC):
        allowed = not policy.fabric.pin_environment or _matches(
            name, policy.fabric.allow_environment
        )
        return None if allowed else Reason.FABRIC
    if _matches(name, variables.SCHEDULER):
        passed = _matches(name, policy.scheduler.pass_environment)
        return _secret(name, value) if passed else Reason.SCHEDULER
    if name in variables.DEBUG_SERVERS:
        return None if policy.debug.allow_servers else Reason.DEBUG
    if value and _matches(name, variables.CODE_LOADERS):
        return Reason.LOADER
    return _secret(name, value)


def _secret(name: str, value: str) -> Reason | None:
    if name in variables.SECRET_NAME_KEEP:
        return None
    looks_secret = variables.SECRET_NAME.search(name) or variables.SECRET_VALUE.search(value)
    return Reason.SECRET if looks_secret and value else None


def _absolute(value: str, cwd: Path) -> list[str]:
    """The entries of a search path; the empty one stays, which nobody writes on purpose."""
    return [str(cwd / entry) if entry else entry for entry in value.split(":")]


def _filter_path(
    name: str, entries: Sequence[str], judge: PathJudge, env: dict[str, str], removed: list[Removed]
) -> None:
    kept = []
    for entry in entries:
        if problem := judge(entry):
            removed.append(Removed(name=name, reason=Reason.PATH, detail=problem))
        else:
            kept.append(entry)
    if kept:
        env[name] = ":".join(kept)


def _matches(name: str, patterns: Collection[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _sentences(reason: Reason, entries: Sequence[Removed]) -> list[str]:
    names = [entry.name for entry in entries]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    listed = ", ".join(names[:_SHOWN]) + more
    match reason:
        case Reason.PINNED:
            return [f"{e.name} is pinned to {e.detail!r}; your value is not used" for e in entries]
        case Reason.PATH:
            return [f"an entry of {e.name} does not reach the workers: {e.detail}" for e in entries]
        case Reason.LAUNCHER:
            return []
        case Reason.FABRIC:
            how = "policy: fabric.allow_environment, or"
        case Reason.SCHEDULER:
            how = "policy: scheduler.pass_environment, or"
        case Reason.DEBUG | Reason.LOADER | Reason.SECRET:
            how = "if the workers need them:"
        case _:
            raise ValueError(f"unknown reason {reason!r}")
    flags = " ".join(f"--pass-env {name}" for name in names[:_SHOWN])
    return [f"not passed to the workers ({reason}): {listed}; {how} {flags}"]


def _cannot_pass(name: str, value: str, problem: str) -> NetworkError:
    what = f"{name} is pinned to {value!r}"
    if name in variables.CACHES:
        what += f", and the directory that you set is not safe: {problem}"
    return NetworkError(
        "ST-NETW-003",
        what,
        f"--pass-env {name}",
        f"unset {name}"
        if name not in variables.CACHES
        else "use a directory that only you may write to",
    )
