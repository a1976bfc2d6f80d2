# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The directory of one run: where each room puts its files. Paths only.

::

    <run>/
      policy.yaml        the policy as it was given
      policy.json        the same, resolved; its digest is what statements name
      trust.json         signed trust root
      keys/              private keys, mode 0600 in a 0700 directory
      certs/             the job CA's certificate
      dataset/           the signed dataset
      index/             how many tokens each document has; made again when it is gone
      checkpoints/       step-00000100/ and so on, one signed directory each
      waivers/           operators' waivers for old checkpoints, one signed file each
      log/               the run's own transparency log, when the policy asks for one
      evidence/          what the coordinator signed and the run was, one file for each SHA-256
      tables/            what the ranks said of their gradients, one file for each SHA-256
      ledger.jsonl       the signed event log
      attestation.sqlite of earlier versions: what is in `NodeState.fleet` now
      metrics.jsonl      one line a step, written by rank 0
      metrics.prom       the last of them, for Prometheus
      guard.prom         what the guard says of the last step, for Prometheus
      sketches.jsonl     one line a step: what the guard saw of every rank
      audit.json         the preflight audit
      run.json           what happened, for the report
      tensorboard/       event files
      profile/           Chrome traces of the steps that a job asks for, one for each rank
      flight-recorder/   the last collectives of each rank, when one of them never ended (pickles)
      logs/              output of the workers, with --tee or --redirects
      workers/           each worker's own account: what its shim did, its sockets
      cache/             compile caches of this run alone, when it cannot share
      signer/            one socket for each launcher: what its workers may say, it signs
      nccl.conf          empty: NCCL reads this file and no other
      report.html
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

RUN_DIR_VARIABLE: Final = "SECURETRAIN_RUN_DIR"
"""Environment variable by which the launcher tells workers where the run is (never a secret)."""

SIGNER_VARIABLE: Final = "SECURETRAIN_SIGNER"
"""Environment variable by which workers find their launcher's signing socket."""


@dataclass(frozen=True, slots=True)
class RunDir:
    """Names below one run's directory."""

    root: Path

    @property
    def policy(self) -> Path:
        """The policy as given."""
        return self.root / "policy.yaml"

    @property
    def resolved_policy(self) -> Path:
        """The resolved policy, canonical JSON."""
        return self.root / "policy.json"

    @property
    def trust(self) -> Path:
        """The signed trust root."""
        return self.root / "trust.json"

    @property
    def keys(self) -> Path:
        """Private keys."""
        return self.root / "keys"

    @property
    def replaced(self) -> tuple[Path, ...]:
        """The trainer's files that are replaced whole: a death may leave temporaries of them."""
        return self.metrics, self.prometheus, self.guard_metrics, self.sketches

    @property
    def certs(self) -> Path:
        """Certificates."""
        return self.root / "certs"

    @property
    def dataset(self) -> Path:
        """The signed dataset."""
        return self.root / "dataset"

    @property
    def index(self) -> Path:
        """Indices of the dataset's documents."""
        return self.root / "index"

    @property
    def checkpoints(self) -> Path:
        """Signed checkpoints, one directory each."""
        return self.root / "checkpoints"

    @property
    def waivers(self) -> Path:
        """Operators' waivers; put there by people."""
        return self.root / "waivers"

    @property
    def log(self) -> Path:
        """The run's own transparency log."""
        return self.root / "log"

    @property
    def coordinator_state(self) -> Path:
        """The signed state of the job, for the next coordinator."""
        return self.root / "coordinator.json"

    @property
    def coordinator_lock(self) -> Path:
        """Locked by the coordinator that runs in it."""
        return self.root / "coordinator.lock"

    @property
    def attestation(self) -> Path:
        """The memory of a verifier of an earlier version; see `NodeState.fleet`."""
        return self.root / "attestation.sqlite"

    @property
    def ledger(self) -> Path:
        """The event log."""
        return self.root / "ledger.jsonl"

    @property
    def metrics(self) -> Path:
        """Step metrics."""
        return self.root / "metrics.jsonl"

    @property
    def prometheus(self) -> Path:
        """The last step, in Prometheus' text format."""
        return self.root / "metrics.prom"

    @property
    def profile(self) -> Path:
        """Traces of profiled steps."""
        return self.root / "profile"

    @property
    def flight_recorder(self) -> Path:
        """The last collectives of each rank; pickles, which nothing here reads."""
        return self.root / "flight-recorder"

    @property
    def guard_metrics(self) -> Path:
        """The guard's word on the last step, in Prometheus' text format."""
        return self.root / "guard.prom"

    @property
    def sketches(self) -> Path:
        """The guard's observations, one line a step."""
        return self.root / "sketches.jsonl"

    @property
    def disputes(self) -> Path:
        """The signed words of disputed reductions, by digest."""
        return self.root / "disputes"

    @property
    def tables(self) -> Path:
        """The tables of the steps, by digest; the workers'."""
        return self.root / "tables"

    @property
    def evidence(self) -> Path:
        """The evidence that statements name, by digest; the launcher's alone."""
        return self.root / "evidence"

    @property
    def audit(self) -> Path:
        """The preflight audit's result."""
        return self.root / "audit.json"

    @property
    def summary(self) -> Path:
        """The summary of the run."""
        return self.root / "run.json"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard event files."""
        return self.root / "tensorboard"

    @property
    def logs(self) -> Path:
        """Worker logs."""
        return self.root / "logs"

    @property
    def report(self) -> Path:
        """The HTML report."""
        return self.root / "report.html"

    def key(self, name: str) -> Path:
        """A private key's file: agent, checkpoint, coordinator, dataset, root, trainer, worker.

        Only the launcher opens it; workers ask its signing socket.
        """
        return self.keys / f"{name}.pem"

    @property
    def signer(self) -> Path:
        """The folder of the signing sockets, one for each launcher that works in this directory."""
        return self.root / "signer"

    @property
    def workers(self) -> Path:
        """The workers' own accounts."""
        return self.root / "workers"

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
        """The files among `worker_writable`."""
        return (self.metrics, self.prometheus, self.guard_metrics, self.sketches)

    def checkpoint(self, step: int) -> Path:
        """The directory of the checkpoint after `step` optimizer steps."""
        return self.checkpoints / f"step-{step:08d}"
