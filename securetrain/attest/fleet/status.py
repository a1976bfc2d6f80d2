# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The state of a fleet at a moment: its nodes, who is barred, what is about to end.

Rules:

1. everything comes from something verified: reference values and cache by their signatures, bars
   and clocks by the seal, leases from ledgers under their runs' trust roots. What cannot be read is
   a problem that is told, and never an empty list;
2. a lease is told from the ledger: its last evidence, and the policy's length of a lease;
3. nothing is changed, accepted or fetched.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from securetrain.attest.fleet.cache_files import list_cache
from securetrain.attest.session import Revocation, SealedState, read_reference_values
from securetrain.attest.session.appraisers import reference_folder
from securetrain.attest.session.endings import Ending, endings_of_cache, endings_of_values
from securetrain.core import RunDir
from securetrain.core.errors import SecureTrainError
from securetrain.core.files import read_file
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence import ReferenceValues
from securetrain.identity import ClusterCA, SpiffeId
from securetrain.identity.trust import TrustRoot
from securetrain.ledger import events, read_ledger
from securetrain.policy.load import LoadedPolicy

SOON: Final = timedelta(days=14)
"""What ends so soon should be made anew."""
LEDGER_LIMIT: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine."""

    name: str
    group: str = ""
    """Its image group; empty for none."""
    enrolled: bool = False
    hardware: tuple[str, ...] = ()
    """``ek:HEX`` and ``chip:HEX``: what it is enrolled with, and TPMs seen under its name."""
    tier: NodeTier | None = None
    """By its last evidence in the runs that were looked at."""
    job: str = ""
    lease: datetime | None = None
    """The end of its lease; None when it holds none, or left."""
    evidence: datetime | None = None
    """The time of its last accepted evidence, in any run."""
    barred: str = ""
    """The reason, when it or its hardware is let in no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStatus:
    """A fleet at a moment."""

    at: datetime
    place: str
    """The folder or database of its state."""
    version: int
    """Of the sealed part of its state."""
    nodes: tuple[Node, ...] = ()
    """By name."""
    revoked: tuple[Revocation, ...] = ()
    endings: tuple[Ending, ...] = ()
    """The first to end first."""
    problems: tuple[str, ...] = ()
    """Parts that could not be read: code and reason."""

    @property
    def soon(self) -> tuple[Ending, ...]:
        """Those that have ended, or end within `SOON`; leases and tokens are short and left out."""
        short = {"lease", "token"}
        return tuple(
            one for one in self.endings if one.kind not in short and one.ends - self.at < SOON
        )

    @property
    def leases(self) -> int:
        """The number of leases that are not over."""
        return sum(node.lease is not None and node.lease > self.at for node in self.nodes)

    @property
    def complete(self) -> bool:
        """Tell whether everything could be read and nothing ends soon."""
        return not self.problems and not self.soon


@dataclass(slots=True)
class _Seen:
    """The last word of the ledgers on a node."""

    tier: NodeTier | None = None
    job: str = ""
    evidence: datetime | None = None
    holds: bool = False


@dataclass(slots=True)
class _Gathering:
    """A status that is being put together."""

    now: datetime
    values: ReferenceValues | None = None
    seen: dict[str, _Seen] = field(default_factory=dict)
    endings: list[Ending] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def problem(self, what: str, error: SecureTrainError) -> None:
        self.problems.append(f"{what}: {error.code}: {error.what}")


def fleet_status(
    state: SealedState,
    now: datetime,
    *,
    policy: LoadedPolicy | None = None,
    runs: Sequence[Path] = (),
    ca: Path | None = None,
) -> FleetStatus:
    """Look at a fleet.

    Args:
        state: of the fleet.
        now: the time, timezone-aware.
        policy: names its reference values and the length of a lease.
        runs: directories of coordinators' runs, which know of leases.
        ca: the cluster CA's folder, which knows of certificates and tokens.

    Raises:
        AttestationError: ST-ATTS-015 and 017: without the state nothing is known.
    """
    found = _Gathering(now)
    if policy is not None:
        _values(found, policy, state)
    else:
        found.problems.append("reference values: no policy was named, so nobody is known to them")
    for run in runs:
        _run(found, run)
    if ca is not None:
        _ca(found, ca)
    revoked = tuple(state.revocations())
    nodes = tuple(_nodes(found, state, revoked, policy))
    leases = [Ending(kind="lease", name=node.name, ends=node.lease) for node in nodes if node.lease]
    return FleetStatus(
        at=now,
        place=state.place,
        version=state.version,
        nodes=nodes,
        revoked=revoked,
        endings=tuple(sorted(found.endings + leases, key=lambda one: (one.ends, one.name))),
        problems=tuple(found.problems),
    )


