# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A coordinator that runs on its own, for jobs of several machines. No torch, no training code.

Rules:

1. the job's CA comes from a cluster CA's folder, whose revocation list is looked at every second;
2. the run directory keeps the ledger, its key and trust root. A coordinator that is started again
   goes on in it: epochs never go back, and a ledger that does not verify is a refusal. What the
   verifier must not forget outlives the job, in a folder of the machine;
3. it is the only one in its run directory, also where several machines share that; for a
   coordinator over a copy of it, see `wire.generation`;
4. it ends when the job is closed and the nodes have gone, or when it is told to. Then the ledger
   is closed.
"""

import fcntl
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509

from securetrain.attest.session import SealedState, fleet_verifier, open_fleet
from securetrain.core import RunDir, canonical, claim_dir
from securetrain.core.errors import (
    AdmissionError,
    IntegrityError,
    PolicyError,
    UsageError,
    os_error,
)
from securetrain.core.files import make_private_dir, open_own, read_file, write_atomic
from securetrain.identity import ClusterCA, How, JobCA, Role, Token, Unlock
from securetrain.identity.keys import PrivateKey, PublicKey
from securetrain.identity.trust import TrustRole, TrustRoot, sign_root
from securetrain.ledger import (
    Event,
    Ledger,
    WriterRole,
    Writers,
    events,
    read_events,
    verify_ledger,
)
from securetrain.policy.load import FILE_LIMIT, LoadedPolicy
from securetrain.rendezvous.coordinator.coordinator import Coordinator
from securetrain.rendezvous.coordinator.enrollment_server import EnrollmentServer, make_token
from securetrain.rendezvous.coordinator.journal import Journal
from securetrain.rendezvous.coordinator.keep import Keep, KeepNothing
from securetrain.rendezvous.coordinator.memory import JobMemory
from securetrain.rendezvous.coordinator.revoked import RevocationWatch
from securetrain.rendezvous.coordinator.settings import LAST_CALL_SECONDS, CoordinatorSettings
from securetrain.rendezvous.coordinator.vault import Vault

TRUST_LIFETIME: Final = timedelta(days=365)
LOOK_SECONDS: Final = 1.0
GRACE_SECONDS: Final = 30.0
LEDGER_LIMIT: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class SpokenLedger(Ledger):
    """A ledger whose events are also told, once they are written."""

    tell: Callable[[Event], None] = field(default=lambda _: None)

    def append(self, event: Event) -> None:
        """See base class."""
        Ledger.append(self, event)
        self.tell(event)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The orders of a stand-alone coordinator."""

    job: str
    min_nodes: int
    max_nodes: int
    policy: LoadedPolicy
    run_dir: Path
    fleet: Path
    """The folder of what outlives the job: `attest.session.fleet_state`."""
    bind: str = "127.0.0.1"
    port: int = 0
    enroll_port: int | None = None
    """None opens no enrollment server; 0 picks a free port."""
    advertise: str = ""
    """The host that stands in tokens; by default what it binds to."""
    last_call: float = LAST_CALL_SECONDS
    vault: Vault = Vault()  # noqa: RUF009 - frozen
    """The secrets that the policy names."""


