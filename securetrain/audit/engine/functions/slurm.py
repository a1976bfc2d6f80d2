# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Functions about a Slurm cluster."""

from typing import Any, Final

from securetrain.audit.engine.fields import Missing, View, locate
from securetrain.audit.engine.function import Args, Judgement, NoArgs, fields, function
from securetrain.audit.engine.functions.advisories import shipped_advisories, too_old
from securetrain.audit.engine.kleene import FALSE, TRUE, Truth, all_of, truth, unknown
from securetrain.audit.engine.predicates import defaults_said
from securetrain.audit.facts import Location, Outcome, Reading
from securetrain.audit.subjects.slurm.facts import (
    Builder,
    GpuDevices,
    PamRule,
    PrivateDirs,
    SlurmVersion,
)

_CONFINED: Final = (
    ("ProctrackType", "proctrack_type", "proctrack/cgroup"),
    ("TaskPlugin", "task_plugin", "task/cgroup"),
    ("ConstrainDevices", "constrain_devices", True),
    ("ConstrainCores", "constrain_cores", True),
    ("ConstrainRAMSpace", "constrain_ram_space", True),
)


class AdvisoryArgs(Args, frozen=True, kw_only=True):
    """The age of the list of advisories."""

    max_age_days: int = 180


def read(view: View, name: str) -> tuple[Any, Location | None]:
    """A setting and its place; see `locate`."""
    return locate(view, ("slurm", name))


def listed(view: View, name: str) -> tuple[tuple[Any, ...], Truth]:
    """The records of a section, and whether they are known; none when they are not."""
    value, at = read(view, name)
    if isinstance(value, Missing):
        return (), TRUE if value.definite else unknown(value.reason, value.at or at)
    return value, TRUE


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
        found.append(Judgement(label=name, good=good, why=why, location=at, evidence={name: value}))
    gpus, _, _ = holds(view, "gres_types", "gpu")
    if gpus.value is False:
        return found
    if gpus.value is None:
        return [*found, Judgement(label="GresTypes", good=gpus)]
    devices: tuple[GpuDevices, ...]
    devices, seen = listed(view, "gpu_devices")
    if seen.value is None:
        return [*found, Judgement(label="gres.conf", good=seen)]
    if not devices:
        why = "GresTypes has gpu, and gres.conf names no device: nothing is constrained"
        found.append(Judgement(label="gres.conf", good=FALSE, why=why))
    for one in devices:
        good = _of(one.named, wanted=True)
        why = "no File and no AutoDetect: these devices are not constrained"
        found.append(
            Judgement(
                label=f"gres.conf {one.label}",
                good=good,
                why=why if good.value is False else "",
                location=one.location,
            )
        )
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
        return [Judgement(label="", good=unknown(plugin.reason, plugin.at), location=plugin.at)]
    if plugin.startswith("spank/"):
        why = f"{plugin} may make them private, as its own options say"
        return [Judgement(label="", good=unknown(why, at), why=why, location=at)]
    if not plugin:
        why = "NamespaceType (before 25.11: JobContainerType) is not set"
        return [Judgement(label="", good=truth(False, at), why=why, location=at)]
    dirs: tuple[PrivateDirs, ...]
    dirs, seen = listed(view, "private_dirs")
    if seen.value is None:
        return [Judgement(label="", good=seen)]
    if not dirs:
        why = f"{plugin} is set, and its own file names no directory for it"
        return [Judgement(label="", good=FALSE, why=why, location=at)]
    return [_judge_dirs(one) for one in dirs]


def _judge_dirs(one: PrivateDirs) -> Judgement:
    if one.dirs.value is None:
        good, why = unknown(one.dirs.reason, one.at), one.dirs.reason
    else:
        lacking = [path for path in ("/tmp", "/dev/shm") if path not in one.dirs.value]  # noqa: S108
        good = all_of((_of(one.enabled, wanted=True), truth(not lacking, one.at)))
        why = f"not private: {', '.join(lacking)}" if lacking else "switched off for these nodes"
    return Judgement(
        label=one.label, good=good, why=why if not good.value else "", location=one.location
    )


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
    found = [
        Judgement(
            label="PrologFlags",
            good=contain,
            why=f"PrologFlags is {_said(flags)}: Contain is missing"
            if contain.value is False
            else "",
            location=at,
        )
    ]
    rules: tuple[PamRule, ...]
    rules, seen = listed(view, "login_rules")
    if seen.value is None:
        return [*found, Judgement(label="pam_slurm_adopt.so", good=seen)]
    places = [n for n, rule in enumerate(rules) if rule.module == "pam_slurm_adopt.so"]
    if not places:
        why = "no account rule of sshd calls pam_slurm_adopt"
        found.append(Judgement(label="pam_slurm_adopt.so", good=FALSE, why=why))
        return found
    rule = rules[places[-1]]
    before = [one for one in rules[: places[-1]] if _ends(one.control)]
    why = ""
    if before:
        why = f"{before[0].module} is {before[0].control} and may end the account rules before it"
    elif not _refuses(rule.control):
        why = f"it is {rule.control}: a user without a job may log in"
    found.append(
        Judgement(
            label="pam_slurm_adopt.so",
            good=truth(not why, rule.at),
            why=why,
            location=(before or [rule])[0].location,
        )
    )
    return found


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
        return [Judgement(label="", good=unknown(there.reason, at), location=at)]
    built: SlurmVersion = there
    advisories = view.advisories or shipped_advisories()
    if not advisories.by_product.get("slurm"):  # a site's own list may be about packages alone
        advisories = shipped_advisories()
    matched = advisories.about_product("slurm", built.number)
    why = f"{built.number}: {'; '.join(map(str, matched))}"
    if not matched:
        old = too_old(view, advisories, args.max_age_days)
        return [Judgement(label="", good=unknown(old, at) if old else TRUE, location=at)]
    if built.builder is not Builder.SLURM:
        why += "; a distribution may have mended it without another number"
        return [Judgement(label="", good=unknown(why, at), why=why, location=at)]
    return [Judgement(label="", good=truth(False, at), why=why, location=at)]
