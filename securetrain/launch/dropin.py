# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A command line of torchrun's, judged before anything of the run exists.

Rules:

1. ``c10d`` and ``static`` on one node become our rendezvous: the launcher's own coordinator does
   what they did, and the port that they name is the store's. On several nodes they authenticate
   nobody, and the refusal says what to type instead; so it does for ``--node-rank`` and
   ``--master-addr``;
2. a program that does not exist, a count of workers that no machine has room for, and a name that
   is not UTF-8 are refused here, not when workers start.

Free of torch.
"""

import argparse
import importlib.util
import os
import re
import shlex
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

from securetrain.core.errors import RuntimeRefusal, UsageError

BACKEND: Final = "securetrain"
ONE_NODE_BACKENDS: Final = frozenset({"c10d", "static"})
"""torchrun's own backends, which `is_own_job` translates."""

_PER_CORE: Final = 16
_WORKERS: Final = 64
_PYTHON: Final = re.compile(r"python[0-9.]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The options by which a command line says where its rendezvous is."""

    nnodes: str
    backend: str
    """Empty when none was asked for by name."""
    endpoint: str
    conf: str
    """The value of ``--rdzv-conf``."""
    is_static: bool = False
    """Whether a rank, address or port of torchrun's static rendezvous was given, in any spelling;
    the usual value is a wish as well."""

    @property
    def is_one_node(self) -> bool:
        """Tell whether the job has one node at most; what is no number is refused elsewhere."""
        low, _, high = self.nnodes.partition(":")
        return (high or low).strip() == "1"

    @property
    def is_own_job(self) -> bool:
        """Tell whether this launcher has to start the coordinator, whatever endpoint was named.

        An identity in ``--rdzv-conf``, or our backend by name, asks for a coordinator elsewhere.
        """
        if not self.endpoint:
            return self.backend in {"", BACKEND} or self.is_one_node
        names = {part.partition("=")[0].strip() for part in self.conf.split(",")}
        asks_for_ours = self.backend == BACKEND or "identity" in names
        return self.is_one_node and not asks_for_ours and _is_local(host_of(self.endpoint))

    @property
    def store_port(self) -> int:
        """The port that the endpoint of an own job names; 0 for any."""
        port = self.endpoint.rpartition(":")[2]
        return int(port) if self.is_own_job and _is_port(port) else 0


def check_rendezvous(options: argparse.Namespace, wanted: Wanted, argv: Sequence[str]) -> None:
    """Refuse a rendezvous that is not ours and cannot become it (rule 1).

    Raises:
        RuntimeRefusal: ST-RUNT-002 with the commands that do the same.
        UsageError: ST-USAG-001 for a node that the job does not have.
    """
    if wanted.backend not in {"", BACKEND, *ONE_NODE_BACKENDS}:
        raise RuntimeRefusal(
            "ST-RUNT-002",
            f"--rdzv-backend {wanted.backend} authenticates nobody: whoever reaches it can run code"
            " in the launcher",
            "--rdzv-backend",
            f"leave it out, or write --rdzv-backend {BACKEND}",
        )
    joins_ours = bool(wanted.endpoint) and not wanted.is_own_job
    if wanted.is_one_node:
        if options.node_rank and wanted.backend == "static":
            raise UsageError(
                "ST-USAG-001",
                f"node {options.node_rank} of a job of one node",
                "--node-rank",
                "leave it out, or say how many nodes there are: --nnodes N",
            )
        address = _given_address(options)
        if wanted.backend in ONE_NODE_BACKENDS and (joins_ours or not _is_local(address)):
            raise _refusal(options, wanted, argv, f"it names another machine, {address}")
    elif wanted.backend in ONE_NODE_BACKENDS:
        raise _refusal(options, wanted, argv, "whoever reaches its port can take part")
    elif not wanted.endpoint and wanted.is_static:
        raise _refusal(options, wanted, argv, "a node is not believed which rank it has")


def check_program(options: argparse.Namespace, environ: Mapping[str, str]) -> None:
    """Refuse a script, module or program that does not exist.

    Nothing is imported: of a module's name only the first part is looked for.

    Raises:
        UsageError: ST-USAG-002.
    """
    name = str(options.training_script)
    if options.module and not options.no_python:
        package = name.partition(".")[0]
        here = [str(Path.cwd()), *environ.get("PYTHONPATH", "").split(":")]
        try:
            found = PathFinder.find_spec(package, here) or importlib.util.find_spec(package)
        except (ImportError, ValueError):
            found = None
        if found is None:
            raise UsageError(
                "ST-USAG-002",
                f"no module named {package!r} here, on PYTHONPATH or installed",
                f"-m {name}",
                f"change to the directory that holds {package}, or install it",
            )
    elif options.no_python and not options.run_path:
        if shutil.which(name, path=environ.get("PATH")) is None:
            raise UsageError("ST-USAG-002", "no such program, or not executable", name)
    elif not Path(name).exists():
        raise UsageError("ST-USAG-002", "no such file", name, f"look for it from {Path.cwd()}")


def check_workers(nproc_per_node: str, allowed: int, cores: int | None = None) -> None:
    """Refuse a number of workers that is a slip of the hand; words (``gpu``) are torch's to count.

    Args:
        nproc_per_node: As given.
        allowed: What ``--allow-workers`` says; 0 for the limit by cores.
        cores: Of this machine; asked when not given.

    Raises:
        UsageError: ST-USAG-001.
    """
    try:
        number = int(nproc_per_node)
    except ValueError:
        return
    limit = allowed or max(_WORKERS, _PER_CORE * (cores or os.cpu_count() or 1))
    if number < 1:
        raise UsageError(
            "ST-USAG-001", f"{number} workers", "--nproc-per-node", "--nproc-per-node auto"
        )
    if number > limit:
        raise UsageError(
            "ST-USAG-001",
            f"{number} workers on one node, more than {limit} for this machine's cores",
            "--nproc-per-node",
            f"--nproc-per-node auto, or --allow-workers {number} when that is meant",
        )


def check_text(argv: Sequence[str], environ: Mapping[str, str]) -> None:
    """Refuse what no ledger can hold: names that are not UTF-8.

    Raises:
        UsageError: ST-USAG-001.
    """
    for where, text in [
        *((f"argument {number} of securetrain run", text) for number, text in enumerate(argv, 1)),
        ("the working directory", os.getcwd()),  # noqa: PTH109 - as text
        ("TMPDIR", environ.get("TMPDIR", "")),
    ]:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UsageError(
                "ST-USAG-001",
                f"not UTF-8: {os.fsencode(text)!r}",
                where,
                "rename it, or go there by a link whose name is",
            ) from error


def without_no_python(argv: Sequence[str], program: str) -> str:
    """The command that starts what ``--no-python`` starts, under the shim; empty when none does."""
    arguments = list(argv)
    place = arguments.index(program) if program in arguments else -1
    before, after = arguments[:place], arguments[place + 1 :]
    if place < 0 or not _PYTHON.fullmatch(Path(program).name):
        return ""
    while after[:1] == ["-u"]:
        after = after[1:]
    if not after or (after[0].startswith("-") and after[0] != "-m"):
        return ""
    kept = [word for word in before if word.replace("_", "-") != "--no-python"]
    return shlex.join(["securetrain", "run", *kept, *after])


def host_of(endpoint: str) -> str:
    """The host of ``HOST:PORT``, ``[IPV6]:PORT`` or ``HOST``."""
    host, colon, port = endpoint.rpartition(":")
    is_host_alone = not colon or not port.isdigit()
    return (endpoint if is_host_alone else host).removeprefix("[").removesuffix("]")


def _refusal(
    options: argparse.Namespace, wanted: Wanted, argv: Sequence[str], why: str
) -> RuntimeRefusal:
    asked = f"--rdzv-backend {wanted.backend}" if wanted.backend else "--node-rank, --master-addr"
    high = wanted.nnodes.partition(":")[2] or wanted.nnodes
    nodes = high if _is_port(high) and 1 < int(high) <= 8 else "N"
    invited = " ".join(f"--invite node-{n}" for n in range(int(nodes) if nodes != "N" else 2))
    host = _given_address(options)
    host = "HOST" if _is_local(host) else host
    program = list(argv[-1 - len(options.training_script_args) :])
    module = ["-m"] if options.module else []
    run = shlex.join(
        [
            *("securetrain", "run", "--nnodes", wanted.nnodes),
            *("--nproc-per-node", str(options.nproc_per_node)),
            *("--rdzv-id", "JOB", "--rdzv-endpoint", f"{host}:29400"),
            *("--rdzv-conf", "identity=DIR", *module, *program),
        ]
    )
    return RuntimeRefusal(
        "ST-RUNT-002",
        f"{asked} authenticates nobody: {why}",
        "--rdzv-backend" if wanted.backend else "--master-addr",
        "type on one machine: securetrain ca init CA; securetrain coordinator --ca CA --job JOB"
        f" --nnodes {wanted.nnodes} --bind {host} --port 29400 --enroll-port 29401 {invited};"
        f" on each: securetrain enroll join TOKEN --out DIR; {run}",
    )


def _given_address(options: argparse.Namespace) -> str:
    return host_of(str(options.rdzv_endpoint)) if options.rdzv_endpoint else options.master_addr


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and int(text) < 65536


def _is_local(host: str) -> bool:
    """Tell whether a name is this machine's: only its own addresses can be bound."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
                return True
    except (OSError, UnicodeError):
        pass
    return False


def import_refusal(error: Exception, environ: Mapping[str, str]) -> Exception:
    """Explain why torch cannot be imported, when a variable of torch's is the reason."""
    given = [name for name in ("TORCH_LOGS", "TORCH_LOGS_FORMAT") if environ.get(name)]
    if not given:
        return error
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return UsageError(
        "ST-USAG-001",
        f"torch refuses it: {lines[0] if lines else type(error).__name__}",
        f"{given[0]}={environ[given[0]]}",
        f"unset {given[0]}, or correct it; TORCH_LOGS=help python -c 'import torch' lists what"
        " torch knows",
    )
