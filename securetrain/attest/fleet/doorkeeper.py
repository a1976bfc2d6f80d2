# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Judges a machine that asks to be admitted to a fleet: one exchange, over one connection.

::

    machine                                   doorkeeper
      knock: token, node key, TPM keys   -->    the token is proven; the endorsement key is
                                                certified, nobody else's and not revoked
                                         <--  question: a nonce of this connection, a credential
      answer: activation, quote, logs    -->    all of it is verified as enrolling will verify it
                                         <--  kept: the token is spent, the proof waits

Rules:

1. nothing of a TPM is parsed before the token and the node's key have signed the TLS exporter. Who
   does not hold a token is not told which part was wrong, and is counted;
2. the token is spent when the proof is kept, in one step (`desk`): a machine that fails may try
   again with the same token, a machine that has succeeded never;
3. the nonce is of this connection and this listener (`token.channel_nonce`): the answer of another
   machine, or of this one on another connection, is refused (ST-ATTS-003);
4. the machine has a TPM that opened the question's credential, and its quote is explained by the
   firmware's log, and by the kernel's list where there is one. What the boot is worth a person
   says, or a rule (`intake`): nothing is learned here.
"""

import hashlib
import hmac
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from securetrain.attest.fleet.bundle import Bundle, Question, Secret
from securetrain.attest.fleet.desk import Desk
from securetrain.attest.fleet.enrollment import Edition, Enrollment, enroll, pinned
from securetrain.attest.fleet.entrants import Invited, Proven
from securetrain.attest.fleet.token import channel_nonce, knock_statement
from securetrain.attest.session.state import StateStore
from securetrain.core.errors import AdmissionError, AttestationError, IdentityError
from securetrain.evidence import (
    NONCE_SIZE,
    AttestationKeys,
    ReferenceValues,
    parse_node,
)
from securetrain.evidence.tpm import (
    Endorsements,
    TemplateCache,
    TpmReference,
    Violations,
    appraise_ima,
    check_attestation_key,
    make_credential,
    parse_public,
)
from securetrain.identity.keys import PublicKey

MAX_TRIES: Final = 5
ANSWER_WITHIN: Final = timedelta(minutes=5)
_IMA_PCR: Final = 10
_BOOT_PCRS: Final = range(10)
_LIFETIME: Final = timedelta(days=1)
_FIX: Final = "make a new one: securetrain fleet admit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Knock:
    """The first message of a machine, as it came."""

    token: str
    """Id of the token's key."""
    key: PublicKey
    """The node's key."""
    keys: AttestationKeys
    proof: bytes
    """The token's signature over `token.knock_statement`."""
    possession: bytes
    """The node key's signature over it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question that waits for its answer on one connection."""

    invited: Invited
    knock: Knock
    secret: Secret
    fresh: bytes
    """The random part of the nonce, for the machine."""
    worth: str

    @property
    def question(self) -> Question:
        """The question."""
        return self.secret.question


