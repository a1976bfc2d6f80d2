# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""torch's elastic agent, run in this process with our rendezvous and our worker entry.

Everything that makes torchrun's flags work is torch's own code (``config_from_args``,
``elastic_launch``); two things are replaced: the rendezvous backend, and the command, which starts
the worker shim in front of the script. This is the only module of the launcher that needs torch.
"""

import argparse
import functools
import logging
import os
import shlex
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from securetrain.core.errors import RuntimeRefusal, SecureTrainError, UsageError
from securetrain.core.vocabulary import EnforcementMode
from securetrain.launch.agent.arrivals import NodeArrival
from securetrain.launch.dropin import BACKEND, without_no_python
from securetrain.launch.options import RunOptions
from securetrain.launch.process.workerlog import WorkerReport
from securetrain.launch.sandbox.sandbox import Sandbox
from securetrain.policy.schema import GuardMode, GuardResponse, Policy, UnpickleMode
from securetrain.rendezvous.member import (
    CARRIER,
    FLOORS,
    ON_EPOCH,
    ON_JOIN,
    STORE_PORT,
    TUNNEL,
    Carrier,
    Member,
)
from securetrain.rendezvous.wire import Membership, Tunnel

WORKER: Final = "securetrain.launch.worker.script"
TRAINER: Final = "securetrain.train"
ROLLBACK: Final = (
    "gradients.response: rollback goes back to checkpoints of the built-in trainer; the first step"
    " of a model of any other script is refused (ST-GRAD-021): use exclude-rank there"
)

_SHUTDOWN: Final = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"

OnEpoch: TypeAlias = Callable[[Membership, Callable[[datetime], datetime]], None]
"""See `rendezvous.member.handler.SecureRendezvousHandler`."""


class WatchesWorkers(Protocol):
    """Hears of every start of the workers: which process is which rank (`signing.service`)."""

    def starting(self) -> None:
        """They are about to be started."""

    def started(
        self, pids: Mapping[int, int], environments: Mapping[int, Mapping[str, str]]
    ) -> None:
        """They are: their processes and the agent's variables for each, by local rank."""

    def shutdown_seconds(self) -> float:
        """The time that they want to save and end, once they are told to."""

    def report(self, rank: int, attempt: int) -> WorkerReport | None:
        """The report of a rank so far, if it can be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A worker that failed."""

    rank: int
    local_rank: int
    pid: int
    exit_code: int
    """Negative: the number of the signal that ended it."""
    ending: str
    """'exit code 3' or 'signal SIGKILL'."""
    timestamp: int
    was_told: bool = False
    """Whether it still ran when the agent told the workers to end, because another had failed."""
    was_killed: bool = False
    """Whether the agent killed it then, because it did not end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResult:
    """The outcome of the workers."""

    failures: tuple[Failure, ...] = ()
    signal: str = ""
    """The name of the signal that ended the launcher; empty when none did."""
    error_file: str = ""
    """The error file of the worker that failed first; empty when it wrote none."""
    exit_code: int = 0
    """How that worker ended."""
    membership: Membership | None = None
    """The epoch in which workers failed, of a job of several nodes."""
    lost: tuple[str, ...] = ()
    """Its members that were out by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The launch configuration for torch's agent."""

    config: Any
    """A `torch.distributed.launcher.api.LaunchConfig`."""
    program: str
    arguments: tuple[str, ...]
    protected: bool
    """Whether the shim stands in front of the program."""
    notes: tuple[str, ...] = field(default=())
    ends_when_told: bool = False
    """Whether a person has said how long workers have to end."""

    @property
    def rdzv_conf(self) -> Mapping[str, Any]:
        """The value of ``--rdzv-conf``."""
        return dict(self.config.rdzv_configs)

    @property
    def num_workers(self) -> int:
        """Workers on this node."""
        return int(self.config.nproc_per_node)


def node_range(nnodes: str) -> tuple[int, int]:
    """The lower and upper end of ``--nnodes``.

    Raises:
        UsageError: ST-USAG-001.
    """
    low, _, high = nnodes.partition(":")
    try:
        ends = int(low), int(high or low)
    except ValueError:
        ends = 0, 0
    if not 0 < ends[0] <= ends[1]:
        raise UsageError(
            "ST-USAG-001",
            f"{nnodes!r} is not MIN:MAX or a number above 0",
            "--nnodes",
            "--nnodes 1",
        )
    return ends


