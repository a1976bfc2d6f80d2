# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Evidence in a file: to enroll a node, to look at it, to verify it without a running job.

Rules:

1. a bundle is collected for a question. A verifier's own question (`make_question`) has a nonce and
   a credential for the TPM, whose secret stays with the verifier; without one the node asks itself,
   which proves neither freshness nor that the attestation key is in the TPM;
2. what is verified is what `run` verifies: the same appraiser, the same policy. What a bundle
   cannot prove is said (`Verdict.open`), and is never a pass: freshness, where nobody asked; the
   machine itself, where nothing but its own word or a software TPM speaks for it;
3. a question is to one TPM and one attestation key: an answer that was signed by another key is
   refused, whoever opened the credential (ST-ATTS-016);
4. a bundle is bound to its node key and to the name ``offline``, so that it is good for no job.
"""

import base64
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from securetrain.attest.node.attester import Attester
from securetrain.core import canonical
from securetrain.core.errors import AttestationError, IdentityError, UsageError
from securetrain.core.files import PRIVATE_FILE, read_file, write_atomic
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence import (
    BODY_LIMIT,
    EXPORTER_SIZE,
    NODE_TYPE,
    NONCE_SIZE,
    SESSION_SIZE,
    Appraiser,
    Ask,
    AttestationKeys,
    AttestationResult,
    Binding,
    Evidence,
    Exchange,
    Opening,
    Structure,
    appraise_evidence,
    check_binding,
)
from securetrain.evidence.tpm import (
    check_attestation_key,
    check_endorsement_key,
    make_credential,
    parse_public,
)
from securetrain.identity.keys import PublicKey

JOB: Final = "offline"
FILE_LIMIT: Final = 2 * BODY_LIMIT
SCHEMA: Final = "securetrain.dev/evidence-bundle/v1"
QUESTION_SCHEMA: Final = "securetrain.dev/attestation-question/v1"
SECRET_SCHEMA: Final = "securetrain.dev/attestation-secret/v1"  # noqa: S105 - a format's name
ANSWER_WITHIN: Final = timedelta(hours=24)

_Nonce = Annotated[bytes, Meta(min_length=NONCE_SIZE, max_length=NONCE_SIZE)]
_Moment = Annotated[datetime, Meta(tz=True)]

_D = TypeVar("_D", "Question", "Secret", "Bundle")


class _Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A document of this module."""


class Question(_Struct, frozen=True, kw_only=True):
    """An offline question to a node."""

    schema: str = QUESTION_SCHEMA
    node: Annotated[str, Meta(min_length=1, max_length=64)]
    nonce: _Nonce
    credential: tuple[Structure, Structure] | None = None
    """TPM2B_ID_OBJECT and TPM2B_ENCRYPTED_SECRET for the keys of an earlier bundle."""


class Secret(_Struct, frozen=True, kw_only=True):
    """The verifier's part of a question, kept until the answer comes. Keep it private."""

    schema: str = SECRET_SCHEMA
    question: Question
    secret: bytes
    """What the credential holds."""
    asked: _Moment
    ek_name: Annotated[bytes, Meta(max_length=64)] = b""
    """Name of the endorsement key that the credential was made for; empty without a TPM."""
    ak_name: Annotated[bytes, Meta(max_length=64)] = b""
    """The same of the attestation key."""


