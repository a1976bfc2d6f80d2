# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The verifier: judge one node's evidence under one policy.

Rules, in order:

1. a node that was revoked, by name or by its TPM, is not even challenged;
2. the nonce is one of ours, younger than 30 seconds and used once; it is spent by the attempt,
   whatever comes of it, and belongs to the node that it was made for;
3. the media type is known, and the node's identity key signed body and binding: nothing is parsed
   before;
4. the binding equals what the verifier computes from its own view of the connection;
5. an appraiser for that media type judges the body; the tier follows from what verified, never from
   a field of the evidence;
6. the policy: tier, exception for unattested nodes with its number and its last day;
7. one TPM has one lease: a second node with the same one is refused;
8. a renewal is judged against what the lease began with. A verifier that does not hold the lease
   (restarted, or the lease is over) asks for full evidence again, and so does one whose reference
   values were signed again meanwhile (`values_watch`);
9. evidence that contradicts itself or a reference value during a lease revokes the node and its TPM
   until a person lets them in again. Quotes of two machines under one TPM do so at any time;
10. an unexpected error in any of these is a refusal.
"""

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Protocol

import msgspec

from securetrain.attest.session.state import MemoryState, Revocation, StateStore
from securetrain.core.errors import AdmissionError, AttestationError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence import (
    APPRAISERS,
    NONCE_SIZE,
    Appraiser,
    Ask,
    AttestationKeys,
    AttestationResult,
    Binding,
    Evidence,
    Exchange,
    Fetch,
    Lease,
    Opening,
    Remembered,
    appraise_evidence,
    check_tier,
)
from securetrain.identity.keys import PublicKey
from securetrain.policy.schema import Policy

NONCE_LIFE: Final = 30.0
MAX_NONCES: Final = 4096


def machine_uptime() -> tuple[str, int]:
    """The kernel's id of this boot, and milliseconds since it began, suspends included."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    # A time namespace has an uptime of its own.
    own = Path("/proc/self/ns/time")
    namespace = own.stat().st_ino if own.exists() else 0
    return f"{boot}:{namespace}", time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 10**6


