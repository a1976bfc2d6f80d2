# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""An entry of a catalogue: a TUF target whose bytes are the artifact's signed statement.

Its length and SHA-256 are those of the in-toto statement inside of the artifact's envelope, so that
another signature over the same words changes nothing. ``custom`` says what the digest of the
content is, and where the artifact lies below the catalogue's folder. Rules:

1. a name is letters, digits, dots, hyphens and underscores;
2. a location is relative, has no part that leads up or that no file may have, and (in a folder of
   this machine) nothing on the way is a link that leads out of the catalogue's folder.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from securetrain.artifacts.statement.expectation import Expectation
from securetrain.artifacts.statement.listing import read_statement
from securetrain.artifacts.statement.statements import Opened, claimed_kind, open_statement
from securetrain.artifacts.tree.layout import Kind
from securetrain.artifacts.tree.parts import Hex32
from securetrain.artifacts.tree.storage import Place, local_path
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.core.files import unsafe_name
from securetrain.identity.trust import TrustRoot

FOLDER: Final = "catalogue"
"""The folder of the metadata, in the catalogue's own."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The word of a catalogue on a name."""

    digest: Hex32
    """Of the artifact's content."""
    statement: Hex32
    """SHA-256 of what was signed about it."""
    location: Annotated[str, Meta(min_length=1, max_length=1024)]
    """Where it lies below the catalogue's folder."""
    kind: str

    @classmethod
    def of(cls, name: str, hashes: dict[str, str], custom: Any) -> "Entry":
        """Read a target of verified metadata.

        Raises:
            IntegrityError: ST-CTLG-101, ST-CTLG-142.
        """
        try:
            said = dict(custom) | {"statement": hashes.get("sha256", "")}
            entry = msgspec.convert(said, cls, strict=True)
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise IntegrityError("ST-CTLG-101", f"entry {name}: {error}") from error
        check_location(entry.location, name)
        return entry

    @property
    def expectation(self) -> Expectation:
        """The expectation that it stands for."""
        return Expectation(digest=self.digest, statement=self.statement)


def read_signed(path: Path, trust: TrustRoot) -> Opened:
    """The statement of an artifact of either kind, verified.

    Raises:
        IntegrityError: ST-CKPT-100 to 161, or ST-DATA likewise.
    """
    data = read_statement(path, Kind.CHECKPOINT)
    kind = claimed_kind(data) or Kind.CHECKPOINT
    return open_statement(data, kind, trust, str(path))


def check_name(name: str) -> None:
    """Rule 1.

    Raises:
        UsageError: ST-USAG-001.
    """
    if not _NAME.match(name):
        raise UsageError(
            "ST-USAG-001",
            f"{name!r} is no name of a catalogue",
            "",
            "use letters, digits, dots, hyphens and underscores, at most 128",
        )


def check_location(location: str, name: str) -> None:
    """The first half of rule 2.

    Raises:
        IntegrityError: ST-CTLG-142.
    """
    for part in location.split("/"):
        if why := unsafe_name(part):
            raise IntegrityError("ST-CTLG-142", f"entry {name} leads to {location!r}: {why}")


def place_of(store: Place, entry: Entry, name: str) -> Path | str:
    """The place of an entry's artifact.

    Raises:
        IntegrityError: ST-CTLG-142.
    """
    if isinstance(store, str) and local_path(store) is None:
        return f"{store.rstrip('/')}/{entry.location}"
    folder = local_path(str(store))
    assert folder is not None
    place = folder / entry.location
    if not place.resolve().is_relative_to(folder.resolve()):
        raise IntegrityError("ST-CTLG-142", f"entry {name} leads to {place.resolve()}", str(folder))
    return place
