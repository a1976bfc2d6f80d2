# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts of several sources as one set: a node, files, a scheduler, and what others saved."""

from collections.abc import Iterator, Sequence

from securetrain.audit.documents import Document, Facts, Refused, twice


class JoinedFacts(Facts):
    """The documents of all parts, one part after the other; no two are about one asset."""

    def __init__(self, parts: Sequence[Facts]) -> None:
        """Take the parts; nothing is read yet."""
        self._parts = tuple(parts)
        self.expected = frozenset().union(*(part.expected for part in parts))
        self.notes = tuple(note for part in parts for note in part.notes)

    def __iter__(self) -> Iterator[Document | Refused]:
        """Read one part after the other."""
        seen: set[str] = set()
        for part in self._parts:
            for document in part:
                if isinstance(document, Document):
                    if document.asset in seen:
                        raise twice(document.asset)
                    seen.add(document.asset)
                yield document


def joined(parts: Sequence[Facts]) -> Facts:
    """All parts as one set.

    Raises:
        AuditError: ST-AUDT-002, when they are read, where two documents are about one asset.
    """
    return parts[0] if len(parts) == 1 else JoinedFacts(parts)