class Bundle(_Struct, frozen=True, kw_only=True):
    """Evidence and what it was made for."""

    schema: str = SCHEMA
    question: Question
    asked_itself: bool
    """Whether there was no verifier's question."""
    collected: _Moment
    key: Structure
    """The node's key (SPKI, DER) that signed."""
    keys: AttestationKeys | None = None
    media_type: Annotated[str, Meta(max_length=128)]
    body: bytes
    binding: Annotated[bytes, Meta(min_length=32, max_length=32)]
    signature: Annotated[bytes, Meta(max_length=512)]

    @property
    def node(self) -> str:
        """The node's name, as it was asked."""
        return self.question.node

    @property
    def ak_name(self) -> bytes:
        """Name of the attestation key; empty without a TPM."""
        if self.keys is None:
            return b""
        return parse_public(self.keys.ak_public, "attestation key").name

    @property
    def ek_name(self) -> bytes:
        """Name of the endorsement key; empty without a TPM."""
        if self.keys is None:
            return b""
        return parse_public(self.keys.ek_public, "endorsement key").name

    @property
    def evidence(self) -> Evidence:
        """The evidence as it would travel."""
        return Evidence(
            media_type=self.media_type,
            body=self.body,
            binding=self.binding,
            signature=self.signature,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict on a bundle under a policy."""

    result: AttestationResult
    open: tuple[str, ...]
    """What it cannot prove; empty when it proves everything."""


def own_question(node: str, random: Callable[[int], bytes] = secrets.token_bytes) -> Question:
    """A question that a node asks itself."""
    return Question(node=node, nonce=random(NONCE_SIZE))


def make_question(
    bundle: Bundle,
    appraiser: Appraiser,
    now: datetime,
    random: Callable[[int], bytes] = secrets.token_bytes,
) -> Secret:
    """A verifier's question to the node that a bundle is of.

    Raises:
        AttestationError: the bundle's TPM keys are not of a node that may join.
    """
    secret, credential = random(NONCE_SIZE), None
    opening = _open(bundle, appraiser, now)
    if opening is not None:
        credential = appraiser.credential(opening, secret, random)
    return _asked(bundle, secret, credential, now, random)


def question_to_enroll(
    bundle: Bundle, now: datetime, random: Callable[[int], bytes] = secrets.token_bytes
) -> Secret:
    """A question to a machine that is not enrolled yet: whose TPM it is, enrolling decides.

    Args:
        bundle: what the machine says, with its TPM's keys.
        now: the time, timezone-aware.
        random: the source of secrets.

    Raises:
        AttestationError: ST-ATTS-101 to 104: keys that no credential can be made for.
    """
    secret, credential = random(NONCE_SIZE), None
    if bundle.keys is not None:
        ek = parse_public(bundle.keys.ek_public, "endorsement key")
        ak = parse_public(bundle.keys.ak_public, "attestation key")
        check_endorsement_key(ek)
        check_attestation_key(ak)
        made = make_credential(ek, ak.name, secret, random)
        credential = (made.id_object, made.encrypted_secret)
    return _asked(bundle, secret, credential, now, random)


def collect_bundle(
    attester: Attester, key: PublicKey, now: datetime, question: Question, *, asked_itself: bool
) -> Bundle:
    """Collect evidence on this machine.

    Args:
        attester: of this node.
        key: the public part of the key that the attester signs with.
        now: the time, timezone-aware.
        question: what to answer.
        asked_itself: whether nobody else asked.

    Raises:
        AttestationError: ST-ATTS-15x to 19x and 9xx: what could not be collected, and why.
    """
    keys = attester.keys()
    ak_name = parse_public(keys.ak_public, "attestation key").name if keys is not None else b""
    binding = _binding(question, key.spki, ak_name)
    evidence = attester.collect(binding, Ask(credential=question.credential))
    return Bundle(
        question=question,
        asked_itself=asked_itself,
        collected=now,
        key=key.spki,
        keys=keys,
        media_type=evidence.media_type,
        body=evidence.body,
        binding=evidence.binding,
        signature=evidence.signature,
    )


def verify_bundle(
    bundle: Bundle,
    appraiser: Appraiser,
    *,
    secret: Secret | None,
    policy: str,
    lease: timedelta,
    now: datetime,
) -> Verdict:
    """Judge a bundle as `run` would judge the node.

    Args:
        bundle: the evidence.
        appraiser: for the bundle's media type.
        secret: of the question that it answers; None when the node asked itself.
        policy: SHA-256 (hex) of the policy.
        lease: how long the result would hold.
        now: the time of the check.

    Raises:
        AttestationError: which rule was broken, and where.
    """
    question = check_question(bundle, secret, now)
    key = node_key(bundle)
    if bundle.media_type == NODE_TYPE and not appraiser.reference_values:
        raise AttestationError(
            "ST-ATTS-009",
            "this is node evidence, and the policy names no reference values to judge it by",
            f"node {bundle.node}: node.reference_values",
            "name signed reference values in the policy",
        )
    exchange = Exchange(
        node=bundle.node,
        key=key,
        binding=_binding(question, bundle.key, bundle.ak_name),
        now=now,
        expires=now + lease,
        ask=Ask(credential=question.credential),
        secret=secret.secret if secret is not None else b"",
    )
    result, appraisal = appraise_evidence(
        bundle.evidence,
        appraiser,
        exchange,
        opening=lambda: _open(bundle, appraiser, now),
        policy=policy,
    )
    if secret is not None:
        check_asked_keys(bundle, secret)
    return Verdict(result=result, open=_left_open(bundle, secret, appraisal.tier))


def check_made_for(bundle: Bundle, question: Question, manifest: bytes) -> bytes:
    """The binding of a bundle, if it was made for a question, by this key and with this manifest.

    Raises:
        AttestationError: ST-ATTS-003.
    """
    expected = _binding(question, bundle.key, bundle.ak_name).value(manifest)
    check_binding(bundle.evidence, expected, bundle.node)
    return expected


def node_key(bundle: Bundle) -> PublicKey:
    """The key that the bundle says it is signed with.

    Raises:
        AttestationError: ST-ATTS-001 when it is none.
    """
    try:
        return PublicKey.from_spki(bundle.key)
    except IdentityError as error:
        raise AttestationError("ST-ATTS-001", error.what, f"node {bundle.node}: key") from error


def write_bundle(path: Path, bundle: Bundle) -> None:
    """Write a bundle as canonical JSON."""
    write_atomic(path, canonical.encode(bundle))


def read_bundle(path: Path) -> Bundle:
    """Read a bundle.

    Raises:
        UsageError: ST-USAG-002 or 008.
    """
    return _read(path, Bundle, SCHEMA)


def write_question(path: Path, secret_path: Path, secret: Secret) -> None:
    """Write what the node is given, and what the verifier keeps (mode 0600)."""
    write_atomic(secret_path, canonical.encode(secret), mode=PRIVATE_FILE)
    write_atomic(path, canonical.encode(secret.question))


def read_question(path: Path) -> Question:
    """Read a question.

    Raises:
        UsageError: ST-USAG-002 or 008.
    """
    return _read(path, Question, QUESTION_SCHEMA)


def read_secret(path: Path) -> Secret:
    """Read what the verifier kept.

    Raises:
        UsageError: ST-USAG-002 or 008.
    """
    return _read(path, Secret, SECRET_SCHEMA)


def key_text(key: PublicKey) -> str:
    """A public key as policies name it: SPKI, base64."""
    return base64.b64encode(key.spki).decode()


def _open(bundle: Bundle, appraiser: Appraiser, now: datetime) -> Opening | None:
    """The TPM whose keys the bundle has; None without one."""
    return None if bundle.keys is None else appraiser.open(bundle.keys, bundle.node, now)


def _binding(question: Question, spki: bytes, ak_name: bytes) -> Binding:
    return Binding(
        nonce=question.nonce,
        session=bytes(SESSION_SIZE),
        job=JOB,
        client_spki=spki,
        server_spki=b"",
        exporter=bytes(EXPORTER_SIZE),
        ak_name=ak_name,
    )


def check_question(bundle: Bundle, secret: Secret | None, now: datetime) -> Question:
    """The question that a bundle must answer.

    Args:
        bundle: the answer.
        secret: of the question; None where nobody asked.
        now: the time, timezone-aware.

    Raises:
        AttestationError: ST-ATTS-002 for another question or a late answer.
    """
    if secret is None:
        return bundle.question
    if bundle.question != secret.question:
        raise AttestationError(
            "ST-ATTS-002",
            "the bundle answers another question",
            f"node {bundle.node}",
            "collect it with the question that belongs to this secret",
        )
    if not secret.asked <= now < secret.asked + ANSWER_WITHIN:
        raise AttestationError(
            "ST-ATTS-002",
            f"the question was asked at {secret.asked}, and it is {now}",
            f"node {bundle.node}",
            "ask again: securetrain attest challenge",
        )
    return secret.question


def check_asked_keys(bundle: Bundle, secret: Secret) -> None:
    """Refuse an answer by other keys than the question was asked of.

    Root on the node may open a credential for anybody: it proves the one key that it names.

    Raises:
        AttestationError: ST-ATTS-016.
    """
    if (bundle.ek_name, bundle.ak_name) != (secret.ek_name, secret.ak_name):
        raise AttestationError(
            "ST-ATTS-016",
            "the answer is signed by other keys than the question's credential was made for",
            f"node {bundle.node}: keys",
            "ask again: securetrain attest challenge",
        )


def _asked(
    bundle: Bundle,
    secret: bytes,
    credential: tuple[bytes, bytes] | None,
    now: datetime,
    random: Callable[[int], bytes],
) -> Secret:
    return Secret(
        question=Question(node=bundle.node, nonce=random(NONCE_SIZE), credential=credential),
        secret=secret,
        asked=now,
        ek_name=bundle.ek_name,
        ak_name=bundle.ak_name,
    )


def _left_open(bundle: Bundle, secret: Secret | None, tier: NodeTier) -> tuple[str, ...]:
    found = []
    if tier is NodeTier.SELF_ASSERTED:
        found.append("the machine: nothing but the node's own word speaks for it")
    if tier is NodeTier.TEST_ONLY:
        found.append("the machine: its TPM is a program that nobody vouches for")
    if secret is None:
        found.append("freshness: the node asked itself, so this may be an old recording")
        if bundle.keys is not None:
            found.append(
                "the attestation key: nothing proves that the TPM holds it (no credential was asked"
                " for)"
            )
    elif bundle.keys is not None and bundle.question.credential is None:
        found.append("the attestation key: the question had no credential")
    return tuple(found)


def _read(path: Path, kind: type[_D], schema: str) -> _D:
    where = str(path)
    data = read_file(path, FILE_LIMIT)
    document = canonical.loads(data, limit=FILE_LIMIT, where=where)
    found = document.get("schema") if isinstance(document, dict) else None
    if found != schema:
        said = f"its schema is {str(found)[:100]!r}" if found else "it names no schema"
        raise UsageError(
            "ST-USAG-008",
            f"{said}, expected {schema!r}",
            where,
            "name the right file, or collect it again with this version",
        )
    return canonical.decode(data, kind, limit=FILE_LIMIT, where=where, canonical=True)
