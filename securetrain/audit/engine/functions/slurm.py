# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Functions about a Slurm cluster: its settings, who can change its files and read its keys."""

from collections.abc import Callable, Iterable
from functools import partial
from operator import le
from typing import Any, Final

from securetrain.audit.engine.advisories import shipped_advisories
from securetrain.audit.engine.fields import Missing, View, locate
from securetrain.audit.engine.function import Args, Judgement, NoArgs, fields, function
from securetrain.audit.engine.functions.advisories import too_old
from securetrain.audit.engine.functions.paths import chain_is_safe
from securetrain.audit.engine.kleene import FALSE, TRUE, Truth, all_of, truth, unknown
from securetrain.audit.engine.predicates import defaults_said
from securetrain.audit.facts import Location, Outcome, Reading
from securetrain.audit.subjects.slurm.facts import (
    Builder,
    GpuDevices,
    KeyRole,
    PamRule,
    PasswordClass,
    PrivateDirs,
    SlurmKey,
    SlurmPath,
    SlurmPathRole,
    SlurmVersion,
)

_CONFINED: Final = (
    ("ProctrackType", "proctrack_type", "proctrack/cgroup"),
    ("TaskPlugin", "task_plugin", "task/cgroup"),
    ("ConstrainDevices", "constrain_devices", True),
    ("ConstrainCores", "constrain_cores", True),
    ("ConstrainRAMSpace", "constrain_ram_space", True),
)
_LINKS: Final = (
    *fields("slurm", "paths", "*", of=("role", "path", "origin", "chain", "at")),
    *fields("slurm", "paths", "*", "chain", "*", of=("path", "kind", "uid", "mode", "group_uids")),
)
_KEYS: Final = (("slurm", "auth_type"), *fields("slurm", "keys", "*", of=("role", "path")))
_WEAK: Final = {
    PasswordClass.NONE: "StoragePass is not set: the database asks for none",
    PasswordClass.DEFAULT: "StoragePass is a word of guides, or the account's name",
    PasswordClass.SHORT: "StoragePass is shorter than 12 characters",
}


class AdvisoryArgs(Args, frozen=True, kw_only=True):
    """The age of the list of advisories."""

    max_age_days: int = 180


class PathArgs(Args, frozen=True, kw_only=True):
    """The paths to judge."""

    roles: tuple[SlurmPathRole, ...]


class KeyArgs(Args, frozen=True, kw_only=True):
    """The size of a key."""

    min_bytes: int = 128


def _judged(
    label: str, good: Truth, why: str = "", at: Location | None = None, **evidence: Any
) -> Judgement:
    """A judgement; `why` counts where it is not good."""
    said = "" if good.value else why
    return Judgement(label=label, good=good, why=said, location=at, evidence=evidence)


def read(view: View, name: str) -> tuple[Any, Location | None]:
    """A setting and its place; see `locate`."""
    return locate(view, ("slurm", name))


def listed(view: View, name: str) -> tuple[tuple[Any, ...], list[Judgement]]:
    """The records of a section, and the judgement where they are not known."""
    value, at = read(view, name)
    if not isinstance(value, Missing):
        return value, []
    return (), [] if value.definite else [_judged("", unknown(value.reason, value.at or at))]


def holds(view: View, name: str, wanted: Any) -> tuple[Truth, Location | None, Any]:
    """Judge that a setting is `wanted`, or a list has it; with its place and what it is."""
    value, at = read(view, name)
    if isinstance(value, Missing):
        return unknown(value.reason, value.at or at), value.at or at, None
    good = wanted in value if isinstance(value, tuple) else value == wanted
    return truth(good, at), at, value


@function(
    "slurm.jobs_confined",
    reads=(
        *fields("slurm", of=(*(field for _, field, _ in _CONFINED), "gres_types")),
        *fields("slurm", "gpu_devices", "*", of=("nodes", "named", "at")),
    ),
    asks=True,
)
def jobs_confined(view: View, args: NoArgs) -> list[Judgement]:
    """Jobs are tracked by cgroups and get the devices, cores and memory that they were given."""
    del args
    found = []
    for name, field, wanted in _CONFINED:
        good, at, value = holds(view, field, wanted)
        why = ""
        if good.value is False:
            default = "; ".join(defaults_said(view.document.root("slurm"), [(field,)]))
            why = default or f"{name} is {_said(value)}"
        found.append(_judged(name, good, why, at, **{name: value}))
    gpus, _, _ = holds(view, "gres_types", "gpu")
    if not gpus.value:
        return found if gpus.value is False else [*found, _judged("GresTypes", gpus)]
    devices: tuple[GpuDevices, ...]
    devices, unseen = listed(view, "gpu_devices")
    if unseen:
        return [*found, _judged("gres.conf", unseen[0].good)]
    if not devices:
        why = "GresTypes has gpu, and gres.conf names no device: nothing is constrained"
        found.append(_judged("gres.conf", FALSE, why))
    for one in devices:
        good = _of(one.named, wanted=True)
        why = "no File and no AutoDetect: these devices are not constrained"
        why = why if good.value is False else ""
        found.append(_judged(f"gres.conf {one.label}", good, why, one.location))
    return found


