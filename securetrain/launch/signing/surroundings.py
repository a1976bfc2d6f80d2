# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The job, the installed code and the machine, as a launcher sees them before workers run.

No path of this machine is taken over: of a word that is a path, its last name stays, and the digest
of what it names.
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import Final

from cryptography import x509

from securetrain.chain import Keeper, endorse
from securetrain.chain.documents import (
    Argument,
    Distribution,
    Environment,
    Input,
    Job,
    Processor,
)
from securetrain.chain.store import EvidenceStore
from securetrain.core.errors import SecureTrainError
from securetrain.core.files import read_file
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRoot
from securetrain.launch.agent.elastic_agent import node_range
from securetrain.launch.options import RunOptions
from securetrain.launch.setup import TRUST_LIFETIME, RunSetup
from securetrain.launch.signing.binding import Binder, Surroundings
from securetrain.ledger import Ledger

_EARLIER: Final = timedelta(minutes=5)
"""The CA of a job is valid a little before it is made."""

INPUT_LIMIT: Final = 64 << 20
STATEMENT: Final = "statement.json"
LOCK_FILES: Final = ("uv.lock", "poetry.lock", "pdm.lock", "pylock.toml", "requirements.lock")
ARITHMETIC: Final = (
    *("OMP_", "MKL_", "KMP_", "CUBLAS_", "CUDNN_", "NVIDIA_TF32", "TORCH_", "PYTORCH_"),
    *("PYTHONHASHSEED", "NCCL_ALGO", "NCCL_PROTO", "ATEN_", "DNNL_", "ONEDNN_"),
)
"""The beginnings of variables that can change a result."""
_HEADER: Final = re.compile(r"^(Name|Version):[ \t]*(.*)$", re.MULTILINE | re.IGNORECASE)
_GIT_SECONDS: Final = 20.0


def surroundings_of(options: RunOptions, env: Mapping[str, str], folder: Path) -> Surroundings:
    """Everything that can be said before the workers start.

    Args:
        options: The command line.
        env: The workers' environment.
        folder: The working directory.
    """
    commit, dirty = _commit(folder)
    return Surroundings(
        job=job_of(options, folder),
        environment=Environment(
            processor=processor(),
            python=platform.python_version(),
            torch=metadata.version("torch"),
            variables=dict(_variables(env)),
        ),
        distributions=tuple(distributions()),
        python=platform.python_version(),
        commit=commit,
        dirty=dirty,
        lock_file=next(filter(None, (_input(folder / name) for name in LOCK_FILES)), None),
    )


def job_of(options: RunOptions, folder: Path) -> Job:
    """The job of a command line, without a path."""
    torch = options.torch
    is_module = bool(torch.module)
    program = None if is_module else _input(folder / options.script)
    return Job(
        program=program,
        module=options.script[:4096] if is_module else "",
        arguments=tuple(arguments(torch.training_script_args, folder)),
        nodes=node_range(torch.nnodes),
        workers=str(torch.nproc_per_node)[:100],
    )


def arguments(words: Sequence[str], folder: Path) -> Iterator[Argument]:
    """The words of a command line: a path is cut to its last name, and what it names is hashed."""
    for word in words[:4096]:
        option, equals, value = word.partition("=")
        if not (equals and option.startswith("-")):
            option, value = "", word
        found = None
        with suppress(ValueError, OSError):
            found = _input(folder / value) if value and not value.startswith("-") else None
        kept = Path(value).name or "/" if found is not None or "/" in value else value
        yield Argument(text=(f"{option}={kept}" if option else kept)[:4096], input=found)


def distributions() -> Iterable[Distribution]:
    """The installed distributions, by name."""
    found: dict[tuple[str, str], Distribution] = {}
    for one in metadata.distributions():
        name, version = _headers(one)
        if not name or not version:
            continue
        record = one.read_text("RECORD")
        digest = None if record is None else hashlib.sha256(record.encode()).hexdigest()
        found[name, version] = Distribution(name=name[:255], version=version[:255], record=digest)
    return [found[key] for key in sorted(found)]


def _headers(one: metadata.Distribution) -> tuple[str, str]:
    """Name and version of a distribution, without the parser of mail that `metadata` has for them.

    It reads every header and text of several hundred distributions, a third of a second.
    """
    text = one.read_text("METADATA") or one.read_text("PKG-INFO") or one.read_text("") or ""
    head = text.partition("\n\n")[0]
    found = {name.lower(): value for name, value in _HEADER.findall(head)}
    return found.get("name", "").strip(), found.get("version", "").strip()


def processor() -> Processor:
    """This machine's, as Linux names it."""
    model = ""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                model = value.strip()
                break
    return Processor(model=model[:4096], architecture=platform.machine(), count=os.cpu_count() or 0)


def _variables(env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in sorted(env.items()):
        if name.startswith(ARITHMETIC):
            yield name[:255], (Path(value).name if "/" in value else value)[:4096]


def _input(path: Path) -> Input | None:
    """A file by its bytes, a signed directory by its statement; None for anything else."""
    kind, place = "file", path
    if path.is_dir():
        kind, place = "signed directory", path / STATEMENT
    if not place.is_file() or place.is_symlink():
        return None
    try:
        data = read_file(place, INPUT_LIMIT)
    except SecureTrainError:
        return None
    name = path.resolve().name[:255] or "input"
    return Input(name=name, sha256=hashlib.sha256(data).hexdigest(), kind=kind)


def _commit(folder: Path) -> tuple[str, bool | None]:
    """The commit that is checked out in a folder, and whether files differ from it."""
    git = shutil.which("git")
    if git is None:
        return "", None
    # A repository's own settings must not start programs here.
    safe = [git, "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-C", str(folder)]

    def ask(*words: str) -> str | None:
        try:
            done = subprocess.run(
                [*safe, *words], capture_output=True, timeout=_GIT_SECONDS, check=False, text=True
            )
        except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
            return None
        return done.stdout if done.returncode == 0 else None

    commit = (ask("rev-parse", "--verify", "HEAD") or "").strip()
    if len(commit) not in {40, 64}:
        return "", None
    status = ask("status", "--porcelain", "--untracked-files=no")
    return commit, None if status is None else bool(status)


def keeper_of(setup: RunSetup, now: datetime, *, own: bool) -> Keeper:
    """The keeper of a launch.

    Args:
        setup: The run.
        now: The time.
        own: Whether this launch makes the coordinator, so that the run vouches for it.

    Raises:
        IdentityError: ST-IDEN-001 or 010 when the agent's key cannot be used.
    """
    store = EvidenceStore(setup.run.evidence)
    if not own:
        return Keeper(store=store)
    agent = PrivateKey.load(setup.run.key("agent"))

    def vouch(ca: x509.Certificate) -> str:
        return endorse(ca, setup.job, now - _EARLIER, now + TRUST_LIFETIME, agent)

    return Keeper(store=store, endorse=vouch)


def start_binding(
    setup: RunSetup, options: RunOptions, env: Mapping[str, str], keeper: Keeper, ledger: Ledger
) -> Binder:
    """The binder of a launch; see `binding`.

    Raises:
        IdentityError: ST-IDEN-008 when the trust root cannot be used.
    """
    return Binder(
        setup=setup,
        keeper=keeper,
        ledger=ledger,
        trust=TrustRoot.parse_of_any_time(setup.run.trust.read_bytes(), str(setup.run.trust)),
        around=surroundings_of(options, env, Path.cwd()),
    )
