# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about what a job reads and writes: checkpoints, data and the mounts that hold them.

Only what the job names is looked at: by an option, in its job file or in the environment.
"""

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


class NetworkMount(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A filesystem of another machine, as it is mounted here."""

    target: str
    fstype: str
    options: Annotated[tuple[str, ...], MAY_BE_EMPTY]
    """Without their values, which may name hosts and keys."""
    system: bool
    """Whether the machine itself runs from it: a root directory without disk."""
    encrypted: Reading[bool]
    """Whether nothing is ever in clear between the two."""

    @property
    def label(self) -> str:
        """The mount point."""
        return self.target


class ArtifactProblem(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An answer of the verifier or the scanner."""

    code: str
    what: str
    file: str = ""

    @property
    def label(self) -> str:
        """Code and file."""
        return f"{self.code} {self.file}".strip()


class Artifact(SeenFile, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Something that the job names, or that lies in a folder that it names."""

    origin: str
    """The option, variable or field that names it."""
    signed: Reading[bool]
    """Whether its statement verifies and names exactly what is there."""
    problems: Annotated[tuple[ArtifactProblem, ...], MAY_BE_EMPTY] = ()
    """Why it does not."""
    pickles: Reading[Annotated[tuple[str, ...], MAY_BE_EMPTY]]
    """Files that a loader would unpickle."""


class Checkpoint(Artifact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Weights that the job goes on from."""

    ordered: Reading[bool]
    """Whether a signed head or a log knows it."""
    unsafe: Reading[Annotated[tuple[ArtifactProblem, ...], MAY_BE_EMPTY]]
    """What a pickle in it would call that no weights need."""


class Dataset(Artifact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Data that the job reads."""

    intact: Reading[bool]
    """Whether the leaves that were picked at random are what was signed."""
    sampled_bytes: int = 0
    """How much of it was looked at so."""
    programs: Reading[Annotated[tuple[str, ...], MAY_BE_EMPTY]]
    """Scripts and libraries among its files."""


class Pointer(SeenFile, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A link in a folder of checkpoints, or a file that says which one is the newest."""

    target: str
    inside: bool | None
    """Whether it leads to something in the same folder."""


class Artifacts(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that the job names; empty when it names nothing."""

    checkpoints: Annotated[tuple[Checkpoint, ...], MAY_BE_EMPTY]
    datasets: Annotated[tuple[Dataset, ...], MAY_BE_EMPTY]
    pointers: Annotated[tuple[Pointer, ...], MAY_BE_EMPTY]


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
