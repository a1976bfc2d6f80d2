# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The signing socket of one launch, assembled from its run directory."""

from collections.abc import Callable, Mapping
from datetime import datetime

from securetrain.artifacts import RankSigner
from securetrain.core.vocabulary import NodeTier
from securetrain.identity import Role, SpiffeId
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRoot
from securetrain.launch.binding import Binder
from securetrain.launch.run_setup import RunSetup
from securetrain.launch.signing_keys import Keys
from securetrain.launch.signing_rules import Circumstances, Judge
from securetrain.launch.signing_service import SigningService
from securetrain.ledger import Ledger, WriterRole, key_file
from securetrain.rendezvous.coordinator import Coordinator

_WORKERS = (WriterRole.RANK, WriterRole.WORKER)


def start_signing(
    setup: RunSetup,
    ledger: Ledger,
    clock: Callable[[], datetime],
    coordinator: Coordinator | None,
    rank: RankSigner | None,
    *,
    binder: Binder | None = None,
) -> SigningService:
    """Start the service; the caller stops it.

    Args:
        setup: The run.
        ledger: The launcher's, for refusals.
        clock: The launcher's.
        coordinator: The launcher's own, which knows what the nodes have proved; None when the
            job has another.
        binder: Says what statements bind.
        rank: Signs the ranks' files, with the certificate of this node.

    Raises:
        IdentityError: ST-IDEN-001, 008 or 010 when a key or the trust root cannot be used.
        UsageError: ST-USAG-002 when the socket cannot be made.
    """

    def admitted() -> Mapping[str, NodeTier] | None:
        if coordinator is None:
            return None
        return {
            str(SpiffeId(domain, setup.job, Role.NODE, found.node)): found.tier
            for found in coordinator.admissions
        }

    run, domain = setup.run, setup.policy.policy.identity.trust_domain
    here = Circumstances(
        run_id=setup.job,
        name=_name(setup),
        policy=setup.policy.digest,
        response=setup.policy.policy.gradients.response,
        trust=TrustRoot.load(run.trust, clock()),
        clock=clock,
        admitted=admitted,
        binder=binder,
        signs_saves=setup.policy.policy.checkpoint.sign_saves,
    )
    keys = Keys(
        checkpoint=PrivateKey.load(run.key("checkpoint")),
        rank=rank,
        ledgers={role: PrivateKey.load(key_file(run, role)) for role in _WORKERS},
    )
    service = SigningService(run=run, keys=keys, judge=Judge(here=here), ledger=ledger)
    service.start()
    return service


def _name(setup: RunSetup) -> str:
    """The name under which the run may sign: the one that its policy expects, or the run's own."""
    expected = setup.policy.policy.checkpoint.expect
    return setup.job if expected is None or expected.name is None else expected.name