def _said(value: Any) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case tuple():
            return ",".join(map(str, value)) or "empty"
        case _:
            return str(value)


def _of(reading: Reading[Any], *, wanted: Any) -> Truth:
    if reading.outcome is not Outcome.OK:
        return unknown(reading.reason, reading.at)
    return truth(reading.value == wanted, reading.at)


@function(
    "slurm.private_tmp",
    reads=(
        ("slurm", "namespace_type"),
        *fields("slurm", "private_dirs", "*", of=("nodes", "enabled", "dirs", "at")),
    ),
    asks=True,
)
def private_tmp(view: View, args: NoArgs) -> list[Judgement]:
    """Each job has its own /tmp and /dev/shm, on every node."""
    del args
    plugin, at = read(view, "namespace_type")
    if isinstance(plugin, Missing):
        return [_judged("", unknown(plugin.reason, plugin.at), at=plugin.at)]
    if plugin.startswith("spank/"):
        why = f"{plugin} may make them private, as its own options say"
        return [_judged("", unknown(why, at), why, at)]
    if not plugin:
        why = "NamespaceType (before 25.11: JobContainerType) is not set"
        return [_judged("", truth(False, at), why, at)]
    dirs: tuple[PrivateDirs, ...]
    dirs, unseen = listed(view, "private_dirs")
    if not dirs and not unseen:
        why = f"{plugin} is set, and its own file names no directory for it"
        return [_judged("", FALSE, why, at)]
    return unseen or [_judge_dirs(one) for one in dirs]


def _judge_dirs(one: PrivateDirs) -> Judgement:
    if one.dirs.value is None:
        good, why = unknown(one.dirs.reason, one.at), one.dirs.reason
    else:
        lacking = [path for path in ("/tmp", "/dev/shm") if path not in one.dirs.value]  # noqa: S108
        good = all_of((_of(one.enabled, wanted=True), truth(not lacking, one.at)))
        why = f"not private: {', '.join(lacking)}" if lacking else "switched off for these nodes"
    return _judged(one.label, good, why, one.location)


@function(
    "slurm.logins_adopted",
    reads=(
        ("slurm", "prolog_flags"),
        *fields("slurm", "login_rules", "*", of=("control", "module", "at")),
    ),
    asks=True,
)
def logins_adopted(view: View, args: NoArgs) -> list[Judgement]:
    """A login to a node ends in a job of the user, or is refused."""
    del args
    contain, at, flags = holds(view, "prolog_flags", "contain")
    lacking = f"PrologFlags is {_said(flags)}: Contain is missing"
    lacking = lacking if contain.value is False else ""
    return [_judged("PrologFlags", contain, lacking, at), _adopted(view)]


def _adopted(view: View) -> Judgement:
    name = "pam_slurm_adopt.so"
    rules: tuple[PamRule, ...]
    rules, unseen = listed(view, "login_rules")
    if unseen:
        return _judged(name, unseen[0].good)
    places = [n for n, rule in enumerate(rules) if rule.module == name]
    if not places:
        return _judged(name, FALSE, "no account rule of sshd calls pam_slurm_adopt")
    rule = rules[places[-1]]
    before = [one for one in rules[: places[-1]] if _ends(one.control)]
    why = ""
    if before:
        why = f"{before[0].module} is {before[0].control} and may end the account rules before it"
    elif not _refuses(rule.control):
        why = f"it is {rule.control}: a user without a job may log in"
    return _judged(name, truth(not why, rule.at), why, (before or [rule])[0].location)


def _ends(control: str) -> bool:
    """Return whether success of a rule ends the list (pam.conf(5))."""
    return control == "sufficient" or "success=done" in control.replace(" ", "")


def _refuses(control: str) -> bool:
    if control.startswith("["):
        return "default=ignore" not in control and any(
            word in control for word in ("default=bad", "default=die")
        )
    return control in {"required", "requisite", "sufficient"}


