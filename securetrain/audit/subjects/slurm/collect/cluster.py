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
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from securetrain import __version__
from securetrain.audit.facts import Collected, Location, Outcome, Reading, Section
from securetrain.audit.ledger import entry_of
from securetrain.audit.parser.values import absent, failed, ok
from securetrain.audit.subjects.node.collect.host import Host
from securetrain.audit.subjects.slurm.collect import files, parser, plugins, settings
from securetrain.audit.subjects.slurm.collect.parser import FAILURES, section
from securetrain.audit.subjects.slurm.collect.place import NotHereError, Place
from securetrain.audit.subjects.slurm.collect.settings import (
    CGROUP_CONF,
    NOT_RUNNING,
    SLURM_CONF,
    SLURMDBD_CONF,
    Running,
    Source,
)
from securetrain.audit.subjects.slurm.facts import (
    Builder,
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
        """Everything that is said of it."""
        controller = self.source("slurm.conf")
        slurm = self.slurm(controller, self.source("cgroup.conf"), self.source("slurmdbd.conf"))
        return SlurmFacts(
            collected=Collected(
                at=now, hostname=socket.gethostname(), collector=f"securetrain {__version__}"
            ),
            name=self.name(controller) or self.place.directory,
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
        """The configuration that these files make."""
        place = self.place
        said = {
            name: settings.read_setting(source, default, self.running)
            for source, table in ((controller, SLURM_CONF), (cgroup, CGROUP_CONF))
            for name, default in table.items()
        }
        for name, default in SLURMDBD_CONF.items():
            said[name] = self.database(database, settings.read_setting(database, default))
        namespace, gres = said.pop("namespace_type"), self.path("gres.conf")
        found = section(lambda: self.files(controller, cgroup, database))
        stack = section(lambda: plugins.spank(place, controller.known()))
        return Slurm(
            **said,
            version=self.release(),
            namespace_type=self.private_by(namespace, stack),
            storage_pass=self.database(database, settings.storage_pass(database)),
            slurm_uid=self.uid(said["slurm_user"]),
            files=found,
            spank=stack,
            partitions=section(
                lambda: plugins.partitions(controller.known(), said["disable_root_jobs"])
            ),
            gpu_devices=section(lambda: plugins.gpu_devices(place, gres), place),
            private_dirs=section(lambda: plugins.private_dirs(place, namespace)),
            container_mounts=section(lambda: plugins.container_mounts(place, stack)),
            login_rules=section(lambda: plugins.login_rules(place)),
            rest=section(lambda: plugins.rest(place)),
            keys=section(lambda: files.keys(place, controller.conf, self.salt)),
            paths=section(lambda: files.paths(place, controller.known(), found.value or (), stack)),
        )

    # --- files ------------------------------------------------------------------------------------

    def path(self, name: str) -> str:
        """A file of the directory, as it is or as a template."""
        for ending in _TEMPLATES:
            path = self.place.named(name + ending)
            with suppress(OSError, NotHereError):
                self.place.real(path).lstat()
                return path
        return self.place.named(name)

    def source(self, name: str) -> Source:
        """One of the files that hold settings."""
        path, reason = self.path(name), ""
        try:
            return Source(path, parser.read(self.place, path, _LINES), self.series)
        except FAILURES as error:
            if name == "slurm.conf" or not parser.is_absent(self.place, error):
                outcome, reason = parser.failure(error)
                reason = f"{path} is not here" if outcome is Outcome.ABSENT else reason
        return Source(path, None, None if reason else self.series, reason)

    def files(self, *sources: Source) -> Iterator[SlurmFile]:
        """Yield the files that were read, and whether those that Slurm looks for can be."""
        known: set[str] = set()
        for one in sources:
            read = one.conf.files if one.conf else (self.file(one.path),)
            known.update(file.path for file in read)
            yield from read
        yield from (self.file(path) for path in map(self.path, _BESIDE) if path not in known)

    def file(self, path: str) -> SlurmFile:
        """The end of reading a file."""
        try:
            self.place.text(path)
        except FAILURES as error:
            outcome, reason = parser.failure(error)
            return SlurmFile(outcome=outcome, reason=reason, path=path)
        return SlurmFile(outcome=Outcome.OK, path=path)

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
            return absent(Location(path=source.path), f"there is no {source.path}")
        return reading

    def uid(self, name: Reading[str]) -> Reading[int]:
        """The number of SlurmUser on this machine."""
        if name.value is None:
            return Reading(outcome=name.outcome, reason=name.reason, at=name.at)
        if name.value == "root" or name.value.isdigit():
            return ok(0 if name.value == "root" else int(name.value), name.at)
        known = dict(files.users(self.place.host)) if self.place.live else {}
        if name.value not in known:
            return failed(f"the number of {name.value} is not known here", name.at)
        return ok(known[name.value], name.at)

    @property
    def series(self) -> settings.Version | None:
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
            return ok(SlurmVersion(number=number, builder=builder), at)
        running = self.running.get("SLURM_VERSION")
        found = _RUNNING_VERSION.match(running.value or "") if running else None
        if found is None or running is None:
            return failed("save the output of 'slurmctld -V' beside slurm.conf", None)
        return ok(SlurmVersion(number=found.group(), builder=Builder.UNKNOWN), running.at)

    @staticmethod
    def private_by(plugin: Reading[str], stack: Section[Any]) -> Reading[str]:
        """The maker of private directories: the plug-in for it, or one of SPANK."""
        if plugin.value == "":
            if stack.value is None:
                return failed(stack.reason, plugin.at)
            for one in stack.value:
                if any(part in one.name for part in _PRIVATE_TMP):
                    return ok(f"spank/{one.name}", one.at)
        return plugin


def _saved(place: Place) -> tuple[Running, tuple[str, str, Location] | None]:
    """The output of ``scontrol show config`` and of ``slurmctld -V``, if somebody saved it."""
    running, version = NOT_RUNNING, None
    names: list[str] = []
    with suppress(*FAILURES):
        names = place.names(place.directory)
    for path in (f"{place.directory}/{name}" for name in names[:_MAX_SAVED]):
        with suppress(*FAILURES):  # whoever needs it says so
            info = place.real(path).stat()
            if not stat.S_ISREG(info.st_mode) or info.st_size > _SMALL:
                continue
            text = place.text(path)
            if settings.is_running(text) and not running.values:
                running = settings.running(text, path)
            elif version is None and len(text) < 200 and (found := _VERSION.match(text)):
                version = (found.group(1), found.group(2), Location(path=path, line=1))
    return running, version
