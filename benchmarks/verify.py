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
from securetrain.artifacts.model.oms import sign_model
from securetrain.artifacts.model.safetensors_folder import sign_safetensors
from securetrain.artifacts.model.signers import KeySigner
from securetrain.artifacts.statement.context import SaveContext
from securetrain.artifacts.statement.reading import read_digested
from securetrain.artifacts.tree import index as index_file
from securetrain.artifacts.tree.layout import Kind
from securetrain.artifacts.tree.pool import cores
from securetrain.artifacts.tree.safetensors_header import encode_header
from securetrain.artifacts.tree.storage import LocalStorage
from securetrain.artifacts.verify import verify_path
from securetrain.core.hashtree import TreeParams
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot, sign_root

MEGABYTES: Final = 512
LARGE: Final = 2048
"""So that starting up, which costs the reference more, does not decide."""
FILES: Final = 1024
TENSORS: Final = 100_000
SMALL: Final = 100_000
_FILES: Final = 4
_PEAK: Final = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e6)
"""
_REFERENCE: Final = ("model-signing==1.1.1", "pyOpenSSL")
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a benchmark's own directory below it


@contextmanager
def _signed(megabytes: int = MEGABYTES) -> Iterator[tuple[Path, Path, TrustRoot, datetime]]:
    """A signed directory, its trust root's file, the root and the time."""
    with _folder() as name:
        folder = name / "data"
        folder.mkdir()
        for number in range(_FILES):
            (folder / f"{number}.bin").write_bytes(os.urandom((megabytes << 20) // _FILES))
        key, now = PrivateKey.generate(), datetime.now(UTC)
        signed = sign_root({TrustRole.DATASET: [key.public]}, key, now, now + timedelta(days=1))
        (name / "trust.json").write_bytes(signed)
        sign_in_place(folder, About(name="bench"), key=key, now=now, params=TreeParams())
        yield folder, name / "trust.json", TrustRoot.parse(signed, now), now


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
class AgainstBlake3:
    """Seconds for verifying, against `blake3` alone over the same files.

    It maps each file and hashes it on as many threads. Verifying reads into private memory instead:
    what is mapped may change between the hash and the use, and a file that becomes shorter ends the
    process.
    """

    name: str = f"verify-{MEGABYTES}MB-blake3"
    title: str = "verifying every byte against blake3 alone, on as many threads"
    pairs: int = 9

    @property
    def goal(self) -> Goal:
        """Four fifths of its rate."""
        return Goal(ratio=1 / 0.8)

    def run(self, order: Sequence[Side]) -> list[float]:
        """Verify or hash once for each entry."""
        seconds = []
        with _signed() as (folder, _, trust, now):
            paths = sorted(folder.glob("*.bin"))
            for side in order:
                started = time.perf_counter()
                if side is Side.PLAIN:
                    for path in paths:
                        blake3(max_threads=cores()).update_mmap(path).digest()
                elif not verify_path(folder, trust=trust, policy=None, now=now).ok:
                    raise RuntimeError("what was signed does not verify")
                seconds.append(time.perf_counter() - started)
        return seconds


@dataclass(frozen=True, slots=True)
class AgainstReference:
    """Seconds of the whole command against `model_signing verify` of the same files."""

    bundle: bool = False
    """Whether ours verifies the same bundle, and not its own statement."""
    pairs: int = 3

    @property
    def name(self) -> str:
        """Short name."""
        return f"verify-{LARGE}MB-{'bundle' if self.bundle else 'reference'}"

    @property
    def title(self) -> str:
        """What is compared."""
        what = "of the same bundle" if self.bundle else "of its own statement"
        return f"securetrain verify {what} against model_signing verify"

    @property
    def goal(self) -> Goal:
        """Little more than half of its time; with its own hash four fifths."""
        return Goal(ratio=0.8 if self.bundle else 0.55)

    def run(self, order: Sequence[Side]) -> list[float]:
        """Run one command or the other for each entry."""
        seconds = []
        with _commands(bundle=self.bundle) as commands:
            for side in order:
                started = time.perf_counter()
                subprocess.run(commands[side], check=True, stdout=subprocess.DEVNULL)
                seconds.append(time.perf_counter() - started)
        return seconds


@contextmanager
def _commands(*, bundle: bool = False) -> Iterator[dict[Side, list[str]]]:
    """Both commands, over the same files."""
    with tempfile.TemporaryDirectory() as tools, _signed(LARGE) as (folder, trust, _, _now):
        reference = _install(Path(tools))
        key = ec.generate_private_key(ec.SECP256R1())
        public, signature = folder.parent / "public.pem", folder.parent / "model.sig"
        public.write_bytes(
            key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )
        sign_model(folder, signature, KeySigner(key=key))
        ours = Path(sys.executable).parent / "securetrain"
        theirs = f"{reference} verify key --signature {signature} --public_key {public} {folder}"
        root = f"--bundle {signature} --public-key {public}" if bundle else f"--trust {trust}"
        yield {
            Side.PLAIN: theirs.split(),
            Side.OURS: f"{ours} verify {folder} {root}".split(),
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


def many_files(files: int = FILES, tensors: int = TENSORS, times: int = 5) -> Figure:
    """Milliseconds of processor for a model of many small files: what each costs, not its bytes."""
    with _folder() as name:
        folder = name / "model"
        folder.mkdir()
        for number in range(files):
            mine = range(number * tensors // files, (number + 1) * tensors // files)
            header = encode_header({f"layers.{n}.weight": ("float32", (4, 4)) for n in mine})
            path = folder / f"model-{number:05d}.safetensors"
            path.write_bytes(header + os.urandom(64 * len(mine)))
        key, now = PrivateKey.generate(), datetime.now(UTC)
        roles = {TrustRole.CHECKPOINT: [key.public]}
        signed = sign_root(roles, key, now, now + timedelta(days=1))
        trust = TrustRoot.parse(signed, now)
        context = SaveContext(run_id="bench", step=0, seq=0, created=now, save_id="0" * 32)
        predicate = sign_safetensors(folder, key=key, context=context)

        def whole() -> None:
            if not verify_path(folder, trust=trust, policy=None, now=now).ok:
                raise RuntimeError("what was signed does not verify")

        storage = LocalStorage(folder)
        sizes = {file.name: file.data_size for file in predicate.files}

        def index() -> None:
            index_file.parse(read_digested(storage, predicate.index, Kind.CHECKPOINT), sizes)

        found = {
            "CPU ms": 1000 * min(_seconds(whole) for _ in range(times)),
            "CPU ms of its index": 1000 * min(_seconds(index) for _ in range(times)),
        }
    return Figure(
        name="verify-many-files",
        title=f"verifying {files} safetensors files of {tensors} tensors in all",
        values=found,
        goal="<= 200 ms for its index",
        goal_met=found["CPU ms of its index"] <= 200,
    )


def tiny(times: int = 15) -> Figure:
    """Seconds of processor for the whole command on a checkpoint of a few bytes: start-up. Least of
    the runs, and beside it an interpreter that only imports what no verifier can leave out.
    """
    with _folder() as name:
        key, now = PrivateKey.generate(), datetime.now(UTC)
        roles = {TrustRole.CHECKPOINT: [key.public]}
        signed = sign_root(roles, key, now, now + timedelta(days=1))
        (name / "trust.json").write_bytes(signed)
        folder = name / "model"
        folder.mkdir()
        header = encode_header({"weight": ("float32", (4, 4))})
        (folder / "model.safetensors").write_bytes(header + os.urandom(64))
        context = SaveContext(run_id="bench", step=0, seq=0, created=now, save_id="0" * 32)
        sign_safetensors(folder, key=key, context=context)
        ours = Path(sys.executable).parent / "securetrain"
        bare = "import click, msgspec, blake3, cryptography.hazmat.primitives.asymmetric.ec"
        commands = {
            "CPU s": [str(ours), "verify", str(folder), "--trust", str(name / "trust.json")],
            "CPU s of bare imports": [sys.executable, "-c", bare],
        }
        used: dict[str, list[float]] = {one: [] for one in commands}
        for _ in range(times):
            for one, command in commands.items():
                before = _children()
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                used[one].append(_children() - before)
    found = {one: min(seconds) for one, seconds in used.items()}
    return Figure(
        name="verify-tiny",
        title="verifying a checkpoint of a few bytes: the command, from its start to its end",
        values=found,
        goal="<= 0.2 CPU s",
        goal_met=found["CPU s"] <= 0.2,
    )


def small_files(files: int = SMALL) -> Figure:
    """Seconds of processor and memory of the command on a dataset of very many small files."""
    with _folder() as name:
        folder = name / "data"
        for number in range(files):
            path = folder / f"{number % 100:02d}" / f"{number:06d}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"%d\n" % number)
        key, now = PrivateKey.generate(), datetime.now(UTC)
        signed = sign_root({TrustRole.DATASET: [key.public]}, key, now, now + timedelta(days=1))
        (name / "trust.json").write_bytes(signed)
        sign_in_place(folder, About(name="bench"), key=key, now=now, params=TreeParams())
        ours = Path(sys.executable).parent / "securetrain"
        command = [str(ours), "verify", str(folder), "--trust", str(name / "trust.json")]
        # By way of a small program: the most memory counts that of whoever starts a process.
        done = subprocess.run(
            [sys.executable, "-c", _PEAK, *command], check=True, capture_output=True
        )
    seconds, memory = map(float, done.stdout.split())
    return Figure(
        name="verify-small-files",
        title=f"verifying a dataset of {files} small files",
        values={"CPU s": seconds, "MB": memory},
        goal="<= 30 CPU s, <= 300 MB",
        goal_met=seconds <= 30 and memory <= 300,
    )


@contextmanager
def _folder() -> Iterator[Path]:
    base = _MEMORY if _MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="verify-", dir=base) as name:
        yield Path(name)


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


BENCHMARKS: Final[tuple[Benchmark, ...]] = (
    AgainstReading(),
    AgainstBlake3(),
    AgainstReference(),
    AgainstReference(bundle=True),
)
FIGURES: Final[dict[str, Callable[[], Figure | None]]] = {
    "verify-per-core": per_core,
    "verify-many-files": many_files,
    "verify-small-files": small_files,
    "verify-tiny": tiny,
}