def make_plan(options: RunOptions, policy: Policy, log_dir: Path) -> Plan:
    """Turn the command line into torch's launch configuration.

    Raises:
        UsageError: ST-USAG-001 for a value that torch refuses.
        RuntimeRefusal: ST-RUNT-007 or ST-RUNT-021 for a program that cannot be protected under the
            policy.
    """
    # Imported by now: the command line was parsed with it.
    from torch.distributed.run import (  # noqa: PLC0415
        config_from_args,
        determine_local_world_size,
    )

    notes = _notes(options)
    gradients = policy.gradients
    goes_back = gradients.mode is not GuardMode.OFF and gradients.response is GuardResponse.ROLLBACK
    if goes_back and not (options.torch.module and options.script == TRAINER):
        notes.append(ROLLBACK)
    arguments = argparse.Namespace(**vars(options.torch))
    protected = not arguments.no_python or bool(arguments.run_path)
    if not protected and policy.checkpoint.unpickle is UnpickleMode.ENFORCE:
        raise _unprotected(options)
    if not protected and policy.enforcement is EnforcementMode.REQUIRE:
        raise RuntimeRefusal(
            "ST-RUNT-021",
            f"--no-python runs {options.script} without the worker shim, so nothing watches its"
            " gradients, saves and debug servers, and the policy requires that all of it is"
            " enforced (enforcement)",
            "--no-python",
            "start a Python script without --no-python, or use a policy with enforcement: report",
        )
    if protected:
        # The shim runs the script in an interpreter of its own, as torch does without --run-path.
        arguments.run_path = arguments.no_python = False
    else:
        notes.append("--no-python: the workers run without the shim")
        if policy.node.secrets:
            notes.append("--no-python: the workers are handed no secrets (node.secrets)")
    arguments.log_dir = arguments.log_dir or str(log_dir)
    arguments.master_port = arguments.master_port or 29500  # unused by our backend; torch wants one
    try:
        with _quiet("torch.distributed.run", logging.ERROR):
            num_workers = determine_local_world_size(arguments.nproc_per_node)
            if num_workers > 1 and "OMP_NUM_THREADS" not in os.environ:
                os.environ["OMP_NUM_THREADS"] = "1"
                notes.append("OMP_NUM_THREADS is 1 for every worker, as torchrun sets it")
            config, program, command = config_from_args(arguments)
    except (ValueError, RuntimeError, AssertionError, OSError) as error:
        raise UsageError(
            "ST-USAG-001", str(error), "securetrain run", "securetrain run --help"
        ) from error
    if protected:
        # command is -u [-m] script arguments...
        command = [command[0], "-P", "-m", WORKER, *command[1:]]
    return Plan(
        config=config,
        program=str(program),
        arguments=tuple(command),
        protected=protected,
        notes=tuple(notes),
        ends_when_told=arguments.shutdown_timeout is not None or _SHUTDOWN in os.environ,
    )


def run_agent(
    plan: Plan,
    *,
    endpoint: str,
    run_id: str,
    identity: Path | None,
    store_port: int = 0,
    attester: str = "",
    tunnel: Tunnel | None = None,
    carrier: Carrier | Sandbox | None = None,
    on_epoch: OnEpoch | None = None,
    on_join: Callable[[Member], None] | None = None,
    floors: Callable[[], Sequence[bytes]] | None = None,
    watcher: WatchesWorkers | None = None,
) -> AgentResult:
    """Run the job's workers on this node until they have ended.

    Args:
        plan: From `make_plan`.
        endpoint: The coordinator's host and port.
        run_id: The job's id.
        identity: The node's identity folder; None keeps what ``--rdzv-conf`` says.
        store_port: The port of the workers' store, when this node hosts it; 0 for any.
        attester: The node's attester (`attest.node.settings.settings_for`); empty keeps that too.
        tunnel: This node's end of the job network, when the job has one.
        carrier: Carries the store over TLS, when several nodes have none (store-tls); or makes its
            sockets in the network with loopback alone that the workers of one node have.
        on_epoch: Hears of every epoch before its workers start.
        on_join: Is given this node's connection to the job.
        floors: Gives the heads to show the other nodes before every round.
        watcher: Hears which processes are the workers.

    Raises:
        SecureTrainError: what the rendezvous refused.
    """
    from torch.distributed.elastic.multiprocessing import SignalException  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415
    from torch.distributed.elastic.rendezvous import RendezvousError  # noqa: PLC0415
    from torch.distributed.launcher.api import elastic_launch  # noqa: PLC0415

    from securetrain.launch.agent import member_agent  # noqa: PLC0415

    _register_backend()
    config = plan.config
    config.rdzv_backend = BACKEND
    config.rdzv_endpoint = endpoint
    config.run_id = run_id
    config.local_addr = None  # under plain torchrun our backend would listen there
    config.rdzv_configs.setdefault("local_world", plan.num_workers)
    config.rdzv_configs.setdefault("role", config.role)
    if identity is not None:
        config.rdzv_configs["identity"] = str(identity)
    if store_port:
        config.rdzv_configs[STORE_PORT] = store_port
    if attester:
        config.rdzv_configs["attester"] = attester
    objects = {
        TUNNEL: tunnel,
        CARRIER: carrier,
        ON_EPOCH: on_epoch,
        ON_JOIN: on_join,
        FLOORS: floors,
    }
    joined: list[Member] = []
    arrival = NodeArrival(watcher.report) if watcher is not None and plan.protected else None
    if on_join is not None and arrival is not None:
        objects[ON_JOIN] = functools.partial(_joined, on_join, joined)
    config.rdzv_configs |= {name: given for name, given in objects.items() if given is not None}
    told, killed = set[int](), set[int]()
    try:
        wanted = [] if watcher is None or plan.ends_when_told else [watcher.shutdown_seconds]
        with member_agent.in_place(*wanted, arrival=arrival), _watched(watcher, told, killed):
            elastic_launch(config, plan.program)(*plan.arguments)
    except ChildFailedError as error:
        _, first = error.get_first_failure()
        return AgentResult(
            failures=tuple(_failure(r, f, told, killed) for r, f in error.failures.items()),
            error_file=str(first.error_file),
            exit_code=int(first.exitcode),
            membership=joined[-1].membership if joined else None,
            lost=joined[-1].lost if joined else (),
        )
    except SignalException as error:
        return AgentResult(signal=error.sigval.name)
    except RendezvousError as error:
        if isinstance(error.__cause__, SecureTrainError):
            raise error.__cause__ from error
        raise
    return AgentResult()


