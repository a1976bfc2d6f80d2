# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain coordinator``: the coordinator of a job of several machines, on its own."""

import ipaddress
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

import click

from securetrain.cli.options import file_option, json_as, passphrase_option
from securetrain.cli.passphrase import unlocker
from securetrain.core import ExitCode, undumped

if TYPE_CHECKING:
    from securetrain.ledger import Event

EPILOG = """\
\b
Examples:
  securetrain coordinator --ca /etc/securetrain/ca --job run-7 --nnodes 2 --policy two.yaml \\
      --bind 10.0.0.1 --port 29400 --enroll-port 29401 --invite node-0 --invite node-1
  securetrain coordinator --ca coordinator-ca --job run-7 --nnodes 2:4 --json
  securetrain coordinator --ca coordinator-ca --job run-7 --nnodes 2 --policy two.yaml \\
      --secret dataset-key=file:/etc/securetrain/dataset.key

\b
Exit codes: 0 the job was closed by its nodes; 1 something was refused or could not be recorded;
2 bad usage, policy or CA folder; 12 a certificate or list that is not good; 20 the disk is full or
fails; 130 a signal came.
"""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command(name="coordinator", epilog=EPILOG)
@file_option(
    "--ca",
    "folder",
    required=True,
    help="The cluster CA's folder, or one that 'ca issue --coordinator' wrote.",
)
@click.option("--job", required=True, help="The job's id: what torchrun calls --rdzv-id.")
@click.option("--nnodes", required=True, help="Machines: a number, or MIN:MAX.")
@click.option(
    "--last-call",
    type=click.FloatRange(0, 86400),
    default=30.0,
    show_default=True,
    help="Seconds that a round waits for more nodes once MIN are in.",
)
@click.option("--policy", default="baseline", show_default=True, help="A policy's name or file.")
@click.option("--bind", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=29400, show_default=True, help="0: any."
)
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="NAME=file:PATH",
    help="Where a secret lies that the policy names: file:PATH, env:VARIABLE or command:PROGRAM"
    " ARGUMENTS; repeatable.",
)
@click.option(
    "--enroll-port",
    type=click.IntRange(0, 65535),
    help="Also take enrollments with one-time tokens, on this port.",
)
@click.option("--advertise", default="", help="The host that stands in tokens. Default: --bind.")
@click.option(
    "--invite", multiple=True, help="Print a token for this node, good for 15 minutes; repeatable."
)
@file_option(
    "--run-dir", help="Ledger and state; used again after a restart. Default: runs/JOB-coordinator."
)
@click.option(
    "--metrics",
    default="",
    metavar="[HOST:]PORT",
    help="Serve figures for Prometheus at /metrics there. Default host: 127.0.0.1.",
)
@click.option("--webhook", default="", metavar="URL", help="Tell it of bars, refusals, endings.")
@file_option("--webhook-secret", help="The file of the secret that signs what it is told.")
@passphrase_option
@json_as("Print one JSON object a line for each event.")
def command(
    *,
    folder: Path,
    job: str,
    nnodes: str,
    last_call: float,
    policy: str,
    bind: str,
    port: int,
    secrets: tuple[str, ...],
    enroll_port: int | None,
    advertise: str,
    invite: tuple[str, ...],
    run_dir: Path | None,
    metrics: str,
    webhook: str,
    webhook_secret: Path | None,
    passphrase_file: Path | None,
    output: str,
) -> int:
    """Admit the nodes of a job under a policy, form its rounds, and keep the ledger.

    It runs no training code and needs no torch. It ends when the job is closed. SIGINT ends the job
    for its nodes; after SIGTERM they wait for a coordinator in the same --run-dir.
    """
    from securetrain.chain import Keeper
    from securetrain.chain.store import EvidenceStore
    from securetrain.core import RunDir
    from securetrain.identity import ClusterCA
    from securetrain.launch import this_node
    from securetrain.policy.load import load_policy
    from securetrain.rendezvous.coordinator import Plan, Standalone, Vault, Watchers
    from securetrain.report import Announcer

    low, high = node_range(nnodes)
    if invite and enroll_port is None:
        raise click.UsageError("--invite needs --enroll-port")
    if enroll_port is not None and is_any(bind) and not advertise:
        raise click.UsageError(f"--bind {bind}: say with --advertise which host tokens name")
    loaded = load_policy(policy)
    if loaded.policy.node.secrets:
        undumped()
    plan = Plan(
        job=job,
        min_nodes=low,
        max_nodes=high,
        policy=loaded,
        vault=Vault.open(loaded.policy, secrets, os.environ),
        run_dir=run_dir or Path("runs") / f"{job}-coordinator",
        fleet=this_node(os.environ).fleet,
        bind=bind,
        port=port,
        enroll_port=enroll_port,
        advertise=advertise,
        last_call=last_call,
    )
    cluster = ClusterCA.load(folder, datetime.now(UTC))
    announcer = Announcer(as_json=output == "json")
    watchers = Watchers(
        job,
        lambda: datetime.now(UTC),
        metrics=metrics,
        webhook=webhook,
        secret=webhook_secret,
    )

    def tell(event: "Event") -> None:
        announcer.event(event)
        watchers.take(event)

    running = Standalone(
        plan=plan,
        cluster=cluster,
        unlock=unlocker(cluster, passphrase_file),
        clock=lambda: datetime.now(UTC),
        tell=tell,
        keep=Keeper(store=EvidenceStore(RunDir(plan.run_dir.absolute()).evidence)),
    )
    with ExitStack() as last, told_to_stop() as stop:
        last.callback(watchers.stop)
        running.start()
        if watchers.metrics:
            announcer.say(f"figures      http://{watchers.metrics}/metrics")
        try:
            announcer.ready(running)
            for node in invite:
                ends = datetime.now(UTC) + timedelta(minutes=15)
                announcer.token(node, running.invite(node, ends).text())
            closed = running.serve(stop)
        finally:
            running.stop(for_good=stop.number != signal.SIGTERM)
    announcer.say(
        "the job was closed by its nodes" if closed else "stopped; the job was not closed"
    )
    return int(ExitCode.OK if closed else ExitCode.INTERRUPTED)


def is_any(address: str) -> bool:
    """Tell whether an address means every interface."""
    try:
        return ipaddress.ip_address(address).is_unspecified
    except ValueError:
        return False


def node_range(nnodes: str) -> tuple[int, int]:
    """The lower and upper end of ``--nnodes``."""
    low, _, high = nnodes.partition(":")
    try:
        ends = int(low), int(high or low)
    except ValueError:
        ends = 0, 0
    if not 0 < ends[0] <= ends[1]:
        raise click.UsageError(f"--nnodes {nnodes!r} is not MIN:MAX or a number above 0")
    return ends


class Stop(threading.Event):
    """Set by the first signal."""

    number = 0
    """The signal's, once there was one."""


@contextmanager
def told_to_stop() -> Iterator[Stop]:
    """An event that the first signal sets; the second one interrupts."""
    stop = Stop()

    def on_signal(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - signal's signature
        if stop.is_set():
            raise KeyboardInterrupt
        stop.number = number
        stop.set()

    before = {number: signal.signal(number, on_signal) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
