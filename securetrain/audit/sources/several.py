# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts of several sources as one set: a node, files, a scheduler, and what others saved.

Each collector is loaded when there is something for it.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from securetrain.audit.documents import Document, Facts, Refused, facts_of
from securetrain.audit.subjects.node.collect.host import NOTHING, Named

if TYPE_CHECKING:
    from securetrain.audit.engine.check import Check
    from securetrain.policy.load import LoadedPolicy


class JoinedFacts(Facts):
    """The documents of all parts, one part after the other; no two are about one asset."""

    def __init__(self, parts: Sequence[Facts]) -> None:
        """Take the parts; nothing is read yet."""
        self._parts = tuple(parts)
        self.expected = frozenset().union(*(part.expected for part in parts))
        self.notes = tuple(note for part in parts for note in part.notes)

    @property
    def count(self) -> int:
        """Those of all parts."""
        return sum(part.count for part in self._parts)

    def _read(self) -> Iterator[Document | Refused]:
        return chain.from_iterable(self._parts)


def joined(parts: Sequence[Facts]) -> Facts:
    """All parts as one set."""
    return parts[0] if len(parts) == 1 else JoinedFacts(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFacts:
    """Facts that were saved, and what makes them count."""

    path: Path
    inventory: Path | None = None
    nonce: str = ""
    nonce_store: Path | None = None
    unsigned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The sources of facts."""

    files: Sequence[Path] = ()
    """Manifests, launch scripts and exports, and folders of them."""
    values: Sequence[Path] = ()
    """Values of the charts among them."""
    render: bool = True
    """Whether helm and kustomize may be run."""
    slurm: Sequence[Path] = ()
    runs: Sequence[Path] = ()
    trust: Path | None = None
    """The trust root of the runs."""
    inventory: Path | None = None
    """The nodes that may take part in them."""
    fleet: Path | None = None
    node: bool = False
    named: Named = NOTHING
    """What the job on this node names."""
    search_path: Sequence[str] = ()
    stored: SavedFacts | None = None

    def facts(
        self,
        policy: "LoadedPolicy",
        now: datetime,
        environ: Mapping[str, str],
        *,
        checks: "Sequence[Check]" = (),
        progress: "Callable[[int, int], None] | None" = None,
    ) -> Facts:
        """Collect or read everything; no two documents are about one asset.

        Args:
            policy: What a run's ledger is verified by.
            now: The time, with its zone.
            environ: The environment.
            checks: The catalogue: what a site's own ask of the objects of the files.
            progress: Is told how many files of how many were read.

        Raises:
            AuditError: ST-AUDT-002, when they are read, where two documents are about one asset.
        """
        parts: list[Facts] = []
        if self.files:
            parts.append(_of_files(self, now, environ.get("PATH", ""), checks, progress))
        if self.slurm:
            from securetrain.audit.subjects.slurm.collect.cluster import collect_slurm  # noqa: PLC0415

            salt = os.urandom(32)
            parts.append(facts_of(collect_slurm(one, now=now, salt=salt) for one in self.slurm))
        if self.runs:
            parts.append(_of_runs(self, policy, now))
        if self.node:
            from securetrain.audit.subjects.node.collect.node import collect_node  # noqa: PLC0415
            from securetrain.audit.subjects.storage.collect.files import collect_exports  # noqa: PLC0415

            path = list(self.search_path)
            facts = collect_node(environ, now=now, search_path=path, job=self.named)
            parts.append(facts_of([facts, *collect_exports(now=now)]))
        if (stored := self.stored) is not None:
            from securetrain.audit.sources.inventory import read_inventory  # noqa: PLC0415
            from securetrain.audit.sources.nonces import NonceStore  # noqa: PLC0415
            from securetrain.audit.sources.stored import StoredFacts  # noqa: PLC0415

            listed = read_inventory(stored.inventory) if stored.inventory else None
            store = NonceStore(stored.nonce_store, now) if stored.nonce_store else None
            nonce, unsigned = stored.nonce, stored.unsigned
            parts.append(
                StoredFacts(stored.path, listed, nonce=nonce, store=store, unsigned=unsigned)
            )
        return joined(parts)


def node_facts(environ: Mapping[str, str], now: datetime, *, device: str = "") -> Facts:
    """The facts of this machine alone, and of a device that is made later: it is down.

    Args:
        environ: The environment of a job.
        now: The time, with its zone.
        device: The name of the device, where a job will have one.
    """
    from securetrain.audit.subjects.node.collect.node import collect_node  # noqa: PLC0415
    from securetrain.audit.subjects.node.facts.node import Interface  # noqa: PLC0415

    body = collect_node(environ, now=now)
    there = body.node.interfaces
    if device and there.value is not None and all(one.name != device for one in there.value):
        made = Interface(
            name=device,
            kind="wireguard",
            up=False,
            loopback=False,
            rp_filter=None,
            ipv6=None,
            accept_ra=None,
            forwarding6=None,
        )
        there = replace(there, value=(*there.value, made))
        body = replace(body, node=replace(body.node, interfaces=there))
    return facts_of([body])


def _of_files(
    sources: Sources,
    now: datetime,
    path: str,
    checks: "Sequence[Check]",
    progress: "Callable[[int, int], None] | None",
) -> Facts:
    from securetrain.audit.subjects.kubernetes.collect.collect import collect_manifests  # noqa: PLC0415
    from securetrain.audit.subjects.kubernetes.collect.rendering.render import Renderer  # noqa: PLC0415
    from securetrain.audit.subjects.slurm.collect.cluster import (  # noqa: PLC0415
        collect_clusters,
        is_configuration,
    )
    from securetrain.audit.subjects.storage.collect.files import (  # noqa: PLC0415
        collect_storage,
        files_below,
    )

    stored = collect_storage(sources.files, now=now)
    files = [file for path in sources.files for file in files_below(path)]
    own = [file for file in files if file.parent not in sources.slurm]
    clusters = collect_clusters(own, now=now, salt=os.urandom(32))
    folders = {*sources.slurm, *(Path(one.directory) for one in clusters)}
    renderer = Renderer(path, values=tuple(sources.values), off=not sources.render)
    elsewhere = {one.path for one in stored}
    elsewhere.update(str(f) for f in files if f.parent in folders and is_configuration(f.name))
    asked = [check.expression for check in checks if check.expression is not None]
    bodies = collect_manifests(
        sources.files,
        now=now,
        renderer=renderer,
        expressions=asked,
        elsewhere=elsewhere,
        progress=progress,
    )
    return facts_of([*bodies, *stored, *clusters])


def _of_runs(sources: Sources, policy: "LoadedPolicy", now: datetime) -> Facts:
    from securetrain.audit.sources.inventory import read_inventory  # noqa: PLC0415
    from securetrain.audit.subjects.run.collect import collect_run  # noqa: PLC0415

    names = None
    if sources.inventory is not None:
        assets = read_inventory(sources.inventory).assets
        names = [one.partition(":")[2] for one in assets if one.startswith("node:")]
    return facts_of(
        collect_run(
            run,
            now=now,
            trust=sources.trust,
            policy=policy,
            inventory=names,
            fleet_state=sources.fleet,
        )
        for run in sources.runs
    )
