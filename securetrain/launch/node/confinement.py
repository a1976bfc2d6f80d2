# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The workers of one run are put into the sandbox that its policy asks for.

Rules:

1. ``host.sandbox: off`` starts them with the launcher's rights, as torchrun does; that is said;
2. ``required`` (``preferred`` under ``enforcement: require``) and ``--require sandbox`` refuse when
   anything is missing (ST-RUNT-020), before a worker has started; ``preferred`` goes on, and what
   is missing is said and recorded: DEGRADED;
3. ``host.rank_isolation`` gives each rank a Landlock domain of its own, or refuses (ST-RUNT-024):
   a rank that can be entered by another is not signed for as if it could not;
4. folders that workers write to are there before, so that nobody but the launcher makes an entry in
   the run directory; those that stayed empty are removed at the end.
"""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import securetrain
from securetrain.core import RunDir
from securetrain.core.errors import RuntimeRefusal, UsageError, os_error
from securetrain.core.files import make_private_dir, open_own
from securetrain.core.vocabulary import RankIsolation, SandboxMode
from securetrain.launch.agent.elastic_agent import TRAINER, Plan
from securetrain.launch.options import RunOptions
from securetrain.launch.sandbox import landlock
from securetrain.launch.sandbox.cgroup import Limits
from securetrain.launch.sandbox.devices import gpu_devices
from securetrain.launch.sandbox.sandbox import Sandbox
from securetrain.launch.sandbox.trial import is_machines_root
from securetrain.launch.sandbox.user import choose_user, named_user
from securetrain.launch.sandbox.view import Scene, named_elsewhere
from securetrain.ledger import Ledger, events
from securetrain.network import CACHES
from securetrain.policy.schema import Host

OFF: Final = "DEGRADED: none, workers have the launcher's rights"
_SEARCH: Final = ("PYTHONPATH", "LD_LIBRARY_PATH", "PATH")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """The job network as seen from inside a sandbox."""

    netns: str = ""
    names: Mapping[str, Path]
    """Files in the place of files of /etc."""
    rdma: bool = False
    inherited_files: Mapping[str, Path]
    """As `exec_private` takes them."""


NO_DEMANDS: Final = Host()
NO_NETWORK: Final = Inside(names={}, inherited_files={})


@dataclass(slots=True, kw_only=True)
class Confinement:
    """The sandbox of a run, or the reason why there is none. Made by `confine`."""

    run: RunDir
    ledger: Ledger
    label: str
    sandbox: Sandbox | None = None
    is_whole: bool = False
    """Whether nothing that the sandbox should have is missing."""
    notes: tuple[str, ...] = ()
    made: tuple[Path, ...] = ()
    reached: tuple[str, ...] = ()
    """At the end: the limits that the workers ran into."""

    @property
    def user(self) -> int:
        """The workers' user."""
        return self.sandbox.user if self.sandbox is not None else os.geteuid()

    def inside(self, plan: Plan, plain: Plan, network: Inside) -> Plan:
        """The same workers, started in the sandbox; `plain` when there is none."""
        if self.sandbox is None:
            return plain
        words = self.sandbox.command([plan.program, *plan.arguments], network.inherited_files)
        return replace(plan, program=words[0], arguments=tuple(words[1:]))

    @property
    def network(self) -> Sandbox | None:
        """The sandbox, when the workers have a network of their own in it."""
        return self.sandbox if self.sandbox is not None and self.sandbox.has_network else None

    def close(self) -> None:
        """End what runs in it; without effect the second time."""
        if self.sandbox is not None:
            self.sandbox.close()
            if self.sandbox.reached and not self.reached:
                self.reached = self.sandbox.reached
                said = "; ".join(self.reached)
                self.ledger.write(events.SandboxLimitReached(subject=self.run.root.name, what=said))
        for path in self.made:
            with suppress(OSError):
                if path.is_dir():
                    path.rmdir()
                elif path.stat().st_size == 0:
                    path.unlink()


def confine(
    run: RunDir,
    options: RunOptions,
    mode: SandboxMode,
    env: Mapping[str, str],
    ledger: Ledger,
    *,
    host: Host = NO_DEMANDS,
    network: Inside = NO_NETWORK,
    hidden: tuple[Path, ...] = (),
    floors: Path | None = None,
) -> Confinement:
    """Make the sandbox of a run (rules 1 to 4).

    Args:
        run: The run.
        options: Its command line.
        mode: The policy's demand.
        env: The workers' environment.
        ledger: Where it is recorded.
        host: The policy's limits, where the command line's may be lower, and walls between ranks.
        network: The job network.
        hidden: Folders of keys and state.
        floors: The folder in which workers note which checkpoints they have seen.

    Raises:
        RuntimeRefusal: ST-RUNT-020 and 024.
        UsageError: ST-USAG-001 for a user that cannot be used, ST-USAG-002 for a path.
    """
    required = options.requires_sandbox or mode is SandboxMode.REQUIRED
    asked = Limits(memory_mib=options.max_memory_mib, tasks=options.max_tasks)
    asked = asked.narrowed(limits_of(host))
    confined = required or mode is not SandboxMode.OFF
    ranks_apart = _ranks_apart(host.rank_isolation, landlock.version() if confined else 0)
    if not confined:
        label = f"{OFF}; without a sandbox there is no limit ({asked})" if asked else OFF
        ledger.write(events.SandboxDegraded(label=label, user=os.geteuid(), missing="host.sandbox"))
        return Confinement(run=run, ledger=ledger, label=label)
    made = _make_folders(run, options)
    scene = _scene(run, options, env, network, hidden=hidden, floors=floors)
    scene = replace(scene, limits=asked)
    try:
        sandbox = Sandbox.start(scene, ranks_apart=ranks_apart)
        label, missing, notes = sandbox.label, sandbox.missing, sandbox.notes
    except OSError as error:
        if scene.user is not None:
            scene.user.release()
        sandbox, notes = None, ()
        missing = (str(error),)
        label = f"{OFF} ({error})"
    found = Confinement(
        run=run,
        ledger=ledger,
        label=label,
        sandbox=sandbox,
        is_whole=not missing,
        notes=notes,
        made=made,
    )
    if ranks_apart and (sandbox is None or not sandbox.features.landlock):
        found.close()
        raise _not_apart(f"there is no Landlock: {'; '.join(missing)}"[:2000])
    if missing and required:
        found.close()
        what = "--require sandbox" if options.requires_sandbox else "policy: host.sandbox"
        raise RuntimeRefusal("ST-RUNT-020", f"it lacks {'; '.join(missing)}"[:2000], what)
    if missing:
        said = "; ".join(missing)[:2000]
        ledger.write(events.SandboxDegraded(label=label[:2000], user=found.user, missing=said))
    else:
        ledger.write(events.SandboxAchieved(label=label, user=found.user))
    return found


