# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Parts of the policy that depend on the script: what became of them in one run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from securetrain.core.errors import SecureTrainError
from securetrain.launch.agent.elastic_agent import Plan
from securetrain.launch.process.workerlog import WorkerReport
from securetrain.launch.setup import RunSetup
from securetrain.launch.summary import checkpoint_summary, outside_summary
from securetrain.launch.summary.gradient_summary import gradients_of, record_gradients
from securetrain.launch.summary.run_summary import (
    CheckpointSummary,
    GradientSummary,
    Outcome,
    OutsideSummary,
)
from securetrain.ledger import Ledger, events


@dataclass(frozen=True, slots=True, kw_only=True)
class Enforced:
    """The state until now; None without workers, and before the end."""

    gradients: GradientSummary | None = None
    checkpoints: CheckpointSummary | None = None
    outside: OutsideSummary | None = None

    def refusal(self, setup: RunSetup, outcome: Outcome) -> SecureTrainError | None:
        """The refusal of a run that ended well, for what shows at its end alone."""
        if outcome is not Outcome.SUCCEEDED:
            return None
        return outside_summary.refusal(setup.policy.policy, self.outside)


def enforced_of(
    setup: RunSetup, plan: Plan | None, reports: Sequence[WorkerReport] | None
) -> Enforced:
    """Say what is known.

    Args:
        setup: The run.
        plan: The workers.
        reports: Theirs; None before the end.
    """
    gradients = gradients_of(setup, plan, reports)
    if plan is None or reports is None:
        return Enforced(gradients=gradients)
    policy = setup.policy.policy
    checkpoints = checkpoint_summary.at_end(
        policy, reports, protected=plan.protected, num_workers=plan.num_workers
    )
    outside = outside_summary.at_end(policy, reports, protected=plan.protected)
    return Enforced(gradients=gradients, checkpoints=checkpoints, outside=outside)


def record_enforced(found: Enforced, ledger: Ledger, say: Callable[[str], None]) -> None:
    """Record and say the end of it."""
    record_gradients(found.gradients, ledger, say)
    outside_summary.record_outside(found.outside, ledger, say)
    saved = found.checkpoints
    if saved is None:
        return
    if saved.label:
        say(saved.label)
    if saved.unsigned:
        ledger.write(
            events.CheckpointsNotSigned(
                subject="end of the run",
                ways=", ".join(saved.ways)[:500],
                place=saved.places[0],
                saves=saved.unsigned,
                fields=", ".join(saved.fields)[:500],
            )
        )