class Doorkeeper:
    """Decides for one desk. Safe to use from several threads."""

    def __init__(
        self,
        desk: Desk,
        *,
        clock: Callable[[], datetime],
        values: Callable[[], ReferenceValues | None],
        state: StateStore,
        random: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """Remember where things are.

        Args:
            desk: knows the tokens, and keeps what is proven.
            clock: the time, timezone-aware.
            values: the fleet's reference values as they stand; None before the first edition.
            state: knows who is revoked.
            random: the source of secrets.
        """
        self.desk = desk
        self._clock = clock
        self._values = values
        self._state = state
        self._random = random
        self._lock = threading.Lock()
        self._endorsements: tuple[TpmReference, Endorsements] | None = None
        self._known: tuple[ReferenceValues, dict[str, str]] | None = None

    def ask(
        self, knock: Knock, exporter: bytes, held: Callable[[str], None] = lambda _: None
    ) -> Asked:
        """Judge a knock, and ask the machine a question.

        Args:
            knock: as it came.
            exporter: of its connection.
            held: is told the node of the token, once the peer has proven that it holds it.

        Raises:
            AdmissionError: ST-ADMN-014 not a token or not its holder, 015 expired, 016 used, 017
                tried too often, 020 for another TPM, 021 another node's machine or name, 022 the
                clock went back, 023 the record.
            AttestationError: ST-ATTS-010 revoked; ST-ATTS-101 to 110 about the TPM's keys.
        """
        now = self._clock()
        self.desk.check_time(now)
        invited = self._holder(knock, exporter, now)
        held(invited.node)
        name = parse_public(knock.keys.ek_public, "endorsement key").name.hex()
        self._check_token(invited, name, now)
        values = self._values()
        endorsement = self._endorsed(values).check(
            knock.keys.ek_public, knock.keys.ek_certificate, knock.keys.ek_chain, now
        )
        if invited.ek and not hmac.compare_digest(invited.ek, name):
            raise AdmissionError(
                "ST-ADMN-020",
                f"it is for the TPM {invited.ek[:20]}..., and {name[:20]}... answers",
                f"node {invited.node}",
            )
        self._check_revoked(invited.node, name)
        self._check_free(values, invited, name)
        self.desk.check_waiting(invited.node, name)
        ak = parse_public(knock.keys.ak_public, "attestation key")
        check_attestation_key(ak)
        fresh, inside = self._random(NONCE_SIZE), self._random(NONCE_SIZE)
        made = make_credential(endorsement.key, ak.name, inside, self._random)
        pin = self.desk.key.key_id
        question = Question(
            node=invited.node,
            nonce=channel_nonce(fresh, exporter, pin, knock.token, knock.key.spki),
            credential=(made.id_object, made.encrypted_secret),
        )
        return Asked(
            invited=invited,
            knock=knock,
            fresh=fresh,
            worth=f"{endorsement.tier.value}, {endorsement.model or 'a certified TPM'}",
            secret=Secret(
                question=question,
                secret=inside,
                asked=now,
                ek_name=endorsement.name,
                ak_name=ak.name,
            ),
        )

    def judge(self, asked: Asked, answer: Bundle, remote: str) -> Proven:
        """Judge an answer, spend the token and keep the proof.

        Args:
            asked: the question of this connection.
            answer: as it came.
            remote: the machine's address, for people.

        Raises:
            AttestationError: what does not hold together.
            AdmissionError: ST-ADMN-015 to 016, and 021 to 023.
        """
        now, invited = self._clock(), asked.invited
        where = f"node {invited.node}"
        if answer.key != asked.knock.key.spki or answer.question != asked.question:
            raise AttestationError(
                "ST-ATTS-003", "the answer is to another question, or of another node key", where
            )
        if answer.keys != asked.knock.keys:
            raise AttestationError(
                "ST-ATTS-016", "the answer is of other keys than the machine announced", where
            )
        if not asked.secret.asked <= now < asked.secret.asked + ANSWER_WITHIN:
            raise AttestationError("ST-ATTS-002", "the answer comes late", where)
        made = self._learn(asked, answer, now)
        _check_list(answer)
        values = made.values.group(invited.group)
        one = made.nodes[0]
        proven = Proven(
            token=invited.id,
            node=invited.node,
            group=invited.group,
            replace=invited.replace,
            answered=now,
            remote=remote[:128],
            bundle=answer,
            secret=asked.secret,
            worth=asked.worth,
            boot=values.boot,
            own={number: tuple(found) for number, found in one.entry.own.items()},
            learned=one.learned,
            notes=one.notes,
        )
        if now >= invited.ends:
            raise _expired(invited, now)
        self.desk.keep(proven, now)
        return proven

    def _holder(self, knock: Knock, exporter: bytes, now: datetime) -> Invited:
        """The token that a knock holds (rule 1)."""
        invited = self.desk.invited(knock.token)
        if invited is None:
            raise _unknown()
        signed = knock_statement(knock.token, knock.key.spki, knock.keys, exporter)
        try:
            invited.key.verify(knock.proof, signed)
            knock.key.verify(knock.possession, signed)
        except IdentityError as error:
            if not invited.used:
                self.desk.tried(invited.id, now)
            raise _unknown() from error
        return invited

    def _check_token(self, invited: Invited, ek: str, now: datetime) -> None:
        """From here on the peer holds the token, and may know what is wrong with it."""
        where = f"node {invited.node}"
        if invited.tries >= MAX_TRIES:
            what = f"{invited.tries} wrong proofs were given for it"
            raise AdmissionError("ST-ADMN-017", what, where, _FIX)
        if invited.used:
            whose = "this machine" if ek == invited.used_by else "another machine"
            raise AdmissionError(
                "ST-ADMN-016",
                f"{whose} used it at {invited.used}",
                where,
                "nothing is left to do here: ask the operator whether it is signed"
                if ek == invited.used_by
                else "find out which machine that is, reject it ('securetrain fleet reject'), and"
                " make a new token",
            )
        if now >= invited.ends:
            raise _expired(invited, now)

    def _endorsed(self, values: ReferenceValues | None) -> Endorsements:
        tpm = pinned(values.tpm if values is not None else TpmReference(), self.desk.roots)
        with self._lock:
            if self._endorsements is None or self._endorsements[0] != tpm:
                self._endorsements = tpm, Endorsements(tpm)
            return self._endorsements[1]

    def _check_revoked(self, node: str, ek: str) -> None:
        for entry in self._state.revocations():
            of_node = entry.subject.startswith("node:") and entry.subject.endswith(f"/{node}")
            if of_node or entry.subject == f"ek:{ek}":
                raise AttestationError(
                    "ST-ATTS-010", f"{entry.subject}: {entry.reason}", f"node {node}"
                )

    def _check_free(self, values: ReferenceValues | None, invited: Invited, ek: str) -> None:
        """Refuse a machine that is another node, and a name that is another machine's."""
        if values is None:
            return
        known, where = values.nodes.get(invited.node), f"node {invited.node}: the TPM {ek[:20]}..."
        if known is not None and not invited.replace:
            if known.ek_names and ek not in known.ek_names:
                raise AdmissionError("ST-ADMN-021", "the name is enrolled with another TPM", where)
            if known.group != invited.group:
                raise AdmissionError(
                    "ST-ADMN-021",
                    f"the node is of the image group {known.group!r}, the token is for"
                    f" {invited.group!r}",
                    where,
                )
        owner = self._owners(values).get(ek, invited.node)
        if owner != invited.node:
            raise AdmissionError("ST-ADMN-021", f"it is enrolled as {owner}", where)

    def _owners(self, values: ReferenceValues) -> Mapping[str, str]:
        """The node of each endorsement key, read once for each edition."""
        with self._lock:
            if self._known is None or self._known[0] is not values:
                owners = {ek: name for name, node in values.nodes.items() for ek in node.ek_names}
                self._known = values, owners
            return self._known[1]

    def _learn(self, asked: Asked, answer: Bundle, now: datetime) -> Edition:
        """The edition that this machine alone would make: verifies everything that it says."""
        values = self._values()
        base = None
        if values is not None:
            # Without other nodes and boots: what this machine teaches, and nothing else.
            base = ReferenceValues(
                version=1, issued=now, expires=now + _LIFETIME, tpm=values.tpm, gpu=values.gpu
            )
        one = Enrollment(
            bundle=answer, learn_boot=True, secret=asked.secret, group=asked.invited.group
        )
        return enroll(base, [one], roots=self.desk.roots, now=now, lifetime=_LIFETIME)


def _check_list(answer: Bundle) -> None:
    """Replay the kernel's list, where there is one, into the quoted register.

    Raises:
        AttestationError: ST-ATTS-301 to 311.
    """
    evidence = parse_node(answer.body).tpm
    if evidence is None:
        raise AttestationError("ST-ATTS-013", "no TPM speaks for it", f"node {answer.node}")
    if evidence.ima is None:
        return
    boot = b"".join(evidence.pcrs[number] for number in _BOOT_PCRS)
    appraise_ima(
        evidence.ima,
        pcr10=evidence.pcrs[_IMA_PCR],
        boot_aggregate=hashlib.sha256(boot).digest(),
        policy=None,
        start=None,
        violations=Violations(allow=True),
        cache=TemplateCache(),
    )


def _expired(invited: Invited, now: datetime) -> AdmissionError:
    what = f"it ended at {invited.ends:%Y-%m-%dT%H:%M:%SZ}, and it is {now:%Y-%m-%dT%H:%M:%SZ}"
    return AdmissionError("ST-ADMN-015", what, f"node {invited.node}", _FIX)


def _unknown() -> AdmissionError:
    return AdmissionError("ST-ADMN-014", "the token is not accepted", "knock", _FIX)
