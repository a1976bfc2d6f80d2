# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about the checkpoints and datasets that a job names (`named`).

Signatures are judged by the verifier and pickles by the scanner; both say what they found, and the
facts keep it. Rules:

1. a named folder is an artifact when a statement or a file that is no folder lies in it; else each
   of its sub-folders is; with neither, it is an artifact about which nothing is known;
2. without a trust root nothing is known about signatures;
3. a link in a named folder, and a text like ``latest``, is a pointer, and is never followed.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from securetrain.audit.facts import Outcome, Reading
from securetrain.audit.subjects.node.collect.host import (
    Host,
    NamedPath,
    TooMuchError,
    at_most,
    outcome_of,
    reading,
)
from securetrain.audit.subjects.node.facts.artifacts import (
    ArtifactProblem,
    Artifacts,
    Checkpoint,
    Dataset,
    Pointer,
)
from securetrain.core.errors import SecureTrainError, UsageError
from securetrain.core.files import read_file

if TYPE_CHECKING:
    from securetrain.artifacts import spot
    from securetrain.identity.trust import TrustRoot

T = TypeVar("T", Checkpoint, Dataset)

MAX_ARTIFACTS: Final = 64
MAX_POINTERS: Final = 256
_SHOWN: Final = 20
_LATEST: Final = re.compile(r"^(?:latest|last)(?:[_.-].*)?$|^checkpoint$")
_LATEST_LIMIT: Final = 4096
_PROGRAMS: Final = (".py", ".sh", ".so", ".ipynb")
_EMPTY: Final = "nothing is in it"


def artifacts(host: Host) -> Artifacts:
    """Everything that the job names."""
    given = host.named
    if not given.checkpoints and not given.datasets:
        return Artifacts(checkpoints=(), datasets=(), pointers=())
    look = _Look(host, _trust(host), datetime.now(UTC))
    return Artifacts(
        checkpoints=tuple(_each(host, given.checkpoints, look.checkpoint)),
        datasets=tuple(_each(host, given.datasets, look.dataset)),
        pointers=tuple(_pointers(host, given.checkpoints)),
    )


def _trust(host: Host) -> "Reading[TrustRoot]":
    named = host.named.trust
    if named is None:
        reason = "no trust root is named: --trust, the job's trust or SECURETRAIN_TRUST"
        return Reading(outcome=Outcome.ERROR, reason=reason)
    from securetrain.identity.trust import TrustRoot  # noqa: PLC0415 - only for what is named

    path = host.at(named.path)
    file = path / "root.json" if path.is_dir() else path
    return _known(lambda: TrustRoot.load(file, datetime.now(UTC)))


def _known(look: Callable[[], Any]) -> Reading[Any]:
    """The reading of a look at something; no error of ours is an answer."""
    try:
        return reading(look)
    except SecureTrainError as error:
        cause = error.__cause__
        outcome = outcome_of(cause)[0] if isinstance(cause, OSError) else Outcome.ERROR
        return Reading(outcome=outcome, reason=f"{error.code}: {error.what}")


@dataclass(frozen=True, slots=True)
class _Look:
    """A look at artifacts."""

    host: Host
    trust: "Reading[TrustRoot]"
    now: datetime

    def checkpoint(self, path: str, origin: str, why: Reading[Any] | None = None) -> Checkpoint:
        """A checkpoint; `why` says that it is named and nothing is known about it."""
        checked, scanned = self._look(path, why)
        return Checkpoint(
            **_common(path, origin, checked, scanned),
            ordered=_map(checked, lambda spotted: spotted.ordered),
            unsafe=_unsafe(scanned),
        )

    def dataset(self, path: str, origin: str, why: Reading[Any] | None = None) -> Dataset:
        """A dataset, likewise."""
        checked, scanned = self._look(path, why)
        programs = _known(lambda: _programs(self.host.at(path))) if why is None else why
        return Dataset(
            **_common(path, origin, checked, scanned),
            intact=_intact(checked),
            sampled_bytes=checked.value.sampled if checked.value else 0,
            programs=_map(programs, lambda names: names),
        )

    def _look(
        self, path: str, why: Reading[Any] | None
    ) -> "tuple[Reading[spot.Spotted], Reading[spot.SpotScan]]":
        if why is not None:
            return why, why
        from securetrain.artifacts import spot  # noqa: PLC0415 - named ones only

        place = self.host.at(path)
        checked: Reading[Any] = self.trust
        if (trust := self.trust.value) is not None:
            checked = _known(lambda: spot.spot_check(place, trust=trust, now=self.now))
        return checked, _known(lambda: spot.spot_scan(place))


