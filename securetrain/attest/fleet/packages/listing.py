# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The files of packages, gathered into one runtime policy.

Rules:

1. a path is what the kernel measures: links in its folders are followed, inside the root that is
   looked at and never out of it;
2. what is not known for certain is left out and named: an altered file, a digest of MD5 or SHA-1, a
   package that cannot be read. The policy is whole, or says in its notes what it lacks;
3. several sources make one policy: a path may have several digests, as before and after an upgrade.
"""

import hashlib
import tarfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import IO, Any, Final

from securetrain.core import canonical
from securetrain.core.errors import UsageError
from securetrain.evidence.tpm import MAX_PATHS, POLICY_LIMIT

MAX_NOTES: Final = 1000
_MERGED: Final = ("/bin/", "/sbin/", "/lib/", "/lib32/", "/lib64/", "/libx32/")
"""Folders that are links into /usr on today's systems."""
_CHUNK: Final = 1 << 20
_MAX_PATH: Final = 4096


@dataclass(slots=True)
class FileListing:
    """The files that were found so far."""

    files: dict[str, set[str]] = field(default_factory=dict)
    """Digests by path, ``sha256:HEX`` or ``sha512:HEX``."""
    packages: list[str] = field(default_factory=list)
    """As ``name version architecture``, or the digest of an image."""
    notes: list[str] = field(default_factory=list)
    """What was left out, and why."""
    left_out: int = 0
    """How many that is; the notes are bounded."""
    signed_by: Counter[str] = field(default_factory=Counter)
    """Files that bear a signature, by key id."""

    def add(self, path: str, digest: str) -> None:
        """List a file.

        Raises:
            UsageError: ST-USAG-008 when there are too many.
        """
        known = self.files.setdefault(path, set())
        known.add(digest)
        if len(self.files) > MAX_PATHS:
            raise unusable(f"more than {MAX_PATHS} files", path, "list fewer packages")

    def list_package(self, name: str) -> None:
        """Name a package, in any spelling that its maker found."""
        self.packages.append(_spelt(name))

    def leave_out(self, what: str) -> None:
        """Note what is not listed."""
        self.left_out += 1
        if len(self.notes) < MAX_NOTES:
            self.notes.append(_spelt(what))

    def document(
        self,
        now: datetime,
        *,
        excludes: Sequence[str] = (),
        beside: Iterable[Mapping[str, Any]] = (),
    ) -> bytes:
        """The runtime policy, as Keylime's JSON.

        Args:
            now: the time, for its header.
            excludes: patterns of paths that any file may have.
            beside: policies whose digests are accepted too.

        Raises:
            UsageError: ST-USAG-008 when it is too large to be read.
        """
        digests = {path: set(found) for path, found in self.files.items()}
        for other in beside:
            for path, found in other["digests"].items():
                digests.setdefault(path, set()).update(found)
        made = canonical.dumps(
            {
                "meta": {"version": 1, "timestamp": now.isoformat()},
                "release": 0,
                "digests": {path: sorted(found) for path, found in digests.items()},
                "excludes": list(excludes),
                "keyrings": {},
                "ima": {"ignored_keyrings": [], "log_hash_alg": "sha1", "dm_policy": None},
                "ima-buf": {},
                "verification-keys": "",
            }
        )
        if len(made) > POLICY_LIMIT:
            raise unusable(
                f"the policy has {len(made)} bytes, the limit is {POLICY_LIMIT}",
                "",
                "list fewer packages",
            )
        return made


def spellings(path: str) -> tuple[str, ...]:
    """Spell where a packaged file lies: on systems whose ``/bin`` is a link too."""
    return (path, f"/usr{path}") if path.startswith(_MERGED) else (path,)


def clean(path: str) -> str | None:
    """An absolute path without ``.``, ``..`` and doubled slashes; None for one that is no path."""
    parts = [part for part in path.split("/") if part not in {"", "."}]
    made = "/" + "/".join(parts)
    if not parts or ".." in parts or "\0" in path or len(made.encode(errors="replace")) > _MAX_PATH:
        return None
    try:
        made.encode()
    except UnicodeEncodeError:
        return None
    return made


def digest_of(file: IO[bytes], size: int | None = None) -> tuple[str, str]:
    """SHA-256 as policies spell it, and the MD5 that packages of Debian carry.

    Args:
        file: is read to its end.
        size: how many bytes must be there; None for any number.

    Raises:
        UsageError: ST-USAG-008 when it is cut.
    """
    strong, weak, read = hashlib.sha256(), hashlib.md5(usedforsecurity=False), 0
    try:
        while chunk := file.read(_CHUNK):
            strong.update(chunk)
            weak.update(chunk)
            read += len(chunk)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise unusable(f"a file cannot be read: {error}", "", "get the archive again") from error
    if size is not None and read != size:
        raise unusable(f"a file has {read} bytes of {size}", "", "get the archive again")
    return f"sha256:{strong.hexdigest()}", weak.hexdigest()


def _spelt(text: str) -> str:
    """A text with every byte that is no UTF-8 spelt out."""
    return text.encode("utf-8", "backslashreplace").decode()


def unusable(what: str, where: str, fix: str) -> UsageError:
    """A source that cannot be read (ST-USAG-008)."""
    return UsageError("ST-USAG-008", what, where, fix)
