# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A small signed run directory: keys, trust root, policy and ledger, as `securetrain run` makes it.

For testing whatever reads run directories (verify, report, policies) without a run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from securetrain.core import RunDir, canonical
from securetrain.core.files import make_private_dir, write_atomic
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot, sign_root
from securetrain.ledger import Clock, Ledger, events
from securetrain.policy import LoadedPolicy, load_policy
from securetrain.testing.clock import SettableClock

KEYS: Final = ("root", "agent", "worker", "checkpoint", "dataset")
LIFETIME: Final = timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallRun:
    """A run directory and what is needed to add to it."""

    run_dir: RunDir
    keys: Mapping[str, PrivateKey]
    trust: TrustRoot
    policy: LoadedPolicy
    clock: Clock

    def ledger(self, writer: str = "agent") -> Ledger:
        """The run's ledger, as `writer` (agent, or a rank, which signs with the worker's key)."""
        key = self.keys["agent" if writer == "agent" else "worker"]
        return Ledger(self.run_dir.ledger, key, writer, self.clock)


def make_run(root: Path, *, policy: str = "dev", clock: Clock | None = None) -> SmallRun:
    """Make a run directory whose ledger has a first entry and is not closed.

    Args:
        root: The directory, which is made.
        policy: Name or path of the run's policy.
        clock: Gives the time of everything; a `SettableClock` when not given.
    """
    clock = clock or SettableClock()
    now: datetime = clock()
    run_dir = RunDir(make_private_dir(root))
    make_private_dir(run_dir.keys)
    run_dir.checkpoints.mkdir(exist_ok=True)
    keys = {name: PrivateKey.generate() for name in KEYS}
    keys["node"] = PrivateKey.generate(KeyKind.P256)
    for name, key in keys.items():
        key.save(run_dir.key(name))
    roles = {
        TrustRole.CHECKPOINT: [keys["checkpoint"].public],
        TrustRole.DATASET: [keys["dataset"].public],
        TrustRole.LEDGER: [keys["agent"].public, keys["worker"].public],
        TrustRole.LEDGER_COORDINATOR: [keys["agent"].public],
        TrustRole.LEDGER_LAUNCHER: [keys["agent"].public],
        TrustRole.LEDGER_RANK: [keys["worker"].public],
        TrustRole.LEDGER_WORKER: [keys["worker"].public],
    }
    data = sign_root(roles, keys["root"], now, now + LIFETIME)
    write_atomic(run_dir.trust, data)
    loaded = load_policy(policy)
    write_atomic(run_dir.resolved_policy, canonical.encode(loaded.policy))
    run = SmallRun(
        run_dir=run_dir,
        keys=keys,
        trust=TrustRoot.parse(data, now),
        policy=loaded,
        clock=clock,
    )
    run.ledger().begin("", run.trust).write(events.RunStarted(policy_id=loaded.policy.metadata.id))
    return run
