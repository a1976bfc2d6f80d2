# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Close torch's seams in a worker, before the training script runs and without importing torch.

Each seam is closed when the module that has it is imported, and only then:

=================================================  ===============================================
torch.distributed.distributed_c10d                 object collectives unpickle under the allow-list;
                                                   sockets are checked when a group has been made,
                                                   and on loopback who is connected to them; a group
                                                   that is made again has fresh keys (`fresh_keys`);
                                                   who has come to the first one (`arrival`)
torch                                              the job's key is given to its NCCL (nccl-tls)
torch.distributed.rpc                              sockets are checked when RPC has started
torch.distributed.rpc.internal                     RPC arguments, likewise
torch.distributed.checkpoint.filesystem            ``.metadata`` files, likewise
torch.distributed.checkpoint.default_planner       objects in stock checkpoints, likewise
torch.distributed.checkpoint._pg_transport         checkpoints from a peer, likewise
torch.distributed.optim.zero_redundancy_optimizer  optimizer state from a peer, likewise
torch.distributed.debug                            the debug server does not start
torch.nn.parallel, .distributed.fsdp, .optim       gradients are watched (`gradients`)
torch.serialization, torch.distributed.checkpoint  saves that nobody signs are noticed (`saves`)
torch.serialization, pickle                        files are unpickled under it (`file_loads`)
transformers, accelerate, deepspeed, lightning     directories are signed, and verified, as a whole
                                                   (`folder_saves`, `folder_loads`)
multiprocessing.spawn, .forkserver                 child processes get the same shim
subprocess, os                                     programs without the shim are noticed (`outside`)
=================================================  ===============================================

