# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A log with a few entries, its witnesses, and a policy that asks for two of three."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from securetrain.identity import dsse
from securetrain.identity.keys import PrivateKey
from securetrain.identity.log.checkpoint import LogPolicy
from securetrain.identity.log.store import Log
from securetrain.identity.log.witness import Witness, request_for

NOW = datetime(2026, 6, 1, tzinfo=UTC)
ORIGIN = "log.example/run-7"
KIND = "application/example"


@dataclass
class World:
    """Everybody's keys, and the log."""

    folder: Path
    key: PrivateKey = field(default_factory=PrivateKey.generate)
    signer: PrivateKey = field(default_factory=PrivateKey.generate)
    witness_keys: list[PrivateKey] = field(
        default_factory=lambda: [PrivateKey.generate() for _ in range(3)]
    )

    def __post_init__(self) -> None:
        Log.create(self.folder / "log", ORIGIN, self.key)
        self.log = Log(self.folder / "log", self.policy)
        self.witnesses = [self.witness(number) for number in range(3)]

    @property
    def policy(self) -> LogPolicy:
        return LogPolicy(
            origin=ORIGIN,
            keys={self.key.key_id: self.key.public},
            witnesses={key.key_id: key.public for key in self.witness_keys},
            quorum=2,
        )

    @property
    def verifiers(self):
        return {self.signer.key_id: self.signer.public}

    def witness(self, number: int) -> Witness:
        return Witness(
            f"node-{number}.example",
            self.witness_keys[number],
            self.folder / f"witness-{number}",
            {ORIGIN: replace(self.policy, witnesses={}, quorum=0)},
        )

    def envelope(self, text: str = "x") -> bytes:
        return dsse.sign(text.encode(), KIND, [self.signer])

    def append(self, *texts: str) -> list[int]:
        return [self.log.append(self.envelope(t), self.verifiers, self.key) for t in texts]

    def cosign(self, *numbers: int, now: datetime = NOW) -> int:
        """Let witnesses cosign what the log says now; returns how many lines it kept."""
        text = self.log.state()[1].text
        lines = []
        for number in numbers:
            witness = self.witnesses[number]
            lines.append(witness.cosign(request_for(self.log, witness.seen(ORIGIN)), now))
        return self.log.add_cosignatures(text, lines)


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)
