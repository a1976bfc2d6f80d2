# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The evidence of one launch, assembled from its run directory."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509

from securetrain.chain import Keeper, endorse
from securetrain.chain.store import EvidenceStore
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRoot
from securetrain.launch.binding import Binder
from securetrain.launch.options import RunOptions
from securetrain.launch.run_setup import TRUST_LIFETIME, RunSetup
from securetrain.launch.surroundings import surroundings_of

_EARLIER: Final = timedelta(minutes=5)
"""The CA of a job is valid a little before it is made."""


def keeper_of(setup: RunSetup, now: datetime, *, own: bool) -> Keeper:
    """The keeper of a launch.

    Args:
        setup: The run.
        now: The time.
        own: Whether this launch makes the coordinator, so that the run vouches for it.

    Raises:
        IdentityError: ST-IDEN-001 or 010 when the agent's key cannot be used.
    """
    store = EvidenceStore(setup.run.evidence)
    if not own:
        return Keeper(store=store)
    agent = PrivateKey.load(setup.run.key("agent"))

    def vouch(ca: x509.Certificate) -> str:
        return endorse(ca, setup.job, now - _EARLIER, now + TRUST_LIFETIME, agent)

    return Keeper(store=store, endorse=vouch)


def start_binding(
    setup: RunSetup, options: RunOptions, env: Mapping[str, str], keeper: Keeper
) -> Binder:
    """The binder of a launch; see `binding`.

    Raises:
        IdentityError: ST-IDEN-008 when the trust root cannot be used.
    """
    return Binder(
        setup=setup,
        keeper=keeper,
        trust=TrustRoot.parse_of_any_time(setup.run.trust.read_bytes(), str(setup.run.trust)),
        around=surroundings_of(options, env, Path.cwd()),
    )
