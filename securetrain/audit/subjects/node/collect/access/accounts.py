# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about a user's settings: the environment, and where credentials lie.

Values are recorded for the fabric's, torch's and the loader's variables only. A variable that looks
like a secret, by its name or by a password in its value, is recorded by name.
"""

import base64
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Final

from securetrain.audit.facts import Outcome
from securetrain.audit.parser.secrets import may_be_secret
from securetrain.audit.subjects.node.collect.access.ssh import identity_files
from securetrain.audit.subjects.node.collect.host import HiddenError, Host, TooMuchError, outcome_of
from securetrain.audit.subjects.node.collect.system import NETWORK_FILESYSTEMS, filesystem_of, octal
from securetrain.audit.subjects.node.facts.node import EnvKind, EnvVariable, KeyForm, SecretFile
from securetrain.network import variables

MAX_VALUE: Final = 32 << 10
_TORCH: Final = ("TORCH_", "TORCHELASTIC_", "TORCHINDUCTOR_", "TRITON_", "KINETO_", "MASTER_")
_LOADER: Final = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT", "PYTHONPATH", "TMPDIR")
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
_PRIVATE_KEY: Final = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----|PuTTY-User-Key-File-")
_KEY_HEAD: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]*)PRIVATE KEY-----")
_OPENSSH: Final = b"openssh-key-v1\0"
_KEY_BYTES: Final = 128
_MAX_KEYS: Final = 256


def env(host: Host) -> tuple[EnvVariable, ...]:
    """The variables of the job's environment that the checks ask about."""
    found = []
    for name in sorted(host.environ):
        value = host.environ[name]
        kind = kind_of(name, value)
        if kind is None:
            continue
        if len(value) > MAX_VALUE:
            raise TooMuchError(f"{name} is longer than {MAX_VALUE} characters")
        shown = None if kind is EnvKind.SECRET else value
        found.append(EnvVariable(name=name, kind=kind, value=shown))
    if len(found) > 1000:
        raise TooMuchError("more than 1000 variables")
    return tuple(found)


def kind_of(name: str, value: str = "") -> EnvKind | None:
    """The reason for recording a variable; None for one that no check asks about."""
    if may_be_secret(name, value):
        return EnvKind.SECRET
    if name in _LOADER:
        return EnvKind.LOADER
    if any(fnmatchcase(name, pattern) for pattern in variables.FABRIC):
        return EnvKind.FABRIC
    return EnvKind.TORCH if name.startswith(_TORCH) else None


def secrets(host: Host) -> tuple[SecretFile, ...]:
    """Files where credentials usually are: owner, mode and filesystem, never the content."""
    env_files = {
        "HF_TOKEN_PATH",
        "AWS_SHARED_CREDENTIALS_FILE",
        "NETRC",
        "KUBECONFIG",
        "PGPASSFILE",
    }
    named = [host.environ[name] for name in sorted(env_files) if host.environ.get(name)]
    usual = [f"{host.home}/{name}" for name in _SECRET_FILES]
    keys = [*_private_keys(host, f"{host.home}/.ssh"), *identity_files(host)]
    return tuple(_secret_file(host, path) for path in dict.fromkeys(usual + keys + named))


def _private_keys(host: Host, folder: str, depth: int = 0) -> Iterator[str]:
    """Files that begin as a private key does, whatever they are called, and those out of reach."""
    try:
        names = host.names(folder)
    except FileNotFoundError:
        return  # no SSH keys
    if len(names) > _MAX_KEYS:
        raise TooMuchError(f"{folder} has more than {_MAX_KEYS} entries")
    for name in names:
        path = host.at(f"{folder}/{name}")
        if path.is_dir():
            if depth == 0:
                yield from _private_keys(host, f"{folder}/{name}", depth + 1)
        elif name.startswith("id_") and not name.endswith(".pub"):
            yield f"{folder}/{name}"  # whatever lies over it
        elif path.is_file() and not name.endswith(".pub"):
            try:
                with path.open("rb") as file:
                    begins = file.read(_KEY_BYTES)
            except OSError:
                continue
            if _PRIVATE_KEY.search(begins):
                yield f"{folder}/{name}"


def _secret_file(host: Host, path: str) -> SecretFile:
    try:
        info = host.at(path).stat()
        filesystem = filesystem_of(host, path)
    except (OSError, TooMuchError, HiddenError) as error:
        outcome, reason = outcome_of(error)
        return SecretFile(outcome=outcome, reason=reason, path=path)
    return SecretFile(
        outcome=Outcome.OK,
        path=path,
        uid=info.st_uid,
        mode=octal(info.st_mode),
        network_filesystem=filesystem in NETWORK_FILESYSTEMS,
        key=_key_form(host, path),
    )


def _key_form(host: Host, path: str) -> KeyForm | None:
    """The form of a private key, by its head (PROTOCOL.key of OpenSSH, RFC 1421, RFC 5958)."""
    try:
        text = host.text(path)
    except (OSError, TooMuchError, HiddenError):
        return None
    if text.startswith("PuTTY-User-Key-File-"):
        return KeyForm.CLEAR if "\nEncryption: none" in text else KeyForm.ENCRYPTED
    begins = _KEY_HEAD.search(text)
    if begins is None:
        return KeyForm.NONE
    if begins[1] == "OPENSSH ":
        return _openssh_form(text[begins.end() :])
    sealed = "ENCRYPTED" in begins[1] or "Proc-Type: 4,ENCRYPTED" in text
    return KeyForm.ENCRYPTED if sealed else KeyForm.CLEAR


def _openssh_form(body: str) -> KeyForm | None:
    """The form of a key of OpenSSH, which has the name of its cipher in front, or ``none``."""
    try:
        head = base64.b64decode("".join(body.split())[:64])
    except ValueError:
        return None
    magic, length = head[: len(_OPENSSH)], head[len(_OPENSSH) : len(_OPENSSH) + 4]
    if magic != _OPENSSH or len(length) < 4:
        return None
    at = len(_OPENSSH) + 4
    cipher = head[at : at + int.from_bytes(length)]
    return KeyForm.CLEAR if cipher == b"none" else KeyForm.ENCRYPTED
