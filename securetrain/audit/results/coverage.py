# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The share of what an audit was given that it has seen: a row for each kind of thing.

A file that does not parse, may not be read or leads out of its folder is not seen. A template that
was not rendered is: its open values are unknown, each for itself.
"""

from collections.abc import Iterator
from typing import Final

from securetrain.audit.documents.facts import Body, Outcome, Section
from securetrain.audit.results.findings import Coverage
from securetrain.audit.subjects.kubernetes.facts.cluster import Cluster, ClusterFacts
from securetrain.audit.subjects.kubernetes.facts.workload import WorkloadFacts
from securetrain.audit.subjects.node.facts.artifacts import Artifacts
from securetrain.audit.subjects.node.facts.node import NodeFacts
from securetrain.audit.subjects.run.facts import RunFacts
from securetrain.audit.subjects.slurm.facts import Slurm, SlurmFacts
from securetrain.audit.subjects.storage.facts import StorageFacts

MAX_NOTES: Final = 20
"""The rest is counted."""


def is_empty(body: Body) -> bool:
    """Return whether a document is about files in which there was nothing at all."""
    if not isinstance(body, ClusterFacts):
        return False
    return not body.cluster.problems and not any(file.objects for file in body.cluster.files)


class Seen:
    """A count of the documents of an audit, one after the other."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._nodes = 0
        self._named = 0
        self._unseen: list[str] = []
        self._templates = 0
        self._clusters: list[Cluster] = []
        self._slurms: list[Slurm] = []
        self._stored: list[StorageFacts] = []
        self._runs: list[RunFacts] = []

    def see(self, body: Body) -> None:
        """Count one document."""
        match body:
            case NodeFacts():
                self._nodes += 1
                self._artifacts(body.node.artifacts)
            case WorkloadFacts():
                self._templates += body.workload.rendered.outcome is Outcome.TEMPLATED
            case ClusterFacts():
                self._clusters.append(body.cluster)
            case SlurmFacts():
                self._slurms.append(body.slurm)
            case RunFacts():
                self._runs.append(body)
            case StorageFacts():
                self._stored.append(body)
            case _:
                pass

    def rows(self, missing_nodes: int = 0) -> tuple[Coverage, ...]:
        """The coverage, with the nodes that should have been there."""
        return tuple(self._rows(missing_nodes))

    def _rows(self, missing_nodes: int) -> Iterator[Coverage]:
        if every := self._nodes + missing_nodes:
            yield Coverage(what="hosts", seen=self._nodes, of=every)
        if self._nodes:
            yield self._job()
        if self._clusters:
            yield self._manifests()
        if self._slurms:
            yield self._slurm()
        if self._runs:
            lost = [one for one in self._runs if one.run.nodes.value is None]
            notes = [f"{one.path}: {one.run.nodes.reason}" for one in lost]
            every = len(self._runs)
            yield Coverage(what="runs", seen=every - len(lost), of=every, notes=shortened(notes))
        if self._stored:
            yield self._storage()

    def _artifacts(self, section: Section[Artifacts]) -> None:
        if section.value is None:
            self._named += 1
            self._unseen.append(section.reason)
            return
        for one in (*section.value.checkpoints, *section.value.datasets):
            self._named += 1
            if one.outcome is not Outcome.OK:
                self._unseen.append(f"{one.path}: {one.reason}")

    def _job(self) -> Coverage:
        """The checkpoints and data of the job; when it names none, that is said."""
        nothing = "none was named: --checkpoint, --dataset or --job"
        return Coverage(
            what="checkpoints and data",
            seen=self._named - len(self._unseen),
            of=self._named,
            notes=shortened(self._unseen) if self._named else (nothing,),
        )

    def _manifests(self) -> Coverage:
        opened: set[str] = set()
        not_seen: dict[str, str] = {}
        for cluster in self._clusters:
            opened |= {file.path for file in cluster.files}
            for problem in cluster.problems:
                if problem.read.outcome is not Outcome.TEMPLATED:
                    file = problem.name.partition("#")[0]
                    not_seen.setdefault(file, problem.read.reason or "does not parse")
        every = opened | not_seen.keys()
        notes = [f"{file}: {reason}" for file, reason in sorted(not_seen.items())]
        if self._templates:
            noun = "workload" if self._templates == 1 else "workloads"
            notes.insert(0, f"{self._templates} {noun} of templates that were not rendered")
        return Coverage(
            what="manifests",
            seen=len(every) - len(not_seen),
            of=len(every),
            notes=shortened(notes),
        )

    def _slurm(self) -> Coverage:
        """A file that nothing names and that is not there is not missing."""
        files = [
            file
            for slurm in self._slurms
            for file in slurm.files.value or ()
            if file.at is not None or file.outcome is not Outcome.ABSENT
        ]
        notes = [
            f"{file.path}: {file.reason or file.outcome}"
            for file in files
            if file.outcome is not Outcome.OK
        ]
        notes += [slurm.files.reason for slurm in self._slurms if slurm.files.value is None]
        return Coverage(
            what="Slurm",
            seen=sum(file.outcome is Outcome.OK for file in files),
            of=len(files),
            notes=shortened(notes),
        )

    def _storage(self) -> Coverage:
        lost = [one for one in self._stored if one.nfs.exports.value is None]
        notes = [f"{one.path}: {one.nfs.exports.reason}" for one in lost]
        every = len(self._stored)
        return Coverage(what="exports", seen=every - len(lost), of=every, notes=shortened(notes))


def shortened(notes: list[str]) -> tuple[str, ...]:
    """The first notes, and how many more there are."""
    more = len(notes) - MAX_NOTES
    return (*notes[:MAX_NOTES], *([f"and {more} more"] if more > 0 else []))
