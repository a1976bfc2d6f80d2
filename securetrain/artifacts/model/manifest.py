# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The statement of a Model Signing bundle: every file of a model, or every shard, and its digest.

Rules, in order, all of them on bytes whose signature has verified:

1. the statement's and the predicate's types are those that the specification names; the predicate
   is a closed schema, a resource's further fields are ignored, as the specification asks;
2. the method is ``files`` or ``shards``, the hash SHA-256, BLAKE2b or BLAKE3, the same for all
   resources as for the whole; ``shard_size`` is there for shards, and for nothing else;
3. a model of no files is refused; names are safe relative paths, unique (case ignored) and sorted;
   a model that is one file may call it ``.``, as the reference implementation does;
4. a file's shards are all there, each as long as it must be, the last one perhaps shorter;
5. what it leaves out (``ignore_paths``) are names below the model, never the model itself;
6. the subject's digest is the SHA-256 of the resources' digests in their order.

Statements of release 0.2 (`PREDICATE_0_1`) list the files as subjects and have none of the rest;
they are read where the signature is one of that release, and never written.

The name and the digest that a bundle signs are held against those that were asked for. It has no
run, step or version, and whoever gives the key or identity that must have signed it
has said who its signer is: to expect any of these is an error, never a question passed over. A
bundle of release 0.2 has no name and no digest either, and meets no expectation.

The digests of a model's files and shards, on all cores. Every byte is read once.

Files are hashed beside each other, the largest first so that none is left for the end alone; small
ones go in groups, because handing one over costs more than reading it. A file is one piece however
large it is, since SHA-256 and BLAKE2b have no parts; shards are pieces of their own, and BLAKE3
takes all cores for a file where there are fewer files than cores. Each thread holds `CHUNK` bytes.
"""

import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias, cast

import msgspec
from blake3 import blake3
from msgspec import UNSET, Meta, UnsetType

from securetrain.artifacts.statement.expectation import Expectation
from securetrain.artifacts.tree.layout import Problem
from securetrain.artifacts.tree.pool import Pool, cores
from securetrain.core import canonical
from securetrain.core.errors import IntegrityError, UsageError, reason
from securetrain.core.files import open_regular, unsafe_name

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "https://model_signing/signature/v1.0"
PREDICATE_0_1: Final = "https://model_signing/Digests/v0.1"
PAYLOAD_LIMIT: Final = 64 << 20
MAX_FILES: Final = 1_000_000
ITSELF: Final = "."
"""The name of a model that is one file, as the reference implementation writes it."""

Hash: TypeAlias = Literal["sha256", "blake2b", "blake3"]
HASHES: Final[Mapping[Hash, int]] = {"sha256": 32, "blake2b": 64, "blake3": 32}
"""Each with its digest's length in bytes."""
SHARD_SIZE: Final = 1_000_000_000
"""In bytes, as the specification suggests."""

_GLOB: Final = frozenset("*?[")
_SHARD: Final = re.compile(r"(.+):(0|[1-9][0-9]{0,18}):([1-9][0-9]{0,18})", re.DOTALL)


_LIMIT = 64 << 20


def check_bundle(expect: Expectation | None, payload: bytes, where: str) -> list[Problem]:
    """Compare a bundle's verified and well-formed payload with what is expected.

    Raises:
        UsageError: ST-USAG-001 when something is expected that no bundle has.
    """
    if expect is None:
        return []
    alien = [
        field
        for field in ("run", "step", "dataset", "policy", "min_step", "min_version", "signer")
        if getattr(expect, field) is not None
    ]
    if alien:
        raise UsageError(
            "ST-USAG-001",
            f"{', '.join(alien).replace('_', ' ')} of a Model Signing bundle cannot be expected",
            where,
            "expect its name or digest; the signer is whom the given key or identity names",
        )
    statement = cast("dict[str, Any]", canonical.loads(payload, limit=_LIMIT))
    if statement["predicateType"] == PREDICATE_0_1:
        what = (
            "a bundle of release 0.2 signs no name and no digest of the whole, which was expected"
        )
        return [Problem("ST-OMSB-127", what)]
    subject = statement["subject"][0]
    name, digest = subject["name"], subject["digest"]["sha256"]
    problems = []
    if expect.name is not None and expect.name != name:
        what = f"its name is {name}, {expect.name} was expected"
        problems.append(Problem("ST-OMSB-126", what))
    if expect.digest is not None and expect.digest != digest:
        what = f"its digest is {digest}, {expect.digest} was expected"
        problems.append(Problem("ST-OMSB-127", what))
    return problems


