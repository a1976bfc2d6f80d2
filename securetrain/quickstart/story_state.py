# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The context that the steps of the story share: options, tools, results of earlier steps."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from securetrain.core import RunDir
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRoot
from securetrain.ledger import Ledger
from securetrain.policy import LoadedPolicy
from securetrain.quickstart.screen import Screen

POLICY: Final = "dev"
STEPS: Final = 220
"""Optimizer steps: about a minute on two idle cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of the command line."""

    run_dir: Path
    steps: int = STEPS
    nproc_per_node: int = 2
    drills: bool = True
    tpm: bool = False
    """Whether a software TPM speaks for this machine."""


class StepOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the story, as it is reported."""

    number: int
    title: str
    summary: str
    seconds: float


class StoryResult(msgspec.Struct, frozen=True, kw_only=True):
    """The whole story, as ``--json`` prints it."""

    ok: bool
    run_dir: str
    report: str
    steps: tuple[StepOutcome, ...]
    validation_bits_per_byte: float | None
    bigram_bits: float | None
    checkpoint: str
    checkpoint_digest: str
    drills: dict[str, str]
    """Drill id to the code that refused it."""
    node: str
    """The label of the node that trained: what it has proven about itself."""
    next: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Story:
    """State that the steps hand on."""

    options: Options
    screen: Screen
    clock: Callable[[], datetime]
    environ: Mapping[str, str]
    program: str = "securetrain"
    """How this person starts the command, for the commands to try next."""
    here: Path = field(default_factory=Path)
    """The person's working directory: paths below it are shown relative to it."""
    policy_name: str = POLICY
    """The value of ``--policy``: a shipped policy, or the file of a software TPM's."""
    attester: Path | None = None
    """Settings of the software TPM's attester."""
    policy: LoadedPolicy | None = None
    checkpoint: Path | None = None
    """The last checkpoint."""
    digest: str = ""
    node: str = ""
    validation_bits: float | None = None
    bigram_bits: float | None = None
    drills: dict[str, str] = field(default_factory=dict)

    @property
    def run(self) -> RunDir:
        """The run directory."""
        return RunDir(self.options.run_dir)

    @property
    def job_file(self) -> Path:
        """The job that is trained."""
        return self.options.run_dir / "job.yaml"

    def trust(self) -> TrustRoot:
        """The run's trust root, checked now."""
        return TrustRoot.load(self.run.trust, self.clock())

    def ledger(self) -> Ledger:
        """The run's ledger, for what the story itself decides."""
        return Ledger(
            self.run.ledger, PrivateKey.load(self.run.key("agent")), "quickstart", self.clock
        )
