# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about a user's settings and keys: the environment, credentials, identities of nodes.

Rules:

1. values are recorded for the fabric's, torch's and the loader's variables only. A variable that
   looks like a secret, by its name or by a password in its value, is recorded by name;
2. of keys of nodes and of authorities, files and dates are recorded, never the keys. Looked at are
   /etc/securetrain with two levels of folders, and the folder that PET_RDZV_CONF names. A folder
   with ``node.pem`` is a node's identity; one with ``ca.pem`` is an authority's.
"""

import base64
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, Literal

from securetrain.audit.facts import Reading
from securetrain.audit.parser.secrets import may_be_secret
from securetrain.audit.subjects.node.collect.host import (
    Host,
    TooMuchError,
    at_most,
    known,
    observed,
    reading,
)
from securetrain.audit.subjects.node.collect.ssh import identity_files
from securetrain.audit.subjects.node.collect.system import NETWORK_FILESYSTEMS, filesystem_of, octal
from securetrain.audit.subjects.node.facts.access import Certificate, Identity, KeyFile
from securetrain.audit.subjects.node.facts.node import EnvKind, EnvVariable, KeyForm, SecretFile
from securetrain.network import variables

if TYPE_CHECKING:
    from cryptography import x509


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
    return tuple(at_most(1000, found, "variables"))


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
    for name in at_most(_MAX_KEYS, names, f"entries in {folder}"):
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
    def what_shows() -> dict[str, Any]:
        info = host.at(path).stat()
        return {
            "uid": info.st_uid,
            "mode": octal(info.st_mode),
            "network_filesystem": filesystem_of(host, path) in NETWORK_FILESYSTEMS,
            "key": _key_form(host, path),
        }

    return observed(SecretFile, what_shows, path=path)


def _key_form(host: Host, path: str) -> KeyForm | None:
    """The form of a private key, by its head (PROTOCOL.key of OpenSSH, RFC 1421, RFC 5958)."""
    text = known(lambda: host.text(path))
    if text is None:
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


_ROOT: Final = "/etc/securetrain"
_NAMED: Final = re.compile(r"(?:^|,)\s*identity=([^,]+)")
_DEPTH: Final = 2
_MAX_FOLDERS: Final = 256
_FILES: Final[dict[Literal["node", "authority"], tuple[str, str]]] = {
    "node": ("node.pem", "node.crt"),
    "authority": ("ca.pem", "ca.crt"),
}


def identities(host: Host) -> tuple[Identity, ...]:
    """Every identity and authority on this machine."""
    host.names("/etc")  # without it nothing below says anything
    folders = at_most(_MAX_FOLDERS, dict.fromkeys(_folders(host)), f"folders below {_ROOT}")
    return tuple(
        _identity(host, folder, role)
        for folder in folders
        for role, files in _FILES.items()
        # an authority's certificate alone is a node's anchor
        if any(host.is_there(f"{folder}/{name}") for name in files[: 2 if role == "node" else 1])
    )


def _folders(host: Host, folder: str = _ROOT, depth: int = 0) -> Iterator[str]:
    if depth == 0:
        if found := _NAMED.search(host.environ.get("PET_RDZV_CONF", "")):
            yield found[1].rstrip("/")
        try:
            host.at(folder).stat()
        except FileNotFoundError:
            host.refuse_hidden(f"{folder}/x")
            return
    yield folder
    if depth < _DEPTH:
        for name in host.names(folder):
            if host.at(f"{folder}/{name}").is_dir():
                yield from _folders(host, f"{folder}/{name}", depth + 1)


def _identity(host: Host, folder: str, role: Literal["node", "authority"]) -> Identity:
    key, certificate = _FILES[role]
    own = reading(lambda: _parsed(host.text(f"{folder}/{certificate}")))
    anchor = own
    if role == "node":
        anchor = reading(lambda: _parsed(host.text(f"{folder}/ca.crt")))
    return Identity(
        path=folder,
        role=role,
        key=reading(lambda: _key(host, f"{folder}/{key}")),
        certificate=_facts(own),
        anchor=_facts(anchor),
        fits=_fits(own, anchor),
    )


def _key(host: Host, path: str) -> KeyFile:
    info = host.at(path).stat()
    return KeyFile(uid=host.owner(info), mode=octal(info.st_mode))


def _parsed(text: str) -> "x509.Certificate":
    from cryptography import x509  # noqa: PLC0415 - dear, and most machines have none

    return x509.load_pem_x509_certificate(text.encode())


def _facts(loaded: "Reading[x509.Certificate]") -> Reading[Certificate]:
    certificate = loaded.value
    if certificate is None:
        return Reading(outcome=loaded.outcome, reason=loaded.reason)
    return reading(lambda: _certificate(certificate))


def _certificate(certificate: "x509.Certificate") -> Certificate:
    hashed = certificate.signature_hash_algorithm
    key = certificate.public_key()
    name = type(key).__name__.strip("_").removesuffix("PublicKey").lower()
    size = getattr(key, "key_size", None)
    return Certificate(
        begins=certificate.not_valid_before_utc,
        ends=certificate.not_valid_after_utc,
        key=f"{name}-{size}" if size else name,
        digest=hashed.name if hashed else "",
    )


def _fits(own: "Reading[x509.Certificate]", anchor: "Reading[x509.Certificate]") -> bool | None:
    if own.value is None or anchor.value is None:
        return None
    if own is anchor:
        return True
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - as above

    try:
        own.value.verify_directly_issued_by(anchor.value)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True
