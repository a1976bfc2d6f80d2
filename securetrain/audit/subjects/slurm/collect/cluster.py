# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Collect the facts of one Slurm cluster: from the machine's own configuration, or from a copy.

A copy may hold, beside Slurm's files: ``pam.d/`` of a compute node, ``enroot/mounts.d/``,
``slurmrestd.service``, and any file with the output of ``scontrol show config`` or of
``slurmctld -V``. A file may be a template: ``slurm.conf.j2``, ``.erb`` and the like.
"""

import re
import socket
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from securetrain import __version__
from securetrain.audit.facts import Collected, Location, Outcome, Reading, Section
from securetrain.audit.ledger import entry_of
from securetrain.audit.subjects.node.collect.host import HiddenError, Host, TooMuchError
from securetrain.audit.subjects.slurm.collect import defaults, files, parser, plugins, settings
from securetrain.audit.subjects.slurm.collect.place import NotHereError, Place
from securetrain.audit.subjects.slurm.collect.settings import Running, Source
from securetrain.audit.subjects.slurm.facts import (
    Builder,
    PasswordClass,
    Slurm,
    SlurmFacts,
    SlurmFile,
    SlurmVersion,
)
from securetrain.core.errors import UsageError

T = TypeVar("T")

_TEMPLATES: Final = (
    "", ".j2", ".jinja2", ".jinja", ".erb", ".epp", ".tmpl", ".tpl", ".in", ".template", ".example",
    ".sample", ".dist", ".orig", ".bak", ".envsubst", "-template",
)  # fmt: skip
_LINES: Final = frozenset(
    {"nodename", "partitionname", "downnodes", "frontendname", "nodeset", "slurmctldhost"}
)
_BESIDE: Final = (
    "cgroup.conf", "slurmdbd.conf", "gres.conf", "plugstack.conf", "job_container.conf",
    "namespace.yaml", "topology.conf", "topology.yaml", "acct_gather.conf", "oci.conf", "mpi.conf",
    "helpers.conf", "burst_buffer.conf",
)  # fmt: skip
"""The files that Slurm looks for beside slurm.conf."""
_VERSION: Final = re.compile(r"(slurm(?:-wlm)?) (\d{1,4}\.\d{1,4}\.\d{1,4})(?:-\d+)?\s*\Z")
_RUNNING_VERSION: Final = re.compile(r"\d{1,4}\.\d{1,4}\.\d{1,4}")
_PRIVATE_TMP: Final = ("private-tmp", "private_tmp", "tmpdir")
"""In the names of SPANK plug-ins that may do what namespace/tmpfs does."""
_SMALL: Final = 1 << 20
_MAX_SAVED: Final = 256
_MAX_CLUSTERS: Final = 256
_FAILURES: Final = (OSError, ValueError, TooMuchError, HiddenError, NotHereError)


def collect_slurm(directory: Path, *, now: datetime, salt: bytes = b"") -> SlurmFacts:
    """Collect the facts of the cluster whose configuration is in `directory`.

    Args:
        directory: Its folder, or a copy of it.
        now: The time of collection, with its zone.
        salt: A secret number, the same for all clusters whose keys are to be compared; without one
            they are not.

    Raises:
        UsageError: ST-USAG-002 when it is no directory that can be entered.
    """
    host = Host(environ={}, search_path=(), uid=0, gid=0, user="", home=Path("/"))
    return collect_slurm_from(host, str(directory), now=now, salt=salt)


def is_configuration(name: str, files: tuple[str, ...] = ("slurm.conf", *_BESIDE)) -> bool:
    """Return whether a file is one of these, or a template of one."""
    return any(name == file + ending for file in files for ending in _TEMPLATES)


def collect_clusters(files: Iterable[Path], *, now: datetime, salt: bytes) -> list[SlurmFacts]:
    """Collect the facts of each folder with a slurm.conf among these files, or a template of one.

    Where several have one ClusterName, as examples do, each has its folder beside it.

    Raises:
        UsageError: ST-USAG-002 when there are too many.
    """
    folders = sorted(
        {file.parent for file in files if is_configuration(file.name, ("slurm.conf",))}
    )
    if len(folders) > _MAX_CLUSTERS:
        what = f"more than {_MAX_CLUSTERS} folders with a slurm.conf"
        raise UsageError("ST-USAG-002", what, str(folders[0]))
    found = [collect_slurm(folder, now=now, salt=salt) for folder in folders]
    count = Counter(one.name for one in found)
    return [
        one if count[one.name] == 1 else replace(one, name=f"{one.name} ({one.directory})")
        for one in found
    ]


def collect_slurm_from(
    host: Host, directory: str, *, now: datetime, salt: bytes = b""
) -> SlurmFacts:
    """Collect the facts that a `Host` shows of a directory; see `collect_slurm`."""
    place = Place.of(directory, host)
    inside = place.host.at(place.directory) if place.live else Path(place.directory)
    if not inside.is_dir():
        raise UsageError(
            "ST-USAG-002", "not a directory", directory, "name the directory that holds slurm.conf"
        )
    return _Cluster(place, *_saved(place), salt).facts(now)


@dataclass(frozen=True, slots=True)
class _Cluster:
    place: Place
    running: Running
    version: tuple[str, str, Location] | None
    """Program and version, as ``slurmctld -V`` prints them."""
    salt: bytes

    def facts(self, now: datetime) -> SlurmFacts:
        controller = self.source("slurm.conf")
        cgroup, database = self.source("cgroup.conf"), self.source("slurmdbd.conf")
        name = self.name(controller)
        slurm = self.slurm(controller, cgroup, database)
        return SlurmFacts(
            collected=Collected(
                at=now, hostname=socket.gethostname(), collector=f"securetrain {__version__}"
            ),
            name=name or self.place.directory,
            directory=self.place.directory,
            ledger=tuple(
                entry_of("file", file.path, file, "slurm.files")
                for file in slurm.files.value or ()
                if file.at is not None or file.outcome is not Outcome.ABSENT
            )
            or (entry_of("section", self.place.directory, slurm.files, "slurm.files"),),
            slurm=slurm,
        )

    def slurm(self, controller: Source, cgroup: Source, database: Source) -> Slurm:
        said = {
            name: settings.raw(controller, default, self.running)
            for name, default in defaults.SLURM_CONF.items()
        }
        confined = {
            name: settings.switch(settings.raw(cgroup, default, self.running))
            for name, default in defaults.CGROUP_CONF.items()
        }
        dbd = {
            name: settings.raw(database, default, Running())
            for name, default in defaults.SLURMDBD_CONF.items()
        }
        root_jobs = settings.switch(said["disable_root_jobs"])
        namespace = settings.word(said["namespace_type"])
        slurm_user = settings.user(said["slurm_user"])
        stack = self.stack(controller)
        return Slurm(
            files=self.section(lambda: self.files(controller, cgroup, database)),
            version=self.release(),
            auth_type=settings.plugin(said["auth_type"], "auth"),
            auth_alt_types=settings.words(said["auth_alt_types"], "auth"),
            cred_type=settings.plugin(said["cred_type"], "cred"),
            tls_type=settings.plugin(said["tls_type"], "tls"),
            slurm_user=slurm_user,
            disable_root_jobs=root_jobs,
            private_data=settings.private(said["private_data"]),
            proctrack_type=settings.plugin(said["proctrack_type"], "proctrack"),
            task_plugin=settings.words(said["task_plugin"], "task"),
            namespace_type=self.private_by(namespace, stack),
            prolog_flags=settings.words(said["prolog_flags"]),
            gres_types=settings.words(said["gres_types"]),
            accounting_storage_type=settings.word(said["accounting_storage_type"]),
            accounting_storage_enforce=settings.enforced(said["accounting_storage_enforce"]),
            propagate_resource_limits=settings.words(said["propagate_resource_limits"]),
            propagate_resource_limits_except=settings.words(
                said["propagate_resource_limits_except"]
            ),
            metrics_type=settings.word(said["metrics_type"]),
            metrics_auth_users=settings.words(said["metrics_auth_users"]),
            metrics_parameters=settings.words(said["metrics_parameters"]),
            partitions=(
                plugins.partitions(controller.conf, root_jobs)
                if controller.conf is not None
                else Section(outcome=Outcome.ERROR, reason=controller.reason)
            ),
            constrain_cores=confined["constrain_cores"],
            constrain_devices=confined["constrain_devices"],
            constrain_ram_space=confined["constrain_ram_space"],
            dbd_private_data=self.database(database, settings.private(dbd["dbd_private_data"])),
            storage_pass=self.database(database, self.storage_pass(database)),
            gpu_devices=plugins.gpu_devices(self.place, self.path("gres.conf")),
            private_dirs=plugins.private_dirs(self.place, namespace),
            spank=stack,
            container_mounts=plugins.container_mounts(self.place, stack),
            login_rules=plugins.login_rules(self.place),
            rest=plugins.rest(self.place),
            keys=self.section(lambda: files.keys(self.place, controller.conf, self.salt)),
            paths=self.paths(controller, cgroup, database, stack),
            slurm_uid=self.uid(slurm_user),
        )

    # --- files ------------------------------------------------------------------------------------

    def path(self, name: str) -> str:
        """A file of the directory, as it is or as a template."""
        for ending in _TEMPLATES:
            path = self.place.named(name + ending)
            try:
                self.place.real(path).lstat()
            except (OSError, NotHereError):
                continue
            return path
        return self.place.named(name)

    def source(self, name: str) -> Source:
        path = self.path(name)
        try:
            conf = parser.read(self.place, path, _LINES)
        except _FAILURES as error:
            if name != "slurm.conf" and plugins.absent(self.place, error):
                return Source(path=path, conf=None, version=self.series)
            outcome, reason = parser.failure(error)
            if outcome is Outcome.ABSENT:
                reason = f"{path} is not here"
            return Source(path=path, conf=None, reason=reason)
        return Source(path=path, conf=conf, version=self.series)

    def files(self, *sources: Source) -> tuple[SlurmFile, ...]:
        found = [
            file
            for source in sources
            for file in (source.conf.files if source.conf else (self.file(source.path),))
        ]
        known = {file.path for file in found}
        for name in _BESIDE:
            path = self.path(name)
            if path not in known:
                found.append(self.file(path))
        return tuple(found)

    def file(self, path: str) -> SlurmFile:
        try:
            self.place.text(path)
        except _FAILURES as error:
            outcome, reason = parser.failure(error)
            return SlurmFile(outcome=outcome, reason=reason, path=path)
        return SlurmFile(outcome=Outcome.OK, path=path)

    def stack(self, controller: Source) -> Section[Any]:
        conf = controller.conf
        if conf is None:
            return Section(outcome=Outcome.ERROR, reason=controller.reason)
        named = conf.last("PlugStackConfig")
        if trouble := conf.trouble_after(named):
            return Section(outcome=Outcome.ERROR, reason=trouble.reason)
        try:
            path = self.place.named(named.value if named else defaults.PLUGSTACK)
        except NotHereError as error:
            return Section(outcome=Outcome.ERROR, reason=str(error))
        return plugins.spank(self.place, path)

    def paths(
        self, controller: Source, cgroup: Source, database: Source, stack: Section[Any]
    ) -> Section[Any]:
        conf = controller.conf
        if conf is None:
            return Section(outcome=Outcome.ERROR, reason=controller.reason)
        found = self.section(lambda: self.files(controller, cgroup, database))
        return self.section(lambda: files.paths(self.place, conf, found.value or (), stack))

    @staticmethod
    def section(collect: Callable[[], T]) -> Section[T]:
        try:
            return Section(outcome=Outcome.OK, value=collect())
        except _FAILURES as error:
            outcome, reason = parser.failure(error)
            return Section(outcome=outcome, reason=reason)

    # --- single values ----------------------------------------------------------------------------

    def name(self, controller: Source) -> str:
        """ClusterName as Slurm uses it, in lower case; empty when it is not known."""
        said = controller.conf.last("ClusterName") if controller.conf else None
        if said is not None and not said.open_by:
            return said.value.lower()
        running = self.running.get("ClusterName")
        return (running.value or "").lower() if running else ""

    @staticmethod
    def database(source: Source, reading: Reading[T]) -> Reading[T]:
        """A setting of slurmdbd.conf; absent where there is no such file."""
        if source.conf is None and not source.reason:
            reason = f"there is no {source.path}"
            return Reading(outcome=Outcome.ABSENT, reason=reason, at=Location(path=source.path))
        return reading

    @staticmethod
    def storage_pass(source: Source) -> Reading[Any]:
        script = defaults.Default(names=("StoragePassScript",), value="")
        named = settings.raw(source, script, Running())
        if named.value:
            return plugins.ok(PasswordClass.SCRIPT, named.at)
        said = settings.raw(source, defaults.Default(names=("StoragePass",), value=""), Running())
        account = settings.raw(
            source, defaults.Default(names=("StorageUser",), value="root"), Running()
        )
        return settings.password(said, account.value or "")

    def uid(self, name: Reading[str]) -> Reading[int]:
        """The number of SlurmUser on this machine."""
        if name.value is None:
            return Reading(outcome=name.outcome, reason=name.reason, at=name.at)
        if name.value == "root" or name.value.isdigit():
            number = 0 if name.value == "root" else int(name.value)
            return Reading(outcome=Outcome.OK, value=number, at=name.at)
        known = dict(files.users(self.place.host)) if self.place.live else {}
        if name.value not in known:
            reason = f"the number of {name.value} is not known here"
            return Reading(outcome=Outcome.ERROR, reason=reason, at=name.at)
        return Reading(outcome=Outcome.OK, value=known[name.value], at=name.at)

    @property
    def series(self) -> defaults.Version | None:
        """The first two numbers of the version."""
        found = self.release().value
        if found is None:
            return None
        major, minor, _ = found.number.split(".")
        return int(major), int(minor)

    def release(self) -> Reading[SlurmVersion]:
        """The version, and who built it."""
        if self.version is not None:
            program, number, at = self.version
            builder = Builder.SLURM if program == "slurm" else Builder.DISTRIBUTION
            return plugins.ok(SlurmVersion(number=number, builder=builder), at)
        running = self.running.get("SLURM_VERSION")
        found = _RUNNING_VERSION.match(running.value or "") if running else None
        if found is None or running is None:
            return plugins.unknown("save the output of 'slurmctld -V' beside slurm.conf")
        return plugins.ok(SlurmVersion(number=found.group(), builder=Builder.UNKNOWN), running.at)

    @staticmethod
    def private_by(plugin: Reading[str], stack: Section[Any]) -> Reading[str]:
        """The maker of private directories: the plug-in for it, or one of SPANK."""
        if plugin.value != "":
            return plugin
        if stack.value is None:
            return plugins.unknown(stack.reason, plugin.at)
        for one in stack.value:
            if any(part in one.name for part in _PRIVATE_TMP):
                return plugins.ok(f"spank/{one.name}", one.at)
        return plugin


def _saved(place: Place) -> tuple[Running, tuple[str, str, Location] | None]:
    """The output of ``scontrol show config`` and of ``slurmctld -V``, if somebody saved it."""
    running, version = Running(), None
    for path in _small_files(place):
        try:
            text = place.text(path)
        except _FAILURES:
            continue  # whoever needs it says so
        if settings.is_running(text) and not running.values:
            running = settings.running(text, path)
        elif version is None and len(text) < 200 and (found := _VERSION.match(text)):
            version = (found.group(1), found.group(2), Location(path=path, line=1))
    return running, version


def _small_files(place: Place) -> Iterator[str]:
    try:
        names = place.names(place.directory)
    except _FAILURES:
        return
    for name in names[:_MAX_SAVED]:
        path = f"{place.directory}/{name}"
        try:
            info = place.real(path).stat()
        except (OSError, NotHereError):
            continue
        if stat.S_ISREG(info.st_mode) and info.st_size <= _SMALL:
            yield path
