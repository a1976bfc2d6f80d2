# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The directory of one run: where each room puts its files, and whether its name still holds.

`RunDir` has a line for each name below ``<run>/``; docs/reference/run-directory.md says more of
each, and of what is in the folders.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, overload

from securetrain.core.errors import RuntimeRefusal
from securetrain.core.held import moved

RUN_DIR_VARIABLE: Final = "SECURETRAIN_RUN_DIR"
"""Environment variable by which the launcher tells workers where the run is (never a secret)."""

SIGNER_VARIABLE: Final = "SECURETRAIN_SIGNER"
"""Environment variable by which workers find their launcher's signing socket."""


class _Below:
    """A path below the run directory, with its docstring."""

    def __init__(self, name: str, doc: str) -> None:
        self.name, self.__doc__ = name, doc

    @overload
    def __get__(self, run: None, owner: type["RunDir"]) -> Self: ...
    @overload
    def __get__(self, run: "RunDir", owner: type["RunDir"]) -> Path: ...
    def __get__(self, run: "RunDir | None", owner: type["RunDir"]) -> Self | Path:
        return self if run is None else run.root / self.name


@dataclass(frozen=True, slots=True)
class RunDir:
    """Names below one run's directory."""

    root: Path

    policy = _Below("policy.yaml", "The policy as it was given.")
    resolved_policy = _Below("policy.json", "The same, resolved; statements name its digest.")
    trust = _Below("trust.json", "The signed trust root.")
    keys = _Below("keys", "Private keys, mode 0600 in a 0700 directory.")
    certs = _Below("certs", "The certificate of the job's CA.")
    dataset = _Below("dataset", "The signed dataset.")
    index = _Below("index", "How many tokens each document has; made again when it is gone.")
    checkpoints = _Below("checkpoints", "Signed checkpoints, one directory each.")
    waivers = _Below("waivers", "Operators' waivers for old checkpoints; put there by people.")
    log = _Below("log", "The run's own transparency log, when the policy asks for one.")
    coordinator_state = _Below("coordinator.json", "The job, signed, for the next coordinator.")
    coordinator_lock = _Below("coordinator.lock", "Locked by the coordinator that runs in it.")
    attestation = _Below("attestation.sqlite", "Of earlier versions: now `NodeState.fleet`.")
    ledger = _Below("ledger.jsonl", "The signed event log.")
    metrics = _Below("metrics.jsonl", "One line a step, written by rank 0.")
    prometheus = _Below("metrics.prom", "The last of them, in Prometheus' text format.")
    guard_metrics = _Below("guard.prom", "The guard's word on the last step, for Prometheus.")
    sketches = _Below("sketches.jsonl", "One line a step: what the guard saw of every rank.")
    disputes = _Below("disputes", "The signed words of disputed reductions, by digest.")
    tables = _Below("tables", "What the ranks said of their gradients, by digest; the workers'.")
    evidence = _Below("evidence", "What statements name, by digest; the launcher's alone.")
    audit = _Below("audit.json", "The preflight audit's result.")
    summary = _Below("run.json", "The record of the run, for the report.")
    report = _Below("report.html", "The same, to look at.")
    tensorboard = _Below("tensorboard", "TensorBoard event files.")
    profile = _Below("profile", "Chrome traces of the steps that a job asks for, one a rank.")
    flight_recorder = _Below("flight-recorder", "Each rank's last collectives; pickles, not read.")
    logs = _Below("logs", "Output of the workers, with --tee or --redirects.")
    workers = _Below("workers", "Each worker's own account: what its shim did, its sockets.")
    signer = _Below("signer", "A socket for each launcher: what its workers may say, it signs.")

    def key(self, name: str) -> Path:
        """A private key's file: agent, checkpoint, coordinator, dataset, root, trainer, worker.

        Only the launcher opens it; workers ask its signing socket.
        """
        return self.keys / f"{name}.pem"

    def checkpoint(self, step: int) -> Path:
        """The directory of the checkpoint after `step` optimizer steps."""
        return self.checkpoints / f"step-{step:08d}"

    def problem(self) -> RuntimeRefusal | None:
        """The refusal of a run whose directory's name leads elsewhere by now; None while it holds.

        Only for one that this process holds open (`held`).
        """
        return RuntimeRefusal("ST-RUNT-023", where=str(self.root)) if moved(self.root) else None

    @property
    def worker_writable(self) -> tuple[Path, ...]:
        """The folders and the single files of the root that workers may change.

        Nothing else of the run is theirs, least of all `keys`.
        """
        return (*self.worker_folders, *self.worker_files)

    @property
    def worker_folders(self) -> tuple[Path, ...]:
        """The folders among `worker_writable`."""
        return (
            self.checkpoints,
            self.index,
            self.tensorboard,
            self.profile,
            self.flight_recorder,
            self.workers,
            self.disputes,
            self.tables,
        )

    @property
    def worker_files(self) -> tuple[Path, ...]:
        """The files among them, which are replaced whole: a death may leave temporaries of them."""
        return (self.metrics, self.prometheus, self.guard_metrics, self.sketches)
