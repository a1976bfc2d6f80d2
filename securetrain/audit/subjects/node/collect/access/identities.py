# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about keys of nodes and of authorities: their files and dates, never the keys.

Looked at are /etc/securetrain with two levels of folders, and the folder that PET_RDZV_CONF names.
A folder with ``node.pem`` is a node's identity; one with ``ca.pem`` is an authority's.
"""

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from securetrain.audit.facts import Reading
from securetrain.audit.subjects.node.collect.host import Host, TooMuchError, reading
from securetrain.audit.subjects.node.collect.system import octal
from securetrain.audit.subjects.node.facts.access import Certificate, Identity, KeyFile

if TYPE_CHECKING:
    from cryptography import x509

_ROOT: Final = "/etc/securetrain"
_NAMED: Final = re.compile(r"(?:^|,)\s*identity=([^,]+)")
_DEPTH: Final = 2
_MAX_FOLDERS: Final = 256
_FILES: Final[dict[Literal["node", "authority"], tuple[str, str]]] = {
    "node": ("node.pem", "node.crt"),
    "authority": ("ca.pem", "ca.crt"),
}

T = TypeVar("T")


def identities(host: Host) -> tuple[Identity, ...]:
    """Every identity and authority on this machine."""
    host.names("/etc")  # without it nothing below says anything
    folders = dict.fromkeys(_folders(host))
    if len(folders) > _MAX_FOLDERS:
        raise TooMuchError(f"more than {_MAX_FOLDERS} folders below {_ROOT}")
    return tuple(
        _identity(host, folder, role)
        for folder in folders
        for role, files in _FILES.items()
        if any(_is_there(host, f"{folder}/{name}") for name in files) and _is(host, folder, role)
    )


def _is(host: Host, folder: str, role: str) -> bool:
    """Return whether it is of this role: an authority's certificate alone is a node's anchor."""
    if role == "node":
        return True
    return _is_there(host, f"{folder}/ca.pem")


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


def _is_there(host: Host, path: str) -> bool:
    try:
        host.at(path).lstat()
    except FileNotFoundError:
        return False
    return True


def _identity(host: Host, folder: str, role: Literal["node", "authority"]) -> Identity:
    key, certificate = _FILES[role]
    own = _loaded(host, f"{folder}/{certificate}")
    anchor = _loaded(host, f"{folder}/ca.crt") if role == "node" else own
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


def _loaded(host: Host, path: str) -> "Reading[x509.Certificate]":
    return reading(lambda: _parsed(host.text(path)))


def _parsed(text: str) -> "x509.Certificate":
    from cryptography import x509  # noqa: PLC0415 - dear, and most machines have none

    return x509.load_pem_x509_certificate(text.encode())


def _facts(loaded: "Reading[x509.Certificate]") -> Reading[Certificate]:
    return _mapped(loaded, _certificate)


def _mapped(loaded: "Reading[x509.Certificate]", work: Callable[..., T]) -> Reading[T]:
    if loaded.value is None:
        return Reading(outcome=loaded.outcome, reason=loaded.reason)
    return reading(lambda: work(loaded.value))


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
