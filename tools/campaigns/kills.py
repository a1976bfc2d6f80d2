# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A saver that is killed, told to end, or runs out of disk at a random moment.

Rules: a checkpoint whose save had returned loads; whatever has a final name verifies; the next save
succeeds, and leaves at most one directory of an interrupted one; a full disk is called that.
"""

import errno
import os
import random
import select
import signal
import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import torch

from securetrain.artifacts import SaveContext, load, save, verify_path
from securetrain.core.errors import SecureTrainError
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot, sign_root
from tools.campaigns import Campaign, Missed

_KEY: Final = PrivateKey.generate()
_NOW: Final = datetime.now(UTC)
_ELEMENTS: Final = 400_000
_SAVES: Final = 40


def _trust() -> TrustRoot:
    roles = {TrustRole.CHECKPOINT: [_KEY.public]}
    return TrustRoot.parse(sign_root(roles, _KEY, _NOW, _NOW + timedelta(days=400)), _NOW)


def _name(number: int) -> str:
    return f"step-{number:08d}"


def _save(folder: Path, number: int) -> None:
    state = {"w": torch.full((_ELEMENTS,), float(number)), "n": number}
    context = SaveContext(run_id="r", step=number, seq=number, created=_NOW)
    save(state, folder / _name(number), key=_KEY, context=context)


def _forked(work: Callable[[int], None]) -> tuple[int, int]:
    """Begin some work in a child; its process, and where it writes to."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reader)
            work(writer)
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    return pid, reader


def _saver(folder: Path, told: int, fault: int | None, begun: int) -> None:
    """Save one checkpoint after the other, and tell of each whose save has returned."""
    if fault is not None:
        _fill_disk_after(fault, told)
    for number in range(begun, begun + _SAVES):
        try:
            _save(folder, number)
        except SecureTrainError as error:
            words = f"{error}".lower()
            is_named = "disk is full" in words or "no space left" in words
            os.write(told, b"E" if is_named else f"?{error}".encode()[:200])
            return
        os.write(told, b".")


def _fill_disk_after(count: int, told: int) -> None:
    """Have the disk full after so many bytes, as the writes of files see it."""
    left = count
    real = os.write

    def write(fd: int, data: Any) -> int:
        nonlocal left
        if fd == told:
            return real(fd, data)
        if left <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = real(fd, memoryview(data)[:left])
        left -= done
        return done

    os.write = write


def case(rng: random.Random, folder: Path) -> str:
    """Interrupt up to three savers, one after the other."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)  # a fork has none of the threads that its parent made
    ways, begun = [], 0
    for _ in range(rng.randrange(1, 4)):
        ways.append(rng.choice(["kill", "kill", "term", "full disk"]))
        said = _interrupted(rng, folder, ways[-1], begun)
        if b"?" in said or (ways[-1] == "full disk" and not said.endswith(b"E")):
            raise Missed(f"a full disk is not called that: {said!r}")
        _check(folder, begun, said.count(b"."))
        begun += _SAVES
    _save_again(folder, begun)
    return ways[0] if len(ways) == 1 else f"{len(ways)} in a row"


def _interrupted(rng: random.Random, folder: Path, how: str, begun: int) -> bytes:
    """Interrupt one saver; what it said until then."""
    size = 4 * _ELEMENTS
    fault = rng.randrange(size // 2, 6 * size) if how == "full disk" else None
    pid, reader = _forked(lambda told: _saver(folder, told, fault, begun))
    said = b""
    if how != "full disk":
        moment = time.monotonic() + rng.uniform(0, 0.4)
        while (left := moment - time.monotonic()) > 0:
            if not select.select([reader], [], [], left)[0]:
                break
            piece = os.read(reader, 500)
            said += piece
            if not piece:
                break
        os.kill(pid, signal.SIGKILL if how == "kill" else signal.SIGTERM)
    while piece := os.read(reader, 500):
        said += piece
    os.waitpid(pid, 0)
    os.close(reader)
    return said


def _check(folder: Path, begun: int, returned: int) -> None:
    """Look at what an interrupted saver left."""
    trust = _trust()
    if returned:
        target: dict[str, Any] = {"w": torch.zeros(_ELEMENTS), "n": -1}
        last = begun + returned - 1
        expected = torch.full((_ELEMENTS,), float(last))
        load(target, folder / _name(last), trust=trust, policy=None, now=_NOW)
        if target["n"] != last or not torch.equal(target["w"], expected):
            raise Missed("a checkpoint whose save had returned holds something else")
    for path in folder.glob("step-*"):
        is_final = len(path.name) == len(_name(0))
        if is_final and not verify_path(path, trust=trust, policy=None, now=_NOW).ok:
            raise Missed(f"{path.name} has its final name and does not verify")


def _save_again(folder: Path, number: int) -> None:
    """The next save succeeds, and tidies up."""
    pid, reader = _forked(lambda _: _save(folder, number))
    os.close(reader)
    if os.waitpid(pid, 0)[1] != 0:
        raise Missed("the next save fails")
    if not verify_path(folder / _name(number), trust=_trust(), policy=None, now=_NOW).ok:
        raise Missed("the next save does not verify")
    left = [path.name for path in folder.iterdir() if ".tmp-" in path.name and path.is_dir()]
    if len(left) > 1:
        raise Missed(f"{len(left)} directories of interrupted saves stay")


CAMPAIGN: Final = Campaign(
    title="savers that are killed, told to end, or out of disk", count=200, case=case
)
