# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about the Gloo that is built into the torch that the job would import.

Rules:

1. only a job that asks for TLS is looked at: the library has hundreds of megabytes;
2. nothing is imported or executed: the name of Gloo's TLS transport is looked for in the file;
3. a file in which Gloo's plain TCP transport has no name either was stripped of its names, and says
   nothing about TLS.
"""

import errno
import mmap
import os
import stat
from pathlib import Path
from typing import Final

from securetrain.audit.subjects.node.collect.host import HiddenError, Host, TooMuchError, reading
from securetrain.audit.subjects.node.facts.gloo import Gloo

VARIABLE: Final = "GLOO_DEVICE_TRANSPORT"
WANTED: Final = "TCP_TLS"
"""The name under which torch registers it; it compares letter for letter."""
LIBRARY: Final = "torch/lib/libtorch_cpu.so"
LIBRARY_LIMIT: Final = 4 << 30
_PLAIN: Final = b"gloo9transport3tcp"
_TLS: Final = b"gloo9transport3tcp3tls"
"""Both as the C++ ABI spells the namespaces in the names of symbols."""


def gloo(host: Host) -> Gloo:
    """Gloo's ability to do the TLS that a job asks for."""
    return Gloo(tls=reading(lambda: _has_tls(host)))


def _has_tls(host: Host) -> bool:
    if host.environ.get(VARIABLE) != WANTED:
        raise FileNotFoundError(errno.ENOENT, "not asked for", f"{VARIABLE}={WANTED}")
    for entry in host.search_path:
        file = Path(entry or ".") / LIBRARY
        if file.parent.parent.is_dir():
            return _names_tls(file)
    raise HiddenError(f"no {LIBRARY} on the module search path")


def _names_tls(file: Path) -> bool:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError as error:  # torch without it: nothing is known of its Gloo
        raise HiddenError(f"torch is there, and {file} is not") from error
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode) or not info.st_size:
            raise HiddenError(f"not a library: {file}")
        if info.st_size > LIBRARY_LIMIT:
            raise TooMuchError(f"{file} is larger than {LIBRARY_LIMIT} bytes")
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as data:
            if data.find(_PLAIN) < 0:
                raise HiddenError(f"{file} has no names of Gloo's transports")
            return data.find(_TLS) >= 0
    finally:
        os.close(descriptor)
