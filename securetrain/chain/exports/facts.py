# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The facts that an export may state, each with its standing.

Rules:

1. nothing is exported of a pack whose own statement does not verify;
2. a fact stands by the link that shows it: ``verified`` when that link is, ``declared`` when there
   was no evidence to compare it with, and it is left out when evidence contradicts it;
3. tiers are stated when they are verified, and never else: a tier that nobody shows is worth
   nothing. A program's settings and a worker's word on its files are declared, always;
4. a file is a subject by the SHA-256 of its bytes. The root of a tree is none: it is a property;
5. metrics are those that every rank has recorded and signed, where the link `gradients` is verified
   and no replay contradicts it. Without records there are none.
"""

import hashlib
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from securetrain.artifacts.statement import (
    CheckpointPredicate,
    DatasetPredicate,
    GradientRecord,
    ParentRole,
)
from securetrain.chain import documents
from securetrain.chain.container import Pack
from securetrain.chain.links import LinkVerdict
from securetrain.chain.pack_pieces import PackPieces
from securetrain.chain.packed import PackResult
from securetrain.chain.records import StepVerdict, records_of
from securetrain.chain.store import Pieces, document
from securetrain.core.errors import IntegrityError, os_error
from securetrain.core.files import open_regular
from securetrain.core.hashtree import TreeWriter
from securetrain.core.vocabulary import ChainLink, LinkState, NodeTier

_CHUNK = 1 << 20


class Standing(StrEnum):
    """The ground on which an exported fact stands."""

    VERIFIED = "verified"
    DECLARED = "declared"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFact:
    """A file of the checkpoint."""

    name: str
    size: int
    sha256: str | None
    """Of its bytes (hex); None when nobody has read them."""
    root: str | None = None
    """Of its tree (hex), which is no SHA-256 of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentFact:
    """An artifact that the checkpoint was made from."""

    digest: str
    role: ParentRole
    standing: Standing
    name: str = ""
    run: str = ""
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetFact:
    """The dataset that was trained on."""

    name: str
    digest: str
    standing: Standing
    version: int | None = None
    licenses: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsFact:
    """The figures of the last step whose gradients were applied, by the records of the steps."""

    step: int
    recorded: int
    """Steps that the checkpoint's own records cover."""
    loss: float
    """Mean over the step's tokens, in nats."""
    norm: float
    """Of the gradient, before it was clipped."""
    rate: float
    """The learning rate."""
    standing: Standing

    def named(self) -> Iterator[tuple[str, str]]:
        """Names and numbers, written so that nothing is rounded; what is no number is left out."""
        for name, value in (
            ("training-loss", self.loss),
            ("gradient-norm", self.norm),
            ("learning-rate", self.rate),
        ):
            if math.isfinite(value):
                yield name, repr(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that a writer may write."""

    name: str
    run: str
    step: int
    digest: str
    """Of the checkpoint's tree (hex)."""
    statement: str
    """SHA-256 of the in-toto statement (hex)."""
    created: datetime
    keys: tuple[str, ...]
    files: tuple[FileFact, ...]
    license: str = ""
    """An SPDX expression that whoever exports declares; empty without."""
    parents: tuple[ParentFact, ...] = ()
    num_ancestors: int = 0
    dataset: DatasetFact | None = None
    job: documents.Job | None = None
    settings: Mapping[str, str]
    """Hyper-parameters: the program's own word."""
    code: documents.Code | None = None
    environment: documents.Environment | None = None
    policy: tuple[str, str] | None = None
    """Its id and digest; None when they are not verified."""
    tiers: Mapping[str, NodeTier]
    gradients: GradientRecord | None = None
    gradients_stand: Standing = Standing.DECLARED
    metrics: MetricsFact | None = None
    links: Mapping[ChainLink, LinkState]
    seen: datetime | None = None

    def properties(self) -> Iterator[tuple[str, str]]:
        """Names and values that no format has a field for, in order."""
        yield "checkpoint:tree-digest", self.digest
        yield "checkpoint:statement-sha256", self.statement
        yield "checkpoint:run", self.run
        yield "checkpoint:step", str(self.step)
        for key in self.keys:
            yield "checkpoint:signed-by", key
        yield "pedigree:ancestors-in-pack", str(self.num_ancestors)
        for link, state in self.links.items():
            yield f"link:{link}", str(state)
        for node, tier in sorted(self.tiers.items()):
            yield f"tier:{node}", str(tier)
        if self.policy is not None:
            yield "policy:id", self.policy[0]
            yield "policy:sha256", self.policy[1]
        if self.gradients is not None:
            stands = str(self.gradients_stand)
            yield "gradients:verdict", f"{self.gradients.verdict} ({stands})"
            yield "gradients:steps-judged", f"{self.gradients.judged} ({stands})"
            yield "gradients:steps-refused", f"{self.gradients.refused} ({stands})"
        if self.metrics is not None:
            stands = str(self.metrics.standing)
            yield "metrics:step", str(self.metrics.step)
            yield "metrics:steps-recorded", f"{self.metrics.recorded} ({stands})"
            for name, value in self.metrics.named():
                yield f"metrics:{name}", f"{value} ({stands})"
        if self.environment is not None:
            yield "environment:torch", self.environment.torch
            yield "environment:processor", self.environment.processor.model
        if self.seen is not None:
            yield "log:seen", timestamp(self.seen)


def timestamp(when: datetime) -> str:
    """A time as all formats take it: UTC, whole seconds."""
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def facts_of(
    pack: Pack, result: PackResult, *, weights: Path | None = None, license_: str = ""
) -> Facts:
    """The facts of a pack, by its verification.

    Args:
        pack: The pack.
        result: What became of its links (`verify_pack`).
        weights: The checkpoint's directory: its files are read and compared with their roots, so
            that their SHA-256 can be stated. None states those that the statement has.
        license_: The licence of the model, as whoever exports declares it (SPDX expression).

    Raises:
        IntegrityError: The pack's own problem when its statement does not verify; ST-CKPT-130 or
            140 when a file of `weights` is another, or not there.
    """
    opened = result.subject
    if opened is None or not result.judged:
        first = next(iter(result.problems), None)
        code = "ST-PACK-101" if first is None else first.code
        what = "its statement does not verify" if first is None else first.what
        raise IntegrityError(code, what, str(result.path))
    said, verdicts = opened.checkpoint, result.judged[0].verdicts
    pieces = PackPieces(pack)
    bound = said.bound
    job = _kept(pieces, verdicts, ChainLink.JOB, bound.job, documents.Job)
    gradients = _standing(verdicts[ChainLink.GRADIENTS])
    policy_shown = verdicts[ChainLink.POLICY].state is LinkState.VERIFIED
    return Facts(
        name=said.name or f"{said.run_id}-step-{said.step}",
        run=said.run_id,
        step=said.step,
        digest=opened.digest,
        statement=opened.statement,
        created=said.created,
        keys=tuple(sorted(opened.key_ids)),
        files=tuple(_files(said, weights)),
        license=license_,
        parents=tuple(_parents(said, result, verdicts[ChainLink.PARENTS])),
        num_ancestors=result.num_ancestors,
        dataset=_dataset(said, result, verdicts[ChainLink.DATASET]),
        job=job,
        settings=_settings(pieces, job),
        code=_kept(pieces, verdicts, ChainLink.CODE, bound.code, documents.Code),
        environment=_kept(
            pieces, verdicts, ChainLink.ENVIRONMENT, bound.environment, documents.Environment
        ),
        policy=(said.policy.id, said.policy.digest) if policy_shown else None,
        tiers=_tiers(verdicts[ChainLink.NODES]),
        gradients=None if gradients is None else said.gradients,
        gradients_stand=gradients or Standing.DECLARED,
        metrics=_metrics(pieces, said, verdicts),
        links={link: verdict.state for link, verdict in verdicts.items()},
        seen=result.seen if verdicts[ChainLink.TIME].state is LinkState.VERIFIED else None,
    )


def _standing(verdict: LinkVerdict) -> Standing | None:
    """Rule 2; None leaves the fact out."""
    if verdict.state is LinkState.VERIFIED:
        return Standing.VERIFIED
    return None if verdict.state is LinkState.BROKEN else Standing.DECLARED


def _tiers(nodes: LinkVerdict) -> Mapping[str, NodeTier]:
    """Rule 3."""
    return dict(nodes.tiers) if nodes.state is LinkState.VERIFIED else {}


def _kept(
    pieces: PackPieces,
    verdicts: Mapping[ChainLink, LinkVerdict],
    link: ChainLink,
    digest: str | None,
    kind: type[documents.D],
) -> documents.D | None:
    """A document whose link is verified; else nobody has compared it with anything."""
    if verdicts[link].state is not LinkState.VERIFIED or digest is None:
        return None
    return document(pieces, digest, kind)


def _metrics(
    pieces: Pieces, said: CheckpointPredicate, verdicts: Mapping[ChainLink, LinkVerdict]
) -> MetricsFact | None:
    """Rule 5."""
    gradients, replay = verdicts[ChainLink.GRADIENTS], verdicts[ChainLink.REPLAY]
    digest = said.bound.step_records
    if gradients.state is not LinkState.VERIFIED or replay.state is LinkState.BROKEN:
        return None
    found = None if digest is None else records_of(pieces, digest)
    applied = [one for one in found[1] if one.verdict is not StepVerdict.REFUSED] if found else []
    if found is None or not applied:
        return None
    last = applied[-1]
    return MetricsFact(
        step=last.step,
        recorded=found[0].count,
        loss=float.fromhex(last.loss),
        norm=float.fromhex(last.norm),
        rate=float.fromhex(last.lr),
        standing=Standing.VERIFIED,
    )


def _settings(pieces: PackPieces, job: documents.Job | None) -> dict[str, str]:
    if job is None or job.declared is None:
        return {}
    found = document(pieces, job.declared, documents.Declared)
    return {} if found is None else dict(_flat(found.settings))


def _flat(settings: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Settings as names with dots and texts, sorted; a list is one text."""
    waiting: list[tuple[str, object]] = [("", settings)]
    found: list[tuple[str, str]] = []
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += [(f"{name}.{key}" if name else str(key), one) for key, one in value.items()]
        elif isinstance(value, list | tuple):
            found.append((name, ", ".join(map(str, value))))
        else:
            found.append((name, str(value)))
    yield from sorted(found)


def _parents(
    said: CheckpointPredicate, result: PackResult, link: LinkVerdict
) -> Iterator[ParentFact]:
    standing = _standing(link)
    if standing is None:
        return
    by_digest = {one.digest: one for one in result.ancestors}
    once = {parent.digest: parent for parent in said.parents}
    for parent in once.values():
        found = by_digest.get(parent.digest) if standing is Standing.VERIFIED else None
        if found is None:
            yield ParentFact(digest=parent.digest, role=parent.role, standing=Standing.DECLARED)
            continue
        of = found.checkpoint
        yield ParentFact(
            digest=parent.digest,
            role=parent.role,
            standing=standing,
            name=of.name or f"{of.run_id}-step-{of.step}",
            run=of.run_id,
            step=of.step,
        )


def _dataset(
    said: CheckpointPredicate, result: PackResult, link: LinkVerdict
) -> DatasetFact | None:
    standing, ref = _standing(link), said.dataset
    if standing is None or not ref.digest:
        return None
    of = result.dataset.predicate if result.dataset is not None else None
    if standing is not Standing.VERIFIED or not isinstance(of, DatasetPredicate):
        return DatasetFact(name=ref.name, digest=ref.digest, standing=Standing.DECLARED)
    return DatasetFact(
        name=of.name,
        digest=ref.digest,
        standing=standing,
        version=of.seq,
        licenses=tuple(of.licenses),
        sources=tuple(of.sources),
    )


def _files(said: CheckpointPredicate, weights: Path | None) -> Iterator[FileFact]:
    """Rule 4."""
    for file in said.files:
        sha256 = None
        if weights is not None:
            tree = TreeWriter(said.tree.params)
            sha256 = _read(weights / file.name, file.size, tree)
            if tree.finish().root.hex() != file.root:
                raise _other(weights / file.name)
        yield FileFact(name=file.name, size=file.size, sha256=sha256, root=file.root)
    for listed in (said.index, *said.documents):
        if weights is not None and _read(weights / listed.name, listed.size) != listed.sha256:
            raise _other(weights / listed.name)
        yield FileFact(name=listed.name, size=listed.size, sha256=listed.sha256)


def _read(path: Path, size: int, tree: TreeWriter | None = None) -> str:
    """Read a file once, into its SHA-256 and its tree."""
    hasher, left = hashlib.sha256(), size
    try:
        fd = open_regular(path)
    except FileNotFoundError as error:
        raise IntegrityError("ST-CKPT-140", "it is not there", str(path)) from error
    except OSError as error:
        raise os_error(error, str(path)) from error
    try:
        while data := os.read(fd, min(_CHUNK, left + 1)):
            left -= len(data)
            if left < 0:
                raise _other(path)
            hasher.update(data)
            if tree is not None:
                tree.update(data)
    finally:
        os.close(fd)
    if left:
        raise _other(path)
    return hasher.hexdigest()


def _other(path: Path) -> IntegrityError:
    return IntegrityError(
        "ST-CKPT-130",
        "its bytes are not those that were signed",
        str(path),
        "export from the pack alone, or get the checkpoint's files again",
    )
