# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The facts that an export may state, as one table, each with its standing.

Rules:

1. nothing is exported of a pack whose own statement does not verify;
2. a fact stands by the link that shows it: ``verified`` when that link is, ``declared`` when there
   was no evidence to compare it with, and it is left out when evidence contradicts it. What the
   statement says of itself is declared: its signer's word;
3. tiers are stated when they are verified, and never else: a tier that nobody shows is worth
   nothing. A program's settings and a worker's word on its files are declared, always;
4. a file is a subject by the SHA-256 of its bytes. The root of a tree is none: it is a property. It
   is verified when its bytes were read, or the signed statement has their SHA-256;
5. metrics are those that every rank has recorded and signed, where the link `gradients` is verified
   and no replay contradicts it. Without records there are none.
"""

import hashlib
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from securetrain.artifacts.statement.statements import CheckpointPredicate, DatasetPredicate, Opened
from securetrain.chain import documents
from securetrain.chain.container import Pack
from securetrain.chain.links import LinkVerdict
from securetrain.chain.packing import PackPieces
from securetrain.chain.records import StepVerdict, records_of
from securetrain.chain.rows import settings_of
from securetrain.chain.store import Pieces, document
from securetrain.chain.verdict import Verdict
from securetrain.core.errors import IntegrityError, os_error
from securetrain.core.files import open_regular
from securetrain.core.hashtree import TreeWriter
from securetrain.core.vocabulary import ChainLink, LinkState, NodeTier

_CHUNK = 1 << 20


class Standing(StrEnum):
    """The ground on which an exported fact stands."""

    VERIFIED = "verified"
    DECLARED = "declared"


class Kind(StrEnum):
    """The things that an export states besides the checkpoint itself."""

    FILE = "file"
    """Of the checkpoint."""
    PARENT = "parent"
    """An artifact that the checkpoint was made from."""
    DATASET = "dataset"
    INPUT = "input"
    """What the job's command line named."""
    CODE = "code"
    """A file that was imported."""
    SOURCE = "source"
    """A commit or an image."""
    LIBRARY = "library"
    """An installed distribution."""
    POLICY = "policy"


@dataclass(frozen=True, slots=True)
class Fact:
    """A row of the table."""

    kind: Kind
    name: str
    """Empty when nobody gives one."""
    standing: Standing
    digest: Mapping[str, str] = field(default_factory=dict)
    """As in-toto writes it: ``sha256``, ``gitCommit``, or ``securetrainTree`` for the digest of a
    tree, which is no SHA-256 of a file; empty when nobody has read the bytes.
    """
    role: str = ""
    """What it was to the checkpoint, where the kind does not say."""
    version: str = ""
    licenses: tuple[str, ...] = ()
    said: tuple[tuple[str, str], ...] = ()
    """Names and values that no format has a field for."""

    @property
    def known_as(self) -> str:
        """Its name, or its tree."""
        return self.name or self.digest["securetrainTree"]

    @property
    def sha256(self) -> str | None:
        """Of its bytes (hex)."""
        return self.digest.get("sha256")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that a writer may write."""

    name: str
    opened: Opened
    """The checkpoint."""
    license: str = ""
    """An SPDX expression that whoever exports declares; empty without."""
    table: tuple[Fact, ...]
    job: Mapping[str, Any] | None = None
    """The command line; None when it is not verified."""
    settings: Mapping[str, str]
    """Hyper-parameters: the program's own word."""
    metrics: Mapping[str, str] = field(default_factory=dict)
    """Of the last step whose gradients were applied, by verified records: its number (``step``),
    how many steps they cover (``steps-recorded``), and what was measured, so that nothing is
    rounded.
    """
    tiers: Mapping[str, NodeTier]
    links: Mapping[ChainLink, LinkState]
    properties: tuple[tuple[str, str], ...]
    """Names and values that no format has a field for."""

    @property
    def said(self) -> CheckpointPredicate:
        """The statement."""
        return self.opened.checkpoint

    def of(self, *kinds: Kind) -> list[Fact]:
        """The rows of some kinds, in the order of the kinds."""
        return [one for kind in kinds for one in self.table if one.kind is kind]

    @property
    def files(self) -> list[Fact]:
        """The files of the checkpoint."""
        return self.of(Kind.FILE)

    @property
    def measured(self) -> Iterator[tuple[str, str]]:
        """The metrics that were measured."""
        return ((name, one) for name, one in self.metrics.items() if not name.startswith("step"))

    @property
    def libraries(self) -> list[Fact]:
        """The distributions, each once, by name."""
        found = {(one.name.lower(), one.version): one for one in self.of(Kind.LIBRARY)}
        return [found[key] for key in sorted(found)]


