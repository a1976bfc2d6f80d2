# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about a user's settings: environment, NCCL and SSH configuration, where credentials lie.

Values are recorded for the fabric's, torch's and the loader's variables only. A variable whose name
looks like a secret is recorded by name.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Final, TypeAlias

from securetrain.audit.collect.host import Host, TooMuchError, outcome_of
from securetrain.audit.collect.paths import nccl_conf_files
from securetrain.audit.collect.system import NETWORK_FILESYSTEMS, filesystem_of, octal
from securetrain.audit.facts import (
    ConfFile,
    ConfVariable,
    EnvKind,
    EnvVariable,
    Outcome,
    SecretFile,
)
from securetrain.network import variables

_Parser: TypeAlias = Callable[[str], list[ConfVariable]]

MAX_VALUE: Final = 32 << 10
_TORCH: Final = ("TORCH_", "TORCHELASTIC_", "TORCHINDUCTOR_", "TRITON_", "KINETO_", "MASTER_")
_LOADER: Final = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT", "PYTHONPATH", "TMPDIR")
_NOT_SECRET: Final = re.compile(r"(_FILE|_PATH|_DIR)$|^TOKENIZERS_", re.IGNORECASE)
"""Names that say where a secret is, which is how it should be handed over."""
_SECRET_FILES: Final = (
    ".netrc",
    ".cache/huggingface/token",
    ".cache/huggingface/stored_tokens",
    ".aws/credentials",
    ".config/gcloud/application_default_credentials.json",
    ".docker/config.json",
    ".kube/config",
    ".git-credentials",
    ".config/wandb/settings",
)
_SSH_OPTIONS: Final = frozenset({"stricthostkeychecking", "userknownhostsfile", "forwardagent"})
_SSHD_OPTIONS: Final = frozenset(
    {"permitrootlogin", "passwordauthentication", "permitemptypasswords", "x11forwarding"}
)
_INCLUDED: Final = re.compile(r"(/etc/ssh/)?sshd?_config\.d/\*\.conf")
"""The only Include that is followed; with any other the file's options are not all known."""
_MAX_OPTIONS: Final = 256


def env(host: Host) -> tuple[EnvVariable, ...]:
    """The variables of the job's environment that the checks ask about."""
    found = []
    for name in sorted(host.environ):
        kind = _kind(name)
        if kind is None:
            continue
        value = host.environ[name]
        if len(value) > MAX_VALUE:
            raise TooMuchError(f"{name} is longer than {MAX_VALUE} characters")
        shown = None if kind is EnvKind.SECRET else value
        found.append(EnvVariable(name=name, kind=kind, value=shown))
    if len(found) > 1000:
        raise TooMuchError("more than 1000 variables")
    return tuple(found)


def _kind(name: str) -> EnvKind | None:
    secret = variables.SECRET_NAME.search(name) and name not in variables.SECRET_NAME_KEEP
    if secret and not _NOT_SECRET.search(name):
        return EnvKind.SECRET
    if name in _LOADER:
        return EnvKind.LOADER
    if any(fnmatchcase(name, pattern) for pattern in variables.FABRIC):
        return EnvKind.FABRIC
    return EnvKind.TORCH if name.startswith(_TORCH) else None


def nccl_conf(host: Host) -> tuple[ConfFile, ...]:
    """The variables that NCCL would read from its files."""
    return tuple(_conf_file(host, path, _nccl_options) for path in nccl_conf_files(host))


def _nccl_options(text: str) -> list[ConfVariable]:
    options = []
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and not name.lstrip().startswith("#"):
            options.append(ConfVariable(name=name.strip(), value=value.strip()))
    return options


def ssh(host: Host) -> tuple[ConfFile, ...]:
    """The client options about host keys, for this user and for everybody."""
    files = [f"{host.home}/.ssh/config", "/etc/ssh/ssh_config", *_dropins(host, "ssh_config.d")]
    return tuple(
        _conf_file(host, path, lambda text: _keyword_options(text, _SSH_OPTIONS)) for path in files
    )