@dataclass(slots=True, kw_only=True)
class Standalone:
    """One coordinator from `start` to `stop`."""

    plan: Plan
    cluster: ClusterCA
    unlock: Unlock
    clock: Callable[[], datetime]
    tell: Callable[[Event], None] = field(default=lambda _: None)
    """Hears every event of the ledger."""
    address: tuple[str, int] = ("", 0)
    enrollment: tuple[str, int] | None = None
    """Where machines enroll, as it stands in tokens."""
    ca: JobCA = field(init=False)
    ledger: Ledger = field(init=False)
    coordinator: Coordinator | None = None
    enrollment_server: EnrollmentServer | None = None
    watch: RevocationWatch = field(init=False)
    state: SealedState | None = None
    keep: Keep = field(default_factory=KeepNothing)
    """Keeps memberships, results and evidence."""
    claim: int | None = None
    """Held while it runs: the only coordinator in its run directory."""

    def start(self) -> None:
        """Open everything.

        Raises:
            SecureTrainError: what cannot be; nothing listens then.
        """
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        plan, policy, now = self.plan, self.plan.policy.policy, self.clock()
        if policy.identity.trust_domain != self.cluster.trust_domain:
            raise PolicyError(
                "ST-PLCY-004",
                f"the policy's trust domain is {policy.identity.trust_domain}, the CA's is"
                f" {self.cluster.trust_domain}",
                "policy: identity.trust_domain",
                "use a CA of that trust domain, or a policy for this one",
            )
        self.ca = self.cluster.job(plan.job, now, self.unlock)
        run = RunDir(claim_dir(plan.run_dir, _foreign_content))
        key = prepare(run, plan.policy, now)
        self.claim = claim_run(run)
        self.ledger = SpokenLedger(
            run.ledger, key, "coordinator", self.clock, tell=self.tell
        ).begin(plan.job, TrustRoot.load(run.trust, now), plan.policy.digest)
        past = past_of(run, key)
        self.watch = RevocationWatch(self.cluster)
        self.watch.refresh()
        if self.watch.problem is not None:
            raise self.watch.problem
        self.state = open_fleet(plan.fleet, plan.policy, old=run.attestation, seen=past.fleet)
        verifier = fleet_verifier(plan.policy, self.clock, self.state, self.ledger)
        self.coordinator = Coordinator(
            plan.job,
            self.ca,
            plan.policy,
            self.ledger,
            min_nodes=plan.min_nodes,
            max_nodes=plan.max_nodes,
            clock=self.clock,
            settings=CoordinatorSettings(
                last_call=plan.last_call,
                last_epoch=past.epoch,
                generation=past.starts + 1,
                revoked=self.watch.check,
                issue=self._issue,
                memory=JobMemory(run.coordinator_state, key),
                vault=plan.vault,
                keep=self.keep,
                verifier=verifier,
            ),
        )
        self.address = self.coordinator.start(plan.bind, plan.port)
        if plan.enroll_port is not None:
            self._open_enrollment(run, plan.enroll_port)

    def _issue(self, node: str, key: PublicKey) -> x509.Certificate:
        """Renew a node's certificate, with the register knowing of it."""
        minutes = self.plan.policy.policy.identity.certificate_lifetime_minutes
        return self.cluster.issue(
            self.ca,
            Role.NODE,
            key,
            self.clock(),
            node=node,
            lifetime=timedelta(minutes=minutes),
            how=How.RENEWAL,
        )

    def _open_enrollment(self, run: RunDir, port: int) -> None:
        policy = self.plan.policy.policy
        server = EnrollmentServer(
            self.cluster,
            self.ca,
            Journal(self.ledger),
            lifetime=timedelta(minutes=policy.identity.certificate_lifetime_minutes),
            timeout=policy.rendezvous.handshake_timeout_seconds,
            clock=self.clock,
            inventory=run.root / "inventory",
            limit=policy.rendezvous.max_unauthenticated,
        )
        host, number = server.start(self.plan.bind, port)
        self.enrollment_server = server
        self.enrollment = (self.plan.advertise or host, number)
        self.cluster.register.set_endpoint(self.plan.job, f"{self.enrollment[0]}:{number}")

    def invite(self, node: str, ends: datetime) -> Token:
        """A one-time token for one node.

        Raises:
            UsageError: ST-USAG-001 when there is no enrollment server.
            IdentityError: see `enrollment_server.make_token`.
        """
        if self.enrollment is None:
            raise UsageError(
                "ST-USAG-001", "no enrollment server is open", "--invite", "add --enroll-port"
            )
        return make_token(self.cluster, self.ca, node, self.enrollment, ends)

    def serve(self, told_to_stop: threading.Event) -> bool:
        """Run until the job is over (True) or the event is set (False)."""
        assert self.coordinator is not None, "start it first"
        while not told_to_stop.wait(LOOK_SECONDS):
            if self.watch.refresh():
                self._list_changed()
            if self.coordinator.superseded is not None:
                raise self.coordinator.superseded
            if self.coordinator.closed:
                self.coordinator.wait_empty(GRACE_SECONDS)
                return True
        return False

    def _list_changed(self) -> None:
        assert self.coordinator is not None
        problem = self.watch.problem
        if problem is not None:
            self.ledger.write(events.RevocationsRefused.of(problem))
            return
        self.ledger.write(events.RevocationsRead(number=self.watch.number))
        self.coordinator.recheck()

    def stop(self, *, for_good: bool = True) -> None:
        """Close everything; may be called again.

        Args:
            for_good: Whether the nodes are told so. Else they go on until their leases end, and
                come back to a coordinator that is started in the same run directory.

        Raises:
            SecureTrainError: the ledger has a gap, or the run directory's name leads elsewhere.
        """
        if self.enrollment_server is not None:
            self.enrollment_server.stop()
            self.cluster.register.set_endpoint(self.plan.job, "")
        if self.coordinator is not None:
            self.coordinator.stop(for_good=for_good)
            self.ledger.close()
        if self.state is not None:
            self.state.close()
        problem = self.coordinator.problem if self.coordinator is not None else None
        problem = problem or (
            self.enrollment_server.problem if self.enrollment_server is not None else None
        )
        problem = problem or RunDir(self.plan.run_dir.absolute()).problem()
        self.coordinator = self.enrollment_server = self.state = None
        if self.claim is not None:
            os.close(self.claim)
            self.claim = None
        if problem is not None:
            raise problem


