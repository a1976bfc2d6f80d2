# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Keys of ours, and other runs, that lie in a folder that workers are shown.

A working directory often holds earlier runs, the node's identity or a cluster's CA. Keys are found
by their names and first bytes, runs by their trust root. The search is bounded, so that a folder of
a million images costs nothing: what lies deeper than `DEPTH` or behind `ENTRIES` others is not
found, and stays protected by its mode alone, unless it belongs to the folder's owner.
"""

import os
from collections import deque
from collections.abc import Collection, Iterator
from typing import Final

from securetrain.launch.setup import KEYS, LOG_KEY, NODE_KEY, OWN_KEYS

DEPTH: Final = 4
ENTRIES: Final = 20000
_KEYS: Final = frozenset(
    f"{name}.pem" for name in (*KEYS, *OWN_KEYS, NODE_KEY, LOG_KEY, "ca", "rank", "witness")
)
_RUN: Final = "trust.json"
_HEAD: Final = 256


def secrets_below(folder: str, apart: Collection[str] = ()) -> tuple[list[str], list[str]]:
    """The private keys and the run directories in a folder.

    Args:
        folder: Where to look.
        apart: Folders that are not looked into: the interpreter, this run.
    """
    keys: list[str] = []
    runs: list[str] = []
    for entry in _walk(folder, apart):
        if entry.name in _KEYS and _is_private_key(entry):
            keys.append(entry.path)
        elif entry.name == _RUN and os.path.isdir(
            os.path.join(os.path.dirname(entry.path), "keys")
        ):
            runs.append(os.path.dirname(entry.path))
    return keys, runs


def _walk(folder: str, apart: Collection[str]) -> Iterator["os.DirEntry[str]"]:
    waiting = deque([(folder, 0)])
    seen = 0
    while waiting:
        at, depth = waiting.popleft()
        try:
            entries = list(os.scandir(at))
        except OSError:
            continue
        for entry in entries:
            if seen >= ENTRIES:
                return
            seen += 1
            if entry.is_file(follow_symlinks=False):
                yield entry
            elif (
                depth < DEPTH
                and entry.is_dir(follow_symlinks=False)
                and entry.name != ".git"
                and entry.path not in apart
            ):
                waiting.append((entry.path, depth + 1))


def _is_private_key(entry: "os.DirEntry[str]") -> bool:
    try:
        with open(entry.path, "rb") as file:
            return b"PRIVATE KEY-----" in file.read(_HEAD)
    except OSError:
        return False
