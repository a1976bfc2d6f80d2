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
   problems (`listing`), and so is a directory in the place of a signature that was left out;
5. every file that the statement names is read once and has its digest, whatever is left out.

With `Scope.ignore_unsigned`, further files are not problems. What was left out or not signed is
named in the result: nobody vouches for it.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from msgspec import UNSET

from securetrain.artifacts.kinds import LEFT_OUT, check_whole
from securetrain.artifacts.model.oms import bundle as bundle_file
from securetrain.artifacts.model.oms import manifest
from securetrain.artifacts.model.oms.hashing import Hasher, Progress, Stretch, digests
from securetrain.artifacts.model.oms.listing import Found, look, name_below, names_to_ignore
from securetrain.artifacts.model.oms.manifest import (
    ITSELF,
    Hash,
    Part,
    Predicate,
    Resource,
    Serialization,
    check_bundle,
)
from securetrain.artifacts.model.oms.signers import ModelSigner, ModelTrust
from securetrain.artifacts.report import Bundled, Report
from securetrain.artifacts.statement.expectation import Expectation
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.core.files import read_file, write_atomic

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
    check_whole(path, ignored)
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


def verify_model(
    path: Path,
    bundle: Path,
    trust: ModelTrust,
    now: datetime,
    *,
    scope: Scope | None = None,
    expect: Expectation | None = None,
    progress: Progress | None = None,
) -> Report:
    """Verify a model against its bundle.

    Raises:
        UsageError: ST-USAG-002 when there is no such model; ST-USAG-001 for a path to leave out
            that is not below it, and when something is expected that no bundle has.
    """
    found = Report.of(path)
    check_model(
        found, path, bundle, trust, now, scope=scope or Scope(), expect=expect, progress=progress
    )
    return found


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
    """Ask a model and its bundle everything; `found` takes the answers (see `verify_model`)."""
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