def _joined(on_join: Callable[[Member], None], joined: list[Member], member: Member) -> None:
    """Take a member whose ranks are seen on their way into the group."""
    member.watched = True
    joined.append(member)
    on_join(member)


@contextmanager
def _watched(watcher: WatchesWorkers | None, told: set[int], killed: set[int]) -> Iterator[None]:
    """Tell `watcher` of the workers. torch's agent keeps their processes to itself.

    `told` and `killed` get the processes that the agent has told to end, and those that it killed.
    """
    from torch.distributed.elastic.agent.server import local_elastic_agent  # noqa: PLC0415

    agent: Any = local_elastic_agent
    start: Callable[..., Any] = agent.start_processes

    @functools.wraps(start)
    def start_and_tell(*args: Any, **given: Any) -> Any:
        context = None
        if watcher is not None:
            watcher.starting()
        try:
            context = start(*args, **given)
        finally:
            if watcher is not None:
                pids = {} if context is None else context.pids()
                watcher.started(pids, given["envs"])
        for handler in context.subprocess_handlers.values():
            handler.close = functools.partial(_close, handler, handler.close, told, killed)
        return context

    agent.start_processes = start_and_tell
    try:
        yield
    finally:
        agent.start_processes = start


def _close(
    handler: Any,
    close: Callable[..., None],
    told: set[int],
    killed: set[int],
    death_sig: signal.Signals | None = None,
) -> None:
    """Remember what the agent does to a worker; one that has ended is none of its doing."""
    pid = handler.proc.pid
    # Looked at and not reaped: torch signals the process's group, which ends with its last process.
    with suppress(ProcessLookupError, ChildProcessError):
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            told.add(pid)
            if death_sig == signal.SIGKILL:
                killed.add(pid)
        close(death_sig=death_sig)


@contextmanager
def environment(env: Mapping[str, str]) -> Iterator[None]:
    """Let this process have exactly `env`: torch's agent hands its environment to the workers."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(env)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _register_backend() -> None:
    """Make our backend known when the package's metadata does not (a source tree on PYTHONPATH)."""
    from torch.distributed.elastic.rendezvous import (  # noqa: PLC0415
        rendezvous_handler_registry as handlers,
    )

    if BACKEND not in handlers._registry:  # noqa: SLF001 - there is no public test
        from securetrain.rendezvous.member import get_creator  # noqa: PLC0415

        handlers.register(BACKEND, get_creator())


def _failure(rank: int, failure: Any, told: set[int], killed: set[int]) -> Failure:
    code, pid = int(failure.exitcode), int(failure.pid)
    return Failure(
        rank=rank,
        local_rank=int(failure.local_rank),
        pid=pid,
        exit_code=code,
        ending=f"signal {failure.signal_name()}" if code < 0 else f"exit code {code}",
        timestamp=int(failure.timestamp),
        was_told=pid in told,
        was_killed=pid in killed,
    )


def _notes(options: RunOptions) -> list[str]:
    """Options of torchrun that have no effect here, said once."""
    given = options.torch
    notes = []
    if given.local_addr:
        notes.append("--local-addr has no effect: the store listens where the profile says")
    if given.node_rank:
        notes.append("--node-rank has no effect: the coordinator gives the ranks")
    if given.master_addr != "127.0.0.1" and not options.joins:
        notes.append("--master-addr has no effect: the store listens where the profile says")
    if given.run_path:
        notes.append("--run-path: the script runs under the worker shim, in its own interpreter")
    return notes


def _unprotected(options: RunOptions) -> RuntimeRefusal:
    python = without_no_python(options.argv, options.script)
    as_it_is = (
        "start a Python script without --no-python, or write a policy that lets it run as it is"
        " (extends: dev, checkpoint: {unpickle: warn}) and type: securetrain run --policy FILE "
    )
    return RuntimeRefusal(
        "ST-RUNT-007",
        f"--no-python runs {options.script} as it is, without the worker shim, and the policy"
        " enforces it",
        "--no-python; policy: checkpoint.unpickle",
        f"type: {python}" if python else as_it_is + shlex.join(options.argv),
    )


@contextmanager
def _quiet(name: str, level: int) -> Iterator[None]:
    """Keep torch from warning about options that are another backend's business."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)
