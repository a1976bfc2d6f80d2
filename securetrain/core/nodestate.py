# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The state that a machine keeps between runs, outside of every run directory. Paths only.

Paths only. A run directory may lie on a disk that others write, and may be put back to an older
state. The record that notices it must lie elsewhere: on this machine, for this user alone. ::

    <state>/
      floors/<run>/      the newest checkpoint of a run that was seen here, in floors.json
      ledgers/           how far each run's ledger was written, so that none begins again
      fleet/             who is barred, clocks of TPMs, the newest reference values: of every job
      witness.pem        the key with which this machine cosigns transparency logs
      witness/           what it has seen of each log
      catalogues/        the newest metadata that was seen of each catalogue
      cache/             compiled code that runs share, a folder for each key
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

STATE_VARIABLE: Final = "SECURETRAIN_STATE"
"""Environment variable that names the folder; the launcher sets it for the workers."""

ROOT_STATE: Final = Path("/var/lib/securetrain")
USER_STATE: Final = Path(".local/state/securetrain")


def default_state(home: Path, uid: int) -> Path:
    """The folder of a user's state where nobody names another."""
    return ROOT_STATE if uid == 0 else home / USER_STATE


@dataclass(frozen=True, slots=True)
class NodeState:
    """Names below one machine's folder."""

    root: Path

    def floors(self, run_id: str) -> Path:
        """The file of what was seen of a run, in a folder of its own, which its workers change."""
        return self.root / "floors" / _of(run_id) / "floors.json"

    def ledger(self, run_id: str) -> Path:
        """The file of how far a run's ledger was written here, out of its workers' reach."""
        return self.root / "ledgers" / f"{_of(run_id)}.json"

    @property
    def fleet(self) -> Path:
        """The folder of what its coordinators must not forget of the nodes that they have seen."""
        return self.root / "fleet"

    @property
    def admission(self) -> Path:
        """The folder of the tokens that admit machines to a fleet, and of what they have proven."""
        return self.root / "admission"

    @property
    def witness_key(self) -> Path:
        """The key with which it cosigns logs."""
        return self.root / "witness.pem"

    @property
    def witness_seen(self) -> Path:
        """The folder of what it has seen of each log."""
        return self.root / "witness"

    @property
    def catalogues(self) -> Path:
        """The folder of what it has seen of each catalogue."""
        return self.root / "catalogues"

    @property
    def caches(self) -> Path:
        """The folder of compiled code that runs share."""
        return self.root / "cache"


def _of(run_id: str) -> str:
    """The name of what is kept of a run; its id may have any characters."""
    return hashlib.sha256(run_id.encode()).hexdigest()[:32]
