# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Sign and verify a model in the format of OpenSSF Model Signing: a directory, or one file.

Rules of verifying, in order; the first three end the check when they fail:

1. the bundle is a regular file of the right shape, of the kind that the verifier has a root for,
   and its signature verifies (`signers`);
2. its statement is sound (`manifest`), and of the release whose signature it carries;
3. the bundle does not list itself;
4. everything below the model is a file that the statement names, but the bundle itself and what is
   left out: what git keeps, what the statement leaves out, what the person asks to leave out. Links
   are followed where the statement or the person says so; special files and empty directories are
   problems, and so is a directory in the place of a signature that was left out;
5. every file that the statement names is read once and has its digest, whatever is left out.

Rules of the files that a model consists of (`look`):

6. a model is a directory, or one file;
7. what git and a cache keep (`kinds.LEFT_OUT`) is left out at the top, unless it is asked for, and
   so is every path that was named: it and all below it. What is left out is not looked into, and it
   is told apart from what is not there, because nobody has signed it;
8. names are safe ones, unique when case is ignored; directories that hold nothing, special files
   and hard links bar;
9. a symbolic link bars, unless links are followed. Then one to a regular file counts as that file,
   under the link's name; one that leads out of the model is noted; one to a directory bars: the
   reference implementation leaves out silently what is behind it, and nobody would have signed it.

With `Scope.ignore_unsigned`, further files are not problems. What was left out or not signed is
named in the result: nobody vouches for it.
"""

import os
import stat
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from msgspec import UNSET

from securetrain.artifacts.kinds import LEFT_OUT, check_same, check_whole
from securetrain.artifacts.model import bundle as bundle_file
from securetrain.artifacts.model import manifest
from securetrain.artifacts.model.manifest import (
    ITSELF,
    Hash,
    Hasher,
    Part,
    Predicate,
    Progress,
    Resource,
    Serialization,
    Stretch,
    check_bundle,
    digests,
)
from securetrain.artifacts.model.signers import ModelSigner, ModelTrust
from securetrain.artifacts.report import Bundled, Report
from securetrain.artifacts.statement.expectation import Expectation
from securetrain.core.errors import IntegrityError, UsageError, os_error
from securetrain.core.files import UnsafeEntry, read_file, survey, write_atomic

SUFFIX: Final = ".sig"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """A person's wishes beside the defaults."""

    ignore_paths: tuple[Path, ...] = ()
    """Left out, with all below them."""
    ignore_git: bool = True
    """What git keeps is left out (`LEFT_OUT`); a verifier who does not want that is not overruled
    by the bundle."""
    allow_symlinks: bool = False
    """Links are followed, also where a statement does not say so."""
    ignore_unsigned: bool = False
    """Files that nobody has signed are no problem to a verifier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The form in which a signer writes a model down."""

    algorithm: Hash = "sha256"
    shard_size: int | None = None
    """In bytes; None for whole files."""
    spec_name: bool = False
    """One file goes by its name, as the specification says, and not as ``.``, as the reference
    implementation writes it and reads it."""


