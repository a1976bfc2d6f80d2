# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Takes what machines have proven into the signed reference values: by a person, or by a rule.

Rules:

1. what was proven is verified once more when it is signed, all of it, as `enrollment.enroll` does:
   the desk's word alone enrolls nobody;
2. a rule signs only machines that teach nothing to anybody (`Rule.SAME`), in no field of the
   reference values (`lessons`), or a group's first boot (`Rule.FIRST`); what would add to a group
   that has boots, or to what every group accepts, waits for a person who names the node. Where the
   machines of a new group do not all boot the same, none of them is the first;
3. what a machine alone measures (its boot entries and partition table: PCR 1 and PCR 5) is kept for
   that machine, and plays no part in that comparison;
4. all that is signed together is one edition. A machine that cannot be taken in is left out, with
   the reason, and keeps nobody else out.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path

from securetrain.attest.fleet.desk import Desk
from securetrain.attest.fleet.enrollment import LIFETIME, Edition, Roots, enroll, enroll_into
from securetrain.attest.fleet.entrants import WAITS, Proven
from securetrain.attest.fleet.lessons import enrollment_of, lesson
from securetrain.attest.session.reference_file import read_reference_values
from securetrain.attest.session.state import StateStore
from securetrain.core.errors import SecureTrainError, os_error
from securetrain.evidence import ReferenceValues
from securetrain.evidence.tpm import BootReference
from securetrain.identity.keys import PrivateKey


class Rule(StrEnum):
    """The rule by which proofs are signed without a person."""

    SAME = "same"
    """Those that boot what their image group boots already."""
    FIRST = "first"
    """Those, and the first boot of a group that has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A proof that a rule does not sign, or that cannot be signed."""

    proven: Proven
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """The outcome of one signing."""

    edition: Edition | None
    """None when nothing was to be signed."""
    held: tuple[Held, ...]