class Challenge(msgspec.Struct, frozen=True, kw_only=True):
    """A challenge to a node."""

    nonce: bytes
    ask: Ask
    ak_name: bytes
    """Name of the attestation key that the evidence will be signed with; empty without one."""


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """The verifier's part of an exchange that is over."""

    secret: bytes = b""
    """Of the credential that the node's TPM opened; empty without one, and on a renewal."""
    documents: tuple[bytes, ...] = ()
    """The signed reference values, and the documents that they name."""


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A challenge that waits for its answer."""

    node: str
    deadline: float
    ask: Ask
    secret: bytes = b""
    opening: Opening | None = None
    lease: Lease | None = None
    past: tuple[Remembered, ...] = ()
    """The TPM's accepted quotes when it was asked: of several jobs that ask it at once, one may
    hear a later quote first."""


class Watch(Protocol):
    """Looks after the reference values of a policy: `values_watch.ValuesWatch`."""

    def renewed(self) -> Mapping[str, Appraiser] | None:
        """The appraisers by a new edition, if there is a good one since the last call."""


@dataclass(slots=True, kw_only=True)
class Verifier:
    """Judges evidence for one job. Safe to use from several threads."""

    policy: Policy
    policy_digest: str
    clock: Callable[[], datetime]
    monotonic: Callable[[], float] = time.monotonic
    uptime: Callable[[], tuple[str, int]] = machine_uptime
    """The boot of this machine, and milliseconds since; TPMs' clocks are compared with it."""
    random: Callable[[int], bytes] = secrets.token_bytes
    appraisers: Mapping[str, Appraiser] = field(default_factory=lambda: APPRAISERS)
    state: StateStore = field(default_factory=MemoryState)
    watch: Watch | None = None
    """Sees reference values that are signed again meanwhile; None: they stay as they are."""
    _asked: OrderedDict[bytes, _Asked] = field(default_factory=OrderedDict)
    _leases: dict[str, Lease] = field(default_factory=dict)
    _holders: dict[str, str] = field(default_factory=dict)
    """Which node presents a TPM, chip or device."""
    _outdated: set[str] = field(default_factory=set)
    """Nodes whose lease began under an earlier edition of the reference values."""
    _unattested: dict[str, datetime] = field(default_factory=dict)
    _unkept: dict[str, Revocation] = field(default_factory=dict)
    """What could not be written yet (a full disk); it counts, and is tried again."""
    _spent: dict[str, "Spent"] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def spent(self, node: str) -> "Spent":
        """The things that a node was just judged with; once.

        They are kept with the evidence, so that others can judge that again.
        """
        with self._lock:
            return self._spent.pop(node, Spent())

    def challenge(self, node: str, keys: AttestationKeys | None = None) -> Challenge:
        """A fresh question for a node, good once within 30 seconds.

        Args:
            node: the node's name, from its certificate.
            keys: the TPM keys of its Hello.

        Raises:
            AttestationError: ST-ATTS-002 when too many are outstanding, ST-ATTS-010 when the node
                is revoked, ST-ATTS-009 to 012 and 1xx for the keys.
        """
        try:
            return self._challenge(node, keys)
        except AttestationError:
            raise
        except Exception as error:
            raise _unexpected(error, node) from error

    def appraise(
        self,
        evidence: Evidence,
        binding: Binding,
        *,
        node: str,
        key: PublicKey,
        fetch: Fetch | None = None,
    ) -> AttestationResult:
        """Judge evidence that arrived on the connection that `binding` describes.

        Args:
            evidence: what the node sent.
            binding: the verifier's own view of the connection.
            node: the node's name, from its certificate.
            key: the node's identity key, from its certificate.
            fetch: asks the node for the parts of a long measurement list, once everything before
                the list holds. An error of the connection that it raises comes out as it is.

        Raises:
            AttestationError: ST-ATTS, saying which rule was broken and where.
        """
        try:
            asked = self._spend(binding.nonce, node)
        except AttestationError:
            raise
        except Exception as error:
            raise _unexpected(error, node) from error
        try:
            return self._appraise(asked, evidence, binding, key, fetch)
        except AttestationError as error:
            self._judge_lease(asked, error)
            raise
        except AdmissionError:
            raise  # of the connection, while the list came
        except Exception as error:
            raise _unexpected(error, node) from error

    def release(self, node: str) -> None:
        """Forget a node that left: its lease ends, and an unattested one makes room."""
        with self._lock:
            self._unattested.pop(node, None)
            self._let_go(node)

    def revoke(self, subject: str, reason: str) -> None:
        """Let nobody in any more who is `subject`: ``node:NAME``, ``ek:HEX``, ``device:SERIAL``.

        Raises:
            AttestationError: ST-ATTS-015 when it cannot be kept.
        """
        since = self.clock().isoformat()
        self._unkept[subject] = Revocation(subject=subject, reason=reason, since=since)
        self._keep_revocation(subject)

    def _keep_revocation(self, subject: str) -> None:
        self.state.revoke(self._unkept[subject])
        self._unkept.pop(subject, None)

    def _challenge(self, node: str, keys: AttestationKeys | None) -> Challenge:
        self._take_new_edition()
        self._refuse_revoked(f"node:{node}")
        if keys is None:
            ask = Ask()
            nonce = self._keep(_Asked(node=node, deadline=self._deadline(), ask=ask))
            return Challenge(nonce=nonce, ask=ask, ak_name=b"")
        appraiser, opening = self._open(node, keys)
        self._refuse_revoked(opening.identity)
        lease = self._current(node, opening)
        secret = b""
        if lease is None:
            secret = self.random(NONCE_SIZE)
            ask = Ask(credential=appraiser.credential(opening, secret, self.random))
        else:
            ask = Ask(full=False, ima_first=lease.ima.entries if lease.ima else 0)
        asked = _Asked(
            node=node,
            deadline=self._deadline(),
            ask=ask,
            secret=secret,
            opening=opening,
            lease=lease,
            past=tuple(self.state.past(opening.identity)),
        )
        return Challenge(nonce=self._keep(asked), ask=ask, ak_name=opening.ak_name)

    def _open(self, node: str, keys: AttestationKeys) -> tuple[Appraiser, Opening]:
        """Ask the appraisers, of whom one at most knows what to do with keys."""
        now = self.clock()
        for appraiser in self.appraisers.values():
            opening = appraiser.open(keys, node, now)
            if opening is not None:
                return appraiser, opening
        raise AttestationError(
            "ST-ATTS-009",
            "the node has a TPM, and this verifier has no reference values to judge it by",
            f"node {node}: node.reference_values",
            "name signed reference values in the policy, or let the node join without its TPM",
        )

    def _take_new_edition(self) -> None:
        if self.watch is None:
            return
        with self._lock:
            found = self.watch.renewed()
            if found is not None:
                self.appraisers = found
                self._outdated = set(self._leases)

    def _deadline(self) -> float:
        return self.monotonic() + NONCE_LIFE

    def _current(self, node: str, opening: Opening) -> Lease | None:
        """The lease that a renewal goes on from, if it is not over and is of the same TPM."""
        now = self.clock()
        with self._lock:
            self._refuse_shared(node, (opening.identity,), now)
            lease = None if node in self._outdated else self._leases.get(node)
        if lease is None or lease.expires <= now:
            return None
        if lease.ak_name != opening.ak_name or opening.identity not in lease.identities:
            return None
        return lease

    def _refuse_shared(self, node: str, identities: tuple[str, ...], now: datetime) -> None:
        """Refuse what another node presents under a lease of its own; the lock is held."""
        for identity in identities:
            holder = self._holders.get(identity, node)
            if holder != node and self._leases[holder].expires > now:
                raise AttestationError(
                    "ST-ATTS-011",
                    f"{holder} holds a lease with it until {self._leases[holder].expires}",
                    f"node {node}: {identity[:40]}",
                )

    def _let_go(self, node: str) -> None:
        """End a node's lease, if it has one: nothing is held without one. The lock is held."""
        lease = self._leases.pop(node, None)
        self._outdated.discard(node)
        for identity in lease.identities if lease is not None else ():
            if self._holders.get(identity) == node:
                del self._holders[identity]

    def _keep(self, asked: _Asked) -> bytes:
        now = self.monotonic()
        with self._lock:
            while self._asked and next(iter(self._asked.values())).deadline <= now:
                self._asked.popitem(last=False)
            if len(self._asked) >= MAX_NONCES:
                raise AttestationError(
                    "ST-ATTS-002",
                    f"{MAX_NONCES} challenges are unanswered",
                    fix="wait half a minute and join again",
                )
            nonce = self.random(NONCE_SIZE)
            self._asked[nonce] = asked
        return nonce

    def _spend(self, nonce: bytes, node: str) -> _Asked:
        now = self.monotonic()
        with self._lock:
            asked = self._asked.pop(nonce, None)
        if asked is None or now >= asked.deadline:
            state = "unknown or already used" if asked is None else "expired"
            raise AttestationError("ST-ATTS-002", f"the nonce is {state}", f"node {node}")
        if asked.node != node:
            raise AttestationError(
                "ST-ATTS-002", "the nonce was made for another node", f"node {node}"
            )
        return asked

    def _appraise(
        self,
        asked: _Asked,
        evidence: Evidence,
        binding: Binding,
        key: PublicKey,
        fetch: Fetch | None,
    ) -> AttestationResult:
        node = asked.node
        appraiser = self.appraisers.get(evidence.media_type)
        if appraiser is None:
            raise AttestationError(
                "ST-ATTS-006",
                f"evidence of type {evidence.media_type[:100]!r}",
                f"node {node}",
                f"send one of {', '.join(sorted(self.appraisers))}",
            )
        now = self.clock()
        boot, uptime = self.uptime()
        exchange = Exchange(
            node=node,
            key=key,
            binding=binding,
            now=now,
            expires=now + timedelta(minutes=self.policy.node.lease_minutes),
            ask=asked.ask,
            secret=asked.secret,
            lease=asked.lease,
            past=asked.past,
            boot=boot,
            uptime=uptime,
            fetch=fetch,
        )
        result, appraisal = appraise_evidence(
            evidence,
            appraiser,
            exchange,
            opening=lambda: asked.opening,
            policy=self.policy_digest,
        )
        identities = appraisal.lease.identities if appraisal.lease is not None else ()
        for subject in (f"node:{node}", *identities):  # perhaps revoked since it was asked
            self._refuse_revoked(subject)
        self._apply_policy(appraisal.tier, node, now, exchange.expires)
        self._begin_lease(node, appraisal.lease, exchange)
        with self._lock:
            self._spent[node] = Spent(secret=asked.secret, documents=appraiser.documents)
        return result

    def _begin_lease(self, node: str, lease: Lease | None, exchange: Exchange) -> None:
        """Take the TPM for this node; its clock is kept before anybody hears of the lease."""
        if lease is None:
            return
        now = exchange.now
        if (clock := lease.clock) is not None:
            self.state.remember(
                Remembered(
                    ek_name=lease.identities[0],
                    ak_name=lease.ak_name.hex(),
                    node=node,
                    clock=clock.clock,
                    reset_count=clock.reset_count,
                    restart_count=clock.restart_count,
                    firmware=clock.firmware,
                    seen=now.isoformat(),
                    boot=exchange.boot,
                    uptime=exchange.uptime,
                    entries=lease.ima.entries if lease.ima is not None else 0,
                    pcr10=lease.ima.pcr.hex() if lease.ima is not None else "",
                )
            )
        with self._lock:
            self._refuse_shared(node, lease.identities, now)
            self._let_go(node)  # what the node no longer presents is free
            self._leases[node] = lease
            self._holders.update(dict.fromkeys(lease.identities, node))

    def _judge_lease(self, asked: _Asked, error: AttestationError) -> None:
        """A node that contradicts itself while it holds a lease is out until a person says so.

        So is one that its TPM shows to be two, with or without a lease.
        """
        held = asked.lease.identities if asked.lease is not None else ()
        when = " during its lease"
        if error.definition.bars_at_once and asked.opening is not None:
            held, when = (*held, asked.opening.identity), ""
        elif asked.lease is None or not error.definition.bars_node:
            return
        elif asked.node in self._outdated:
            return  # asked by one edition, judged by the next: what that one retired is no lie
        reason = f"{error.code}{when}: {error.what}"[:1000]
        self.release(asked.node)
        subjects = tuple(dict.fromkeys((f"node:{asked.node}", *held)))
        since = self.clock().isoformat()
        for subject in subjects:  # all of them count, also if the first cannot be written
            self._unkept[subject] = Revocation(subject=subject, reason=reason, since=since)
        for subject in subjects:
            self._keep_revocation(subject)

    def _refuse_revoked(self, subject: str) -> None:
        if subject in self._unkept:
            self._keep_revocation(subject)
        entry = self.state.revocation(subject)
        if entry is not None:
            raise AttestationError(
                "ST-ATTS-010",
                f"revoked on {entry.since}: {entry.reason}",
                subject,
                f"find out why, then 'securetrain attest restore {entry.subject}'",
            )

    def _apply_policy(self, tier: NodeTier, node: str, now: datetime, expires: datetime) -> None:
        exception = check_tier(self.policy.node, tier, node, now)
        if exception is None:
            return
        with self._lock:
            others = {n for n, end in self._unattested.items() if end > now and n != node}
            if len(others) >= exception.max_nodes:
                raise AttestationError(
                    "ST-ATTS-005",
                    f"{len(others)} unattested nodes are in, {exception.max_nodes} are allowed",
                    f"node {node}: node.allow_self_asserted.max_nodes",
                    "attest the node, or raise max_nodes",
                )
            self._unattested = {n: self._unattested[n] for n in others}
            self._unattested[node] = expires


def _unexpected(error: Exception, node: str) -> AttestationError:
    return AttestationError(
        "ST-ATTS-001",
        f"the evidence could not be appraised: {type(error).__name__}: {error}",
        f"node {node}",
    )
