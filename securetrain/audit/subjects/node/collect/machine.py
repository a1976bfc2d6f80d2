# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts that only a comparison of nodes judges: marks of the machine, and what MASTER_ADDR means.

No name service is asked: a name that /etc/hosts does not have is not known.
"""

import base64
import errno
import hashlib
import ipaddress
import re
import socket
from contextlib import suppress
from typing import Final

from securetrain.audit.subjects.node.collect.host import HiddenError, Host, reading
from securetrain.audit.subjects.node.collect.rtnetlink import parse_links
from securetrain.audit.subjects.node.facts.machine import (
    HardwareAddress,
    HostKey,
    Machine,
    Rendezvous,
)

_MACHINE_ID: Final = re.compile(r"[0-9a-f]{32}\Z")
_HOST_KEY: Final = re.compile(r"ssh_host_\w+_key\.pub\Z")
_SSH: Final = "/etc/ssh"
_VARIABLES: Final = ("PET_MASTER_ADDR", "MASTER_ADDR")


def machine(host: Host) -> Machine:
    """The marks of this machine."""
    return Machine(
        machine_id=reading(lambda: _machine_id(host)),
        host_keys=reading(lambda: _host_keys(host)),
        addresses=reading(lambda: _addresses(host)),
        boot_id=reading(lambda: boot_id(host)),
    )


def boot_id(host: Host) -> str:
    """The number of this boot.

    Raises:
        HiddenError: when the kernel does not say, as every Linux does.
    """
    try:
        return host.text("/proc/sys/kernel/random/boot_id", 64).strip()
    except FileNotFoundError as error:
        raise HiddenError("the kernel's boot_id does not show") from error


def _machine_id(host: Host) -> str:
    text = host.text("/etc/machine-id", 4096).strip()
    if not _MACHINE_ID.match(text):
        raise ValueError("/etc/machine-id is not set")
    return hashlib.sha256(f"securetrain machine {text}".encode()).hexdigest()[:32]


def _host_keys(host: Host) -> tuple[HostKey, ...]:
    found = set()
    for name in host.names(_SSH):
        if _HOST_KEY.match(name):
            words = host.text(f"{_SSH}/{name}", 16384).split()
            if len(words) < 2:
                raise ValueError(f"{_SSH}/{name} is no public key")
            blob = base64.b64decode(words[1], validate=True)
            found.add(base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("="))
    return tuple(HostKey(fingerprint=one) for one in sorted(found))


def _addresses(host: Host) -> tuple[HardwareAddress, ...]:
    """Of hardware: what has no kind, and an address that was not made up for it."""
    links = parse_links(host.kernel.links())
    cards = (one.address for one in links if not one.kind and not one.loopback)
    return tuple(HardwareAddress(address=one) for one in sorted({one for one in cards if one}))


def rendezvous(host: Host) -> Rendezvous:
    """The place that ranks of a plain launcher would look for."""
    return Rendezvous(
        master=reading(lambda: _master(host)), addresses=reading(lambda: _meaning(host))
    )


def _master(host: Host) -> str:
    for name in _VARIABLES:
        if host.environ.get(name):
            return host.environ[name]
    raise FileNotFoundError(errno.ENOENT, "not set", _VARIABLES[-1])


def _meaning(host: Host) -> str:
    name = _master(host)
    found = set()
    with suppress(ValueError):
        found.add(ipaddress.ip_address(name))
    for line in host.text("/etc/hosts").splitlines() if not found else ():
        address, *names = line.partition("#")[0].split() or [""]
        if name.lower() in (one.lower() for one in names):
            found.add(ipaddress.ip_address(address.partition("%")[0]))
    if not found:
        raise ValueError(f"{name} is left to the name service")
    own = socket.gethostname()
    texts = (f"{one} of {own}" if one.is_loopback else str(one) for one in found)
    return " ".join(sorted(texts))
