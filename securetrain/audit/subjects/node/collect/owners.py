# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The files that belong to the machine's root, told to a launcher without root.

In a user namespace that maps one user only, what belongs to root and what belongs to a stranger
look the same: the overflow uid of user_namespaces(7). So the process that goes in says before what
it saw. Rules:

1. a file is named by device, inode and time of its last change of status, which a change of owner
   moves: what was replaced, or given to somebody else, is another file;
2. only root's files are told. A file that was not told stays a stranger's;
3. it is believed inside a user namespace only, and about files of the overflow uid only.
"""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

VARIABLE: Final = "SECURETRAIN_ROOT_OWNED"
LIMIT: Final = 64 << 10
"""Characters; about two thousand files."""

_FILE: Final = re.compile(r"[0-9a-f]{1,16}:[0-9a-f]{1,16}:[0-9a-f]{1,16}\Z")


def name(info: os.stat_result) -> str:
    """The name of a file (rule 1)."""
    return f"{info.st_dev:x}:{info.st_ino:x}:{info.st_ctime_ns:x}"


def encode_root_files(seen: Iterable[os.stat_result]) -> dict[str, str]:
    """The variable for the process that goes in; empty text when there is more than `LIMIT`."""
    text = ",".join(sorted({name(info) for info in seen if info.st_uid == 0}))
    return {VARIABLE: text if len(text) <= LIMIT else ""}


def decode_root_files(environ: Mapping[str, str], *, inside: bool) -> frozenset[str]:
    """Read the list of root's files; empty when this process is not inside, or it is malformed."""
    text = environ.get(VARIABLE, "")
    names = text.split(",") if inside and 0 < len(text) <= LIMIT else []
    return frozenset(names) if all(_FILE.match(one) for one in names) else frozenset()


def overflow_uid(proc: Path = Path("/proc")) -> int:
    """The uid that stands for everybody who has none here."""
    return int((proc / "sys" / "fs" / "overflowuid").read_text())
