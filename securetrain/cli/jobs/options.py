# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The options of verbs about jobs, and what the library makes of them."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import click

from securetrain.cli.clock import now
from securetrain.cli.command import Option
from securetrain.cli.options import ADVERTISE, JOB, PER_NODE, POLICY, TRUST, TRUST_DATA
from securetrain.cli.signals import is_any
from securetrain.core import undumped

if TYPE_CHECKING:
    from securetrain.rendezvous.coordinator import Plan, Watchers
    from securetrain.train.planning import Device

PORT: Final = click.IntRange(0, 65535)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """The job, and how its rounds are formed."""

    job: Annotated[str, JOB]
    """The job's id: what torchrun calls --rdzv-id."""
    nnodes: Annotated[str, Option("--nnodes")]
    """Machines: a number, or MIN:MAX."""
    last_call: Annotated[float, Option("--last-call", type=click.FloatRange(0, 86400))] = 30.0
    """Seconds that a round waits for more nodes once MIN are in."""
    policy: Annotated[str, POLICY] = "baseline"
    """A policy's name or file."""
    secrets: Annotated[tuple[str, ...], Option("--secret", metavar="NAME=file:PATH")]
    """Where a secret lies that the policy names: file:PATH, env:VARIABLE or command:PROGRAM
    ARGUMENTS; repeatable.
    """
    run_dir: Annotated[Path | None, Option("--run-dir")]
    """Ledger and state; used again after a restart. Default: runs/JOB-coordinator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerOptions:
    """The addresses that it listens on, and the nodes that it waits for."""

    bind: Annotated[str, Option("--bind")] = "127.0.0.1"
    """The address to listen on."""
    port: Annotated[int, Option("--port", type=PORT)] = 29400
    """0: any."""
    enroll_port: Annotated[int | None, Option("--enroll-port", type=PORT)]
    """Also take enrollments with one-time tokens, on this port."""
    advertise: Annotated[str, ADVERTISE] = ""
    """The host that stands in tokens. Default: --bind."""
    invite: Annotated[tuple[str, ...], Option("--invite")]
    """Print a token for this node, good for 15 minutes; repeatable."""

    def check(self) -> None:
        """Refuse options that need others."""
        if self.invite and self.enroll_port is None:
            raise click.UsageError("--invite needs --enroll-port")
        if self.enroll_port is not None and is_any(self.bind) and not self.advertise:
            raise click.UsageError(
                f"--bind {self.bind}: say with --advertise which host tokens name"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class WatcherOptions:
    """The receivers of what happens."""

    metrics: Annotated[str, Option("--metrics", metavar="[HOST:]PORT")] = ""
    """Serve figures for Prometheus at /metrics there. Default host: 127.0.0.1."""
    webhook: Annotated[str, Option("--webhook", metavar="URL")] = ""
    """Tell it of bars, refusals, endings."""
    webhook_secret: Annotated[Path | None, Option("--webhook-secret")]
    """The file of the secret that signs what it is told."""

    def start(self, job: str) -> "Watchers":
        """Begin to tell them."""
        from securetrain.rendezvous.coordinator import Watchers

        return Watchers(
            job, now, metrics=self.metrics, webhook=self.webhook, secret=self.webhook_secret
        )


def plan_of(rounds: Rounds, listening: ListenerOptions) -> "Plan":
    """As the library calls it."""
    from securetrain.launch import this_node
    from securetrain.policy import load_policy
    from securetrain.rendezvous.coordinator import Plan, Vault

    low, high = node_range(rounds.nnodes)
    listening.check()
    loaded = load_policy(rounds.policy)
    if loaded.policy.node.secrets:
        undumped()
    return Plan(
        job=rounds.job,
        min_nodes=low,
        max_nodes=high,
        policy=loaded,
        vault=Vault.open(loaded.policy, rounds.secrets, os.environ),
        run_dir=rounds.run_dir or Path("runs") / f"{rounds.job}-coordinator",
        fleet=this_node(os.environ).fleet,
        bind=listening.bind,
        port=listening.port,
        enroll_port=listening.enroll_port,
        advertise=listening.advertise,
        last_call=rounds.last_call,
    )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """The machines of the job."""

    nnodes: Annotated[int | None, Option("--nnodes", type=click.IntRange(1, 65536))]
    """Nodes; else the job's launch.nnodes."""
    nproc_per_node: Annotated[int | None, PER_NODE.told(type=click.IntRange(1, 1024))]
    """Processes on each node; else the job's launch.nproc_per_node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """The accelerator that it is planned for."""

    device: Annotated[str | None, Option("--device")]
    """The accelerator: h100, h200, ... Else the job's launch.device."""
    memory: Annotated[float | None, Option("--memory", type=click.FloatRange(min=1))]
    """Its memory in GB (10^9 bytes)."""
    network: Annotated[float | None, Option("--network", type=click.FloatRange(min=0.001))]
    """Gb/s of network of each accelerator, for times; else those of the vendor's system."""

    def read(self, of_job: str | None, file: Path) -> "Device | None":
        """As the library calls it."""
        from securetrain.report import GB
        from securetrain.train.planning import Device, device_named

        name = self.device or of_job
        found = None if name is None else device_named(name, f"{file}: launch.device")
        if self.memory is not None:
            speed = None if found is None else found.speed
            found = Device("a device", int(self.memory * GB), speed)
        if self.network is not None and found is not None:
            found = found.with_network(self.network)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickstartOptions:
    """The length of the story, and its parts."""

    run_dir: Annotated[Path | None, Option("--run-dir")]
    """The run directory; must be new. Default: runs/quickstart-TIME."""
    steps: Annotated[int | None, Option("--steps", type=click.IntRange(4, 100_000))]
    """Optimizer steps. The default takes about a minute on two idle cores."""
    nproc_per_node: Annotated[int, PER_NODE.told(type=click.IntRange(1, 64))] = 2
    """Worker processes."""
    tpm: Annotated[bool, Option("--tpm")]
    """Let a software TPM (swtpm) speak for this machine: the whole exchange, TEST-ONLY."""
    no_drills: Annotated[bool, Option("--no-drills")]
    """Leave the four attacks out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfPack:
    """The signatures and the policy that a pack is judged by."""

    trust: Annotated[Path | None, TRUST]
    """Of a pack: the trust root. A run directory has its own."""
    policy: Annotated[str | None, POLICY]
    """Of a pack: a policy that it is asked for."""
    trust_data: Annotated[Path | None, TRUST_DATA]
    """Of a pack: the trust root of whoever made its dataset."""
