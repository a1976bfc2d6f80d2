# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain coordinator``: the coordinator of a job of several machines, on its own."""

import ipaddress
import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

import click

from securetrain.cli.passphrase import passphrase_option, unlocker
from securetrain.core.codes import ExitCode
from securetrain.core.text import printable

if TYPE_CHECKING:
    from securetrain.ledger import Event
    from securetrain.rendezvous.coordinator.standalone import Standalone

EPILOG = """\
\b
Examples:
  securetrain coordinator --ca /etc/securetrain/ca --job run-7 --nnodes 2 --policy two.yaml \\
      --bind 10.0.0.1 --port 29400 --enroll-port 29401 --invite node-0 --invite node-1
  securetrain coordinator --ca coordinator-ca --job run-7 --nnodes 2:4 --json

\b
Exit codes: 0 the job was closed by its nodes; 1 something was refused or could not be recorded;
2 bad usage, policy or CA folder; 12 a certificate or list that is not good; 20 the disk is full or
fails; 130 a signal came.
"""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command(name="coordinator", epilog=EPILOG)
@click.option(
    "--ca",
    "folder",
    type=click.Path(path_type=Path),
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
    "--enroll-port",
    type=click.IntRange(0, 65535),
    help="Also take enrolments with one-time tokens, on this port.",
)
@click.option("--advertise", default="", help="The host that stands in tokens. Default: --bind.")
@click.option(
    "--invite", multiple=True, help="Print a token for this node, good for 15 minutes; repeatable."
)
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path),
    help="Ledger and state; used again after a restart. Default: runs/JOB-coordinator.",
)
@passphrase_option
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object a line for each event."
)
@click.pass_context
def command(  # noqa: PLR0917 - click passes options by name
    ctx: click.Context,
    folder: Path,
    job: str,
    nnodes: str,
    last_call: float,
    policy: str,
    bind: str,
    port: int,
    enroll_port: int | None,
    advertise: str,
    invite: tuple[str, ...],
    run_dir: Path | None,
    passphrase_file: Path | None,
    as_json: bool,
) -> None:
    """Admit the nodes of a job under a policy, form its rounds, and keep the ledger.

    It runs no training code and needs no torch. It ends when the job is closed.
    """
    from securetrain.identity.cluster_ca import ClusterCA
    from securetrain.policy.load import load_policy
    from securetrain.rendezvous.coordinator.standalone import Plan, Standalone

    low, high = node_range(nnodes)
    if invite and enroll_port is None:
        raise click.UsageError("--invite needs --enroll-port")
    if enroll_port is not None and is_any(bind) and not advertise:
        raise click.UsageError(f"--bind {bind}: say with --advertise which host tokens name")
    plan = Plan(
        job=job,
        min_nodes=low,
        max_nodes=high,
        policy=load_policy(policy),
        run_dir=run_dir or Path("runs") / f"{job}-coordinator",
        bind=bind,
        port=port,
        enrol_port=enroll_port,
        advertise=advertise,
        last_call=last_call,
    )
    cluster = ClusterCA.load(folder, datetime.now(UTC))
    voice = Voice(as_json)
    running = Standalone(
        plan=plan,
        cluster=cluster,
        unlock=unlocker(cluster, passphrase_file),
        clock=lambda: datetime.now(UTC),
        tell=voice.event,
    )
    with told_to_stop() as stop:
        running.start()
        try:
            voice.ready(running)
            for node in invite:
                ends = datetime.now(UTC) + timedelta(minutes=15)
                voice.token(node, running.invite(node, ends).text())
            closed = running.serve(stop)
        finally:
            running.stop()
    voice.say("the job was closed by its nodes" if closed else "stopped; the job was not closed")
    ctx.exit(int(ExitCode.OK if closed else ExitCode.INTERRUPTED))


class Voice:
    """What the coordinator says: lines for people on standard error, or JSON lines."""

    def __init__(self, as_json: bool) -> None:
        self._json = as_json
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        """One line for people."""
        if not self._json:
            self._write(f"securetrain: {printable(text)}")

    def ready(self, running: "Standalone") -> None:
        """Where it listens."""
        plan = running.plan
        host, port = running.address
        if self._json:
            desk = ":".join(map(str, running.enrolment)) if running.enrolment else ""
            self._object(event="ready", job=plan.job, address=f"{host}:{port}", enrolment=desk)
            return
        self.say(f"policy       {plan.policy.policy.metadata.id} ({plan.policy.digest[:16]})")
        self.say(f"run          {plan.run_dir}")
        self.say(f"job          {plan.job}, {plan.min_nodes} to {plan.max_nodes} nodes")
        self.say(f"coordinator  {host}:{port}, TLS 1.3 with certificates on both sides")
        if running.enrolment:
            self.say(f"enrolment    {running.enrolment[0]}:{running.enrolment[1]}, with tokens")

    def token(self, node: str, text: str) -> None:
        """A token: on standard output, so that it can be told from what is said about it."""
        if self._json:
            self._object(event="token", node=node, token=text)
            return
        self.say(f"on {node}: securetrain enroll join TOKEN --out DIR   with the token")
        with self._lock:
            click.echo(text)
            sys.stdout.flush()

    def event(self, event: "Event") -> None:
        """An event of the ledger."""
        if self._json:
            details = {"code": event.code, "details": event.details}
            self._object(
                event=event.event, decision=event.decision.value, subject=event.subject, **details
            )
            return
        shown = ("label", "nodes", "address", "number")
        facts = [f"{k} {event.details[k]}" for k in shown if k in event.details]
        facts += [str(event.details["what"])] if "what" in event.details else []
        head = " ".join(filter(None, (event.event, event.code, event.subject)))
        self.say(f"{head}{': ' + ', '.join(facts) if facts else ''}")

    def _object(self, **fields: object) -> None:
        self._write(json.dumps(fields, sort_keys=True))

    def _write(self, line: str) -> None:
        with self._lock:
            click.echo(line, err=not self._json)


def is_any(address: str) -> bool:
    """Whether an address means every interface."""
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


@contextmanager
def told_to_stop() -> Iterator[threading.Event]:
    """An event that the first signal sets; the second one interrupts."""
    stop = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - signal's signature
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, on_signal) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
