# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Verify a whole checkpoint or dataset directory: every byte of it, and what a policy asks.

Rules, in order; the first two end the check when they fail, because nothing else can be trusted:

1. there is a statement, and it is well-formed;
2. it is signed by enough keys of the trust root, for the role of its kind; with a proof, it was
   logged, and a key that was revoked later still counts (`logged`);
3. it has not expired, and what the ranks signed of their own files holds (`members`); with a
   policy: age, and for checkpoints algorithm, verdict, lineage, nodes, the ranks' signatures and
   whether the run's head knows it as the newest (`freshness`);
4. it was not set aside (`quarantine`), and the listing is exactly what was signed: nothing
   missing, nothing extra, no links;
5. every data file is hashed leaf by leaf and led up to its signed root, every table likewise, and
   the index to its digest; the index's content is checked too, and that a file which has grown
   begins with what it was;
6. all problems are collected (at most `MAX_PROBLEMS`); the exit code is that of the most telling
   one (`problems.most_telling`);
7. a directory in which nothing was checked is never ok.
"""

import hashlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final, TypeAlias

from securetrain.artifacts.dataset.growth import check_growth
from securetrain.artifacts.lineage import logged
from securetrain.artifacts.lineage.freshness import Freshness
from securetrain.artifacts.lineage.judging import Asked, judge
from securetrain.artifacts.lineage.logged import LogProof
from securetrain.artifacts.statement.listing import check_listing, open_data, read_statement
from securetrain.artifacts.statement.reading import (
    BLOCK,
    REQUEST,
    LeafReader,
    SignedFile,
    no_tensors,
    read_digested,
    read_whole,
)
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    DataFile,
    Opened,
    Predicate,
    RankFile,
    claimed_kind,
    open_statement,
)
from securetrain.artifacts.tree import index as index_file
from securetrain.artifacts.tree import safetensors_header
from securetrain.artifacts.tree.layout import (
    INDEX,
    LEGACY_METADATA,
    PAGE_BYTES,
    STATEMENT,
    TREES,
    Kind,
    num_pages,
)
from securetrain.artifacts.tree.problems import (
    Problem,
    content_problem,
    most_telling,
    table_problem,
)
from securetrain.artifacts.tree.storage import LocalStorage, Place, Storage, shown, storage_of
from securetrain.core import CODES, ExitCode
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.core.hashtree import DIGEST_SIZE, TreeParams, pages_of, root_of
from securetrain.identity.log import Logged
from securetrain.identity.trust import TrustRoot
from securetrain.policy.schema import Policy

MAX_PROBLEMS: Final = 200
THREADS: Final = 2
STRETCH: Final = 64 << 20
"""Bytes that one task hashes."""

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the bytes hashed so far and the bytes in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult:
    """The result of verifying a directory."""

    kind: Kind
    path: Path | str
    problems: tuple[Problem, ...]
    num_files: int
    """Files of which every byte was checked."""
    num_bytes: int
    statement: Predicate | None
    """What the verified statement says; None when there is none that verifies."""
    digest: str
    key_ids: frozenset[str]
    logged: Logged | None = None
    """Where it stands in the log, if a proof was given and holds."""
    truncated: bool = False
    """Whether there were more problems than are listed."""

    @property
    def ok(self) -> bool:
        """Tell whether everything held and something was checked."""
        return not self.problems and self.num_files > 0

    @property
    def opened(self) -> Opened | None:
        """The verified statement with who signed it; None when there is none that verifies."""
        if self.statement is None:
            return None
        return Opened(
            kind=self.kind, predicate=self.statement, digest=self.digest, key_ids=self.key_ids
        )

    @property
    def exit_code(self) -> ExitCode:
        """0 when ok, else the exit code of the most telling problem."""
        if self.problems:
            return CODES[most_telling(self.problems).code].exit
        return ExitCode.OK if self.ok else ExitCode.FAILURE


def verify_path(
    path: Place,
    *,
    trust: TrustRoot,
    policy: Policy | None,
    now: datetime,
    progress: Progress | None = None,
    known: Freshness | None = None,
    log_proof: LogProof | None = None,
) -> VerifyResult:
    """Verify a signed directory.

    Args:
        path: the directory of a checkpoint or dataset: a path, or a URL of an object store.
        trust: the keys that may sign it.
        policy: what is asked of it besides integrity and signature; None asks for nothing more.
        now: the time of the check.
        progress: called from the calling thread while bytes are hashed.
        known: what is known of the run besides; given, a checkpoint must be the newest one.
        log_proof: the proof that its statement was logged; given, it must hold. Without it, the one
            beside the directory is taken when the policy asks for one.

    Raises:
        UsageError: ST-USAG-002 when there is no such directory.
    """
    storage = storage_of(path)
    try:
        there = storage.path.is_dir() if isinstance(storage, LocalStorage) else storage.exists()
        kind = _guess(storage)
    except OSError as error:
        what = f"the store cannot be read: {error}"
        raise UsageError("ST-USAG-002", what, storage.name) from error
    if not there:
        raise UsageError("ST-USAG-002", "there is no such directory", storage.name)
    report = _Report(shown(path), storage, kind)
    try:
        asked = Asked(trust=trust, policy=policy, now=now, known=known)
        opened = _open(report, asked, log_proof)
        report.add(*judge(opened, storage, asked).problems)
        try:
            report.add(*check_listing(storage, opened.predicate))
        except OSError as error:
            report.add(Problem(code=report.kind.code(200), what=str(error)))
        _check_content(report, opened.predicate, progress)
    except _Stop:
        pass
    return report.result()


class _Stop(Exception):  # noqa: N818 - not an error
    """Nothing further can be trusted."""


@dataclass(slots=True)
class _Report:
    path: Path | str
    root: Storage
    kind: Kind
    problems: list[Problem] = field(default_factory=list)
    opened: Opened | None = None
    logged: Logged | None = None
    num_files: int = 0
    num_bytes: int = 0
    truncated: bool = False

    def add(self, *problems: Problem) -> None:
        for problem in problems:
            if problem in self.problems:
                continue
            if len(self.problems) >= MAX_PROBLEMS:
                self.truncated = True
                return
            self.problems.append(problem)

    def catch(self, error: IntegrityError, file: str) -> None:
        """Take an error of the shared readers as a problem of `file`."""
        self.add(Problem(code=error.code, what=error.what, file=file))

    def result(self) -> VerifyResult:
        opened = self.opened
        if not self.problems and self.num_files == 0:
            self.add(
                Problem(code=self.kind.code(100), what="nothing was checked, so nothing is proven")
            )
        return VerifyResult(
            kind=self.kind,
            path=self.path,
            problems=tuple(self.problems),
            num_files=self.num_files,
            num_bytes=self.num_bytes,
            statement=opened.predicate if opened else None,
            digest=opened.digest if opened else "",
            key_ids=opened.key_ids if opened else frozenset(),
            logged=self.logged if opened else None,
            truncated=self.truncated,
        )


def _guess(root: Storage) -> Kind:
    """Guess what an unsigned directory was meant to be, for the family of its code."""
    return Kind.DATASET if root.has(TREES) else Kind.CHECKPOINT


def _open(report: _Report, asked: Asked, log_proof: LogProof | None) -> Opened:
    """Rules 1 and 2."""
    trust = asked.trust
    try:
        data = read_statement(report.root, report.kind)
        report.kind = claimed_kind(data) or report.kind
        index = _logged(report, data, asked, log_proof)
        report.opened = open_statement(data, report.kind, trust, report.root.name, index)
    except IntegrityError as error:
        report.catch(error, STATEMENT if error.code[-3:] != "142" else "")
        if error.code == "ST-CKPT-100" and report.root.has(LEGACY_METADATA):
            report.add(
                Problem(
                    code="ST-CKPT-190",
                    what="a checkpoint of torch's own format: loading it runs its pickles",
                    file=LEGACY_METADATA,
                )
            )
        raise _Stop from error
    return report.opened


def _logged(report: _Report, data: bytes, asked: Asked, given: LogProof | None) -> int | None:
    """Look for the proof that the statement is logged, when that is asked; what is lacking is one
    more problem, and the rest is looked at all the same.
    """
    try:
        report.logged = logged.prove(
            report.root, data, report.kind, asked.trust, asked.policy, asked.now, given
        )
    except IntegrityError as error:
        report.catch(error, STATEMENT)
        return None
    return None if report.logged is None else report.logged.index


def _check_content(report: _Report, predicate: Predicate, progress: Progress | None) -> None:
    """Rule 5."""
    tensors = index_file.TensorMap()
    named = True
    if isinstance(predicate, CheckpointPredicate):
        found = _check_index(report, predicate)
        named = found is not None
        if found is not None:
            tensors = index_file.TensorMap.of(found)
            _check_headers(report, predicate, found)
        _check_documents(report, predicate)
    total = sum(file.size for file in predicate.files)
    ticker = _Ticker(total, progress)
    with ThreadPoolExecutor(THREADS) as pool:
        for file in predicate.files:
            job = _FileJob.open(report, predicate.tree.params, file)
            if job is None:
                continue
            try:
                hashing = [pool.submit(job.hash, *part, ticker) for part in job.parts()]
                for done in as_completed(hashing):
                    ticker.show()
                    done.result()
                _check_growth(job, file)
            except IntegrityError as error:
                report.catch(error, file.name)
                continue
            finally:
                wait(hashing)
                job.file.close()
            _judge(report, job, tensors, named=named)


def _check_index(report: _Report, predicate: CheckpointPredicate) -> index_file.Index | None:
    """The index, or None when it is damaged or false."""
    entry = predicate.index
    try:
        data = read_whole(report.root, entry.name, entry.size, Kind.CHECKPOINT)
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            report.add(
                Problem(
                    code="ST-CKPT-132",
                    what="the index is not what was signed, so damage cannot be led to tensors",
                    file=INDEX,
                )
            )
            return None
        index = index_file.parse(data, {file.name: file.data_size for file in predicate.files})
    except IntegrityError as error:
        report.catch(error, INDEX)
        return None
    report.num_files += 1
    report.num_bytes += len(data)
    return index


def _check_headers(
    report: _Report, predicate: CheckpointPredicate, index: index_file.Index
) -> None:
    """Check what other readers of safetensors files are told: the headers, read verified."""
    for entry in predicate.files:
        if not entry.name.endswith(safetensors_header.SUFFIX):
            continue
        try:
            reader = LeafReader.open(report.root, entry, predicate.tree.params, no_tensors)
        except IntegrityError as error:
            report.catch(error, entry.name)
            continue
        try:
            start = bytearray(min(safetensors_header.PREFIX, entry.size))
            reader.read_edge(0, memoryview(start))
            size = safetensors_header.header_size(bytes(start), entry.size, entry.name)
            header = bytearray(size)
            reader.read_edge(0, memoryview(header))
        except IntegrityError as error:
            report.catch(error, entry.name)
        else:
            report.add(*safetensors_header.against(index, entry.name, bytes(header), entry.size))
        finally:
            reader.file.close()


def _check_documents(report: _Report, predicate: CheckpointPredicate) -> None:
    """The small files besides the index."""
    for entry in predicate.documents:
        try:
            read_digested(report.root, entry, Kind.CHECKPOINT)
        except IntegrityError as error:
            report.catch(error, entry.name)
            continue
        report.num_files += 1
        report.num_bytes += entry.size


@dataclass(slots=True)
class _Ticker:
    """Counts bytes over threads; shown from the thread that asked."""

    total: int
    progress: Progress | None
    done: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, count: int) -> None:
        with self._lock:
            self.done += count

    def show(self) -> None:
        if self.progress is not None:
            self.progress(self.done, self.total)


@dataclass(slots=True)
class _FileJob:
    """One data file that is being hashed, with its table as it lies on disk."""

    file: SignedFile
    root: str
    table: bytes | None
    """None when the table cannot be read at the signed size."""
    leaves: bytearray

    @classmethod
    def open(
        cls, report: _Report, params: TreeParams, entry: RankFile | DataFile
    ) -> "_FileJob | None":
        kind = report.kind
        name = kind.table_of(entry.name)
        table: bytes | None = None
        try:
            size = kind.table_size(params, entry.size)
            table = read_whole(report.root, name, size, kind)
        except IntegrityError as error:
            report.catch(error, name)
        try:
            source = open_data(report.root, entry.name, entry.size, kind)
        except IntegrityError as error:
            report.catch(error, entry.name)
            return None
        file = SignedFile(
            source=source,
            name=entry.name,
            size=entry.size,
            params=params,
            kind=kind,
            root=report.root,
        )
        digests = bytearray(params.num_leaves(entry.size) * DIGEST_SIZE)
        return cls(file, entry.root, table, digests)

    def parts(self) -> Iterator[tuple[int, int]]:
        """The stretches of the file: first leaf, end leaf."""
        step = max(1, STRETCH // self.file.params.leaf_size)
        count = self.file.params.num_leaves(self.file.size)
        for first in range(0, count, step):
            yield first, min(first + step, count)

    def hash(self, first: int, end: int, ticker: _Ticker) -> None:
        """Hash leaves `first` to `end`; what they should be is judged afterwards."""
        params, leaf = self.file.params, self.file.params.leaf_size
        step = max(1, (REQUEST if self.file.source.whole else BLOCK) // leaf)
        buffer = memoryview(bytearray(min(step * leaf, self.file.size)))
        for start in range(first, end, step):
            stop = min(start + step, end)
            block = buffer[: min(stop * leaf, self.file.size) - start * leaf]
            self.file.read_raw(start * leaf, block)
            digests = [
                params.leaf(index, block[(index - start) * leaf : (index - start + 1) * leaf])
                for index in range(start, stop)
            ]
            self.leaves[start * DIGEST_SIZE : stop * DIGEST_SIZE] = b"".join(digests)
            ticker.add(len(block))


def _check_growth(job: _FileJob, entry: RankFile | DataFile) -> None:
    """A dataset's file that has grown begins with what it was."""
    file, leaves = job.file, job.leaves
    if not isinstance(entry, DataFile) or not entry.before:
        return
    if root_of(file.params, file.size, leaves).hex() != entry.root:
        return  # judged as what it is: other content than was signed
    pages = pages_of(file.params, leaves)
    check_growth(entry, file, pages, lambda n: leaves[n * PAGE_BYTES : (n + 1) * PAGE_BYTES])