@function(
    "slurm.version_mended", reads=fields("slurm", "version", of=("number", "builder")), asks=True
)
def version_mended(view: View, args: AdvisoryArgs) -> list[Judgement]:
    """No advisory concerns this version."""
    there, at = read(view, "version")
    if isinstance(there, Missing):
        return [_judged("", unknown(there.reason, at), at=at)]
    built: SlurmVersion = there
    advisories = view.advisories or shipped_advisories()
    if not advisories.by_product.get("slurm"):  # a site's own list may be about packages alone
        advisories = shipped_advisories()
    matched = advisories.about_product("slurm", built.number)
    why = f"{built.number}: {'; '.join(map(str, matched))}"
    if not matched:
        old = too_old(view, advisories, args.max_age_days)
        return [_judged("", unknown(old, at) if old else TRUE, at=at)]
    if built.builder is not Builder.SLURM:
        why += "; a distribution may have mended it without another number"
        return [_judged("", unknown(why, at), why, at)]
    return [_judged("", truth(False, at), why, at)]


@function(
    "slurm.database_closed",
    reads=(*fields("slurm", of=("storage_pass", "slurm_uid")), *_LINKS),
    asks=True,
)
def database_closed(view: View, args: NoArgs) -> list[Judgement]:
    """Nobody but slurmdbd's own user reads the database's password, which is no known one."""
    del args
    strength, at = read(view, "storage_pass")
    if isinstance(strength, Missing):
        found = [_judged("StoragePass", unknown(strength.reason, at))]
    else:
        why = _WEAK.get(strength, "")
        found = [_judged("StoragePass", truth(not why, at), why, at)]
    paths, unseen = _paths(view, (SlurmPathRole.DATABASE_CONFIGURATION,))
    if not paths:
        nothing = unseen[0].good if unseen else unknown("slurmdbd.conf is not here")
        found.append(_judged("slurmdbd.conf", nothing))
    for path in paths:
        good, why = _walked(view, path, own=True)
        if path.outcome is Outcome.OK and int(path.chain[-1].mode, 8) & 0o077:
            good = FALSE
            why = f"it has mode {path.chain[-1].mode}: others read the password"
        found.append(_judged(path.path, good, why, path.location))
    return found


def _paths(view: View, roles: Iterable[SlurmPathRole]) -> tuple[list[SlurmPath], list[Judgement]]:
    found, unseen = listed(view, "paths")
    wanted = set(roles)
    return [path for path in found if path.role in wanted], unseen


def _walked(view: View, path: SlurmPath, *, own: bool) -> tuple[Truth, str]:
    """Judge that nobody but root, and SlurmUser for its `own`, can change a path; and why not."""
    trusted, unsure = {0}, ""
    if own:
        number, _ = read(view, "slurm_uid")
        if isinstance(number, Missing):
            unsure = number.reason
        else:
            trusted.add(number)
    good, why = chain_is_safe(path, trusted)
    if unsure and (good.value or _others_only_by_owner(path)):
        return unknown(unsure, path.location), unsure
    if good.value is None:
        why = f"{path.path}: {path.reason}" if path.reason else why
        return unknown(why, path.location), why
    return good, why


def _others_only_by_owner(path: SlurmPath) -> bool:
    """Return whether the owners alone are in question."""
    return chain_is_safe(path, {one.uid for one in path.chain})[0].value is not False


@function("slurm.configuration_safe", reads=_LINKS, asks=True)
def configuration_safe(view: View, args: NoArgs) -> list[Judgement]:
    """Nobody but root can change what Slurm's daemons are told."""
    del args
    nothing = _judged("", unknown("no file of the configuration was seen"))
    return _safe(view, (SlurmPathRole.CONFIGURATION,)) or [nothing]


@function("slurm.programs_safe", reads=(("slurm", "slurm_uid"), *_LINKS), asks=True)
def programs_safe(view: View, args: PathArgs) -> list[Judgement]:
    """Nobody but root, and for slurmctld's own programs SlurmUser, can change the program."""
    return _safe(view, args.roles) or [_judged("", TRUE)]


def _safe(view: View, roles: Iterable[SlurmPathRole]) -> list[Judgement]:
    paths, unseen = _paths(view, roles)
    if unseen:
        return unseen
    found: dict[tuple[str, str], Judgement] = {}
    for path in paths:
        own = path.role is SlurmPathRole.CONTROLLER_PROGRAM
        good, why = _walked(view, path, own=own)
        said = {"role": path.role.value, "origin": path.origin}
        one = _judged(path.path, good, why, path.location, **said)
        found.setdefault((path.origin, path.path), one)
    return _folded(list(found.values()))