This limits mistakes and hostile **peers**. A hostile script on this machine can undo it.
"""

import builtins
import functools
import io
import os
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from securetrain.core import RUN_DIR_VARIABLE, SIGNER_VARIABLE, RunDir
from securetrain.core.errors import RuntimeRefusal, SecureTrainError, UsageError
from securetrain.core.vocabulary import EnforcementMode, NetworkProfile
from securetrain.launch.process import loopback_peers, sockets, workerlog
from securetrain.launch.seams import patches
from securetrain.launch.seams.file_loads import FileLoads
from securetrain.launch.seams.folder_loads import FolderLoads
from securetrain.launch.seams.gradients import GradientWatch
from securetrain.launch.seams.import_hooks import Patch, PostImportFinder
from securetrain.launch.seams.outside import OutsideWatch
from securetrain.launch.seams.saves import SaveWatch
from securetrain.launch.seams.unpickler import Rules, SafePickle, make_unpickler
from securetrain.launch.seams.verified_loads import VerifiedLoads
from securetrain.launch.worker.arrival import ArrivalWatch
from securetrain.launch.worker.fresh_keys import FreshKeys
from securetrain.network.environment import PROFILE_VARIABLE
from securetrain.policy import load_demands, unsigned_demands
from securetrain.policy.load import load_resolved
from securetrain.policy.schema import GuardMode, Policy, UnpickleMode

if TYPE_CHECKING:
    from securetrain.artifacts import signer as own


@dataclass(slots=True, kw_only=True)
class Shim:
    """The shim of one process."""

    run: RunDir
    policy: Policy
    profile: NetworkProfile
    rank: int
    attempt: int
    signer: str = ""
    """The launcher's signing socket; empty without a launcher."""
    nccl_key: str = field(default="", repr=False)
    """The key of NCCL's TLS under ``nccl-tls``."""
    is_node_leader: bool = False
    """Whether this is the first worker of its node."""
    is_child: bool = False
    """A process that the script started: it is protected, and leaves the report to its parent."""
    protected: list[str] = field(default_factory=list)
    encrypted: set[Path] = field(default_factory=set)
    """The NCCL libraries that have the key."""
    num_checks: int = 0
    last_check: sockets.SocketCheck | None = None
    arrival: ArrivalWatch = field(init=False)
    gradients: GradientWatch | None = field(init=False)
    """None where the policy watches none."""
    saves: SaveWatch = field(init=False)
    outside: OutsideWatch = field(init=False)

    def __post_init__(self) -> None:
        self.arrival = ArrivalWatch(self.report)
        settings = self.policy.gradients
        required = self.policy.enforcement is EnforcementMode.REQUIRE
        self.saves = SaveWatch(
            is_required=required,
            is_first=self.rank == 0 and not self.is_child,
            say=self._say,
            record=self._record,
            changed=self.report,
        )
        self.outside = OutsideWatch(
            is_required=required,
            demands=load_demands(self.policy),
            say=self._say,
            record=self._record,
            changed=self.report,
        )
        checkpoint = self.policy.checkpoint
        if checkpoint.sign_saves and self.signer:
            self.saves.signing = self._save_signer()
            self.saves.lacking = unsigned_demands(self.policy)
        self.gradients = None
        if required:
            settings = msgspec.structs.replace(settings, require_watched=True)
        if settings.mode is not GuardMode.OFF:
            self.gradients = GradientWatch(
                settings=settings,
                # A process that the script started is in groups of its own, of other ranks.
                sketches=self.run.sketches if self.rank == 0 and not self.is_child else None,
                signer="" if self.is_child else self.signer,
                run=self.run,
                is_node_leader=self.is_node_leader,
                say=self._say,
                record=self._record,
                changed=self.report,
            )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], *, is_child: bool = False) -> "Shim":
        """Read what the launcher and torch's agent told this process.

        Raises:
            UsageError: ST-USAG-001 when the process was not started by the launcher.
            NetworkError: ST-NETW-031 when it needs NCCL's key and did not inherit it.
            PolicyError: ST-PLCY-002 when the run's policy cannot be read.
        """
        try:
            run = RunDir(Path(environ[RUN_DIR_VARIABLE]))
            profile = NetworkProfile(environ[PROFILE_VARIABLE])
            rank = int(environ.get("RANK", "0") if is_child else environ["RANK"])
            attempt = int(environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        except (KeyError, ValueError) as error:
            raise UsageError(
                "ST-USAG-001",
                f"not started by the launcher: {error}",
                "securetrain.launch.worker.script",
                "start the script with 'securetrain run'",
            ) from error
        policy = load_resolved(run.resolved_policy).policy
        shim = cls(
            run=run,
            policy=policy,
            profile=profile,
            rank=rank,
            attempt=attempt,
            signer=environ.get(SIGNER_VARIABLE, ""),
            is_node_leader=not is_child and environ.get("LOCAL_RANK") == "0",
            is_child=is_child,
        )
        if profile is NetworkProfile.NCCL_TLS and not is_child:
            # Imports cryptography, which a worker that needs no key does without.
            from securetrain.network import nccl  # noqa: PLC0415

            shim.nccl_key = nccl.read_inherited_key(environ)
        return shim

    def install(self) -> None:
        """Start waiting for the modules that have seams."""
        if self.saves.signing is not None:
            self.saves.signing.follow_moves(os)
            for module in (builtins, io):
                self.saves.signing.watch_writes(module)
        patches = self._patches()
        PostImportFinder({name: self._recorded(name, patches[name]) for name in patches}).install()

    def _save_signer(self) -> "own.SaveSigner":
        """The part that has the script's saves signed."""
        # Signing needs cryptography, which other workers need not import.
        from securetrain.artifacts import signer as own  # noqa: PLC0415

        # The process's own, so that what its script has signed by hand is counted, too.
        return own.worker_signer() or own.SaveSigner.of_worker(self.signer, self.run, self.policy)

    def _verified_loads(self) -> VerifiedLoads:
        """The part that verifies the script's loads."""

        def refused(error: SecureTrainError, place: str) -> None:
            self._refuse(lambda events: events.SavedFileRefused, error, place)

        others = map(Path, self.policy.checkpoint.load_trust)
        return VerifiedLoads(trust=(self.run.trust, *others), clock=_now, refused=refused)

    def report(self, error: BaseException | None = None, *, is_last: bool = False) -> None:
        """Write this rank's report.

        Args:
            error: What ended the script.
            is_last: Whether it has ended.
        """
        watch = self.gradients
        gradients = None if watch is None else watch.report(is_last=is_last)
        if self.is_child:
            self._report_of_child(gradients)
            return
        workerlog.write_report(
            self.run,
            workerlog.WorkerReport(
                rank=self.rank,
                attempt=self.attempt,
                protected=tuple(self.protected),
                num_checks=self.num_checks,
                sockets=self.last_check,
                nccl_tls=tuple(sorted(map(str, self.encrypted))),
                gradients=gradients,
                saves=self.saves.report(),
                outside=self.outside.report(),
                group=self.arrival.report,
                error=None if error is None else workerlog.describe(error),
            ),
        )

    def _report_of_child(self, gradients: workerlog.GradientReport | None) -> None:
        """Write what a process that the script started has done, if there is anything to say."""
        found = workerlog.WorkerReport(
            rank=self.rank,
            attempt=self.attempt,
            child=os.getpid(),
            gradients=gradients,
            saves=self.saves.report(),
            outside=self.outside.report(),
        )
        if found.has_news:
            workerlog.write_report(self.run, found)

    def end(self) -> None:
        """The script has ended well: refuse what shows only now.

        Raises:
            GuardError: ST-GRAD-020.
        """
        if self.gradients is not None:
            self.gradients.end()

    def check_sockets(self) -> None:
        """Check what this process listens on.

        Raises:
            NetworkError: ST-NETW-002; the ledger and the rank's report say so first.
        """
        check = sockets.check_sockets(self.profile)
        self.num_checks += 1
        if check != self.last_check:
            self.last_check = check
            self.report()
        if not check.ok:
            error = sockets.violation(check)
            self._refuse(lambda events: events.SocketOutsideNetwork, error)
            raise error

    def encrypt_nccl(self, *, is_needed: bool) -> None:
        """Give the job's key to every NCCL of this process that does not have it.

        Args:
            is_needed: Whether a process without any, or without a key, is to be refused now.

        Raises:
            NetworkError: ST-NETW-030, ST-NETW-031; the ledger says so first.
        """
        from securetrain.network import nccl  # noqa: PLC0415 - only under nccl-tls

        try:
            libraries = set(nccl.loaded())
            if libraries <= self.encrypted and not is_needed:
                return
            if not self.nccl_key:
                raise nccl.no_key("it was started by a worker")
            if not libraries:
                raise nccl.no_nccl()
            for library in sorted(libraries - self.encrypted):
                nccl.set_encryption_key(library, self.nccl_key)
                self.encrypted.add(library)
        except SecureTrainError as error:
            self._refuse(lambda events: events.NcclNotEncrypted, error)
            raise

    def check_loopback_peers(self, before: Collection[loopback_peers.Pair]) -> None:
        """Check the users that are connected to this process.

        Args:
            before: Its connections before a group was made.

        Raises:
            NetworkError: ST-NETW-002, or ST-NETW-025; the ledger says so first.
        """
        if found := loopback_peers.find_foreign_peers(before):
            error = loopback_peers.refusal(found)
            self._refuse(lambda events: events.StrangerConnected, error)
            raise error

    def _patches(self) -> dict[str, Patch]:
        dist = "torch.distributed"
        fresh = FreshKeys()
        c10d: list[Patch] = [
            functools.partial(patches.wrap, fresh.rendezvous, "rendezvous"),
            functools.partial(patches.wrap, fresh.group, "init_process_group"),
            functools.partial(patches.wrap, self.arrival.rendezvous, "rendezvous"),
            functools.partial(patches.wrap, self.arrival.group, "init_process_group"),
            functools.partial(patches.wrap, self._checking, "init_process_group"),
            functools.partial(patches.wrap, self._checking, "new_group"),
        ]
        closed: dict[str, Patch] = {
            "multiprocessing.spawn": patches.protect_spawned,
            "multiprocessing.forkserver": patches.protect_forkserver,
            f"{dist}.rpc": functools.partial(patches.wrap_if_there, self._checking, "init_rpc"),
        }
        if self.profile is NetworkProfile.NCCL_TLS:
            closed["torch"] = lambda _torch: self.encrypt_nccl(is_needed=False)
        checkpoint = self.policy.checkpoint
        if checkpoint.unpickle is not UnpickleMode.OFF:
            rules = Rules(
                checkpoint.unpickle,
                frozenset(checkpoint.allow_globals),
                functools.partial(self._on_pickle, set()),
            )
            reader = make_unpickler(rules)
            unpickler = functools.partial(patches.replace_unpickler, reader)
            loads = functools.partial(patches.replace_pickle, SafePickle(reader))
            torch_load = functools.partial(patches.restrict_torch_load, SafePickle(reader))
            c10d.append(unpickler)
            closed |= {
                f"{dist}.rpc.internal": unpickler,
                f"{dist}.checkpoint.filesystem": loads,
                f"{dist}.checkpoint._pg_transport": loads,
                f"{dist}.checkpoint.default_planner": functools.partial(
                    torch_load, "DefaultLoadPlanner.load_bytes"
                ),
                f"{dist}.optim.zero_redundancy_optimizer": functools.partial(
                    torch_load, "_broadcast_object"
                ),
                **FileLoads(rules, checkpoint.allow_pickles_in).patches(),
            }
        if not self.policy.debug.allow_servers:
            closed[f"{dist}.debug"] = functools.partial(
                patches.wrap, self._forbidding, "start_debug_server"
            )
        if checkpoint.verify_loads:
            # Inside of what restricts pickles, which goes by the file's own place.
            files = self._verified_loads()
            closed = _both(_both(files.patches(), FolderLoads(files).patches()), closed)
        closed = _both(closed, self.saves.patches())
        closed = _both(closed, self.outside.patches())
        if self.gradients is not None:
            closed = _both(closed, self.gradients.patches())
        closed[f"{dist}.distributed_c10d"] = functools.partial(patches.apply_all, tuple(c10d))
        return closed

    def _recorded(self, name: str, patch: Patch) -> Patch:
        def apply(module: Any) -> None:
            patch(module)
            self.protected.append(name)

        return apply

    def _checking(self, make_group: Callable[..., Any]) -> Callable[..., Any]:
        """Check the sockets whenever `make_group` has made a process group."""

        @functools.wraps(make_group)
        def checked(*args: Any, **kwargs: Any) -> Any:
            if self.profile is NetworkProfile.NCCL_TLS:
                self.encrypt_nccl(is_needed=True)
            before = (
                loopback_peers.local_connections()
                if self.profile is NetworkProfile.LOOPBACK
                else ()
            )
            group = make_group(*args, **kwargs)
            self.check_sockets()
            if self.profile is NetworkProfile.LOOPBACK:
                self.check_loopback_peers(before)
            return group

        return checked

    def _forbidding(self, start: Callable[..., Any]) -> Callable[..., Any]:
        """Refuse to start torch's debug server."""

        @functools.wraps(start)
        def start_debug_server(*_args: Any, **_kwargs: Any) -> None:
            error = RuntimeRefusal(
                "ST-RUNT-006",
                "torch's debug server listens on every interface and authenticates nobody",
                "torch.distributed.debug.start_debug_server",
            )
            self._refuse(lambda events: events.DebugServerRefused, error)
            raise error

        return start_debug_server

    def _on_pickle(
        self, noticed: set[str], mode: UnpickleMode, name: str, error: SecureTrainError
    ) -> None:
        """A pickle named something that it should not: record it, and say it once."""
        if name in noticed:
            return
        noticed.add(name)
        match mode:
            case UnpickleMode.ENFORCE:
                self._refuse(lambda events: events.PickleRefused, error, name)
            case UnpickleMode.WARN:
                self._say(f"warning: {error.what}; let through by checkpoint.unpickle: warn")
                self._record(
                    lambda events: events.PickleLetThrough(subject=name[:200], rank=self.rank)
                )
            case _:
                raise ValueError(f"unknown mode {mode!r}")

    def _refuse(
        self, kind: Callable[[Any], Any], error: SecureTrainError, subject: str = ""
    ) -> None:
        about = (subject or f"rank {self.rank}")[:200]
        self._record(lambda events: kind(events).of(error, about))

    def _record(self, make: Callable[[Any], Any]) -> None:
        """Write an event to the run's ledger; a refusal stands even when that fails.

        Args:
            make: Makes the event, given `securetrain.ledger.events`.
        """
        # Signing needs cryptography, which a worker that never refuses anything need not import.
        from securetrain.ledger import WriterRole, events, open_worker_ledger  # noqa: PLC0415

        said = make(events)
        role = min(said.WRITERS & {WriterRole.RANK, WriterRole.WORKER})
        try:
            open_worker_ledger(self.run, self.signer, role, self.rank, _now).write(said)
        except SecureTrainError as error:
            self._say(f"the ledger could not be written: {error}")

    def _say(self, text: str) -> None:
        sys.stderr.write(f"securetrain rank {self.rank}: {text}\n")
        sys.stderr.flush()


def _both(first: Mapping[str, Patch], then: Mapping[str, Patch]) -> dict[str, Patch]:
    """The seams of two parts, each module's in this order."""
    found = dict(first)
    for name, patch in then.items():
        both = (found[name], patch) if name in found else (patch,)
        found[name] = functools.partial(patches.apply_all, both)
    return found


def _now() -> datetime:
    return datetime.now(UTC)