def _each(
    host: Host, names: tuple[NamedPath, ...], look: Callable[[str, str, Reading[Any] | None], T]
) -> Iterator[T]:
    """Look at the artifacts at each named path (rule 1)."""
    for name in names:
        listed = _known(partial(_listing, host, name.path))
        if not listed.value:
            yield look(name.path, name.origin, listed if listed.reason else _error(_EMPTY))
        for path in listed.value or ():
            yield look(path, name.origin, None)


def _common(
    path: str, origin: str, checked: "Reading[spot.Spotted]", scanned: "Reading[spot.SpotScan]"
) -> dict[str, Any]:
    """The fields that every artifact has."""
    there = scanned if scanned.value is None else checked
    return {
        "outcome": _not_absent(there.outcome),
        "reason": there.reason,
        "path": path,
        "origin": origin,
        "signed": _signed(checked),
        "problems": _problems(checked.value.problems if checked.value else ()),
        "pickles": _pickles(scanned),
    }


def _pickles(scanned: "Reading[spot.SpotScan]") -> Reading[Any]:
    """Pickles that were found; where none was, and not all was looked into, nothing is known."""
    if scanned.value is not None and scanned.value.unseen and not scanned.value.pickles:
        return _error(scanned.value.unseen)
    return _map(scanned, lambda scan: scan.pickles[:_SHOWN])


def _signed(checked: "Reading[spot.Spotted]") -> Reading[bool]:
    """The verifier's answer; that something cannot be read is none."""
    problems = checked.value.problems if checked.value else ()
    if problems and all(one.code.endswith("-200") for one in problems):
        return _error(f"{problems[0].code}: {problems[0].what}")
    return _map(checked, lambda spotted: not spotted.problems)


def _map(reading: Reading[Any], of: Callable[[Any], Any]) -> Reading[Any]:
    if reading.value is None:
        return Reading(outcome=_not_absent(reading.outcome), reason=reading.reason)
    return Reading(outcome=Outcome.OK, value=of(reading.value))


def _not_absent(outcome: Outcome) -> Outcome:
    """A named thing that went away is no answer about it."""
    return Outcome.ERROR if outcome is Outcome.ABSENT else outcome


def _error(reason: str) -> Reading[Any]:
    return Reading(outcome=Outcome.ERROR, reason=reason)


def _intact(checked: "Reading[spot.Spotted]") -> Reading[bool]:
    spotted = checked.value
    if spotted is not None and spotted.damage is None and not spotted.sampled:
        return _error("no content was sampled: the dataset does not verify, or has none")
    return _map(checked, lambda spotted: spotted.damage is None)


def _unsafe(scanned: "Reading[spot.SpotScan]") -> Reading[Any]:
    """Things that run; where none does and something could not be judged, nothing is known."""
    scan = scanned.value
    if scan is not None and scan.unjudged and not scan.unsafe:
        return _error(scan.unjudged)
    return _map(scanned, lambda scan: _problems(scan.unsafe))


def _problems(found: Sequence[Any]) -> tuple[ArtifactProblem, ...]:
    return tuple(
        ArtifactProblem(code=one.code, what=one.what, file=one.file) for one in found[:_SHOWN]
    )


