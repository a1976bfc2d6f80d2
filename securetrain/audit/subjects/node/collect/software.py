# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about the software that Python would load, where it comes from, and whether it is that.

Rules:

1. only metadata is read; nothing is imported;
2. pip and uv read files in fixed places and variables (their documentation, "Configuration"); of a
   URL only the host is kept, because passwords stand in URLs;
3. a list of packages is looked at when the job names it: a requirements file with everything that
   it includes, or a lock file;
4. of what is installed, files of packages that were picked at random are hashed against RECORD: all
   that is within a second's reach, and the fact says how many.
"""

import base64
import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from email.parser import HeaderParser
from functools import partial
from importlib.metadata import Distribution, distributions
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

from packaging.utils import canonicalize_name

from securetrain.audit.facts import Location, Outcome, Reading
from securetrain.audit.subjects.node.collect.host import (
    Host,
    TooMuchError,
    at_most,
    known,
    observed,
    reading,
)
from securetrain.audit.subjects.node.facts.artifacts import (
    ENVIRONMENT,
    ChangedFile,
    IndexOption,
    IndexSource,
    RecordSample,
    Requirements,
)
from securetrain.audit.subjects.node.facts.node import EntryPoint, Package, Python, StartupFile

T = TypeVar("T")

_PIP_OPTIONS: Final = ("extra-index-url", "trusted-host", "index-url", "find-links")
_UNSAFE_UV: Final = re.compile(r"unsafe-(?:best|first)-match")
_URL: Final = re.compile(r"(?:([A-Za-z][\w+.-]*)://)?(?:[^@/]*@)?([^/:?#]*)")
"""Scheme and host; a user and a password are left out."""
_ASSIGNMENT: Final = re.compile(r"^([A-Za-z][\w-]*)\s*[=:]\s*(.*)$")
_OPTION: Final = re.compile(r"^--?([a-z][a-z-]*)[=\s]+(\S+)")
_MAX_INCLUDES: Final = 16
_MAX_LINES: Final = 50_000
_LOCK: Final = re.compile(r"(?:^|[.-])lock$|^pylock(?:\..+)?\.toml$")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}\b")
_SAMPLED_DISTRIBUTIONS: Final = 12
_SAMPLED_FILES: Final = 6
_SAMPLED_BYTES: Final = 4 << 20
_RECORD_BYTES: Final = 16 << 20
_RUNS: Final = (".py", ".so", ".pth")
_SHOWN: Final = 20
_SAME_EVERYWHERE: Final = re.compile(r"^(?:torch|triton|nvidia-(?:nccl|cuda-runtime|cudnn).*)$")
_DRIVER: Final = re.compile(r"\b\d{3}\.\d+(?:\.\d+)?\b")


# --- indexes -------------------------------------------------------------------------------------


def indexes(host: Host) -> tuple[IndexSource, ...]:
    """Everything that says where packages come from."""
    home, env = host.home, host.environ
    config = env.get("XDG_CONFIG_HOME") or f"{home}/.config"
    pip = ["/etc/pip.conf", "/etc/xdg/pip/pip.conf", f"{home}/.pip/pip.conf"]
    pip += [f"{config}/pip/pip.conf"]
    if env.get("VIRTUAL_ENV"):
        pip.append(f"{env['VIRTUAL_ENV']}/pip.conf")
    if env.get("PIP_CONFIG_FILE") and env["PIP_CONFIG_FILE"] != "/dev/null":
        pip.append(env["PIP_CONFIG_FILE"])
    uv = ["/etc/uv/uv.toml", f"{config}/uv/uv.toml"]
    return (
        IndexSource(outcome=Outcome.OK, path=ENVIRONMENT, options=tuple(_of_variables(host))),
        *(_source(host, path, _in_pip) for path in dict.fromkeys(pip)),
        *(_source(host, path, _in_uv) for path in uv),
        *(_source(host, one.path, _in_requirements) for one in host.named.requirements),
    )


def _source(host: Host, path: str, parse: Callable[[str], Iterator[IndexOption]]) -> IndexSource:
    return observed(IndexSource, lambda: {"options": tuple(parse(host.text(path)))}, path=path)


def _of_variables(host: Host) -> Iterator[IndexOption]:
    for option in _PIP_OPTIONS:
        value = host.environ.get(f"PIP_{option.upper().replace('-', '_')}", "")
        yield from _options(option, value)
    strategy = host.environ.get("UV_INDEX_STRATEGY", "")
    if _UNSAFE_UV.search(strategy):
        yield IndexOption(name="uv.index-strategy", host="")


def _in_pip(text: str) -> Iterator[IndexOption]:
    name = ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith(("#", ";", "[")):
            continue
        found = _ASSIGNMENT.match(line)
        if found:
            name = found[1].lower().replace("_", "-")
        value = found[2] if found else line if line[:1].isspace() else ""
        if name in _PIP_OPTIONS:
            yield from _options(name, value, number)


def _in_requirements(text: str) -> Iterator[IndexOption]:
    for number, line in enumerate(text.splitlines(), 1):
        found = _OPTION.match(line.strip())
        if found and found[1] in _PIP_OPTIONS:
            yield from _options(found[1], found[2], number)


def _in_uv(text: str) -> Iterator[IndexOption]:
    for number, line in enumerate(text.splitlines(), 1):
        found = _ASSIGNMENT.match(line.strip())
        if found and found[1] == "index-strategy" and _UNSAFE_UV.search(found[2]):
            yield IndexOption(name="uv.index-strategy", host="", line=number)


def _options(name: str, value: str, line: int = 0) -> Iterator[IndexOption]:
    """The options of one assignment; an index over https alone is none."""
    for word in value.split():
        url = _URL.match(word)
        scheme, host = (url[1] or "", url[2]) if url else ("", "")
        if scheme.lower() == "http" and not host.startswith("127."):
            yield IndexOption(name="pip.plain-http", host=host, line=line)
        if name in ("extra-index-url", "trusted-host"):
            yield IndexOption(name=f"pip.{name}", host=host, line=line)


# --- lists of packages ---------------------------------------------------------------------------


def requirements(host: Host) -> tuple[Requirements, ...]:
    """The lists of packages that the job names."""
    return tuple(
        Requirements(
            outcome=Outcome.OK, path=one.path, origin=one.origin, hashed=_hashed(host, one.path)
        )
        for one in host.named.requirements
    )


def _hashed(host: Host, path: str) -> Reading[bool]:
    is_lock = _LOCK.search(Path(path).name)
    found = reading(lambda: _in_lock(host, path) if is_lock else _without_hash(host, path, set()))
    # what was named and is not there is no answer
    outcome = Outcome.ERROR if found.outcome is Outcome.ABSENT else found.outcome
    is_hashed = found.value is None if outcome is Outcome.OK else None
    return Reading(outcome=outcome, reason=found.reason, value=is_hashed, at=found.value)


def _without_hash(host: Host, path: str, seen: set[str]) -> Location | None:
    """The first requirement without a digest, in a file and in those that it includes."""
    if path in seen:
        return None
    seen.add(path)
    at_most(_MAX_INCLUDES, seen, "files")
    lines = at_most(_MAX_LINES, host.text(path).splitlines(), f"lines in {path}")
    found = 0
    for number, line in _logical(lines):
        option = re.match(r"^(?:-r|--requirement)[=\s]+(\S+)", line)
        if option:
            below = option[1] if option[1].startswith("/") else f"{Path(path).parent}/{option[1]}"
            if place := _without_hash(host, below, seen):
                return place
            found += 1
        elif line.startswith("-") and not re.match(r"^(?:-e|--editable)\b", line):
            continue
        else:
            found += 1
            if "--hash=" not in line and "#sha256=" not in line:
                return Location(path=path, line=number)
    if not found:
        raise ValueError(f"{path} names no package")
    return None


def _logical(lines: list[str]) -> Iterator[tuple[int, str]]:
    whole, first = "", 0
    for number, raw in enumerate(lines, 1):
        line = re.sub(r"(?:^|\s)#(?!sha256=).*$", "", raw).strip()
        first = first if whole else number
        if line.endswith("\\"):
            whole += line[:-1] + " "
            continue
        whole = (whole + line).strip()
        if whole:
            yield first, whole
        whole = ""


def _in_lock(host: Host, path: str) -> Location | None:
    """The first package of a lock file of uv, poetry, pdm, pip or pipenv without a digest.

    Raises:
        ValueError: when it is no such file.
    """
    text = host.text(path, 16 << 20)
    try:
        packages = _packages_of(path, text)
    except (AttributeError, TypeError) as error:
        raise ValueError(f"{path} is no lock file: {error}") from error
    if not packages:
        raise ValueError(f"{path} names no package")
    for name, package in packages:
        written = str(package)
        local = re.search(r"'(?:virtual|editable|directory|develop)'", written)
        if not (local or "sha256" in written or _COMMIT.search(written)):
            line = next((n for n, t in enumerate(text.splitlines(), 1) if f'"{name}"' in t), 0)
            return Location(path=path, line=line)
    return None


def _packages_of(path: str, text: str) -> list[tuple[str, Any]]:
    if path.endswith("Pipfile.lock"):
        import json  # noqa: PLC0415 - one kind of file

        whole = json.loads(text)
        return [(n, p) for part in ("default", "develop") for n, p in whole.get(part, {}).items()]
    import tomllib  # noqa: PLC0415 - lock files only

    whole = tomllib.loads(text)
    listed = whole.get("package") or whole.get("packages") or []
    digests = whole.get("metadata", {}).get("files", {})  # poetry before 1.5, pdm before 2.8
    return [(one["name"], (one, digests.get(one["name"]))) for one in listed]


# --- what is installed ---------------------------------------------------------------------------


def records(host: Host) -> RecordSample:
    """Files of installed packages, hashed against their RECORD (rule 4).

    Raises:
        ValueError: when nothing that is installed has a RECORD.
    """
    found = installed(host)
    files, looked, changed = 0, 0, []
    for dist in _pick(found, len(found)):
        if looked == _SAMPLED_DISTRIBUTIONS:
            break
        listed = _listed(dist)
        picked = _pick(listed, _SAMPLED_FILES)
        looked += bool(picked)
        for name, digest in picked:
            path = Path(str(dist.locate_file(name)))
            if (same := _is_same(path, digest)) is not None:
                files += 1
                if not same:
                    distribution = name_and_version(dist)[0]
                    changed.append(ChangedFile(path=str(path), distribution=distribution))
    if not files:
        raise ValueError("nothing that is installed has a RECORD with digests")
    return RecordSample(files=files, distributions=looked, changed=tuple(changed[:_SHOWN]))


def _listed(dist: Distribution) -> list[tuple[str, str]]:
    """Files that run, and their digests, by the RECORD of a distribution.

    An editable one is somebody's working tree: RECORD says nothing of its code.
    """
    if re.search(r'"editable"\s*:\s*true', dist.read_text("direct_url.json") or ""):
        return []
    wanted = [line for line in _record(dist).splitlines() if ",sha256=" in line]
    rows = (line.rsplit(",", 2) for line in wanted)
    return [
        (row[0].strip('"'), row[1].removeprefix("sha256="))
        for row in rows
        if len(row) > 2 and row[0].strip('"').endswith(_RUNS)
    ]


def _record(dist: Distribution) -> str:
    """The list of the files of a distribution; empty without one."""
    text = dist.read_text("RECORD") or ""
    if len(text) > _RECORD_BYTES:
        raise TooMuchError(f"the RECORD of {dist.metadata['Name']} is larger than 16 MiB")
    return text


def _pick(items: list[T], most: int) -> list[T]:
    """Some of these, by the system's randomness; what will be looked at cannot be told before."""
    left = list(items)
    return [
        left.pop(int.from_bytes(os.urandom(8)) % len(left)) for _ in range(min(most, len(items)))
    ]


