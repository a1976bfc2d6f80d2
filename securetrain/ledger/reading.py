# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Read a verified ledger: its typed events, and the entries that count for nothing.

Rules, for each entry whose chain and signature hold:

1. it is decoded strictly (`events.decode_event`); one that is no known event is ignored;
2. the trust root says which role a key has (``ledger-coordinator``, ``ledger-launcher``,
   ``ledger-rank``, ``ledger-worker``); an event under the key of a role that may not write it is
   ignored, and so is every event of a key without a role;
3. a trust root that names no roles at all is older than they are: every key of the role ``ledger``
   may write everything, and the reading says so (`Reading.names_writers`);
4. the first line names the run and the keys of its trust root (`events.LedgerStarted`). A ledger
   without it, or of another trust root, has no beginning, and the reading says so
   (`Reading.begun`): it is of an earlier version, or somebody began it again;
5. nothing is ignored in silence: whoever reads a ledger reports `Reading.ignored`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from securetrain.core.vocabulary import Boundary
from securetrain.identity.trust import TrustRole, TrustRoot
from securetrain.ledger.events import Closed, LedgerEvent, LedgerStarted, WriterRole, decode_event
from securetrain.ledger.log import VerifiedLedger, root_keys, verify_ledger
from securetrain.ledger.wire import Entry


@dataclass(frozen=True, slots=True)
class Writers:
    """The roles of the keys that may write a ledger."""

    roles: Mapping[str, frozenset[WriterRole]]
    """By key id; empty when nobody has said."""

    @classmethod
    def of(cls, trust: TrustRoot) -> "Writers":
        """Read the roles that a trust root names."""
        found: dict[str, frozenset[WriterRole]] = {}
        for role in WriterRole:
            for key_id in trust.keys_for(TrustRole(f"ledger-{role}")):
                found[key_id] = found.get(key_id, frozenset()) | {role}
        return cls(found)

    @property
    def named(self) -> bool:
        """Tell whether anybody has said."""
        return bool(self.roles)

    def may(self, key_id: str, kind: type[LedgerEvent]) -> bool:
        """Tell whether a key may write an event."""
        return not self.named or bool(self.roles.get(key_id, frozenset()) & kind.WRITERS)

    def of_key(self, key_id: str) -> str:
        """A key's roles, for people."""
        held = self.roles.get(key_id)
        return f"a key of {' and '.join(sorted(held))}" if held else "a key without a role"


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event that counts, and the line that it stands in."""

    event: LedgerEvent
    entry: Entry

    @property
    def time(self) -> datetime:
        """The time of writing, by its writer's word."""
        return self.entry.body.time


@dataclass(frozen=True, slots=True)
class Ignored:
    """A signed line that counts for nothing, and why."""

    entry: Entry
    reason: str
    foreign: bool = False
    """Whether its key may not write such an event; else the event is not known here."""

    @property
    def boundary(self) -> Boundary:
        """The boundary that it claims."""
        return self.entry.body.event.boundary

    def __str__(self) -> str:
        """Give one line for people."""
        body = self.entry.body
        return f"entry {body.seq} ({body.event.event[:60]}) is ignored: {self.reason[:200]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The content of a ledger."""

    verified: VerifiedLedger
    recorded: tuple[Recorded, ...]
    ignored: tuple[Ignored, ...]
    names_writers: bool
    """Whether the trust root says which key may write what."""
    begun: bool
    """Whether it has its beginning, of the trust root that it was read with; that line is no event
    of the run.
    """
    policy: str = ""
    """The digest of the policy that its beginning names."""

    @property
    def events(self) -> tuple[LedgerEvent, ...]:
        """The events that count."""
        return tuple(line.event for line in self.recorded)

    @property
    def closed(self) -> bool:
        """Tell whether the last line ends the ledger, and was written by somebody who may."""
        last = self.recorded[-1] if self.recorded else None
        return (
            last is not None
            and isinstance(last.event, Closed)
            and last.entry is self.verified.entries[-1]
        )


def judge(entry: Entry, writers: Writers) -> Recorded | Ignored:
    """Decode an entry whose signature holds, or say why it counts for nothing."""
    try:
        said = decode_event(entry.body.event)
    except ValueError as error:  # msgspec's errors are among them
        return Ignored(entry, f"not an event that is known here: {error}")
    if writers.may(entry.keyid, type(said)):
        return Recorded(said, entry)
    who = writers.of_key(entry.keyid)
    return Ignored(entry, f"written under {who}, which may not write it", foreign=True)


def read_events(verified: VerifiedLedger, writers: Writers, roots: str | None = None) -> Reading:
    """Decode a verified ledger; no entry makes it fail.

    Args:
        verified: The ledger.
        writers: Which key may write what.
        roots: The keys of the trust root, as its beginning names them; None for any.
    """
    recorded: list[Recorded] = []
    ignored: list[Ignored] = []
    begun, policy = False, ""
    for number, entry in enumerate(verified.entries):
        match judge(entry, writers):
            case Recorded(event=LedgerStarted() as said) if number == 0:
                begun, policy = roots in {None, said.roots}, said.policy
            case Recorded() as line:
                recorded.append(line)
            case line:
                ignored.append(line)
    return Reading(
        verified=verified,
        recorded=tuple(recorded),
        ignored=tuple(ignored),
        names_writers=writers.named,
        begun=begun,
        policy=policy,
    )


def read_ledger(data: bytes, trust: TrustRoot, *, where: str = "") -> Reading:
    """Verify a ledger against a trust root and read it.

    Raises:
        IntegrityError: ST-LEDG-001 to 004; see `verify_ledger`.
    """
    verified = verify_ledger(data, trust.keys_for(TrustRole.LEDGER), where=where)
    return read_events(verified, Writers.of(trust), root_keys(trust))
