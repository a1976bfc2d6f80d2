# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Names of artifacts, as catalogues give them: ``NAME@FOLDER`` and ``NAME@catalogue``."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from securetrain.cli.command import Option
from securetrain.cli.options import CATALOGUE_ROOT

if TYPE_CHECKING:
    from securetrain.artifacts import Expectation
    from securetrain.artifacts.catalogue import Catalogue, Editor

Root: TypeAlias = Annotated[Path, CATALOGUE_ROOT]


@dataclass(frozen=True, slots=True, kw_only=True)
class NameOptions:
    """The catalogue that is asked, and by which root."""

    catalogue: Annotated[str | None, Option("--catalogue", env="SECURETRAIN_CATALOGUE")]
    """What NAME@catalogue asks: the folder, URL or OCI layout of a catalogue."""
    catalogue_root: Annotated[Path | None, CATALOGUE_ROOT]
    """A catalogue's first root: with it, PATH may be NAME@FOLDER or NAME@catalogue."""
    offline: Annotated[bool, Option("--offline")]
    """Fetch nothing: refuse a PATH that is a URL of a store."""

    def resolve(
        self, path: Path | str, expect: "Expectation | None"
    ) -> "tuple[Path | str, Expectation | None]":
        """Ask a catalogue when `path` is ``NAME@WHERE``, and there is a root to ask it by."""
        from securetrain.artifacts import storage
        from securetrain.chain import form_of, refuse
        from securetrain.core.errors import UsageError

        name, at, where = str(path).partition("@")
        if not at or "/" in name or self.catalogue_root is None:
            if at and "/" not in name and self.catalogue is not None:
                raise UsageError(
                    "ST-USAG-001",
                    "a catalogue is asked by its first root only",
                    str(path),
                    "give --catalogue-root root.json",
                )
            return path, expect
        if where == "catalogue":
            if self.catalogue is None:
                raise UsageError(
                    "ST-USAG-001", "nothing says which", str(path), "give --catalogue FOLDER"
                )
            where = self.catalogue
        place = storage.local_path(where) or where
        refuse(form_of(place), {"offline"} if self.offline else (), place)
        found = open_catalogue(place, self.catalogue_root).resolve(name, expect)
        return found.path, found.expect


def open_catalogue(place: Path | str, root: Path) -> "Catalogue":
    """The catalogue at a place, with what this machine has seen of it."""
    from securetrain.artifacts.catalogue import Catalogue
    from securetrain.launch import this_node

    return Catalogue(place=place, root=root, state=this_node(os.environ).catalogues)


def open_editor(folder: Path, root: Path) -> "Editor":
    """The editor of the catalogue in a folder."""
    from securetrain.artifacts.catalogue import Editor

    return Editor(folder, open_catalogue(folder, root))
