# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The one resolver of what NCCL, Gloo and torch will see, with the place that decides.

Of a launch it is what `shell/environment.py` found. Rules for a node (NCCL's
``src/misc/param.cc``, whose ``setenv`` replaces nothing):

1. the environment goes before the files, the first file before the second, the first line of a name
   before later ones;
2. a file that could not be read may set anything that nothing before it sets;
3. a plugin for the environment may do the same for everything that is not set at all;
4. Gloo reads the environment only.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from securetrain.audit.engine.fields import View
from securetrain.audit.engine.function import fields, records
from securetrain.audit.facts import Location, Outcome

ENVIRONMENT: Final = fields("node", "env", "*", of=("name", "value"))
LAUNCHED: Final = fields("launch", "environment", "*", of=("name", "value"))
SETTINGS: Final = (
    *ENVIRONMENT,
    *fields("node", "nccl_conf", "*", of=("path", "options")),
    *fields("node", "nccl_conf", "*", "options", "*", of=("name", "value", "line")),
    *LAUNCHED,
)
"""The fields that `settings` reads, of a node and of a launch."""
CONF_FILE: Final = "NCCL_CONF_FILE"
ENV_PLUGIN: Final = "NCCL_ENV_PLUGIN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A variable as the library will see it; `value` None: it is not set, or not known."""

    value: str | None = None
    place: str = ""
    """The variable's own name for the environment, else file and line."""
    location: Location | None = None
    """The line of the file, when it is one."""
    known: bool = True
    why: str = ""
    """Why it is not known."""


UNSET: Final = Setting()


def settings(view: View, name: str) -> Iterator[Setting]:
    """Yield what a variable is for the job of a node, or for each process of a launch."""
    if view.document.kind == "node":
        yield setting(view, name)
        return
    found = False
    file = ""
    for one in records(view, "environment", "launch"):
        if one.name.value == CONF_FILE and name.startswith("NCCL_"):
            file = one.value.value or one.value.reason
        if one.name.value not in (name, None):
            continue
        found = True
        value = one.value if one.name.value else one.name
        known = value.outcome is Outcome.OK and one.name.value is not None
        yield Setting(
            value=value.value if known else None,
            place=name,
            location=one.value.at or one.at,
            known=known,
            why="" if known else f"{name}: {value.reason}",
        )
    if not found:
        is_open = file not in {"", "/dev/null"} and name != CONF_FILE
        yield Setting(known=False, why=f"{file} may set {name}") if is_open else UNSET


def setting(view: View, name: str) -> Setting:
    """The value that NCCL sees for `name`; for another library, that of the environment."""
    for variable in records(view, "env"):
        if variable.name == name:
            if variable.value is None:
                return Setting(known=False, why=f"the value of {name} was not recorded")
            return Setting(value=variable.value, place=name)
    if not name.startswith("NCCL_"):
        return UNSET
    for file in records(view, "nccl_conf"):
        if file.options is None and file.outcome is not Outcome.ABSENT:
            why = f"{file.path} may set {name}: {file.outcome.value}: {file.reason}"
            return Setting(known=False, why=why)
        for option in file.options or ():
            if option.name == name:
                return Setting(
                    value=option.value,
                    place=f"{file.path}:{option.line}",
                    location=Location(path=file.path, line=option.line),
                )
    return UNSET if name == ENV_PLUGIN else _left_to_plugin(view, name)


def _left_to_plugin(view: View, name: str) -> Setting:
    plugin = setting(view, ENV_PLUGIN)
    if not plugin.known or (plugin.value or "none").lower() != "none":
        return Setting(known=False, why=plugin.why or f"{ENV_PLUGIN} may set {name}")
    return UNSET
