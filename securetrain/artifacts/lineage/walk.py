# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Follow a checkpoint back to what it was made from, by signatures alone.

The statement of a checkpoint names its parents and its dataset by digest. Whatever signed
directories are at hand are opened with the trust root, and the one with the right digest is the
link. Rules, in order:

1. a link is an artifact whose statement verifies and whose digest is the one that is named; a
   directory's place or name proves nothing;
2. a link that is not found, does not verify, or leads back to where it came from breaks the chain
   (ST-CKPT-172): it is never left out;
3. what is walked through is the statements. The bytes of the artifact in question are verified by
   `verify`; those of what it was made from are not read.
"""

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from securetrain.artifacts.statement.reading import read_statement
from securetrain.artifacts.statement.statements import (
    DIGEST_NAME,
    CheckpointPredicate,
    DatasetPredicate,
    Opened,
    claimed_kind,
    open_statement,
)
from securetrain.artifacts.tree.layout import STATEMENT, Kind, Problem
from securetrain.artifacts.tree.storage import Place, Storage, storage_of
from securetrain.core import canonical
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.identity import dsse
from securetrain.identity.trust import TrustRoot

MAX_LINKS: Final = 1 << 17
"""Of a run that has saved 10,000 checkpoints: each has a parent, and a dataset."""
MAX_FOUND: Final = 100_000
MAX_DEPTH: Final = 4
MAX_BESIDE: Final = 1024
"""Signed directories that are looked at where nobody asked for the chain."""
MAX_NESTED: Final = 64
"""Levels of a chain that are shown as a tree; a run saves thousands of checkpoints in a row."""


@dataclass(slots=True, kw_only=True)
class Link:
    """One artifact of the chain, or the place where one should be."""

    role: str
    """What it is to the one above it: ``checkpoint``, ``parent previous``, ``dataset`` ..."""
    digest: str
    path: Path | str | None = None
    """Where it was found; a URL when it lies in an object store."""
    said: CheckpointPredicate | DatasetPredicate | None = None
    """What its verified statement says."""
    opened: Opened | None = None
    """Its verified statement, with what signed it."""
    problem: str = ""
    """Why the chain breaks here."""
    facts: list[str] = field(default_factory=list)
    links: list["Link"] = field(default_factory=list)

    @property
    def beside(self) -> Storage:
        """The directory that was found, with what lies in and around it."""
        assert self.path is not None
        return storage_of(self.path)

    def every(self) -> Iterator["Link"]:
        """This link and all below it, each before those below it; however deep the chain is."""
        waiting = [self]
        while waiting:
            link = waiting.pop()
            yield link
            waiting.extend(reversed(link.links))

    def levels(self) -> Iterator[tuple[int, "Link", "Link | None"]]:
        """Every link as `every` gives them, with how deep it is and the one above it."""
        waiting: list[tuple[int, Link, Link | None]] = [(0, self, None)]
        while waiting:
            depth, link, above = waiting.pop()
            yield depth, link, above
            waiting.extend((depth + 1, one, link) for one in reversed(link.links))

    def to_dict(self) -> dict[str, object]:
        """As plain data, nested `MAX_NESTED` deep; what is deeper stands in one list, ``deeper``,
        each with the digest of the one above it.
        """
        made: dict[int, dict[str, object]] = {}
        nested: dict[int, list[object]] = {}
        deeper: list[object] = []
        for depth, link, above in self.levels():
            below: list[object] = []
            nested[id(link)] = below
            made[id(link)] = {
                "role": link.role,
                "digest": link.digest,
                "path": None if link.path is None else str(link.path),
                "problem": link.problem,
                "state": "broken" if link.problem else "the signer's word",
                "facts": link.facts,
                "links": below,
            }
            if above is not None and depth <= MAX_NESTED:
                nested[id(above)].append(made[id(link)])
            elif above is not None:
                deeper.append(made[id(link)] | {"above": above.digest})
        first = made[id(self)]
        return first | {"deeper": deeper} if deeper else first


def walk_back(
    path: Path | str,
    opened: Opened,
    trust: TrustRoot,
    places: Sequence[Path] | None,
    data: TrustRoot | None = None,
) -> Link:
    """The chain of an artifact that has been verified.

    Args:
        path: Where it is.
        opened: Its verified statement.
        trust: The keys that may sign what it was made from.
        places: Directories below which that is looked for; None for the two folders above it.
        data: The keys that may sign its datasets; by default `trust` names them, too.
    """
    near = _beside(path, MAX_DEPTH) if places is None else _near(places)
    walker = _Walker(trust, data, dict(near))
    walker.found[opened.digest] = path
    return walker.chain(str(opened.kind), opened)


def look_beside(
    path: Path | str, opened: Opened, trust: TrustRoot, data: TrustRoot | None = None
) -> Link:
    """An artifact with what it was directly made from, as far as that lies right beside it or its
    folder: at most `MAX_BESIDE` signed directories are looked at.

    Args:
        path: Where it is.
        opened: Its verified statement.
        trust: The keys that may sign what it was made from.
        data: See `walk_back`.
    """
    walker = _Walker(trust, data, {opened.digest: path})
    first = _Waiting(Link(role=str(opened.kind), digest=opened.digest), opened=opened)
    below = walker.look(first, 0)
    first.link.links = [one.link for one in below]
    wanted = {one.link.digest for one in below}
    for digest, place in islice(_beside(path, depth=1), MAX_BESIDE):
        if not wanted - walker.found.keys():
            break
        walker.found.setdefault(digest, place)
    for one in below:
        walker.look(one, 0)
    return first.link


def chain_of(
    path: Path | str, trust: TrustRoot, places: Sequence[Path], data: TrustRoot | None = None
) -> Link:
    """Open the statement of an artifact, and walk back from it; see `walk_back`.

    Raises:
        IntegrityError: Its own statement does not verify.
    """
    return walk_back(path, _open(path, trust, data), trust, places, data)


def problems(chain: Link) -> list[Problem]:
    """The breaks of a chain, as problems of the artifact that was asked about."""
    return [
        Problem("ST-CKPT-172", f"{link.role} {link.digest[:16]}: {link.problem}")
        for link in chain.every()
        if link.problem
    ]


@dataclass(slots=True)
class _Waiting:
    """A link that is to be looked at, and the digests between it and the first one."""

    link: Link
    above: "_Waiting | None" = None
    opened: Opened | None = None

    def leads_back(self) -> bool:
        """Tell whether the same digest stands above it."""
        one = self.above
        while one is not None:
            if one.link.digest == self.link.digest:
                return True
            one = one.above
        return False


@dataclass(slots=True)
class _Walker:
    trust: TrustRoot
    data: TrustRoot | None
    """Of those who make datasets, where that is another one."""
    found: dict[str, Path | str]
    done: dict[str, Link] = field(default_factory=dict)
    """Links that were followed: one that is reached again is not followed again."""

    def chain(self, role: str, opened: Opened) -> Link:
        """The links from an artifact on, one after the other: a chain may be long."""
        first = Link(role=role, digest=opened.digest, path=self.found.get(opened.digest))
        waiting, count = [_Waiting(first, opened=opened)], 0
        while waiting:
            one = waiting.pop()
            count += 1
            below = self.look(one, count)
            one.link.links = [each.link for each in below]
            waiting.extend(reversed(below))
        return first

    def look(self, one: _Waiting, count: int) -> list[_Waiting]:
        """Look at one link; returns those below it."""
        link = one.link
        link.path = self.found.get(link.digest)
        if count > MAX_LINKS:
            link.problem = f"more than {MAX_LINKS} links"
        elif self._was_checkpoint(link.digest) and one.leads_back():
            link.problem = "it leads back to itself"
        elif link.path is None:
            link.problem = "not found among the directories that were given"
        else:
            try:
                opened = one.opened or _open(link.path, self.trust, self.data)
            except IntegrityError as error:
                link.problem = f"{error.code}: {error.what}"
            else:
                return self._follow(one, opened)
        return []

    def _was_checkpoint(self, digest: str) -> bool:
        """Tell whether a link was followed that has others below it: a dataset leads nowhere."""
        known = self.done.get(digest)
        return known is not None and isinstance(known.said, CheckpointPredicate)

    def _follow(self, one: _Waiting, opened: Opened) -> list[_Waiting]:
        link = one.link
        if opened.digest != link.digest:
            link.problem = f"what lies there is {opened.digest[:16]}"
            return []
        link.said, link.opened = opened.predicate, opened
        again = link.digest in self.done
        self.done[link.digest] = link
        match opened.predicate:
            case CheckpointPredicate() as said:
                link.facts = _facts(said)
                if again:
                    link.facts.append("(its own links stand above)")
                    return []
                named = [(f"parent {parent.role}", parent.digest) for parent in said.parents]
                if said.dataset.digest:
                    named.append(("dataset", said.dataset.digest))
                return [
                    _Waiting(Link(role=role, digest=digest), above=one) for role, digest in named
                ]
            case DatasetPredicate() as said:
                link.facts = [
                    f"{said.name}, version {said.seq}",
                    *(f"licence {name}" for name in said.licenses),
                    *(f"scan {one.tool} {one.version}: {one.verdict}" for one in said.scans),
                ]
        return []


def _open(path: Path | str, trust: TrustRoot, data: TrustRoot | None) -> Opened:
    """Open a statement; a dataset may have a maker of its own, whom another root names."""
    envelope = read_statement(path, Kind.CHECKPOINT)
    kind = claimed_kind(envelope) or Kind.CHECKPOINT
    root = data if data is not None and kind is Kind.DATASET else trust
    return open_statement(envelope, kind, root, str(path))


def _facts(said: CheckpointPredicate) -> list[str]:
    facts = [f"run {said.run_id or '(not named)'}, step {said.step}"]
    if said.policy.digest:
        facts.append(f"policy {said.policy.id} ({said.policy.digest[:16]})")
    facts += [f"node {one.node}: {one.tier}" for one in said.nodes]
    facts += [f"code {name} {value}" for name, value in sorted(said.code.items())]
    facts.append(f"gradients {said.gradients.verdict}")
    return facts


def _beside(path: Path | str, depth: int) -> Iterator[tuple[str, Path | str]]:
    """The claims of what lies beside an artifact, and beside its folder."""
    if isinstance(path, Path):
        folder = path.absolute().parent
        yield from _near([folder, folder.parent], depth)
        return
    storage = storage_of(path)
    for one in (storage, storage.above()):
        try:
            siblings = one.siblings()
        except OSError:
            continue
        # What a checkpoint was made from has a lower number, mostly the next one.
        siblings.sort(key=lambda each: each.base, reverse=True)
        siblings.sort(key=lambda each: each.base > one.base)
        for sibling in siblings[:MAX_FOUND]:
            if digest := _hint(sibling):
                yield digest, sibling.name


def _near(places: Sequence[Path], depth: int = MAX_DEPTH) -> Iterator[tuple[str, Path]]:
    """The claims of signed directories, by the digest in their statements (not verified)."""
    count = 0
    for place in places:
        for folder in _folders(place, depth):
            statement = folder / STATEMENT
            if statement.is_symlink() or not statement.is_file():
                continue
            count += 1
            if count > MAX_FOUND:
                return
            if digest := _hint(folder):
                yield digest, folder


def _hint(folder: Place) -> str:
    """The digest that a statement names as its subject; only a hint where to look."""
    try:
        data = read_statement(folder, Kind.CHECKPOINT)
        envelope = canonical.loads(data, limit=dsse.ENVELOPE_LIMIT)
        payload = base64.b64decode(envelope["payload"], validate=True)
        statement = canonical.loads(payload, limit=dsse.ENVELOPE_LIMIT)
        return str(statement["subject"][0]["digest"][DIGEST_NAME])
    except (IntegrityError, UsageError, OSError, ValueError, KeyError, TypeError, IndexError):
        return ""


def _folders(place: Path, depth: int) -> Iterator[Path]:
    """A directory and those below it; links are not followed."""
    if place.is_symlink() or not place.is_dir():
        return
    yield place
    if depth and not (place / STATEMENT).exists():
        try:
            inner = sorted(place.iterdir())
        except OSError:
            return
        for one in inner:
            yield from _folders(one, depth - 1)
