# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about NCCL's configuration files, read as NCCL reads them (its ``src/misc/param.cc``).

Rules:

1. the file that NCCL_CONF_FILE names, as it stands; without it ``.nccl.conf`` in the home directory
   of the user database, whatever HOME says; then /etc/nccl.conf;
2. a line is ``NAME=value`` with every blank kept, a ``#`` counts in the first column only;
3. a variable that is set already keeps its value: the environment goes before the files, the first
   file before the second, the first line before the later ones.
"""

from collections.abc import Iterator
from typing import Final

from securetrain.audit.facts import Outcome
from securetrain.audit.subjects.node.collect.host import HiddenError, Host, TooMuchError, outcome_of
from securetrain.audit.subjects.node.facts.node import ConfFile, ConfVariable

_SHARED: Final = "/etc/nccl.conf"
_NOTHING: Final = "/dev/null"
_MAX_OPTIONS: Final = 256
_MAX_TEXT: Final = 1023


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
    if path == _NOTHING:
        return ConfFile(outcome=Outcome.OK, path=path, options=())  # asked for in so many words
    try:
        if not path.startswith("/"):
            raise ValueError("a relative path: it depends on where the job starts")
        options = _options(host.text(path))
        if len(options) > _MAX_OPTIONS:
            raise TooMuchError(f"{path} sets more than {_MAX_OPTIONS} options")
    except (OSError, ValueError, TooMuchError, HiddenError) as error:
        outcome, reason = outcome_of(error)
        return ConfFile(outcome=outcome, reason=reason, path=path)
    return ConfFile(outcome=Outcome.OK, path=path, options=tuple(options))


def _options(text: str) -> list[ConfVariable]:
    found: dict[str, ConfVariable] = {}
    for number, line in enumerate(text.split("\n"), 1):
        name, equals, value = line.partition("=")
        if equals and name and not line.startswith("#"):
            name = name[:_MAX_TEXT]
            option = ConfVariable(name=name, value=value[:_MAX_TEXT], line=number)
            found.setdefault(name, option)
    return list(found.values())
