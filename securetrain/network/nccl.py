# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""NCCL's own TLS: which library has it, and giving it the job's key.

From 2.32 on NCCL can run TLS 1.3 with a pre-shared key on every socket of its own: bootstrap, data
and RAS; not on RDMA, NVLink, shared memory or plugins (NCCL user guide, "Setup"). It does so when
it was built with ``TLS_BACKEND=OPENSSL3`` and ``ncclSetEncryption`` was called before all else.

Rules:

1. the libraries that count are those that give this process ``ncclGetUniqueId``: libnccl, or a
   libtorch_cuda with NCCL inside, or RCCL; one of them without TLS is a refusal (ST-NETW-030);
2. a library has TLS when it exports ``ncclSetEncryption``, names the libssl that it loads, which
   can be loaded here, and lacks the sentence that a build without TLS says. The return value proves
   nothing: a build without TLS takes the key and returns success;
3. the key is HKDF-SHA256(epoch secret, "nccl") (RFC 5869), one for all workers of an epoch, in
   base64, because NCCL wants a string. It never stands in an environment or an argument list: a
   worker inherits a file in memory, whose descriptor's number is all that the environment says;
4. a worker that gets no key under ``nccl-tls`` does not make a process group (ST-NETW-031).
"""

import ctypes
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from securetrain.core.errors import NetworkError
from securetrain.network.elf import ElfError, constants
from securetrain.network.wireguard import KEY_SIZE, decode_key, encode_key, require_key

KEY_VARIABLE: Final = "SECURETRAIN_NCCL_KEY"
"""The number of the descriptor from which a worker reads the key."""

LIBSSL: Final = "libssl.so.3"
WITHOUT_TLS: Final = b"NCCL was built without TLS support"
"""The message that ``src/crypt.cc`` logs at the first connection in a build without TLS."""

_NAMES: Final = re.compile(r"(libnccl|librccl|libtorch_cuda|libtorch_hip)[^/]*\.so[^/]*")
_MAGIC: Final = 0xCAFEBEEF
_PSK: Final = 1
"""``NCCL_ENCRYPTION_MODE_PSK``"""
_KEY_TEXT: Final = 44
_DELETED: Final = " (deleted)"
"""The kernel's suffix on the name of a mapped file that is not there any more (proc(5))."""
_MAPS_LIMIT: Final = 32 << 20


class _Config(ctypes.Structure):
    """``ncclEncryptionConfig_t`` (nccl.h, 2.32)."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("mode", ctypes.c_int),
        ("psk", ctypes.c_char_p),
    )


@dataclass(frozen=True, slots=True)
class _Mapping:
    start: int
    end: int
    path: str


def group_key(epoch_secret: bytes) -> str:
    """The key that all workers of an epoch share, as NCCL takes it.

    Raises:
        NetworkError: ST-NETW-017 when the secret is none.
    """
    secret = require_key(epoch_secret, "epoch secret")
    kdf = HKDF(algorithm=hashes.SHA256(), length=KEY_SIZE, salt=None, info=b"nccl")
    return encode_key(kdf.derive(secret))


def loaded(maps: Path = Path("/proc/self/maps")) -> tuple[Path, ...]:
    """The libraries in this process that are NCCL, or have it inside.

    Raises:
        NetworkError: ST-NETW-030 when the process cannot be looked at.
    """
    table = _mappings(maps)
    named = {row.path for row in table if _NAMES.fullmatch(Path(row.path).name)}
    if gone := [path for path in named if path.endswith(_DELETED)]:
        raise _no_tls("the file was removed or replaced since it was loaded", Path(gone[0]))
    owners = {
        owner
        for path in named
        if (address := _symbol(path)) is not None
        for owner in [row.path for row in table if row.start <= address < row.end]
    }
    return tuple(Path(owner) for owner in sorted(owners))


def obstacle(libraries: tuple[Path, ...]) -> str:
    """Explain why NCCL cannot encrypt in this process; empty when it can."""
    if not libraries:
        return "this torch has no NCCL"
    problems = [f"{path}: {problem}" for path in libraries if (problem := tls_problem(path))]
    return "; ".join(problems)


def tls_problem(library: Path) -> str:
    """Explain why a loaded library cannot encrypt; empty when it can (rule 2)."""
    if not hasattr(_open(library), "ncclSetEncryption"):
        return "this NCCL has no TLS: it is older than 2.32"
    try:
        data = constants(library)
    except (ElfError, OSError) as error:
        return f"whether it has TLS cannot be told: {error}"
    if WITHOUT_TLS in data or LIBSSL.encode() not in data:
        return "this NCCL was built without TLS (TLS_BACKEND=OPENSSL3)"
    try:
        ctypes.CDLL(LIBSSL)
    except OSError as error:
        return f"its TLS needs OpenSSL 3: {error}"
    return ""


def set_encryption_key(library: Path, key: str) -> None:
    """Have a library of this process encrypt its sockets with a key.

    Raises:
        NetworkError: ST-NETW-030 when it has no TLS or does not take the key.
    """
    if problem := tls_problem(library):
        raise _no_tls(problem, library)
    nccl = _open(library)
    version = ctypes.c_int()
    nccl.ncclGetVersion(ctypes.byref(version))
    config = _Config(ctypes.sizeof(_Config), _MAGIC, version.value, _PSK, key.encode())
    if code := nccl.ncclSetEncryption(ctypes.byref(config)):
        raise _no_tls(f"ncclSetEncryption returned {code}", library)


def read_inherited_key(environ: Mapping[str, str]) -> str:
    """Read the key that this worker inherited, and close the descriptor.

    Raises:
        NetworkError: ST-NETW-031 when there is none.
    """
    try:
        descriptor = int(environ[KEY_VARIABLE])
        data = os.read(descriptor, _KEY_TEXT + 1)
        os.close(descriptor)
        key = data.decode("ascii")
        decode_key(key)
    except (KeyError, ValueError, OSError, NetworkError) as error:
        raise no_key(f"{type(error).__name__} at descriptor {KEY_VARIABLE}") from error
    return key


def no_key(why: str) -> NetworkError:
    """The refusal of a worker without a key."""
    return NetworkError("ST-NETW-031", f"NCCL has no key in this process: {why}", "nccl-tls")


def no_nccl() -> NetworkError:
    """The refusal of a worker that has no NCCL to encrypt with."""
    return _no_tls("no NCCL is loaded", Path("this worker"))


def _no_tls(what: str, where: Path) -> NetworkError:
    return NetworkError("ST-NETW-030", what, str(where))


def _open(library: Path | str) -> ctypes.CDLL:
    """A handle of a library that is loaded already."""
    return ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD | os.RTLD_NOW)


def _symbol(path: str) -> int | None:
    """The path of the NCCL that a loaded library uses; None when it uses none."""
    try:
        found = _open(path).ncclGetUniqueId
    except (OSError, AttributeError):
        return None  # mapped as data, or without NCCL
    return ctypes.cast(found, ctypes.c_void_p).value


def _mappings(maps: Path) -> list[_Mapping]:
    try:
        with maps.open("rb") as file:
            text = file.read(_MAPS_LIMIT + 1)
    except OSError as error:
        raise _no_tls(f"cannot tell which NCCL is loaded: {error.strerror}", maps) from error
    if len(text) > _MAPS_LIMIT:
        raise _no_tls("cannot tell which NCCL is loaded: too many mappings", maps)
    rows = []
    for line in text.decode("utf-8", "surrogateescape").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6:  # the others have no name
            start, _, end = fields[0].partition("-")
            rows.append(_Mapping(int(start, 16), int(end, 16), fields[5]))
    return rows
