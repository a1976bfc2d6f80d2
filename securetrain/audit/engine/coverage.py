# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The ledgers of all documents of an audit: what weighs, what is out of scope, and the sums.

Rules:

1. what was not understood keeps its row, with the severity of the worst check that it could have
   answered; what was read or is not ours is counted, and has a row for each folder of files;
2. ``audit.out_of_scope`` of the policy takes files out by a glob of their path, or of its end,
   until its last day: they are not judged and not open, and their rows say why and by whom. A rule
   that has ended counts for nothing, and that is said;
3. an open file or document counts for the exit code where its severity reaches ``host.fail_on``;
   under ``audit.every_file`` each does.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Final

from securetrain.audit.documents import Document
from securetrain.audit.engine.check import Check
from securetrain.audit.engine.findings import Coverage, Finding, LedgerRow
from securetrain.audit.facts import End, Entry
from securetrain.core.vocabulary import Severity
from securetrain.policy.schema import Policy

OF_FILES: Final = frozenset({"cluster", "workload", "launch", "storage"})
"""Kinds of documents that are read from files by name, which a policy can leave out."""
_WHOLE: Final = frozenset({"file", "document"})
_WHAT: Final[Mapping[tuple[str, str], str]] = {
    ("cluster", "file"): "files",
    ("cluster", "document"): "documents",
    ("node", "artifact"): "checkpoints and data",
    ("node", "listener"): "listeners",
    ("node", "section"): "checkpoints and data",
    ("node", "rule"): "packet rules",
    ("slurm", "file"): "Slurm's files",
    ("storage", "file"): "exports",
    ("run", "run"): "runs",
}


class Scope:
    """The files that a policy leaves out."""

    def __init__(self, policy: Policy, now: datetime) -> None:
        """Take the rules that have not ended."""
        today = now.date()
        self._rules = [one for one in policy.audit.out_of_scope if one.end >= today]
        self.ended = tuple(
            f"audit.out_of_scope: {one.glob} ended on {one.end} ({one.owner}) and counts again"
            for one in policy.audit.out_of_scope
            if one.end < today
        )

    def of(self, document: Document) -> str:
        """Explain why the file of a document is left out; empty when it is not."""
        path = document.asset.partition(":")[2].partition("#")[0]
        return self.why(path) if document.kind in OF_FILES else ""

    def leaves_out(self, finding: Finding) -> bool:
        """Return whether a finding stands in a file that is left out."""
        of_files = finding.asset.partition(":")[0] in OF_FILES
        return of_files and finding.location is not None and bool(self.why(finding.location.path))

    def why(self, path: str) -> str:
        """Explain why a file is left out; empty when it is not."""
        for one in self._rules:
            if fnmatchcase(path, one.glob) or fnmatchcase(path, f"*/{one.glob}"):
                return f"out of scope until {one.end} ({one.owner}): {one.reason}"
        return ""


class Seen:
    """The rows and sums of the documents of an audit, one after the other."""

    def __init__(self, checks: Sequence[Check], policy: Policy, scope: Scope) -> None:
        """Begin with nothing."""
        self._scope = scope
        self._policy = policy
        self._weights: dict[str, Severity] = {}
        for check in checks:
            for name in check.spec.evidence:
                for part in (name, name.partition(".")[0]):
                    worst = self._weights.get(part, check.severity)
                    self._weights[part] = max(worst, check.severity)
        self._nodes = 0
        self._rows: list[LedgerRow] = []
        self._sums: dict[str, Counter[End]] = {}

    def see(self, document: Document) -> None:
        """Count one document."""
        if document.kind == "node":
            self._nodes += 1
            self._sums.setdefault("checkpoints and data", Counter())
        for entry in document.body.ledger:
            self._see(document, entry)

    def leave_out(self, document: Document, why: str) -> None:
        """Note a document that is not judged."""
        for entry in document.body.ledger:
            self._rows.append(LedgerRow(asset=document.asset, entry=entry, scope=why))

    def _see(self, document: Document, entry: Entry) -> None:
        why = self._scope.why(entry.at.path) if document.kind in OF_FILES else ""
        end = End.NOT_OURS if why else entry.end
        what = _WHAT.get((document.kind, entry.unit), "")
        if what:
            self._sums.setdefault(what, Counter())[end] += entry.count
        if entry.end is End.NOT_UNDERSTOOD:
            found = [self._weights[name] for name in entry.bears_on if name in self._weights]
            worst = max(found, default=None)
            counts = not why and entry.unit in _WHOLE and self._weighs(worst)
            self._rows.append(
                LedgerRow(
                    asset=document.asset, entry=entry, severity=worst, scope=why, counts=counts
                )
            )
        elif document.kind == "cluster":
            self._rows.append(LedgerRow(asset=document.asset, entry=entry, scope=why))

    def _weighs(self, severity: Severity | None) -> bool:
        """Rule 3."""
        if severity is None:
            return False
        return self._policy.audit.every_file or severity >= self._policy.host.fail_on

    def rows(self) -> tuple[LedgerRow, ...]:
        """The rows: what is open first, the heaviest first."""
        return tuple(sorted(self._rows, key=_order))

    def sums(self, missing_nodes: int = 0) -> tuple[Coverage, ...]:
        """The sums, with the nodes that should have been there."""
        every = self._nodes + missing_nodes
        found = [Coverage(what="hosts", seen=self._nodes, of=every)] if every else []
        for what, ends in self._sums.items():
            of = ends[End.READ] + ends[End.NOT_UNDERSTOOD]
            ours = Coverage(what=what, seen=ends[End.READ], of=of, not_ours=ends[End.NOT_OURS])
            found.append(ours)
        return tuple(found)


def _order(row: LedgerRow) -> tuple[bool, int, str, int]:
    rank = row.severity.rank if row.severity is not None else -1
    return (
        not row.not_understood or bool(row.scope),
        -rank,
        row.entry.at.path,
        row.entry.at.line,
    )
