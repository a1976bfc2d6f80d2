# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about where packages come from, and whether what is installed is what came."""

from typing import Annotated, Final

from securetrain.audit.facts import (
    MAY_BE_EMPTY,
    ONLY_FAULTS,
    Fact,
    FileFact,
    Location,
    Reading,
    SeenFile,
)

ENVIRONMENT: Final = "environment"
"""In place of a path: the job's variables."""


class IndexOption(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An option that adds a place to take packages from, or takes a check away."""

    name: str
    """As in ``pip.extra-index-url``."""
    host: str
    """Where it leads: never a path, a user or a password."""
    line: int = 0


class IndexSource(SeenFile, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A place where pip or uv reads such options."""

    options: Annotated[tuple[IndexOption, ...], MAY_BE_EMPTY] | None = None

    @property
    def location(self) -> Location | None:
        """The file, and the first such line."""
        if self.path == ENVIRONMENT:
            return None
        return Location(path=self.path, line=self.options[0].line if self.options else 0)


class Requirements(SeenFile, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A list of packages that the job names."""

    origin: str
    hashed: Reading[bool]
    """Whether each of them has a digest; its place is the first that has none."""

    @property
    def location(self) -> Location:
        """The file, at the first package without a digest."""
        return self.hashed.at or Location(path=self.path)


class ChangedFile(FileFact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A file that is not what the RECORD of its package says."""

    distribution: str


class RecordSample(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Installed files that were picked at random and hashed."""

    files: int
    distributions: int
    changed: Annotated[tuple[ChangedFile, ...], ONLY_FAULTS]
