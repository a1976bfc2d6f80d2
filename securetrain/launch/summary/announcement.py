# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The start of a run, for people."""

from collections.abc import Iterator, Sequence

from securetrain.core.vocabulary import UNATTESTED, NetworkProfile
from securetrain.launch.agent.elastic_agent import TRAINER, Plan
from securetrain.launch.checkpoints.checkpoint_log import CheckpointLog
from securetrain.launch.node.confinement import Confinement
from securetrain.launch.node.preflight import Preflight
from securetrain.launch.options import RunOptions
from securetrain.launch.setup import RunSetup, node_name
from securetrain.launch.summary import checkpoint_summary, gradient_summary, outside_summary
from securetrain.network import label


def announcement(
    setup: RunSetup,
    options: RunOptions,
    *,
    endpoint: str,
    profile: NetworkProfile,
    spoken: str,
    preflight: Preflight,
    plan: Plan,
    confinement: Confinement | None,
    log: str,
    way_out: str,
    warnings: Sequence[str],
) -> Iterator[str]:
    """Its lines.

    Args:
        setup: The run.
        options: The command line.
        endpoint: The coordinator's host and port.
        profile: The achieved network profile.
        spoken: This node's attester; empty when it attests nothing.
        preflight: What the preflight found.
        plan: The workers.
        confinement: Their sandbox.
        log: The transparency log; empty without one.
        way_out: The workers' way out, or why it is not limited; empty when nothing limits it.
        warnings: Those of the workers' environment.
    """
    policy, where = setup.policy.policy, "of the job, at" if options.joins else "started at"
    source = options.scan.policy_source
    evidence = f"evidence of its hardware ({spoken})" if spoken else UNATTESTED
    shim = "under the shim" if plan.protected else "WITHOUT the shim"
    yield f"policy       {policy.metadata.id} {policy.metadata.version} ({source})"
    yield f"run          {setup.run.root}"
    yield f"network      {label(profile)}"
    yield f"sandbox      {confinement.label if confinement else ''}"
    if way_out:
        yield f"egress       {way_out}"
    yield f"node         {node_name()}: {evidence}"
    yield f"coordinator  {where} {endpoint}, TLS 1.3 with certificates on both sides"
    yield f"preflight    {preflight.sentence}"
    if log:
        yield f"log          {log}"
    yield gradient_summary.at_start(policy.gradients, protected=plan.protected).label
    if not (options.torch.module and options.script == TRAINER):
        yield checkpoint_summary.at_start(policy, protected=plan.protected)
        yield from outside_summary.at_start(policy, protected=plan.protected)
    yield f"workers      {plan.num_workers} of {options.script}, {shim}"
    for line in preflight.warnings(policy.host.fail_on):
        yield f"warning: {line}"
    for warning in warnings:
        yield f"warning: {warning}"
    for note in (*plan.notes, *(confinement.notes if confinement else ())):
        yield f"note: {note}"


def reminders(plan: Plan | None, confinement: Confinement | None, way_out: str) -> Iterator[str]:
    """The lines of what could not be enforced, for the end of a run that had workers."""
    if plan is None:
        return
    if confinement is not None and not confinement.is_whole:
        yield f"sandbox      {confinement.label}"
    if way_out:
        yield f"egress       {way_out}"


def logged(book: CheckpointLog | None) -> Iterator[str]:
    """The line of what the transparency log has of this run."""
    if book is not None:
        count = f"{book.num_logged} checkpoint{'s' if book.num_logged != 1 else ''}"
        yield f"{count} logged in {book.folder}"