class Resource(msgspec.Struct, frozen=True):
    """One file of the model, or one shard. Further fields may be there and mean nothing."""

    name: Annotated[str, Meta(min_length=1, max_length=4096)]
    digest: Annotated[str, Meta(pattern=r"^[0-9a-f]+\Z", max_length=128)]
    algorithm: Hash = "sha256"


class Serialization(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The way in which the model was turned into resources."""

    method: Literal["files", "shards"] = "files"
    hash_type: Hash = "sha256"
    allow_symlinks: bool = False
    ignore_paths: list[str] = []
    shard_size: Annotated[int, Meta(gt=0)] | UnsetType = UNSET


class Predicate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the signature."""

    serialization: Serialization
    resources: list[Resource]


class Part(NamedTuple):
    """Some bytes of a file, and their digest; `end` is None where it is the file's, whatever."""

    start: int
    end: int | None
    digest: str


class _Subject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1)]
    digest: dict[str, str]


class _Statement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str = msgspec.field(name="_type")
    subject: list[_Subject]
    predicateType: str  # noqa: N815 - the name in the specification
    predicate: Predicate


class _OldSubject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=4096)]
    digest: dict[str, str]
    annotations: dict[str, str] = {}


class _OldStatement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str = msgspec.field(name="_type")
    subject: list[_OldSubject]
    predicateType: str  # noqa: N815 - the name in the specification
    predicate: dict[str, Any]


def root_of(resources: Iterable[Resource]) -> str:
    """The subject's digest: SHA-256 over the raw digests in order, hex."""
    state = hashlib.sha256()
    for resource in resources:
        state.update(bytes.fromhex(resource.digest))
    return state.hexdigest()


def write(
    name: str,
    resources: Sequence[Resource],
    ignored: Sequence[str] = (),
    serialization: Serialization | None = None,
) -> bytes:
    """The statement's bytes for a model called `name`; `ignored` is what was left out.

    Raises:
        IntegrityError: ST-OMSB-101 when it breaks its own rules.
    """
    how = msgspec.structs.replace(serialization or Serialization(), ignore_paths=list(ignored))
    predicate = Predicate(serialization=how, resources=list(resources))
    _check(predicate, "")
    statement: dict[str, Any] = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": root_of(resources)}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": msgspec.to_builtins(predicate),
    }
    return canonical.dumps(statement)


def read(payload: bytes, where: str) -> Predicate:
    """Read a payload whose signature has verified.

    Raises:
        IntegrityError: ST-OMSB-101.
    """
    try:
        value = canonical.loads(payload, limit=PAYLOAD_LIMIT, where=where)
        statement = msgspec.convert(_with_whole_size(value), _Statement, strict=True)
    except (UsageError, msgspec.ValidationError) as error:
        raise malformed(reason(error), where) from error
    if statement.type != STATEMENT_TYPE or statement.predicateType != PREDICATE_TYPE:
        raise malformed(f"a statement of type {statement.predicateType!r}", where)
    predicate = statement.predicate
    _check(predicate, where)
    if [one.digest for one in statement.subject] != [{"sha256": root_of(predicate.resources)}]:
        raise malformed("the subject's digest is not that of the listed files", where)
    return predicate