def prepare(run: RunDir, policy: LoadedPolicy, now: datetime) -> PrivateKey:
    """Make a coordinator's run directory, or open the one that is there; returns the ledger's key.

    Raises:
        PolicyError: ST-PLCY-005 when it was made under another policy.
        UsageError: ST-USAG-005 when it is another kind of run directory, ST-USAG-002, ST-USAG-017,
            ST-USAG-018.
        IdentityError: ST-IDEN-008 when its trust root is not valid.
    """
    claim_dir(run.root, _foreign_content)
    resolved = canonical.encode(policy.policy)
    name = run.key("coordinator")
    if not run.trust.exists():
        make_private_dir(run.keys)
        root, key = PrivateKey.generate(), PrivateKey.generate()
        root.save(run.key("root"))
        key.save(name)
        write_atomic(run.resolved_policy, resolved)
        roles = {TrustRole.LEDGER: [key.public], TrustRole.LEDGER_COORDINATOR: [key.public]}
        write_atomic(run.trust, sign_root(roles, root, now, now + TRUST_LIFETIME))
        return key
    TrustRoot.load(run.trust, now)
    if not name.exists():
        raise UsageError("ST-USAG-005", "it is not a coordinator's run directory", str(run.root))
    if read_file(run.resolved_policy, FILE_LIMIT) != resolved:
        raise PolicyError(
            "ST-PLCY-005",
            f"the policy {policy.policy.metadata.id} is not the one that it was made under",
            str(run.resolved_policy),
        )
    return PrivateKey.load(name)


def claim_run(run: RunDir) -> int:
    """Be the only coordinator in a run directory, until the descriptor is closed.

    Raises:
        AdmissionError: ST-ADMN-042.
        UsageError: ST-USAG-002.
    """
    path = run.coordinator_lock
    try:
        fd = open_own(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise os_error(error, str(path)) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if isinstance(error, BlockingIOError):
            raise AdmissionError("ST-ADMN-042", where=str(run.root)) from error
        raise os_error(error, str(path)) from error
    return fd


def _foreign_content(root: Path) -> str:
    if RunDir(root).trust.exists() or not any(root.iterdir()):
        return ""
    return "it holds other files and is no coordinator's run directory"


class Past(NamedTuple):
    """The coordinators of this job before this one."""

    epoch: int = -1
    """The last one; -1 when there was none."""
    starts: int = 0
    """Of coordinators."""
    fleet: int = 0
    """The version of the fleet's state that the last one found."""


def past_of(run: RunDir, key: PrivateKey) -> Past:
    """The past of this job, from the ledger.

    Raises:
        IntegrityError: ST-LEDG-001 to 003.
    """
    if not run.ledger.exists():
        return Past()
    data = read_file(run.ledger, LEDGER_LIMIT)
    verified = verify_ledger(data, {key.key_id: key.public}, where=str(run.ledger))
    said = read_events(verified, Writers({key.key_id: frozenset({WriterRole.COORDINATOR})}))
    if said.ignored:
        raise IntegrityError(
            "ST-LEDG-001", str(said.ignored[0]), str(run.ledger), "use another --run-dir"
        )
    formed = [event.epoch for event in said.events if isinstance(event, events.RoundFormed)]
    starts = sum(isinstance(event, events.CoordinatorStarted) for event in said.events)
    fleet = [event.version for event in said.events if isinstance(event, events.FleetStateOpened)]
    return Past(max(formed, default=-1), starts, max(fleet, default=0))