def _judge(report: _Report, job: _FileJob, tensors: index_file.TensorMap, *, named: bool) -> None:
    """Compare what was hashed with the table and the signed root."""
    file, kind = job.file, report.kind
    table = kind.table_of(file.name)
    data_ok = root_of(file.params, file.size, job.leaves).hex() == job.root
    stored = _leaves_of(job, kind)
    if job.table is not None and stored is None:
        report.add(table_problem(kind, table))
    if data_ok:
        report.num_files += 1
        report.num_bytes += file.size
        return
    if stored is None:
        # Without a table that leads to the root, the damage cannot be placed.
        report.add(
            Problem(
                code=kind.code(130),
                what="the content is not what was signed; its damaged table cannot say where",
                file=file.name,
                offset=0,
                length=file.size,
            )
        )
        return
    for index in range(file.params.num_leaves(file.size)):
        place = slice(index * DIGEST_SIZE, (index + 1) * DIGEST_SIZE)
        if job.leaves[place] != stored[place]:
            start, length = file.leaf_range(index)
            names = tensors.names(file.name, start, length) if named else []
            report.add(content_problem(kind, file.name, start, length, names))


def _leaves_of(job: _FileJob, kind: Kind) -> bytes | None:
    """The stored leaf table when it leads to the signed root."""
    if job.table is None:
        return None
    file = job.file
    cut = num_pages(file.params, file.size) * DIGEST_SIZE if kind is Kind.DATASET else 0
    pages, leaves = job.table[:cut], job.table[cut:]
    if root_of(file.params, file.size, leaves).hex() != job.root:
        return None
    if kind is Kind.DATASET and pages_of(file.params, leaves) != pages:
        return None
    return leaves
