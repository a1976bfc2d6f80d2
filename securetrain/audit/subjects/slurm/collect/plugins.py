# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts of the files beside slurm.conf: devices, private directories, plug-ins, containers, logins.

On the machine itself a file that is not there is an answer. In a copy it may have been left behind,
and is not. Each function yields the records of a file, and raises what `parser.section` makes an
answer of.
"""

import shlex
from collections.abc import Iterable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Any, Final

from securetrain.audit.facts import Location, Reading, Section
from securetrain.audit.parser.values import ok, opened
from securetrain.audit.subjects.node.collect.host import TooMuchError
from securetrain.audit.subjects.slurm.collect import parser
from securetrain.audit.subjects.slurm.collect.parser import MAX_DEPTH, Conf
from securetrain.audit.subjects.slurm.collect.place import NotHereError, Place
from securetrain.audit.subjects.slurm.collect.settings import (
    PLUGSTACK,
    PRIVATE_DIRS,
    meant,
    switch,
)
from securetrain.audit.subjects.slurm.facts import (
    ContainerMount,
    GpuDevices,
    PamRule,
    Partition,
    PrivateDirs,
    RestDaemon,
    SpankPlugin,
)
from securetrain.core.errors import PolicyError
from securetrain.policy.load import parse_yaml

_PAM_INCLUDES: Final = frozenset({"include", "substack"})
_REST_UNITS: Final = tuple(
    f"/{folder}/systemd/system/slurmrestd.service"
    for folder in ("etc", "run", "usr/local/lib", "usr/lib", "lib")
)
_REST_OPTIONS: Final = ("/etc/default/slurmrestd", "/etc/sysconfig/slurmrestd")
_LOOPBACK: Final = ("127.", "localhost:", "[::1]:", "::1:")
_OFF: Final = frozenset({"off", "none"})


def partitions(conf: Conf, root_jobs: Reading[bool]) -> Iterator[Partition]:
    """Yield the partitions; ``PartitionName=DEFAULT`` holds for those that follow it."""
    inherited: dict[str, str] = {}
    for one in conf.certain().all("PartitionName"):
        if one.value.lower() == "default":
            inherited |= one.rest
            continue
        said = inherited | one.rest
        whole, refused = _whole_nodes(said, one.at), root_jobs
        if "disablerootjobs" in said:
            refused = meant(ok(said["disablerootjobs"], one.at), switch)
        if one.condition:
            whole = refused = opened(f"{one.condition!r}", one.at)
        yield Partition(name=one.value, whole_nodes=whole, root_jobs_refused=refused, at=one.at)


def _whole_nodes(said: dict[str, str], at: Location) -> Reading[bool]:
    values = [said.get(key, "") for key in ("oversubscribe", "shared", "exclusive")]
    if open_by := next(filter(None, map(parser.variable_of, values)), ""):
        return opened(f"{open_by!r}", at)
    over, shared, exclusive = (value.lower() for value in values)
    user = said.get("exclusiveuser", "no").lower() in {"yes", "true", "1", "up"}
    return ok(user or "exclusive" in (over, shared) or exclusive in {"node", "user", "topo"}, at)


def gpu_devices(place: Place, path: str) -> Iterator[GpuDevices]:
    """Yield the lines of gres.conf about GPUs."""
    conf = parser.read(place, path, frozenset({"name", "nodename", "autodetect"})).certain()
    every = [one for one in conf.all("AutoDetect") if one.value.lower() not in _OFF]
    found = False
    for one in conf.settings:
        said = {"name": "", "autodetect": "", **one.rest, one.name: one.value}
        own = said["autodetect"].lower()
        automatic = own not in {"", *_OFF} or (bool(every) and own not in _OFF)
        if said["name"].lower() == "gpu":
            named = automatic or bool({"file", "multiplefiles"} & set(said))
        elif one.name == "nodename" and own not in {"", *_OFF}:
            named = True
        else:
            continue
        found = True
        yield GpuDevices(nodes=said.get("nodename", ""), named=ok(named, one.at), at=one.at)
    if every and not found:
        at = next(conf.all("AutoDetect")).at
        yield GpuDevices(nodes="", named=ok(True, at), at=at)


def private_dirs(place: Place, plugin: Reading[str]) -> Iterable[PrivateDirs]:
    """Return the directories that the plug-in for it makes private."""
    match plugin.value and plugin.value.rpartition("/")[2]:
        case "":
            return ()
        case "tmpfs":
            return _job_container(place, place.named("job_container.conf"))
        case "linux":
            return _namespaces(place, place.named("namespace.yaml"))
        case None:
            raise NotHereError(plugin.reason)
        case _:
            raise NotHereError(f"{plugin.value} is not known here")


def _job_container(place: Place, path: str) -> Iterator[PrivateDirs]:
    conf = parser.read(place, path, frozenset({"nodename", "basepath"})).certain()
    every = conf.last("Dirs")
    for one in conf.settings:
        if one.name in {"nodename", "basepath"}:
            said = {"nodename": "", "basepath": "none", **one.rest, one.name: one.value}
            dirs = said.get("dirs") or (every.value if every else PRIVATE_DIRS)
            yield _private(said["nodename"], said["basepath"], dirs, one.at)


def _private(nodes: str, base: str, dirs: str, at: Location) -> PrivateDirs:
    listed = tuple(part.strip().rstrip("/") for part in dirs.split(",") if part.strip())
    readable: Reading[tuple[str, ...]] = ok(listed, at)
    if open_by := parser.variable_of(base) or parser.variable_of(dirs):
        readable = opened(f"{open_by!r}", at)
    return PrivateDirs(nodes=nodes, enabled=ok(base.lower() != "none", at), dirs=readable, at=at)


def _namespaces(place: Place, path: str) -> Iterator[PrivateDirs]:
    try:
        loaded = parse_yaml(place.text(path), path)
    except PolicyError as error:
        raise NotHereError(f"{error.where}: {error.what}") from error
    if not isinstance(loaded, dict):
        raise NotHereError(f"{path} is no mapping")
    at = Location(path=path)
    said = loaded.get("defaults")
    base: dict[str, Any] = said if isinstance(said, dict) else {}
    if base:
        yield _namespace("", base, at)
    for one in loaded.get("node_confs") or ():
        options = one.get("options") if isinstance(one, dict) else None
        if not isinstance(options, dict):
            raise NotHereError(f"{path}: a node_conf without options")
        names = one.get("nodes", "")
        nodes = ",".join(map(str, names)) if isinstance(names, list) else str(names)
        yield _namespace(nodes, {**base, **options}, at)


def _namespace(nodes: str, said: dict[str, Any], at: Location) -> PrivateDirs:
    dirs = str(said.get("dirs", PRIVATE_DIRS))
    if "dir_confs" in said:
        dirs = ",".join(
            str(one.get("path", "")) for one in said["dir_confs"] if isinstance(one, dict)
        )
    return _private(nodes, str(said.get("base_path", "none")), dirs, at)


# --- plugstack.conf, and the containers that its plug-ins start -----------------------------------


def spank(place: Place, conf: Conf) -> Iterable[SpankPlugin]:
    """Return the plug-ins of plugstack.conf, its includes read where they stand (spank(8))."""
    named = conf.last("PlugStackConfig")
    if trouble := conf.trouble_after(named):
        raise NotHereError(trouble.reason)
    path = place.named(named.value if named else PLUGSTACK)
    try:
        place.text(path)
    except OSError as error:
        if parser.is_absent(place, error):
            return ()
        raise
    return _stack(place, path, ())


def _stack(place: Place, path: str, above: tuple[str, ...]) -> Iterator[SpankPlugin]:
    if path in above or len(above) > MAX_DEPTH:
        raise TooMuchError(f"{above[-1]} includes {path}, in a circle")
    for number, line in enumerate(place.text(path).split("\n"), 1):
        words = line.partition("#")[0].split()
        at = Location(path=path, line=number)
        if not words:
            continue
        if parser.variable_of(line) or "{%" in line or "<%" in line:
            raise ValueError(f"{path}:{number} is a template")
        if words[0] == "include" and len(words) > 1:
            beside = f"{path.rpartition('/')[0]}/{words[1]}"
            name = place.named(words[1]) if words[1].startswith("/") else beside
            for file in _matching(place, name):
                yield from _stack(place, file, (*above, path))
        elif words[0] in {"required", "optional"} and len(words) > 1:
            name = words[1].rpartition("/")[2].partition(".so")[0]
            yield SpankPlugin(name=name, path=words[1], arguments=tuple(words[2:]), at=at)


def _matching(place: Place, pattern: str) -> list[str]:
    """The files of a pattern in the last part of a path; none is an answer (glob(3))."""
    folder, _, last = pattern.rpartition("/")
    if any(char in folder for char in "*?["):
        raise ValueError(f"{pattern}: a pattern in a folder's name")
    names = _names(place, folder, is_answer=place.live)
    return [f"{folder}/{name}" for name in names if fnmatchcase(name, last)]


def _names(place: Place, folder: str, *, is_answer: bool) -> list[str]:
    """The names in a folder; none where one that is not there `is_answer`."""
    try:
        return place.names(folder)
    except FileNotFoundError:
        if is_answer:
            return []
        raise


def container_mounts(
    place: Place, plugins: Section[tuple[SpankPlugin, ...]]
) -> Iterator[ContainerMount]:
    """Yield the mounts that enroot makes into every container, when pyxis starts containers."""
    if plugins.value is None:
        raise NotHereError(plugins.reason, plugins.outcome)
    if any("pyxis" in plugin.name for plugin in plugins.value):
        folder = "/etc/enroot/mounts.d" if place.live else f"{place.directory}/enroot/mounts.d"
        there = place.live and place.host.at("/etc/enroot").exists()
        for name in _names(place, folder, is_answer=there):
            if name.endswith(".fstab"):
                yield from _fstab(place, f"{folder}/{name}")


def _fstab(place: Place, path: str) -> Iterator[ContainerMount]:
    for number, line in enumerate(place.text(path).split("\n"), 1):
        words = line.split()
        if len(words) > 1 and not words[0].startswith("#"):
            at = Location(path=path, line=number)
            yield ContainerMount(source=words[0], target=words[1], at=at)


# --- logins and slurmrestd ------------------------------------------------------------------------


def login_rules(place: Place) -> Iterator[PamRule]:
    """Yield the account rules of sshd: of this machine when it computes, or of the copy."""
    daemons = ("/usr/sbin/slurmd", "/usr/local/sbin/slurmd")
    if place.live and not any(place.host.at(path).exists() for path in daemons):
        raise NotHereError("no slurmd here: the rules of a compute node count")
    return _pam(place, "/etc/pam.d" if place.live else f"{place.directory}/pam.d", "sshd", ())


def _pam(place: Place, folder: str, name: str, above: tuple[str, ...]) -> Iterator[PamRule]:
    """Account rules in order (pam.conf(5)), with what includes bring."""
    if name in above or len(above) > MAX_DEPTH:
        raise TooMuchError(f"{folder}/{name} is included in a circle")
    path = name if name.startswith("/") else f"{folder}/{name}"
    for number, line in parser.joined(place.text(path)):
        words = line.split()
        if len(words) > 1 and words[0] == "@include":
            yield from _pam(place, folder, words[1], (*above, name))
            continue
        if len(words) < 3 or words[0].lstrip("-").lower() != "account":
            continue
        control, rest = words[1], words[2:]
        if control.startswith("["):
            control, _, after = " ".join(words[1:]).partition("]")
            control, rest = f"{control}]", after.split()
        if control.lower() in _PAM_INCLUDES:
            yield from _pam(place, folder, rest[0], (*above, name))
        elif rest:
            at = Location(path=path, line=number)
            yield PamRule(control=control.lower(), module=rest[0].rpartition("/")[2], at=at)


def rest(place: Place) -> Iterator[RestDaemon]:
    """Yield the unit of slurmrestd, with its drop-ins; the first of its usual places counts."""
    for path in _REST_UNITS if place.live else (f"{place.directory}/slurmrestd.service",):
        with suppress(FileNotFoundError):
            yield _unit(place, path)
            return
    if not place.live:
        raise NotHereError(f"slurmrestd.service is not in {place.directory}")


def _unit(place: Place, path: str) -> RestDaemon:
    lines = _unit_lines(place, path)
    for name in _names(place, f"{path}.d", is_answer=True):
        if name.endswith(".conf"):
            lines += _unit_lines(place, f"{path}.d/{name}")
    last = dict(lines)
    user = last.get("User", "")
    if not user and last.get("DynamicUser", "").lower() in {"yes", "true", "1", "on"}:
        user = "a user of its own"
    top = Location(path=path)
    heard = _heard(last.get("ExecStart", ""), _rest_environment(place, lines))
    return RestDaemon(
        user=ok("root" if user in {"", "0"} else user, top),
        network=ok(any(not one.startswith(_LOOPBACK) for one in heard), top),
        at=top,
    )


def _rest_environment(place: Place, lines: list[tuple[str, str]]) -> dict[str, str]:
    texts = [value for key, value in lines if key == "Environment"]
    for file in _REST_OPTIONS if place.live else ():
        with suppress(FileNotFoundError):
            texts.append(place.text(file))
    words = [word for text in texts for word in shlex.split(text, comments=True)]
    return dict(word.split("=", 1) for word in words if "=" in word)


def _heard(command: str, environment: dict[str, str]) -> list[str]:
    """The addresses that slurmrestd listens on (slurmrestd(8)), without local sockets."""
    for name, value in environment.items():
        command = command.replace(f"${name}", value).replace(f"${{{name}}}", value)
    listed = [word for word in command.split()[1:] if ":" in word and not word.startswith("-")]
    listed += environment.get("SLURMRESTD_LISTEN", "").split(",")
    return [one for one in listed if one and not one.startswith("unix:")]


def _unit_lines(place: Place, path: str) -> list[tuple[str, str]]:
    pairs = (line.partition("=") for line in place.text(path).split("\n"))
    return [
        (name.strip(), value.strip())
        for name, equals, value in pairs
        if equals and not name.startswith(("#", ";"))
    ]