def timestamp(when: datetime) -> str:
    """A time as all formats take it: UTC, whole seconds."""
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def facts_of(
    pack: Pack, result: Verdict, *, weights: Path | None = None, license_: str = ""
) -> Facts:
    """The facts of a pack, by its verification.

    Args:
        pack: The pack.
        result: What became of its links (`verify`).
        weights: The checkpoint's directory: its files are read and compared with their roots, so
            that their SHA-256 can be stated. None states those that the statement has.
        license_: The licence of the model, as whoever exports declares it (SPDX expression).

    Raises:
        IntegrityError: The pack's own problem when its statement does not verify; ST-CKPT-130 or
            140 when a file of `weights` is another, or not there.
    """
    opened = result.opened
    if opened is None or not result.judged:
        first = next(iter(result.problems), None)
        code = "ST-PACK-101" if first is None else first.code
        what = "its statement does not verify" if first is None else first.what
        raise IntegrityError(code, what, str(result.path))
    said, known = opened.checkpoint, _Known(PackPieces(pack), result.judged[0].verdicts)
    job = known.kept(ChainLink.JOB, said.bound.job, documents.Job)
    return Facts(
        name=said.name or f"{said.run_id}-step-{said.step}",
        opened=opened,
        license=license_,
        table=(
            *_files(said, weights),
            *known.parents(said, result),
            *known.dataset(said, result),
            *_inputs(job),
            *known.code(said),
            *_policy(said, shown=known.shows(ChainLink.POLICY)),
        ),
        job=None if job is None else _job(job),
        settings={} if job is None else _flat(settings_of(known.pieces, said.bound.job) or {}),
        metrics=dict(known.metrics(said)),
        tiers=known.tiers,
        links={link: verdict.state for link, verdict in known.verdicts.items()},
        properties=tuple(known.properties(opened, result)),
    )


@dataclass(frozen=True, slots=True)
class _Known:
    """The evidence of a pack, and what became of its links."""

    pieces: Pieces
    verdicts: Mapping[ChainLink, LinkVerdict]

    def shows(self, link: ChainLink) -> bool:
        return self.verdicts[link].state is LinkState.VERIFIED

    @property
    def tiers(self) -> Mapping[str, NodeTier]:
        """Rule 3."""
        nodes = ChainLink.NODES
        return dict(self.verdicts[nodes].tiers) if self.shows(nodes) else {}

    def standing(self, link: ChainLink) -> Standing | None:
        """Rule 2; None leaves the fact out."""
        if self.verdicts[link].state is LinkState.BROKEN:
            return None
        return Standing.VERIFIED if self.shows(link) else Standing.DECLARED

    def kept(
        self, link: ChainLink, digest: str | None, kind: type[documents.D]
    ) -> documents.D | None:
        """A document whose link is verified; else nobody has compared it with anything."""
        return document(self.pieces, digest, kind) if self.shows(link) and digest else None

    def parents(self, said: CheckpointPredicate, result: Verdict) -> Iterator[Fact]:
        standing = self.standing(ChainLink.PARENTS)
        by_digest = {one.digest: one for one in result.pack.ancestors}
        for parent in {one.digest: one for one in said.parents if standing is not None}.values():
            found = by_digest.get(parent.digest) if standing is Standing.VERIFIED else None
            name, version, run = "", "", tuple[tuple[str, str], ...]()
            if found is not None:
                of = found.checkpoint
                name, version = of.name or f"{of.run_id}-step-{of.step}", str(of.step)
                run = (("run", of.run_id),)
            stands = Standing.DECLARED if found is None else Standing.VERIFIED
            tree = {"securetrainTree": parent.digest}
            yield Fact(Kind.PARENT, name, stands, tree, str(parent.role), version, said=run)

    def dataset(self, said: CheckpointPredicate, result: Verdict) -> Iterator[Fact]:
        standing, ref = self.standing(ChainLink.DATASET), said.dataset
        if standing is None or not ref.digest:
            return
        of = result.dataset.predicate if result.dataset is not None else None
        tree = {"securetrainTree": ref.digest}
        if standing is not Standing.VERIFIED or not isinstance(of, DatasetPredicate):
            yield Fact(Kind.DATASET, ref.name, Standing.DECLARED, tree)
            return
        sources, licenses = tuple(("source", one) for one in of.sources), tuple(of.licenses)
        yield Fact(Kind.DATASET, of.name, standing, tree, "", str(of.seq), licenses, sources)

    def code(self, said: CheckpointPredicate) -> Iterator[Fact]:
        code = self.kept(ChainLink.CODE, said.bound.code, documents.Code)
        if code is None:
            return
        for file in code.files:
            by_launcher = file.by is documents.Witness.LAUNCHER
            standing = Standing.VERIFIED if by_launcher else Standing.DECLARED
            yield Fact(Kind.CODE, file.path, standing, {"sha256": file.sha256})
        if code.commit:
            digest = {"gitCommit": code.commit}
            yield Fact(Kind.SOURCE, "commit", Standing.VERIFIED, digest, "commit")
        if code.image:
            digest = {"sha256": code.image.removeprefix("sha256:")}
            yield Fact(Kind.SOURCE, "image", Standing.DECLARED, digest, "image")
        for one in code.distributions:
            digest = {} if one.record is None else {"sha256": one.record}
            whole = one.name, Standing.VERIFIED, digest, "distribution", one.version
            yield Fact(Kind.LIBRARY, *whole)

    def metrics(self, said: CheckpointPredicate) -> Iterator[tuple[str, str]]:
        """Rule 5."""
        digest, replayed = said.bound.step_records, self.verdicts[ChainLink.REPLAY].state
        if not self.shows(ChainLink.GRADIENTS) or replayed is LinkState.BROKEN or digest is None:
            return
        kept, records = records_of(self.pieces, digest) or (None, [])
        applied = [one for one in records if one.verdict is not StepVerdict.REFUSED]
        if kept is None or not applied:
            return
        last, names = applied[-1], ("training-loss", "gradient-norm", "learning-rate")
        yield from (("step", str(last.step)), ("steps-recorded", str(kept.count)))
        for name, value in zip(names, (last.loss, last.norm, last.lr), strict=True):
            if math.isfinite(number := float.fromhex(value)):
                yield name, repr(number)

    def properties(self, opened: Opened, result: Verdict) -> Iterator[tuple[str, str]]:
        """Of every group of names, the standing stands at its head or with the value."""
        said, keys = opened.checkpoint, sorted(opened.key_ids)
        yield from (
            ("checkpoint:standing", str(Standing.DECLARED)),
            ("checkpoint:tree-digest", opened.digest),
            ("checkpoint:statement-sha256", opened.statement),
            ("checkpoint:run", said.run_id),
            ("checkpoint:step", str(said.step)),
            *(("checkpoint:signed-by", key) for key in keys),
            ("pedigree:ancestors-in-pack", str(len(result.pack.ancestors))),
            *((f"link:{link}", str(one.state)) for link, one in self.verdicts.items()),
        )
        yield from _group("tier", {node: str(tier) for node, tier in sorted(self.tiers.items())})
        if self.shows(ChainLink.POLICY):
            yield from _group("policy", {"id": said.policy.id, "sha256": said.policy.digest})
        if stands := self.standing(ChainLink.GRADIENTS):
            yield "gradients:verdict", f"{said.gradients.verdict} ({stands})"
            yield "gradients:steps-judged", f"{said.gradients.judged} ({stands})"
            yield "gradients:steps-refused", f"{said.gradients.refused} ({stands})"
        for name, value in self.metrics(said):
            yield f"metrics:{name}", value if name == "step" else f"{value} (verified)"
        bound = said.bound.environment
        if found := self.kept(ChainLink.ENVIRONMENT, bound, documents.Environment):
            values = {"torch": found.torch, "processor": found.processor.model}
            yield from _group("environment", values)
        if result.seen is not None and self.shows(ChainLink.TIME):
            yield from _group("log", {"seen": timestamp(result.seen)})


