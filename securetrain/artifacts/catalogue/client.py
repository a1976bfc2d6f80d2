# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Ask a catalogue what a name means. The workflow of TUF's client is python-tuf's to walk.

Rules, in order:

1. the first root is a file that a person gives, and takes its bytes as the pin; later ones must be
   signed by the threshold of the one before and of their own;
2. timestamp, snapshot and targets are signed by the thresholds of their roles, have not expired and
   are of the versions that the one before names; none goes below what this machine has seen, which
   it keeps in a folder of its own for each first root;
3. no key counts twice: a role that holds one key under two ids is refused;
4. the name is in the catalogue, and what it means lies below the catalogue's folder (`entry`).

What comes out is a place and what must hold of what lies there: it is verified like everything
else, by the trust root's keys as well.

python-tuf is handed the catalogue's files: nothing is fetched from where its URLs point.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from securetrain.artifacts.catalogue.entry import Entry, Files, check_name, files_of, place_of
from securetrain.artifacts.statement.expectation import Expectation
from securetrain.artifacts.tree.storage import Place, shown
from securetrain.core import install_hint
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.core.files import locked, make_private_dir, read_file

if TYPE_CHECKING:
    from tuf.api.metadata import TargetFile
    from tuf.ngclient import FetcherInterface, Updater

ROOT_LIMIT: Final = 512_000


BASE: Final = "https://catalogue.invalid/"
_NOT_FOUND: Final = 404


def _fetcher(files: Files) -> "FetcherInterface":
    """Names below `BASE` are files of the catalogue. Whoever loads a checkpoint needs no tuf."""
    from tuf.api.exceptions import DownloadHTTPError  # noqa: PLC0415 - an extra's package
    from tuf.ngclient import FetcherInterface  # noqa: PLC0415

    class FilesFetcher(FetcherInterface):
        def _fetch(self, url: str) -> Iterator[bytes]:
            data = files.read(url.removeprefix(BASE))
            if data is None:
                raise DownloadHTTPError(f"there is no {url.removeprefix(BASE)}", _NOT_FOUND)
            return iter([data])

    return FilesFetcher()


class Resolved(NamedTuple):
    """The meaning of a name."""

    path: Path | str
    expect: Expectation
    entry: Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """A catalogue as this machine sees it."""

    place: Place
    """The folder that holds it: a path, the URL of an object store, or an OCI layout."""
    root: Path
    """Its first root, from another place than the catalogue."""
    state: Path
    """A folder for what was seen of catalogues; whoever can change it can make them go back."""

    def resolve(self, name: str, expect: Expectation | None = None) -> Resolved:
        """The place of a named artifact, and what must hold of it besides `expect`.

        Raises:
            IntegrityError: ST-CTLG-101, 110, 121, 142, 150, 151.
            UsageError: ST-USAG-001 a bad name, or an expectation that the catalogue contradicts;
                ST-USAG-002 no root; ST-USAG-004 without the extra ``[catalogue]``.
        """
        check_name(name)
        found = self.entries().get(name)
        if found is None:
            raise IntegrityError("ST-CTLG-121", f"it has no {name}", self._name)
        wanted = found.expectation
        if expect is not None:
            wanted = wanted.and_also(expect)
        return Resolved(place_of(self.place, found, name), wanted, found)

    def entries(self) -> dict[str, Entry]:
        """Everything that it names, verified and not older than what was seen.

        Raises:
            IntegrityError: ST-CTLG-101, 110, 142, 150, 151.
        """
        first = read_file(self.root, ROOT_LIMIT)
        state = make_private_dir(self.state) / hashlib.sha256(first).hexdigest()[:32]
        make_private_dir(state)
        with locked(state / "lock"):
            targets = self._refreshed(first, state)
        return {
            name: Entry.of(name, target.hashes, target.unrecognized_fields.get("custom", {}))
            for name, target in targets.items()
        }

    @property
    def _name(self) -> str:
        return str(shown(self.place))

    def _refreshed(self, first: bytes, state: Path) -> dict[str, "TargetFile"]:
        """Rules 1 to 3."""
        try:
            from tuf.api import exceptions as tuf  # noqa: PLC0415 - an extra's package
            from tuf.ngclient import Updater  # noqa: PLC0415

        except ModuleNotFoundError as error:
            raise UsageError(
                "ST-USAG-004", "tuf is not installed", "tuf", install_hint("catalogue")
            ) from error
        try:
            fetcher = _fetcher(files_of(self.place))
            updater = Updater(str(state), BASE, fetcher=fetcher, bootstrap=first)
            updater.refresh()
            return _targets(updater)
        except tuf.ExpiredMetadataError as error:
            raise IntegrityError("ST-CTLG-150", str(error), self._name) from error
        except tuf.BadVersionNumberError as error:
            raise IntegrityError("ST-CTLG-151", str(error), self._name) from error
        except tuf.UnsignedMetadataError as error:
            raise IntegrityError("ST-CTLG-110", str(error), self._name) from error
        except (tuf.RepositoryError, tuf.DownloadError, ValueError, OSError) as error:
            raise IntegrityError("ST-CTLG-101", str(error), self._name) from error


def _targets(updater: "Updater") -> "dict[str, TargetFile]":
    """The entries; rule 3."""
    trusted = updater._trusted_set  # noqa: SLF001 - tuf lists no targets otherwise
    root = trusted.root
    for name, role in root.roles.items():
        values = [str(root.keys[key].keyval) for key in role.keyids]
        if len(set(values)) != len(values):
            raise IntegrityError("ST-CTLG-110", f"role {name} has one key under two ids")
    if trusted.targets.delegations is not None:
        raise IntegrityError("ST-CTLG-101", "it delegates to others, which no catalogue does")
    return trusted.targets.targets