def sshd(host: Host) -> ConfFile:
    """The server's global options: the first occurrence wins (sshd_config(5))."""
    main = "/etc/ssh/sshd_config"
    own = _conf_file(host, main, lambda text: _keyword_options(text, _SSHD_OPTIONS))
    if own.outcome is not Outcome.OK:
        return own
    # Distributions include the directory at the top of the file, so that its files come first.
    included = [
        _conf_file(host, path, lambda text: _keyword_options(text, _SSHD_OPTIONS))
        for path in _dropins(host, "sshd_config.d")
        if "sshd_config.d" in host.text(main)
    ]
    for file in included:
        if file.outcome is not Outcome.OK:
            return ConfFile(outcome=file.outcome, reason=file.reason, path=main)
    first: dict[str, ConfVariable] = {}
    for file in (*included, own):
        for option in file.options or ():
            first.setdefault(option.name, option)
    return ConfFile(
        outcome=Outcome.OK, path=main, options=tuple(first[name] for name in sorted(first))
    )


def _dropins(host: Host, name: str) -> list[str]:
    try:
        names = host.names(f"/etc/ssh/{name}")
    except FileNotFoundError:
        return []
    return [f"/etc/ssh/{name}/{file}" for file in names if file.endswith(".conf")]


def _keyword_options(text: str, wanted: frozenset[str]) -> list[ConfVariable]:
    """``Keyword value`` lines in order; names in lower case. A Match block ends the global part
    of a server's file, but a client's blocks all count.
    """
    options = []
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        name, _, value = re.sub(r"\s*=\s*|\s+", " ", stripped, count=1).partition(" ")
        if name.lower() == "include" and not _INCLUDED.fullmatch(value.strip()):
            raise ValueError(f"includes {value.strip()}, which is not read")
        if name.lower() == "match" and wanted is _SSHD_OPTIONS:
            break
        if name.lower() in wanted:
            value = value.strip().strip('"').lower()
            options.append(ConfVariable(name=name.lower(), value=value))
    return options


def _conf_file(host: Host, path: str, parse: _Parser) -> ConfFile:
    try:
        options = parse(host.text(path))
        if len(options) > _MAX_OPTIONS:
            raise TooMuchError(f"{path} sets more than {_MAX_OPTIONS} options")
    except (OSError, ValueError, TooMuchError) as error:
        outcome, reason = outcome_of(error)
        return ConfFile(outcome=outcome, reason=reason, path=path)
    return ConfFile(outcome=Outcome.OK, path=path, options=tuple(options))


def secrets(host: Host) -> tuple[SecretFile, ...]:
    """Files where credentials usually are: owner, mode and filesystem, never the content."""
    env_files = {"HF_TOKEN_PATH", "AWS_SHARED_CREDENTIALS_FILE", "NETRC", "KUBECONFIG"}
    named = [host.environ[name] for name in sorted(env_files) if host.environ.get(name)]
    usual = [f"{host.home}/{name}" for name in _SECRET_FILES]
    keys = f"{host.home}/.ssh"
    with suppress(FileNotFoundError):  # no SSH keys
        usual += [
            f"{keys}/{name}"
            for name in host.names(keys)
            if name.startswith("id_") and not name.endswith(".pub")
        ]
    return tuple(_secret_file(host, path) for path in dict.fromkeys(usual + named))


def _secret_file(host: Host, path: str) -> SecretFile:
    try:
        info = host.at(path).stat()
        filesystem = filesystem_of(host, path)
    except OSError as error:
        outcome, reason = outcome_of(error)
        return SecretFile(outcome=outcome, reason=reason, path=path)
    return SecretFile(
        outcome=Outcome.OK,
        path=path,
        uid=info.st_uid,
        mode=octal(info.st_mode),
        network_filesystem=filesystem in NETWORK_FILESYSTEMS,
    )
