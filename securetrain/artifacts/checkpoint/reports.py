# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The reports of the ranks on their own parts of a save, and the signatures that they bring.

A rank with a key of its own reports its signature. One whose launcher signs has handed its message
in; the last rank of each node brings the node's signature for all of them. The coordinator believes
neither: it checks that every rank is signed for, once, and each signature, before it signs itself.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET
from torch.distributed.checkpoint.storage import WriteResult

from securetrain.artifacts.statement import members, node_signatures
from securetrain.artifacts.statement.members import FileSigner
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    NodeSignature,
    RankFile,
    RankSignature,
)
from securetrain.artifacts.tree.encryption import Sealed
from securetrain.artifacts.tree.problems import Problem
from securetrain.core import canonical
from securetrain.core.errors import UsageError

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
            case node_signatures.NodeSigner():
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
    if what := node_signatures.unsound(predicate):
        raise UsageError(_MALFORMED, f"the ranks' reports do not fit together: {what}")
    return (
        *members.unsigned(predicate),
        *members.check_signatures(predicate, members.keys_named(predicate.members)),
    )