def _is_same(path: Path, digest: str) -> bool | None:
    """Return whether a file has its digest; None when it is too large or cannot be read."""

    def same() -> bool | None:
        if path.stat().st_size > _SAMPLED_BYTES:
            return None
        found = hashlib.sha256(path.read_bytes()).digest()
        return found == base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4))

    return known(same)  # what is not there runs nothing


def versions(host: Host) -> str:
    """One line of what every node of a job must agree on: Python, torch, NCCL, CUDA, driver."""
    found = [f"python {sys.version.split()[0]} {sys.implementation.name}"]
    found += [
        f"{name} {package.version}"
        for name, package in packages(host).items()
        if _SAME_EVERYWHERE.match(name)
    ]
    driver = reading(lambda: host.text("/proc/driver/nvidia/version", 4096))
    if driver.value:
        found += [f"driver {match[0]}" for match in [_DRIVER.search(driver.value)] if match]
    elif driver.outcome is not Outcome.ABSENT:
        raise ValueError(f"the driver is not known: {driver.reason}")
    return ", ".join(dict.fromkeys(sorted(found)))


def container_toolkit(host: Host) -> str:
    """The version of the NVIDIA Container Toolkit, by dpkg.

    Raises:
        FileNotFoundError: when it is not here.
        ValueError: when it is, and no package of dpkg says which.
    """
    programs = [path for path in _TOOLKIT if host.at(path).exists()]
    if not programs:
        host.refuse_hidden(_TOOLKIT[0])
        raise FileNotFoundError(2, "No such file or directory", _TOOLKIT[0])
    try:
        blocks = host.text("/var/lib/dpkg/status", 64 << 20).split("\n\n")
    except FileNotFoundError:
        blocks = []
    for block in blocks:
        if block.startswith("Package: nvidia-container-toolkit\n") and " installed\n" in block:
            version = re.search(r"^Version: (\S+)$", block, re.MULTILINE)
            if version:
                return re.sub(r"^\d+:|-[^-]*$", "", version[1])
    raise ValueError(f"{programs[0]} is here, and no package of dpkg: its version is not known")


_TOOLKIT: Final = (
    "/usr/bin/nvidia-container-cli",
    "/usr/bin/nvidia-container-runtime",
    "/usr/bin/nvidia-ctk",
    "/usr/local/nvidia/toolkit/nvidia-container-cli",
)


TORCHRUN_GROUP: Final = "torchrun.handlers"
_MAX_DISTRIBUTIONS: Final = 3000
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
    found = islice(distributions(path=list(host.search_path)), _MAX_DISTRIBUTIONS + 1)
    return at_most(_MAX_DISTRIBUTIONS, list(found), "distributions")


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
    return sorted(at_most(1000, found, "start-up files"))


def _claims(host: Host) -> dict[str, str]:
    """Map start-up files to the distributions whose RECORD lists them."""
    claims: dict[str, str] = {}
    for dist in installed(host):
        if ".pth" not in (record := _record(dist)) and "customize" not in record:
            continue  # nearly all: torch's alone has more than 10,000 lines
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
            text = known(partial(host.text, listing.relative_to(host.root))) or ""
            if candidates & set(text.splitlines()):
                return True
    return False
