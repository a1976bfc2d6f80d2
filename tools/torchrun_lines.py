# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Command lines of torchrun's, and how ``securetrain run`` differs under each. Data, no code.

``tests/launch/test_torchrun_lines.py`` runs both and asks for exactly these differences;
``tools/reference.py`` makes the page of them.
"""

from dataclasses import dataclass, field
from typing import Final

PROBE: Final = "probe.py"
"""The script of every line: it writes what it was given, and ends as its first word says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One command line, given to both."""

    name: str
    argv: tuple[str, ...]
    """``{port}`` is a free port, ``{log}`` a folder for logs."""
    env: dict[str, str] = field(default_factory=dict)
    exits: tuple[int, int] = (0, 0)
    """The exit codes of torchrun and of ours."""
    says: str = ""
    """A part of our refusal, when the line is refused."""
    note: str = ""
    """The difference, for people; empty when there is none beyond `COMMON`."""
    adds_error_file: bool = False
    """Whether the launcher's own error file (``TORCHELASTIC_ERROR_FILE``) is written by ours only:
    torchrun writes it when the script uses torch's ``record``."""
    changed: frozenset[str] = frozenset()
    """Variables with other values, beyond `COMMON`."""


_ERROR_FILE: Final = (
    "the launcher's `TORCHELASTIC_ERROR_FILE` is written; torchrun writes it when the script uses"
    " torch's `record`"
)

COMMON: Final = {
    "MASTER_ADDR": "127.0.0.1 in place of the host's name, or `localhost`",
    "MASTER_PORT": "a free port, when the line names none",
    "TORCHELASTIC_RUN_ID": "the run's own id, in place of `none` or a random one",
    "TORCHELASTIC_ERROR_FILE": "in the sandbox, then below the run directory or `--log-dir`",
    "TORCHINDUCTOR_CACHE_DIR": "this user's own, for these versions and this policy",
    "TRITON_CACHE_DIR": "likewise",
    "TORCH_EXTENSIONS_DIR": "likewise",
    "HTTPS_PROXY": "the launcher's proxy, the way out of the workers' own network",
    "https_proxy": "likewise",
    "NO_PROXY": "the members, which are reached without it",
    "no_proxy": "likewise",
}
"""Variables that every worker sees with another value, and why."""

LINES: Final = (
    Line(name="standalone", argv=("--standalone", "--nproc-per-node=2", PROBE, "ok", "--lr", "1")),
    Line(name="two workers", argv=("--nproc-per-node", "2", PROBE, "ok")),
    Line(name="underscores", argv=("--nproc_per_node=2", "--max_restarts=0", PROBE, "ok")),
    Line(name="a module", argv=("--standalone", "-m", "pack.probe", "ok")),
    Line(
        name="c10d",
        argv=("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=7", PROBE, "ok"),
        note="our rendezvous, in the place of `c10d`",
    ),
    Line(
        name="c10d, with a port",
        argv=(
            "--nnodes=1:1",
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=localhost:{port}",
            PROBE,
            "ok",
        ),
        note="our rendezvous, in the place of `c10d`; the workers' store has that port",
    ),
    Line(
        name="static",
        argv=("--rdzv-backend=static", "--node-rank=0", "--master-port={port}", PROBE, "ok"),
        note="our rendezvous, in the place of `static`; the store has that port",
    ),
    Line(name="a port", argv=("--master-port={port}", PROBE, "ok")),
    Line(
        name="all in the environment",
        argv=(PROBE, "ok"),
        env={"PET_NPROC_PER_NODE": "2"},
        note="`PET_NPROC_PER_NODE` is not handed on to the workers",
        changed=frozenset({"PET_NPROC_PER_NODE"}),
    ),
    Line(name="a count of the machine's", argv=("--nproc-per-node=cpu", PROBE, "ok")),
    Line(name="a role", argv=("--role=trainer", "--monitor-interval=0.2", PROBE, "ok")),
    Line(
        name="a relative search path",
        argv=(PROBE, "ok"),
        env={"PYTHONPATH": "lib:."},
        note="`PYTHONPATH` is the same, made absolute",
        changed=frozenset({"PYTHONPATH"}),
    ),
    Line(name="a restart", argv=("--max-restarts=1", PROBE, "once")),
    Line(
        name="an exit code",
        argv=(PROBE, "exit"),
        exits=(1, 1),
        adds_error_file=True,
        note=_ERROR_FILE,
    ),
    Line(
        name="an exception",
        argv=(PROBE, "raise"),
        exits=(1, 1),
        adds_error_file=True,
        note=_ERROR_FILE,
    ),
    Line(name="a recorded exception", argv=(PROBE, "record"), exits=(1, 1)),
    Line(
        name="a signal",
        argv=(PROBE, "kill"),
        exits=(1, 1),
        adds_error_file=True,
        note=_ERROR_FILE,
    ),
    Line(
        name="output to files, and shown",
        argv=("--nproc-per-node=2", "--tee=3", "--log-dir={log}", PROBE, "ok"),
    ),
    Line(
        name="output to files",
        argv=("--nproc-per-node=2", "-r", "0:3,1:1", "--log-dir={log}", PROBE, "ok"),
    ),
    Line(
        name="output of one worker",
        argv=(
            "--nproc-per-node=2",
            "-t3",
            "--local-ranks-filter=1",
            "--log-dir={log}",
            PROBE,
            "ok",
        ),
    ),
    Line(
        name="the launcher's interpreter",
        argv=("--run-path", PROBE, "ok"),
        note="the worker is an interpreter of its own, as without `--run-path`",
    ),
    Line(
        name="another program",
        argv=("--no-python", "python", PROBE, "ok"),
        exits=(0, 2),
        says="type: securetrain run --policy dev {ours} probe.py ok",
        note="refused: a program without the worker shim; the refusal names the command",
    ),
    Line(
        name="several nodes",
        argv=("--nnodes=2", "--node-rank=1", "--master-addr=192.0.2.1", PROBE, "ok"),
        exits=(-1, 2),
        says="securetrain enroll join TOKEN --out DIR; securetrain run --nnodes 2",
        note="refused: nodes need identities; the refusal names the commands",
    ),
    Line(
        name="no script",
        argv=("none.py",),
        exits=(1, 20),
        says="no such file",
        note="refused before anything starts",
    ),
    Line(
        name="no module",
        argv=("-m", "none.at_all"),
        exits=(1, 20),
        says="no module named",
        note="refused before anything starts",
    ),
    Line(
        name="a slip of the hand",
        argv=("--nproc-per-node=100000", PROBE, "ok"),
        exits=(-1, 2),
        says="--allow-workers 100000",
        note="refused: more workers than 16 for each core (`--allow-workers`)",
    ),
    Line(
        name="a bad log setting",
        argv=(PROBE, "ok"),
        env={"TORCH_LOGS": "nonsense"},
        exits=(1, 2),
        says="TORCH_LOGS=nonsense",
        note="refused with the variable's name",
    ),
)