def _ranks_apart(asked: RankIsolation, version: int) -> bool:
    """Tell whether each rank gets a domain (rule 3).

    Raises:
        RuntimeRefusal: ST-RUNT-024.
    """
    gpus = gpu_devices()
    if asked is RankIsolation.NONE or (asked is RankIsolation.WITHOUT_GPU and gpus):
        return False
    if gpus:
        raise _not_apart(f"workers see GPUs ({', '.join(gpus)[:200]}), with which it was not tried")
    if version < landlock.MIN_VERSION:
        raise _not_apart("there is no sandbox, or this kernel's Landlock is older than version 2")
    return True


def _not_apart(what: str) -> RuntimeRefusal:
    return RuntimeRefusal("ST-RUNT-024", what, "policy: host.rank_isolation")


def limits_of(host: Host) -> Limits:
    """The limits of a policy."""
    return Limits(memory_mib=host.max_memory_mib, tasks=host.max_tasks)


def compiles_as(options: RunOptions, mode: SandboxMode) -> int:
    """The user whose compiled code the workers may share.

    That is the user of the workers where one was named. Users of the range are made for one job and
    have no code of their own: they share the launcher's.

    Raises:
        UsageError: ST-USAG-001 for a user that cannot be used.
    """
    confined = options.requires_sandbox or mode is not SandboxMode.OFF
    user = named_user(options.user, _script(options)) if confined and is_machines_root() else None
    return user.uid if user is not None else os.geteuid()


def _script(options: RunOptions) -> Path | None:
    given = options.torch
    return Path(given.training_script) if not given.module and given.training_script else None


def _scene(
    run: RunDir,
    options: RunOptions,
    env: Mapping[str, str],
    network: Inside,
    *,
    hidden: tuple[Path, ...],
    floors: Path | None,
) -> Scene:
    given = options.torch
    script = _script(options)
    arguments = tuple(map(str, given.training_script_args))
    trains = given.module and given.training_script == TRAINER
    files = [word for word in arguments if word.endswith((".yaml", ".yml", ".json"))]
    job = Path(files[0]) if trains and files else None
    home = Path(env["HOME"]) if env.get("HOME", "").startswith("/") else None
    caches = [Path(env[name]) for name in CACHES if name in env]
    search = [*sys.path, *(word for name in _SEARCH for word in env.get(name, "").split(":"))]
    return Scene(
        run=run.root,
        keys=run.keys,
        writable=(*run.worker_writable, *caches, *([floors] if floors is not None else [])),
        outputs=options.outputs,
        inputs=(*options.inputs, *named_elsewhere(job, env, Path.cwd(), os.geteuid())),
        cwd=Path.cwd(),
        script=script if script is not None and script.exists() else None,
        arguments=arguments,
        search_path=tuple(word for word in search if word),
        code=(
            Path(sys.prefix),
            Path(sys.base_prefix),
            Path(os.path.realpath(sys.executable)).parent.parent,
            Path(str(securetrain.__file__)).parent,
        ),
        hidden=hidden,
        homes=_homes(home),
        home=home,
        temporary=env.get("TMPDIR", ""),
        user=choose_user(options.user, script) if is_machines_root() else None,
        own_user_namespace=os.geteuid() != 0,
        netns=network.netns,
        names=network.names,
        rdma=network.rdma,
        landlock_version=landlock.version(),
    )


def _homes(home: Path | None) -> tuple[Path, ...]:
    """The folders in which people keep what is theirs."""
    usual = [Path("/root"), Path("/home")]
    if home is not None and len(home.parts) > 1 and not any(one in home.parents for one in usual):
        places = {"/", "/tmp", "/var/tmp", "/usr", "/var", "/opt", "/mnt", "/srv"}  # noqa: S108
        if str(home) not in places and home.is_dir() and home not in usual:
            usual.append(home)
    return tuple(usual)


def _make_folders(run: RunDir, options: RunOptions) -> tuple[Path, ...]:
    try:
        made = [make_private_dir(one) for one in run.worker_folders if not one.exists()]
        for file in run.worker_files:
            if not (file.exists() or file.is_symlink()):
                os.close(open_own(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
                made.append(file)
        for output in options.outputs:
            output.mkdir(parents=True, exist_ok=True) if not output.exists() else None
    except OSError as error:
        raise os_error(error, str(error.filename or run.root)) from error
    for path in (*options.outputs, *options.inputs):
        if not path.exists():
            raise UsageError("ST-USAG-002", "no such file or folder", str(path))
        if str(path.resolve()) == "/":
            raise UsageError("ST-USAG-001", "the whole machine is not an output", str(path))
    return tuple(made)