def _values(found: _Gathering, policy: LoadedPolicy, state: SealedState) -> None:
    wanted = policy.policy.node.reference_values
    if wanted is None:
        return
    try:
        folder = reference_folder(policy)
        path = folder / wanted.file
        values = read_reference_values(path, wanted.signed_by, state).values
    except SecureTrainError as error:
        found.problem("reference values", error)
        return
    found.values = values
    found.endings.extend(endings_of_values(values, str(path), found.now))
    if wanted.cache is None:
        return
    try:
        listing = list_cache(folder / wanted.cache, wanted.signed_by, found.now, state)
    except SecureTrainError as error:
        found.problem("cache", error)
        return
    found.endings.extend(endings_of_cache(listing.index, folder / wanted.cache))


def _run(found: _Gathering, place: Path) -> None:
    run = RunDir(place)
    try:
        trust = TrustRoot.load(run.trust, found.now)
        reading = read_ledger(read_file(run.ledger, LEDGER_LIMIT), trust, where=str(run.ledger))
    except SecureTrainError as error:
        found.problem(f"run {place.name}", error)
        return
    if reading.ignored:
        found.problems.append(f"run {place.name}: {reading.ignored[0]}")
    for line in reading.recorded:
        said = line.event
        seen = found.seen.setdefault(node_name(said.subject), _Seen())
        if isinstance(said, events.NodeAdmitted | events.LeaseRenewed):
            if seen.evidence is None or line.time >= seen.evidence:
                seen.tier, seen.job = said.tier, place.name
                seen.evidence, seen.holds = line.time.astimezone(UTC), True
        elif isinstance(said, events.NodeLeft | events.NodeEvicted) and seen.job == place.name:
            seen.holds = False
        elif isinstance(said, events.JobClosed | events.Closed):
            for other in found.seen.values():
                other.holds = other.holds and other.job != place.name
    found.seen = {name: seen for name, seen in found.seen.items() if seen.evidence is not None}


def node_name(subject: str) -> str:
    """The node in an event's subject, which is its SPIFFE id once it was proven."""
    try:
        return SpiffeId.parse(subject).node or subject
    except SecureTrainError:
        return subject


def _ca(found: _Gathering, folder: Path) -> None:
    try:
        cluster = ClusterCA.load(folder, found.now)
    except SecureTrainError as error:
        found.problem("certificate authority", error)
        return
    try:
        newest = {one.spiffe: one for one in cluster.register.issued()}
        found.endings.extend(
            Ending(kind="certificate", name=one.spiffe, ends=one.ends.astimezone(UTC))
            for one in newest.values()
            if one.ends > found.now - SOON
        )
        found.endings.append(
            Ending(
                kind="certificate",
                name=f"the CA of {cluster.trust_domain}",
                ends=cluster.certificate.not_valid_after_utc,
            )
        )
        found.endings.extend(
            Ending(kind="token", name=f"{one.node} of {one.job}", ends=one.ends.astimezone(UTC))
            for one in cluster.register.invitations()
            if one.ends > found.now
        )
    except SecureTrainError as error:
        found.problem("certificate authority", error)
    finally:
        cluster.close()


def _nodes(
    found: _Gathering,
    state: SealedState,
    revoked: Sequence[Revocation],
    policy: LoadedPolicy | None,
) -> Iterable[Node]:
    domain = policy.policy.identity.trust_domain if policy is not None else ""
    lease = timedelta(minutes=policy.policy.node.lease_minutes) if policy is not None else None
    reasons = {entry.subject: entry.reason for entry in revoked}
    clocks = {last.ek_name: last for last in state.clocks()}
    enrolled = found.values.nodes if found.values is not None else {}
    by_node: dict[str, list[str]] = {}
    for last in clocks.values():
        by_node.setdefault(last.node, []).append(last.ek_name)
    for name in sorted({*enrolled, *found.seen, *by_node}):
        entry = enrolled.get(name)
        hardware = list(by_node.get(name, ()))
        if entry is not None:
            own = [f"ek:{one}" for one in entry.ek_names]
            own += [f"chip:{chip}" for chip in entry.chips]
            hardware = list(dict.fromkeys([*own, *hardware]))
        seen = found.seen.get(name, _Seen())
        yield Node(
            name=name,
            group=entry.group if entry is not None else "",
            enrolled=entry is not None,
            hardware=tuple(hardware),
            tier=seen.tier,
            job=seen.job,
            lease=_lease(seen, lease),
            evidence=_latest(seen, [clocks[one].seen for one in hardware if one in clocks]),
            barred=_barred(reasons, domain, name, hardware),
        )


def _lease(seen: _Seen, length: timedelta | None) -> datetime | None:
    if length is None or seen.evidence is None or not seen.holds:
        return None
    return seen.evidence + length


def _latest(seen: _Seen, told: Sequence[str]) -> datetime | None:
    times = [datetime.fromisoformat(text).astimezone(UTC) for text in told]
    return max([*times, *([seen.evidence] if seen.evidence else [])], default=None)


def _barred(reasons: Mapping[str, str], domain: str, name: str, hardware: Sequence[str]) -> str:
    subjects = [f"node:{domain}/{name}"] if domain else []
    if not domain:
        subjects = [one for one in reasons if one.startswith("node:") and one.endswith(f"/{name}")]
    for subject in (*subjects, *hardware):
        if subject in reasons:
            return reasons[subject]
    return ""
