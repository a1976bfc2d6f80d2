# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Bounds of the reader of manifests, and the error of a text that it cannot read."""

from typing import Final

MAX_FILES: Final = 20_000
"""Files of one audit."""
MAX_FILE_BYTES: Final = 16 << 20
"""Of one file, and of one object of a `List`."""
MAX_LIST_BYTES: Final = 256 << 20
"""Of a file that is one `List`: its objects are read one after the other."""
MAX_ITEMS: Final = 100_000
"""Objects of one `List`."""
MAX_ENTRIES: Final = 200_000
"""Names of folders that are looked at."""
MAX_NODES: Final = 200_000
"""Of one YAML document, each alias counted as what it stands for."""
MAX_DEPTH: Final = 64
MAX_DOCUMENTS: Final = 20_000
"""YAML documents of all files."""
MAX_WORKLOADS: Final = 4_000
MAX_POLICIES: Final = 4_000
"""Network policies, bindings, and Services, of each."""
MAX_HOLES: Final = 100_000
"""Places of one file that a template leaves open."""
MAX_EMBEDDED: Final = 3
"""Strings in strings that hold objects."""


class ManifestError(Exception):
    """A text that cannot be read, and its line of the file."""

    def __init__(self, what: str, line: int, *, is_large: bool = False) -> None:
        super().__init__(what)
        self.what = what
        self.line = line
        self.is_large = is_large
        """Whether it has too many values, and nothing else is wrong so far."""
