# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The terms of a job, worked out from its policy and its coordinator's settings."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509

from securetrain.identity import JobCA, Role
from securetrain.identity.keys import KeyKind, PrivateKey, PublicKey
from securetrain.policy.load import LoadedPolicy
from securetrain.policy.schema import Rendezvous
from securetrain.rendezvous.coordinator.journal import Journal
from securetrain.rendezvous.coordinator.keep import Keep
from securetrain.rendezvous.coordinator.list_intake import ListIntake
from securetrain.rendezvous.coordinator.renewal import Renewal
from securetrain.rendezvous.coordinator.settings import CoordinatorSettings
from securetrain.rendezvous.coordinator.vault import Vault
from securetrain.rendezvous.wire.generation import Generation, sign_generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The terms that the coordinator tells every node; the same for the whole job."""

    job: str
    key: PrivateKey
    ca: JobCA
    generation: Generation
    policy_digest: str
    handshake_timeout: float
    heartbeat: float
    lease: float
    waits: Rendezvous
    """The policy's section."""
    min_nodes: int
    max_nodes: int
    random: Callable[[int], bytes]
    renewal: Renewal
    vault: Vault
    keep: Keep
    lists: ListIntake
    monotonic: Callable[[], float] = time.monotonic


def make_terms(
    job: str,
    ca: JobCA,
    policy: LoadedPolicy,
    chosen: CoordinatorSettings,
    *,
    clock: Callable[[], datetime],
    journal: Journal,
    nodes: tuple[int, int],
) -> Terms:
    """The terms, with a new key of the coordinator's own."""
    asked = policy.policy
    lifetime = timedelta(minutes=asked.identity.certificate_lifetime_minutes)

    def issue_node(node: str, key: PublicKey) -> x509.Certificate:
        return ca.issue(Role.NODE, key, clock(), node=node, lifetime=lifetime)

    key = PrivateKey.generate(KeyKind.P256)
    certificate = ca.issue(Role.COORDINATOR, key.public, clock(), lifetime=lifetime)
    longest = min(asked.node.lease_minutes * 60.0, lifetime.total_seconds())
    return Terms(
        job=job,
        key=key,
        generation=sign_generation(job, chosen.generation, certificate, key),
        ca=ca,
        policy_digest=policy.digest,
        handshake_timeout=asked.rendezvous.handshake_timeout_seconds,
        heartbeat=chosen.heartbeat,
        lease=min(chosen.lease or longest, longest),
        waits=asked.rendezvous,
        min_nodes=nodes[0],
        max_nodes=nodes[1],
        random=chosen.random,
        keep=chosen.keep,
        renewal=Renewal(issue=chosen.issue or issue_node, clock=clock, journal=journal),
        vault=chosen.vault,
        lists=ListIntake(asked.rendezvous.handshake_timeout_seconds, monotonic=chosen.monotonic),
        monotonic=chosen.monotonic,
    )
