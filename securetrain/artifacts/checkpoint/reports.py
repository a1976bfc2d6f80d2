# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The word of ranks and launchers for a save: signatures, what is bound, and errors.

Rules:

1. a rank with a key of its own reports its signature on its part. One whose launcher signs has
   handed its message in, and the last rank of each node brings the node's signature for all of
   them. The coordinator believes neither: it checks that every rank is signed for, once, and each
   signature, before it signs itself;
2. what is bound is the launcher's: its membership, policy, job, environment, ledger. The worker
   takes it over as it stands, and the launcher refuses a statement that says otherwise;
3. the worker declares the files of code that it has imported, and the settings of its arithmetic.
   That is its own word, and kept as such; it is said again only when it changed;
4. the records of the steps are handed over before the launcher is asked: it reads them as a
   verifier does, keeps them, and binds no others;
5. nothing is asked without a launcher's key: a save under a key of one's own binds nothing;
6. every step of ours raises nothing but SecureTrainError, and the caller of `save` or `load` gets
   the original error, on every rank: torch wraps what a rank raised in a `CheckpointException`,
   which is a BaseException that ``except Exception`` misses, and sends it to every rank in a
   pickle.
"""

import base64
import dataclasses
import errno
import functools
import hashlib
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

import msgspec
import torch
from msgspec import UNSET
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.storage import WriteResult

from securetrain.artifacts.statement import checkpoint_predicate, members
from securetrain.artifacts.statement.context import SaveContext, StepPieces
from securetrain.artifacts.statement.members import FileSigner
from securetrain.artifacts.statement.statements import (
    Bound,
    CheckpointPredicate,
    NodeRef,
    NodeSignature,
    PolicyRef,
    RankFile,
    RankSignature,
)
from securetrain.artifacts.tree.encryption import Sealed
from securetrain.artifacts.tree.layout import Problem
from securetrain.core import CODES, canonical
from securetrain.core.errors import IntegrityError, SecureTrainError, UsageError
from securetrain.identity.keys import Signer
from securetrain.identity.signing import Bind, Bonds, ImportedFile, LauncherKey, Topic

FILE: Final = "securetrain:file"
"""The name of the synthetic result by which a rank reports its file."""
_MALFORMED: Final = "ST-USAG-010"


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """A rank's report on its part; travels as a plain tuple."""

    name: str
    """Empty when it wrote no file."""
    size: int
    root: str
    key: str
    """The id of the key that signs for it; empty when none does."""
    sig: str
    """Empty where another rank of its node brings the signature of all."""
    certificate: str
    sealed: str
    """How it encrypted its file, as JSON; empty when it did not."""
    ranks: tuple[int, ...] = ()
    """Those for which the signature is, where it is a node's."""
    leaves: tuple[str, ...] = ()

    @classmethod
    def of(cls, file: RankFile | None, signer: FileSigner | None, message: bytes) -> "Report":
        """The report on a file, signed or handed in to be signed.

        Args:
            file: None for a rank that wrote none.
            signer: None for a rank that does not sign.
            message: What is to be signed.
        """
        name, size, root = ("", 0, "") if file is None else (file.name, file.size, file.root)
        sealed = canonical.encode(file.sealed).decode() if file and file.sealed else ""
        match signer:
            case None:
                return cls(name, size, root, "", "", "", sealed)
            case checkpoint_predicate.NodeSigner():
                made = signer.hand_in(message)
                given = (signer.certificate, sealed)
                if made is None:
                    return cls(name, size, root, signer.key_id, "", *given)
                together = (tuple(made.ranks), tuple(made.leaves))
                return cls(name, size, root, made.key, made.sig, *given, *together)
            case _:
                signed = signer.sign(message)
                key = signer.key.key_id
                return cls(name, size, root, key, signed, signer.certificate, sealed)


def reports_of(results: list[list[WriteResult]]) -> dict[int, Report]:
    """The reports of all ranks on their own parts; the last word counts, and there is one."""
    return {
        rank: Report(*result.storage_data)
        for rank, reported in enumerate(results)
        for result in reported
        if result.index.fqn == FILE
    }


