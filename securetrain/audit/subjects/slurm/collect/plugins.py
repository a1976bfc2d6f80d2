# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts of the files beside slurm.conf: devices, private directories, plug-ins, containers, logins.

On the machine itself a file that is not there is an answer. In a copy it may have been left behind,
and is not.
"""

import shlex
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any, Final

from securetrain.audit.facts import Location, Outcome, Reading, Section
from securetrain.audit.subjects.node.collect.host import HiddenError, TooMuchError, outcome_of
from securetrain.audit.subjects.slurm.collect import defaults, parser
from securetrain.audit.subjects.slurm.collect.parser import MAX_DEPTH, Conf, Failure
from securetrain.audit.subjects.slurm.collect.place import NotHereError, Place
from securetrain.audit.subjects.slurm.collect.settings import switch
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

_FAILURES: Final = (OSError, ValueError, TooMuchError, HiddenError, NotHereError)
_PAM_INCLUDES: Final = frozenset({"include", "substack"})
_REST_UNITS: Final = (
    "/etc/systemd/system/slurmrestd.service",
    "/run/systemd/system/slurmrestd.service",
    "/usr/local/lib/systemd/system/slurmrestd.service",
    "/usr/lib/systemd/system/slurmrestd.service",
    "/lib/systemd/system/slurmrestd.service",
)
_REST_OPTIONS: Final = ("/etc/default/slurmrestd", "/etc/sysconfig/slurmrestd")
_LOOPBACK: Final = ("127.", "localhost:", "[::1]:", "::1:")


def ok(value: Any, at: Location | None = None, reason: str = "") -> Reading[Any]:
    """A value that is known."""
    return Reading(outcome=Outcome.OK, value=value, at=at, reason=reason)


def unknown(reason: str, at: Location | None = None) -> Reading[Any]:
    """A value that is not."""
    return Reading(outcome=Outcome.ERROR, reason=reason, at=at)


def failed(error: Failure) -> Section[Any]:
    """A section whose file could not be read."""
    outcome, reason = parser.failure(error)
    if outcome is Outcome.ABSENT:
        outcome, reason = Outcome.ERROR, f"not here: {reason}"
    return Section(outcome=outcome, reason=reason)


def absent(place: Place, error: Exception) -> bool:
    """Return whether a file is known not to be there."""
    return place.live and isinstance(error, OSError) and outcome_of(error)[0] is Outcome.ABSENT


def partitions(conf: Conf, root_jobs: Reading[bool]) -> Section[tuple[Partition, ...]]:
    """The partitions; ``PartitionName=DEFAULT`` holds for those that follow it."""
    if conf.troubles:
        first = conf.troubles[0]
        outcome = first.outcome if first.outcome is Outcome.TEMPLATED else Outcome.ERROR
        return Section(outcome=outcome, reason=first.reason)
    inherited: dict[str, str] = {}
    found: list[Partition] = []
    for one in conf.all("PartitionName"):
        if one.value.lower() == "default":
            inherited |= one.rest
            continue
        said = inherited | one.rest
        whole = _whole_nodes(said, one.at)
        refused = root_jobs
        if "disablerootjobs" in said:
            refused = switch(ok(said["disablerootjobs"], one.at))
        if one.condition:
            whole = refused = Reading(
                outcome=Outcome.TEMPLATED, reason=f"{one.condition!r} decides", at=one.at
            )
        found.append(
            Partition(name=one.value, whole_nodes=whole, root_jobs_refused=refused, at=one.at)
        )
    return Section(outcome=Outcome.OK, value=tuple(found))


def _whole_nodes(said: dict[str, str], at: Location) -> Reading[bool]:
    values = [said.get(key, "") for key in ("oversubscribe", "shared", "exclusive")]
    if open_by := next(filter(None, map(parser.variable_of, values)), ""):
        return Reading(outcome=Outcome.TEMPLATED, reason=f"{open_by!r} decides", at=at)
    over, shared, exclusive = (value.lower() for value in values)
    user = said.get("exclusiveuser", "no").lower() in {"yes", "true", "1", "up"}
    return ok(user or "exclusive" in (over, shared) or exclusive in {"node", "user", "topo"}, at)


def gpu_devices(place: Place, path: str) -> Section[tuple[GpuDevices, ...]]:
    """The lines of gres.conf about GPUs."""
    try:
        conf = parser.read(place, path, frozenset({"name", "nodename", "autodetect"}))
    except _FAILURES as error:
        empty: Section[tuple[GpuDevices, ...]] = Section(outcome=Outcome.OK, value=())
        return empty if absent(place, error) else failed(error)
    if conf.troubles:
        return Section(outcome=Outcome.ERROR, reason=conf.troubles[0].reason)
    automatic = any(one.value.lower() not in {"off", "none"} for one in conf.all("AutoDetect"))
    found = []
    for one in conf.settings:
        said = one.rest | {one.name: one.value}
        own = said.get("autodetect", "").lower()
        if said.get("name", "").lower() != "gpu":
            if own not in {"", "off", "none"} and one.name == "nodename":
                found.append(GpuDevices(nodes=one.value, named=ok(True, one.at), at=one.at))
            continue
        named = bool({"file", "multiplefiles"} & set(said)) or own not in {"", "off", "none"}
        named = named or (automatic and own not in {"off", "none"})
        found.append(GpuDevices(nodes=said.get("nodename", ""), named=ok(named, one.at), at=one.at))
    if automatic and not found:
        at = next(conf.all("AutoDetect")).at
        found.append(GpuDevices(nodes="", named=ok(True, at), at=at))
    return Section(outcome=Outcome.OK, value=tuple(found))


def private_dirs(place: Place, plugin: Reading[str]) -> Section[tuple[PrivateDirs, ...]]:
    """The directories that the plug-in for it makes private."""
    if plugin.value is None:
        return Section(outcome=Outcome.ERROR, reason=plugin.reason)
    kind = plugin.value.rpartition("/")[2]
    try:
        match kind:
            case "":
                return Section(outcome=Outcome.OK, value=())
            case "tmpfs":
                return _job_container(place, place.named("job_container.conf"))
            case "linux":
                return _namespaces(place, place.named("namespace.yaml"))
            case _:
                reason = f"{plugin.value} is not known here"
                return Section(outcome=Outcome.ERROR, reason=reason)
    except _FAILURES as error:
        return failed(error)


def _job_container(place: Place, path: str) -> Section[tuple[PrivateDirs, ...]]:
    conf = parser.read(place, path, frozenset({"nodename", "basepath"}))
    if conf.troubles:
        return Section(outcome=Outcome.ERROR, reason=conf.troubles[0].reason)
    every = conf.last("Dirs")
    found = []
    for one in conf.settings:
        if one.name not in {"nodename", "basepath"}:
            continue
        said = one.rest | {one.name: one.value}
        dirs = said.get("dirs") or (every.value if every else defaults.PRIVATE_DIRS)
        base = said.get("basepath", "none")
        found.append(_private(said.get("nodename", ""), base, dirs, one.at))
    return Section(outcome=Outcome.OK, value=tuple(found))


def _private(nodes: str, base: str, dirs: str, at: Location) -> PrivateDirs:
    open_by = parser.variable_of(base) or parser.variable_of(dirs)
    listed = tuple(part.strip().rstrip("/") for part in dirs.split(",") if part.strip())
    readable: Reading[tuple[str, ...]] = ok(listed, at)
    if open_by:
        readable = Reading(outcome=Outcome.TEMPLATED, reason=f"{open_by!r} decides", at=at)
    return PrivateDirs(nodes=nodes, enabled=ok(base.lower() != "none", at), dirs=readable, at=at)


def _namespaces(place: Place, path: str) -> Section[tuple[PrivateDirs, ...]]:
    try:
        loaded = parse_yaml(place.text(path), path)
    except PolicyError as error:
        return Section(outcome=Outcome.ERROR, reason=f"{error.where}: {error.what}")
    at = Location(path=path)
    if not isinstance(loaded, dict):
        return Section(outcome=Outcome.ERROR, reason=f"{path} is no mapping")
    said = loaded.get("defaults")
    base: dict[str, Any] = said if isinstance(said, dict) else {}
    found = [_namespace("", base, at)] if base else []
    for one in loaded.get("node_confs") or ():
        options = one.get("options") if isinstance(one, dict) else None
        if not isinstance(options, dict):
            return Section(outcome=Outcome.ERROR, reason=f"{path}: a node_conf without options")
        names = one.get("nodes", "")
        nodes = ",".join(map(str, names)) if isinstance(names, list) else str(names)
        found.append(_namespace(nodes, {**base, **options}, at))
    return Section(outcome=Outcome.OK, value=tuple(found))


def _namespace(nodes: str, said: dict[str, Any], at: Location) -> PrivateDirs:
    if "dir_confs" in said:
        listed = [one.get("path", "") for one in said["dir_confs"] if isinstance(one, dict)]
        dirs = ",".join(map(str, listed))
    else:
        dirs = str(said.get("dirs", defaults.PRIVATE_DIRS))
    return _private(nodes, str(said.get("base_path", "none")), dirs, at)


# --- plugstack.conf, and the containers that its plug-ins start -----------------------------------


def spank(place: Place, path: str) -> Section[tuple[SpankPlugin, ...]]:
    """The plug-ins of plugstack.conf, its includes read where they stand (spank(8))."""
    try:
        return Section(outcome=Outcome.OK, value=tuple(_stack(place, path, ())))
    except _FAILURES as error:
        empty: Section[tuple[SpankPlugin, ...]] = Section(outcome=Outcome.OK, value=())
        is_main = isinstance(error, OSError) and str(error.filename).endswith(path)
        return empty if is_main and absent(place, error) else failed(error)


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
            folder = path.rpartition("/")[0]
            name = words[1] if words[1].startswith("/") else f"{folder}/{words[1]}"
            shown = place.named(name) if name.startswith("/") else name
            for file in _matching(place, shown):
                yield from _stack(place, file, (*above, path))
        elif words[0] in {"required", "optional"} and len(words) > 1:
            file = words[1]
            name = file.rpartition("/")[2].partition(".so")[0]
            yield SpankPlugin(name=name, path=file, arguments=tuple(words[2:]), at=at)


def _matching(place: Place, pattern: str) -> list[str]:
    """The files of a pattern in the last part of a path; none is an answer (glob(3))."""
    folder, _, last = pattern.rpartition("/")
    if any(char in folder for char in "*?["):
        raise ValueError(f"{pattern}: a pattern in a folder's name")
    try:
        names = place.names(folder)
    except FileNotFoundError:
        if place.live:
            return []
        raise
    return [f"{folder}/{name}" for name in names if fnmatchcase(name, last)]


def container_mounts(
    place: Place, plugins: Section[tuple[SpankPlugin, ...]]
) -> Section[tuple[ContainerMount, ...]]:
    """The mounts that enroot makes into every container, when pyxis starts containers."""
    if plugins.value is None:
        return Section(outcome=plugins.outcome, reason=plugins.reason)
    if not any("pyxis" in plugin.name for plugin in plugins.value):
        return Section(outcome=Outcome.OK, value=())
    try:
        folder = "/etc/enroot/mounts.d" if place.live else f"{place.directory}/enroot/mounts.d"
        found: list[ContainerMount] = []
        try:
            names = place.names(folder)
        except FileNotFoundError:
            if not (place.live and place.host.at("/etc/enroot").exists()):
                raise
            names = []
        for name in names:
            if name.endswith(".fstab"):
                found.extend(_fstab(place, f"{folder}/{name}"))
        return Section(outcome=Outcome.OK, value=tuple(found))
    except _FAILURES as error:
        return failed(error)


def _fstab(place: Place, path: str) -> Iterator[ContainerMount]:
    for number, line in enumerate(place.text(path).split("\n"), 1):
        words = line.split()
        if len(words) > 1 and not words[0].startswith("#"):
            at = Location(path=path, line=number)
            yield ContainerMount(source=words[0], target=words[1], at=at)


# --- logins and slurmrestd ------------------------------------------------------------------------


def login_rules(place: Place) -> Section[tuple[PamRule, ...]]:
    """The account rules of sshd: of this machine when it computes, or of the copy."""
    if place.live and not any(
        place.host.at(path).exists() for path in ("/usr/sbin/slurmd", "/usr/local/sbin/slurmd")
    ):
        reason = "no slurmd here: the rules of a compute node count"
        return Section(outcome=Outcome.ERROR, reason=reason)
    folder = "/etc/pam.d" if place.live else f"{place.directory}/pam.d"
    try:
        rules = tuple(_pam(place, folder, "sshd", ()))
    except _FAILURES as error:
        return failed(error)
    return Section(outcome=Outcome.OK, value=rules)


def _pam(place: Place, folder: str, name: str, above: tuple[str, ...]) -> Iterator[PamRule]:
    """Account rules in order (pam.conf(5)), with what includes bring."""
    if name in above or len(above) > MAX_DEPTH:
        raise TooMuchError(f"{folder}/{name} is included in a circle")
    path = name if name.startswith("/") else f"{folder}/{name}"
    for number, line in parser.joined(place.text(path)):
        words = line.split()
        at = Location(path=path, line=number)
        if len(words) > 1 and words[0] == "@include":
            yield from _pam(place, folder, words[1], (*above, name))
            continue
        if len(words) < 3 or words[0].lstrip("-").lower() != "account":
            continue
        control, rest = words[1], words[2:]
        if control.startswith("["):
            whole = " ".join(words[1:])
            control, _, after = whole.partition("]")
            control, rest = f"{control}]", after.split()
        if control.lower() in _PAM_INCLUDES:
            yield from _pam(place, folder, rest[0], (*above, name))
        elif rest:
            yield PamRule(control=control.lower(), module=rest[0].rpartition("/")[2], at=at)


def rest(place: Place) -> Section[tuple[RestDaemon, ...]]:
    """The unit of slurmrestd, with its drop-ins; the first of its usual places counts."""
    wanted = _REST_UNITS if place.live else (f"{place.directory}/slurmrestd.service",)
    for path in wanted:
        try:
            return Section(outcome=Outcome.OK, value=(_unit(place, path),))
        except FileNotFoundError:
            continue
        except _FAILURES as error:
            return failed(error)
    if place.live:
        return Section(outcome=Outcome.OK, value=())
    reason = f"slurmrestd.service is not in {place.directory}"
    return Section(outcome=Outcome.ERROR, reason=reason)


def _unit(place: Place, path: str) -> RestDaemon:
    lines = _unit_lines(place, path)
    folder = f"{path}.d"
    try:
        names = place.names(folder)
    except FileNotFoundError:
        names = []
    for name in names:
        if name.endswith(".conf"):
            lines += _unit_lines(place, f"{folder}/{name}")
    top = Location(path=path)
    heard = _heard(_last(lines, "ExecStart"), _rest_environment(place, lines))
    return RestDaemon(
        user=ok(_rest_user(lines), top),
        network=ok(any(not one.startswith(_LOOPBACK) for one in heard), top),
        at=top,
    )


def _last(lines: list[tuple[str, str]], name: str) -> str:
    return next((value for key, value in reversed(lines) if key == name), "")


def _rest_user(lines: list[tuple[str, str]]) -> str:
    user = _last(lines, "User")
    if not user and _last(lines, "DynamicUser").lower() in {"yes", "true", "1", "on"}:
        return "a user of its own"
    return "root" if user in {"", "0"} else user


def _rest_environment(place: Place, lines: list[tuple[str, str]]) -> dict[str, str]:
    texts = [value for key, value in lines if key == "Environment"]
    for file in _REST_OPTIONS if place.live else ():
        try:
            texts.append(place.text(file))
        except FileNotFoundError:
            continue
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
    found = []
    for line in place.text(path).split("\n"):
        name, equals, value = line.partition("=")
        if equals and not line.startswith(("#", ";")):
            found.append((name.strip(), value.strip()))
    return found