def read_old(payload: bytes, where: str) -> Predicate:
    """Read a payload that release 0.2 of the reference implementation has signed.

    Raises:
        IntegrityError: ST-OMSB-101, ST-OMSB-110.
    """
    try:
        value = canonical.loads(payload, limit=PAYLOAD_LIMIT, where=where)
        statement = msgspec.convert(value, _OldStatement, strict=True)
        resources = [Resource(name=s.name, digest=s.digest["sha256"]) for s in statement.subject]
    except (UsageError, msgspec.ValidationError, KeyError) as error:
        raise malformed(reason(error), where) from error
    if statement.type != STATEMENT_TYPE or statement.predicateType != PREDICATE_0_1:
        raise IntegrityError(
            "ST-OMSB-110", "a signature as release 0.2 made them, over a later statement", where
        )
    resources.sort(key=lambda one: one.name)
    predicate = Predicate(serialization=Serialization(), resources=resources)
    _check(predicate, where)
    return predicate


def parts_of(predicate: Predicate) -> dict[str, tuple[Part, ...]]:
    """The files of a predicate that was read, each with its shards in order, or as one part."""
    if predicate.serialization.method == "files":
        return {one.name: (Part(0, None, one.digest),) for one in predicate.resources}
    found: dict[str, list[Part]] = {}
    for one in predicate.resources:
        name, start, end = _shard(one.name)
        found.setdefault(name, []).append(Part(start, end, one.digest))
    return {name: tuple(sorted(parts)) for name, parts in found.items()}


def shard_name(name: str, start: int, end: int) -> str:
    """The name of a shard's resource."""
    return f"{name}:{start}:{end}"


def plain_ignored(path: str) -> str:
    """A name below a model as the format spells it, of what was left out; empty when it is none."""
    if "\0" in path or path.startswith("/"):
        return ""
    parts = PurePosixPath(path).parts
    return "" if ".." in parts else "/".join(parts)


def has_glob(path: str) -> bool:
    """Tell whether a name holds what other programs take for a pattern."""
    return not _GLOB.isdisjoint(path)


def _with_whole_size(value: Any) -> Any:
    """The reference implementation writes a shard's size as ``1000.0``."""
    try:
        serialization = value["predicate"]["serialization"]
        size = serialization["shard_size"]
    except (KeyError, TypeError):
        return value
    if isinstance(size, float) and size.is_integer():
        serialization["shard_size"] = int(size)
    return value


def _check(predicate: Predicate, where: str) -> None:
    """Rules 2 to 5."""
    how = predicate.serialization
    if (how.method == "shards") != (how.shard_size is not UNSET):
        raise malformed("a shard size is for shards, and they need one", where)
    length = 2 * HASHES[how.hash_type]
    for one in predicate.resources:
        if one.algorithm != how.hash_type or len(one.digest) != length:
            raise malformed(f"{one.name!r} has no digest of {how.hash_type}", where)
    for path in how.ignore_paths:
        if not plain_ignored(path):
            raise malformed(f"it leaves out {path!r}, which is no name below the model", where)
    names = [one.name for one in predicate.resources]
    if not names or len(names) > MAX_FILES:
        raise malformed(f"{len(names)} files", where)
    if isinstance(how.shard_size, int):
        names = _check_shards(names, how.shard_size, where)
    elif names != sorted(names):
        raise malformed("the files are not sorted", where)
    _check_names(names, where)


def _check_names(names: Sequence[str], where: str) -> None:
    """Rule 3."""
    if len({name.casefold() for name in names}) != len(names):
        raise malformed("two files have one name", where)
    if list(names) == [ITSELF]:
        return
    for name in names:
        for part in name.split("/"):
            if problem := unsafe_name(part):
                raise malformed(f"file {name!r}: {problem}", where)


def _check_shards(names: Sequence[str], size: int, where: str) -> list[str]:
    """Rule 4; the files' names."""
    try:
        shards = [_shard(name) for name in names]
    except ValueError as error:
        raise malformed(f"not a shard's name: {error}", where) from error
    # The specification sorts names as text, the reference implementation by their numbers.
    if list(names) != sorted(names) and shards != sorted(shards):
        raise malformed("the shards are not sorted", where)
    ends: dict[str, int] = {}
    for name, start, end in sorted(shards):
        before = ends.get(name, 0)
        if start != before or start % size or not start < end <= start + size:
            raise malformed(f"the shards of {name!r} do not follow each other", where)
        ends[name] = end
    return list(ends)