def sealed_in(report: Report, *, encrypted: bool) -> Sealed | None:
    """The encryption of a rank's file: this save asks the same of all ranks."""
    if bool(report.sealed) != encrypted:
        raise UsageError(
            "ST-USAG-001",
            f"the ranks do not agree on whether {report.name} is encrypted",
            "recipients",
            "give every rank the same recipients",
        )
    if not encrypted:
        return None
    return canonical.decode(report.sealed.encode(), Sealed, limit=1 << 20, where=report.name)


def signatures_in(reports: Mapping[int, Report], world_size: int) -> dict[str, Any]:
    """The fields of a predicate that say who signed the ranks' parts.

    Raises:
        UsageError: ST-USAG-001 when only some ranks have a key, ST-USAG-010 for a malformed report.
    """
    signed = {rank: report for rank, report in sorted(reports.items()) if report.key}
    if signed and len(signed) != world_size:
        missing = next(rank for rank in range(world_size) if rank not in signed)
        raise UsageError(
            "ST-USAG-001",
            f"rank {missing} has no key to sign its file with, and others have",
            "signer",
            "give every rank a signer, or none",
        )
    alone = [
        RankSignature(rank=rank, key=one.key, sig=one.sig)
        for rank, one in signed.items()
        if one.sig and not one.ranks
    ]
    by_nodes = [
        {"key": one.key, "ranks": one.ranks, "leaves": one.leaves, "sig": one.sig}
        for one in signed.values()
        if one.ranks
    ]
    try:
        made = msgspec.convert(by_nodes, list[NodeSignature], strict=True)
    except msgspec.ValidationError as error:
        raise UsageError(_MALFORMED, f"a rank reported a malformed signature: {error}") from error
    return {
        "members": sorted({one.certificate for one in signed.values()}),
        "signatures": alone,
        "node_signatures": sorted(made, key=lambda one: one.ranks[0]) or UNSET,
    }


def problems_of(predicate: CheckpointPredicate) -> Sequence[Problem]:
    """The faults of the ranks' signatures under keys that nobody has believed yet: early, where the
    save can be refused as a whole.

    Raises:
        UsageError: ST-USAG-010 when a rank reported signatures for ranks that are not its node's.
        SecureTrainError: A certificate is malformed.
    """
    if not predicate.members:
        return ()
    if what := checkpoint_predicate.unsound(predicate):
        raise UsageError(_MALFORMED, f"the ranks' reports do not fit together: {what}")
    return (
        *members.unsigned(predicate),
        *members.check_signatures(predicate, members.keys_named(predicate.members)),
    )


MAX_FILES: Final = 20_000
FILE_LIMIT: Final = 64 << 20
"""Bytes of one file of code."""
_told: dict[Topic, tuple[int, str]] = {}
"""By which process what was declared last."""


def bonded(
    predicate: CheckpointPredicate, key: Signer, context: SaveContext
) -> CheckpointPredicate:
    """The predicate with everything that a launcher wants bound; as it is without a launcher.

    Raises:
        RuntimeRefusal: ST-RUNT-030 to 035.
    """
    if not isinstance(key, LauncherKey):
        return predicate
    _declare(key, Topic.CODE, msgspec.to_builtins(sorted_files()))
    _declare(key, Topic.ENVIRONMENT, arithmetic())
    if context.records is not None:
        _hand_over(key, context.records)
    said: Bonds = key.socket.bind(
        Bind(
            step=context.step,
            parents=tuple(parent.digest for parent in context.parents),
            dataset=context.dataset.digest,
            records="" if context.records is None else context.records.digest,
        )
    )
    if not said.keeps:
        return predicate
    policy = msgspec.convert(said.policy, PolicyRef, strict=True)
    return msgspec.structs.replace(
        predicate,
        bound=msgspec.convert(said.bound, Bound, strict=True),
        nodes=msgspec.convert(said.nodes, list[NodeRef], strict=True),
        policy=predicate.policy if predicate.policy.digest else policy,
        epoch=said.epoch,
    )


def sorted_files() -> list[ImportedFile]:
    """The files of code that are imported, from outside the installed distributions."""
    return sorted(_imported(), key=lambda one: (one.module, one.sha256))[:MAX_FILES]