def _listing(host: Host, path: str) -> list[str]:
    """The artifacts in a folder: itself, or its sub-folders.

    Raises:
        OSError: when it is not there or cannot be listed.
        TooMuchError: when it has more than `MAX_ARTIFACTS`.
    """
    place = host.at(path)
    if not place.is_dir():
        place.stat()
        raise ValueError("no directory")
    with os.scandir(place) as entries:
        found = sorted(
            (entry.name, entry.is_dir(follow_symlinks=False), entry.is_symlink())
            for entry in entries
            if not entry.name.startswith(".") or entry.name == ".metadata"
        )
    files = [name for name, folder, link in found if not folder and not link]
    if any(not _LATEST.match(name) and name not in _BESIDE for name in files):
        return [path]
    folders = [f"{path}/{name}" for name, folder, _ in found if folder]
    return at_most(MAX_ARTIFACTS, folders, f"artifacts in {path}: name one of them")


_BESIDE: Final = frozenset({"head.json", "head.json.sig"})
"""Files that belong to a run of checkpoints and not to one of them."""


def _programs(place: Path) -> tuple[str, ...]:
    """Names of scripts and libraries below a folder.

    Raises:
        OSError: when a part of it cannot be listed.
        TooMuchError: when it has more than 20,000 files.
    """
    found, seen = [], 0
    for folder, _, names in os.walk(place, onerror=_raise):
        seen += len(names)
        if seen > 20_000:
            raise TooMuchError(f"more than 20000 files in {place}")
        here = Path(folder).relative_to(place)
        found += [str(here / name) for name in names if name.endswith(_PROGRAMS)]
    return tuple(sorted(found)[:_SHOWN])


def _raise(error: OSError) -> None:
    raise error


def _pointers(host: Host, named: tuple[NamedPath, ...]) -> Iterator[Pointer]:
    """Links and texts that name a checkpoint, to a depth of two (rule 3)."""
    count = 0
    for one in named:
        root = host.at(one.path)
        for place, error in _two_levels(root):
            shown = one.path if place == root else f"{one.path}/{place.relative_to(root)}"
            if error is not None:  # a folder with links that nobody here sees
                outcome, reason = outcome_of(error)
                yield Pointer(outcome=outcome, reason=reason, path=shown, target="", inside=None)
            elif place.is_symlink():
                yield _link(place, root, shown)
            elif _LATEST.match(place.name) and not place.is_dir():
                yield _text(place, shown)
            else:
                continue
            count += 1
            if count > MAX_POINTERS:
                raise TooMuchError(f"more than {MAX_POINTERS} links in {one.path}")


def _two_levels(root: Path) -> Iterator[tuple[Path, OSError | None]]:
    """The content of a folder and of its folders, and folders that cannot be listed."""
    if not root.is_dir():
        return
    for place, error in _inside(root):
        yield place, error
        if error is None and place.is_dir() and not place.is_symlink():
            yield from _inside(place)


def _inside(folder: Path) -> Iterator[tuple[Path, OSError | None]]:
    try:
        yield from ((place, None) for place in sorted(folder.iterdir()))
    except PermissionError as error:
        yield folder, error


def _link(place: Path, root: Path, shown: str) -> Pointer:
    target = str(place.readlink())
    there = os.path.realpath(place)
    inside = Path(there).is_relative_to(os.path.realpath(root))
    return Pointer(outcome=Outcome.OK, path=shown, target=target, inside=inside)


def _text(place: Path, shown: str) -> Pointer:
    """A file like DeepSpeed's ``latest``: the name of a folder beside it."""
    try:
        data = read_file(place, _LATEST_LIMIT).decode("utf-8", "backslashreplace")
    except UsageError as error:
        return Pointer(outcome=Outcome.ERROR, reason=error.what, path=shown, target="", inside=None)
    target = data.strip()
    quoted = re.findall(r'"([^"\n]*)"', target)  # TensorFlow's: model_checkpoint_path: "..."
    inside = all(
        not name.startswith("/") and ".." not in Path(name).parts
        for name in (quoted or target.splitlines())
    )
    return Pointer(outcome=Outcome.OK, path=shown, target=target[:200], inside=inside)
