# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""`securetrain verify` against reading the bytes, and against `model_signing verify`.

The reference implementation of OpenSSF Model Signing is installed into an environment of its own;
where that cannot be done, its comparison is left out and says so. Both commands are whole
processes, so that starting up counts.
"""

import hashlib
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Final

from blake3 import blake3
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from benchmarks.ab import Benchmark, Figure, Goal, Side
from securetrain.artifacts.dataset.sign import About, sign_in_place
from securetrain.artifacts.model.oms.model import KeySigner, sign_model
from securetrain.artifacts.verify import verify_path
from securetrain.core.hashtree import TreeParams
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot, sign_root

MEGABYTES: Final = 512
LARGE: Final = 2048
"""So that starting up, which costs the reference more, does not decide."""
_FILES: Final = 4
_REFERENCE: Final = ("model-signing==1.1.1", "pyOpenSSL")
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a benchmark's own directory below it


@contextmanager
def _signed(megabytes: int = MEGABYTES) -> Iterator[tuple[Path, Path, TrustRoot, datetime]]:
    """A signed directory, its trust root's file, the root and the time."""
    base = _MEMORY if _MEMORY.is_dir() else None
    name = Path(tempfile.mkdtemp(prefix="verify-", dir=base))
    try:
        folder = name / "data"
        folder.mkdir()
        for number in range(_FILES):
            (folder / f"{number}.bin").write_bytes(os.urandom((megabytes << 20) // _FILES))
        key, now = PrivateKey.generate(), datetime.now(UTC)
        signed = sign_root({TrustRole.DATASET: [key.public]}, key, now, now + timedelta(days=1))
        (name / "trust.json").write_bytes(signed)
        sign_in_place(folder, About(name="bench"), key=key, now=now, params=TreeParams())
        yield folder, name / "trust.json", TrustRoot.parse(signed, now), now
    finally:
        shutil.rmtree(name)


def _read_all(folder: Path) -> None:
    buffer = memoryview(bytearray(1 << 20))
    for path in folder.glob("*.bin"):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


@dataclass(frozen=True, slots=True)
class AgainstReading:
    """Seconds for verifying, on all cores, against one thread that only reads."""

    name: str = f"verify-{MEGABYTES}MB-read"
    title: str = "verifying every byte against reading every byte"
    pairs: int = 7

    @property
    def goal(self) -> Goal:
        """Not more than twice a plain read."""
        return Goal(ratio=2.0)

    def run(self, order: Sequence[Side]) -> list[float]:
        """Verify or read once for each entry."""
        seconds = []
        with _signed() as (folder, _, trust, now):
            for side in order:
                started = time.perf_counter()
                if side is Side.PLAIN:
                    _read_all(folder)
                elif not verify_path(folder, trust=trust, policy=None, now=now).ok:
                    raise RuntimeError("what was signed does not verify")
                seconds.append(time.perf_counter() - started)
        return seconds


@dataclass(frozen=True, slots=True)
class AgainstReference:
    """Seconds of the whole command against `model_signing verify` of the same files."""

    name: str = f"verify-{LARGE}MB-reference"
    title: str = "securetrain verify against model_signing verify"
    pairs: int = 3

    @property
    def goal(self) -> Goal:
        """Seven times as fast."""
        return Goal(ratio=1 / 7)

    def run(self, order: Sequence[Side]) -> list[float]:
        """Run one command or the other for each entry."""
        seconds = []
        with _commands() as commands:
            for side in order:
                started = time.perf_counter()
                subprocess.run(commands[side], check=True, stdout=subprocess.DEVNULL)
                seconds.append(time.perf_counter() - started)
        return seconds


@contextmanager
def _commands() -> Iterator[dict[Side, list[str]]]:
    """Both commands, over the same files."""
    with tempfile.TemporaryDirectory() as tools, _signed(LARGE) as (folder, trust, _, _now):
        reference = _install(Path(tools))
        key = ec.generate_private_key(ec.SECP256R1())
        public, bundle = folder.parent / "public.pem", folder.parent / "model.sig"
        public.write_bytes(
            key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )
        sign_model(folder, bundle, KeySigner(key=key))
        ours = Path(sys.executable).parent / "securetrain"
        theirs = f"{reference} verify key --signature {bundle} --public_key {public} {folder}"
        yield {
            Side.PLAIN: theirs.split(),
            Side.OURS: f"{ours} verify {folder} --trust {trust}".split(),
        }


def per_core(times: int = 5) -> Figure:
    """Gigabytes for a second of one core: both commands, and what they cannot do without.

    The reference hashes with SHA-256. Where the processor has instructions for that, reading every
    byte once and hashing it with BLAKE3, and nothing else at all, is not seven times as fast.
    """
    used: dict[Side, list[float]] = {side: [] for side in Side}
    with _commands() as commands:
        for _ in range(times):
            for side, command in commands.items():
                before = _children()
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                used[side].append(_children() - before)
        folder = Path(commands[Side.PLAIN][-1])
        read = min(_seconds(lambda: _read_all(folder)) for _ in range(times))
    size = (LARGE << 20) / 1e9
    block = os.urandom(1 << 20)
    speeds = {
        "securetrain verify": size / median(used[Side.OURS]),
        "model_signing verify": size / median(used[Side.PLAIN]),
        "read alone": size / read,
        "BLAKE3 alone": _speed(lambda: blake3(block).digest(), len(block)),
        "SHA-256 alone": _speed(lambda: hashlib.sha256(block).digest(), len(block)),
    }
    ratio = speeds["securetrain verify"] / speeds["model_signing verify"]
    bare = 1 / (1 / speeds["read alone"] + 1 / speeds["BLAKE3 alone"])
    bound = bare / speeds["model_signing verify"]
    return Figure(
        name="verify-per-core",
        title=f"verifying {LARGE} MB, for a second of one core, and the hashes and the read alone",
        values={
            "times the reference": ratio,
            "times the reference that reading and BLAKE3 alone would be": bound,
            **{f"GB/s of {name}": speed for name, speed in speeds.items()},
        },
        goal=">= 7 times the reference",
        goal_met=ratio >= 7,
    )


def _children() -> float:
    """Processor seconds of all processes that have ended."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def _seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def _speed(work: Callable[[], object], size: int) -> float:
    """Gigabytes a second of a function that takes in `size` bytes."""
    rounds = [_seconds(lambda: [work() for _ in range(200)]) for _ in range(5)]
    return 200 * size / 1e9 / min(rounds)


def _install(folder: Path) -> Path:
    """The reference implementation's command.

    Raises:
        RuntimeError: it cannot be installed here.
    """
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", *_REFERENCE]
    done = subprocess.run(pip, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the reference cannot be installed: {done.stderr[-300:]}")
    return folder / "bin" / "model_signing"


BENCHMARKS: Final[tuple[Benchmark, ...]] = (AgainstReading(), AgainstReference())
FIGURES: Final[dict[str, Callable[[], Figure | None]]] = {"verify-per-core": per_core}