def arithmetic() -> dict[str, str]:
    """The settings that decide whether a step can be made again bit for bit."""
    cuda = torch.cuda.is_available()
    said: dict[str, object] = {
        "threads": torch.get_num_threads(),
        "interopThreads": torch.get_num_interop_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmulPrecision": torch.get_float32_matmul_precision(),
        "cudnnBenchmark": torch.backends.cudnn.benchmark,
        "cudnnDeterministic": torch.backends.cudnn.deterministic,
        "mkldnn": torch.backends.mkldnn.is_available(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "torchGit": getattr(torch.version, "git_version", ""),
        "cuda": torch.version.cuda or "",
    }
    if cuda:
        said["devices"] = ", ".join(
            torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())
        )
    return {name: str(value)[:1000] for name, value in said.items()}


def _hand_over(key: LauncherKey, records: StepPieces) -> None:
    for name, data in (*(("page", page) for page in records.pages), ("document", records.document)):
        said = {name: base64.b64encode(data).decode()}
        key.socket.declare(Topic.RECORDS, said)


def _declare(key: LauncherKey, topic: Topic, said: object) -> None:
    mark = os.getpid(), hashlib.sha256(msgspec.json.encode(said)).hexdigest()
    if _told.get(topic) != mark:
        key.socket.declare(topic, said)
        _told[topic] = mark


def _imported() -> Iterator[ImportedFile]:
    installed = {
        os.path.realpath(folder)
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        if (folder := sysconfig.get_path(name))
    }
    for name, module in list(sys.modules.items()):
        found = getattr(module, "__file__", None)
        if not isinstance(found, str) or not name or len(name) > 255:
            continue
        place = os.path.realpath(found)
        if any(place.startswith(folder + os.sep) for folder in installed):
            continue
        try:
            with Path(place).open("rb") as file:
                data = file.read(FILE_LIMIT + 1)
        except OSError:
            data = b""  # it is gone: that is said by the digest of nothing
        if len(data) > FILE_LIMIT or len(place) > 4096:
            continue
        yield ImportedFile(
            module=name, file=place, sha256=hashlib.sha256(data).hexdigest(), size=len(data)
        )


P = ParamSpec("P")
R = TypeVar("R")


def refusing(code: str, fix: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Turn what torch raises about a state dict into `code`, and what the disk says into its name.

    Args:
        code: the usage code that ValueError, RuntimeError and their like become.
        fix: what the person can do.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except SecureTrainError as error:
                cause = error.__cause__
                if isinstance(error, UsageError) and isinstance(cause, OSError):
                    # A small file's writer calls it the usage of a file.
                    raise _of_disk(cause, error.where) from cause
                raise
            except OSError as error:
                raise _of_disk(error, str(error.filename or "")) from error
            except (ValueError, RuntimeError, KeyError, TypeError, AssertionError) as error:
                raise UsageError(code, f"{error}", fix=fix) from error
            except Exception as error:
                raise UsageError("ST-USAG-010", f"{type(error).__name__}: {error}") from error

        return wrapper

    return decorate


def _of_disk(error: OSError, where: str) -> IntegrityError:
    """Name a disk's error for what it is, with the exit code of I/O."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        quota = "the quota is used up" if error.errno == errno.EDQUOT else ""
        return IntegrityError("ST-CKPT-202", quota, where)
    return IntegrityError(
        "ST-CKPT-200",
        str(error.strerror or error),
        where,
        "check the disk and the permissions; nothing half-written was kept",
    )


def unwrap(failure: CheckpointException) -> BaseException:
    """The error to raise instead: the refusal of the lowest rank that refused."""
    for rank in sorted(failure.failures):
        error = failure.failures[rank][0]
        if isinstance(error, SecureTrainError) and error.code in CODES:
            return error
    rank, (error, _) = min(failure.failures.items(), key=lambda item: item[0])
    if isinstance(error, KeyboardInterrupt):
        return error
    return UsageError("ST-USAG-010", f"{type(error).__name__}: {error}", f"rank {rank}")
