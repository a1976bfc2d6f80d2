# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One run on this node, from a prepared directory to its end.

Rules:

1. a refusal is recorded before it is raised; the ledger is closed and ``run.json`` written on every
   way out, signals included;
2. the coordinator is stopped and what is left of the workers is ended before that;
3. a worker that failed ends the run with ST-RUNT-004, or with the code of our own error that ended
   it, so that the exit code says why.
"""

import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from securetrain.artifacts import members
from securetrain.attest.node import AUTO
from securetrain.attest.session import SealedState, fleet_verifier, open_fleet
from securetrain.chain import Keeper
from securetrain.core import SIGNER_VARIABLE, ExitCode, NodeState
from securetrain.core.errors import SecureTrainError
from securetrain.core.files import write_atomic
from securetrain.core.vocabulary import NetworkProfile, PreflightMode, degraded_label
from securetrain.identity import JobCA, certificate_pem
from securetrain.launch.agent import elastic_agent
from securetrain.launch.checkpoints.background import BackgroundTasks
from securetrain.launch.checkpoints.restart import Restart
from securetrain.launch.checkpoints.services import NodeServices, start_services, this_node
from securetrain.launch.network.address import announced_address
from securetrain.launch.network.egress import WayOut, open_egress
from securetrain.launch.network.fabric import Fabric
from securetrain.launch.network.jobnetwork import (
    JobNetwork,
    needs_network,
    prober,
    record_open_egress,
)
from securetrain.launch.node import failures, recording
from securetrain.launch.node.compile_cache import Cache, key_of, open_cache, script_of
from securetrain.launch.node.confinement import (
    NO_NETWORK,
    Confinement,
    compiles_as,
    confine,
)
from securetrain.launch.node.preflight import AuditProcess, Preflight, start_preflight
from securetrain.launch.node.recording import Recorder
from securetrain.launch.node.secrets import NodeSecrets, open_vault
from securetrain.launch.node.supply_chain import check_torch
from securetrain.launch.options import RunOptions
from securetrain.launch.process import workerlog
from securetrain.launch.process.descendants import end_stragglers, ignoring_signals, interruptible
from securetrain.launch.process.error_file import ErrorFile
from securetrain.launch.sandbox.sandbox import Sandbox
from securetrain.launch.sandbox.view import OWN_NETWORK
from securetrain.launch.setup import (
    RunSetup,
    agent_ledger,
    coordinator_ledger,
    make_identity,
    node_of,
)
from securetrain.launch.signing.after_events import AfterEvents
from securetrain.launch.signing.service import SigningService, start_signing
from securetrain.launch.signing.surroundings import keeper_of, start_binding
from securetrain.launch.summary import run_summary
from securetrain.launch.summary.announcement import announcement, logged, reminders
from securetrain.launch.summary.enforced import Enforced, enforced_of, record_enforced
from securetrain.ledger import Ledger, events
from securetrain.network import DEVICE, Namespace, Verbs, achieve, label, rootless
from securetrain.network.environment import (
    CACHE_DIR,
    EMPTY_NCCL_CONF,
    WorkerEnvironment,
    worker_environment,
)
from securetrain.network.overlay import underlay_device
from securetrain.network.wireguard import Endpoint
from securetrain.policy import sandbox_mode
from securetrain.rendezvous.coordinator import Admission, Coordinator, CoordinatorSettings, Vault
from securetrain.rendezvous.member import Carrier


@dataclass(slots=True, kw_only=True)
class Session:
    """A run in the making. `run` is called once."""

    setup: RunSetup
    options: RunOptions
    argv: tuple[str, ...]
    clock: Callable[[], datetime]
    started: datetime
    error_file: ErrorFile = field(default_factory=lambda: ErrorFile(None))
    ledger: Ledger = field(init=False)
    keeper: Keeper = field(init=False)
    profile: NetworkProfile | None = None
    verbs: Verbs | None = None
    forwarded_endpoint: Endpoint | None = None
    """In a user namespace: what of the machine leads to this launcher (`network.rootless`)."""
    environment: WorkerEnvironment | None = None
    preflight: Preflight | None = None
    plan: elastic_agent.Plan | None = None
    coordinator: Coordinator | None = None
    network: JobNetwork | None = None
    confinement: Confinement | None = None
    services: NodeServices | None = None
    cache: Cache | None = None
    appraised: SealedState | None = None
    after: AfterEvents | None = None
    rank_signer: members.RankSigner | None = None
    """Signs for this node's ranks; None where the job's coordinator is another's."""
    signing: SigningService | None = None
    num_stragglers: int = 0
    way_out: WayOut = field(default_factory=WayOut)
    enforced: Enforced = Enforced()  # noqa: RUF009 - frozen
    finished: bool = False

    def __post_init__(self) -> None:
        self.ledger = agent_ledger(self.setup, self.clock, this_node(os.environ))
        self.keeper = keeper_of(self.setup, self.clock(), own=not self.options.joins)

    def run(self, environ: Mapping[str, str], process: AuditProcess | None = None) -> int:
        """Do everything; returns the exit code.

        Args:
            environ: The launcher's environment.
            process: Has loaded the audit meanwhile.

        Raises:
            SecureTrainError: what was refused, or why a worker failed.
            Interrupted: a signal ended the launcher.
        """
        try:
            result = self._work(environ, process)
            with ignoring_signals():
                self._end_workers()
                self._raise_died()
                if result.signal:
                    self._finish(run_summary.Outcome.INTERRUPTED, int(ExitCode.INTERRUPTED))
                    self._say(f"ended by {result.signal}; the workers were ended")
                    return int(ExitCode.INTERRUPTED)
                if result.failures:
                    self.error_file.hand_on(result.error_file, result.exit_code)
                    found = self._reports(), self._logs()
                    raise failures.as_error(
                        result.failures,
                        *found,
                        confined=self.confinement,
                        membership=result.membership,
                        lost=result.lost,
                    )
                self._finish(run_summary.Outcome.SUCCEEDED, int(ExitCode.OK))
        except SecureTrainError as error:
            with ignoring_signals():
                self._end_workers()
                failed = self.plan is not None
                outcome = run_summary.Outcome.FAILED if failed else run_summary.Outcome.REFUSED
                self._finish(outcome, int(error.exit_code), error)
            raise
        except BaseException:
            with ignoring_signals():
                self._end_workers()
                # A dead engine ends the run by a signal of our own: `_finish` says so instead.
                self._finish(run_summary.Outcome.INTERRUPTED, int(ExitCode.INTERRUPTED))
            raise
        return int(ExitCode.OK)

    def _work(
        self, environ: Mapping[str, str], process: AuditProcess | None
    ) -> elastic_agent.AgentResult:
        """Steps 3 to 5 of `launch.entrypoint`."""
        run, policy = self.setup.run, self.setup.policy
        low, high = elastic_agent.node_range(self.options.torch.nnodes)
        self._begin()
        vault = open_vault(policy.policy, self.options, self.ledger)
        self.forwarded_endpoint = rootless.forwarded_endpoint(environ)
        state = this_node(environ)
        with self._refusing(events.ProfileRefused):
            self.profile = achieve(
                policy.policy.network,
                high,
                require=self.options.require,
                probe=prober(
                    max_nodes=high, joins=self.options.joins, fabric_obstacle=self._fabric.obstacle
                ),
            )
            self.verbs = self._fabric.verbs(self.profile)
        self.ledger.write(
            events.ProfileAchieved(
                subject=degraded_label(self.profile),
                label=label(self.profile),
                network=self.profile,
            )
        )
        with self._refusing(events.SandboxRefused):
            user = compiles_as(self.options, policy.policy.host.sandbox)
        script = script_of(self.options.script, module=bool(self.options.torch.module))
        key = key_of(policy.digest, environ, user=user, script=script)
        self.cache = open_cache(state, key, run.root / CACHE_DIR)
        recording.record_cache(self.cache, self.ledger)
        with self._refusing(events.EnvironmentRefused):
            self.environment = worker_environment(
                environ,
                policy.policy,
                self.profile,
                run.root,
                state=state.root,
                caches=self.cache.pins,
                verbs=self.verbs.place.variables if self.verbs else None,
                device=self._device(),
                pass_env=self.options.pass_env,
                cwd=Path.cwd(),
            )
        recording.record_environment(self.environment, self.options.pass_env, self.ledger)
        audited = start_preflight(
            run,
            policy.policy,
            self.environment.env,
            self.ledger,
            self.clock(),
            tunnel=DEVICE if needs_network(self.profile) else "",
            process=process,
        )
        # What may refuse, or would see the job's own network, is waited for.
        if needs_network(self.profile) or policy.policy.host.preflight is not PreflightMode.WARN:
            self.preflight = audited()
        with elastic_agent.environment(self.environment.env):
            with self._refusing(events.ProgramRefused):
                plan = elastic_agent.make_plan(self.options, policy.policy, run.logs)
            endpoint, identity = self._rendezvous(low, high, state, vault)
            job = str(self.options.torch.rdzv_id) if self.options.joins else self.setup.job
            if needs_network(self.profile):
                with self._refusing(events.JobNetworkRefused):
                    self.network = self._build_network(plan, job, endpoint)
            with self._refusing(events.LogRefused):
                self.services = start_services(
                    self.setup, self.options, self.ledger, self.clock, state
                )
            env = self.environment.env
            binder = start_binding(self.setup, self.options, env, self.keeper, self.ledger)
            given = (self.setup, self.ledger, self.clock, self.coordinator, self.rank_signer)
            self.signing = start_signing(*given, binder=binder)
            os.environ[SIGNER_VARIABLE] = str(self.signing.path)
            self.preflight = self.preflight or audited()
            self.plan = plan = self._confined(plan, state)
            self._open_egress()
            self.signing.stands_in = bool(self.confinement and self.confinement.sandbox)
            self.enforced = enforced_of(self.setup, plan, None)
            restart = Restart(
                run=run,
                run_id=self.setup.job,
                ledger=self.ledger,
                clock=self.clock,
                say=self._say,
                head_tracker=self.services.head_tracker,
                background=self.services.background,
            )
            secrets = NodeSecrets(rules=policy.policy.node.secrets, say=self._say)
            self.after = after = AfterEvents(restart, secrets, binder=binder)
            self.signing.act, self.signing.secret = after.act, secrets.give
            self._announce(endpoint)
            self._write_summary(run_summary.Outcome.RUNNING)
            with interruptible():  # torch leaves its own handlers behind
                return elastic_agent.run_agent(
                    plan,
                    endpoint=endpoint,
                    run_id=job,
                    identity=identity,
                    store_port=self.options.store_port,
                    attester=self._attester(),
                    tunnel=self.network.tunnel if self.network else None,
                    carrier=self._carrier(endpoint),
                    on_epoch=self.signing.hearing(after.begin),
                    on_join=after.joined,
                    floors=self.services.head_tracker.advertise,
                    watcher=self.signing,
                )

    @property
    def _places(self) -> frozenset[str]:
        """The places beyond their own network that workers may reach."""
        return frozenset((*self.setup.policy.policy.network.egress, *self.options.egress))

    def _open_egress(self) -> None:
        """The way out of the workers' network; where they have none of their own, that is said."""
        assert self.profile is not None
        assert self.confinement is not None
        own = self.network or self.confinement.network
        if own is None:
            policy = self.setup.policy.policy
            self.way_out.label = record_open_egress(policy, self.profile, self.ledger)
            return
        members = [self.network.members] if self.network else [socket.gethostname()]
        with self._refusing(events.JobNetworkRefused):
            given = self._places, members, self.ledger, own.listen
            self.way_out, variables = open_egress(*given)
        os.environ.update(variables)

    def _confined(self, plan: elastic_agent.Plan, state: NodeState) -> elastic_agent.Plan:
        """The workers in their sandbox and in the job network."""
        assert self.environment is not None
        is_alone = self.profile is NetworkProfile.LOOPBACK
        network = replace(NO_NETWORK, netns=OWN_NETWORK) if is_alone else NO_NETWORK
        if self.network is not None:
            network = self.network.for_sandbox
        hidden = (state.root, *map(Path, filter(None, [plan.rdzv_conf.get("identity")])))
        floors = state.floors(self.setup.job).parent
        policy, env = self.setup.policy.policy, self.environment.env
        given = (self.setup.run, self.options, sandbox_mode(policy), env, self.ledger)
        with self._refusing(events.SandboxRefused):
            self.confinement = confine(
                *given, host=policy.host, network=network, hidden=hidden, floors=floors
            )
        plain = self.network.inside(plan) if self.network else plan
        return self.confinement.inside(plan, plain, network)

    def _device(self) -> str:
        """The device by which the other nodes reach this one, when there is no job network."""
        if self.profile is not NetworkProfile.STORE_TLS:
            return ""
        address = announced_address(self.options.coordinator, self.options.bind)
        return underlay_device(Namespace(), address)[0]

    def _carrier(self, endpoint: str) -> Carrier | Sandbox | None:
        assert self.confinement is not None
        if self.profile is not NetworkProfile.STORE_TLS:
            return self.confinement.network
        address = announced_address(endpoint, self.options.bind)
        users = frozenset({self.confinement.user})
        return Carrier(address=str(address), clock=self.clock, users=users)

    @property
    def _fabric(self) -> Fabric:
        return Fabric(
            network=self.setup.policy.policy.network,
            coordinator=self.options.coordinator,
            bind=self.options.bind,
        )

    def _build_network(self, plan: elastic_agent.Plan, job: str, endpoint: str) -> JobNetwork:
        """This node's part of the job network, under the name in its certificate."""
        assert self.profile is not None
        node = node_of(self.options, plan.rdzv_conf, self.clock())
        bind = str(plan.rdzv_conf.get("bind", ""))
        return JobNetwork.up(
            job=job,
            node=node,
            coordinator=endpoint,
            bind=bind,
            ledger=self.ledger,
            profile=self.profile,
            verbs=self.verbs,
            forwarded_endpoint=self.forwarded_endpoint,
        )

    def _begin(self) -> None:
        """The first entry, and an empty place for what this run will write."""
        run, policy = self.setup.run, self.setup.policy
        for old in run.workers.iterdir() if run.workers.is_dir() else ():
            if old.suffix == ".json":
                old.unlink()
        write_atomic(run.root / EMPTY_NCCL_CONF, b"", mode=0o600)
        self.ledger.write(
            events.RunStarted(
                subject=self.setup.job,
                policy=policy.digest,
                policy_id=policy.policy.metadata.id,
                command=" ".join(self.argv)[:2000],
            )
        )
        self.ledger.write(events.TorchAccepted(subject=str(check_torch(policy.policy))))

    def _rendezvous(
        self, low: int, high: int, state: NodeState, vault: Vault
    ) -> tuple[str, Path | None]:
        """The coordinator's address, and this node's identity folder when we make it."""
        if self.options.joins:
            return str(self.options.torch.rdzv_endpoint), None
        run, policy, now = self.setup.run, self.setup.policy, self.clock()
        ca = JobCA.create(policy.policy.identity.trust_domain, self.setup.job, now)
        write_atomic(run.certs / "ca.crt", certificate_pem(ca.certificate))
        self.rank_signer = make_identity(self.setup, ca, now)
        ledger = coordinator_ledger(self.setup, self.ledger)
        with self._refusing(events.ReferenceValuesRefused):
            self.appraised = open_fleet(state.fleet, policy, old=run.attestation)
            verifier = fleet_verifier(policy, self.clock, self.appraised, ledger)
        self.coordinator = Coordinator(
            self.setup.job,
            ca,
            policy,
            ledger,
            min_nodes=low,
            max_nodes=high,
            clock=self.clock,
            settings=CoordinatorSettings(verifier=verifier, vault=vault, keep=self.keeper),
        )
        host, port = self.coordinator.start()
        return f"{host}:{port}", run.keys

    def _attester(self) -> str:
        """The attester of this node: as asked for, or all there is when the policy judges it."""
        judged = self.setup.policy.policy.node.reference_values is not None
        return self.options.attester or (AUTO if judged else "")

    def _end_workers(self) -> None:
        """Stop the coordinator, kill what is left, remove the network. May be called again."""
        if self.coordinator is not None:
            self.coordinator.stop()
        if self.appraised is not None:
            self.appraised.close()
        self.num_stragglers += end_stragglers(self.setup.run.root)
        if self.signing is not None:
            self.signing.stop()
        if self.services is not None:
            self.services.background.stop()
        if self.confinement is not None:
            own = self.confinement.network
            self.way_out.close(own.unroutable if own else None)
            self.confinement.close()
        if self.network is not None:
            self.network.down()

    def _finish(
        self, outcome: run_summary.Outcome, exit_code: int, error: SecureTrainError | None = None
    ) -> None:
        """Record the end, once: reports, ledger, ``run.json``, one line for people."""
        if self.finished:
            return
        self.finished = True
        if self.cache is not None:
            self.cache.release()
        recording.record_reports(self.setup.run, self.ledger)
        started = self.plan if self.signing is not None and self.signing.has_started else None
        self.enforced = enforced_of(self.setup, started, self._reports())
        problem = self._problem() or self.enforced.refusal(self.setup, outcome)
        if problem is not None and error is None:
            outcome, exit_code, error = run_summary.Outcome.FAILED, int(problem.exit_code), problem
        record_enforced(self.enforced, self.ledger, self._say)
        self.ledger.write(
            events.RunEnded(
                subject=self.setup.job,
                outcome=outcome.value,
                exit_code=exit_code,
                code=error.code if error else "",
                stragglers=self.num_stragglers,
            )
        )
        self.ledger.close()
        self._write_summary(outcome, exit_code, error)
        if self.options.scan.json and error is None:
            sys.stdout.write(self.setup.run.summary.read_text() + "\n")
        if outcome is run_summary.Outcome.SUCCEEDED:
            nodes = ", ".join(self._labels())
            self._say(f"succeeded; {nodes + '; ' if nodes else ''}ledger closed")
        said = reminders(self.plan, self.confinement, self.way_out.label)
        for line in (*said, *self.way_out.at_end()):
            self._say(line)
        if outcome is run_summary.Outcome.SUCCEEDED:
            book = self.services.checkpoint_log if self.services is not None else None
            for line in (*logged(book), f"run directory {self.setup.run.root}"):
                self._say(line)
        if problem is not None and error is problem:
            raise problem

    def _raise_died(self) -> None:
        """Raise why the job network or a background task failed, or what could not be removed."""
        for part in (self.network, self._background):
            if part is not None and part.problem is not None:
                raise part.problem

    def _problem(self) -> SecureTrainError | None:
        """The failure of a run that otherwise ended well: a gap in the ledger, a dead network, a
        directory that is no longer where its name leads.
        """
        if (moved := self.setup.run.problem()) is not None:
            self.ledger.write(events.RunDirectoryRefused.of(moved, self.setup.job))
            return moved
        for part in (self.coordinator, self.signing, self.network, self._background):
            if part is not None and part.problem is not None:
                return part.problem
        return None

    @property
    def _background(self) -> BackgroundTasks | None:
        return self.services.background if self.services is not None else None

    def _reports(self) -> list[workerlog.WorkerReport]:
        return workerlog.good_reports(self.setup.run)

    def _admissions(self) -> list[Admission]:
        return self.coordinator.admissions if self.coordinator is not None else []

    def _labels(self) -> list[str]:
        """The tiers of all nodes, or of this one where another has the coordinator."""
        member = self.after.member if self.after is not None else None
        if self.options.joins and member is not None:
            return [f"this node {member.result.label}"]
        return [f"{one.node} {one.label}" for one in self._admissions()]

    def _logs(self) -> Path:
        return Path(self.options.torch.log_dir or self.setup.run.logs)

    def _refusing(self, event: type[events.PlainRefused]) -> Recorder:
        return Recorder(self.ledger, event)

    def _announce(self, endpoint: str) -> None:
        """The start of the run, for people."""
        assert self.profile is not None
        assert self.plan is not None
        assert self.preflight is not None
        assert self.environment is not None
        shared = self.cache.warnings if self.cache is not None else ()
        for line in announcement(
            self.setup,
            self.options,
            endpoint=endpoint,
            profile=self.profile,
            spoken=self._attester(),
            preflight=self.preflight,
            plan=self.plan,
            confinement=self.confinement,
            log=self.services.sentence if self.services is not None else "",
            way_out=self.way_out.at_start,
            warnings=(*self.environment.warnings, *shared),
        ):
            self._say(line)

    def _say(self, text: str) -> None:
        sys.stderr.write(f"securetrain: {text}\n")
        sys.stderr.flush()

    def _write_summary(
        self,
        outcome: run_summary.Outcome,
        exit_code: int | None = None,
        error: SecureTrainError | None = None,
    ) -> None:
        found, nodes = self.environment, max(1, len(self._admissions()))
        run_summary.write_summary(
            self.setup.run,
            run_summary.RunSummary(
                schema=run_summary.SCHEMA,
                run_id=self.setup.job,
                started=self.started,
                ended=None if outcome is run_summary.Outcome.RUNNING else self.clock(),
                outcome=outcome,
                exit_code=exit_code,
                code=error.code if error else "",
                what=error.what if error else "",
                policy=run_summary.policy_ref(self.setup.policy),
                network=self.profile,
                command=self.argv,
                world_size=self.plan.num_workers * nodes if self.plan else 0,
                max_restarts=self.options.torch.max_restarts,
                torch=str(check_torch(self.setup.policy.policy)),
                nodes=run_summary.node_refs(self._admissions()),
                pinned=dict(found.pinned) if found else {},
                removed=run_summary.variables(found),
                passed=self.options.pass_env,
                sandbox=self.confinement.label if self.confinement else "",
                egress=self.way_out.label,
                preflight=self.preflight.sentence if self.preflight else "",
                gradients=self.enforced.gradients,
                checkpoints=self.enforced.checkpoints,
                outside=self.enforced.outside,
                workers=tuple(run_summary.worker_ref(r) for r in self._reports() if not r.child),
                protected=self.plan.protected if self.plan else True,
                stragglers=self.num_stragglers,
            ),
        )