def _folded(found: list[Judgement]) -> list[Judgement]:
    """One judgement for paths of which nothing is known for one reason, as in a copy."""
    why = {one.good.reasons[0].partition(": ")[2] for one in found if one.good.reasons}
    if len(found) > 1 and len(why) == 1 and all(one.good.value is None for one in found):
        reason = f"{len(found)} paths: {why.pop()}"
        return [_judged("", unknown(reason), reason)]
    return found


@function("slurm.state_closed", reads=(("slurm", "slurm_uid"), *_LINKS), asks=True)
def state_closed(view: View, args: NoArgs) -> list[Judgement]:
    """Slurmctld's records are SlurmUser's alone; slurmd's are written by root alone."""
    del args
    found = []
    paths, unseen = _paths(view, (SlurmPathRole.STATE, SlurmPathRole.SPOOL))
    for path in paths:
        good, why = _walked(view, path, own=True)
        limit = 0o077 if path.role is SlurmPathRole.STATE else 0o022
        if path.outcome is Outcome.ABSENT and good.value is not False:
            # The daemon of the other kind runs elsewhere, and makes it there.
            why = f"{path.path} is not on this machine"
            good = unknown(why, path.location)
        elif path.outcome is Outcome.OK and int(path.chain[-1].mode, 8) & limit:
            good, why = FALSE, f"it has mode {path.chain[-1].mode}"
        found.append(_judged(path.origin, good, why, path.location, path=path.path))
    return found or unseen or [_judged("", unknown("none was seen"))]


@function(
    "slurm.keys_private",
    reads=(
        *_KEYS,
        ("slurm", "slurm_user"),
        *fields("slurm", "keys", "*", of=("owner", "mode")),
    ),
    asks=True,
)
def keys_private(view: View, args: NoArgs) -> list[Judgement]:
    """The keys that daemons use are read by their own user alone."""
    del args
    keys, found = _keys(view)
    for key in keys:
        judged = all_of((_owned(view, key), _known(key, key.mode, _is_private)))
        why = f"it belongs to {key.owner.value} and has mode {key.mode.value}"
        why = why if judged.value is False else ""
        found.append(_judged(key.path, judged, why, key.location))
    return found


@function(
    "slurm.keys_strong",
    reads=(*_KEYS, *fields("slurm", "keys", "*", of=("size", "varied"))),
    asks=True,
)
def keys_strong(view: View, args: KeyArgs) -> list[Judgement]:
    """The keys that daemons use are long and no pattern."""
    keys, found = _keys(view)
    for key in keys:
        least = args.min_bytes if key.role is not KeyRole.TOKENS else min(args.min_bytes, 32)
        long = _known(key, key.size, partial(le, least))
        judged = all_of((long, _known(key, key.varied, bool)))
        why = ""
        if long.value is False:
            why = f"it has {key.size.value} bytes, fewer than {least}"
        elif judged.value is False:
            why = "its bytes are a pattern"
        found.append(_judged(key.path, judged, why, key.location))
    return found


def _known(key: SlurmKey, reading: Reading[Any], good: Callable[[Any], bool]) -> Truth:
    if reading.outcome is not Outcome.OK or reading.value is None:
        return unknown(f"{key.path}: {reading.reason}", key.location)
    return truth(good(reading.value), key.location)


def _is_private(mode: str) -> bool:
    return int(mode, 8) & 0o177 == 0


def _owned(view: View, key: SlurmKey) -> Truth:
    """A key belongs to who reads it: munged, SlurmUser, or root for either."""
    own: Any = "munge"
    if key.role is not KeyRole.MUNGE:
        own, at = read(view, "slurm_user")
        if isinstance(own, Missing):
            return unknown(own.reason, at)
    return _known(key, key.owner, lambda owner: owner in {"root", own})


def _keys(view: View) -> tuple[list[SlurmKey], list[Judgement]]:
    """The keys of the authentication in use; when that is not known, all that are there."""
    keys, unseen = listed(view, "keys")
    kind, _ = read(view, "auth_type")
    if isinstance(kind, Missing):
        return list(keys), unseen
    wanted = {KeyRole.SLURM if kind == "auth/slurm" else KeyRole.MUNGE, KeyRole.TOKENS}
    return [key for key in keys if key.role in wanted], unseen
