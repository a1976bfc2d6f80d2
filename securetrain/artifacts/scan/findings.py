# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The findings of a scan, as data, and the remarks of the parsers that they are made of.

A parser yields a remark for everything that a loader would do and should not; it raises
`UnjudgedError` where it cannot tell, and `BrokenError` where the bytes are not of the format.

Rules: unsafe content outranks content that could not be judged, which outranks what could not be
read; a scan in which nothing was judged is never clean.
"""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from securetrain.core import CODES, ExitCode
from securetrain.core.errors import UsageError
from securetrain.core.files import unsafe_name

NOTHING: Final = "ST-SCAN-030"
UNJUDGED: Final = "ST-SCAN-031"
UNKNOWN_KIND: Final = "ST-SCAN-032"
UNSAFE_NAME: Final = "ST-SCAN-142"
UNSAFE_GLOBAL: Final = "ST-SCAN-190"
UNFOLLOWED: Final = "ST-SCAN-191"
MALFORMED: Final = "ST-SCAN-192"
TWO_FORMATS: Final = "ST-SCAN-193"
PROGRAM: Final = "ST-SCAN-194"
CALLED: Final = "ST-SCAN-195"
ESCAPE: Final = "ST-SCAN-196"
OUTSIDE: Final = "ST-SCAN-197"
UNREADABLE: Final = "ST-SCAN-200"
DATA: Final = ""
"""The code of a remark that names a file which holds numbers only, in place of what it says."""


class UnjudgedError(Exception):
    """Something cannot be judged."""


class BrokenError(ValueError):
    """Bytes are not what their format asks for."""


class Remark(NamedTuple):
    """One thing about content."""

    code: str
    what: str
    offset: int | None = None
    """Where, from the start of the window."""


def leaves(name: str) -> str:
    """Explain why a place is not below a folder; empty when it is."""
    if name.startswith("/"):
        return "an absolute path"
    return next(filter(None, map(unsafe_name, name.removeprefix("./").split("/"))), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that a loader would do and should not, or that could not be judged."""

    code: str
    what: str
    file: str = ""
    """Name below what was scanned, with forward slashes; ``a.pt!archive/data.pkl`` inside one."""
    offset: int | None = None
    """Where, from the start of the innermost member."""
    at: int | None = None
    """Where, from the start of the file on disk; None in what had to be unpacked."""
    item: str = ""
    """The value of the state dict whose bytes these are, when an index names it."""

    @property
    def fix(self) -> str:
        """The remedy."""
        return CODES[self.code].fix

    @property
    def place(self) -> str:
        """File, byte and value in words."""
        text = self.file
        if self.offset is not None:
            text += f" byte {self.offset}"
        if self.item:
            text += f" (value {self.item})"
        return text

    def to_dict(self) -> dict[str, str | int | None]:
        """The finding as plain data."""
        return {**asdict(self), "title": CODES[self.code].title, "fix": self.fix}


@dataclass(slots=True, kw_only=True)
class Judged:
    """One thing that was looked at: a file, or a member of one."""

    name: str
    format: str
    globals: tuple[str, ...] = ()
    opcodes: Counter[str] = field(default_factory=Counter)

    def to_dict(self) -> dict[str, object]:
        """As plain data."""
        return asdict(self) | {"globals": sorted(self.globals), "opcodes": dict(self.opcodes)}


def merge_scans(results: Sequence["ScanResult"]) -> "ScanResult":
    """Several scans as one; names get the path that they were found below."""
    if len(results) == 1:
        return results[0]
    if not results:
        raise UsageError("ST-USAG-001", "no path is given", "scan(path=)", "give what to look at")
    judged = any(result.judged for result in results)
    whole = ScanResult(path=Path(os.path.commonpath([one.path.absolute() for one in results])))
    for result in results:
        root = result.path

        def named(name: str, root: Path = root) -> str:
            return str(root) if name in ("", root.name) else f"{root}/{name}"

        whole.findings += [
            replace(finding, file=named(finding.file))
            for finding in result.findings
            if finding.code != NOTHING or not judged
        ]
        whole.judged += [replace(one, name=named(one.name)) for one in result.judged]
        whole.passed_over += [named(name) for name in result.passed_over]
        whole.num_bytes += result.num_bytes
        whole.truncated |= result.truncated
    return whole


@dataclass(slots=True, kw_only=True)
class ScanResult:
    """The result of scanning a file or directory."""

    path: Path
    findings: list[Finding] = field(default_factory=list)
    judged: list[Judged] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)
    """Files in which nothing is that a loader of weights would run."""
    num_bytes: int = 0
    truncated: bool = False

    @property
    def ok(self) -> bool:
        """Tell whether something was judged and nothing found."""
        return not self.findings and bool(self.judged)

    @property
    def exit_code(self) -> ExitCode:
        """0 when ok, else the exit code of the most telling finding."""
        if not self.findings:
            return ExitCode.OK if self.judged else CODES[NOTHING].exit
        return min((CODES[one.code] for one in self.findings), key=lambda code: code.rank).exit

    def among_data(self) -> "ScanResult":
        """The result where files of no known kind are data, which nothing loads but as bytes."""
        data = [one.file for one in self.findings if one.code == UNKNOWN_KIND]
        kept = [one for one in self.findings if one.code != UNKNOWN_KIND]
        if not kept and not self.judged:
            kept = [Finding(code=NOTHING, what="nothing in it holds weights or objects")]
        return replace(self, findings=kept, passed_over=[*self.passed_over, *data])

    def to_dict(self) -> dict[str, object]:
        """The result as plain data, for --json."""
        return {
            "path": str(self.path),
            "ok": self.ok,
            "exit": int(self.exit_code),
            "num_bytes": self.num_bytes,
            "judged": [one.to_dict() for one in self.judged],
            "passed_over": self.passed_over,
            "findings": [finding.to_dict() for finding in self.findings],
            "truncated": self.truncated,
        }
