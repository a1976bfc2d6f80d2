# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The helper process of an asynchronous save: writes and hashes one file, away from the trainer.

::

    python -P -m securetrain.artifacts.checkpoint.helper

The request comes on standard input, the answer goes to standard output.

It gets the bytes in a memory file that it inherits and their place by JSON; it has no key, opens no
socket, unpickles nothing and does not import torch. What it answers is what a rank reports of its
own file in any case.
"""

import base64
import mmap
import sys
from pathlib import Path

import msgspec

from securetrain.artifacts.tree.storage import LocalStaging
from securetrain.core import canonical
from securetrain.core.errors import SecureTrainError
from securetrain.core.hashtree import HashAlgorithm, TreeParams

LIMIT = 64 << 10
ANSWER_LIMIT = 1 << 30
STRETCH = 8 << 20


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The data to write."""

    fd: int
    size: int
    folder: str
    name: str
    durable: bool
    algorithm: HashAlgorithm
    leaf_size: int


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The record of what was written."""

    leaves: str = ""
    """The leaf table in base64."""
    error: str = ""
    errno: int = 0
    """What the system said; 0 when the error is another one."""


def write(request: Request) -> Answer:
    """Write the file and hash it on the way.

    Raises:
        OSError: the file cannot be written.
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - not for who only asks

    from securetrain.core.hashtree import TreeWriter  # noqa: PLC0415

    staging = LocalStaging(Path(request.folder), Path(request.folder), request.durable)
    tree = TreeWriter(TreeParams(algorithm=request.algorithm, leaf_size=request.leaf_size))
    with (
        ThreadPoolExecutor(1) as pool,
        mmap.mmap(request.fd, request.size, access=mmap.ACCESS_READ) as memory,
        memoryview(memory) as view,
        staging.create(request.name) as sink,
    ):
        for start in range(0, request.size, STRETCH):
            with view[start : start + STRETCH] as piece:
                hashing = pool.submit(tree.update, piece)
                try:
                    sink.write(piece)
                finally:
                    # What is still being hashed cannot be unmapped, and would hide the error.
                    hashing.result()
    return Answer(leaves=base64.b64encode(tree.finish().leaves).decode())


def main() -> int:
    """Serve one request."""
    try:
        request = canonical.decode(sys.stdin.buffer.read(LIMIT + 1), Request, limit=LIMIT)
        answer = write(request)
    except (OSError, ValueError, SecureTrainError) as error:
        answer = Answer(
            error=f"{type(error).__name__}: {error}"[:2000], errno=getattr(error, "errno", 0) or 0
        )
    sys.stdout.buffer.write(canonical.encode(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
