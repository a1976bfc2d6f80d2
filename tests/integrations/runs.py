# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A run directory with a signed ledger and metrics, written by hand."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from securetrain.core import RunDir
from securetrain.core.vocabulary import NetworkProfile, NodeTier
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot, sign_document
from securetrain.ledger import Ledger, LedgerEvent, WriterRole, events
from tests.vocabulary import trust_document

BEGIN = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
NODE = "host-17.cluster.example"
PLACE = "/home/alice/secret-project/model"
TOKEN = "hf_0123456789abcdef"


@dataclass
class MadeRun:
    """A run whose seconds are counted."""

    root: Path
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.run = RunDir(self.root)
        root, key = PrivateKey.generate(), PrivateKey.generate()
        roles = {TrustRole.ROOT: [root.public], TrustRole.LEDGER: [key.public]}
        roles |= {TrustRole(f"ledger-{role}"): [key.public] for role in WriterRole}
        document = trust_document(roles, BEGIN - timedelta(days=1), BEGIN + timedelta(days=9000))
        self.run.trust.write_bytes(sign_document(document, [root]))
        ledger = Ledger(self.run.ledger, key, "agent", lambda: self.now)
        self.ledger = ledger.begin("", TrustRoot.load(self.run.trust, self.now))

    @property
    def now(self) -> datetime:
        return BEGIN + timedelta(seconds=self.seconds)

    def say(self, *said: LedgerEvent, after: float = 1.0) -> None:
        for one in said:
            self.seconds += after
            self.ledger.write(one)

    def step(self, step: int, verdict: str = "clean", loss: float | None = None) -> None:
        self.seconds += 0.5
        line = {
            "step": step,
            "loss": 5.0 - step / 10 if loss is None else loss,
            "grad_norm": 1.0 + step,
            "lr": 1e-3,
            "seconds": 0.5,
            "tokens_per_second": 1000.0,
            "verdict": verdict,
            "ended": self.now.timestamp(),
            "bits_per_byte": None,
        }
        with self.run.metrics.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def begin(self) -> None:
        command = f"train.py --data {PLACE} --token {TOKEN}"
        self.say(
            events.RunStarted(subject="run-7", policy="ab" * 32, policy_id="dev", command=command),
            events.CoordinatorStarted(subject="job", address="10.0.0.7:29400", policy="ab" * 32),
            events.ProfileAchieved(subject="loopback", network=NetworkProfile.LOOPBACK),
            events.NodeAdmitted(subject=NODE, tier=NodeTier.SELF_ASSERTED, address="10.0.0.7"),
            events.RoundFormed(subject="epoch 1", round=1, nodes=1),
            events.EpochStarted(subject="epoch 1", epoch=1, nodes=NODE),
        )

    def train(self, first: int, last: int) -> None:
        for step in range(first, last + 1):
            self.step(step)
        self.say(
            events.CheckpointSigned(subject=PLACE, step=last, digest="cd" * 32, verdict="clean")
        )

    def end(self, outcome: str = "succeeded") -> None:
        self.say(
            events.GradientsNotWatched(subject="rank 0", reason=f"a model in {PLACE}"),
            events.RunEnded(subject="run-7", outcome=outcome, exit_code=0),
        )
        self.ledger.close()

    def whole(self) -> None:
        self.begin()
        self.train(1, 10)
        self.step(11, "refused")
        self.say(
            events.StepRefused(subject="step 11", code="ST-GRAD-002", what=f"{NODE} in {PLACE}")
        )
        self.end()