def _group(name: str, values: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Verified values, headed by their standing; nothing of none."""
    if values:
        yield f"{name}:standing", str(Standing.VERIFIED)
    yield from ((f"{name}:{key}", value) for key, value in values.items())


def _policy(said: CheckpointPredicate, *, shown: bool) -> list[Fact]:
    digest = {"sha256": said.policy.digest}
    return [Fact(Kind.POLICY, said.policy.id, Standing.VERIFIED, digest)] if shown else []


def _inputs(job: documents.Job | None) -> Iterator[Fact]:
    named = () if job is None else (job.program, *(one.input for one in job.arguments))
    for one in named:
        if one is not None:
            yield Fact(Kind.INPUT, one.name, Standing.VERIFIED, {"sha256": one.sha256}, one.kind)


def _job(job: documents.Job) -> dict[str, Any]:
    words = (one.text or (one.input.name if one.input else "") for one in job.arguments)
    return {
        "program": job.module or (job.program.name if job.program else ""),
        "arguments": list(words),
        "nodes": list(job.nodes),
        "workers": job.workers,
        "standing": str(Standing.VERIFIED),
    }


def _flat(settings: Mapping[str, object]) -> dict[str, str]:
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
    return dict(sorted(found))


def _files(said: CheckpointPredicate, weights: Path | None) -> Iterator[Fact]:
    """Rule 4."""
    listed = [(one.name, one.size, one.sha256, "") for one in (said.index, *said.documents)]
    for name, size, signed, root in [*((f.name, f.size, "", f.root) for f in said.files), *listed]:
        sha256, tree = signed, TreeWriter(said.tree.params)
        if weights is not None:
            sha256 = _read(weights / name, size, tree)
            if (tree.finish().root.hex() != root) if root else (sha256 != signed):
                raise _other(weights / name)
        stands = Standing.VERIFIED if sha256 else Standing.DECLARED
        more = [("size", str(size)), *([("tree-root", root)] if root else [])]
        digest = {"sha256": sha256} if sha256 else {}
        yield Fact(Kind.FILE, name, stands, digest, said=tuple(more))


def _read(path: Path, size: int, tree: TreeWriter) -> str:
    """Read a file once, into its SHA-256 and its tree."""
    hasher, left = hashlib.sha256(), size
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            while data := file.read(min(_CHUNK, left + 1)):
                left -= len(data)
                if left < 0:
                    break
                hasher.update(data)
                tree.update(data)
    except FileNotFoundError as error:
        raise IntegrityError("ST-CKPT-140", "it is not there", str(path)) from error
    except OSError as error:
        raise os_error(error, str(path)) from error
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
