# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Names of files without what marks a copy of them, and names that differ."""

import re
from dataclasses import dataclass, field
from typing import Final

_SUFFIXES: Final = frozenset(
    {".j2", ".jinja", ".jinja2", ".erb", ".tmpl", ".tpl", ".gotmpl", ".template", ".in", ".tftpl"}
    | {".envsubst", ".example", ".sample", ".dist", ".orig", ".bak"}
)
"""Endings of templates, examples and copies, which are taken off before a name is looked at."""
_DASHED: Final = re.compile(r"-(?:template|example|sample|tmpl)$")


def bare(name: str) -> str:
    """The name of a file without endings of templates, examples and copies, in lower case."""
    name = name.lower()
    while True:
        stem, dot, ending = name.rpartition(".")
        if dot and stem and dot + ending in _SUFFIXES:
            name = stem
        elif (cut := _DASHED.sub("", name)) != name:
            name = cut
        else:
            return name


@dataclass(slots=True)
class OwnNames:
    """Gives each of several things of one name a name of its own."""

    seen: dict[str, int] = field(default_factory=dict)

    def of(self, name: str) -> str:
        """The name, or ``NAME#2`` when it was there before."""
        self.seen[name] = count = self.seen.get(name, 0) + 1
        return name if count == 1 else f"{name}#{count}"
