# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The settings of a coordinator, with what an ordinary one has."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, TypeAlias

from cryptography import x509

from securetrain.attest.session import MemoryState, Verifier, appraisers_for
from securetrain.identity import SpiffeId
from securetrain.policy.load import LoadedPolicy
from securetrain.rendezvous.coordinator.keep import Keep, KeepNothing
from securetrain.rendezvous.coordinator.memory import JobMemory
from securetrain.rendezvous.coordinator.renewal import Issue
from securetrain.rendezvous.coordinator.vault import Vault

HEARTBEAT_SECONDS: Final = 2.0
LAST_CALL_SECONDS: Final = 30.0

Revoked: TypeAlias = Callable[[SpiffeId, x509.Certificate], None]
"""Raises when a peer, or its certificate, has been revoked; or when that cannot be known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """The settings of a coordinator that a job rarely changes."""

    last_call: float = LAST_CALL_SECONDS
    """Seconds that a round stays open once `min_nodes` are in."""
    heartbeat: float = HEARTBEAT_SECONDS
    """Seconds between a node's signs of life."""
    last_epoch: int = -1
    """The last epoch of an earlier coordinator of this job; epochs go on from there."""
    generation: int = 1
    """One more than the job had coordinators before this one (`wire.generation`)."""
    verifier: Verifier | None = None
    """Judges evidence; by default one under the policy that forgets everything with this job."""
    lease: float | None = None
    """Seconds that an admission lasts; by default, and at most, the policy's."""
    revoked: Revoked | None = None
    """Refuses a peer that the cluster CA has revoked; see `Coordinator.recheck`."""
    issue: Issue | None = None
    """Renews nodes' certificates; by default with the job's CA, without a register."""
    memory: JobMemory | None = None
    """Keeps the state of the job for the next coordinator; None keeps none."""
    vault: Vault = Vault()  # noqa: RUF009 - frozen
    """The secrets that the policy names; by default there are none."""
    keep: Keep = field(default_factory=KeepNothing)
    """Keeps memberships, results and evidence for those who verify the job afterwards."""
    monotonic: Callable[[], float] = time.monotonic
    """A steady clock in seconds."""
    random: Callable[[int], bytes] = secrets.token_bytes
    """Makes nonces and session ids."""


def forgetful_verifier(
    policy: LoadedPolicy, clock: Callable[[], datetime], monotonic: Callable[[], float]
) -> Verifier:
    """A verifier that remembers nobody beyond this coordinator, for programs that give none.

    Raises:
        AttestationError: ST-ATTS-009, 3xx or 7xx when the policy's reference values are bad.
    """
    state = MemoryState()
    return Verifier(
        policy=policy.policy,
        policy_digest=policy.digest,
        clock=clock,
        monotonic=monotonic,
        appraisers=appraisers_for(policy, clock(), state),
        state=state,
    )
