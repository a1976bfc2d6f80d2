# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain coordinator``: the coordinator of a job of several machines, on its own."""

import signal
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from securetrain.cli.clock import now
from securetrain.cli.command import Output, verb
from securetrain.cli.jobs.options import ListenerOptions, Rounds, WatcherOptions, plan_of
from securetrain.cli.options import CA, CaSecret
from securetrain.cli.signals import told_to_stop
from securetrain.core import ExitCode

if TYPE_CHECKING:
    from securetrain.ledger import Event


@verb("coordinator", json="Print one JSON object a line for each event.")
def command(
    *,
    ca: Annotated[
        Path, CA.told("The cluster CA's folder, or one that 'ca issue --coordinator' wrote.")
    ],
    rounds: Rounds,
    listening: ListenerOptions,
    watching: WatcherOptions,
    secret: CaSecret,
    output: Output,
) -> int:
    r"""Admit the nodes of a job under a policy, form its rounds, and keep the ledger.

    It runs no training code and needs no torch. It ends when the job is closed. SIGINT ends the job
    for its nodes; after SIGTERM they wait for a coordinator in the same --run-dir.

    Examples:
      securetrain coordinator --ca /etc/securetrain/ca --job run-7 --nnodes 2 --policy two.yaml \
          --bind 10.0.0.1 --port 29400 --enroll-port 29401 --invite node-0 --invite node-1
      securetrain coordinator --ca coordinator-ca --job run-7 --nnodes 2:4 --json
      securetrain coordinator --ca coordinator-ca --job run-7 --nnodes 2 --policy two.yaml \
          --secret dataset-key=file:/etc/securetrain/dataset.key

    Exit codes: 0 the job was closed by its nodes; 1 something was refused or could not be recorded;
    2 bad usage, policy or CA folder; 12 a certificate or list that is not good; 20 the disk is full
    or fails; 130 a signal came.
    """
    from securetrain.chain import Keeper
    from securetrain.chain.store import EvidenceStore
    from securetrain.core import RunDir
    from securetrain.identity import ClusterCA
    from securetrain.rendezvous.coordinator import Standalone
    from securetrain.report import Announcer

    plan = plan_of(rounds, listening)
    cluster = ClusterCA.load(ca, now())
    announcer, watchers = Announcer(as_json=output.format == "json"), watching.start(rounds.job)

    def tell(event: "Event") -> None:
        announcer.event(event)
        watchers.take(event)

    running = Standalone(
        plan=plan,
        cluster=cluster,
        unlock=secret.unlocker(cluster),
        clock=now,
        tell=tell,
        keep=Keeper(store=EvidenceStore(RunDir(plan.run_dir.absolute()).evidence)),
    )
    with ExitStack() as last:
        last.callback(watchers.stop)
        stop = last.enter_context(told_to_stop())
        running.start()
        if watchers.metrics:
            announcer.say(f"figures      http://{watchers.metrics}/metrics")
        try:
            announcer.ready(running)
            for node in listening.invite:
                ends = now() + timedelta(minutes=15)
                announcer.token(node, running.invite(node, ends).text())
            closed = running.serve(stop)
        finally:
            running.stop(for_good=stop.number != signal.SIGTERM)
    announcer.say(
        "the job was closed by its nodes" if closed else "stopped; the job was not closed"
    )
    return int(ExitCode.OK if closed else ExitCode.INTERRUPTED)
