# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Collect the facts of manifests: a document for each workload and launch, and one for all of them.

Nothing is asked of a network, no process is started but the tools of a `Renderer`, and memory is
bounded by the limits of `errors.py`: objects are read one at a time, and what other objects say is
kept in short.
"""

import itertools
import socket
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path

import msgspec

from securetrain import __version__
from securetrain.audit.cel.evaluator import Evaluator
from securetrain.audit.cel.expression import Expression
from securetrain.audit.facts import Body, Collected, End, Entry, Location, Reading, Runtime
from securetrain.audit.ledger import Ledger, read_at
from securetrain.audit.parser.files import (
    ALL,
    MAX_POLICIES,
    MAX_WORKLOADS,
    Large,
    ManifestError,
    Text,
    not_ours,
    texts,
    unread,
)
from securetrain.audit.parser.objects import (
    WATCHED,
    Object,
    Part,
    Reader,
)
from securetrain.audit.parser.tree import Node
from securetrain.audit.parser.values import (
    Scope,
    Source,
    failed,
    is_known,
)
from securetrain.audit.subjects.kubernetes.collect.admission import (
    INCLUDED,
    AdmissionPolicy,
    SignaturePolicy,
    admission_policy,
    admissions,
    signature_policy,
    signatures,
)
from securetrain.audit.subjects.kubernetes.collect.entrances import (
    ROUTES,
    Target,
    Way,
    entrances,
    ways,
)
from securetrain.audit.subjects.kubernetes.collect.expressions import Answers
from securetrain.audit.subjects.kubernetes.collect.labels import labels_of
from securetrain.audit.subjects.kubernetes.collect.launches import Launches
from securetrain.audit.subjects.kubernetes.collect.network import (
    Isolated,
    Policies,
    network_policy,
)
from securetrain.audit.subjects.kubernetes.collect.rendering.render import Renderer, Rendering
from securetrain.audit.subjects.kubernetes.collect.rights import Rights
from securetrain.audit.subjects.kubernetes.collect.stored import (
    ansible_secrets,
    stored_secrets,
)
from securetrain.audit.subjects.kubernetes.collect.workloads import with_own_names, workload
from securetrain.audit.subjects.kubernetes.facts.cluster import (
    Cluster,
    ClusterFacts,
    Namespace,
    StoredSecret,
)
from securetrain.audit.subjects.kubernetes.facts.workload import Pod, Workload, WorkloadFacts
from securetrain.audit.subjects.launches.collect.tasks import started_in

MAX_STORED = 5_000
MAX_BLOCKS = 20
"""Of one workload: one is enough for all of its checks."""


def collect_manifests(
    paths: Iterable[Path],
    *,
    now: datetime,
    cluster: str = "files",
    renderer: Renderer | None = None,
    expressions: Sequence[Expression] = (),
    elsewhere: Container[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> list[Body]:
    """Collect the facts of manifests, scripts and folders of them.

    Args:
        paths: Files and folders.
        now: The time of collection, with its zone.
        cluster: The name of the cluster that they are for.
        renderer: What puts charts and kustomizations together; None reads every file as it stands.
        expressions: What a site asks of the objects themselves.
        elsewhere: Files that another reader answers for.
        progress: Is told how many files of how many were read.

    Returns:
        The workloads, then the launches, in the order of the files, then the cluster.
    """
    collected = Collected(
        at=now, hostname=socket.gethostname(), collector=f"securetrain {__version__}"
    )
    paths = list(paths)
    roots = tuple(one if one.is_dir() else one.parent for one in paths)
    rendering = renderer.render(paths) if renderer is not None else Rendering()
    with Evaluator() as evaluator:
        collection = _Collection(Launches(collected, roots), Answers(expressions, evaluator))
        for path in paths:
            collection.ledger.add(read_at("folder", Location(path=str(path)), "cluster"))
        collection.take_rendered(rendering)
        for file in texts(paths, progress):
            name = file.at.path if isinstance(file, Entry) else file.path
            is_other = isinstance(file, Entry) and name in elsewhere
            if name not in rendering.covered and not is_other:
                collection.take(file)
    return collection.finish(cluster)


@cache
def _repository(folder: Path) -> Path:
    """The folder that holds a checkout, of those above a file; the top where none does."""
    ways = (folder, *folder.parents)
    return next((one for one in ways if (one / ".git").exists()), ways[-1])


@dataclass(slots=True)
class _Found:
    """A workload, before it is joined with what other objects say."""

    name: str
    workload: Workload
    ledger: tuple[Entry, ...]

    @property
    def is_in_cluster(self) -> bool:
        """Kubernetes starts it."""
        return self.workload.runtime.value is Runtime.KUBERNETES

    @property
    def repository(self) -> Path:
        """The checkout that it is of."""
        return _repository(Path(self.workload.at.path).parent)


@dataclass(slots=True)
class _Collection:
    launches: Launches
    answers: Answers
    found: list[_Found] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    policies: dict[Path, Policies] = field(default_factory=lambda: defaultdict(Policies))
    """Of each repository: what stands in another is of another cluster."""
    rights: dict[Path, Rights] = field(default_factory=lambda: defaultdict(Rights))
    ways: list[Way] = field(default_factory=list)
    admissions: list[AdmissionPolicy] = field(default_factory=list)
    secrets: list[StoredSecret] = field(default_factory=list)
    signatures: list[SignaturePolicy] = field(default_factory=list)
    namespaces: dict[str, Reading[str]] = field(default_factory=dict)
    included: dict[str, Reading[str]] = field(default_factory=dict)
    """Namespaces to their label of Sigstore's."""
    unread: dict[str, str] = field(default_factory=dict)
    """A kind of `WATCHED` to the first file that may hold one and was not read."""
    left_out: set[str] = field(default_factory=set)
    reader: Reader = field(init=False)

    def __post_init__(self) -> None:
        self.reader = Reader(self.ledger.add, self._without_objects)

    def take(self, file: Text | Large | Entry) -> None:
        """Read one file."""
        if isinstance(file, Entry):
            self._unread(file)
            return
        before = len(self.launches.found)
        text = file if isinstance(file, Text) else Text(file.path, "", is_script=False)
        found = self.reader.objects(file) if isinstance(file, Text) else self._large(file)
        objects = self._take_all(text, text, found)
        for kind, name in self.reader.words.items():
            self.unread.setdefault(kind, name)
        if objects or len(self.launches.found) > before or text.is_script:
            self.ledger.add(read_at("file", Location(path=file.path), "cluster"))
        elif not self.ledger.is_open(file.path):
            self.ledger.add(not_ours(file.path, "no object and no command in it"))

    def _take_all(self, whole: Text, of: Text, found: Iterable[Object]) -> int:
        """Note a file and its objects; return their number."""
        objects = 0
        self.launches.take_file(whole)
        for one in found:
            objects += 1
            if not self.launches.take_object(of, one):
                self._left_out("launch", one)
            self._take(one)
        for one in self.launches.started():
            self._take(one)
        return objects

    def _large(self, file: Large) -> Iterator[Object]:
        try:
            yield from self.reader.large(file)
        except (ManifestError, OSError) as error:
            reason = f"{file.reason}, and it is no List that can be read: {error}"
            self._unread(unread(file.path, reason))

    def take_rendered(self, rendering: Rendering) -> None:
        """Read what tools made, and note what they did not make."""
        counts: dict[str, int] = {}
        for made in rendering.made:
            before = counts.get(made.name, 0)
            part = Part(made.name, made.text, Source(made.path), 1, before=before)
            whole = Text(made.path, made.origins.text, is_script=False)
            found = list(self.reader.rendered(part, made.origins.relocate))
            self._take_all(whole, Text(made.path, "", is_script=False), found)
            counts[made.name] = before + 1
        for path in sorted(rendering.covered | {made.path for made in rendering.made}):
            self.ledger.add(read_at("file", Location(path=path), "cluster"))
        for path, reason in rendering.left.items():
            self.ledger.add(unread(path, reason, help="install the tool, or render it first"))

    def _unread(self, entry: Entry) -> None:
        self.ledger.add(entry)
        if entry.end is End.NOT_UNDERSTOOD and "cluster" in entry.bears_on:
            for kind in WATCHED:
                self.unread.setdefault(kind, entry.at.path)

    def _take(self, one: Object) -> None:
        """Note an object."""
        if one.runtime is Runtime.KUBERNETES:
            self._take_for_others(one)
        record = workload(one)
        if record is None:
            return
        if len(self.found) >= MAX_WORKLOADS:
            self._left_out("workload", one)
            return
        parts = (one.node.entries or {}).items()
        inner = (value for key, value in parts if key not in {"metadata", "status"})
        opened = (entry for value in inner for entry in one.blocks(value, "workload"))
        read = read_at("document", record.at, "workload")
        ledger = (read, *itertools.islice(opened, MAX_BLOCKS))
        self.found.append(_Found(one.name, record, ledger))

    def _take_for_others(self, one: Object) -> None:
        """Note what an object says about others."""
        self.answers.take(one)
        repository = _repository(Path(one.source.path).parent)
        if not self.rights[repository].take(one):
            self._left_out("RoleBinding", one)
        if (policy := network_policy(one)) and not self.policies[repository].add(policy):
            self._left_out("NetworkPolicy", one)
        self.admissions.extend(admission_policy(one))
        self.signatures.extend(signature_policy(one))
        if len(self.ways) < MAX_POLICIES:
            self.ways.extend(ways(one))
        elif one.kind == "Service" or one.kind in ROUTES:
            self._left_out("Service", one)
        if len(self.secrets) < MAX_STORED:
            self.secrets.extend(stored_secrets(one))
        if one.kind == "Namespace" and not one.group:
            self._namespace(one)

    def _without_objects(
        self, name: str, root: Node, source: Source, marks: int
    ) -> Iterator[Object]:
        """Read a document that holds no object of Kubernetes."""
        if len(self.secrets) < MAX_STORED:
            self.secrets.extend(ansible_secrets(root, source))
        yield from started_in(name, root, source, marks)

    def _left_out(self, kind: str, one: Object) -> None:
        """Say once that there are more objects of a kind than are kept."""
        if kind not in self.left_out:
            self.left_out.add(kind)
            self.unread.setdefault(kind, one.name)
            why = f"too many objects ({kind}); this one and those that follow are left out"
            at, end = one.source.at(one.node), End.NOT_UNDERSTOOD
            self.ledger.add(Entry(unit="document", at=at, end=end, why=why, bears_on=ALL))

    def _namespace(self, one: Object) -> None:
        scope = Scope(one.source, one.node.at)
        metadata = scope.child(one.node, "metadata")
        labels = scope.child(metadata, "labels")
        said = scope.string(labels, "pod-security.kubernetes.io/enforce")
        if said.at is None:
            said = msgspec.structs.replace(said, at=one.source.at(labels or metadata or one.node))
        name = one.said("name")
        if name:
            self.namespaces.setdefault(name, said)
            self.included.setdefault(name, scope.string(labels, INCLUDED))

    # -- joins ----------------------------------------------------------------------------------

    def finish(self, cluster: str) -> list[Body]:
        """Join everything, and return the documents."""
        collected = self.launches.collected
        targets: list[Target] = []
        bodies: list[Body] = []
        for one in self.found:
            record = one.workload
            if one.is_in_cluster:
                mine = [self._joined(one, pod) for pod in record.pods]
                targets += mine
                record = msgspec.structs.replace(record, pods=tuple(each.pod for each in mine))
            bodies.append(
                WorkloadFacts(
                    collected=collected, file=one.name, workload=record, ledger=one.ledger
                )
            )
        kinds = tuple(sorted({one.workload.kind for one in self._in_cluster()} - {""}))
        facts = Cluster(
            name=cluster,
            namespaces=tuple(self._namespaces()),
            entrances=tuple(with_own_names(entrances(self.ways, targets))),
            admissions=tuple(admissions(self.admissions, kinds)),
            secrets=tuple(self.secrets[:MAX_STORED]),
            kinds=kinds,
            objects=self.answers.facts(),
        )
        return [
            *bodies,
            *self.launches.finish(),
            ClusterFacts(collected=collected, cluster=facts, ledger=self.ledger.entries()),
        ]

    def _joined(self, one: _Found, pod: Pod) -> Target:
        """A pod with what other objects say of it."""
        record = one.workload
        labels = labels_of(record, pod, from_runtime=record.kind == "TrainJob")
        unread = self.unread.get("NetworkPolicy", "")
        seen = Isolated(labels, record.namespace, pod.at)
        policies = self.policies[one.repository]
        account = self.rights[one.repository].account(
            pod.account, record.namespace, self.unread.get("RoleBinding", "")
        )
        joined = msgspec.structs.replace(
            pod,
            account=account,
            ingress=policies.isolation(seen, "ingress", unread),
            egress=policies.isolation(seen, "egress", unread),
        )
        return Target(record, joined, labels)

    def _in_cluster(self) -> Iterator[_Found]:
        return (one for one in self.found if one.is_in_cluster)

    def _namespaces(self) -> Iterator[Namespace]:
        places: dict[str, list[Location]] = defaultdict(list)
        for one in self._in_cluster():
            space = one.workload.namespace
            if is_known(space):
                places[space.value or ""].append(space.at or one.workload.at)
        unknown = "" if self.signatures else "no policy about signatures is among the files"
        missing = "no Namespace of this name is among the files"
        if unread := self.unread.get("Namespace"):
            missing = f"{missing}, and {unread} could not be read"
        for name in sorted({*places, *self.namespaces}):
            said = self.namespaces.get(name) or failed(missing, places[name][0])
            at = said.at or Location(path="")
            yield Namespace(
                at=at,
                name=name,
                workloads=len(places.get(name, ())),
                pod_security=said,
                signatures=signatures(name, self.included.get(name), self.signatures, at, unknown),
            )