@dataclass(slots=True, kw_only=True)
class Found:
    """The outcome of looking."""

    files: dict[str, int] = field(default_factory=dict)
    """Each with its size in bytes."""
    unsafe: list[UnsafeEntry] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Paths that are there and were left out (rule 7)."""
    outside: list[str] = field(default_factory=list)
    """Links that lead out of the model."""


def sign_model(
    path: Path,
    bundle: Path,
    signer: ModelSigner,
    *,
    scope: Scope | None = None,
    form: Form | None = None,
    notes: list[str] | None = None,
    progress: Progress | None = None,
) -> Predicate:
    """Hash every file of a model, sign the list and write the bundle, which must not exist.

    `notes` gets what a person should know of it.

    Raises:
        UsageError: ST-USAG-002 when `path` holds what cannot be signed, or is unreadable;
            ST-USAG-001 for a path to leave out that no bundle can name; ST-USAG-005 when the bundle
            exists.
        IntegrityError: ST-OMSB-101 for a model without files.
    """
    scope, form = scope or Scope(), form or Form()
    if bundle.exists() or bundle.is_symlink():
        raise UsageError(
            "ST-USAG-005", "already exists", str(bundle), "remove it, or choose another name"
        )
    ignored = _ignored(path, scope, name_below(path, bundle))
    before, _ = check_whole(path, ignored)
    found = look(path, ignored, follow=scope.allow_symlinks)
    if notes is not None:
        notes += [f"{name} is a link that leads out of the model" for name in found.outside]
        if left := sorted(found.left_out):
            notes.append(f"left out ({len(left)}): {', '.join(left)}")
    if found.unsafe:
        raise UsageError(
            "ST-USAG-002",
            f"{found.unsafe[0].reason}, which cannot be signed",
            str(path / found.unsafe[0].name),
            "remove or rename it, or leave it out (--ignore-paths); links: --allow-symlinks",
        )
    hasher = Hasher(root=path, algorithm=form.algorithm, follow=scope.allow_symlinks)
    resources = _hash(hasher, found, form, progress)
    check_same(path, before)
    payload = manifest.write(
        path.resolve().name,
        resources,
        ignored,
        Serialization(
            method="files" if form.shard_size is None else "shards",
            hash_type=form.algorithm,
            allow_symlinks=scope.allow_symlinks,
            shard_size=UNSET if form.shard_size is None else form.shard_size,
        ),
    )
    write_atomic(bundle, signer.wrap(payload), replace=False)
    return manifest.read(payload, str(bundle))


def check_model(
    found: Report,
    path: Path,
    bundle: Path,
    trust: ModelTrust,
    now: datetime,
    *,
    scope: Scope,
    expect: Expectation | None = None,
    progress: Progress | None = None,
) -> None:
    """Ask a model and its bundle everything; `found` takes the answers.

    Raises:
        UsageError: ST-USAG-002 when there is no such model; ST-USAG-001 for a path to leave out
            that is not below it, and when something is expected that no bundle has.
    """
    if not path.exists():
        raise UsageError("ST-USAG-002", "there is no such directory or file", str(path))
    more = list(names_to_ignore(path, scope.ignore_paths))
    found.bundled = Bundled(bundle=bundle)
    try:
        payload, predicate = _open(found, bundle, trust, now)
        how, signed = predicate.serialization, manifest.parts_of(predicate)
        own = name_below(path, bundle)
        if own in signed:
            raise manifest.malformed("it names itself", str(bundle))
        if not path.is_dir() and path.name in signed:
            signed[ITSELF] = signed.pop(path.name)
        follow = how.allow_symlinks or scope.allow_symlinks
        plain = [manifest.plain_ignored(one) for one in how.ignore_paths]
        ignored = {*plain, *LEFT_OUT} if scope.ignore_git else {*plain} - {*LEFT_OUT}
        there = look(path, {*ignored, *more, own}, follow=follow, signed=signed)
        files = _listing(found, path, signed, there, scope)
        hasher = Hasher(root=path, algorithm=how.hash_type, follow=follow)
        _compare(found, hasher, files, there.files, progress)
        found.add(*check_bundle(expect, payload, str(bundle)))
    except IntegrityError as error:
        found.catch(error, bundle.name)
    except OSError as error:
        found.refuse("ST-OMSB-200", str(error.strerror or error))


def _ignored(path: Path, scope: Scope, bundle_name: str) -> list[str]:
    """The names that a signer leaves out, as the bundle will say them."""
    ignored = list(names_to_ignore(path, scope.ignore_paths))
    for name in ignored:
        if manifest.has_glob(name):
            raise UsageError(
                "ST-USAG-001",
                "a path to leave out holds *, ? or [, which a bundle cannot name",
                name,
                "rename it, or leave out its directory",
            )
    if path.is_dir():
        ignored += LEFT_OUT if scope.ignore_git else ()
    if bundle_name:
        ignored.append(bundle_name)
    return sorted(set(ignored))


def _hash(hasher: Hasher, found: Found, form: Form, progress: Progress | None) -> list[Resource]:
    """The resources of what was found, in their order."""
    stretches = []
    for name, size in found.files.items():
        step = size if form.shard_size is None else form.shard_size
        ends = range(step, size + step, step) if form.shard_size is not None else (size,)
        stretches += [
            Stretch(name, end - step, min(end, size), form.shard_size is None) for end in ends
        ]
    resources = []
    for stretch, digest in zip(stretches, digests(hasher, stretches, progress), strict=True):
        if isinstance(digest, UsageError):
            raise digest
        name = stretch.name
        if name == ITSELF and form.spec_name:
            name = hasher.root.name
        if not stretch.whole:
            name = manifest.shard_name(name, stretch.start, stretch.end)
        resources.append(Resource(name=name, digest=digest, algorithm=form.algorithm))
    return sorted(resources, key=lambda one: one.name)


def _open(found: Report, bundle: Path, trust: ModelTrust, now: datetime) -> tuple[bytes, Predicate]:
    """Rules 1 and 2: what was signed, and what that says."""
    where = str(bundle)
    if not bundle.exists() and not bundle.is_symlink():
        raise IntegrityError("ST-OMSB-100", "there is no bundle: nothing says who made this", where)
    try:
        data = read_file(bundle, bundle_file.LIMIT)
    except UsageError as error:
        raise IntegrityError("ST-OMSB-142", f"the bundle: {error.what}", where) from error
    parsed = bundle_file.parse(data, where)
    signed = trust.unwrap(parsed, now, where)
    read = manifest.read_old if signed.is_old else manifest.read
    predicate = read(parsed.payload, where)
    old = "the bundle is one of release 0.2, which later ones do not write"
    found.bundled = Bundled(
        bundle=bundle,
        signer=signed.by,
        names=[one.name for one in predicate.resources],
        notes=[old] if signed.is_old else [],
    )
    return parsed.payload, predicate


def _listing(
    result: Report, path: Path, signed: dict[str, tuple[Part, ...]], found: Found, scope: Scope
) -> dict[str, tuple[Part, ...]]:
    """Rule 4; the files that are there and signed."""
    said = result.bundled
    own = name_below(path, said.bundle)
    left_out = sorted(set(found.left_out) - {own})
    for name in left_out:
        # A directory where a signature should be is a hiding place.
        is_signature = name.endswith(SUFFIX) or name.rpartition("/")[2] == said.bundle.name
        if is_signature and (path / name).is_dir():
            result.refuse("ST-OMSB-142", "a directory in the place of a signature", name)
    barred = {entry.name: entry.reason for entry in found.unsafe}
    for name, why in barred.items():
        if name in signed or not scope.ignore_unsigned:
            result.refuse("ST-OMSB-142", f"{why}, which is never followed or read", name)
    for name in sorted(signed.keys() - found.files.keys() - barred.keys()):
        result.refuse("ST-OMSB-140", "a signed file is missing", name)
    unsigned = found.files.keys() - signed.keys()
    if any(part.end is not None for parts in signed.values() for part in parts):
        # A file of no bytes has no shard.
        unsigned = {name for name in unsigned if found.files[name]}
    if not scope.ignore_unsigned:
        for name in sorted(unsigned):
            result.refuse("ST-OMSB-141", "a file that was not signed", name)
    ignored = {*unsigned, *(barred.keys() - signed.keys())} if scope.ignore_unsigned else ()
    outside = [f"{name} is a link that leads out of the model" for name in found.outside]
    result.bundled = replace(
        said, left_out=left_out, unsigned=sorted(ignored), notes=[*said.notes, *outside]
    )
    return {name: parts for name, parts in signed.items() if name in found.files}


def _compare(
    result: Report,
    hasher: Hasher,
    files: dict[str, tuple[Part, ...]],
    sizes: dict[str, int],
    progress: Progress | None,
) -> None:
    """Rule 5."""
    wanted: list[tuple[Stretch, str]] = []
    for name, parts in files.items():
        size, last = sizes[name], parts[-1].end
        if last is not None and last != size:
            result.refuse("ST-OMSB-130", f"{size} bytes, and {last} were signed", name)
            continue
        wanted += [
            (Stretch(name, start, size if end is None else end, end is None), digest)
            for start, end, digest in parts
        ]
        result.num_files += 1
        result.num_bytes += size
    stretches = [stretch for stretch, _ in wanted]
    for (stretch, expected), digest in zip(
        wanted, digests(hasher, stretches, progress), strict=True
    ):
        if isinstance(digest, UsageError):
            result.refuse("ST-OMSB-200", digest.what, stretch.name)
        elif digest != expected:
            what = "the content is not what was signed"
            if not stretch.whole:
                what = f"bytes {stretch.start} to {stretch.end} are not what was signed"
            result.refuse("ST-OMSB-130", what, stretch.name)


def look(
    root: Path, ignored: Collection[str], *, follow: bool, signed: Collection[str] = ()
) -> Found:
    """List a model's files; those that were signed are never left out.

    Raises:
        UsageError: ST-USAG-002 when it is neither a directory nor a file, or cannot be read.
    """
    found = Found()
    try:
        if root.is_dir():
            _look_into(root, frozenset(ignored), signed, found, follow=follow)
            return found
        info = root.stat() if follow else root.lstat()
    except OSError as error:
        raise os_error(error, str(root)) from error
    if not stat.S_ISREG(info.st_mode):
        raise UsageError(
            "ST-USAG-002", "neither a directory nor a regular file", str(root), "name the model"
        )
    found.files[ITSELF] = info.st_size
    return found


def _look_into(
    root: Path, ignored: frozenset[str], signed: Collection[str], found: Found, *, follow: bool
) -> None:
    kept = {part for name in signed for part in _with_parents(name)}
    found.left_out += (name for name in ignored - kept if os.path.lexists(root / name))
    inside = tuple(f"{name}/" for name in ignored & kept)
    files, unsafe = survey(root, ignored - kept)
    for name, why in [*((one.name, "") for one in files), *((u.name, u.reason) for u in unsafe)]:
        if name.startswith(inside) and name not in kept:
            found.left_out.append(name)
            continue
        is_link = follow and why == "a symbolic link"
        if reason := _bar_link(root, name, found) if is_link else why:
            found.unsafe.append(UnsafeEntry(name, reason))
        else:
            found.files[name] = (root / name).stat().st_size


def _bar_link(root: Path, name: str, found: Found) -> str:
    """Rule 9; empty for what counts."""
    path = root / name
    try:
        mode = path.stat().st_mode
    except OSError:
        return "a symbolic link that leads nowhere, or in a circle"
    if stat.S_ISDIR(mode):
        return "a symbolic link to a directory, behind which nothing would be signed"
    if not stat.S_ISREG(mode):
        return "a symbolic link to a special file"
    if not path.resolve().is_relative_to(root.resolve()):
        found.outside.append(name)
    return ""


def _with_parents(name: str) -> Iterator[str]:
    while name:
        yield name
        name = name.rpartition("/")[0]


def name_below(root: Path, path: Path) -> str:
    """The name of a path below a model; empty when it lies elsewhere. A link is not followed."""
    if not root.is_dir() or path.name in {"", ".."}:
        return ""
    folder = path.parent.resolve()
    try:
        return (folder / path.name).relative_to(root.resolve()).as_posix()
    except ValueError:
        return ""


def names_to_ignore(root: Path, paths: Sequence[Path]) -> Iterator[str]:
    """The names of paths that a person wants left out: seen from here, or from the model's root.

    Raises:
        UsageError: ST-USAG-001 for one that is not below the model, or is the model.
    """
    for path in paths:
        name = name_below(root, path.absolute())
        if not name and not path.is_absolute():
            name = manifest.plain_ignored(path.as_posix())
        if not name or name == ".":
            raise UsageError(
                "ST-USAG-001",
                "what is to be left out is not below the model",
                str(path),
                "name a path below it; a model that is one file has none",
            )
        yield name
