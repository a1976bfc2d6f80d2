# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about the software that Python would load: packages, entry points, start-up files.

Only metadata is read; nothing is imported.
"""

from email.parser import HeaderParser
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Final

from packaging.utils import canonicalize_name

from securetrain.audit.subjects.node.collect.host import FILE_LIMIT, Host, TooMuchError
from securetrain.audit.subjects.node.facts.node import EntryPoint, Package, Python, StartupFile

TORCHRUN_GROUP: Final = "torchrun.handlers"
_MAX_DISTRIBUTIONS: Final = 3000
_RECORD_LIMIT: Final = 16 << 20
_STARTUP_MODULES: Final = ("sitecustomize", "usercustomize")


def packages(host: Host) -> dict[str, Package]:
    """Name to version of every installed distribution; the first on the search path wins."""
    if not host.seen_packages:
        found: dict[str, str] = {}
        for dist in installed(host):
            found.setdefault(*name_and_version(dist))
        host.seen_packages.update(sorted(found.items()))
    return {name: Package(version=version) for name, version in host.seen_packages.items()}


def name_and_version(dist: Distribution) -> tuple[str, str]:
    """The two headers, without the long description, which costs most of the time to parse.

    Without metadata the name is the folder's, as Python finds it, and the version is empty.

    Raises:
        ValueError: when there is a distribution and nothing says which.
    """
    text = dist.read_text("METADATA") or dist.read_text("PKG-INFO") or ""
    head = HeaderParser().parsestr(text.partition("\n\n")[0])
    folder = Path(str(getattr(dist, "_path", ""))).stem
    name = canonicalize_name(head["Name"] or folder.partition("-")[0])
    if not name:
        raise ValueError(f"a distribution without a name: {dist.locate_file('')}")
    return name, head["Version"] or ""


def entry_points(host: Host) -> tuple[EntryPoint, ...]:
    """The entry points that torchrun would load into its agent when it starts."""
    found = {}
    for dist in installed(host):
        if "torchrun.handlers" not in (dist.read_text("entry_points.txt") or ""):
            continue
        for entry in dist.entry_points:
            if entry.group == TORCHRUN_GROUP:
                fact = EntryPoint(
                    name=entry.name,
                    value=entry.value,
                    distribution=name_and_version(dist)[0],
                )
                found[fact.distribution, fact.name] = fact
    return tuple(found[key] for key in sorted(found))


def python(host: Host) -> Python:
    """The files that the interpreter executes or reads at every start."""
    claims = _claims(host)
    files = []
    for path in _startup_files(host):
        owner = claims.get(str(path), "")
        if not owner and _system_package_owns(host, path):
            owner = "system"
        files.append(StartupFile(path=str(path), claimed_by=owner))
    return Python(startup_files=tuple(files))


def installed(host: Host) -> list[Distribution]:
    """Every distribution on the search path.

    Raises:
        TooMuchError: when there are more than `_MAX_DISTRIBUTIONS`.
    """
    found: list[Distribution] = []
    for dist in distributions(path=list(host.search_path)):
        if len(found) == _MAX_DISTRIBUTIONS:
            raise TooMuchError(f"more than {_MAX_DISTRIBUTIONS} distributions")
        found.append(dist)
    return found


def _startup_files(host: Host) -> list[Path]:
    """``*.pth`` in site directories and customisation modules anywhere on the search path."""
    found: set[Path] = set()
    for entry in host.search_path:
        folder = Path(entry)
        if not entry or not folder.is_dir():
            continue
        if folder.name in {"site-packages", "dist-packages"}:
            found.update(folder.glob("*.pth"))
        for module in _STARTUP_MODULES:
            found.update(p for p in (folder / f"{module}.py", folder / module) if p.exists())
    if len(found) > 1000:
        raise TooMuchError("more than 1000 start-up files")
    return sorted(found)


def _claims(host: Host) -> dict[str, str]:
    """Map start-up files to the distributions whose RECORD lists them."""
    claims: dict[str, str] = {}
    for dist in installed(host):
        record = dist.read_text("RECORD")
        if record is None:
            continue
        if len(record) > _RECORD_LIMIT:
            raise TooMuchError(f"the RECORD of {dist.metadata['Name']} is too large")
        for line in record.splitlines():
            name = line.partition(",")[0].strip('"')
            last = name.rpartition("/")[2]
            if last.endswith(".pth") or last.partition(".")[0] in _STARTUP_MODULES:
                path = Path(str(dist.locate_file(name))).resolve()
                claims[str(path)] = canonicalize_name(dist.metadata["Name"] or "")
    return claims


def _system_package_owns(host: Host, path: Path) -> bool:
    """Return whether the operating system's Python packages (dpkg) list the file."""
    lists = host.at("/var/lib/dpkg/info")
    if not lists.is_dir():
        return False
    candidates = {str(path), str(path.resolve())}
    for pattern in ("python3*.list", "libpython3*.list"):
        for listing in sorted(lists.glob(pattern)):
            try:
                text = host.text(listing.relative_to(host.root), FILE_LIMIT)
            except (OSError, TooMuchError):
                continue
            if candidates & set(text.splitlines()):
                return True
    return False
