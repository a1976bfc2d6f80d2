# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Carries bytes to a TPM and back: ``/dev/tpmrm0``, ``unix:PATH`` or ``tcp:HOST:PORT``.

The device is Linux's resource manager, which gives every process its own view of the TPM; ``unix:``
and ``tcp:`` are data sockets of swtpm, which speaks plain TPM commands and responses there.

Rules:

1. every exchange has a deadline. One that fails, times out or is interrupted closes the channel: a
   late response must never be taken for the next command's;
2. a response is as long as its header says, and at most `RESPONSE_LIMIT`; not a byte more is
   accepted, and nothing is allocated from a length that a TPM claims;
3. ``tcp:`` is for this machine only. Nothing on that wire is authenticated.

Bytes are carried as they are. Somebody on the bus between the CPU and a discrete TPM reads them: a
secret crosses it in a protected session only (see `protected`).
"""

import errno
import ipaddress
import os
import select
import socket
import stat
import time
from pathlib import Path
from typing import Final, Protocol

from securetrain.core.errors import AttestationError, UsageError

DEFAULT_DEVICE: Final = "/dev/tpmrm0"
RESPONSE_LIMIT: Final = 8 << 10
HEADER: Final = 10
"""Bytes of tag, size and response code."""

_ABSENT: Final = (
    "switch the TPM on in the firmware's setup (fTPM, PTT, TPM 2.0), check that 'dmesg | grep -i"
    " tpm' shows it, and pass the device into containers"
)
_PERMISSION: Final = (
    "let this user into the group that owns the device: 'usermod -aG tss USER', then log in anew"
)
_BUSY: Final = f"another program holds it; use the resource manager, {DEFAULT_DEVICE}"
_NO_SOFTWARE_TPM: Final = "start swtpm, or name its data socket (not its control socket)"


class Channel(Protocol):
    """An open way to one TPM."""

    where: str
    """Names the TPM in errors."""
    managed: bool
    """Whether a resource manager stands between: closing flushes what was loaded."""

    def exchange(self, command: bytes, timeout: float) -> bytes:
        """Send one command; returns its response, as long as its header says."""

    def close(self) -> None:
        """Close the channel; a second time does nothing."""


class Stream:
    """A channel over a descriptor."""

    def __init__(self, fd: int, where: str, *, managed: bool) -> None:
        """Take over a non-blocking descriptor.

        Args:
            fd: closed by `close`.
            where: names the TPM in errors.
            managed: whether a resource manager stands between.
        """
        self._fd = fd
        self.where = where
        self.managed = managed

    def exchange(self, command: bytes, timeout: float) -> bytes:
        """Send one command; returns its response, as long as its header says.

        Raises:
            AttestationError: ST-ATTS-151 no answer in time or a broken connection, ST-ATTS-152 a
                response that is longer or shorter than it says, or over the limit.
        """
        if self._fd < 0:
            raise self._silent("the connection to the TPM was closed after an earlier failure")
        deadline = time.monotonic() + timeout
        try:
            self._send(command, deadline)
            return self._receive(deadline)
        except OSError as error:
            self.close()
            raise self._silent(f"the TPM cannot be talked to: {error.strerror}") from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the channel; a second time does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _send(self, command: bytes, deadline: float) -> None:
        # A device takes a command in one write; a socket may take it in pieces.
        while command:
            self._wait(select.POLLOUT, deadline)
            command = command[os.write(self._fd, command) :]

    def _receive(self, deadline: float) -> bytes:
        response, size = b"", HEADER
        while len(response) < size:
            self._wait(select.POLLIN, deadline)
            piece = os.read(self._fd, RESPONSE_LIMIT + 1 - len(response))
            if not piece:
                raise self._silent(f"the TPM closed the connection after {len(response)} bytes")
            response += piece
            if len(response) >= HEADER:
                size = int.from_bytes(response[2:6], "big")
                self._check_size(size, len(response))
        return response

    def _check_size(self, size: int, received: int) -> None:
        if not HEADER <= size <= RESPONSE_LIMIT:
            raise self._malformed(f"a response of {size} bytes ({HEADER} to {RESPONSE_LIMIT})")
        if received > size:
            raise self._malformed(f"{received} bytes in a response that says it has {size}")

    def _wait(self, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(self._fd, event)
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            raise self._silent("the TPM did not answer in time")

    def _silent(self, what: str) -> AttestationError:
        fix = "run it again; when it stays, see 'dmesg | grep -i tpm', and power-cycle the machine"
        return AttestationError("ST-ATTS-151", what, self.where, fix)

    def _malformed(self, what: str) -> AttestationError:
        return AttestationError("ST-ATTS-152", what, self.where)


def connect(address: str, timeout: float) -> Channel:
    """Open a TPM.

    Args:
        address: an absolute path of a device, ``unix:PATH`` or ``tcp:HOST:PORT``.
        timeout: seconds for connecting to a socket.

    Raises:
        AttestationError: ST-ATTS-150 when there is no TPM, or it may not be used.
        UsageError: ST-USAG-001 when the address is none of these, or of another machine.
    """
    kind, _, rest = address.partition(":")
    try:
        if kind == "unix":
            fd = _connect(socket.AF_UNIX, rest, timeout)
        elif kind == "tcp":
            family, target = _loopback(rest, address)
            fd = _connect(family, target, timeout)
        elif Path(address).is_absolute():
            return Stream(_open_device(address), address, managed=True)
        else:
            raise _bad_address("not an address of a TPM", address)
    except OSError as error:
        raise _unreachable(error, address) from error
    return Stream(fd, address, managed=False)


def _open_device(path: str) -> int:
    # Not blocking: the kernel then works in the background, and waiting for it can time out.
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    if not stat.S_ISCHR(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.ENODEV, "not a device")
    return fd


def _connect(family: int, target: str | tuple[str, int], timeout: float) -> int:
    with socket.socket(family, socket.SOCK_STREAM) as stream:
        stream.settimeout(timeout)
        stream.connect(target)
        if family != socket.AF_UNIX:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.setblocking(False)
        return stream.detach()


def _loopback(target: str, address: str) -> tuple[int, tuple[str, int]]:
    """Family and target of ``HOST:PORT``, a numeric address of this machine."""
    host, _, port = target.rpartition(":")
    try:
        ip = ipaddress.ip_address(host.strip("[]"))
    except ValueError as error:
        raise _bad_address("not HOST:PORT with a numeric host", address) from error
    if not ip.is_loopback:
        raise _bad_address("a TPM over TCP must be on this machine", address)
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise _bad_address("not a port", address)
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    return family, (str(ip), int(port))


def _bad_address(what: str, address: str) -> UsageError:
    fix = f"give {DEFAULT_DEVICE}, unix:PATH or tcp:127.0.0.1:PORT"
    return UsageError("ST-USAG-001", what, address, fix)


def _unreachable(error: OSError, address: str) -> AttestationError:
    """The one error for a TPM that cannot be opened: which, why, and what to do."""
    what, fix = f"the TPM cannot be opened: {error.strerror or error}", _ABSENT
    if error.errno in {errno.EACCES, errno.EPERM}:
        fix = _PERMISSION
    elif error.errno == errno.EBUSY:
        fix = _BUSY
    elif not address.startswith("/"):
        fix = _NO_SOFTWARE_TPM
    elif error.errno in {errno.ENOENT, errno.ENODEV, errno.ENXIO}:
        what = f"there is no TPM: {error.strerror or error}"
    return AttestationError("ST-ATTS-150", what, address, fix)