def _shard(name: str) -> tuple[str, int, int]:
    """The file, the start and the end: the last two colons count, a name may hold others."""
    found = _SHARD.fullmatch(name)
    if found is None:
        raise ValueError(repr(name))
    return found[1], int(found[2]), int(found[3])


def malformed(what: str, where: str) -> IntegrityError:
    """The refusal of a bundle that is not one."""
    return IntegrityError("ST-OMSB-101", f"malformed bundle: {what}", where)


CHUNK: Final = 1 << 20
_GROUP: Final = 4 << 20
_ALL_CORES: Final = 64 << 20
"""The size from which a file is worth all cores."""

Progress: TypeAlias = Callable[[int, int], None]


class Stretch(NamedTuple):
    """Bytes of a file below the model's root; `end` is where they, and the file, should end."""

    name: str
    start: int
    end: int
    whole: bool
    """The file is read to its end, wherever that is, and not a byte more is asked of it."""


class Hasher(NamedTuple):
    """A way of reading files."""

    root: Path
    """The model: a directory, or the file that it is."""
    algorithm: Hash
    follow: bool
    """Symbolic links are followed."""


def digests(
    hasher: Hasher, stretches: Sequence[Stretch], progress: Progress | None = None
) -> list[str | UsageError]:
    """The digest of each stretch, hex, or why there is none, in their order."""
    found: list[str | UsageError] = [""] * len(stretches)
    total = sum(one.end - one.start for one in stretches)
    done, lock = 0, threading.Lock()
    wide = hasher.algorithm == "blake3" and len(stretches) < cores()

    def work(group: Sequence[int]) -> None:
        nonlocal done
        for number in group:
            found[number] = _digest(hasher, stretches[number], wide=wide)
        with lock:
            done += sum(stretches[number].end - stretches[number].start for number in group)
            if progress is not None:
                progress(done, total)

    with Pool() as pool:
        for _, future in pool.each(work, _groups(stretches)):
            future.result()
    return found


def _groups(stretches: Sequence[Stretch]) -> Iterator[list[int]]:
    """Numbers of stretches, the largest first, small ones together."""
    order = sorted(range(len(stretches)), key=lambda n: stretches[n].start - stretches[n].end)
    group: list[int] = []
    size = 0
    for number in order:
        group.append(number)
        size += stretches[number].end - stretches[number].start + (_GROUP >> 8)
        if size >= _GROUP:
            yield group
            group, size = [], 0
    if group:
        yield group


def _digest(hasher: Hasher, stretch: Stretch, *, wide: bool) -> str | UsageError:
    path = hasher.root / stretch.name
    try:
        fd = _open(path, follow=hasher.follow)
        try:
            return _read(fd, stretch, _state(hasher.algorithm, wide=wide))
        finally:
            os.close(fd)
    except UsageError as error:
        return error
    except OSError as error:
        return UsageError("ST-USAG-002", str(error.strerror or error), str(path))


def _open(path: Path, *, follow: bool) -> int:
    if not follow:
        return open_regular(path)
    return open_regular(path.resolve(strict=True))


def _state(algorithm: Hash, *, wide: bool) -> Any:
    match algorithm:
        case "sha256":
            return hashlib.sha256()
        case "blake2b":
            return hashlib.blake2b()
        case "blake3":
            return blake3(max_threads=blake3.AUTO if wide else 1)


def _read(fd: int, stretch: Stretch, state: Any) -> str:
    """Feed a stretch to a state; one that is shorter has another digest."""
    length = stretch.end - stretch.start
    os.posix_fadvise(fd, stretch.start, 0 if stretch.whole else length, os.POSIX_FADV_SEQUENTIAL)
    buffer = bytearray(max(1, min(length + 1, CHUNK)))
    view, at = memoryview(buffer), stretch.start
    while stretch.whole or at < stretch.end:
        wanted = len(view) if stretch.whole else min(len(view), stretch.end - at)
        got = os.preadv(fd, [view[:wanted]], at)
        if not got:
            break
        state.update(view[:got])
        at += got
    digest: str = state.hexdigest()
    return digest
