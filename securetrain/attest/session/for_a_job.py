# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The verifier of a job, with what this machine remembers of the fleet across jobs."""

from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from securetrain.attest.session.appraisers import appraisers_for
from securetrain.attest.session.fleet_database import open_fleet_state
from securetrain.attest.session.sealed_state import SealedState
from securetrain.attest.session.state import FileState
from securetrain.attest.session.verifier import Verifier
from securetrain.core.errors import AttestationError
from securetrain.ledger import Ledger, events
from securetrain.policy.load import LoadedPolicy

if TYPE_CHECKING:
    from securetrain.attest.session.values_watch import ValuesWatch


def open_fleet(
    folder: Path, policy: LoadedPolicy, *, old: Path | None = None, seen: int = 0
) -> SealedState:
    """Open the state of a fleet for a coordinator.

    Args:
        folder: of the machine (`core.NodeState.fleet`).
        policy: of the job, which says whose nodes they are.
        old: the file in the run's directory where earlier versions of this program kept it; what it
            holds is taken over.
        seen: the version that an earlier coordinator of the job found.

    Raises:
        AttestationError: ST-ATTS-015 and 017.
    """
    state = open_fleet_state(folder, policy.policy.identity.trust_domain)
    try:
        if state.version < seen:
            raise AttestationError(
                "ST-ATTS-017",
                f"it has version {state.version}, and version {seen} in this run's ledger",
                state.place,
            )
        if old is not None and old.exists():
            with closing(FileState(old)) as before:
                state.adopt(before)
    except BaseException:
        state.close()
        raise
    return state


def fleet_verifier(
    policy: LoadedPolicy,
    clock: Callable[[], datetime],
    state: SealedState,
    ledger: Ledger,
) -> Verifier:
    """The verifier of one job under a policy, whose reference values may be signed again meanwhile.

    Args:
        policy: of the job.
        clock: the time, timezone-aware.
        state: of the fleet.
        ledger: the coordinator's, which is told what was opened, and of new editions.

    Raises:
        AttestationError: ST-ATTS-009, 015, 017, 3xx or 7xx.
    """
    # Before the files are read: what changes after that is noticed.
    named = policy.policy.node.reference_values is not None
    watch = _watch(policy, clock, state, ledger) if named else None
    appraisers = appraisers_for(policy, clock(), state)
    made = Verifier(
        policy=policy.policy,
        policy_digest=policy.digest,
        clock=clock,
        appraisers=appraisers,
        state=state,
        watch=watch,
    )
    ledger.write(
        events.FleetStateOpened(
            subject=state.place, version=state.version, barred=len(state.revocations())
        )
    )
    if watch is not None:
        watch.begin(appraisers)
    return made


def _watch(
    policy: LoadedPolicy, clock: Callable[[], datetime], state: SealedState, ledger: Ledger
) -> "ValuesWatch":
    from securetrain.attest.session.values_watch import ValuesWatch  # noqa: PLC0415 - as its users

    return ValuesWatch(
        policy=policy,
        state=state,
        clock=clock,
        read=lambda: ledger.write(events.ReferenceValuesRead()),
        refused=lambda error: ledger.write(events.ReferenceValuesNotRead.of(error)),
        ending=lambda days: ledger.write(events.ReferenceValuesEnding(days=days)),
        collateral=lambda one, days: ledger.write(
            events.CollateralEnding(subject=one.name, kind=one.kind, days=days)
        ),
    )