class CurrentValues:
    """The reference values as they stand, read anew when the file was replaced."""

    def __init__(self, path: Path, signed_by: Sequence[str], state: StateStore) -> None:
        """Remember where they are.

        Args:
            path: the file.
            signed_by: keys (SPKI, base64) of which one must have signed it.
            state: knows the editions that were accepted before.
        """
        self._path = path
        self._signed_by = tuple(signed_by)
        self._state = state
        self._lock = threading.Lock()
        self._read: tuple[tuple[int, ...], ReferenceValues] | None = None

    def __call__(self) -> ReferenceValues | None:
        """The edition; None before the first.

        Raises:
            AttestationError: ST-ATTS-009, 015 or 017.
        """
        with self._lock:
            try:
                info = self._path.stat()
            except FileNotFoundError:
                return None
            except OSError as error:
                raise os_error(error, str(self._path)) from error
            stamp = (info.st_ino, info.st_size, info.st_mtime_ns)
            if self._read is None or self._read[0] != stamp:
                found = read_reference_values(self._path, self._signed_by, self._state)
                self._read = stamp, found.values
            return self._read[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """Everything that signing needs but the proofs."""

    path: Path
    """The reference values' file."""
    key: PrivateKey
    signed_by: tuple[str, ...]
    """Keys (SPKI, base64) of which one must have signed what is there."""
    state: StateStore
    clock: Callable[[], datetime]
    lifetime: timedelta = LIFETIME

    def current(self) -> ReferenceValues | None:
        """The last edition; None before the first.

        Raises:
            AttestationError: ST-ATTS-009, 015 or 017.
        """
        return CurrentValues(self.path, self.signed_by, self.state)()

    def sign_by_rule(self, desk: Desk, rule: Rule) -> Taken:
        """Sign what a rule allows.

        Raises:
            SecureTrainError: as `sign`.
        """
        good, held = sort_out(
            desk.waiting(), self.current(), rule, roots=desk.roots, now=self.clock()
        )
        taken = self.sign(desk, good, by=rule.value)
        return Taken(edition=taken.edition, held=(*held, *taken.held))

    def sign(self, desk: Desk, chosen: Sequence[Proven], *, by: str = "person") -> Taken:
        """Write the next edition with these machines, then take them off the desk.

        A kill in between leaves both: signing them again changes nothing but the version.

        Raises:
            AttestationError: ST-ATTS-009, 018; ST-ATTS-015 or 017 about the state.
            AdmissionError: ST-ADMN-022 or 023.
        """
        now = self.clock()
        desk.check_time(now)
        old = [one for one in chosen if now >= one.answered + WAITS]
        late = [Held(proven=one, why=f"it waits for more than {WAITS.days} days") for one in old]
        good = [one for one in chosen if one not in old]
        if not good:
            return Taken(edition=None, held=tuple(late))
        held: list[Held] = []
        edition: Edition | None
        try:
            edition = self._write(desk, good, now)
        except SecureTrainError:
            good, held = self._apart(desk, good, now)
            if not held:
                raise  # of none alone: the file, the disk, the key
            edition = self._write(desk, good, now) if good else None
        if edition is not None:
            desk.settle(good, now, version=edition.values.version, by=by)
        return Taken(edition=edition, held=(*late, *held))

    def _write(self, desk: Desk, chosen: Sequence[Proven], now: datetime) -> Edition:
        return enroll_into(
            self.path,
            [enrollment_of(one) for one in chosen],
            key=self.key,
            signed_by=self.signed_by,
            roots=desk.roots,
            now=now,
            lifetime=self.lifetime,
            state=self.state,
        )

    def _apart(
        self, desk: Desk, chosen: Sequence[Proven], now: datetime
    ) -> tuple[list[Proven], list[Held]]:
        """One after the other, to find those that cannot be taken in."""
        values, good, held = self.current(), [], []
        for one in chosen:
            try:
                made = enroll(
                    values,
                    [enrollment_of(one)],
                    roots=desk.roots,
                    now=now,
                    lifetime=self.lifetime,
                )
            except SecureTrainError as error:
                held.append(Held(proven=one, why=f"{error.code}: {error.what}"))
            else:
                values = made.values
                good.append(one)
        return good, held


def sort_out(
    waiting: Sequence[Proven],
    values: ReferenceValues | None,
    rule: Rule,
    *,
    roots: Roots,
    now: datetime,
) -> tuple[list[Proven], list[Held]]:
    """Apply a rule; gives what it signs, and what it leaves to a person."""
    good: list[Proven] = []
    held: list[Held] = []
    groups: dict[str, list[Proven]] = {}
    for one in waiting:
        groups.setdefault(one.group, []).append(one)
    for name, members in groups.items():
        known = values
        if rule is Rule.FIRST and not _has_boot(values, name):
            known, why = _first(values, members, roots, now)
            if why:
                held += [Held(proven=one, why=why) for one in members]
                continue
        is_known = _has_boot(known, name)
        for one in members:
            why = "the image group has no boot yet"
            if is_known:
                found = lesson(known, one, roots, now)
                why = found.refused or shown(found.adds)
            if why:
                held.append(Held(proven=one, why=why))
            else:
                good.append(one)
        if good:  # what one group has taught the fleet, the next one need not teach
            values = known
    return good, held


def _first(
    values: ReferenceValues | None, members: Sequence[Proven], roots: Roots, now: datetime
) -> tuple[ReferenceValues | None, str]:
    """The values with the boot of a group's first machines, or why it is no rule's to take it."""
    first = lesson(values, members[0], roots, now)
    if first.refused:
        return values, first.refused
    if values is not None and (weaker := [n for n in first.of_fleet if not _is_new(values, n)]):
        return values, f"it adds to what every image group accepts: {', '.join(weaker)}"
    for one in members[1:]:
        if other := lesson(first.values, one, roots, now).adds:
            names = f"{members[0].node} and {one.node} differ in {', '.join(other)}"
            return values, f"the group's first machines do not boot the same: {names}"
    return first.values, ""


def _is_new(values: ReferenceValues, where: str) -> bool:
    """Tell a field of a section that nothing has been learned for."""
    section = where.split(".", 1)[0]
    found = getattr(values, section)
    return bool(found == type(found)())


def _has_boot(values: ReferenceValues | None, group: str) -> bool:
    """Tell whether something was learned of an image group's boots."""
    if values is None or (group and group not in values.groups):
        return False
    return values.group(group).boot != BootReference()


def shown(new: Mapping[str, tuple[str, ...]]) -> str:
    """A line about the values that a boot would add to its group; empty for none."""
    if not new:
        return ""
    parts = (f"{name} {entries[0][:48]}" for name, entries in new.items())
    return "it boots what its image group does not: " + "; ".join(parts)
